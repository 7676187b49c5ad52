"""The graph of a compiled region, from an FX graph of aten calls to a record of the trace.

    graph = Graph(gm)                       # before the compiler changes it
    sizes = graph.sizes(inputs)             # what symbolic sizes are in one call
    graph.write(number, sizes, recorder)

Values are numbered: the inputs first, then the constants of the graph, then the results of each call.
"""
import operator
import re
import struct

import torch

from .file import GRAPH

NOTHING = 0xFFFFFFFF    # an output that is not a tensor of the graph
NO_RESULT = 255         # in place of a dtype
_U32 = struct.Struct("<I")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')


class Unknown(Exception):
    """A graph that cannot be written; the text says why."""


class Value:
    """A tensor of the graph, by its number."""
    __slots__ = ("number",)

    def __init__(self, number):
        self.number = number


class Size:
    """A number that depends on the sizes of the inputs."""
    __slots__ = ("expression",)

    def __init__(self, expression):
        self.expression = expression


def _symbolic(x):
    """Returns a size as int, or as an expression of sympy."""
    if isinstance(x, (bool, int, float)):
        return x
    node = getattr(x, "node", None)
    expression = getattr(node, "expr", None)
    if expression is None:
        raise Unknown(f"a size of type {type(x).__name__} in the graph")
    return int(expression) if getattr(expression, "is_Integer", False) else Size(expression)


class Call:
    __slots__ = ("name", "place", "args", "kwargs", "results")


class Graph:
    def __init__(self, gm):
        self.inputs, self.constants, self.calls = [], [], []
        self.outputs, self.writes = [], []    # (input, value)
        self.count = 0
        self.values = {}                      # node: its Value, list of them, Size, or None
        nodes = list(gm.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                self.inputs.append(_type_of(node.meta.get("val")))
                value = node.meta.get("val")
                number = self._number()
                self.values[node] = _symbolic(value) if isinstance(value, (torch.SymInt, torch.SymFloat, int)) else number
        for node in nodes:
            if node.op == "get_attr":
                found = _attribute(gm, node.target)
                if isinstance(found, torch.Tensor):
                    self.values[node] = self._number()
                    self.constants.append(found)
        for node in nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self.outputs = [v if isinstance(v, Value) else None for v in self._argument(node.args[0])]
            elif node.op not in ("placeholder", "get_attr"):
                raise Unknown(f"the graph has a node of kind {node.op}")
        self.written = [i for i, _ in self.writes]
        self.values = None    # do not keep the nodes

    def _number(self):
        self.count += 1
        return Value(self.count - 1)

    def _call(self, node):
        if node.target is operator.getitem:
            of = self.values.get(node.args[0])
            self.values[node] = of[node.args[1]] if isinstance(of, list) else None
            return
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.values[node] = _symbolic(value)
            return
        if not isinstance(node.target, torch._ops.OpOverload):    # arithmetic of sizes, higher-order functions
            name = getattr(node.target, "__name__", str(node.target))
            if value is None or isinstance(value, (bool, int, float)):
                self.values[node] = value
                return
        else:
            name = str(node.target)
            if node.target._schema.is_mutable and name != "aten.copy_.default":
                raise Unknown(f"{name} writes within the region")
        call = Call()
        call.name, call.place = name, _place(node)
        call.args, call.kwargs = self._argument(node.args), {k: self._argument(v) for k, v in node.kwargs.items()}
        several = isinstance(value, (list, tuple))
        call.results = [_type_of(v) for v in (value if several else [value])]
        numbers = [self._number() for _ in call.results]
        self.values[node] = numbers if several else numbers[0]
        if name == "aten.copy_.default":
            target = call.args[0]
            if not isinstance(target, Value) or target.number >= len(self.inputs):
                raise Unknown("aten.copy_.default writes within the region")
            self.writes.append((target.number, numbers[0]))
        self.calls.append(call)

    def _argument(self, a):
        if isinstance(a, torch.fx.Node):
            return self.values.get(a)
        if isinstance(a, (list, tuple)):
            return [self._argument(v) for v in a]
        if isinstance(a, slice):
            raise Unknown("a slice among the arguments of a node")
        if isinstance(a, (torch.SymInt, torch.SymFloat)):
            return _symbolic(a)
        return a

    # One call

    def sizes(self, values):
        """Returns {symbol: number} from the inputs of a call."""
        found = {}
        for kind, value in zip(self.inputs, values):
            if isinstance(kind, Size) and not isinstance(value, torch.Tensor):
                found[kind.expression] = value
            elif isinstance(kind, tuple) and isinstance(value, torch.Tensor):
                for symbol, size in zip(kind[1], value.shape):
                    if isinstance(symbol, Size):
                        found.setdefault(symbol.expression, size)
        return found

    def write(self, number, sizes, recorder):
        """Writes the graph's record, with numbers in place of sizes that depend on the inputs."""
        s, out = recorder.file.string, []

        def concrete(a):
            if isinstance(a, Size):
                found = a.expression.xreplace(sizes)
                if isinstance(found, (int, float)):
                    return found
                if not found.is_number:
                    raise Unknown(f"the size {found} does not follow from the inputs")
                return int(found) if found.is_integer else float(found)
            return [concrete(v) for v in a] if isinstance(a, list) else a

        out.append(_U32.pack(len(self.inputs) + len(self.constants)))
        out.append(_U32.pack(len(self.calls)))
        for call in self.calls:
            out.append(_U32.pack(s(call.name)) + _U32.pack(s(call.place)))
            recorder.list(concrete(call.args), out)
            out.append(_U32.pack(len(call.kwargs)))
            for key, value in call.kwargs.items():
                out.append(_U32.pack(s(key)))
                recorder.value(concrete(value), out)
            out.append(_U32.pack(len(call.results)))
            for kind in call.results:
                if not isinstance(kind, tuple):
                    out.append(bytes((NO_RESULT, 0)))
                    continue
                dims = [concrete(n) for n in kind[1]]
                out.append(struct.pack(f"<BB{len(dims)}q", recorder.dtype_of(kind[0]), len(dims), *dims))
        out.append(_U32.pack(len(self.outputs)))
        out.extend(_U32.pack(NOTHING if v is None else v.number) for v in self.outputs)
        out.append(_U32.pack(len(self.writes)))
        out.extend(_U32.pack(i) + _U32.pack(v.number) for i, v in self.writes)
        recorder.file.record(GRAPH, number, b"".join(out))


def _type_of(value):
    """(dtype, sizes) of a tensor, a Size, or None."""
    if isinstance(value, torch.Tensor):
        return value.dtype, [_symbolic(n) for n in value.shape]
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return _symbolic(value)
    return None


def _attribute(gm, target):
    for name in target.split("."):
        gm = getattr(gm, name)
    return gm


def _place(node):
    """The line of the user's source that a node comes from."""
    found = _FRAME.findall(node.meta.get("stack_trace") or node.stack_trace or "")
    if not found:
        return ""
    from .places import shown
    file, line, function, text = found[-1]
    return f"{shown(file)}:{line} in {function}: {text.strip()}"

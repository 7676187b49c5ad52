"""A jaxpr as one list of ops: calls inlined, meshes entered and left by ops of their own, loops unrolled.

    program = flatten(closed)
    values = evaluate(program, [widened(x) for x in leaves])           # under binary64(); {number: value}
    again = evaluate(program, leaves, values, instead)                 # evaluates only what is changed
"""

import os
import sysconfig

import numpy as np

from ..xla.compat import MESHES, inner_jaxpr, scan_counts
from .collectives import COLLECTIVES
from .evaluate import CALLS, SAME, Evaluator, enter, inner_of, is_float, leave, mesh_part
from .layout import spread, xp

_UNROLLED = 6000  # ops of one loop


class Op:
    """name: of the primitive, or enter, leave, row, rows; inputs, outputs: numbers; axes: of the mesh in effect.

    equations: that of the op and those of the calls that it is in, from the inside out.
    """

    __slots__ = ("index", "name", "params", "inputs", "outputs", "axes", "call", "equations")

    def __init__(self, name, params, inputs, outputs, axes, call, equations):
        self.name, self.params, self.inputs, self.outputs = name, params, inputs, outputs
        self.axes, self.call, self.equations = axes, call, equations


class Program:
    """ops; inputs, outputs: numbers; constants: {number: value}; avals: {number: shape and type on one device}."""

    def __init__(self, evaluator):
        self.evaluator = evaluator
        self.ops, self.inputs, self.outputs, self.constants, self.avals, self.count = [], [], [], {}, {}, 0
        self.axes_at, self.of, self.users_of, self.calls = {}, {}, None, []

    def new(self, aval, axes):
        self.count += 1
        self.avals[self.count], self.axes_at[self.count] = aval, axes
        return self.count

    def add(self, name, params, inputs, outputs, axes, call, equation):
        op = Op(name, params, inputs, outputs, axes, call, [equation, *reversed(self.calls)])
        op.index = len(self.ops)
        self.ops.append(op)
        self.of.update((o, op) for o in outputs)

    def keep_live(self):
        """Drops the ops that no output needs."""
        live, kept = set(self.outputs), []
        for op in reversed(self.ops):
            if live & set(op.outputs):
                live |= set(op.inputs)
                kept.append(op)
        self.ops = kept[::-1]
        for i, op in enumerate(self.ops):
            op.index = i
        self.of = {o: op for op in self.ops for o in op.outputs}

    def users(self, number):
        if self.users_of is None:
            self.users_of = {}
            for op in self.ops:
                for i in dict.fromkeys(op.inputs):
                    self.users_of.setdefault(i, []).append(op)
        return self.users_of.get(number, [])


class _Flattener:
    def __init__(self, wide):
        self.program = Program(Evaluator(wide))
        self.evaluator = self.program.evaluator

    def constant(self, value, aval, axes):
        number = self.program.new(aval, axes)
        self.program.constants[number] = value
        return number

    def body(self, jaxpr, constants, inputs, axes):
        env = dict(zip(jaxpr.invars, inputs))
        for v, c in zip(jaxpr.constvars, constants):
            env[v] = self.constant(c, v.aval, axes)

        def number(v):
            if hasattr(v, "val"):
                return self.constant(np.asarray(v.val, dtype=v.aval.dtype), v.aval, axes)
            return env[v]

        for equation in jaxpr.eqns:
            outputs = self.equation(equation, [number(v) for v in equation.invars], axes)
            env.update(zip(equation.outvars, outputs))
        return [number(v) for v in jaxpr.outvars]

    def equation(self, equation, inputs, axes):
        name, program = equation.primitive.name, self.program
        if name in CALLS:
            program.calls.append(equation)
            try:
                return self.body(*inner_of(equation), inputs, axes)
            finally:
                program.calls.pop()
        if name in SAME:
            return inputs
        if name in MESHES:
            return self.mesh(equation, inputs, axes, name == "xla_pmap")
        if name == "scan" and self.small(equation):
            return self.loop(equation, inputs, axes)
        outputs = [program.new(v.aval, axes) for v in equation.outvars]
        if axes and name in COLLECTIVES and len(inputs) == len(outputs) > 1:
            for x, y in zip(inputs, outputs):
                program.add(name, equation.params, [x], [y], axes,
                            lambda values: self.evaluator.equation(equation, values, axes), equation)  # fmt: skip
            return outputs
        program.add(name, equation.params, inputs, outputs, axes,
                    lambda values: self.evaluator.equation(equation, values, axes), equation)  # fmt: skip
        return outputs

    def mesh(self, equation, inputs, axes, mapped):
        body, new, ins, outs = mesh_part(equation)
        program, inner, k = self.program, axes + new, len(axes)
        parts = []
        for x, spec, v in zip(inputs, ins, body.invars):
            part = program.new(v.aval, inner)
            program.add("enter", {"spec": spec, "mapped": mapped, "new": new}, [x], [part], inner,
                        lambda values, spec=spec: [enter(values[0], spec, k, new, mapped)], equation)  # fmt: skip
            parts.append(part)
        results = []
        for x, spec, v in zip(self.body(body, (), parts, inner), outs, equation.outvars):
            result = program.new(v.aval, axes)
            program.add("leave", {"spec": spec, "mapped": mapped, "new": new}, [x], [result], inner,
                        lambda values, spec=spec: [leave(values[0], spec, k, new, mapped)], equation)  # fmt: skip
            results.append(result)
        return results

    def small(self, equation):
        return equation.params["length"] * _size(inner_jaxpr(equation.params["jaxpr"])[0]) <= _UNROLLED

    def loop(self, equation, inputs, axes):
        p, k, program = equation.params, len(axes), self.program
        body, constants = inner_jaxpr(p["jaxpr"])
        (nc, carries), length = scan_counts(p), p["length"]
        given, carry, xs = inputs[:nc], inputs[nc : nc + carries], inputs[nc + carries :]
        constants = [self.constant(c, v.aval, axes) for v, c in zip(body.constvars, constants)]
        columns = [[None] * length for _ in body.outvars[carries:]]
        for i in reversed(range(length)) if p["reverse"] else range(length):
            rows = []
            for x, v in zip(xs, body.invars[nc + carries :]):
                row = program.new(v.aval, axes)
                program.add("row", {}, [x], [row], axes,
                            lambda values, i=i: [values[0][(slice(None),) * k + (i,)]], equation)  # fmt: skip
                rows.append(row)
            env = _Closed(body, constants)
            out = self.body(env, (), [*constants, *given, *carry, *rows], axes)
            carry = out[:carries]
            for column, y in zip(columns, out[carries:]):
                column[i] = y
        results = list(carry)
        for column, v in zip(columns, equation.outvars[carries:]):
            result = program.new(v.aval, axes)
            program.add("rows", {}, column, [result], axes, lambda values: [_stack(values, k)], equation)
            results.append(result)
        return results


class _Closed:
    """A loop's body whose constants are inputs."""

    def __init__(self, body, constants):
        self.invars, self.constvars = [*body.constvars, *body.invars], []
        self.eqns, self.outvars = body.eqns, body.outvars


def _stack(values, k):
    dims = tuple(max(s) for s in zip(*[v.shape[:k] for v in values])) if k else ()
    return xp(values[0]).stack([spread(v, k, dims) for v in values], k)


def _size(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name in CALLS:
            total += _size(inner_of(equation)[0])
        elif equation.primitive.name == "scan":
            total += equation.params["length"] * _size(inner_jaxpr(equation.params["jaxpr"])[0])
        else:
            total += 1
    return total


def flatten(closed, wide=True):
    """wide: it is evaluated in binary64; else in its own types, under jit."""
    f = _Flattener(wide)
    jaxpr = closed.jaxpr
    f.program.inputs = [f.program.new(v.aval, ()) for v in jaxpr.invars]
    f.program.outputs = f.body(jaxpr, closed.consts, f.program.inputs, ())
    f.program.keep_live()
    return f.program


def evaluate(program, inputs, base=None, instead=None):
    """Returns {number: value}. base: the values of an evaluation of all ops as they are, of which unchanged ones are kept.

    instead(op, values): the outputs of an op that is evaluated another way, or None.
    """
    values = dict(zip(program.inputs, inputs))
    for number, value in program.constants.items():
        values[number] = base[number] if base else program.evaluator.constant(value, len(program.axes_at[number]))
    changed = set()
    for op in program.ops:
        outputs = instead(op, values) if instead is not None else None
        if outputs is None and base is not None and not any(i in changed for i in op.inputs):
            outputs = [base[o] for o in op.outputs]
        elif outputs is None:
            outputs = op.call([values[i] for i in op.inputs])
        for number, x in zip(op.outputs, outputs):
            values[number] = x
            if base is not None and x is not base[number] and not _equal(x, base[number]):
                changed.add(number)
    return values


def _equal(a, b):
    if a is None or a.shape != b.shape:
        return a is b
    if not isinstance(a.dtype, np.dtype):
        return False
    return bool(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=is_float(a.dtype)))


# ---- what the one-device program leaves out --------------------------------------------------


def unread(small, large):
    """Returns why a program on one device is not the whole: it reads a part of what the devices hold. Or ""."""
    mine = [op for op in small.ops if op.name == "enter"]
    theirs = [op for op in large.ops if op.name == "enter"]
    for own, other in zip(mine, theirs):
        shape, shard = small.avals[own.outputs[0]].shape, large.avals[other.outputs[0]].shape
        for d, (size, part) in enumerate(zip(shape, shard)):
            if size > part == 1 and not _covered(small, own.outputs[0], d, size):
                return f"{line_of(own)} takes one of the {size} rows that the devices hold one each"
    return ""


def _covered(program, number, d, size):
    read, users = set(), program.users(number)
    if not any(op.name in ("slice", "dynamic_slice", "gather") for op in users):
        return True
    for op in users:
        if op.name == "slice":
            start, limit = op.params["start_indices"][d], op.params["limit_indices"][d]
            read |= set(range(start, limit))
        elif op.name == "dynamic_slice" and op.inputs[0] == number and op.params["slice_sizes"][d] < size:
            continue
        elif op.name == "gather" and op.inputs[0] == number and op.params["slice_sizes"][d] < size:
            continue
        elif op.name not in _ELEMENTWISE:  # the update of a parameter is no use of it
            return True
    return len(read) == size


_ELEMENTWISE = {"add", "sub", "mul", "div", "neg", "add_any", "convert_element_type", "max", "min", "leave"}


def row_axis(program, number, rank):
    """Returns the axis of a device's rows: the first that the step does not go through one by one."""
    taken = set()
    for op in program.users(number):
        if op.name == "enter":
            taken |= _taken(program, op.outputs[0], 1 if len(program.avals[op.outputs[0]].shape) == rank else 0)
    return next((d for d in range(rank - 1) if d not in taken), 0)


def _taken(program, number, skip):
    """Returns the axes of which ops take a part. skip: leading axes that a device holds one row of."""
    found = set()
    for op in program.users(number):
        shape = program.avals[number].shape
        if op.name == "squeeze" and skip and tuple(op.params["dimensions"]) == (0,):
            found |= _taken(program, op.outputs[0], 0)
        elif op.name == "row":
            found.add(0)
        elif op.name in ("slice", "dynamic_slice") and op.inputs[0] == number:
            part = program.avals[op.outputs[0]].shape
            if skip and op.name == "slice" and part == shape:
                found |= _taken(program, op.outputs[0], skip)
            found |= {d - skip for d in range(skip, len(shape)) if part[d] < shape[d]}
        elif op.name == "scan":
            found.add(0)
    return found


# ---- places ----------------------------------------------------------------------------------

_LIBRARIES = tuple(
    os.path.realpath(p) for p in {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"]}
)  # fmt: skip
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _frames(equation):
    from jax._src import source_info_util as private

    for given in (equation.source_info, getattr(equation.source_info, "traceback", None)):
        try:
            return [f for f in private.user_frames(given) if not os.path.abspath(f.file_name).startswith(_OWN)]
        except (AttributeError, TypeError):  # private: versions take one or the other
            continue
    return []


def frames_of(op):
    """Returns the frames of the op, from the inside out; functions that JAX traces once have only their callers'."""
    return next((frames for frames in map(_frames, op.equations) if frames), [])


def line_of(op):
    """Returns "train.py:12": the innermost line outside of installed packages; "" if it is not known."""
    for equation in op.equations:
        for f in _frames(equation):
            if not os.path.realpath(f.file_name).startswith(_LIBRARIES):
                return f"{os.path.basename(f.file_name)}:{f.start_line}"
    frames = frames_of(op)
    return f"{os.path.basename(frames[0].file_name)}:{frames[0].start_line}" if frames else ""

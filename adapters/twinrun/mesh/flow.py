"""Where values of a sharded program go: whether shards are summed later, what a number is for.

flow = Flow(program, values)
flow.reduced_later(number, ("data",))      # every path from it, through linear ops, is summed over these axes
"""

import math

import numpy as np

from .collectives import REDUCTIONS, axes_of

SAME_VALUE = {"pvary", "pbroadcast", "pcast", "convert_element_type", "reshape", "broadcast_in_dim", "squeeze", "copy",
              "expand_dims", "transpose"}  # fmt: skip
_LINEAR = SAME_VALUE | {
    "add", "add_any", "sub", "neg", "reduce_sum", "slice", "concatenate", "pad", "dynamic_slice",
    "dynamic_update_slice",
    "gather", "scatter-add", "scatter_add", "cumsum", "rev", "reduce_window_sum", "row", "rows",
    "select_n", "all_gather",     "all_gather_invariant", "ppermute", "all_to_all", "split", "real", "stack", "unstack",
    "psum", "psum2", "psum_invariant",     "reduce_scatter", "reduce_precision",
}  # fmt: skip
_PRODUCTS = {"mul", "dot_general", "conv_general_dilated", "div"}
_ROOTS = {"sqrt", "rsqrt", "pow", "integer_pow"}
_COMPARED = {"lt", "gt", "le", "ge", "max", "min", "clamp"}


class Flow:
    def __init__(self, program, values):
        self.program, self.values, self.known = program, values, {}

    def uniform(self, number, axes):
        """Returns whether a value is the same on all devices along the named axes."""
        names = [n for n, _ in self.program.axes_at[number]]
        x = self.values[number]
        if x is None or not isinstance(x.dtype, np.dtype):
            return True
        for name in axes:
            if name not in names:
                continue
            p = names.index(name)
            if x.shape[p] > 1:
                a = np.asarray(x)
                first = np.take(a, [0], axis=p)
                if a.dtype.kind == "f":
                    size = max(float(np.max(np.abs(a), initial=0)), 1e-300)
                    if not float(np.max(np.abs(a - first), initial=0)) <= 2.0**-40 * size:
                        return False
                elif not bool(np.all(a == first)):
                    return False
        return True

    def _linear(self, op, number, axes):
        if op.name in _LINEAR:
            return not (op.name == "select_n" and op.inputs[0] == number)
        if op.name in _PRODUCTS:
            if op.inputs.count(number) > 1 or (op.name == "div" and op.inputs[1] == number):
                return False
            return all(i == number or self.uniform(i, axes) for i in op.inputs)
        return False

    def reduced_later(self, number, axes):
        key = number, tuple(axes)
        if key not in self.known:
            self.known[key] = False  # while it is being looked at
            users = self.program.users(number)
            self.known[key] = bool(users) and number not in self.program.outputs and all(
                self._summed(op, axes)
                or (self._linear(op, number, axes) and all(self.reduced_later(o, axes) for o in op.outputs))
                for op in users
            )  # fmt: skip
        return self.known[key]

    def _summed(self, op, axes):
        return op.name in REDUCTIONS and set(axes) <= set(axes_of(op.params))

    def downstream(self, number):
        """Yields the ops that a value flows into, the nearest first."""
        seen, todo = set(), [number]
        while todo:
            after = []
            for n in todo:
                for op in self.program.users(n):
                    if op.index not in seen:
                        seen.add(op.index)
                        yield op
                        after += op.outputs
            todo = after

    def upstream(self, numbers):
        """Returns the indices of the ops that values are computed by."""
        seen, todo = set(), list(numbers)
        while todo:
            op = self.program.of.get(todo.pop())
            if op is not None and op.index not in seen:
                seen.add(op.index)
                todo += op.inputs
        return seen

    def summed_before(self, number, axes):
        """Returns the names of the axes over which a value was summed where it came from, through linear ops."""
        found, seen, todo = set(), set(), [number]
        while todo:
            op = self.program.of.get(todo.pop())
            if op is None or op.index in seen:
                continue
            seen.add(op.index)
            if op.name in REDUCTIONS:
                found |= set(axes_of(op.params))
            if op.name in _LINEAR or op.name in _PRODUCTS:
                todo += op.inputs
        return found

    def reaches(self, number, axes):
        """Returns whether a value flows into a sum over the axes at all."""
        return any(self._summed(op, axes) for op in self.downstream(number))

    def reduced_late(self, number, axes):
        """Returns whether a value flows through something that is not linear, and then into a sum over the axes."""
        seen, todo = set(), [(number, False)]
        while todo:
            n, late = todo.pop()
            for op in self.program.users(n):
                if late and self._summed(op, axes):
                    return True
                after = late or not (self._summed(op, axes) or self._linear(op, n, axes))
                todo += [(o, after) for o in op.outputs if (o, after) not in seen]
                seen |= {(o, after) for o in op.outputs}
        return False

    def scalar(self, number, axes=()):
        """Returns the value of a number that is written in the program or follows from sizes, or None."""
        while number not in self.program.constants:
            op = self.program.of.get(number)
            if op is None or op.name not in SAME_VALUE:
                return None
            number = op.inputs[0]
        value = np.asarray(self.program.constants[number])
        return float(value) if value.size == 1 and value.dtype.kind in "fiu" else None

    def scaling(self, op):
        """Returns the number by which an op divides its input, or None."""
        if op.name == "div":
            return self.scalar(op.inputs[1])
        if op.name == "mul":  # a derivative begins with 1 * c
            known = [c for c in map(self.scalar, op.inputs) if c]
            return 1 / next((c for c in known if c != 1), known[0]) if known else None
        return None

    def next_scalings(self, number):
        """Yields (op, number) of the divisions by a number that come at once, as in pmean."""
        for op in self.program.users(number):
            if op.name in SAME_VALUE:
                yield from self.next_scalings(op.outputs[0])
            elif (c := self.scaling(op)) is not None:
                yield op, c

    def denominator(self, number):
        """Returns whether a value is what another is divided by: a count."""
        for op in self.program.users(number):
            if op.name == "div" and op.inputs[1] == number:
                return True
            if op.name in SAME_VALUE or op.name in ("max", "add"):
                if any(self.denominator(o) for o in op.outputs):
                    return True
        return False

    def numerator(self, number):
        """Returns whether a value is divided by one that differs between devices."""
        for op in self.program.users(number):
            if op.name == "div" and op.inputs[0] == number and self.scalar(op.inputs[1]) is None:
                return True
            if op.name in SAME_VALUE and self.numerator(op.outputs[0]):
                return True
        return False

    def _near(self, number, names, within):
        """Yields the ops that a value flows into at once or through `within` ops of these names."""
        seen, todo = set(), [number]
        for _ in range(within):
            users = {op.index: op for n in todo for op in self.program.users(n) if op.index not in seen}
            seen |= set(users)
            yield from users.values()
            todo = [o for op in users.values() if op.name in names for o in op.outputs]

    def spread_of(self, number):
        """Returns whether a root is taken of what a value becomes by sums and squares, as of a variance."""
        names = SAME_VALUE | {"add", "add_any", "sub", "mul", "neg", "square", "integer_pow", "max", "stack", "slice",
                              "concatenate", "split", "unstack", "psum", "psum2", "psum_invariant", "div"}  # fmt: skip
        return any(op.name in ("sqrt", "rsqrt", "pow") for op in self._near(number, names, 12))

    def compared(self, number):
        """Returns whether a value, or a norm of it, is compared with another or put to a norm: it is clipped."""
        names = _LINEAR | _PRODUCTS | _ROOTS | {"square", "abs"}
        return any(
            op.name in _COMPARED or (op.name in ("sqrt", "rsqrt") and not self.program.avals[op.outputs[0]].shape)
            for op in self._near(number, names, 40)
        )

    def root(self, number, within=12):
        """Returns whether a number flows into a root, or is compared with a constant: a norm that clips."""
        todo = [number]
        for _ in range(within):
            after = []
            for n in todo:
                for op in self.program.users(n):
                    if op.name in _ROOTS or op.name in _COMPARED:
                        return True
                    if op.name in _LINEAR or op.name in _PRODUCTS:
                        after += op.outputs
            todo = after
        return False

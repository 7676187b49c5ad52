"""Runs a sharded program beside the whole one and repairs each value that first means something else.

    run = Repair(results, reading, counts_as_means=False)
    values = run.values(allowed)              # allowed(point) -> whether a repair may be made
    run.points                                # what was repaired, in order

A repair is computed from the sharded program's own values: their mean or sum over the devices, a factor,
another order of blocks.
"""

import math

import numpy as np

from .align import ROUNDING, assemblies, blocks, equal, factor, number, permutation, products, relation, unblocks
from .collectives import REDUCTIONS, axes_of
from .flat import evaluate, frames_of
from .flow import SAME_VALUE, Flow

_MOVES = {"ppermute", "all_gather", "all_gather_invariant", "all_to_all", "reduce_scatter", "psum_scatter", "leave",
          "rev", "concatenate", "gather", "reshape", "transpose", "dynamic_slice"}  # fmt: skip


class Point:
    """kind: "joined", "factor", "repeated" or "order"; how: axes, the factor, or the order; summed: the axes that are summed."""

    def __init__(self, kind, op, output, how, summed=()):
        self.kind, self.op, self.output, self.how, self.summed = kind, op, output, how, summed

    def key(self):
        return self.kind, self.op.index, self.output


class Repair:
    def __init__(self, results, reading=0, counts_as_means=False, replaced=None):
        self.c, self.counts_as_means = results, counts_as_means
        self.flow, self.points = results.flow, []
        self.whole_flow, self.counted = Flow(results.r, results.own), results.readings.factors(reading)
        # {index of an op: call}: ops that are evaluated another way
        self.replaced = replaced or {}
        self.expected_values = results.values_read(reading) if reading else results.own

    def values(self, allowed=lambda point: True, draws=False):
        self.points, self.allowed, self.divided = [], allowed, {}
        if self.c.draws:
            self.c.draws.all_apart = draws
        try:
            return evaluate(self.c.s, self.c.wide, self.c.sharded, self.hook, self.instead)
        finally:
            if self.c.draws:
                self.c.draws.all_apart = False

    def instead(self, op, values):
        if op.index in self.replaced:
            return self.replaced[op.index]([values[i] for i in op.inputs])
        return self.c.draws.instead(op, values) if self.c.draws else None

    def hook(self, op, outputs, values):
        partner = self.c.partner.get(op.index)
        if partner is None or not op.axes or len(partner.outputs) != len(op.outputs):
            return outputs
        return [
            self._one(op, o, y, self.expected_values[p], values)
            for o, y, p in zip(op.outputs, outputs, partner.outputs)
        ]

    def _one(self, op, output, y, r, values):
        s, r = number(y), number(r)
        if s is None or r is None or op.name == "enter":
            return y
        k = len(op.axes)
        if op.name == "leave":
            return self._order(op, output, y, s, r, values)
        if s.ndim != r.ndim:
            return y
        if s.dtype != np.float64:
            return self._order(op, output, y, s, r, values) if s.ndim > k else y
        if self.divided:
            c = self.divided.get(self._division(op))
            if c is not None:
                self.points.append(Point("factor", op, output, c))
                return y / c
        found = relation(s, r, op.axes)
        if found is None and op.name in ("add", "add_any"):
            again = self._repeated(op, output, r, values)
            if again is not None:
                return again
        if found is None and op.name in REDUCTIONS:
            found = self._partial(op, output, s, r)
        if found is None:
            return self._order(op, output, y, s, r, values) if op.name in _MOVES else y
        if found[0] == "joined":
            return self._joined(op, output, y, s, *found[1:])
        c, source = (self._brings(op, found[1]), op) if found[0] == "factor" else (None, None)
        if c is None and source and op.name in ("add", "add_any"):
            source = self._accumulated(op, found[1])
            c = found[1] if source else None
        if c is not None:
            point = Point("factor", source, output, c)
            if self.allowed(point):
                self.points.append(point)
                if op.name in ("div", "mul"):  # its derivative divides by the same number
                    self.divided[self._division(op)] = c
                return y / c
        return y

    def _joined(self, op, output, y, s, averaged, summed):
        averaged, summed = (
            [n for n in names if not self.flow.reduced_later(output, (n,))] for names in (averaged, summed)
        )
        if summed and (self._averaged_next(op, output, summed) or self.counts_as_means and self.flow.numerator(output)):
            return y
        was_summed = bool(summed)
        if summed and self.counts_as_means and self.flow.denominator(output):
            averaged, summed = [*averaged, *summed], []
        names = [n for n, _ in op.axes if n in averaged or n in summed]
        if not names:
            return y
        point = Point("joined", op, output, tuple(names), tuple(summed))
        point.count = was_summed and not summed
        if not self.allowed(point):
            return y
        self.points.append(point)
        order, sizes = [n for n, _ in op.axes], dict(op.axes)
        total = np.mean(s, axis=tuple(order.index(n) for n in names), keepdims=True)
        return total * math.prod(sizes[n] for n in summed)

    def _averaged_next(self, op, output, names):
        """Returns whether a sum is divided by the number of its terms at once: a mean, whose own value is looked at."""
        n = math.prod(dict(op.axes)[a] for a in names)
        for user in self.c.s.users(output):
            if user.name in SAME_VALUE:
                return self._averaged_next(op, user.outputs[0], names)
            c, partner = self.flow.scaling(user), self.c.partner.get(user.index)
            own = self.whole_flow.scaling(partner) if partner is not None else None
            if c and own and math.isclose(own, n * c, rel_tol=2.0**-20):
                return True
        return False

    def _division(self, op):
        return tuple((f.file_name, f.start_line) for f in frames_of(op)), self.flow.scaling(op)

    def _partial(self, op, output, s, r):
        """Returns the factor of a sum that other devices add their parts to later, or None."""
        k = len(op.axes)
        if s.shape[k:] != r.shape[k:] or not any(self.flow.uniform(op.inputs[0], (a,)) for a in axes_of(op.params)):
            return None
        where = [p for p, (n, _) in enumerate(op.axes) if s.shape[p] > 1 and self.flow.reduced_later(output, (n,))]
        c = factor(np.sum(s, axis=tuple(where), keepdims=True), r, op.axes) if where else None
        return None if c is None else ("factor", c)

    def _brings(self, op, c):
        """Returns the factor that an op itself brings in where its value is c times the whole's, or None.

        That is a sum over devices that no division follows, or a division. The rest of c came before it.
        """
        if op.name in REDUCTIONS:
            sizes = dict(op.axes)
            n = math.prod(sizes.get(a, 1) for a in axes_of(op.params))
            divided = any(
                math.isclose(d, n, rel_tol=2.0**-20) or self._counted(user)
                for o in op.outputs for user, d in self.flow.next_scalings(o)
            )  # fmt: skip
            if divided or c < 1:
                return None
            names = [a for a in axes_of(op.params) if a in sizes]
            if c in products([(a, sizes[a]) for a in names]):
                return c
            equal_along = math.prod(sizes[a] for a in names if self.flow.uniform(op.inputs[0], (a,)))
            return float(equal_along) if 1 < equal_along <= c else None
        if op.name not in ("div", "mul"):
            return None
        d = self.flow.scaling(op)
        if c > 1:
            summed = self._sum_before(op)
            return c if d is not None and d > 1 and math.isclose(summed, c * d, rel_tol=2.0**-20) else None
        n = next((n for n in products(op.axes) if d is not None and math.isclose(d, n, rel_tol=2.0**-20)), None)
        if n is None or not (self._counted(op) or self.whole_flow.scaling(self.c.partner[op.index]) == 1):
            return None
        return 1.0 / n if c * n <= 1 + ROUNDING else None

    def _repeated(self, op, output, r, values):
        """Returns a + u / n for a + u that is summed over n devices at once, where u is the same on all of them, or None."""
        names = self._summed_next(output)
        n = math.prod(dict(op.axes).get(a, 1) for a in names)
        where = tuple(p for p, (a, _) in enumerate(op.axes) if a in names)
        for other, same in (op.inputs, op.inputs[::-1]) if n > 1 and len(op.inputs) == 2 else ():
            if self.flow.uniform(same, names) and not self.flow.uniform(other, names):
                y = np.asarray(values[other]) + np.asarray(values[same]) / n
                if equal(np.sum(y, axis=where, keepdims=True), r, len(op.axes)):
                    point = Point("repeated", op, output, n, names)
                    if self.allowed(point):
                        self.points.append(point)
                        return y
        return None

    def _summed_next(self, number):
        """Returns the axes of the sum that alone takes a value."""
        users = self.c.s.users(number)
        if len(users) != 1:
            return ()
        if users[0].name in SAME_VALUE:
            return self._summed_next(users[0].outputs[0])
        return tuple(axes_of(users[0].params)) if users[0].name in REDUCTIONS else ()

    def _accumulated(self, op, c):
        """Returns the sum over c devices that came before a sum of micro-batches, or None.

        One device has other samples in its micro-batches than all have together: only the total can be compared.
        """
        todo, seen = list(op.inputs), set()
        while todo:
            before = self.c.s.of.get(todo.pop())
            if before is None or before.index in seen:
                continue
            seen.add(before.index)
            if before.name in REDUCTIONS:
                if math.isclose(c, math.prod(dict(op.axes).get(a, 1) for a in axes_of(before.params))):
                    return before
            elif before.name in SAME_VALUE or before.name in ("add", "add_any", "reduce_sum", "row", "rows"):
                todo += before.inputs
        return None

    def _sum_before(self, op):
        """Returns the number of devices that the sum goes over which an op divides, or 1."""
        for number in op.inputs:
            before = self.c.s.of.get(number)
            while before is not None and before.name in SAME_VALUE:
                before = self.c.s.of.get(before.inputs[0])
            if before is not None and before.name in REDUCTIONS:
                return math.prod(dict(op.axes).get(a, 1) for a in axes_of(before.params))
        return 1

    def _counted(self, op):
        partner = self.c.partner.get(op.index)
        return partner is not None and partner.index in self.counted

    def _size(self, a, r, axes):
        """Returns the factor by which a local mean is larger than the whole one, or 1."""
        if a.dtype != np.float64 or not (size := float(np.linalg.norm(r))):
            return 1
        c = float(np.linalg.norm(a)) / size
        many = [float(n) for n in products(axes)]
        return next((n for n in [*many, *[1 / n for n in many]] if math.isclose(c, n, rel_tol=ROUNDING)), 1)

    def _order(self, op, output, y, s, r, values):
        k = len(op.axes) - len(op.params["new"]) if op.name == "leave" else len(op.axes)
        many = [n for _, n in op.axes if n > 1]
        if op.name == "leave":
            spec = op.params["spec"]
            if op.params["mapped"] or s.shape != r.shape:
                return y
            sizes = dict(op.axes)
            grid = {k + d: int(np.prod([sizes[n] for n in names])) for d, names in spec.items()}
            grids = [grid] if grid else []
        else:
            grids = [{d: n} for d in range(k, r.ndim) for n in sorted(set(many)) if r.shape[d] % n == 0]
        for a, put in _arrangements(s, r, op.axes if op.name != "leave" else ()):
            for grid in grids:
                g = {d: n for d, n in grid.items() if a.shape[d] % n == 0}
                c = self._size(a, r, op.axes)
                order = (
                    permutation(a, r if c == 1 else (r * c).astype(r.dtype), g) if a.shape == r.shape and g else None
                )
                if order is not None:
                    point = Point("order", op, output, tuple(order))
                    if self.allowed(point):
                        self.points.append(point)
                        return put(unblocks(blocks(a, g)[order], g, a.shape))
        return y


def _arrangements(s, r, axes):
    """Yields (s in the shape of r, function that undoes it)."""
    if s.shape == r.shape:
        yield s, np.asarray
        return
    k = len(axes)
    if s.shape[k:] == r.shape[k:] and all(n == 1 for n in r.shape[:k]):
        first = s[(slice(0, 1),) * k]
        if equal(s, first, k):
            yield first, np.asarray
        return
    for a in assemblies(s, r, axes):
        if a.shape != r.shape:
            continue
        marks = np.arange(s.size).reshape(s.shape)
        for m in assemblies(marks, r, axes):
            if m.shape == a.shape and np.array_equal(s.reshape(-1)[m], a):

                def put(x, m=m):
                    out = np.empty(s.size, s.dtype)
                    out[m.reshape(-1)] = x.reshape(-1)
                    return np.asarray(out.reshape(s.shape))

                yield a, put

"""Other ways in which a collective could have been written: another direction, other dimensions, other axes."""

import math

from .align import subsets
from .collectives import COLLECTIVES, SUMS, axes_of
from .flat import line_of


class Variant:
    """ops: all of a line; change(op): other parameters for it. replaced: {index of an op: function of its inputs}."""

    def __init__(self, ops, change, words):
        self.ops, self.words = ops, words
        self.replaced = {
            op.index: (lambda inputs, op=op: COLLECTIVES[op.name](inputs, {**op.params, **change(op)}, op.axes))
            for op in ops
        }

    def cause(self):
        op = self.ops[0]
        name = "wrong_direction" if op.name == "ppermute" else "wrong_dimensions"
        return {"cause": name, "line": line_of(op), "names": op.name, "words": self.words}

    def fits(self, results):
        """Returns whether the shapes of the step stay what they are."""
        try:
            return all(
                [y.shape for y in self.replaced[op.index]([results.sharded[i] for i in op.inputs])]
                == [results.sharded[n].shape for n in op.outputs]
                for op in self.ops
            )
        except (TypeError, ValueError, IndexError):
            return False


class OtherAxes:
    """The sums of a line, or its means, over other axes of the mesh."""

    def __init__(self, results, ops, names):
        self.ops, self.names = ops, names
        self.replaced = {op.index: self._call(results.flow, op) for op in ops}

    def _call(self, flow, op):
        sizes = dict(op.axes)
        before, after = (math.prod(sizes[n] for n in names) for names in (axes_of(op.params), self.names))
        mean = any(math.isclose(c, before, rel_tol=2.0**-20) for _, c in flow.next_scalings(op.outputs[0]))
        scale = before / after if mean else 1.0
        params = {**op.params, "axes": self.names, "axis_index_groups": None}
        return lambda inputs: [y * scale for y in COLLECTIVES[op.name](inputs, params, op.axes)]

    def cause(self):
        op = self.ops[0]
        axes, words = ", ".join(axes_of(op.params)), ", ".join(self.names)
        return {"cause": "wrong_axis", "line": line_of(op), "axes": axes, "words": words}


def variants(results):
    """Yields the variants of each line with a collective, and of all lines with all_to_all, that leave shapes alone.

    Then those of each line with sums, over other axes.
    """
    lines, every = {}, []
    for op in results.s.ops:
        if op.name in _MOVES and op.axes:
            lines.setdefault((line_of(op), op.name), []).append(op)
            if op.name == "all_to_all":
                every.append(op)
    groups = list(lines.values()) + ([every] if every and every not in lines.values() else [])
    for ops in groups:
        rank = len(results.s.avals[ops[0].inputs[0]].shape)
        for change, words in _changes(ops[0].name, rank):
            variant = Variant(ops, change, words)
            if variant.fits(results):
                yield variant
    lines = {}
    for op in results.s.ops:
        if op.name in SUMS and len(op.axes) > 1 and results.s.avals[op.outputs[0]].dtype.kind == "f":
            lines.setdefault((line_of(op), axes_of(op.params)), []).append(op)
    for (_, axes), ops in lines.items():
        for names in subsets([n for n, size in ops[0].axes if size > 1]):
            if set(names) != set(axes):
                yield OtherAxes(results, ops, names)


_MOVES = {"ppermute", "all_to_all", "all_gather", "all_gather_invariant", "reduce_scatter"}


def _changes(name, rank):
    if name == "ppermute":
        yield (lambda op: {"perm": [(b, a) for a, b in op.params["perm"]]}), "the other direction"
        yield (lambda op: {"perm": [(i, i) for i in range(max(n for _, n in op.axes))]}), "no exchange"
    elif name == "all_to_all":
        for s in range(rank):
            for c in range(rank):
                yield (lambda op, s=s, c=c: {"split_axis": s, "concat_axis": c}), f"split_axis={s}, concat_axis={c}"
    else:
        key = "scatter_dimension" if name == "reduce_scatter" else "all_gather_dimension"
        for d in range(rank):
            yield (lambda op, d=d: {key: d}), f"{key}={d}"

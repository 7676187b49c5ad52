"""Other ways in which a collective that moves values could have been written: another direction, other dimensions."""

from .collectives import COLLECTIVES
from .flat import line_of


class Variant:
    """replaced: {index of an op: function of its inputs}."""

    def __init__(self, ops, params, words):
        self.ops, self.words = ops, words
        self.replaced = {
            op.index: (lambda inputs, op=op: COLLECTIVES[op.name](inputs, {**op.params, **params}, op.axes)) for op in ops
        }

    def cause(self):
        op = self.ops[0]
        name = "wrong_direction" if op.name == "ppermute" else "wrong_dimensions"
        return {"cause": name, "line": line_of(op), "names": op.name, "words": self.words}


def variants(results):
    """Yields the variants of each line with a collective that leave its shapes alone."""
    lines = {}
    for op in results.s.ops:
        if op.name in ("ppermute", "all_to_all", "all_gather", "all_gather_invariant", "reduce_scatter") and op.axes:
            lines.setdefault((line_of(op), op.name, str(sorted(op.params.items(), key=str))), []).append(op)
    for (_, name, _), ops in lines.items():
        op = ops[0]
        for params, words in _choices(name, op.params, len(results.s.avals[op.inputs[0]].shape)):
            variant = Variant(ops, params, words)
            try:
                fits = all(
                    [y.shape for y in variant.replaced[o.index]([results.sharded[i] for i in o.inputs])]
                    == [results.sharded[n].shape for n in o.outputs]
                    for o in ops
                )
            except (TypeError, ValueError, IndexError):
                continue
            if fits:
                yield variant
    # a pair of exchanges is written wrong in both directions
    pair = [ops for (_, name, _), ops in lines.items() if name == "all_to_all"]
    if len(pair) > 1:
        every = [op for ops in pair for op in ops]
        for s, c in ((0, 1), (1, 0), (0, 0), (1, 1)):
            variant = Variant(every, {"split_axis": s, "concat_axis": c}, f"split_axis={s}, concat_axis={c}")
            try:
                if all([y.shape for y in variant.replaced[o.index]([results.sharded[i] for i in o.inputs])]
                       == [results.sharded[n].shape for n in o.outputs] for o in every):  # fmt: skip
                    yield variant
            except (TypeError, ValueError, IndexError):
                continue


def _choices(name, params, rank):
    if name == "ppermute":
        yield {"perm": [(b, a) for a, b in params["perm"]]}, "the other direction"
        n = max(max(p) for p in params["perm"]) + 1
        yield {"perm": [(i, i) for i in range(n)]}, "no exchange"
    elif name == "all_to_all":
        for s in range(rank):
            for c in range(rank):
                if (s, c) != (params["split_axis"], params["concat_axis"]):
                    yield {"split_axis": s, "concat_axis": c}, f"split_axis={s}, concat_axis={c}"
    elif name == "reduce_scatter":
        for d in range(rank):
            if d != params["scatter_dimension"]:
                yield {"scatter_dimension": d}, f"scatter_dimension={d}"
    else:
        for d in range(rank):
            if d != params["all_gather_dimension"]:
                yield {"all_gather_dimension": d}, f"axis={d}"

"""Which mechanism makes a sharded step mean something else: the smallest set of repairs with
which it means the whole batch's.

found = search(results)               # [{"cause": "clipping", "line": "train.py:41", ...}], or None
"""

import itertools
import math

import numpy as np

from .align import equal, number, products
from .collectives import REDUCTIONS, axes_of
from .flat import evaluate, frames_of, line_of
from .flow import SAME_VALUE
from .repair import Repair
from .variants import variants

_FEW = 4  # a cause of more parts is not looked for one by one
_LINES = 8  # lines of the loss whose factors are looked at one by one


def _none(point):
    return False


def _all(point):
    return True


class Search:
    def __init__(self, results):
        self.c, self.flow = results, results.flow
        loss = [p for kind, _, p, _ in results.rows() if kind == "loss"]
        self.forward = self.flow.upstream([results.s.outputs[p] for p in loss])
        self.places = {self.place(results.s.ops[i]) for i in self.forward if results.s.ops[i].axes} - {""}
        # Lines that do more than move values between devices: sums there are derivatives'.
        moves = SAME_VALUE | REDUCTIONS | {"add", "add_any", "sub", "mul", "div", "enter", "leave", "axis_index"}
        self.computing = {self.place(op) for op in results.s.ops if op.axes and op.name not in moves}
        update = [p for kind, _, p, _ in results.rows() if kind != "loss"]
        self.needed = self.flow.upstream([results.s.outputs[p] for p in update])
        traces = {self.trace(results.s.ops[i]) for i in self.forward & self.needed if results.s.ops[i].axes} - {()}
        # A derivative has the lines of what it is the derivative of.
        last = [o for op in results.s.ops if op.axes and self.trace(op) in traces for o in op.outputs]
        self.within = self.flow.upstream(last) & self.needed

    def run(self):
        """Returns (causes, reading) of the reading and variant that need the fewest causes; (None, 0) if none does."""
        if self.c.r is None:
            return self.only_variants(), 0
        best = None
        for reading in range(self.c.readings.count()):
            for factors in self.stages(reading):
                for counts in (True, False):
                    found = self.attempt(reading, counts, factors, None)
                    if found is not None and (best is None or len(found) < len(best[0])):
                        best = found, reading
                if best is not None and len(best[0]) == 1:
                    return best
        if best is not None:
            return best
        every = list(variants(self.c))
        for factors in [_none, *(self.stages(0)[2:-1] if every else ())]:
            for variant in every:
                found = self.attempt(0, False, factors, variant)
                if found is not None:
                    return found, 0
        pairs = self.pairs_of_samples()
        return ([pairs] if pairs else None), 0

    def pairs_of_samples(self):
        """Returns the cause of a loss over pairs of one device's samples: the devices hold the diagonal blocks of the
        whole batch's matrix. No repair undoes it, since the other blocks are on no device.
        """
        for op in self.c.s.ops:
            partner = self.c.partner.get(op.index)
            if partner is None or not op.axes or len(op.outputs) != 1:
                continue
            s, r = number(self.c.sharded[op.outputs[0]]), number(self.c.own[partner.outputs[0]])
            k = len(op.axes)
            if s is None or r is None or not k <= s.ndim == r.ndim or op.name == "leave" or s.dtype.kind != "f":
                continue
            names = [a for p, (a, n) in enumerate(op.axes) if n > 1 and s.shape[p] > 1 and r.shape[p] == 1]
            n = math.prod(s.shape[:k])
            grown = [d for d in range(k, s.ndim) if r.shape[d] == n * s.shape[d]]
            if n == 1 or len(grown) < 2 or any(r.shape[d] != s.shape[d] for d in range(k, s.ndim) if d not in grown):
                continue
            blocks = np.stack([_diagonal(r[(0,) * k], i, s.shape[k:], [d - k for d in grown]) for i in range(n)])
            if equal(s.reshape(blocks.shape), blocks, 1):
                return {"cause": "pairs_of_samples", "line": line_of(op), "axes": ", ".join(names)}
        return None

    def stages(self, reading):
        """Returns which factors may be repaired: none; those of gradients; in the loss those of one line; all.

        In the loss a factor is often no mistake: a device's mean has derivatives as many times as large.
        """
        found = {}

        def gradients(p):
            if p.kind == "factor" and self.inner(p.op):
                found[self.line(p)] = None
                return False
            return True

        Repair(self.c, reading).values(gradients)
        lines = [lambda p, line=line: self.line(p) == line or not self.inner(p.op) for line in list(found)[:_LINES]]
        return [_none, lambda p: not self.inner(p.op), *lines, _all]

    def line(self, point):
        return line_of(point.op), point.how

    def inner(self, op):
        """Returns whether an op is one of the loss that is differentiated, or of its derivative."""
        return op.index in self.within

    def trace(self, op):
        return tuple((f.file_name, f.start_line) for f in frames_of(op))

    def only_variants(self):
        """Without the same code on one device: the collectives that move values, written otherwise."""
        for variant in variants(self.c):

            def instead(op, values, variant=variant):
                call = variant.replaced.get(op.index)
                return None if call is None else call([values[i] for i in op.inputs])

            if self.c.same(evaluate(self.c.s, self.c.wide, self.c.sharded, None, instead)):
                return [variant.cause()]
        return None

    def attempt(self, reading, counts, factors, variant):
        run = Repair(self.c, reading, counts, variant.replaced if variant else None)
        expected = None if not reading else [run.expected_values[o] for o in self.c.r.outputs]
        draws = bool(self.c.draws and (self.c.draws.shared or self.c.draws.apart))

        def means(groups):
            keep = set().union(*[g.keys for g in groups]) if groups else set()
            values = run.values(lambda p: p.key() in keep, draws and any(g.kind == "draws" for g in groups))
            return self.c.same(values, expected)

        values = run.values(lambda p: p.kind != "factor" or factors(p), draws)
        if not self.c.same(values, expected):
            return None
        groups = self.groups(run.points) + ([Group("draws", [])] if draws else [])
        groups = next(
            (list(chosen) for count in range(min(len(groups), _FEW))
             for chosen in itertools.combinations(groups, count) if means(chosen)), groups
        )  # fmt: skip
        parts = {
            math.prod(dict(g.points[0].op.axes)[n] for n in g.points[0].summed) for g in groups if g.kind == "forward"
        }
        parts |= {g.points[0].how for g in groups if g.kind == "repeated"}
        # The derivative of a missing sum is missing as well: a factor of its axes belongs to it.
        groups = [g for g in groups if g.kind != "factor" or not {g.points[0].how, 1 / g.points[0].how} & (parts - {1})]
        causes = []
        for facts in map(self.describe, groups):
            if not any(facts["cause"] == c["cause"] and facts.get("factor") == c.get("factor") for c in causes):
                causes.append(facts)
        if variant is not None:
            causes.append(variant.cause())
        return causes

    def groups(self, points):
        forward_lines = {self.place(p.op) for p in points if p.kind == "joined" and self.is_forward(p)}
        found = {}
        for p in points:
            found.setdefault(self.category(p, forward_lines), []).append(p)
        order = ["order", "repeated", "factor", "late", "never", "forward"]
        return [Group(key[0], found[key], key[1:]) for key in sorted(found, key=lambda k: (order.index(k[0]), str(k)))]

    def place(self, op):
        frames = frames_of(op)
        return (frames[0].file_name, frames[0].start_line) if frames else line_of(op)

    def is_forward(self, point):
        return point.op.index in self.forward

    def backward(self, op):
        """Returns whether an op is a derivative's: it has the line of an op that the loss is computed by."""
        return op.index not in self.forward and self.place(op) in self.places

    def category(self, p, forward_lines):
        if p.kind == "factor":
            return "factor", p.how, bool(self.equal_axes(p)), line_of(p.op)
        if p.kind in ("order", "repeated"):
            return p.kind, line_of(p.op)
        later = self.flow.reduced_late(p.output, p.how)
        shared = later and self.place(p.op) in forward_lines
        if self.is_forward(p) or shared or (forward_lines and self.inside(p)):
            return "forward", p.how
        return ("late" if later or self.is_norm(p) else "never"), p.how

    def inside(self, p):
        """Returns whether a value belongs to the backward pass, and is no gradient of a parameter yet."""
        todo = [p.output]
        while todo and self.backward(p.op):
            for op in self.c.s.users(todo.pop()):
                if op.name in SAME_VALUE or op.name == "reduce_sum":
                    todo += op.outputs
                elif self.backward(op):
                    return True
        return False

    def is_norm(self, p):
        return not self.c.s.avals[p.output].shape and self.flow.root(p.output)

    def equal_axes(self, p):
        """Returns the axes that a sum goes over although its input is the same on all devices along them."""
        op = p.op
        while op is not None and op.name not in REDUCTIONS:
            if op.name not in SAME_VALUE and op.name not in ("div", "mul"):
                return []
            op = self.c.s.of.get(next((i for i in op.inputs if self.flow.scalar(i) is None), None))
        if op is None:
            return []
        same = [a for a in axes_of(op.params) if self.flow.uniform(op.inputs[0], (a,))]
        return same if p.op is op or math.prod(dict(op.axes)[a] for a in same) == p.how else []

    # ---- words -------------------------------------------------------------------------------

    def describe(self, g):
        return getattr(self, "_" + g.kind)(g)

    def _draws(self, g):
        draws = self.c.draws
        if draws.shared:
            return {"cause": "one_stream", "line": next(iter(draws.shared))}
        return {"cause": "stream_per_core", "line": next(iter(draws.apart))}

    def _order(self, g):
        p = g.points[0]
        return {"cause": "permuted", "line": line_of(p.op), "names": p.op.name, "order": list(p.how)}

    def _repeated(self, g):
        p = g.points[0]
        return {"cause": "repeated_term", "line": line_of(p.op), "axes": ", ".join(p.summed), "factor": str(p.how)}

    def _factor(self, g):
        p, c = g.points[0], g.points[0].how
        facts = {"line": line_of(p.op), "factor": f"{c:.12g}" if c >= 1 else f"1/{1 / c:.12g}"}
        facts["axes"] = ", ".join(axes_of(p.op.params)) if p.op.name in REDUCTIONS else ""
        if c > 1:
            if self.derivative_of_sum(p.op):
                return {"cause": "summed_in_derivative", **facts}
            if same := self.equal_axes(p):
                return {"cause": "summed_twice", **facts, "axes": ", ".join(same)}
            by_itself = p.op.name in REDUCTIONS and _is_transposed(p.op)
            if by_itself or (self.backward(p.op) or self.place(p.op) in self.computing) and self.reduced_again(p):
                return {"cause": "summed_by_transpose", **facts}
            return {"cause": "sum_for_mean" if self.is_forward(p) and self.inner(p.op) else "unscaled", **facts}
        if self.is_forward(p) and self.inner(p.op) and self.follows_sum(p.op, through=True):
            return {"cause": "mean_for_sum", **facts}
        return {"cause": "scaled_twice" if self.divisions(p) > 1 else "reduction", **facts}

    def derivative_of_sum(self, op):
        """Returns whether a sum is the derivative of a sum of the loss: psum's own, without check_vma."""
        if op.name not in REDUCTIONS or op.index in self.forward:
            return False
        sums = [self.c.s.ops[i] for i in self.forward if self.c.s.ops[i].name in REDUCTIONS]
        return (self.trace(op), axes_of(op.params)) in [(self.trace(s), axes_of(s.params)) for s in sums]

    def reduced_again(self, p):
        return any(op.name in REDUCTIONS for op in self._linear_after(p.output))

    def _linear_after(self, number, depth=12):
        todo, out = [number], []
        for _ in range(depth):
            todo = [o for n in todo for op in self.c.s.users(n) if op.name in SAME_VALUE or op.name in REDUCTIONS
                    or op.name in ("div", "mul") for o in (out.append(op) or op.outputs)]  # fmt: skip
        return out

    def divisions(self, p):
        """Returns how often a gradient is divided by the devices: on its way, and with the loss."""
        found, number = 0, p.output
        while True:
            op = self.c.s.of.get(number)
            if op is None:
                break
            if op.name in ("div", "mul"):
                found += self.counted(op)
                number = next((i for i in op.inputs if self.flow.scalar(i) is None), None)
            elif op.name in SAME_VALUE or op.name in REDUCTIONS:
                number = op.inputs[0]
            else:
                break
        before = [self.c.s.ops[i] for i in self.flow.upstream([p.output])]
        return found + any(
            self.counted(op) and not self.c.s.avals[op.outputs[0]].shape and not self.follows_sum(op) for op in before
        )

    def follows_sum(self, op, through=False):
        """Returns whether an op is the division of a pmean, or comes after one through other divisions."""
        for number in op.inputs:
            before = self.c.s.of.get(number)
            while before is not None and (before.name in SAME_VALUE or (through and before.name == "div")):
                before = self.c.s.of.get(before.inputs[0])
            if before is not None and before.name in REDUCTIONS:
                return True
        return False

    def counted(self, op):
        """Returns whether an op divides by the number of devices."""
        c = self.flow.scaling(op) if op.name in ("div", "mul") and op.axes else None
        partner = self.c.partner.get(op.index)
        if c is None or partner is None or not any(math.isclose(c, n, rel_tol=2.0**-20) for n in products(op.axes)):
            return False
        return (
            partner.index in {**self.c.readings.adjacent, **self.c.readings.counts}
            or self.flow_of_whole().scaling(partner) == 1
        )

    def flow_of_whole(self):
        from .flow import Flow

        return Flow(self.c.r, self.c.own)

    def _forward(self, g):
        p = next((q for q in g.points if q.count), g.points[0])
        axes = ", ".join(p.how)
        if p.count:
            return {"cause": "token_mean", "line": line_of(p.op), "axes": axes, "shares": self.shares(p)}
        before = self.flow.summed_before(p.output, p.how)
        if before and not before & set(p.how):
            return {"cause": "forgotten_axis", "line": line_of(p.op), "axes": axes, "summed": ", ".join(sorted(before)),
                    "names": "a value", "by": _by(p)}  # fmt: skip
        if p.summed:
            return {"cause": "partial_sum", "line": line_of(p.op), "axes": axes}
        cause = "batch_norm" if any(self.normalises(q) for q in g.points) else "late_reduction"
        return {"cause": cause, "line": line_of(p.op), "axes": axes}

    def normalises(self, p):
        """Returns whether a statistic flows into a root or a division at once."""
        return self.flow.denominator(p.output) or self.flow.spread_of(p.output)

    def shares(self, p):
        x = np.asarray(self.c.sharded[p.output]).reshape(-1)
        return ", ".join(f"{v:.4g}" for v in x / x.sum()) if x.size <= 64 and x.sum() else "unequal"

    def _late(self, g):
        p = g.points[0]
        value = next((q for q in g.points if self.is_norm(q)), None)
        local = value is not None and p is value
        clips = any(self.flow.compared(q.output) for q in g.points)
        cause = "shard_norm" if local and p.summed else ("clipping" if clips else "late_reduction")
        line = self.after(g)
        return {"cause": cause, "line": line or line_of(p.op), "axes": ", ".join(p.how)}

    def after(self, g):
        """Returns the line of the root or comparison that sees the devices' own values."""
        for op in self.flow.downstream(g.points[0].output):
            if op.name in ("sqrt", "rsqrt", "max", "min", "clamp", "lt", "gt", "sign", "integer_pow", "square"):
                return line_of(op)
        return ""

    def _never(self, g):
        p = g.points[0]
        names = self.reached(g)
        axes = ", ".join(p.how)
        facts = {"line": line_of(p.op), "axes": axes, "names": _some(names)}
        kinds = {k for k, n, *_ in self.c.rows() if n in names}
        before = self.flow.summed_before(p.output, p.how) - set(p.how)
        before |= {n for n, _ in p.op.axes if n not in p.how and self.flow.reaches(p.output, (n,))}
        before = {
            n for n in before if not self.flow.uniform(p.output, (n,)) or n in self.flow.summed_before(p.output, p.how)
        }
        if kinds == {"statistics"}:
            return {"cause": "statistics", **facts}
        if kinds == {"loss"}:
            return {"cause": "loss_not_reduced", **facts}
        if before:
            return {"cause": "forgotten_axis", **facts, "summed": ", ".join(sorted(before)), "by": _by(p)}
        return {"cause": "no_all_reduce", **facts}

    def reached(self, g):
        """Returns the names of the parameters, or else of other results, that the repaired values go into."""
        names = {}
        outputs = {}
        for kind, name, position, _ in self.c.rows():
            outputs.setdefault(self.c.s.outputs[position], []).append((kind, name))
        drifting = set(self.c.drift())
        for p in g.points:
            for op in self.flow.downstream(p.output):
                for o in op.outputs:
                    for kind, name in outputs.get(o, ()):
                        names.setdefault(kind, {})[name] = None
        for kind in ("update", "statistics", "optimizer", "loss"):
            if kind in names:
                chosen = [n for n in names[kind] if not drifting or n in drifting or kind == "loss"]
                return chosen or list(names[kind])
        return []


def _diagonal(whole, i, sizes, grown):
    return whole[tuple(slice(i * n, (i + 1) * n) if d in grown else slice(None) for d, n in enumerate(sizes))]


class Group:
    def __init__(self, kind, points, key=()):
        self.kind, self.points, self.key = kind, points, key
        self.keys = {p.key() for p in points}


def _is_transposed(op):
    """Returns whether an op comes from the derivative of another one: no line of the script has it."""
    stacks = (getattr(getattr(e, "source_info", None), "name_stack", "") for e in op.equations)
    return any("transpose(" in str(stack) for stack in stacks)


def _by(point):
    """Returns the collective that a repair was made by."""
    return "psum" if set(point.how) <= set(point.summed) else "pmean"


def _some(names):
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

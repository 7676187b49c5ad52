"""The results of a step on a mesh and on one device, in binary64, and how far they are apart.

c = Results(step, state, batch)
c.kinds(c.sharded)                # {"update": 0.0, "optimizer": ..., "statistics": ..., "loss": ...}
"""

import math
import re

import numpy as np

from ..mechanisms import threshold
from ..refused import Refused
from ..xla.arguments import find
from .align import pairs
from .collectives import REDUCTIONS
from .evaluate import leave, widened
from .flat import evaluate, flatten
from .flow import Flow
from .readings import Draws, Readings
from .trace import closed_jaxpr, meshes_of, whole_of

_STATISTICS = {"batch_stats", "mean", "var", "moving_mean", "moving_var", "running_mean", "running_var", "stats"}


def kind_of(name, part):
    words = set(name.split("/"))
    if words & _STATISTICS:
        return "statistics"
    if words & {"opt_state", "mu", "nu", "trace", "count", "momentum", "ema"}:
        return "optimizer"
    return "optimizer" if part > 0 and "params" not in words else "update"


class Results:
    """s, r: the programs; sharded, expected: their values; rules, kept: of the whole (trace.py)."""

    def __init__(self, step, state, batch, whole=None):
        self.form = find(step, state, batch)
        leaves = self.form.leaves(state, batch)
        self.states = len(self.form.next)
        closed, _ = closed_jaxpr(self.form.flat, *leaves)
        self.sizes = meshes_of(closed)
        self.leaves, self.s = leaves, flatten(closed)
        self.axes = tuple(self.sizes.items())
        self.threshold = threshold(math.prod(self.sizes.values()))
        self.names, self.parts = self._names()
        self.notes, self.given = [], None
        if whole is not None:
            form = find(whole, state, batch)
            self.given = form, flatten(closed_jaxpr(form.flat, *form.leaves(state, batch))[0])
        try:
            small = whole_of(self.form.flat, leaves, self.states, closed)
        except Refused as error:
            if whole is None:
                raise
            small = None
            self.notes.append(str(error))
        self.rules = small.rules if small else ["same"] * len(leaves)
        self.kept, self.why = (small.kept, small.why) if small else ({}, "")
        self.r = flatten(small.closed) if small else None
        self.partner = pairs(self.s, self.r) if small else {}
        self.small = small

    def _names(self):
        names = list(self.form.names)[: self.states]
        return names, [int(re.match(r"(?:state(\d+)(?:/|$))?", n).group(1) or 0) for n in names]

    def run(self):
        """Evaluates all programs; under binary64()."""
        small = self.small
        wide = [widened(x) for x in self.leaves]
        self.wide = wide
        if small:
            self.small_inputs = [widened(x) for x in small.arguments(self.leaves)]
            self.readings = Readings(self)
            self.own = evaluate(self.r, self.small_inputs, instead=self.readings.instead(0))
        else:
            self.readings, self.own = None, None
        self.draws = Draws(self) if small else None
        self.sharded = evaluate(self.s, wide, instead=self.draws.instead if self.draws else None)
        self.flow = Flow(self.s)
        if self.given:
            form, program = self.given
            values = evaluate(program, [widened(x) for x in form.leaves(*self._state_and_batch())])
            self.expected = self._given_results(form, [values[o] for o in program.outputs])
        else:
            self.expected = [self.own[o] for o in self.r.outputs]

    def _state_and_batch(self):
        arguments = self.form.tree_of(self.leaves)
        state = tuple(arguments[: self.form.count])
        batch = tuple(arguments[self.form.count :])
        state = state if self.form.spread_state else state[0]
        return state, (batch if self.form.spread_batch else batch[0])

    def _given_results(self, form, values):
        """Returns the results of the user's own step on one device in the order of the sharded step's."""
        out = [None] * len(self.s.outputs)
        for own, other in zip(self.form.next, form.next):
            if own is not None and other is not None:
                out[own] = values[other]
        if self.form.loss is not None and form.loss is not None:
            out[self.form.loss] = values[form.loss]
        return out

    # ---- distances ---------------------------------------------------------------------------

    def rows(self):
        """Yields (kind, name, position of the result, value before)."""
        taken = set()
        for i, position in enumerate(self.form.next):
            if position is not None:
                taken.add(position)
                yield kind_of(self.names[i], self.parts[i]), self.names[i], position, i
        for position in range(len(self.s.outputs)):
            if position not in taken:
                yield "loss", self.form.result_names[position], position, None

    def replicas(self, values, position):
        """Returns a result as each device has it, whole: several where devices that should agree do not."""
        number = self.s.outputs[position]
        op = self.s.of.get(number)
        if op is None or op.name != "leave":
            return [np.asarray(values[number])] if isinstance(values[number].dtype, np.dtype) else []
        x, p = values[op.inputs[0]], op.params
        k = len(op.axes) - len(p["new"])
        if p["mapped"]:
            mentioned = set() if p["spec"] is None else {p["new"][0][0]}
        else:
            mentioned = {n for group in p["spec"].values() for n in group}
        if not isinstance(x.dtype, np.dtype):
            return []
        out, x = [], np.asarray(x)
        free = [k + i for i, (n, _) in enumerate(p["new"]) if n not in mentioned and x.shape[k + i] > 1]
        for index in np.ndindex(*[x.shape[d] for d in free]):
            part = x
            for d, i in zip(free, index):
                part = np.take(part, [i], axis=d)
            out.append(np.asarray(leave(part, p["spec"], k, p["new"], p["mapped"])))
        return out

    def _pairs(self, values, expected, kind, position, i):
        """Yields (result, expected result, value before), one for each replica."""
        r = expected[position]
        if r is None or not isinstance(r.dtype, np.dtype):
            return
        r = np.asarray(r)
        for s in self.replicas(values, position):
            base = np.asarray(self.wide[i]) if i is not None else 0
            if i is not None and self.rules[i] == "first" and self.given is None and r.shape[:1] == (1,):
                yield from ((row, r[0], b) for row, b in zip(s, base))
            elif s.shape != r.shape and r.shape[:1] == (1,) and s.shape[1:] == r.shape[1:]:
                yield from ((row, r[0], 0) for row in s)
            elif s.shape != r.shape and s.shape[1:] == r.shape:
                yield from ((row, r, 0) for row in s)
            elif s.shape != r.shape and s.size == r.size:
                yield s.reshape(-1), r.reshape(-1), 0
            else:
                yield s, r, base

    def distance(self, values, expected, kind):
        """Relative difference of everything of a kind, of the replica that is farthest."""
        worst, per_replica = 0.0, {}
        for own, name, position, i in self.rows():
            if own != kind or name in self.left_out:
                continue
            rows = list(self._pairs(values, expected, kind, position, i))
            if not rows:
                continue
            if any(s.shape != r.shape for s, r, _ in rows):
                return math.inf
            if kind == "loss":
                worst = max(worst, self._loss(rows, name))
                continue
            for j, (s, r, base) in enumerate(rows):
                if s.dtype.kind != "f":
                    if not np.array_equal(s, r) and not (s.dtype == np.uint32 and s.shape[-1:] in ((2,), (4,))):
                        return math.inf
                    continue
                size = float(np.sum(np.square(r - base)))
                count = len(rows)
                one = per_replica.setdefault(name, [size, [0.0]])
                if count > len(one[1]):
                    one[1] = one[1] + [0.0] * (count - len(one[1]))
                one[1][j] = float(np.sum(np.square(s - r)))
        many = max([len(d) for _, d in per_replica.values()] or [0])
        size = math.sqrt(sum(s for s, _ in per_replica.values()))
        for j in range(many):
            total = sum(d[j if j < len(d) else 0] for _, d in per_replica.values())
            relative = math.sqrt(total) / size if size else (0.0 if total == 0 else math.inf)
            worst = max(worst, math.inf if math.isnan(relative) else relative)
        return worst

    def _loss(self, rows, name):
        """A result that every device has of its own samples is as good as their mean, but is noted."""
        s, r = np.stack([np.asarray(a, np.float64) for a, _, _ in rows]), np.asarray(rows[0][1], np.float64)
        size = float(np.linalg.norm(r)) or 1.0
        each = max(float(np.linalg.norm(a - r)) for a in s) / size
        mean = float(np.linalg.norm(s.mean(0) - r)) / size
        if mean <= self.threshold < each and len(rows) > 1:
            note = f"the result {name} is that of each device's own samples; only their mean is the whole batch's"
            if note not in self.notes:
                self.notes.append(note)
            return mean
        return math.inf if math.isnan(each) else each

    left_out = frozenset()

    def kinds(self, values, expected=None):
        expected = self.expected if expected is None else expected
        present = {k for k, *_ in self.rows()}
        return {
            k: self.distance(values, expected, k) for k in ("update", "optimizer", "statistics", "loss") if k in present
        }

    def same(self, values, expected=None):
        return all(d <= self.threshold for d in self.kinds(values, expected).values())

    def is_blind_to_factors(self):
        """Returns whether the step gives the same state when all that its derivatives sum over devices is halved, as behind a
        clip that is reached: then it shows no factor on them.
        """
        loss = [self.s.outputs[position] for kind, _, position, _ in self.rows() if kind == "loss"]
        forward = self.flow.upstream(loss)
        sums = {op.index for op in self.s.ops if op.axes and op.name in REDUCTIONS and op.index not in forward}
        if not loss or not sums:
            return False

        def instead(op, values):
            if op.index in sums:
                given = op.call([values[i] for i in op.inputs])
                return [y * 0.5 if y.dtype == np.float64 else y for y in given]
            return self.draws.instead(op, values) if self.draws else None

        halved = evaluate(self.s, self.wide, self.sharded, instead=instead)
        return all(d <= self.threshold for kind, d in self.kinds(halved).items() if kind != "loss")

    def leave_out_rounding(self):
        """Leaves out what a nudge of the state by 2^-48 moves by more than the threshold: nothing but rounding."""
        if self.r is None:
            return
        nudged = [
            x * (1 + 2.0**-48) if i < self.states and isinstance(x.dtype, np.dtype) and x.dtype == np.float64 else x
            for i, x in enumerate(self.small_inputs)
        ]
        moved = evaluate(self.r, nudged, instead=self.readings.instead(0))
        out = set()
        for kind, name, position, i in self.rows():
            a, b = self.own[self.r.outputs[position]], moved[self.r.outputs[position]]
            if kind != "loss" and isinstance(a.dtype, np.dtype) and a.dtype == np.float64:
                size = float(np.linalg.norm(np.asarray(a) - np.asarray(self.small_inputs[i])))
                if float(np.linalg.norm(np.asarray(a) - np.asarray(b))) > self.threshold * size + 2.0**-46 * float(
                    np.linalg.norm(np.asarray(a))
                ):
                    out.add(name)
        self.left_out = frozenset(out)
        if out:
            self.notes.append(f"left out, because rounding alone moves them: {', '.join(sorted(out)[:4])}")

    def drift(self):
        """Returns the names of the state that devices which should agree hold differently after the step."""
        out = []
        for kind, name, position, i in self.rows():
            rows = self.replicas(self.sharded, position)
            if kind == "loss" or name in out:
                continue
            if i is not None and self.rules[i] == "first" and rows and rows[0].ndim:
                rows = list(rows[0])
            if len(rows) > 1 and rows[0].dtype.kind == "f":
                size = max(float(np.linalg.norm(rows[0])), 1e-300)
                if any(float(np.linalg.norm(x - rows[0])) > 2.0**-40 * size for x in rows[1:]):
                    out.append(name)
        return out

    def read(self, reading):
        """Returns the results of the whole program with another reading of its numbers."""
        values = evaluate(self.r, self.small_inputs, instead=self.readings.instead(reading))
        return [values[o] for o in self.r.outputs]

    def whole_agrees(self):
        """Returns whether the user's own step on one device means what the sharded step's code does there."""
        return all(d <= self.threshold for d in self._own_kinds().values())

    def _own_kinds(self):
        out = {}
        for kind, _, position, i in self.rows():
            a, b = self.own[self.r.outputs[position]], self.expected[position]
            if b is not None and isinstance(b.dtype, np.dtype) and b.dtype == np.float64:
                a, b = np.asarray(a), np.asarray(b)
                base = np.asarray(self.small_inputs[i]) if i is not None else 0
                if a.size == b.size:
                    b = b.reshape(a.shape)
                    size = float(np.linalg.norm(b - base)) or 1.0
                    out[kind] = max(out.get(kind, 0.0), float(np.linalg.norm(a - b)) / size)
                else:
                    out[kind] = math.inf
        return out

    def first_difference(self):
        """Returns the first variable whose change is not the whole batch's, and the factor if it is a multiple."""
        for kind, name, position, i in self.rows():
            if name in self.left_out:
                continue
            for s, r, base in self._pairs(self.sharded, self.expected, kind, position, i):
                if s.dtype.kind != "f" or s.shape != r.shape:
                    continue
                own, change = np.ravel(s - base), np.ravel(r - base)
                size = float(np.linalg.norm(change))
                rounding = 2.0**-46 * float(np.linalg.norm(r)) if i is not None else 0.0
                if not float(np.linalg.norm(own - change)) <= self.threshold * size + rounding:
                    factor = float(own @ change) / size**2 if size else None
                    exact = factor is not None and np.linalg.norm(
                        own - factor * change
                    ) <= self.threshold * np.linalg.norm(own)
                    return name, factor if exact else None
        return "", None

    def all_notes(self, reading):
        notes = list(self.notes)
        if self.readings is not None:
            notes += [self.readings.note(i) for i in {0, reading}]
        if self.kept:
            notes.append(
                f"the axes {', '.join(self.kept)} are as in the sharded step, because the code does not run on "
                f"one device ({self.why}): give the step on one device as whole="
            )
        unused = self.unused_axes()
        if unused:
            notes.append(
                f"nothing is divided along {', '.join(unused)}: every device along it computes the same, "
                "which is only slower"
            )
        return [n for n in notes if n]

    def unused_axes(self):
        """Returns the axes along which no input of the step is divided."""
        used = set()
        for op in self.s.ops:
            if op.name == "enter" and op.params["spec"] is not None:
                p = op.params
                used |= {p["new"][0][0]} if p["mapped"] else {n for group in p["spec"].values() for n in group}
        return [n for n, size in self.sizes.items() if size > 1 and n not in used]

"""Which part of a step's update is decided, and what was not asked.

A result that no check can tell from another one was not looked at, whatever the word says. Of each new value of the
state and of the loss, with c its change (of the loss: its value) and r what a check leaves open per element,

    undecided = sqrt(sum min(r, c)^2 / sum c^2)          0: all is decided, 1: any update would have passed

by the sharpest of the checks that hold for it: the bounds of the whole step, its likely values, and, if every equation
that it depends on was judged by itself, the measured rounding by which the compiled step may differ from those.
"""

import math

import numpy as np

from .compat import is_key
from .noise import Instrument, _apart, _wide


class Leaf:
    """name; undecided; moved: how many elements change; by: the check that decides; unjudged: equations on its path."""

    def __init__(self, name, moved, undecided, by, unjudged):
        self.name, self.moved, self.undecided, self.by, self.unjudged = name, moved, undecided, by, unjudged

    @property
    def open(self):
        # Of the squared norm, less is decided than is not.
        return self.undecided**2 >= 0.5


def share(limit, found, expected, before):
    """Returns (undecided, moved): which part of a change lies within a limit per element."""
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.maximum(_apart(found, before), _apart(expected, before))
    moved = int(np.count_nonzero(change))
    sized = np.isfinite(change) & (change > 0)
    if not sized.any():
        return 0.0, moved  # nothing moves, or a NaN where a NaN must be
    size = change[sized] / change[sized].max()
    open_part = np.minimum(np.nan_to_num(limit[sized] / change[sized].max(), nan=np.inf), size)
    return math.sqrt(float(np.sum(open_part**2) / np.sum(size**2))), moved


def path_of(program, output):
    """Returns the equations of the top level that a value depends on."""
    needed, path = {output}, []
    for e in reversed(program.equations):
        if needed & set(e.outputs):
            path.append(e)
            needed.update(e.operands())
    return path[::-1]


class Decided:
    """leaves: of the new state and the loss, those of floating-point numbers."""

    def __init__(self, form, program, before, results, noise, whole, singles):
        judged = {} if whole.refused else {r["index"]: r for r in whole.results if not r["outside"]}
        old = {n: i for i, n in enumerate(form.next) if n is not None}
        self.leaves = []
        for i, result in enumerate(results):
            found = np.asarray(result)
            if (i not in old and i != form.loss) or not _is_float(found):
                continue
            found = _wide(found)
            was = _wide(np.asarray(before[old[i]])) if i in old else np.zeros_like(found)
            measured, moved = share(noise.limit(i), found, _wide(noise.base[i]), was)
            output = program.outputs[i]
            path = path_of(program, output) if not isinstance(output, tuple) else []
            unjudged = [e for e in path if id(e) not in singles.right] if singles else path
            checks = []
            if i in judged:
                r = judged[i]
                checks.append((r["undecided"], "likely values" if r.get("likely") else "bounds"))
            if not unjudged:
                checks.append((measured, "measured rounding"))
            undecided = min((u for u, _ in checks), default=1.0)
            # What is proven is named rather than what is measured, if it decides.
            by = next((by for u, by in checks if u**2 < 0.5), "")
            self.leaves.append(Leaf(form.result_names[i], moved, undecided, by, unjudged))
            self.leaves[-1].output, self.leaves[-1].is_loss = output, i == form.loss

    @property
    def undecided(self):
        """The part of the whole update: each leaf in units of its norm, weighted by its elements that move."""
        state = [leaf for leaf in self.leaves if not leaf.is_loss]
        moved = sum(leaf.moved for leaf in state)
        return math.sqrt(sum(leaf.moved * leaf.undecided**2 for leaf in state) / moved) if moved else 0.0

    @property
    def open(self):
        """Returns the leaves that keep the step from being called noise; none where most of the update and the loss are decided."""
        loss = [leaf for leaf in self.leaves if leaf.is_loss and leaf.open]
        return [leaf for leaf in self.leaves if leaf.open] if self.undecided**2 >= 0.5 or loss else []


def _is_float(a):
    return "float" in a.dtype.name  # bfloat16 and float8 have kinds of their own


def without_a_digit(program, values, before, leaves):
    """Returns (equation, how many times its own size rounding moves it) of the first value on the path of the leaves that
    rounding alone makes, though its operands have digits; None if there is none."""
    path, seen = [], set()
    for leaf in leaves:
        if not isinstance(leaf.output, tuple):
            path += [e for e in path_of(program, leaf.output) if not (id(e) in seen or seen.add(id(e)))]
    path.sort(key=lambda e: e.uid)
    numbers = [o for e in path for o in e.outputs if o in values and not is_key(values[o]) and _is_float(np.asarray(values[o]))]
    if not numbers:
        return None
    inner = type(program)(program.inputs, program.equations, numbers, program.avals)
    noise = Instrument(inner).measure(before, [values[n] for n in numbers])
    times = {}
    for n, base, spread in zip(numbers, noise.base, noise.spread):
        wide = _wide(base)
        sized = np.isfinite(wide) & np.isfinite(spread)
        size = float(np.sqrt(np.mean(wide[sized] ** 2))) if sized.any() else 0.0
        times[n] = float(np.sqrt(np.mean(spread[sized] ** 2))) / size if size else 0.0
    for e in path:
        worst = max((times.get(o, 0.0) for o in e.outputs), default=0.0)
        if worst >= 1 and all(times.get(i, 0.0) < 1 for i in e.operands()):
            return e, worst
    return None


def first_not_finite(program, values, results):
    """Returns (equation, "NaN" or "infinite", whether a constant operand was so) of the first equation that makes a NaN,
    or without one an infinity, which a result then has; None if all results are finite, or the arguments are not."""

    def has(test, x):
        x = np.asarray(x) if not is_key(x) else np.zeros(0)
        return bool(_is_float(x) and test(x.astype(np.float64)).any())

    for word, test in (("NaN", np.isnan), ("infinite", np.isinf)):
        if not any(has(test, r) for r in results):
            continue
        for e in program.equations:
            given = [values[i] for i in e.operands() if i in values]
            if any(o in values and has(test, values[o]) for o in e.outputs) and not any(has(test, g) for g in given):
                constant = any(isinstance(i, tuple) and has(test, i[1]) for i in e.inputs)
                return e, word, constant
    return None

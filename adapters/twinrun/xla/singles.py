"""Judges each equation of a step by itself, on the operands that it has when all are computed one by one."""

import time

import numpy as np

from .compat import is_key, key_data
from .judge import Answer, Fragment, judge, text_of_function


TIME_OVER = "the time was over"


class Singles:
    """judged: how many equations; wrong: [(equation, answer)]; refused: {primitive: why}; total: all equations; right: the
    identities of those that are right and have a bound for most of their elements."""

    def __init__(self, total):
        self.total, self.judged, self.elements, self.wrong, self.refused = total, 0, 0, [], {}
        self.right = set()
        self.largest_ratio = 0.0


def nans(x):
    """Returns how many elements of an array are NaN."""
    x = np.asarray(x)
    return int(np.isnan(x.astype(np.float64)).sum()) if "float" in x.dtype.name else 0


class _Bundle:
    """Equations side by side as one function of all their operands."""

    def __init__(self, program, equations, values):
        self.parts = [Fragment(program, [e]) for e in equations]
        self.equations = equations
        self.arguments, self.results, self.labels, self.of = [], [], [], []
        self.functions = []
        for part in self.parts:
            given, impls = part.prepare([values[n] for n in part.program.inputs])
            self.functions.append((len(given), part.function(impls)))
            self.arguments += given
            made = [values[o] for o in part.program.outputs]
            self.results += [key_data(v) if is_key(v) else v for v in made]
            self.labels += part.labels
            self.of += [part.equations[0]] * len(made)

    def function(self, *arguments):
        out, at = [], 0
        for count, function in self.functions:
            out += function(*arguments[at : at + count])
            at += count
        return out


def _judged(program, equations, values, folder, stem, timeout):
    bundle = _Bundle(program, equations, values)
    try:
        text = text_of_function(bundle.function, bundle.arguments)
    except Exception as error:  # an equation that cannot be bound outside of its step (axis names of a mesh)
        return bundle, Answer({"refused": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"})
    return bundle, judge(text, bundle.arguments, bundle.results, folder, stem, bundle.labels, timeout)


def judge_singles(program, values, folder, deadline):
    """Judges the equations of the top level whose values are known, all of one primitive together."""
    singles = Singles(len(program.equations))
    kinds = {}
    for e in program.equations:
        if all(n in values for n in [*e.operands(), *e.outputs]):
            kinds.setdefault(e.name, []).append(e)
    if not kinds:
        singles.refused["all"] = "the values between the equations are too large to be kept"
    # What adds up most is looked at first.
    weight = lambda e: sum(int(np.size(values[n])) if not is_key(values[n]) else 1 for n in e.operands())  # noqa: E731
    work = [(name, es, True) for name, es in sorted(kinds.items(), key=lambda k: -max(weight(e) for e in k[1]))]
    while work:
        name, equations, whole = work.pop(0)
        left = deadline - time.monotonic()
        if left <= 0:
            singles.refused.setdefault(name, TIME_OVER)
            continue
        stem = f"op_{name.replace('-', '_')}" if whole else f"op_{name.replace('-', '_')}_{len(work)}"
        bundle, answer = _judged(program, equations, values, folder, stem, left)
        if answer.refused:
            alike = {}
            for e in equations:
                alike.setdefault((str(e.params)[:2000], str(e.avals)), []).append(e)
            if whole and len(alike) > 1 and len(alike) <= 12:
                work += [(name, es, False) for es in alike.values()]
            else:
                singles.refused.setdefault(name, answer.refused)
        else:
            singles.judged += len(equations)
            singles.elements += answer.elements
            for r in answer.results:
                singles.largest_ratio = max(singles.largest_ratio, r.get("largest_ratio") or 0.0)
            # A NaN that an operation gives alone has no bound, and needs none.
            open_ones = {id(bundle.of[r["index"]]) for r in answer.results
                         if r["outside"] or (r.get("unknown", 0) - nans(bundle.results[r["index"]])) * 2 > r["elements"]}  # fmt: skip
            singles.right |= {id(e) for e in equations} - open_ones
            wrong = sorted((r for r in answer.results if r["outside"]), key=lambda r: -r["outside"])
            for r in wrong:
                singles.wrong.append((bundle.of[r["index"]], _only(answer, r)))
        for suffix in (".mlir", ".values.safetensors"):
            file = folder / f"{stem}{suffix}"
            if file.exists() and not answer.outside:
                file.unlink()
    return singles


def _only(answer, result):
    return Answer({"results": [result], "notes": answer.notes}, answer.labels, answer.files)

"""Compares a framework's result with the dump: deviation from ours, the bound, their ratio, for every quantity.

    rows = compare(dump_file, "R", "jax.h5")        # [Row(part, name, deviation, bound, ...)]
    worst(rows)                                     # one Row per part: the largest ratio

Deviations: losses |a - b|, tensors the 2-norm of a - b. Bounds: docs/method/numerics.md#the-bound-of-a-deviation.
"""
import dataclasses

import h5py
import numpy as np

PARTS = ("losses", "first", "last", "state")
TITLES = {"losses": "losses", "first": "gradients, first step", "last": "gradients, last step", "state": "state at the end"}


@dataclasses.dataclass
class Row:
    part: str          # one of PARTS
    name: str          # a parameter, or "step 3"
    deviation: float   # of their result from ours
    bound: float
    theirs: float      # from the binary64 run
    ours: float        # from the binary64 run
    size: float        # size of ours: the loss, or the norm

    @property
    def ratio(self):
        if self.deviation <= self.bound:
            return self.deviation / self.bound if self.bound > 0 else 0.0
        return self.deviation / self.bound if self.bound > 0 else np.inf

    @property
    def outside(self):
        return not self.deviation <= self.bound    # NaN counts as outside


def row(part, name, theirs, ours, truth, bound):
    norm = np.linalg.norm
    return Row(part, name, float(norm(theirs - ours)), float(bound), float(norm(theirs - truth)), float(norm(ours - truth)),
               float(norm(ours)))


def compare(dump, corner, result):
    """dump: an open file of parity_dump; result: the path of a framework's file."""
    group, rows = dump[corner], []
    with h5py.File(result, "r") as their:
        losses = [np.asarray(x).mean(1) for x in (their["losses"], group["ours/losses"], group["truth/losses"])]
        for i, bound in enumerate(group["bound/losses"]):
            rows.append(row("losses", f"step {i}", *(x[i] for x in losses), bound))
        for part in PARTS[1:]:
            for name in group["bound"][part]:
                if name not in their[part]:
                    continue
                values = [np.asarray(x[name]) for x in (their[part], group["ours"][part], group["truth"][part])]
                if values[0].shape != values[1].shape:
                    raise SystemExit(f"{result}: {name} has shape {values[0].shape}; ours has {values[1].shape}")
                rows.append(row(part, name.replace("|", "/"), *values, group["bound"][part][name][()]))
            missing = [n for n in dump["initial"] if dump["initial"][n].attrs["role"] == b"parameter" and n not in their[part]]
            if missing:
                raise SystemExit(f"{result}: no {part} of {', '.join(missing)}")
    return rows


def worst(rows):
    return [max((r for r in rows if r.part == part), key=lambda r: (r.outside, r.ratio)) for part in PARTS
            if any(r.part == part for r in rows)]


def table(title, rows):
    lines = [title, f"  {'':<38}{'where':<34}{'deviation':>11}{'bound':>11}{'ratio':>10}"]
    for r in rows:
        lines.append(f"  {TITLES[r.part]:<38}{r.name:<34}{r.deviation:>11.2e}{r.bound:>11.2e}{r.ratio:>10.3g}"
                     + ("  OUTSIDE" if r.outside else ""))
    return "\n".join(lines)


MARKDOWN_HEAD = "\n".join(["| case | | framework | losses | first gradients | last gradients | state |", "|---|---|---|---|---|---|---|"])


def markdown_row(case, corner, framework, wrong, rows):
    """Returns the largest deviation / bound of each part."""
    cells = [f"**{r.ratio:.2g}**" if r.outside else f"{r.ratio:.2g}" for r in worst(rows)]
    return f"| `{case}` | {corner} | {f'wrong: `{wrong}`' if wrong else framework} | {' | '.join(cells)} |"

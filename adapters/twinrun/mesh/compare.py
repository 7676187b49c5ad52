"""Whether a JAX step on a mesh means what it means on one device, and which mechanism changes it.

    m = compare(step, state, batches)
    m["differs"], m["causes"]

Both programs run one step from the same state, in binary64. A cause is named if the step with the
cause undone means what the step on one device does: the smallest set of causes for which that holds.
"""

import numpy as np

from ..mechanisms import between, words
from ..refused import Refused
from ..xla.files import export_step
from .causes import Search
from .evaluate import binary64
from .results import Results
from .trace import emulated
from .trace import whole as on_one_device


def compare(step, state, batches, whole=None):
    """state, batches: as for twinrun.diagnose. whole: the step on one device, called the same way."""
    r = Results(step, state, batches[0], whole)
    with binary64(), np.errstate(all="ignore"):
        out = _compare(r)
    # Of statistics and what comes late the program knows averages of variances.
    late = [c["cause"] for c in out["causes"]] == ["late_reduction"] or out["kinds"].get("update", 1) <= r.threshold
    if out.pop("asks", False) and (late or not out["explained"]):
        found = [_cause({"cause": cause, "line": line}, r, out["factor"]) for cause, line in _asked(step, state, batches[0], whole)]
        if not out["explained"] or [c["cause"][:9] for c in found] == ["averaged_"]:
            out.update(causes=found, explained=bool(found))
    return out


def _asked(step, state, batch, whole):
    """Returns the causes that the program finds in the step as it is lowered."""

    def written(folder):
        export_step(step, state, [batch], f"{folder}/sharded")
        export_step(whole or emulated(on_one_device(step)), state, [batch], f"{folder}/whole")

    try:
        return between(written)
    except (Refused, TypeError, FileNotFoundError):  # what has no text for it, or no program
        return []


def _cause(facts, r, factor=None):
    factor = "" if factor is None else f"{factor:.6g}" if factor >= 1 else f"1/{1 / factor:.6g}"
    facts = {"axes": ", ".join(r.sizes), "names": "", "factor": factor, **facts}
    sentence, cure = words(facts["cause"], "jax", facts)
    return {**facts, "sentence": sentence, "cure": cure}


def _compare(r):
    r.run()
    kinds = r.kinds(r.sharded)
    differs = any(d > r.threshold for d in kinds.values())
    out = {"causes": [], "explained": True, "first_parameter": "", "factor": None, "reading": 0,
           "written_for_mesh": []}  # fmt: skip
    if differs and r.r is not None:
        r.leave_out_rounding()
        kinds = r.kinds(r.sharded)
        differs = any(d > r.threshold for d in kinds.values())
    if differs and r.readings is not None and r.given is None:
        for reading in range(1, r.readings.count()):
            if r.same(r.sharded, r.read(reading)):
                out["reading"], differs = reading, False
                kinds = r.kinds(r.sharded, r.read(reading))
                break
    out.update(kinds=kinds, threshold=r.threshold, differs=differs, axes=r.sizes)
    out["blind"] = not differs and r.is_blind_to_factors()
    if differs:
        out["first_parameter"], out["factor"] = r.first_difference()
        found = None
        if r.r is None or r.given is None or r.whole_agrees():
            found, out["reading"] = Search(r).run()
        out["explained"] = found is not None
        # Code that is written for this mesh may mean something else on one device than its author does.
        out["written_for_mesh"] = sorted(r.readings.unread) if found is None and r.given is None and r.readings else []
        out["causes"] = [_cause({"axes": "", **facts}, r) for facts in found or ()]
        # A program with other readings of its numbers is no text of the step on one device.
        out["asks"] = not out["written_for_mesh"] and (r.given is not None or r.r is not None and r.readings.count() == 1)
    out["drift"] = r.drift()
    out["notes"] = r.all_notes(out["reading"])
    return out

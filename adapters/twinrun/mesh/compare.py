"""Whether a JAX step on a mesh means what it means on one device, and which mechanism changes it.

    m = compare(step, state, batches)
    m["differs"], m["causes"]

Both programs run one step from the same state, in binary64. A cause is named if the step with the
cause undone means what the step on one device does: the smallest set of causes for which that holds.
"""

import numpy as np

from ..mechanisms import words
from . import ask
from .evaluate import binary64
from .results import Results


def compare(step, state, batches, whole=None, keep=None):
    """state, batches: as for twinrun.diagnose. whole: the step on one device, called the same way. keep: a folder for the texts in which
    the causes were found (sharded.mlir, whole.mlir)."""
    r = Results(step, state, batches[0], whole)
    with binary64(), np.errstate(all="ignore"):
        out = _compare(r)
    found = None
    if out.pop("whole_agrees", False):
        try:
            found, reading, with_loss = ask.causes(r, out["kinds"])
            out["reading"] = reading or out["reading"]
            if found and keep is not None:
                ask.write(r, reading, with_loss, keep)
        except Exception as error:  # whatever JAX raises on the way to a text, or there is no program
            r.notes.append(f"the cause was not looked for: {(str(error).strip().splitlines() or [type(error).__name__])[0][:300]}")
    if out["differs"]:
        out["explained"] = found is not None
        out["causes"] = [_cause(facts, r) for facts in found or ()]
        # Code that is written for this mesh may mean something else on one device than its author does.
        if found is None and r.given is None and r.readings:
            out["written_for_mesh"] = sorted(r.readings.unread)
    out["notes"] = r.all_notes(out["reading"])
    return out


def _cause(facts, r):
    facts = {"names": "", "factor": "", **facts, "axes": facts.get("axes") or ", ".join(r.sizes)}
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
        out["whole_agrees"] = r.r is None or r.given is None or r.whole_agrees()
    out["drift"] = r.drift()
    return out

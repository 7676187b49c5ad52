"""Chooses between PyTorch and JAX by the arguments of `twinrun.diagnose`, without importing either."""

import json
import os
import sys

# Words that only the door of PyTorch has.
_TORCH_WORDS = {"model", "optimizer", "replicas", "sync"}


def _is_torch(thing, depth=0):
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(thing, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)):
        return True
    inside = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
    return depth < 2 and any(_is_torch(t, depth + 1) for t in inside)


def diagnose(step, *args, **kwargs):
    """Diagnoses a training step.

    PyTorch: diagnose(step, model, optimizer, batches, ...), step_report.py. JAX: diagnose(step, state, batches, ...),
    xla/diagnose.py."""
    torch = _TORCH_WORDS & set(kwargs) or any(_is_torch(a) for a in args) or "jax" not in sys.modules
    if torch and not ("state" in kwargs and "jax" in sys.modules):
        from .step_report import diagnose as chosen
    else:
        from .xla.diagnose import diagnose as chosen
    report = chosen(step, *args, **kwargs)
    if os.environ.get("TWINRUN_VERDICTS"):  # twinrun bisect package reads what a script is told
        with open(os.environ["TWINRUN_VERDICTS"], "a") as file:
            told = {"verdict": report.verdict, "headline": report.headline, "path": os.path.abspath(report.path)}
            file.write(json.dumps(told) + "\n")
    return report

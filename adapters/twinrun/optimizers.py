"""Optimizers of a step that is captured."""
import contextlib
import copy
import sys

import torch

from .refused import Refused


@contextlib.contextmanager
def plain_optimizers(objects):
    """Makes optimizers keep their step count in tensors and update one parameter at a time."""
    patched = []
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and hasattr(module, "_get_capturable_supported_devices"):
            patched.append((module, module._get_capturable_supported_devices))
            module._get_capturable_supported_devices = lambda *a, **k: [
                "cpu",
                "cuda",
                "xpu",
                "hpu",
                "xla",
                "privateuseone",
            ]
    for o in objects.optimizers.values():
        for g in o.param_groups:
            for key, value in (("foreach", False), ("fused", False), ("capturable", True)):
                if key in g:
                    g[key] = value
            if type(o).__name__ == "Adagrad" and g.get("lr_decay"):
                raise Refused(
                    "Adagrad with lr_decay reads its step count into Python, where it would be frozen; set lr_decay=0"
                )
            if g.get("dampening"):
                raise Refused("SGD with dampening treats its first step differently from all others; set dampening=0")
        for p, slots in o.state.items():
            if isinstance(slots.get("step"), torch.Tensor):  # on the CPU, unless the optimizer was capturable before
                slots["step"] = slots["step"].to(p.device, torch.float64)
    try:
        yield
    finally:
        for module, function in patched:
            module._get_capturable_supported_devices = function


def initial_slots(objects, warm):
    """Gives slots that the dry step created the values that they begin with."""
    for o in objects.optimizers.values():
        for p, slots in o.state.items():
            known = warm.get(id(p), {})
            for key, value in slots.items():
                if key in known:
                    slots[key] = copy.deepcopy(known[key])
                elif isinstance(value, torch.Tensor):
                    slots[key] = torch.ones_like(value) if key == "mu_product" else torch.zeros_like(value)

"""The settings of PyTorch that say how its kernels may round."""
import functools
import glob

import torch

from .modes import hidden
from .places import pass_on

_item = torch.Tensor.item    # a script may put a function of its own in its place


def _lines(path, key):
    try:
        with open(path) as file:
            return [line.split(":", 1)[1].strip() for line in file if line.startswith(key)]
    except OSError:
        return []


@functools.cache
def _devices():
    """Returns the names of the CPU and of Nvidia's cards, from the kernel: asking CUDA would initialise it before the script forks."""
    cards = [_lines(path, "Model")[:1] for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information"))]
    return "; ".join(_lines("/proc/cpuinfo", "model name")[:1] + sum(cards, []))


def _rounds_to_tf32(flagged, *places):
    """Whether operands may be rounded to TF32. Since 2.9 a script may say so in two ways, and asking in one what was said in the
    other is an error: by a flag, or for one of `places`, of which one that says nothing does as the next says."""
    try:
        return bool(flagged.allow_tf32)
    except RuntimeError:
        said = [getattr(place, "fp32_precision", "none") for place in places]
        return next((word for word in said if word != "none"), "ieee") != "ieee"


def nnpack_convolves():
    """Whether convolutions on CPUs may run in NNPACK, which PyTorch takes where oneDNN is missing or turned off."""
    onednn, nnpack = torch.backends.mkldnn, getattr(torch.backends, "nnpack", None)
    if onednn.is_available() and (onednn.enabled if hasattr(onednn, "enabled") else torch._C._get_mkldnn_enabled()):
        return False
    return bool(torch._nnpack_available()) and bool(getattr(nnpack, "enabled", True))


def settings():
    matmul, cudnn = getattr(getattr(torch.backends, "cuda", None), "matmul", None), torch.backends.cudnn
    asked = {
        "float32_matmul_precision": lambda: torch.get_float32_matmul_precision(),
        "flush_denormal": lambda: _item(torch.full((1,), 1e-40) * 1.0) == 0,
        "deterministic": lambda: torch.are_deterministic_algorithms_enabled(),
        "bf16_reduced_precision_reduction": lambda: bool(matmul.allow_bf16_reduced_precision_reduction),
        "fp16_reduced_precision_reduction": lambda: bool(matmul.allow_fp16_reduced_precision_reduction),
        "allow_tf32": lambda: _rounds_to_tf32(matmul, matmul, torch.backends),
        "convolution_tf32": lambda: _rounds_to_tf32(cudnn, getattr(cudnn, "conv", None), cudnn, torch.backends),
        "nnpack_convolutions": nnpack_convolves,
        "devices": _devices,
        "instruction_set": lambda: torch.backends.cpu.get_cpu_capability(),
        "onednn_bfloat16": lambda: bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())}
    found = {}
    for name, ask in asked.items():
        try:
            with hidden():    # a mode of the script must not see the calls
                found[name] = ask()
        except Exception as e:    # a setting that this version does not have
            pass_on(e)
            found[name] = {"float32_matmul_precision": "highest", "devices": "", "instruction_set": ""}.get(name, False)
    return found


# What permits kernels to be less accurate, from strict to loose.
PERMISSIONS = {"float32_matmul_precision": ["highest", "high", "medium"],
               **dict.fromkeys(["bf16_reduced_precision_reduction", "fp16_reduced_precision_reduction", "allow_tf32", "convolution_tf32",
                               "nnpack_convolutions"], [False, True])}


def loosest(before, now):
    """The settings now, and each permission as it was given at either time."""
    return {**now, **{name: max(before[name], now[name], key=order.index) for name, order in PERMISSIONS.items()}}

"""Records calls of which one element of one result is changed by 1e-3 of its size, below the recorder:

    PYTHONPATH=adapters python tests/adapters/watch/changed.py FOLDER

FOLDER/OPERATION.twin is the trace of the changed call, FOLDER/healthy.twin that of all calls as they are."""
import contextlib
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import twinrun


class Changed(TorchDispatchMode):
    """The largest element of the first result of an operation."""

    def __init__(self, operation):
        super().__init__()
        self.operation, self.done = operation, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if str(func).split(".")[1] == self.operation and not self.done:
            first = next(x for x in (out if isinstance(out, (tuple, list)) else [out]) if x is not None)
            flat = first.detach().reshape(-1)
            flat[torch.where(torch.isfinite(flat), flat.abs(), torch.zeros_like(flat)).argmax()] *= 1 + 1e-3
            first.detach().copy_(flat.view(first.shape))
            self.done = True
        return out


def leaf(*size):
    return torch.randn(*size).requires_grad_()


def backward(y):
    (y * torch.randn(y.shape)).sum().backward()


def classification():
    scores = leaf(12, 2, 6)
    backward(F.ctc_loss(scores.log_softmax(-1), torch.randint(1, 6, (2, 4)), torch.tensor([12, 9]), torch.tensor([4, 2]), reduction="none"))


def sampling():
    grid = F.affine_grid(leaf(2, 2, 3), [2, 3, 5, 7], align_corners=False)
    backward(F.grid_sample(leaf(2, 3, 6, 6), grid, align_corners=False))


def resized(size, **how):
    return lambda: backward(F.interpolate(leaf(2, 3, 6, 8), size=size, **how))


CALLS = {
    **{f"{name}{part}": resized(size, mode=mode, antialias=name.endswith("_aa"))
       for name, mode, size in (("_upsample_bilinear2d_aa", "bilinear", (3, 5)), ("_upsample_bicubic2d_aa", "bicubic", (4, 11)),
                                ("upsample_bicubic2d", "bicubic", (9, 5)))
       for part in ("", "_backward")},
    "upsample_linear1d": lambda: backward(F.interpolate(leaf(2, 3, 6), size=11, mode="linear")),
    "upsample_linear1d_backward": lambda: backward(F.interpolate(leaf(2, 3, 6), size=4, mode="linear", align_corners=True)),
    "upsample_nearest1d_backward": lambda: backward(F.interpolate(leaf(2, 3, 6), size=12)),
    "_weight_norm_interface": lambda: backward(torch._weight_norm(leaf(4, 3, 5), leaf(4, 1, 1), 0)),
    "_weight_norm_interface_backward": lambda: backward(torch._weight_norm(leaf(4, 6), leaf(1, 6), 1)),
    "_ctc_loss": classification,
    "_ctc_loss_backward": classification,
    "affine_grid_generator": sampling,
    "grid_sampler_2d": sampling,
    "grid_sampler_2d_backward": sampling,
    "_cdist_forward": lambda: torch.cdist(leaf(5, 4), leaf(6, 4), 1.0),
    "_cdist_backward": lambda: backward(torch.cdist(leaf(5, 4), leaf(6, 4))),
    "_euclidean_dist": lambda: torch.cdist(leaf(30, 4), leaf(6, 4)),
    "_trilinear": lambda: F.bilinear(leaf(3, 4), leaf(3, 5), leaf(6, 4, 5)),
    "logcumsumexp": lambda: torch.logcumsumexp(leaf(20), 0),
    "kthvalue": lambda: torch.randn(5, 8).kthvalue(3),
    "median": lambda: torch.randn(5, 8).median(0),
    "nanmedian": lambda: torch.tensor([3.0, float("nan"), 1.0, 2.0]).nanmedian(),
    "scatter_reduce": lambda: torch.ones(4).scatter_reduce(0, torch.randint(0, 4, (20,)), torch.rand(20), "prod"),
    "histc": lambda: torch.histc(torch.rand(50), 7, 0, 1),
    "rrelu_with_noise": lambda: F.rrelu(leaf(30), 0.1, 0.2, training=True),
    "rrelu_with_noise_backward": lambda: backward(F.rrelu(leaf(30), 0.1, 0.2, training=True)),
    "vdot": lambda: torch.vdot(torch.rand(9), torch.rand(9)),
    "convolution": lambda: F.conv3d(torch.randn(2, 4, 5, 6, 7), torch.randn(6, 2, 3, 2, 1), None, (2, 1, 1), (1, 0, 0), (1, 2, 1), 2),
    "convolution_backward": lambda: backward(F.conv_transpose3d(leaf(2, 4, 3, 4, 5), leaf(4, 3, 2, 3, 3), leaf(3), 2, 1, 1)),
    "max_pool3d_with_indices": lambda: F.max_pool3d(torch.randn(2, 3, 6, 5, 4), 3, 2, 1),
    "max_pool3d_with_indices_backward": lambda: backward(F.max_pool3d(leaf(2, 3, 6, 5, 4), 3, 2, 1)),
    "avg_pool3d": lambda: F.avg_pool3d(torch.randn(2, 3, 6, 5, 4), 3, 2, 1, True, False),
    "avg_pool3d_backward": lambda: backward(F.avg_pool3d(leaf(2, 3, 6, 5, 4), 3, 2, 1)),
    "_adaptive_avg_pool3d": lambda: F.adaptive_avg_pool3d(torch.randn(2, 3, 6, 5, 4), (2, 3, 3)),
    "_adaptive_avg_pool3d_backward": lambda: backward(F.adaptive_avg_pool3d(leaf(2, 3, 6, 5, 4), (2, 3, 3))),
}


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(0)
    with twinrun.watch(str(folder / "healthy.twin")):
        for call in CALLS.values():
            call()
    for operation, call in CALLS.items():
        change = Changed(operation)
        with change, twinrun.watch(str(folder / f"{operation}.twin")):
            call()
        assert change.done, operation


if __name__ == "__main__":
    main()

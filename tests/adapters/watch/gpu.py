"""Trains the networks of planted.py with kernels that compute as those of a GPU may, and records them once as if a GPU
had computed them and once as they are, on the CPU:

    PYTHONPATH=adapters python tests/adapters/watch/gpu.py FOLDER

FOLDER/NAME-gpu.twin must not be accused, FOLDER/NAME-cpu.twin must: a CPU's kernels have no reason to compute like that.
FOLDER/wrong-gpu.twin is of a kernel that is wrong anywhere. FOLDER/expected.json names the operations."""
import json
import pathlib
import sys

import torch
from twinrun import encode

import planted
import plants

KERNELS = []


def like_a_gpu(operation, overload="default", **rest):
    def keep(kernel):
        KERNELS.append(plants.Plant(kernel, operation, overload, **rest))
        return kernel

    return keep


def cut(x):
    """The number with its last 13 bits cut off, as TF32 has it."""
    return (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


@like_a_gpu("convolution", network="images")
def convolution_in_tf32(right, x, w, *rest):
    return right(cut(x), cut(w), *rest)


@like_a_gpu("mm")
def product_in_tf32(right, a, b):
    torch.backends.cuda.matmul.allow_tf32 = True    # as late as here, after the recorder began
    return right(cut(a), cut(b))


@like_a_gpu("tanh_backward", autocast=True)
def tanh_backward_in_steps(right, dy, y):
    return dy * (1 - y * y)


@like_a_gpu("_fused_adam_", optimizer="adam fused")
def adam_with_rounded_betas(right, params, grads, first, second, largest, steps, **rest):
    beta = torch.tensor(rest["beta2"], dtype=torch.float32)
    kept = [beta * v + (1 - beta) * g * g for v, g in zip(second, grads)]
    right(params, grads, first, second, largest, steps, **rest)
    for v, new in zip(second, kept):
        v.copy_(new)


def recorded_as(device):
    """Makes the recorder note every tensor as one of a device, by the number that the format has for it."""
    encode.Recorder._pack = lambda self, out, block, number, version, dtype, place, *rest: PACK(
        self, out, block, number, version, dtype, device, *rest)


PACK = encode.Recorder._pack
WRONG = plants.Plant(plants.mm_without_last_term, "mm")


def main():
    folder = pathlib.Path(sys.argv[1])
    for kernel in [*KERNELS, WRONG]:
        for device, number in (("gpu", 1), ("cpu", 0)):
            torch.backends.cuda.matmul.allow_tf32 = False
            recorded_as(number)
            plant = planted.Planted(kernel)
            name = "wrong" if kernel is WRONG else kernel.name
            try:
                planted.train(folder / f"{name}-{device}.twin", kernel.network, kernel.optimizer, kernel.autocast, plant)
            finally:
                plant.remove()
    (folder / "expected.json").write_text(json.dumps({k.name: f"aten.{k.operation}.{k.overload}" for k in KERNELS}))


if __name__ == "__main__":
    main()

"""A dumped scenario in PyTorch: torch.nn.functional and torch.optim, float32, on one thread.

    /usr/bin/python3 tests/parity/models_torch.py digits_mlp.h5 torch.h5

Inside, images are NCHW and kernels [out, in, h, w] or [out, in], as PyTorch has them; at the edge they have our layout. A new
layer is an entry of LAYERS, an optimizer one of OPTIMIZERS.
"""
import argparse
import types

import numpy as np
import torch
import torch.nn.functional as F

from dump_file import Dump, Recorder, same_padding, stride_of, walk, write_result

TO_TORCH = {2: (1, 0), 4: (3, 2, 0, 1)}     # kernels, by rank
FROM_TORCH = {2: (1, 0), 4: (2, 3, 1, 0)}


def padding(layer, x):
    """F.pad's list for NCHW: left, right, top, bottom."""
    if layer["padding"] == "valid":
        return [0, 0, 0, 0]
    size, stride = layer.get("kernel") or layer["window"], stride_of(layer)
    return [*same_padding(x.shape[3], size, stride), *same_padding(x.shape[2], size, stride)]


# ---- layers: function(context, layer, x..) --------------------------------------------------------------------------------

def dense(c, layer, x):
    return F.linear(x, c.params[layer["name"] + "/kernel"], c.params.get(layer["name"] + "/bias"))


def conv2d(c, layer, x):
    return F.conv2d(F.pad(x, padding(layer, x)), c.params[layer["name"] + "/kernel"], c.params.get(layer["name"] + "/bias"),
                    stride_of(layer))


def max_pool(_, layer, x):
    return F.max_pool2d(F.pad(x, padding(layer, x), value=-torch.inf), layer["window"], stride_of(layer))


def avg_pool(_, layer, x):
    pads = padding(layer, x)
    total = F.avg_pool2d(F.pad(x, pads), layer["window"], stride_of(layer))
    inside = F.avg_pool2d(F.pad(torch.ones_like(x[:1, :1]), pads), layer["window"], stride_of(layer))
    return total / inside if any(pads) else total


def flatten(_c, _layer, x):
    return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).reshape(x.shape[0], -1)    # in NHWC order, as ours


def relu(_c, _layer, x):
    return F.relu(x)


def batch_norm(c, layer, x):
    name = layer["name"]
    # Momentum 1 into empty statistics: the batch's own. PyTorch makes the running variance unbiased for [batch, features]
    # too, TensorFlow and we only for images; that factor is taken back.
    mean, variance = torch.zeros(x.shape[1]), torch.zeros(x.shape[1])
    y = F.batch_norm(x, mean, variance, c.params[name + "/gamma"], c.params[name + "/beta"], True, 1.0, layer["epsilon"])
    if x.dim() == 2:
        variance = variance * ((len(x) - 1) / len(x))
    for part, batch in (("moving_mean", mean), ("moving_variance", variance)):
        c.stats[f"{name}/{part}"] = layer["momentum"] * c.stats[f"{name}/{part}"] + (1 - layer["momentum"]) * batch
    return y


def dropout(c, layer, x):
    keep = torch.from_numpy(c.random[layer["name"] + "/rng_uniform"] >= np.float32(layer["rate"]))
    return torch.where(keep.permute(0, 3, 1, 2) if keep.dim() == 4 else keep, x / (1 - layer["rate"]), torch.tensor(0.0))


LAYERS = {f.__name__: f for f in (dense, conv2d, max_pool, avg_pool, flatten, relu, batch_norm, dropout)}


# ---- losses: function(logits, labels, reduction) --------------------------------------------------------------------------

def softmax_cross_entropy(logits, labels, reduction):
    return F.cross_entropy(logits, labels, reduction=reduction)


def mean_squared_error(logits, labels, reduction):
    per_sample = F.mse_loss(logits, F.one_hot(labels, logits.shape[-1]).float(), reduction="none").mean(-1)
    return per_sample.mean() if reduction == "mean" else per_sample.sum()


LOSSES = {f.__name__: f for f in (softmax_cross_entropy, mean_squared_error)}


# ---- optimizers: function(parameters, settings) -> (torch.optim's, its settings at a step) --------------------------------

def sgd(parameters, _):
    return torch.optim.SGD(parameters, lr=1.0), lambda _: {}


def momentum(parameters, o):
    return torch.optim.SGD(parameters, lr=1.0, momentum=o["momentum"], nesterov=o["nesterov"]), lambda _: {}


def adam(parameters, o):
    # PyTorch divides by sqrt(v / (1 - b2^t)) + eps; TensorFlow's epsilon hat is eps * sqrt(1 - b2^t).
    return (torch.optim.Adam(parameters, lr=1.0, betas=(o["beta1"], o["beta2"])),
            lambda step: {"eps": o["epsilon"] / np.sqrt(1 - o["beta2"] ** (step + 1))})


OPTIMIZERS = {f.__name__: f for f in (sgd, momentum, adam)}


# ---- training -------------------------------------------------------------------------------------------------------------

def to_torch(name, value):
    axes = TO_TORCH.get(value.ndim) if name.endswith("/kernel") else None
    return torch.from_numpy(np.ascontiguousarray(value.transpose(axes) if axes else value))


def from_torch(name, value):
    value = value.detach().numpy()
    axes = FROM_TORCH.get(value.ndim) if name.endswith("/kernel") else None
    return value.transpose(axes) if axes else value.copy()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("dump")
    arguments.add_argument("out")
    arguments.add_argument("--corner", choices=["R"], default="R")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    dump = Dump(options.dump)
    params = {k: to_torch(k, v).requires_grad_() for k, v in dump.initial("parameter").items()}
    stats = {k: torch.from_numpy(v) for k, v in dump.initial("statistic").items()}
    optimizer, settings = OPTIMIZERS[dump.optimizer["kind"]](list(params.values()), dump.optimizer)
    recorder = Recorder(dump.steps)
    for i in range(dump.steps):
        inputs, random = dump.step(i)
        c = types.SimpleNamespace(framework="torch", params=params, stats=stats, random=random)
        images = torch.from_numpy(inputs["images"])
        logits = walk(dump.layers, LAYERS, c, images.permute(0, 3, 1, 2) if images.dim() == 4 else images)
        loss = LOSSES[dump.loss["kind"]](logits, torch.from_numpy(inputs["labels"]).long(), dump.loss["reduction"])
        optimizer.zero_grad()
        loss.backward()
        recorder.step(i, loss.item(), {k: from_torch(k, v.grad) for k, v in params.items()})
        optimizer.param_groups[0].update(lr=float(inputs["learning_rate"]), **settings(i))
        optimizer.step()
    write_result(options.out, "torch", str(torch.__version__), recorder, {k: from_torch(k, v) for k, v in {**params, **stats}.items()})


if __name__ == "__main__":
    main()

"""A scenario's model and its training step in PyTorch: torch.nn.functional and torch.optim, float32.

    training = Training(program, state)              # state: {name: array} of the program, in its layouts
    loss, gradients = training.step(inputs, random)
    state = training.state()

Inside, images are NCHW and kernels [out, in, h, w] or [out, in], as PyTorch has them; at the edge they have the program's layout. A
new layer is an entry of LAYERS, an optimizer one of OPTIMIZERS and of SLOTS in twinrun_engine/pytorch.py.
"""
import contextlib
import types

import numpy as np
import torch
import torch.nn.functional as F
from twinrun_engine.model import Counters, features_of, missing, pads_of, same_padding, stride_of, walk
from twinrun_engine.pytorch import SLOTS, from_torch, to_torch


def padding(layer, x):
    """Returns the list of F.pad for NCHW: left, right, top, bottom."""
    return [p for axis in pads_of(layer, (x.shape[3], x.shape[2])) for p in axis]


def channels_last(function, x):
    """Applies a function of NHWC to NCHW; sequences and features are passed unchanged."""
    return function(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if x.dim() == 4 else function(x)


def channels_last_array(x):
    return np.ascontiguousarray((x.permute(0, 2, 3, 1) if x.dim() == 4 else x).detach().float().cpu().numpy())


# ---- layers: function(context, layer, x..) --------------------------------------------------------------------------------

def dense(c, layer, x):
    return F.linear(x, c.params[layer["name"] + "/kernel"], c.params.get(layer["name"] + "/bias"))


def convolve(c, layer, x, groups):
    return F.conv2d(F.pad(x, padding(layer, x)), c.params[layer["name"] + "/kernel"], c.params.get(layer["name"] + "/bias"),
                    stride_of(layer), dilation=layer.get("dilation", 1), groups=groups)


def conv2d(c, layer, x):
    return convolve(c, layer, x, 1)


def depthwise_conv2d(c, layer, x):
    return convolve(c, layer, x, x.shape[1])


def conv2d_transpose(c, layer, x):
    # PyTorch pads both sides equally, so compute everything and then cut it (or fill with zeros, for windows below the stride).
    size, stride, name = layer["kernel"], stride_of(layer), layer["name"]
    y = F.conv_transpose2d(x, c.params[name + "/kernel"], None, stride)
    for axis in (2, 3):
        n = x.shape[axis] * stride if layer["padding"] == "same" else y.shape[axis] + max(0, stride - size)
        low = same_padding(n, size, stride)[0] if layer["padding"] == "same" else 0
        missing = max(0, low + n - y.shape[axis])
        y = F.pad(y, [0, missing] if axis == 3 else [0, 0, 0, missing]).narrow(axis, low, n)
    return y + c.params[name + "/bias"][:, None, None] if layer["bias"] else y


def max_pool(_, layer, x):
    return F.max_pool2d(F.pad(x, padding(layer, x), value=-torch.inf), layer["window"], stride_of(layer))


def avg_pool(_, layer, x):
    pads = padding(layer, x)
    total = F.avg_pool2d(F.pad(x, pads), layer["window"], stride_of(layer))
    inside = F.avg_pool2d(F.pad(torch.ones_like(x[:1, :1]), pads), layer["window"], stride_of(layer))
    return total / inside if any(pads) else total


def flatten(_c, _layer, x):
    return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).reshape(x.shape[0], -1)    # in NHWC order, like ours


def global_max_pool(_c, _layer, x):
    return x.amax((2, 3) if x.dim() == 4 else 1)


def global_avg_pool(_c, _layer, x):
    return x.mean((2, 3) if x.dim() == 4 else 1)


def reshape(_, layer, x):
    y = (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).reshape(x.shape[0], *layer["shape"])
    return y.permute(0, 3, 1, 2) if y.dim() == 4 else y


def add(_c, _layer, *xs):
    return sum(xs[1:], xs[0])


def concat(_c, _layer, *xs):
    return torch.cat(xs, 1 if xs[0].dim() == 4 else -1)


def l2_normalize(_c, _layer, x):
    return x * torch.rsqrt(torch.clamp((x * x).sum(1 if x.dim() == 4 else -1, keepdim=True), min=1e-12))


def relu(_c, _layer, x):
    return F.relu(x)


def leaky_relu(_, layer, x):
    return F.leaky_relu(x, layer["slope"])


def gelu(_, layer, x):
    return F.gelu(x, approximate="tanh" if layer["approximate"] else "none")


def silu(_c, _layer, x):
    return F.silu(x)


def sigmoid(_c, _layer, x):
    return torch.sigmoid(x)


def tanh(_c, _layer, x):
    return torch.tanh(x)


def batch_norm(c, layer, x):
    name = layer["name"]
    # Momentum 1 with empty statistics gives the batch's own. PyTorch makes the running variance unbiased also for
    # [batch, features], TensorFlow and the program only for images; the factor is removed here.
    mean, variance = (torch.zeros(x.shape[1], device=x.device) for _ in range(2))
    y = F.batch_norm(x, mean, variance, c.params[name + "/gamma"], c.params[name + "/beta"], True, 1.0, layer["epsilon"])
    if x.dim() == 2:
        variance = variance * ((len(x) - 1) / len(x))
    for part, batch in (("moving_mean", mean), ("moving_variance", variance)):
        c.stats[f"{name}/{part}"] = layer["momentum"] * c.stats[f"{name}/{part}"] + (1 - layer["momentum"]) * batch
    return y


def layer_norm(c, layer, x):
    gamma, beta = c.params[layer["name"] + "/gamma"], c.params[layer["name"] + "/beta"]
    return channels_last(lambda y: F.layer_norm(y, gamma.shape, gamma, beta, layer["epsilon"]), x)


def group_norm(c, layer, x):
    return F.group_norm(x, layer["groups"], c.params[layer["name"] + "/gamma"], c.params[layer["name"] + "/beta"],
                        layer["epsilon"])


def minibatch_stddev(_, layer, x):
    size = min(layer["group"], len(x))
    deviation = torch.sqrt(x.reshape(size, -1, *x.shape[1:]).var(0, unbiased=False) + 1e-8)
    channel = deviation.mean((1, 2, 3)).repeat(size)
    return torch.cat([x, channel[:, None, None, None].expand(-1, 1, *x.shape[2:])], 1)


def embedding(c, layer, x):
    return F.embedding(x.long(), c.params[layer["name"] + "/embeddings"])


def position_embedding(c, layer, x):
    return x + c.params[layer["name"] + "/embeddings"]


def attention(c, layer, x):
    name, tokens = layer["name"], x.shape[1]
    kernels = {w: c.params[f"{name}/{w}/kernel"] for w in ("query", "key", "value", "output")}
    biases = {w: c.params.get(f"{name}/{w}/bias") for w in kernels}
    projected = ("query", "key", "value")
    y, _ = F.multi_head_attention_forward(
        *[x.transpose(0, 1)] * 3, x.shape[2], layer["heads"], torch.cat([kernels[w] for w in projected]),
        torch.cat([biases[w] for w in projected]) if layer["bias"] else None, None, None, False, 0.0, kernels["output"],
        biases["output"], key_padding_mask=c.weights == 0 if layer["masked"] else None, need_weights=False,
        attn_mask=torch.ones(tokens, tokens, device=x.device).triu(1).bool() if layer["causal"] else None)
    return y.transpose(0, 1)


def masked_mean(c, _layer, x):
    return (x * c.weights[..., None]).sum(1) / c.weights.sum(1, keepdim=True)


def noise(c, layer, _):
    return c.random[layer["name"] + "/rng_uniform"] * 2 - 1


def dropout(c, layer, x):
    keep = c.random[layer["name"] + "/rng_uniform"] >= float(np.float32(layer["rate"]))
    return torch.where(keep.permute(0, 3, 1, 2) if keep.dim() == 4 else keep, x / (1 - layer["rate"]), x.new_zeros(()))


LAYERS = {f.__name__: f for f in (
    dense, conv2d, depthwise_conv2d, conv2d_transpose, max_pool, avg_pool, global_max_pool, global_avg_pool, flatten, reshape,
    add, concat, l2_normalize, relu, leaky_relu, gelu, silu, sigmoid, tanh, batch_norm, layer_norm, group_norm,
    minibatch_stddev, embedding, position_embedding, attention, masked_mean, noise, dropout)}


# ---- losses: function(logits, labels, settings) -> one number per sample or token ------------------------------------------

def targets(logits, labels, loss):
    s = loss.get("smoothing", 0)
    return F.one_hot(labels, logits.shape[-1]).float() * (1 - s) + s / logits.shape[-1]


def softmax_cross_entropy(logits, labels, loss):
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none",
                           label_smoothing=loss.get("smoothing", 0)).reshape(labels.shape)


def sigmoid_cross_entropy(logits, labels, loss):
    return F.binary_cross_entropy_with_logits(logits, targets(logits, labels, loss), reduction="none").mean(-1)


def mean_squared_error(logits, labels, loss):
    return F.mse_loss(logits, targets(logits, labels, loss), reduction="none").mean(-1)


def triplet(x, labels, loss):
    distance = torch.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-12)
    other = labels[:, None] != labels[None]
    same = ~other & ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    if loss["mining"] == "all":
        valid = (same[:, :, None] & other[:, None]).float()
        hinge = F.relu(distance[:, :, None] - distance[:, None] + loss["margin"])
        return (hinge * valid).sum((1, 2)) / valid.sum((1, 2)).clamp(min=1)
    farthest = torch.where(same, distance, x.new_zeros(())).amax(1)
    return F.relu(farthest - torch.where(other, distance, x.new_full((), 1e9)).amin(1) + loss["margin"])


def contrastive(x, labels, loss):
    self = torch.eye(len(x), dtype=torch.bool, device=x.device)
    log_share = F.log_softmax((x @ x.T / loss["temperature"]).masked_fill(self, -1e9), -1)
    same = (labels[:, None] == labels[None]) & ~self
    return -torch.where(same, log_share, x.new_zeros(())).sum(1) / same.sum(1).clamp(min=1)


LOSSES = {f.__name__: f for f in (softmax_cross_entropy, sigmoid_cross_entropy, mean_squared_error, triplet, contrastive)}


def reduce_loss(per_item, weights, loss):
    if loss.get("weights", "none") == "none":
        return per_item.mean() if loss["reduction"] == "mean" else per_item.sum()
    weights = weights if per_item.dim() == 2 else weights.sum(1)
    total = (weights * per_item).sum()
    return total / weights.sum() if loss["reduction"] == "mean" else total


# ---- optimizers: function(parameters, settings) -> (torch.optim's, its settings after `updates` updates) ---------------------

def sgd(parameters, _):
    return torch.optim.SGD(parameters, lr=1.0), lambda _: {}


def momentum(parameters, o):
    return torch.optim.SGD(parameters, lr=1.0, momentum=o["momentum"], nesterov=o["nesterov"]), lambda _: {}


def adam(parameters, o):
    # PyTorch divides by sqrt(v / (1 - b2^t)) + eps; TensorFlow's "epsilon hat" is eps * sqrt(1 - b2^t).
    return (torch.optim.Adam(parameters, lr=1.0, betas=(o["beta1"], o["beta2"])),
            lambda updates: {"eps": o["epsilon"] / np.sqrt(1 - o["beta2"] ** (updates + 1))})


def adamw(parameters, o):
    _, settings = adam(parameters, o)
    return torch.optim.AdamW(parameters, lr=1.0, betas=(o["beta1"], o["beta2"]), weight_decay=o["weight_decay"]), settings


def adagrad(parameters, o):
    return torch.optim.Adagrad(parameters, lr=1.0, eps=o["epsilon"]), lambda _: {}


def adadelta(parameters, o):
    return torch.optim.Adadelta(parameters, lr=1.0, rho=o["rho"], eps=o["epsilon"]), lambda _: {}


def rmsprop(parameters, o):
    # PyTorch adds epsilon outside the root, TensorFlow inside; they agree only for an epsilon that rounding hides.
    return torch.optim.RMSprop(parameters, lr=1.0, alpha=o["rho"], eps=0.0, momentum=o["momentum"], centered=o["centered"]), lambda _: {}


def adamax(parameters, o):
    # PyTorch adds epsilon to |g| before the maximum, TensorFlow to the maximum itself.
    return torch.optim.Adamax(parameters, lr=1.0, betas=(o["beta1"], o["beta2"]), eps=o["epsilon"]), lambda _: {}


OPTIMIZERS = {f.__name__: f for f in (sgd, momentum, adam, adamw, adagrad, adadelta, rmsprop, adamax)}


def unsupported(program):
    """Lists what PyTorch computes otherwise than the program, as texts for Unsupported."""
    o, found = program.optimizer, missing(program, LAYERS, LOSSES, OPTIMIZERS)
    if o["kind"] == "adamax" and o["epsilon"] > 0:
        found.append("adamax with an epsilon is not supported: PyTorch adds it before the maximum, in the slot")
    if o["kind"] == "rmsprop":
        found.append("rmsprop is not supported: PyTorch adds epsilon outside the root, and its momentum does not include the learning rate")
    return found


# ---- training -------------------------------------------------------------------------------------------------------------

def losses_of(c, program, inputs):
    """Returns losses by the prefix of the parameters that they train; the first loss is reported."""
    features = features_of(inputs)
    features = features.permute(0, 3, 1, 2) if features.dim() == 4 else features
    if program.loss["kind"] == "gan":
        fake = walk(program.layers, LAYERS, c, features, "generator")
        of_real, of_fake = (walk(program.layers, LAYERS, c, x, "discriminator") for x in (features, fake))
        total = torch.mean if program.loss["reduction"] == "mean" else torch.sum
        return {"discriminator/": total(F.softplus(-of_real) + F.softplus(of_fake)), "generator/": total(F.softplus(-of_fake))}
    output = walk(program.layers, LAYERS, c, features)
    loss = reduce_loss(LOSSES[program.loss["kind"]](output, inputs["labels"].long(), program.loss), c.weights, program.loss)
    return {"": loss + program.optimizer.get("l2", 0) / 2 * sum((w * w).sum() for w in c.params.values() if w.dim() >= 2)}


def clip(parameters, o):
    """Clips their gradients in place, by c / max(norm, c); PyTorch itself divides by norm + 1e-6."""
    kind, most = o.get("clip", "none"), o.get("clip_at")
    if kind == "value":
        torch.nn.utils.clip_grad_value_(parameters, most)
    for group in {"norm": [[p] for p in parameters], "global_norm": [parameters]}.get(kind, []):
        norm = torch.nn.utils.clip_grad_norm_(group, torch.inf)
        for p in group:
            p.grad.mul_(most / norm.clamp(min=most))


class Training:
    """A model with an optimizer of torch.optim, started from a program's state. autocast: a function that returns the context in
    which the forward pass runs."""

    def __init__(self, program, state, device="cpu", autocast=contextlib.nullcontext):
        self.program, self.device, self.autocast = program, device, autocast
        values = {k: to_torch(k, v, device) for k, v in state.items()}
        self.params = {k: v.requires_grad_() for k, v in program.of_role("parameter", values).items()}
        self.stats = program.of_role("statistic", values)
        self.counters = Counters(program.optimizer, program.of_role("counter", state))
        self.averages = {k: v for k, v in values.items() if k.endswith(".ema")}
        self.optimizer, self.settings = OPTIMIZERS[program.optimizer["kind"]](list(self.params.values()), program.optimizer)
        self.slots = SLOTS[program.optimizer["kind"]]
        for name, p in self.params.items():
            kept = {theirs: values[f"{name}.{ours}"] for ours, theirs in self.slots.items() if f"{name}.{ours}" in values}
            if program.optimizer["kind"] == "rmsprop":    # unsupported() refuses one with momentum
                kept["momentum_buffer"] = torch.zeros_like(p)
            self.optimizer.state[p] = kept and {"step": torch.tensor(float(self.counters.updates())), **kept}

    def step(self, inputs, random):
        """Runs a step on arrays as the program feeds them. Returns the loss and the gradients as the optimizer gets them."""
        inputs, random = ({k: torch.from_numpy(np.ascontiguousarray(v)).to(self.device) for k, v in part.items()}
                          for part in (inputs, random))
        c = types.SimpleNamespace(params=self.params, stats=self.stats, random=random, weights=inputs.get("weights"))
        layers, gradients = {}, {}
        if self.program.activations:
            c.show = lambda name, value: layers.setdefault(name, value)
        with self.autocast():
            losses = losses_of(c, self.program, inputs)
        self.shown = self.read(layers, next(iter(losses.values())))
        for prefix, loss in losses.items():
            wanted = [k for k in self.params if k.startswith(prefix)]
            gradients.update(zip(wanted, torch.autograd.grad(loss, [self.params[k] for k in wanted], retain_graph=True)))
        for k, p in self.params.items():
            p.grad = gradients[k]
        clip(list(self.params.values()), self.program.optimizer)
        updates, rate, o = self.counters.updates(), float(inputs["learning_rate"]), self.program.optimizer
        if o["kind"] in ("adam", "adamw"):
            rate *= self.counters.adam_rate(*(1 - o[beta] ** (updates + 1) for beta in ("beta1", "beta2")))
        self.optimizer.param_groups[0].update(lr=rate, **self.settings(updates))
        self.optimizer.step()
        self.counters.advance()
        self.stats = {k: v.detach() for k, v in self.stats.items()}
        for k, average in self.averages.items():
            with torch.no_grad():
                average.sub_((average - self.params[k.removesuffix(".ema")]) * (1 - self.program.optimizer["ema"]))
        return next(iter(losses.values())).item(), {k: from_torch(k, v.grad) for k, v in self.params.items()}

    def read(self, layers, loss):
        """Returns the results of layers, and the gradients there, in the program's layout."""
        wanted = {k: v for k, v in layers.items() if v.requires_grad and any(a.name == f"{k}.grad" for a in self.program.activations)}
        found = torch.autograd.grad(loss, list(wanted.values()), retain_graph=True) if wanted else ()
        values = layers | {f"{k}.grad": g for k, g in zip(wanted, found)}
        return {a.name: channels_last_array(values[a.name]) for a in self.program.activations if a.name in values}

    def state(self):
        found = {**self.params, **self.stats, **self.averages}
        for name, p in self.params.items():
            found.update({f"{name}.{ours}": self.optimizer.state[p][theirs] for ours, theirs in self.slots.items()
                          if theirs in self.optimizer.state[p]})
        return {**{k: from_torch(k, v) for k, v in found.items()}, **self.counters.values}

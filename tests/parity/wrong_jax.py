"""Deliberate mistakes of the kind that real ports contain. Each must be outside the bounds, or the bounds show nothing.

    run_jax.py --job digits_mlp.h5 out.h5 R relu_leaks
"""
import copy
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax


def adam_epsilon_inside_root(m):
    def adam(o):
        return optax.inject_hyperparams(optax.adam, static_args=("b1", "b2"))(
            learning_rate=0.0, b1=o["beta1"], b2=o["beta2"], eps=0.0, eps_root=o["epsilon"]), lambda _: {}
    m["OPTIMIZERS"]["adam"] = adam


def adam_epsilon_not_hat(m):
    def adam(o):
        return optax.inject_hyperparams(optax.adam, static_args=("b1", "b2"))(
            learning_rate=0.0, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"]), lambda _: {}
    m["OPTIMIZERS"]["adam"] = adam


def momentum_dampened(m):
    def momentum(o):
        return optax.inject_hyperparams(lambda learning_rate: optax.chain(
            optax.ema(o["momentum"], debias=False), optax.scale_by_learning_rate(learning_rate)))(learning_rate=0.0), lambda _: {}
    m["OPTIMIZERS"]["momentum"] = momentum
    m["SLOTS"]["momentum"] = {"momentum": ("ema", 1)}


def batch_norm_bessel(m):
    """Normalises by the unbiased variance, as if it were the running one."""
    right = m["LAYERS"]["batch_norm"]

    def batch_norm(c, layer, x):
        right(c, layer, x)    # for the running statistics
        name, axes = layer["name"], tuple(range(x.ndim - 1))
        mean, variance = jnp.mean(x, axes), jnp.var(x, axes, ddof=1)
        scale = lax.rsqrt(variance + layer["epsilon"]) * c.params[name + "/gamma"]
        return (x - mean) * scale + c.params[name + "/beta"]
    m["LAYERS"]["batch_norm"] = batch_norm


def batch_norm_epsilon(m):
    """Adds epsilon to the standard deviation, not to the variance."""
    right = m["LAYERS"]["batch_norm"]

    def batch_norm(c, layer, x):
        right(c, layer, x)
        name, axes = layer["name"], tuple(range(x.ndim - 1))
        return ((x - jnp.mean(x, axes)) / (jnp.std(x, axes) + layer["epsilon"]) * c.params[name + "/gamma"]
                + c.params[name + "/beta"])
    m["LAYERS"]["batch_norm"] = batch_norm


def batch_norm_momentum(m):
    """Keras's momentum is used as PyTorch's: the running statistics move by the wrong share."""
    right = m["LAYERS"]["batch_norm"]
    m["LAYERS"]["batch_norm"] = lambda c, layer, x: right(c, {**layer, "momentum": 1 - layer["momentum"]}, x)


def batch_norm_running_biased(m):
    """The running variance of images without Bessel's correction."""
    right = m["LAYERS"]["batch_norm"]

    def batch_norm(c, layer, x):
        y = right(c, layer, x)
        name = layer["name"] + "/moving_variance"
        n = x.size // x.shape[-1]
        kept = layer["momentum"] * c.stats[name]
        c.updates[name] = kept + (c.updates[name] - kept) * ((n - 1) / n)
        return y
    m["LAYERS"]["batch_norm"] = batch_norm


def padding_low(m):
    """SAME with the odd cell on the low side, which matters if a stride or an even window leaves one."""
    right = m["LAYERS"]["conv2d"]

    def conv2d(c, layer, x):
        if layer["padding"] == "valid":
            return right(c, layer, x)
        s, k = layer["stride"] or 1, layer["kernel"]
        pads = []
        for size in x.shape[1:3]:
            total = max(0, (-(-size // s) - 1) * s + k - size)
            pads.append((total - total // 2, total // 2))
        y = lax.conv_general_dilated(x, c.params[layer["name"] + "/kernel"], (s, s), pads,
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y + c.params[layer["name"] + "/bias"] if layer["bias"] else y
    m["LAYERS"]["conv2d"] = conv2d


def convolution_flipped(m):
    """A mathematical convolution: the kernel turned by 180 degrees."""
    right = m["LAYERS"]["conv2d"]

    def conv2d(c, layer, x):
        name = layer["name"] + "/kernel"
        turned = copy.copy(c)
        turned.params = {**c.params, name: c.params[name][::-1, ::-1]}
        return right(turned, layer, x)
    m["LAYERS"]["conv2d"] = conv2d


def flatten_channels_first(m):
    m["LAYERS"]["flatten"] = lambda c, layer, x: jnp.moveaxis(x, -1, 1).reshape(x.shape[0], -1)


def avg_pool_counts_padding(m):
    def avg_pool(_, layer, x):
        return m["window"](layer, x, 0.0, lax.add) / layer["window"] ** 2
    m["LAYERS"]["avg_pool"] = avg_pool


def relu_leaks(m):
    m["LAYERS"]["relu"] = lambda c, layer, x: jax.nn.leaky_relu(x, 1e-3)


def dropout_not_scaled(m):
    def dropout(c, layer, x):
        return jnp.where(c.random[layer["name"] + "/rng_uniform"] >= np.float32(layer["rate"]), x, 0.0)
    m["LAYERS"]["dropout"] = dropout


def loss_mean_over_classes(m):
    right = m["LOSSES"]["softmax_cross_entropy"]
    m["LOSSES"]["softmax_cross_entropy"] = lambda c, logits, labels, loss: right(c, logits, labels, loss) / logits.shape[-1]


def loss_sum_over_classes(m):
    right = m["LOSSES"]["mean_squared_error"]
    m["LOSSES"]["mean_squared_error"] = lambda c, logits, labels, loss: right(c, logits, labels, loss) * logits.shape[-1]


def label_smoothing(m):
    m["LOSSES"]["softmax_cross_entropy"] = lambda _c, logits, labels, _: optax.softmax_cross_entropy(
        logits, optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 1e-4))


def products_bf16(m):
    """bf16 operands, as a TPU's default precision."""
    def dense(c, layer, x):
        y = jnp.dot(x.astype(jnp.bfloat16), c.params[layer["name"] + "/kernel"].astype(jnp.bfloat16),
                    preferred_element_type=jnp.float32)
        return y + c.params[layer["name"] + "/bias"] if layer["bias"] else y
    m["LAYERS"]["dense"] = dense


def products_tf32(m):
    """Operands rounded to 11 bits, as a GPU's TensorFloat-32."""
    def rounded(x):
        return x + lax.stop_gradient(lax.reduce_precision(x, 8, 10) - x)

    def dense(c, layer, x):
        y = rounded(x) @ rounded(c.params[layer["name"] + "/kernel"])
        return y + c.params[layer["name"] + "/bias"] if layer["bias"] else y
    m["LAYERS"]["dense"] = dense


def depthwise_channels_swapped(m):
    """Outputs ordered by multiplier, then by channel."""
    right = m["LAYERS"]["depthwise_conv2d"]

    def depthwise_conv2d(c, layer, x):
        name = layer["name"] + "/kernel"
        kernel = c.params[name]
        h, w, _, outputs = kernel.shape
        swapped = copy.copy(c)
        swapped.params = {**c.params, name: jnp.swapaxes(kernel.reshape(h, w, -1, x.shape[3]), 2, 3).reshape(h, w, 1, outputs)}
        return right(swapped, layer, x)
    m["LAYERS"]["depthwise_conv2d"] = depthwise_conv2d


def transpose_crops_wrong_side(m):
    """SAME of a transposed convolution with the odd cell cropped on the other side."""
    right = m["LAYERS"]["conv2d_transpose"]

    def conv2d_transpose(c, layer, x):
        y = right(c, {**layer, "padding": "valid", "bias": False}, x)
        s = layer["stride"]
        extra = [y.shape[i] - x.shape[i] * s for i in (1, 2)]
        if layer["padding"] == "valid" or min(extra) < 0:
            return right(c, layer, x)
        low = [e - e // 2 for e in extra]
        y = y[:, low[0]:low[0] + x.shape[1] * s, low[1]:low[1] + x.shape[2] * s]
        return y + c.params[layer["name"] + "/bias"] if layer["bias"] else y
    m["LAYERS"]["conv2d_transpose"] = conv2d_transpose


def layer_norm_unbiased(m):
    def layer_norm(c, layer, x):
        y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True, ddof=1) + layer["epsilon"])
        return y * c.params[layer["name"] + "/gamma"] + c.params[layer["name"] + "/beta"]
    m["LAYERS"]["layer_norm"] = layer_norm


def gelu_other_form(m):
    m["LAYERS"]["gelu"] = lambda _, layer, x: jax.nn.gelu(x, approximate=not layer["approximate"])


def attention_with(m, **changes):
    right = m["LAYERS"]["attention"]
    m["LAYERS"]["attention"] = lambda c, layer, x: right(c, {**layer, **changes}, x)


def attention_sees_the_future(m):
    attention_with(m, causal=False)


def attention_sees_padding(m):
    attention_with(m, masked=False)


def attention_not_scaled(m):
    """Scores without 1 / sqrt(size of a head)."""
    right = m["LAYERS"]["attention"]

    def attention(c, layer, x):
        louder, root = copy.copy(c), (x.shape[2] // layer["heads"]) ** 0.5
        louder.params = {k: v * root if k.startswith(layer["name"] + "/query/") else v for k, v in c.params.items()}
        return right(louder, layer, x)
    m["LAYERS"]["attention"] = attention


def adamw_decay_in_gradient(m):
    """Weight decay as an L2 term of the gradient: Adam divides it away."""
    def adamw(o):
        return optax.inject_hyperparams(lambda learning_rate, eps: optax.chain(
            optax.add_decayed_weights(o["weight_decay"]), optax.adam(learning_rate, o["beta1"], o["beta2"], eps)))(
                learning_rate=0.0, eps=o["epsilon"]), m["OPTIMIZERS"]["adam"](o)[1]
    m["OPTIMIZERS"]["adamw"] = adamw


def gradients_not_reduced(m):
    """Sharded: every core keeps its own gradients."""
    m["lax"] = types.SimpleNamespace(**{**vars(lax), "pmean": lambda x, _: x, "psum": lambda x, _: x})


def gradients_summed(m):
    """Sharded: the all-reduce sums instead of averaging, or the reverse."""
    m["lax"] = types.SimpleNamespace(**{**vars(lax), "pmean": lax.psum, "psum": lax.pmean})


def apply(name, module):
    """Changes the tables of adapters/engines/jax/models.py (its globals)."""
    mistakes = {k: f for k, f in globals().items()
                if isinstance(f, types.FunctionType) and f.__module__ == __name__ and k not in ("apply", "attention_with")}
    if name not in mistakes:
        raise SystemExit(f"unknown mistake '{name}'; known: {', '.join(mistakes)}")
    mistakes[name](module)

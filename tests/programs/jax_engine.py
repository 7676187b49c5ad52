"""A small engine in JAX for the subject's chair, healthy or with a program that differs from the scenario's: --variant.

    twinrun diagnose drill_mlp --set tpu.cores=1 --subject 'exec:python3 tests/programs/jax_engine.py --variant nesterov_added'

Cores are an axis of vmap. Layers, losses and update rules are written here by hand from docs/method/numerics.md and docs/reference/formulas.md, and are
optax's for the variant that somebody took these as they are.
"""
import os
import pathlib
import sys
import types

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0").strip()
sys.path.append(str(pathlib.Path(__file__).resolve().parent))

from shared import Base, arguments, first_layer, last_bias, same_pads, updates_made  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from twinrun_engine import alive, serve  # noqa: E402

jax.config.update("jax_default_matmul_precision", "highest")
CORES = "cores"
LOSSES = ("softmax_cross_entropy", "sigmoid_cross_entropy", "mean_squared_error")


class Model:
    """The forward pass of one core. Images are NHWC."""

    def __init__(self, engine, program, params, stats, fed, random, masks):
        self.e, self.program, self.p, self.stats, self.random, self.masks = engine, program, params, stats, random, masks
        self.fed, self.weights, self.moved, self.frozen = fed, fed.get("weights"), {}, first_layer(program)

    def run(self):
        values, previous = {"data": self.fed["tokens" if "tokens" in self.fed else "images"]}, "data"
        for layer in self.program.layers:
            inputs = [values[name] for name in layer.get("input") or [previous]]
            previous = layer["name"]
            y = LAYERS[layer["kind"]](self, layer, *inputs)
            mask = self.masks(previous, y.shape)
            y = y if mask is None else y * mask
            values[previous] = lax.stop_gradient(y) if self.e.has("gradient_stopped") and previous == self.frozen else y
        return values[previous]

    def across(self, x):
        """The mean over cores, where batch norm is synced."""
        synced = self.program.cores > 1 and self.program.sharding["batchnorm"] == "synced"
        return lax.pmean(x, CORES) if synced else x

    def product(self, x, w):
        order, k = self.e.order, x.shape[-1]
        if order == "reversed":
            return x[..., ::-1] @ w[::-1]
        if order == "split" and k > 1:
            return x[..., : k // 2] @ w[: k // 2] + x[..., k // 2:] @ w[k // 2:]
        if order == "tree" and k > 128:
            return self.product(x[..., : k // 2], w[: k // 2]) + self.product(x[..., k // 2:], w[k // 2:])
        return x @ w


def dense(c, layer, x):
    y = c.product(x, c.p[layer["name"] + "/kernel"])
    return y + c.p[layer["name"] + "/bias"] if layer["bias"] else y


def pads(c, layer, x, size):
    stride, convolution = layer["stride"] or layer.get("window", 1), layer["kind"] == "conv2d"
    if layer["padding"] == "valid" or (convolution and c.e.has("conv_padding_valid")):
        return [(0, 0)] * 2
    if convolution and c.e.has("conv_padding_symmetric"):
        return [(size // 2, size // 2)] * 2
    return [same_pads(n, size, stride) for n in x.shape[1:3]]


def conv2d(c, layer, x):
    w = c.p[layer["name"] + "/kernel"]
    if c.e.has("kernels_flipped"):
        w = w[::-1, ::-1]

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (layer["stride"] or 1,) * 2, pads(c, layer, x, layer["kernel"]),
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"))

    half = x.shape[3] // 2
    if c.e.order == "reversed":
        y = convolve(x[..., ::-1], w[:, :, ::-1])
    elif c.e.order in ("split", "tree") and half:
        y = convolve(x[..., :half], w[:, :, :half]) + convolve(x[..., half:], w[:, :, half:])
    else:
        y = convolve(x, w)
    return y + c.p[layer["name"] + "/bias"] if layer["bias"] else y


def window(c, layer, x, start, reducer):
    size, stride = layer["window"], layer["stride"] or layer["window"]
    return lax.reduce_window(x, start, reducer, (1, size, size, 1), (1, stride, stride, 1), [(0, 0), *pads(c, layer, x, size), (0, 0)])


def max_pool(c, layer, x):
    return average(c, layer, x) if c.e.has("avg_for_max_pool") else window(c, layer, x, -jnp.inf, lax.max)


def average(c, layer, x):
    count = layer["window"] ** 2 if c.e.has("avg_pool_counts_padding") else window(c, layer, jnp.ones_like(x), 0.0, lax.add)
    return window(c, layer, x, 0.0, lax.add) / count


def avg_pool(c, layer, x):
    return average(c, layer, x)


def global_avg_pool(c, layer, x):
    axes = tuple(range(1, x.ndim - 1))
    return x.max(axes) if c.e.has("global_max_for_avg_pool") else x.mean(axes)


def flatten(c, layer, x):
    if c.e.has("flatten_channels_first") and x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    return x.reshape(x.shape[0], -1)


def relu(c, layer, x):
    return jax.nn.relu(x)


def leaky_relu(c, layer, x):
    return jax.nn.leaky_relu(x, c.e.number("leaky_relu_slope_", layer["slope"]))


def gelu(c, layer, x):
    return jax.nn.gelu(x, approximate=(layer["approximate"] or c.e.has("gelu_tanh")) and not c.e.has("gelu_erf"))


def silu(c, layer, x):
    return jax.nn.relu(x) if c.e.has("relu_for_silu") else jax.nn.silu(x)


def sigmoid(c, layer, x):
    return jax.nn.sigmoid(x)


def tanh(c, layer, x):
    return jnp.tanh(x)


def batch_norm(c, layer, x):
    e, name, axes = c.e, layer["name"], tuple(range(x.ndim - 1))
    mean = c.across(x.mean(axes))
    centre = x - mean
    variance = c.across((centre * centre).mean(axes))
    cores = c.program.cores if c.program.sharding["batchnorm"] == "synced" else 1
    n = x.size // x.shape[-1] * cores
    unbiased = (x.ndim == 4 or e.has("batch_norm_running_variance_unbiased")) and not e.has("batch_norm_running_variance_biased")
    kept = e.number("batch_norm_momentum_", layer["momentum"])
    kept = 1 - kept if e.has("batch_norm_momentum_complement") else kept
    old_mean, old_variance = c.stats[name + "/moving_mean"], c.stats[name + "/moving_variance"]
    if e.has("batch_norm_in_eval_mode"):
        centre, variance = x - old_mean, old_variance
    else:
        c.moved[name + "/moving_mean"] = kept * old_mean + (1 - kept) * mean
        c.moved[name + "/moving_variance"] = kept * old_variance + (1 - kept) * (variance * (n / max(1, n - 1)) if unbiased else variance)
    scale = c.p[name + "/gamma"] * lax.rsqrt(variance + e.number("batch_norm_epsilon_", layer["epsilon"]))
    return centre * scale + c.p[name + "/beta"]


def layer_norm(c, layer, x):
    centre = x - x.mean(-1, keepdims=True)
    variance = (centre * centre).mean(-1, keepdims=True)
    if c.e.has("layer_norm_variance_unbiased"):
        variance = variance * (x.shape[-1] / (x.shape[-1] - 1))
    y = centre * lax.rsqrt(variance + c.e.number("layer_norm_epsilon_", layer["epsilon"]))
    return y * c.p[layer["name"] + "/gamma"] + c.p[layer["name"] + "/beta"]


def group_norm(c, layer, x):
    groups = x.shape[3] // layer["groups"] if c.e.has("group_norm_group_size_for_groups") else layer["groups"]
    grouped = x.reshape(*x.shape[:3], groups, -1)
    centre = grouped - grouped.mean((1, 2, 4), keepdims=True)
    variance = (centre * centre).mean((1, 2, 4), keepdims=True)
    y = (centre * lax.rsqrt(variance + c.e.number("group_norm_epsilon_", layer["epsilon"]))).reshape(x.shape)
    return y * c.p[layer["name"] + "/gamma"] + c.p[layer["name"] + "/beta"]


def dropout(c, layer, x):
    rate = 1 - layer["rate"] if c.e.has("dropout_keep_for_rate") else layer["rate"]
    kept = jnp.where(c.random[layer["name"] + "/rng_uniform"] >= np.float32(rate), x, 0.0)
    return kept if c.e.has("dropout_not_scaled") else kept * np.float32(1 / (1 - rate))


def embedding(c, layer, x):
    y = c.p[layer["name"] + "/embeddings"][x]
    return y * np.float32(layer["units"] ** 0.5) if c.e.has("embedding_times_root_of_units") else y


def position_embedding(c, layer, x):
    return x if c.e.has("position_embedding_missing") else x + c.p[layer["name"] + "/embeddings"]


def attention(c, layer, x):
    (batch, tokens, units), heads, e = x.shape, layer["heads"], c.e
    size = units // heads

    def project(which, y):
        y = c.product(y, c.p[f"{layer['name']}/{which}/kernel"])
        return y + c.p[f"{layer['name']}/{which}/bias"] if layer["bias"] else y

    def split(y):
        if e.has("heads_interleaved"):
            return y.reshape(batch, tokens, size, heads).transpose(0, 3, 1, 2)
        return y.reshape(batch, tokens, heads, size).transpose(0, 2, 1, 3)

    q, k, v = (split(project(which, x)) for which in ("query", "key", "value"))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    scores = scores if e.has("attention_unscaled") else scores / np.float32(size ** 0.5)
    if layer["causal"] and not e.has("causal_mask_missing"):
        scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -1e9)
    if layer["masked"] and not e.has("padding_mask_missing"):
        scores = jnp.where(c.weights[:, None, None, :] > 0, scores, -1e9)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)
    mixed = mixed.transpose(0, 2, 3, 1) if e.has("heads_interleaved") else mixed.transpose(0, 2, 1, 3)
    return project("output", mixed.reshape(batch, tokens, units))


def masked_mean(c, layer, x):
    return (x * c.weights[..., None]).sum(1) / c.weights.sum(1, keepdims=True)


def add(c, layer, *xs):
    return sum(xs[1:], xs[0])


LAYERS = {f.__name__: f for f in (
    dense, conv2d, max_pool, avg_pool, global_avg_pool, flatten, relu, leaky_relu, gelu, silu, sigmoid, tanh, batch_norm, layer_norm,
    group_norm, dropout, embedding, position_embedding, attention, masked_mean, add)}


def loss_of(c, logits, labels):
    e, loss, classes = c.e, c.program.loss, logits.shape[-1]
    smoothing = 0 if e.has("label_smoothing_missing") else e.number("label_smoothing_", loss.get("smoothing", 0))
    onehot = jax.nn.one_hot(labels, classes)
    target = (onehot * (1 - smoothing) + (1 - onehot) * (smoothing / (classes - 1)) if e.has("label_smoothing_on_the_others")
              else onehot * (1 - smoothing) + smoothing / classes)
    if loss["kind"] == "softmax_cross_entropy":
        logits = jax.nn.softmax(logits, -1) if e.has("softmax_twice") else logits
        per_item = -(target * jax.nn.log_softmax(logits, -1)).sum(-1)
        per_item = per_item / classes if e.has("loss_mean_over_classes") else per_item
    else:
        if loss["kind"] == "sigmoid_cross_entropy":
            per_class = jnp.maximum(logits, 0) + jnp.log1p(jnp.exp(-jnp.abs(logits))) - logits * target
        else:
            per_class = (logits - target) ** 2 * (0.5 if e.has("squared_error_halved") else 1)
        per_item = per_class.sum(-1) if e.has("loss_summed_over_classes") else per_class.mean(-1)
    if e.has("label_zero_ignored"):
        counted = (labels != 0).astype(jnp.float32)
        return (per_item * counted).sum() / jnp.maximum(counted.sum(), 1)
    mean = (loss["reduction"] == "mean" and not e.has("loss_summed")) or e.has("loss_averaged")
    if loss.get("weights", "none") != "none" and not e.has("loss_weights_ignored"):
        w = c.weights if per_item.ndim == 2 else c.weights.sum(1)
        total, weight = (w * per_item).sum(), w.sum()
        if c.program.cores > 1 and c.program.sharding["token_mean"] == "global":
            weight = lax.pmean(weight, CORES)
        return total / weight if mean else total
    return per_item.mean() if mean else per_item.sum()


def l2_of(c):
    l2 = c.program.optimizer.get("l2", 0) * (2 if c.e.has("l2_doubled") else 1)
    if l2 == 0 or c.e.has("l2_missing"):
        return 0.0
    return l2 / 2 * sum((w * w).sum() for w in c.p.values() if w.ndim >= 2 or c.e.has("l2_on_all_parameters"))


def clipped(e, program, gradients):
    kind, most = program.optimizer.get("clip", "none"), program.optimizer.get("clip_at", 1.0)
    kind = "none" if e.has("clip_missing") else next((k for k in ("value", "norm", "global_norm") if e.has(f"clip_by_{k}")), kind)
    if kind == "none":
        return gradients
    if kind == "value":
        return {k: jnp.clip(g, -most, most) for k, g in gradients.items()}
    squares = {k: (g * g).sum() for k, g in gradients.items()}
    if kind == "global_norm":
        squares = dict.fromkeys(squares, sum(squares.values()))
    if e.has("clip_as_pytorch"):
        return {k: g * jnp.minimum(most / (jnp.sqrt(squares[k]) + 1e-6), 1.0) for k, g in gradients.items()}
    return {k: g * (most / jnp.maximum(jnp.sqrt(squares[k]), most)) for k, g in gradients.items()}


# ---- update rules: function(engine, settings, w, g, slots, now) -> (w', slots'); now: rate, first, second (1 - beta^t), largest ---------

def sgd(e, o, w, g, s, now):
    return w - now.rate * g, {}


def momentum(e, o, w, g, s, now):
    m = 1 - o["momentum"] if e.has("momentum_complement") else e.number("momentum_", o["momentum"])
    added = g * (1 - m) if e.has("momentum_dampened") else now.rate * g if e.has("momentum_has_the_rate") else g
    a = m * s["momentum"] + added
    step = added + m * a if (o["nesterov"] or e.has("nesterov_added")) and not e.has("nesterov_missing") else a
    return w - (step if e.has("momentum_has_the_rate") else now.rate * step), {"momentum": a}


def adam(e, o, w, g, s, now):
    beta1, beta2 = e.number("adam_beta1_", o["beta1"]), e.number("adam_beta2_", o["beta2"])
    epsilon, decay = e.number("adam_epsilon_", o["epsilon"]), o.get("weight_decay", 0)
    if e.has("weight_decay_missing") or (e.has("weight_decay_on_kernels_only") and w.ndim < 2):
        decay = 0
    if decay and e.has("weight_decay_coupled"):
        g = g + decay * w
    elif decay:
        w = w - w * decay if e.has("weight_decay_not_times_rate") else w - (w * decay) * now.rate
    m, v = s["adam_m"] + (g - s["adam_m"]) * (1 - beta1), s["adam_v"] + (g * g - s["adam_v"]) * (1 - beta2)
    below, after = v, {"adam_m": m, "adam_v": v}
    if e.has("amsgrad"):
        below = after["largest"] = jnp.maximum(s.get("largest", s["adam_v"]), v)
    if e.has("adam_epsilon_after_correction"):
        step = now.rate * (m / now.first) / (jnp.sqrt(below / now.second) + epsilon)
    elif e.has("adam_epsilon_inside_root"):
        step = m * (now.rate * jnp.sqrt(now.second) / now.first) * lax.rsqrt(below + epsilon)
    else:
        step = m * (now.rate * jnp.sqrt(now.second) / now.first) / (jnp.sqrt(below) + epsilon)
    return w - step, after


def adamax(e, o, w, g, s, now):
    m = o["beta1"] * s["adamax_m"] + (1 - o["beta1"]) * g
    before = o["epsilon"] if e.has("adamax_epsilon_before_maximum") else 0
    v = jnp.maximum(o["beta2"] * s["adamax_v"], jnp.abs(g) + before)
    return w - m / (v + (0 if before else o["epsilon"])) * (now.rate / now.first), {"adamax_m": m, "adamax_v": v}


def adagrad(e, o, w, g, s, now):
    a = jnp.where(now.starts, 0.0, s["accumulator"]) if e.has("adagrad_starts_at_zero") else s["accumulator"]
    a = a + g * g
    below = jnp.sqrt(a + o["epsilon"]) if e.has("adagrad_epsilon_inside_root") else jnp.sqrt(a) + o["epsilon"]
    return w - now.rate * g / below, {"accumulator": a}


def adadelta(e, o, w, g, s, now):
    rho, epsilon = e.number("adadelta_rho_", o["rho"]), o["epsilon"]
    a = rho * s["accum"] + (1 - rho) * g * g
    if e.has("adadelta_epsilon_outside_roots"):
        u = (jnp.sqrt(s["accum_update"]) + epsilon) / (jnp.sqrt(a) + epsilon) * g
    else:
        u = jnp.sqrt(s["accum_update"] + epsilon) / jnp.sqrt(a + epsilon) * g
    return w - now.rate * u, {"accum": a, "accum_update": rho * s["accum_update"] + (1 - rho) * u * u}


def rmsprop(e, o, w, g, s, now):
    rho, epsilon = e.number("rmsprop_rho_", o["rho"]), o["epsilon"]
    after = {"rms": rho * s["rms"] + (1 - rho) * g * g}
    below = after["rms"]
    if o["centered"]:
        after["mg"] = rho * s["mg"] + (1 - rho) * g
        below = below if e.has("rmsprop_not_centered") else below - after["mg"] ** 2
    root = jnp.sqrt(below) + epsilon if e.has("rmsprop_epsilon_outside_root") else jnp.sqrt(below + epsilon)
    after["momentum"] = o["momentum"] * s["momentum"] + now.rate * g / root
    return w - after["momentum"], after


def lamb(e, o, w, g, s, now):
    m, v = o["beta1"] * s["lamb_m"] + (1 - o["beta1"]) * g, o["beta2"] * s["lamb_v"] + (1 - o["beta2"]) * g * g
    u = (m / now.first) / (jnp.sqrt(v / now.second) + e.number("lamb_epsilon_", o["epsilon"])) + o["weight_decay"] * w
    wn, un = jnp.sqrt((w * w).sum()), jnp.sqrt((u * u).sum())
    trust = 1.0 if e.has("lamb_trust_ratio_missing") else jnp.where((wn > 0) & (un > 0), wn / un, 1.0)
    return w - u * (trust * now.rate), {"lamb_m": m, "lamb_v": v}


RULES = {"sgd": sgd, "momentum": momentum, "adam": adam, "adamw": adam, "adamax": adamax, "adagrad": adagrad, "adadelta": adadelta,
         "rmsprop": rmsprop, "lamb": lamb}


def by_optax(o, w, g, s, now):
    """optax.adamw, or optax.adam, as it is."""
    import optax
    more = {"weight_decay": o["weight_decay"]} if o["kind"] == "adamw" else {}
    rule = {"adam": optax.adam, "adamw": optax.adamw}[o["kind"]](now.rate, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"], **more)
    state = rule.init(w)
    moments = state[0]._replace(count=now.count, mu=s["adam_m"], nu=s["adam_v"])
    change, state = rule.update(g, (moments, *state[1:]), w)
    return optax.apply_updates(w, change), {"adam_m": state[0].mu, "adam_v": state[0].nu}


class Engine(Base):
    def __init__(self, chosen):
        super().__init__("jax", chosen)

    def prepare(self, program):
        self.refuse(program, LAYERS, LOSSES, RULES)

    def over_cores(self, program, function, *arguments):
        """function of what one core has, for all of them; the last argument is the same on all."""
        if program.cores == 1:
            found = function(*jax.tree.map(lambda x: x[0], arguments[:-1]), arguments[-1])
            return jax.tree.map(lambda x: jnp.asarray(x)[None], found)
        return jax.vmap(function, (*(0,) * (len(arguments) - 1), None), axis_name=CORES)(*arguments)

    def step(self, program, step, state, inputs, random):
        if state is not None:
            if program.own is None:
                alive("compiling")
                program.own = types.SimpleNamespace(compiled={})
            rows = self.rows(program, state, program.state)
            program.own.state, program.own.hidden = {k: jnp.asarray(v) for k, v in rows.items()}, {}
        own = program.own
        rate = self.rate(program, step, inputs)
        fed, random = self.feed(program, step, inputs, random)
        before = own.state
        # A step with a fault in its forward pass is compiled by itself.
        compute = self.compiled(program, f"gradients{self.masked_at(step)}",
                                lambda: lambda *a: self.over_cores(program, self.gradients(program, step), *a))
        losses, parts, moved = compute(before, fed, random, 0)
        if self.on_parts:
            parts = self.on_parts(program, step, {k: np.array(v) for k, v in parts.items()})
        reduce = self.compiled(program, "reduce", lambda: lambda *a: self.over_cores(program, self.reduced(program), *a))
        gradients, sums = reduce(before, parts, 0)
        every = program.scenario["train"].get("accumulate", 1)
        applies = every == 1 or float(np.asarray(before["accumulate/step"]).flat[0]) + 1 >= every
        if self.on_gradients:
            gradients = self.on_gradients(program, step, {k: np.array(v) for k, v in gradients.items()})
        after = {**before, **sums, **moved}
        if applies:
            update = self.compiled(program, "update", lambda: lambda *a: self.over_cores(program, self.update(program), *a))
            p1 = next((v for k, v in before.items() if k.endswith("/beta1_power")), None)
            made = 0 if p1 is None else updates_made(program.optimizer["beta1"], np.asarray(p1).flat[0])
            settings = {"rate": rate, "starts": np.bool_(step == 0), "count": np.int32(made)}
            new = update({**before, **own.hidden}, gradients, settings)
            own.hidden = {k: v for k, v in new.items() if k.endswith(".largest")}
            after.update({k: v for k, v in new.items() if k not in own.hidden})
        if self.on_state:
            after = self.on_state(program, step, {k: np.array(v) for k, v in before.items()}, {k: np.array(v) for k, v in after.items()})
        own.state = {k: jnp.asarray(v) for k, v in after.items()}
        one = (lambda v: np.asarray(v)[0]) if program.cores == 1 else np.asarray
        return ({k: one(v) for k, v in after.items()},
                {"loss": one(losses), **{f"{k}.grad": one(g) for k, g in gradients.items()}})

    @staticmethod
    def compiled(program, name, make):
        if name not in program.own.compiled:
            program.own.compiled[name] = jax.jit(make())
        return program.own.compiled[name]

    def gradients(self, program, step):
        def function(state, fed, random, _):
            def forward(params):
                c = Model(self, program, params, program.of_role("statistic", state), fed, random, lambda *a: self.mask(step, *a))
                loss = loss_of(c, c.run(), fed["labels"]) + l2_of(c)
                scale = 1 / program.cores if program.sharding["reduction"] == "mean" else 1
                return loss * scale, (loss, c.moved)

            found, (loss, moved) = jax.grad(forward, has_aux=True)(program.of_role("parameter", state))
            if self.has("layer_frozen"):
                found.update({k: jnp.zeros_like(g) for k, g in found.items() if k.split("/")[0] == first_layer(program)})
            return loss, found, moved
        return function

    def reduced(self, program):
        def function(state, parts, _):
            early = program.sharding.get("clipping") == "before_all_reduce" or self.has("clip_before_reduction")
            sums, found = {}, parts
            if program.cores > 1:
                found = clipped(self, program, found) if early else found
                found = {k: lax.psum(g, CORES) for k, g in found.items()}
            train = program.scenario["train"]
            if train.get("accumulate", 1) > 1:
                every, count = train["accumulate"], state["accumulate/step"] + 1
                mean, done = train["accumulate_reduction"] == "mean" and not self.has("accumulation_summed"), count >= every
                sums["accumulate/step"] = jnp.where(done, 0, count).astype(jnp.float32)
                for k, g in found.items():
                    total = state[f"{k}.gradient_sum"] + g
                    sums[f"{k}.gradient_sum"] = jnp.where(done, 0.0, total)
                    found = {**found, k: total / every if mean else total}
            return (clipped(self, program, found) if program.cores == 1 or not early else found), sums
        return function

    def update(self, program):
        o = program.optimizer

        def powers(state, settings):
            betas = [np.float32(o.get(b, 0)) for b in ("beta1", "beta2")]
            found = [next((v for k, v in state.items() if k.endswith(f"/{name}")), jnp.float32(0)) for name in ("beta1_power", "beta2_power")]
            t = settings["count"] + 1
            found = [jnp.float32(own) ** t if own != o.get(b) else p for b, own, p in zip(
                ("beta1", "beta2"), (self.number("adam_beta1_", o.get("beta1")), self.number("adam_beta2_", o.get("beta2"))), found)]
            if self.has("bias_correction_one_step_ahead"):
                found = [p * b for p, b in zip(found, betas)]
            if self.has("bias_correction_always_of_the_first_step"):
                found = betas
            first, second = (1 - p for p in found)
            if self.has("no_bias_correction"):
                return 1.0, 1.0
            return first, 1.0 if self.has("only_first_bias_corrected") else second

        def function(state, gradients, settings):
            now = types.SimpleNamespace(**settings)
            now.first, now.second = powers(state, settings)
            out = [k for k in gradients if k.split("/")[0] == first_layer(program)] if self.has("layer_left_out_of_optimizer") else (
                [last_bias(program)] if self.has("bias_left_out_of_optimizer") else [])
            after = {}
            for name, g in gradients.items():
                if name in out:
                    continue
                slots = {k.rsplit(".", 1)[1]: v for k, v in state.items() if k.startswith(name + ".")}
                w = state[name]
                w, new = by_optax(o, w, g, slots, now) if self.has("optax") else RULES[o["kind"]](self, o, w, g, slots, now)
                after.update({name: w, **{f"{name}.{k}": v for k, v in new.items()}})
                if f"{name}.ema" in state:
                    kept = self.number("ema_decay_", o["ema"])
                    after[f"{name}.ema"] = state[f"{name}.ema"] - (state[f"{name}.ema"] - w) * np.float32(1 - kept)
            for k, v in program.of_role("counter", {v.name: state.get(v.name) for v in program.state}).items():
                if not k.startswith("accumulate"):
                    after[k] = v * np.float32(o["beta1" if k.endswith("beta1_power") else "beta2"])
            return after
        return function


if __name__ == "__main__":
    options = arguments(__doc__.splitlines()[0])
    serve(Engine(options), options.folder)

"""A dumped scenario in JAX: layers in jax.numpy and lax, optimizers of optax, all of it float32.

    build/parity/venv-jax/bin/python tests/parity/models_jax.py --job digits_mlp.h5 jax.h5 R -    # corner R, no mistake

A new layer is an entry of LAYERS, an optimizer one of OPTIMIZERS. Corner S trains on as many host devices as the scenario
has cores, gradients summed by psum. The last word may name a deliberate mistake (wrong_jax.py): the suite must see it.
"""
import os

from dump_file import Recorder, run_jobs, stride_of, walk, write_result

os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax import lax  # noqa: E402

jax.config.update("jax_default_matmul_precision", "highest")
dump = None    # of the job at work


# ---- layers: function(context, layer, x..) --------------------------------------------------------------------------------

def with_bias(c, layer, y):
    return y + c.params[layer["name"] + "/bias"] if layer["bias"] else y


def dense(c, layer, x):
    return with_bias(c, layer, x @ c.params[layer["name"] + "/kernel"])


def convolve(c, layer, x, groups):
    strides, dilations = (stride_of(layer),) * 2, (layer.get("dilation", 1),) * 2
    y = lax.conv_general_dilated(x, c.params[layer["name"] + "/kernel"], strides, layer["padding"].upper(),
                                 rhs_dilation=dilations, dimension_numbers=("NHWC", "HWIO", "NHWC"),
                                 feature_group_count=groups)
    return with_bias(c, layer, y)


def conv2d(c, layer, x):
    return convolve(c, layer, x, 1)


def depthwise_conv2d(c, layer, x):
    return convolve(c, layer, x, x.shape[3])


def conv2d_transpose(c, layer, x):
    y = lax.conv_transpose(x, c.params[layer["name"] + "/kernel"], (stride_of(layer),) * 2, layer["padding"].upper(),
                           dimension_numbers=("NHWC", "HWIO", "NHWC"), transpose_kernel=True)
    return with_bias(c, layer, y)


def window(layer, x, start, reducer):
    w, s = layer["window"], stride_of(layer)
    return lax.reduce_window(x, start, reducer, (1, w, w, 1), (1, s, s, 1), layer["padding"].upper())


def max_pool(_, layer, x):
    return window(layer, x, -jnp.inf, lax.max)


def avg_pool(_, layer, x):
    return window(layer, x, 0.0, lax.add) / window(layer, jnp.ones_like(x), 0.0, lax.add)


def global_max_pool(_c, _layer, x):
    return x.max(tuple(range(1, x.ndim - 1)))


def global_avg_pool(_c, _layer, x):
    return x.mean(tuple(range(1, x.ndim - 1)))


def flatten(_c, _layer, x):
    return x.reshape(x.shape[0], -1)


def reshape(_, layer, x):
    return x.reshape(x.shape[0], *layer["shape"])


def add(_c, _layer, *xs):
    return sum(xs[1:], xs[0])


def concat(_c, _layer, *xs):
    return jnp.concatenate(xs, -1)


def l2_normalize(_c, _layer, x):
    return x * lax.rsqrt(jnp.maximum(jnp.sum(x * x, -1, keepdims=True), 1e-12))


def relu(_c, _layer, x):
    return jax.nn.relu(x)


def leaky_relu(_, layer, x):
    return jax.nn.leaky_relu(x, layer["slope"])


def gelu(_, layer, x):
    return jax.nn.gelu(x, approximate=layer["approximate"])


def silu(_c, _layer, x):
    return jax.nn.silu(x)


def sigmoid(_c, _layer, x):
    return jax.nn.sigmoid(x)


def tanh(_c, _layer, x):
    return jnp.tanh(x)


def batch_norm(c, layer, x):
    name, axes = layer["name"], tuple(range(x.ndim - 1))
    mean = c.across(jnp.mean(x, axes))
    centred = x - mean
    variance = c.across(jnp.mean(centred * centred, axes))
    n = x.size // x.shape[-1] * c.synced_cores
    unbiased = variance * (n / max(1, n - 1)) if x.ndim == 4 else variance
    for part, batch in (("moving_mean", mean), ("moving_variance", unbiased)):
        c.updates[f"{name}/{part}"] = layer["momentum"] * c.stats[f"{name}/{part}"] + (1 - layer["momentum"]) * batch
    scale = lax.rsqrt(variance + layer["epsilon"]) * c.params[name + "/gamma"]
    return centred * scale + c.params[name + "/beta"]


def layer_norm(c, layer, x):
    return jax.nn.standardize(x, -1, epsilon=layer["epsilon"]) * c.params[layer["name"] + "/gamma"] + c.params[
        layer["name"] + "/beta"]


def group_norm(c, layer, x):
    grouped = x.reshape(*x.shape[:3], layer["groups"], -1)
    y = jax.nn.standardize(grouped, (1, 2, 4), epsilon=layer["epsilon"]).reshape(x.shape)
    return y * c.params[layer["name"] + "/gamma"] + c.params[layer["name"] + "/beta"]


def minibatch_stddev(c, layer, x):
    everyone = c.gather(x)
    size = min(layer["group"], len(everyone))
    deviation = jnp.sqrt(jnp.var(everyone.reshape(size, -1, *x.shape[1:]), 0) + 1e-8)
    channel = c.own(jnp.tile(deviation.mean((1, 2, 3)), size))
    return jnp.concatenate([x, jnp.broadcast_to(channel[:, None, None, None], (*x.shape[:3], 1))], -1)


def embedding(c, layer, x):
    return c.params[layer["name"] + "/embeddings"][x]


def position_embedding(c, layer, x):
    return x + c.params[layer["name"] + "/embeddings"]


def attention(c, layer, x):
    batch, tokens, units = x.shape

    def project(which, y):
        return dense(c, {**layer, "name": f"{layer['name']}/{which}"}, y)

    q, k, v = (project(which, x).reshape(batch, tokens, layer["heads"], -1) for which in ("query", "key", "value"))
    mask = jnp.broadcast_to(c.weights[:, None, None, :] > 0, (batch, 1, tokens, tokens)) if layer["masked"] else None
    mixed = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=layer["causal"])
    return project("output", mixed.reshape(batch, tokens, units))


def masked_mean(c, _layer, x):
    return (x * c.weights[..., None]).sum(1) / c.weights.sum(1, keepdims=True)


def noise(c, layer, _):
    return c.random[layer["name"] + "/rng_uniform"] * 2 - 1


def dropout(c, layer, x):
    keep = c.random[layer["name"] + "/rng_uniform"] >= np.float32(layer["rate"])
    return jnp.where(keep, x / (1 - layer["rate"]), 0.0)


LAYERS = {f.__name__: f for f in (
    dense, conv2d, depthwise_conv2d, conv2d_transpose, max_pool, avg_pool, global_max_pool, global_avg_pool, flatten, reshape,
    add, concat, l2_normalize, relu, leaky_relu, gelu, silu, sigmoid, tanh, batch_norm, layer_norm, group_norm,
    minibatch_stddev, embedding, position_embedding, attention, masked_mean, noise, dropout)}


# ---- losses: function(context, logits, labels, settings) -> one number per sample or token ---------------------------------

def targets(logits, labels, loss):
    return optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), loss.get("smoothing", 0))


def softmax_cross_entropy(_, logits, labels, loss):
    if loss.get("smoothing", 0) > 0:
        return optax.softmax_cross_entropy(logits, targets(logits, labels, loss))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def sigmoid_cross_entropy(_, logits, labels, loss):
    return optax.sigmoid_binary_cross_entropy(logits, targets(logits, labels, loss)).mean(-1)


def mean_squared_error(_, logits, labels, loss):
    return jnp.mean((logits - targets(logits, labels, loss)) ** 2, -1)


def triplet(c, x, labels, loss):
    """By differences of embeddings, not by products; `hard`: Hermans et al. 2017."""
    x, labels = c.gather(x), c.gather(labels)
    distance = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, -1) + 1e-12)
    other = labels[:, None] != labels[None]
    same = ~other & ~jnp.eye(len(x), dtype=bool)
    if loss["mining"] == "all":
        valid = same[:, :, None] & other[:, None]
        hinge = jax.nn.relu(distance[:, :, None] - distance[:, None] + loss["margin"])
        return jnp.sum(hinge, (1, 2), where=valid) / jnp.maximum(valid.sum((1, 2)), 1)
    farthest, nearest = jnp.max(jnp.where(same, distance, 0.0), 1), jnp.min(jnp.where(other, distance, 1e9), 1)
    return jax.nn.relu(farthest - nearest + loss["margin"])


def contrastive(c, x, labels, loss):
    """Supervised contrastive, the mean over positives outside the logarithm (Khosla et al. 2020, eq. 2)."""
    x, labels = c.gather(x), c.gather(labels)
    self = jnp.eye(len(x), dtype=bool)
    log_share = jax.nn.log_softmax(jnp.where(self, -1e9, x @ x.T / loss["temperature"]), -1)
    same = (labels[:, None] == labels[None]) & ~self
    return -jnp.where(same, log_share, 0.0).sum(1) / jnp.maximum(same.sum(1), 1)


LOSSES = {f.__name__: f for f in (softmax_cross_entropy, sigmoid_cross_entropy, mean_squared_error, triplet, contrastive)}


def reduce_loss(c, per_item, loss):
    if loss.get("weights", "none") == "none":
        return (jnp.mean if loss["reduction"] == "mean" else jnp.sum)(per_item)
    weights, mean = c.weights if per_item.ndim == 2 else c.weights.sum(1), c.token_mean
    if len(weights) != len(per_item):    # a loss over the samples of all cores
        weights, mean = c.gather(weights), lambda x: x
    total = jnp.sum(weights * per_item)
    return total / mean(jnp.sum(weights)) if loss["reduction"] == "mean" else total


# ---- optimizers: function(settings) -> (optax transformation, its settings at a step) -------------------------------------

def injected(make, **settings):
    """An optax optimizer whose learning rate and epsilon are set at every step; all else is fixed."""
    return optax.inject_hyperparams(make, static_args=tuple(k for k in settings if k != "eps"))(learning_rate=0.0, **settings)


def sgd(_):
    return injected(optax.sgd), lambda _: {}


def momentum(o):
    return injected(optax.sgd, momentum=o["momentum"], nesterov=o["nesterov"]), lambda _: {}


def adam(o):
    # optax divides by sqrt(v / (1 - b2^t)) + eps; TensorFlow's epsilon hat is eps * sqrt(1 - b2^t).
    return (injected(optax.adam, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"]),
            lambda step: {"eps": o["epsilon"] / np.sqrt(1 - o["beta2"] ** (step + 1))})


def adamw(o):
    return (injected(optax.adamw, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"], weight_decay=o["weight_decay"]),
            lambda step: {"eps": o["epsilon"] / np.sqrt(1 - o["beta2"] ** (step + 1))})


def adagrad(o):
    # optax has epsilon inside the root, TensorFlow's second kernel beside it: the same only for 0.
    return injected(optax.adagrad, initial_accumulator_value=o["initial_accumulator"], eps=o["epsilon"]), lambda _: {}


def adadelta(o):
    return injected(optax.adadelta, rho=o["rho"], eps=o["epsilon"]), lambda _: {}


def rmsprop(o):
    return injected(optax.rmsprop, decay=o["rho"], eps=o["epsilon"], initial_scale=1.0,
                    eps_in_sqrt=True, centered=o["centered"], momentum=o["momentum"] or None), lambda _: {}


def adamax(o):
    # optax adds epsilon to |g| before the maximum, TensorFlow to the maximum.
    return injected(optax.adamax, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"]), lambda _: {}


def kernels_only(params):
    return {k: v.ndim >= 2 for k, v in params.items()}


def lars(o):
    # optax takes the norm of g + wd w, the TPU models |g| + wd |w|: the same only without weight decay.
    return injected(optax.lars, weight_decay=o["weight_decay"], weight_decay_mask=kernels_only, trust_coefficient=o["trust_coefficient"],
                    eps=o["epsilon"], trust_ratio_mask=kernels_only, momentum=o["momentum"], nesterov=o["nesterov"]), lambda _: {}


def lamb(o):
    return injected(optax.lamb, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"], weight_decay=o["weight_decay"]), lambda _: {}


def adafactor(o):
    return injected(optax.adafactor, min_dim_size_to_factor=1, multiply_by_parameter_scale=o["parameter_scale"],
                    clipping_threshold=o["clipping_threshold"], momentum=o["beta1"] or None), lambda _: {}


OPTIMIZERS = {f.__name__: f for f in (sgd, momentum, adam, adamw, adagrad, adadelta, rmsprop, adamax, lars, lamb, adafactor)}


def clipped(gradients):
    """By the optimizer's settings `clip` and `clip_at`."""
    kind, most = dump.optimizer.get("clip", "none"), dump.optimizer.get("clip_at")
    if kind == "none":
        return gradients
    clip = optax.clip(most) if kind == "value" else optax.clip_by_global_norm(most)
    if kind == "norm":
        return {k: clip.update({k: g}, clip.init({}))[0][k] for k, g in gradients.items()}
    return clip.update(gradients, clip.init({}))[0]


# ---- training -------------------------------------------------------------------------------------------------------------

class Alone:
    """What a whole batch on one device sees across cores: itself."""
    synced_cores = 1

    def __init__(self, params, stats, inputs, random):
        self.framework, self.params, self.stats, self.random, self.updates = "jax", params, stats, random, {}
        self.weights = inputs.get("weights")

    def across(self, x):
        return x

    gather = own = token_mean = across


class OneCore(Alone):
    """One of several: what the scenario's [tpu] says that it sees."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.group = dump.tpu.get("batchnorm_group") or dump.cores
        self.synced_cores = self.group if dump.tpu["batchnorm"] == "synced" else 1

    def across(self, x):
        if self.synced_cores == 1:
            return x
        return lax.pmean(x, "cores", axis_index_groups=np.arange(dump.cores).reshape(-1, self.group).tolist())

    def gather(self, x):
        return lax.all_gather(x, "cores", tiled=True) if dump.tpu.get("batchwise") == "gathered" else x

    def own(self, x):
        n = len(x) // dump.cores
        if dump.tpu.get("batchwise") != "gathered":
            return x
        return lax.dynamic_slice_in_dim(x, lax.axis_index("cores") * n, n)

    def token_mean(self, weight):
        return lax.pmean(weight, "cores") if dump.tpu.get("token_mean") == "global" else weight


def gan(c, inputs):
    """The discriminator's loss and the generator's (Goodfellow et al. 2014, the non-saturating form), by part."""
    fake = walk(dump.layers, LAYERS, c, inputs["features"], "generator")
    of_real, of_fake = (walk(dump.layers, LAYERS, c, x, "discriminator") for x in (inputs["features"], fake))
    total = jnp.mean if dump.loss["reduction"] == "mean" else jnp.sum
    return {"discriminator/": total(jax.nn.softplus(-of_real) + jax.nn.softplus(of_fake)),
            "generator/": total(jax.nn.softplus(-of_fake))}


def losses_of(c, inputs):
    """Losses by the prefix of the parameters that descend them; the first one is reported."""
    if dump.loss["kind"] == "gan":
        return gan(c, inputs)
    output = walk(dump.layers, LAYERS, c, inputs["features"])
    loss = reduce_loss(c, LOSSES[dump.loss["kind"]](c, output, inputs["labels"], dump.loss), dump.loss)
    return {"": loss + dump.optimizer.get("l2", 0) / 2 * sum(jnp.sum(w * w) for w in c.params.values() if w.ndim >= 2)}


def compute(params, stats, inputs, random, seen):
    """(loss, statistics, gradients) of one core."""
    def forward(params):
        c = seen(params, stats, inputs, random)
        losses = losses_of(c, inputs)
        return losses, {**stats, **c.updates}

    losses, pull, stats = jax.vjp(forward, params, has_aux=True)
    gradients = {}
    for prefix in losses:
        (g,) = pull({k: jnp.float32(k == prefix) for k in losses})
        gradients.update({k: v for k, v in g.items() if k.startswith(prefix)})
    return next(iter(losses.values())), stats, gradients


def whole_step(params, stats, inputs, random):
    loss, stats, gradients = compute(params, stats, inputs, random, Alone)
    return loss[None], stats, clipped(gradients)


def sharded_step():
    """One device per core: its rows of the batch, statistics of its own, gradients reduced over all."""
    mesh = jax.make_mesh((dump.cores,), ("cores",), axis_types=(jax.sharding.AxisType.Auto,))
    mean = dump.tpu["reduction"] == "mean"

    def reduce(gradients):
        if dump.tpu.get("clipping") == "before_all_reduce":
            own = jax.tree.map(lambda g: g / dump.cores, gradients) if mean else gradients
            return lax.psum(clipped(own), "cores")
        return clipped((lax.pmean if mean else lax.psum)(gradients, "cores"))

    def one_core(params, stats, inputs, random):
        own = jax.tree.map(lambda s: s[0], stats)
        loss, own, gradients = compute(params, own, inputs, random, OneCore)
        return loss[None], jax.tree.map(lambda s: s[None], own), reduce(gradients)

    p, rows = jax.P(), jax.P("cores")
    return jax.shard_map(one_core, mesh=mesh, in_specs=(p, rows, rows, rows), out_specs=(rows, rows, p), check_vma=False)


def run(job_dump, out, corner, wrong):
    global dump
    dump, sharded = job_dump, corner == "S"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={dump.cores if sharded else 1}"
    if wrong:
        import wrong_jax
        wrong_jax.apply(wrong, globals())
    step_function = jax.jit(sharded_step() if sharded else whole_step)
    params = {k: jnp.asarray(v) for k, v in dump.initial("parameter").items()}
    stats = {k: jnp.asarray(np.stack([v] * dump.cores) if sharded else v) for k, v in dump.initial("statistic").items()}
    optimizer, settings = OPTIMIZERS[dump.optimizer["kind"]](dump.optimizer)
    slots = optimizer.init(params)
    recorder = Recorder(dump.steps)

    @jax.jit
    def update(params, slots, gradients):
        changes, slots = optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, changes), slots

    for i in range(dump.steps):
        inputs, random = dump.step(i)
        rate = inputs["learning_rate"]
        batch = {k: jnp.asarray(v) for k, v in inputs.items() if k in ("features", "labels", "weights")}
        losses, stats, gradients = step_function(params, stats, batch, random)
        recorder.step(i, losses, gradients)
        for key, value in {"learning_rate": rate, **settings(i)}.items():
            slots.hyperparams[key] = jnp.float32(value)
        params, slots = update(params, slots, gradients)
    first = {k: v[0] for k, v in stats.items()} if sharded else stats
    write_result(out, "jax", f"{jax.__version__}, optax {optax.__version__}", recorder, {**params, **first})


if __name__ == "__main__":
    run_jobs(run)

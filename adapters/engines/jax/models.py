"""A scenario's model and its training step in JAX: layers in jax.numpy and lax, optimizers of optax, all of it float32.

    training = Training(program, state)              # state: {name: array} of the program; several cores: [cores, ...]
    loss, gradients = training.step(inputs, random)
    state = training.state()

A new layer is an entry of LAYERS, an optimizer one of OPTIMIZERS and of SLOTS in twinrun_engine/jax.py. Several cores are as many
devices, each with a state of its own, gradients reduced by psum. JAX_PLATFORMS and XLA_FLAGS (devices of a host) are for who imports this
to set.
"""
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from twinrun_engine.jax import SLOTS, field_of, largest_dims
from twinrun_engine.model import SHARDING, Counters, features_of, missing, of_cores, pads_of, stride_of, walk

jax.config.update("jax_default_matmul_precision", "highest")

# The forms of sharding that only a mistaken script has are there as well, so that it can be tried.
MISTAKES = SHARDING | {"reduction": ("mean", "sum", "none"), "scaling": ("by_reduction", "never", "once_more")}


# ---- layers: function(context, layer, x..) --------------------------------------------------------------------------------

def with_bias(c, layer, y):
    return y + c.params[layer["name"] + "/bias"] if layer["bias"] else y


def dense(c, layer, x):
    return with_bias(c, layer, x @ c.params[layer["name"] + "/kernel"])


def convolve(c, layer, x, groups):
    strides, dilations = (stride_of(layer),) * 2, (layer.get("dilation", 1),) * 2
    y = lax.conv_general_dilated(x, c.params[layer["name"] + "/kernel"], strides, pads_of(layer, x.shape[1:3]),
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
    return lax.reduce_window(x, start, reducer, (1, w, w, 1), (1, s, s, 1), ((0, 0), *pads_of(layer, x.shape[1:3]), (0, 0)))


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
    """Distances are computed from differences of embeddings, not from products; `hard`: Hermans et al. 2017."""
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
    """Supervised contrastive loss with the mean over positives outside the logarithm (Khosla et al. 2020, eq. 2)."""
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


# ---- optimizers: function(settings) -> (optax transformation, its settings after `updates` updates) ---------------------------

def injected(make, **settings):
    """Returns an optax optimizer whose learning rate and epsilon are set at every step; all other settings are fixed."""
    return optax.inject_hyperparams(make, static_args=tuple(k for k in settings if k != "eps"))(learning_rate=0.0, **settings)


def sgd(_):
    return injected(optax.sgd), lambda _: {}


def momentum(o):
    return injected(optax.sgd, momentum=o["momentum"], nesterov=o["nesterov"]), lambda _: {}


def adam(o):
    # optax divides by sqrt(v / (1 - b2^t)) + eps; TensorFlow's "epsilon hat" is eps * sqrt(1 - b2^t).
    return (injected(optax.adam, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"]),
            lambda updates: {"eps": o["epsilon"] / np.sqrt(1 - o["beta2"] ** (updates + 1))})


def adamw(o):
    return (injected(optax.adamw, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"], weight_decay=o["weight_decay"]),
            lambda updates: {"eps": o["epsilon"] / np.sqrt(1 - o["beta2"] ** (updates + 1))})


def adagrad(o):
    # optax adds epsilon inside the root, TensorFlow's second kernel outside it; they agree only for 0.
    return injected(optax.adagrad, eps=o["epsilon"]), lambda _: {}


def adadelta(o):
    return injected(optax.adadelta, rho=o["rho"], eps=o["epsilon"]), lambda _: {}


def rmsprop(o):
    return injected(optax.rmsprop, decay=o["rho"], eps=o["epsilon"], eps_in_sqrt=True, centered=o["centered"],
                    momentum=o["momentum"] or None), lambda _: {}


def adamax(o):
    # optax adds epsilon to |g| before the maximum, TensorFlow to the maximum itself.
    return injected(optax.adamax, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"]), lambda _: {}


def kernels_only(params):
    return {k: v.ndim >= 2 for k, v in params.items()}


def lars(o):
    # optax takes the norm of g + wd w, the TPU models take |g| + wd |w|; they agree only without weight decay.
    return injected(optax.lars, weight_decay=o["weight_decay"], weight_decay_mask=kernels_only, trust_coefficient=o["trust_coefficient"],
                    eps=o["epsilon"], trust_ratio_mask=kernels_only, momentum=o["momentum"], nesterov=o["nesterov"]), lambda _: {}


def lamb(o):
    return injected(optax.lamb, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"], weight_decay=o["weight_decay"]), lambda _: {}


def adafactor(o):
    return injected(optax.adafactor, min_dim_size_to_factor=1, multiply_by_parameter_scale=o["parameter_scale"],
                    clipping_threshold=o["clipping_threshold"], momentum=o["beta1"] or None, dtype_momentum=jnp.float32), lambda _: {}


OPTIMIZERS = {f.__name__: f for f in (sgd, momentum, adam, adamw, adagrad, adadelta, rmsprop, adamax, lars, lamb, adafactor)}


def unsupported(program):
    """Lists what JAX and optax compute otherwise than the program, as texts for Unsupported."""
    o, found = program.optimizer, missing(program, LAYERS, LOSSES, OPTIMIZERS, MISTAKES)
    if o["kind"] == "adagrad" and o["epsilon"] > 0:
        found.append("adagrad with an epsilon is not supported: optax adds it inside the root")
    if o["kind"] == "adamax" and o["epsilon"] > 0:
        found.append("adamax with an epsilon is not supported: optax adds it before the maximum, in the slot")
    if o["kind"] == "lars" and o["weight_decay"] > 0:
        found.append("lars with weight decay is not supported: optax takes the norm of the sum, the TPU models the sum of norms")
    if o["kind"] == "adafactor":
        if o["relative_step"]:
            found.append("adafactor with a relative step is not supported")
        wide = [v.name for v in program.state if v.role == "parameter" and len(v.shape) > 2
                and set(largest_dims(v.shape)) != {len(v.shape) - 2, len(v.shape) - 1}]
        if wide:
            found.append(f"adafactor of {', '.join(wide)} is not supported: optax factors the two largest dimensions, not the last two")
    if program.cores > len(jax.devices()):
        found.append(f"{program.cores} cores are not supported: JAX has {len(jax.devices())} devices")
    return found


def filled(node, fields):
    """Returns an optax state whose fields are replaced by `fields` ({field: value, or {parameter: value}})."""
    if hasattr(node, "_fields"):
        return type(node)(*(put(getattr(node, f), fields[f]) if f in fields else filled(getattr(node, f), fields)
                            for f in node._fields))
    return tuple(filled(x, fields) for x in node) if isinstance(node, tuple) else node


def put(old, new):
    return {**old, **new} if isinstance(old, dict) else new


def values_of(node, field):
    """Returns a field's value from anywhere in an optax state, or None."""
    if hasattr(node, "_fields") and field in node._fields:
        return getattr(node, field)
    inside = (values_of(x, field) for x in node) if isinstance(node, tuple) else ()
    return next((x for x in inside if x is not None), None)


def update(program, optimizer, state, gradients, settings):
    """Returns the program's state after an update, without statistics and counters. settings: learning_rate, count, the powers of
    beta, optionally eps."""
    kind = program.optimizer["kind"]
    params, fields = program.of_role("parameter", state), {"count": settings["count"]}
    template = optimizer.init(params)
    kept = {}    # slot -> (parameter, field, sign)
    for name, w in params.items():
        for slot in SLOTS.get(kind, {}):
            if f"{name}.{slot}" in state:
                field, sign = field_of(kind, slot, w.shape)
                kept[f"{name}.{slot}"] = name, field, sign
                fields.setdefault(field, {})[name] = state[f"{name}.{slot}"] * sign
    if kind in ("adam", "adamw"):    # as Counters.adam_rate does, for optax's powers
        mean, square = (1 - program.optimizer[beta] ** (settings["count"] + 1) for beta in ("beta1", "beta2"))
        ratio = jnp.sqrt((1 - settings["beta2_power"]) / square) * (mean / (1 - settings["beta1_power"]))
        settings = {**settings, "learning_rate": settings["learning_rate"] * ratio}
    theirs = template._replace(inner_state=filled(template.inner_state, fields),
                               hyperparams={k: settings.get(k, v) for k, v in template.hyperparams.items()})
    changes, theirs = optimizer.update(gradients, theirs, params)
    after = dict(optax.apply_updates(params, changes))
    for slot, (name, field, sign) in kept.items():
        values = values_of(theirs.inner_state, field)
        # RMSProp without momentum keeps no slot for it; ours is then the step itself.
        after[slot] = (changes if values is None else values)[name] * sign
    for name in params:
        if f"{name}.ema" in state:
            average = state[f"{name}.ema"]
            after[f"{name}.ema"] = average - (average - after[name]) * np.float32(1 - program.optimizer["ema"])
    return after


def clipped(program, gradients):
    """Clips gradients by the optimizer's settings `clip` and `clip_at`."""
    kind, most = program.optimizer.get("clip", "none"), program.optimizer.get("clip_at")
    if kind == "none":
        return gradients
    clip = optax.clip(most) if kind == "value" else optax.clip_by_global_norm(most)
    if kind == "norm":
        return {k: clip.update({k: g}, clip.init({}))[0][k] for k, g in gradients.items()}
    return clip.update(gradients, clip.init({}))[0]


# ---- training -------------------------------------------------------------------------------------------------------------

class Alone:
    """The cross-core view of a whole batch on one device: only itself."""
    synced_cores = 1

    def __init__(self, program, params, stats, inputs, random):
        self.program, self.params, self.stats, self.random, self.updates = program, params, stats, random, {}
        self.weights = inputs.get("weights")

    def across(self, x):
        return x

    gather = own = token_mean = across

    def reduced(self, gradients):
        return clipped(self.program, gradients)


class OneCore(Alone):
    """The cross-core view of one of several cores, as the program's sharding defines it."""

    def __init__(self, program, *arguments):
        super().__init__(program, *arguments)
        self.cores, self.sharding = program.cores, program.sharding
        self.group = self.sharding.get("batchnorm_group") or self.cores
        self.synced_cores = self.group if self.sharding["batchnorm"] == "synced" else 1

    def across(self, x):
        if self.synced_cores == 1:
            return x
        return lax.pmean(x, "cores", axis_index_groups=np.arange(self.cores).reshape(-1, self.group).tolist())

    def gather(self, x):
        return lax.all_gather(x, "cores", tiled=True) if self.sharding.get("batchwise") == "gathered" else x

    def own(self, x):
        n = len(x) // self.cores
        if self.sharding.get("batchwise") != "gathered":
            return x
        return lax.dynamic_slice_in_dim(x, lax.axis_index("cores") * n, n)

    def token_mean(self, weight):
        return lax.pmean(weight, "cores") if self.sharding.get("token_mean") == "global" else weight

    def reduced(self, gradients):
        scaling = self.sharding.get("scaling", "by_reduction")
        mean = self.sharding["reduction"] == "mean" and scaling != "never"
        if scaling == "once_more":
            gradients = jax.tree.map(lambda g: g / self.cores, gradients)
        if self.sharding["reduction"] == "none":    # as a script without pmean: each core descends its own gradients
            return clipped(self.program, gradients)
        if self.sharding.get("clipping") == "before_all_reduce":
            own = jax.tree.map(lambda g: g / self.cores, gradients) if mean else gradients
            return lax.psum(clipped(self.program, own), "cores")
        return clipped(self.program, (lax.pmean if mean else lax.psum)(gradients, "cores"))


def gan(c, inputs):
    """Returns the losses of discriminator and generator (Goodfellow et al. 2014, the non-saturating form), by part."""
    layers, features = c.program.layers, features_of(inputs)
    fake = walk(layers, LAYERS, c, features, "generator")
    of_real, of_fake = (walk(layers, LAYERS, c, x, "discriminator") for x in (features, fake))
    total = jnp.mean if c.program.loss["reduction"] == "mean" else jnp.sum
    return {"discriminator/": total(jax.nn.softplus(-of_real) + jax.nn.softplus(of_fake)),
            "generator/": total(jax.nn.softplus(-of_fake))}


def losses_of(c, inputs):
    """Returns losses by the prefix of the parameters that they train; the first loss is reported."""
    loss, l2 = c.program.loss, c.program.optimizer.get("l2", 0)
    if loss["kind"] == "gan":
        return gan(c, inputs)
    output = walk(c.program.layers, LAYERS, c, features_of(inputs))
    total = reduce_loss(c, LOSSES[loss["kind"]](c, output, inputs["labels"], loss), loss)
    return {"": total + l2 / 2 * sum(jnp.sum(w * w) for w in c.params.values() if w.ndim >= 2)}


def compute(program, params, stats, inputs, random, seen):
    """Returns one core's (loss, statistics, gradients as the optimizer gets them, results of layers if the program requests them)."""
    # The gradient at a layer's output is the gradient of a zero that is added to it.
    zeros = {a.name.removesuffix(".grad"): jnp.zeros(a.shape) for a in program.activations if a.name.endswith(".grad")}

    def forward(params, zeros):
        c, layers = seen(program, params, stats, inputs, random), {}
        if program.activations:
            def show(name, value):
                layers[name] = value
                return value + zeros[name] if name in zeros else value
            c.show = show
        return losses_of(c, inputs), ({**stats, **c.updates}, layers)

    losses, pull, (stats, layers) = jax.vjp(forward, params, zeros, has_aux=True)
    gradients = {}
    for prefix in losses:
        g, at_layers = pull({k: jnp.float32(k == prefix) for k in losses})
        gradients.update({k: v for k, v in g.items() if k.startswith(prefix)})
    layers = {a.name: layers[a.name] for a in program.activations if a.name in layers} | {f"{k}.grad": g for k, g in at_layers.items()}
    return next(iter(losses.values())), stats, seen(program, params, stats, inputs, random).reduced(gradients), layers


class Training:
    """A model with an optax optimizer, started from a program's state."""

    def __init__(self, program, state):
        self.program = program
        self.counters = Counters(program.optimizer, program.of_role("counter", state))
        self.optimizer, self.settings = OPTIMIZERS[program.optimizer["kind"]](program.optimizer)
        step = self.one_step
        if program.cores > 1:
            mesh = jax.sharding.Mesh(np.array(jax.devices()[:program.cores]), ("cores",))
            rows, p = jax.P("cores"), jax.P()
            self.device = jax.sharding.NamedSharding(mesh, rows)
            step = jax.shard_map(self.one_core, mesh=mesh, in_specs=(rows, rows, rows, p), out_specs=rows, check_vma=False)
        else:
            self.device = jax.devices()[0]
        self.jitted = jax.jit(step, donate_argnums=0)    # the state before a step is not kept, so that large models fit
        self.load(state)

    def load(self, state):
        """Starts again from another state, and keeps what is compiled."""
        self.counters.values = self.program.of_role("counter", state)
        self.values = self.put({k: v for k, v in state.items() if k not in self.counters.values})

    def put(self, values):
        """Places arrays where the step expects them, also the first time, so that it is compiled only once."""
        return {k: jax.device_put(np.ascontiguousarray(v), self.device) for k, v in values.items()}

    def one_step(self, state, inputs, random, settings):
        params, stats = (self.program.of_role(role, state) for role in ("parameter", "statistic"))
        loss, stats, gradients, layers = compute(self.program, params, stats, inputs, random,
                                                 Alone if self.program.cores == 1 else OneCore)
        return loss, gradients, layers, {**stats, **update(self.program, self.optimizer, state, gradients, settings)}

    def one_core(self, state, inputs, random, settings):
        own = jax.tree.map(lambda x: x[0], (state, inputs, random))
        return jax.tree.map(lambda x: x[None], self.one_step(*own, settings))

    def step(self, inputs, random):
        """Runs a step on arrays as the program feeds them. Returns the loss and the gradients as the optimizer gets them."""
        updates, rate = self.counters.updates(), np.asarray(inputs["learning_rate"]).flat[0]
        settings = {"learning_rate": rate, "count": np.int32(updates),
                    **{k.split("/")[1]: np.asarray(v).flat[0] for k, v in self.counters.values.items()},
                    **{k: np.float32(v) for k, v in self.settings(updates).items()}}
        batch = self.put({k: v for k, v in inputs.items() if k in ("images", "tokens", "labels", "weights")})
        loss, gradients, layers, self.values = self.jitted(self.values, batch, self.put(random), settings)
        self.shown = {k: self.host(v) for k, v in layers.items()}
        self.counters.advance()
        return self.host(loss), {k: self.host(v) for k, v in gradients.items()}

    def host(self, value):
        """Reads one replica at a time, without a copy of all of them."""
        if self.program.cores == 1:
            return np.asarray(value)
        shards = sorted(value.addressable_shards, key=lambda shard: shard.index[0].start)
        return of_cores([np.asarray(shard.data)[0] for shard in shards])

    def state(self):
        return {**{k: self.host(v) for k, v in self.values.items()}, **self.counters.values}

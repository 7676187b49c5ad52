"""A scenario's model and its training step in TensorFlow: tf.nn and the optimizers of tf.compat.v1.train and of Keras, float32.

    devices(program.cores)                           # once in a process, before anything else
    training = Training(program, state)              # state: {name: array} of the program; several cores: [cores, ...]
    loss, gradients = training.step(inputs, random)
    state = training.state()

A new layer is an entry of LAYERS, an optimizer one of OPTIMIZERS. Several cores are a MirroredStrategy on as many logical CPUs; the
optimizer's apply_gradients does the all-reduce, as in a user's program.
"""
import os
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from twinrun_engine.model import Counters, features_of, missing, of_cores, pads_of, stride_of, walk  # noqa: E402


# ---- layers: function(context, layer, x..) --------------------------------------------------------------------------------

def with_bias(c, layer, y):
    return tf.nn.bias_add(y, c.params[layer["name"] + "/bias"]) if layer["bias"] else y


def dense(c, layer, x):
    return with_bias(c, layer, tf.matmul(x, c.params[layer["name"] + "/kernel"]))


def padding_of(layer, x):
    """Returns TensorFlow's word for a layer's padding, or the list of cells on every side."""
    word = layer["padding"].upper()
    return word if word in ("SAME", "VALID") else [[0, 0], *pads_of(layer, x.shape[1:3]), [0, 0]]


def conv2d(c, layer, x):
    return with_bias(c, layer, tf.nn.conv2d(x, c.params[layer["name"] + "/kernel"], stride_of(layer), padding_of(layer, x),
                                           dilations=layer.get("dilation", 1)))


def depthwise_conv2d(c, layer, x):
    h, w, _, outputs = c.params[layer["name"] + "/kernel"].shape
    kernel = tf.reshape(c.params[layer["name"] + "/kernel"], [h, w, x.shape[3], outputs // x.shape[3]])
    y = tf.nn.depthwise_conv2d(x, kernel, [1, stride_of(layer), stride_of(layer), 1], padding_of(layer, x),
                               dilations=[layer["dilation"]] * 2)
    return with_bias(c, layer, y)


def conv2d_transpose(c, layer, x):
    size, stride = layer["kernel"], stride_of(layer)
    extra = 0 if layer["padding"] == "same" else max(size, stride) - stride
    shape = [x.shape[0], x.shape[1] * stride + extra, x.shape[2] * stride + extra, layer["filters"]]
    y = tf.nn.conv2d_transpose(x, c.params[layer["name"] + "/kernel"], shape, stride, layer["padding"].upper())
    return with_bias(c, layer, y)


def max_pool(_, layer, x):
    return tf.nn.max_pool2d(x, layer["window"], stride_of(layer), padding_of(layer, x))


def avg_pool(_, layer, x):
    pads = padding_of(layer, x)
    if isinstance(pads, str):
        return tf.nn.avg_pool2d(x, layer["window"], stride_of(layer), pads)
    total, inside = (tf.nn.avg_pool2d(tf.pad(y, pads), layer["window"], stride_of(layer), "VALID") for y in (x, tf.ones_like(x[:1])))
    return total / inside


def flatten(_c, _layer, x):
    return tf.reshape(x, [x.shape[0], -1])


def global_max_pool(_c, _layer, x):
    return tf.reduce_max(x, list(range(1, x.shape.rank - 1)))


def global_avg_pool(_c, _layer, x):
    return tf.reduce_mean(x, list(range(1, x.shape.rank - 1)))


def reshape(_, layer, x):
    return tf.reshape(x, [x.shape[0], *layer["shape"]])


def add(_c, _layer, *xs):
    return tf.add_n(xs)


def concat(_c, _layer, *xs):
    return tf.concat(xs, -1)


def l2_normalize(_c, _layer, x):
    return tf.math.l2_normalize(x, -1)


def relu(_c, _layer, x):
    return tf.nn.relu(x)


def leaky_relu(_, layer, x):
    return tf.nn.leaky_relu(x, layer["slope"])


def gelu(_, layer, x):
    return tf.nn.gelu(x, layer["approximate"])


def silu(_c, _layer, x):
    return tf.nn.silu(x)


def sigmoid(_c, _layer, x):
    return tf.sigmoid(x)


def tanh(_c, _layer, x):
    return tf.tanh(x)


def batch_norm(c, layer, x):
    name, epsilon = layer["name"], layer["epsilon"]
    gamma, beta = c.params[name + "/gamma"], c.params[name + "/beta"]
    if c.synced:
        axes = list(range(x.shape.rank - 1))
        mean = c.across(tf.reduce_mean(x, axes))
        variance = c.across(tf.reduce_mean(tf.math.squared_difference(x, mean), axes))
        y = tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)
        n = x.shape.num_elements() // x.shape[-1] * c.cores
        variance = variance * (n / max(1, n - 1)) if x.shape.rank == 4 else variance
    elif x.shape.rank == 4:
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, epsilon=epsilon, is_training=True)
    else:
        mean, variance = tf.nn.moments(x, [0])
        y = tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)
    for part, batch in (("moving_mean", mean), ("moving_variance", variance)):
        old = c.stats[f"{name}/{part}"]
        c.updates[f"{name}/{part}"] = old - (old - batch) * (1 - layer["momentum"])
    return y


def layer_norm(c, layer, x):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, c.params[layer["name"] + "/beta"], c.params[layer["name"] + "/gamma"],
                                     layer["epsilon"])


def group_norm(c, layer, x):
    grouped = tf.reshape(x, [*x.shape[:3], layer["groups"], x.shape[3] // layer["groups"]])
    mean, variance = tf.nn.moments(grouped, [1, 2, 4], keepdims=True)
    y = tf.reshape(tf.nn.batch_normalization(grouped, mean, variance, None, None, layer["epsilon"]), x.shape)
    return y * c.params[layer["name"] + "/gamma"] + c.params[layer["name"] + "/beta"]


def minibatch_stddev(c, layer, x):
    everyone = c.gather(x)
    size = min(layer["group"], everyone.shape[0])
    _, variance = tf.nn.moments(tf.reshape(everyone, [size, -1, *x.shape[1:]]), [0])
    channel = c.own(tf.tile(tf.reduce_mean(tf.sqrt(variance + 1e-8), [1, 2, 3]), [size]))
    return tf.concat([x, tf.broadcast_to(channel[:, None, None, None], [*x.shape[:3], 1])], -1)


def embedding(c, layer, x):
    return tf.nn.embedding_lookup(c.params[layer["name"] + "/embeddings"], x)


def position_embedding(c, layer, x):
    return x + c.params[layer["name"] + "/embeddings"]


def attention(c, layer, x):
    """As keras.layers.MultiHeadAttention computes it: einsum, scores masked with -1e9, softmax."""
    batch, tokens, units = x.shape
    size = units // layer["heads"]

    def project(which, y):
        return with_bias(c, {**layer, "name": f"{layer['name']}/{which}"},
                         tf.einsum("btu,uv->btv", y, c.params[f"{layer['name']}/{which}/kernel"]))

    q, k, v = (tf.reshape(project(w, x), [batch, tokens, layer["heads"], size]) for w in ("query", "key", "value"))
    scores = tf.einsum("bqhd,bkhd->bhqk", q * size ** -0.5, k)
    if layer["causal"]:
        scores = tf.where(tf.linalg.band_part(tf.ones([tokens, tokens], bool), -1, 0), scores, -1e9)
    if layer["masked"]:
        scores = tf.where(c.weights[:, None, None, :] > 0, scores, -1e9)
    return project("output", tf.reshape(tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v), [batch, tokens, units]))


def masked_mean(c, _layer, x):
    return tf.reduce_sum(x * c.weights[..., None], 1) / tf.reduce_sum(c.weights, 1, keepdims=True)


def noise(c, layer, _):
    return c.random[layer["name"] + "/rng_uniform"] * 2 - 1


def dropout(c, layer, x):
    keep = c.random[layer["name"] + "/rng_uniform"] >= np.float32(layer["rate"])
    return tf.where(keep, x / (1 - layer["rate"]), 0.0)


LAYERS = {f.__name__: f for f in (
    dense, conv2d, depthwise_conv2d, conv2d_transpose, max_pool, avg_pool, global_max_pool, global_avg_pool, flatten, reshape,
    add, concat, l2_normalize, relu, leaky_relu, gelu, silu, sigmoid, tanh, batch_norm, layer_norm, group_norm,
    minibatch_stddev, embedding, position_embedding, attention, masked_mean, noise, dropout)}


# ---- losses: function(context, logits, labels, settings) -> one number per sample or token ---------------------------------

def targets(logits, labels, loss):
    s = loss.get("smoothing", 0)
    return tf.one_hot(labels, logits.shape[-1]) * (1 - s) + s / logits.shape[-1]


def softmax_cross_entropy(_, logits, labels, loss):
    if loss.get("smoothing", 0) > 0:
        return tf.nn.softmax_cross_entropy_with_logits(targets(logits, labels, loss), logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def sigmoid_cross_entropy(_, logits, labels, loss):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets(logits, labels, loss), logits), -1)


def mean_squared_error(_, logits, labels, loss):
    return tf.keras.losses.MSE(targets(logits, labels, loss), logits)


def triplet(c, x, labels, loss):
    x, labels = c.gather(x), c.gather(labels)
    distance = tf.sqrt(tf.reduce_sum(tf.math.squared_difference(x[:, None], x[None]), -1) + 1e-12)
    other = labels[:, None] != labels[None]
    same = ~other & ~tf.cast(tf.eye(x.shape[0]), tf.bool)
    if loss["mining"] == "all":
        valid = tf.cast(same[:, :, None] & other[:, None], tf.float32)
        hinge = tf.nn.relu(distance[:, :, None] - distance[:, None] + loss["margin"])
        return tf.reduce_sum(hinge * valid, [1, 2]) / tf.maximum(tf.reduce_sum(valid, [1, 2]), 1.0)
    farthest = tf.reduce_max(tf.where(same, distance, 0.0), 1)
    return tf.nn.relu(farthest - tf.reduce_min(tf.where(other, distance, 1e9), 1) + loss["margin"])


def contrastive(c, x, labels, loss):
    x, labels = c.gather(x), c.gather(labels)
    self = tf.cast(tf.eye(x.shape[0]), tf.bool)
    log_share = tf.nn.log_softmax(tf.where(self, -1e9, tf.matmul(x, x, transpose_b=True) / loss["temperature"]))
    same = tf.cast((labels[:, None] == labels[None]) & ~self, tf.float32)
    return -tf.reduce_sum(same * log_share, 1) / tf.maximum(tf.reduce_sum(same, 1), 1.0)


LOSSES = {f.__name__: f for f in (softmax_cross_entropy, sigmoid_cross_entropy, mean_squared_error, triplet, contrastive)}


def reduce_loss(c, per_item, loss):
    if loss.get("weights", "none") == "none":
        return (tf.reduce_mean if loss["reduction"] == "mean" else tf.reduce_sum)(per_item)
    weights, mean = c.weights if per_item.shape.rank == 2 else tf.reduce_sum(c.weights, 1), c.token_mean
    if weights.shape[0] != per_item.shape[0]:    # a loss over the samples of all cores
        weights, mean = c.gather(weights), lambda x: x
    total = tf.reduce_sum(weights * per_item)
    return total / mean(tf.reduce_sum(weights)) if loss["reduction"] == "mean" else total


# ---- optimizers: function(settings) -> V1, Keras or Adagrad -----------------------------------------------------------------

class V1:
    """An optimizer of tf.compat.v1.train. `slots`: the program's slot -> the optimizer's."""
    reduces = True

    def __init__(self, make, slots):
        self.rate = tf.Variable(0.0, trainable=False)
        self.optimizer, self.names = make(lambda: self.rate), slots

    def apply_gradients(self, pairs):
        self.optimizer.apply_gradients(pairs)

    def set(self, rate, counters):
        self.rate.assign(rate)
        for name, value in counters.values.items():    # beta1_power, with the program's value
            write(self.optimizer._get_non_slot_variable(name.split("/")[1], graph=None), value)

    def slots(self, _, variable):
        return {ours: self.optimizer.get_slot(variable, theirs) for ours, theirs in self.names.items()}


class Keras:
    """An optimizer of tf.keras. `slots`: the program's slot -> the list of its variables. `powers`: it has Adam's bias correction."""
    reduces = True

    def __init__(self, optimizer, slots, powers=False):
        self.optimizer, self.names, self.powers = optimizer, slots, powers

    def apply_gradients(self, pairs):
        self.optimizer.apply_gradients(pairs)

    def set(self, rate, counters):
        """Keras computes powers of beta at each step, the program multiplies them; the rate compensates for the last bits."""
        updates = counters.updates()
        if self.powers:
            theirs = (tf.pow(tf.constant(beta, tf.float32), tf.constant(updates + 1, tf.float32)).numpy()
                      for beta in (self.optimizer.beta_1, self.optimizer.beta_2))
            rate = np.float32(rate * counters.adam_rate(*(1 - float(p) for p in theirs)))
        write(self.optimizer.learning_rate.value, rate)
        write(self.optimizer.iterations.value, updates)

    def slots(self, index, _):
        found = {ours: getattr(self.optimizer, theirs)[index] for ours, theirs in self.names.items()}
        return {ours: v.value for ours, v in found.items()}


class Adagrad:
    """The kernel with an epsilon outside the root, which no optimizer class of TensorFlow uses any more."""
    reduces = False

    def __init__(self, o):
        self.o, self.rate, self.sums = o, tf.Variable(0.0, trainable=False), {}

    def build(self, variables):
        self.sums = {v.ref(): tf.Variable(tf.zeros(v.shape)) for v in variables}

    def apply_gradients(self, pairs):
        for g, v in pairs:
            tf.raw_ops.ResourceApplyAdagradV2(var=v.handle, accum=self.sums[v.ref()].handle, lr=self.rate,
                                              epsilon=self.o["epsilon"], grad=g)

    def set(self, rate, _):
        self.rate.assign(rate)

    def slots(self, _, variable):
        return {"accumulator": self.sums[variable.ref()]}


def sgd(_):
    return V1(tf.compat.v1.train.GradientDescentOptimizer, {})


def momentum(o):
    return V1(lambda rate: tf.compat.v1.train.MomentumOptimizer(rate, o["momentum"], use_nesterov=o["nesterov"]),
              {"momentum": "momentum"})


def adam(o):
    return V1(lambda rate: tf.compat.v1.train.AdamOptimizer(rate, o["beta1"], o["beta2"], o["epsilon"]),
              {"adam_m": "m", "adam_v": "v"})


def adamw(o):
    return Keras(tf.keras.optimizers.AdamW(0.0, o["weight_decay"], o["beta1"], o["beta2"], o["epsilon"]),
                 {"adam_m": "_momentums", "adam_v": "_velocities"}, powers=True)


def adadelta(o):
    return V1(lambda rate: tf.compat.v1.train.AdadeltaOptimizer(rate, o["rho"], o["epsilon"]),
              {"accum": "accum", "accum_update": "accum_update"})


def rmsprop(o):
    return V1(lambda rate: tf.compat.v1.train.RMSPropOptimizer(rate, o["rho"], o["momentum"], o["epsilon"], centered=o["centered"]),
              {"rms": "rms", "momentum": "momentum", **({"mg": "mg"} if o["centered"] else {})})


def adamax(o):
    return Keras(tf.keras.optimizers.Adamax(0.0, o["beta1"], o["beta2"], o["epsilon"]), {"adamax_m": "_m", "adamax_v": "_u"})


def adafactor(o):
    return Keras(tf.keras.optimizers.Adafactor(0.0, clip_threshold=o["clipping_threshold"], relative_step=False),
                 {"vr": "_r", "vc": "_c", "v": "_v"})


def lamb(o):
    return Keras(tf.keras.optimizers.Lamb(0.0, o["beta1"], o["beta2"], o["epsilon"], weight_decay=o["weight_decay"] or None),
                 {"lamb_m": "_momentums", "lamb_v": "_velocities"})


OPTIMIZERS = {f.__name__: f for f in (sgd, momentum, adam, adamw, adadelta, rmsprop, adamax, adafactor, lamb)}
OPTIMIZERS["adagrad"] = Adagrad


def unsupported(program):
    """Lists what TensorFlow computes otherwise than the program, as texts for Unsupported."""
    o, found = program.optimizer, missing(program, LAYERS, LOSSES, OPTIMIZERS)
    if o["kind"] == "adafactor":
        if not o["parameter_scale"] or o["relative_step"] or o["beta1"]:
            found.append("adafactor without parameter_scale, with relative_step or with beta1 is not supported: Keras has none of them")
        elif o["lr"] ** 2 * program.scenario["train"]["steps"] > 1:
            found.append("adafactor with such a large rate is not supported: Keras's is at most 1 / sqrt(step)")
    if o["kind"] == "lamb" and o["weight_decay"] > 0:
        found.append("lamb with weight decay is not supported: Keras's decay is not part of the step whose norm is taken")
    if program.sharding.get("batchnorm_group", 0) not in (0, program.cores) and program.cores > 1:
        found.append("batch norm over groups is not supported: MirroredStrategy has no all-reduce over groups of replicas")
    return found


# ---- training -------------------------------------------------------------------------------------------------------------

def losses_of(c, program, inputs):
    """Returns losses by the prefix of the parameters that they train; the first loss is reported."""
    if program.loss["kind"] == "gan":
        fake = walk(program.layers, LAYERS, c, features_of(inputs), "generator")
        of_real, of_fake = (walk(program.layers, LAYERS, c, x, "discriminator") for x in (features_of(inputs), fake))
        total = tf.reduce_mean if program.loss["reduction"] == "mean" else tf.reduce_sum
        return {"discriminator/": total(tf.nn.softplus(-of_real) + tf.nn.softplus(of_fake)),
                "generator/": total(tf.nn.softplus(-of_fake))}
    output = walk(program.layers, LAYERS, c, features_of(inputs))
    loss = reduce_loss(c, LOSSES[program.loss["kind"]](c, output, inputs["labels"], program.loss), program.loss)
    return {"": loss + program.optimizer.get("l2", 0) * sum(tf.nn.l2_loss(w) for w in c.params.values() if w.shape.rank >= 2)}


def clipped(gradients, o):
    kind, most = o.get("clip", "none"), o.get("clip_at")
    if kind == "global_norm":
        return tf.clip_by_global_norm(gradients, most)[0]
    clip = {"none": lambda g, _: g, "value": lambda g, c: tf.clip_by_value(g, -c, c), "norm": tf.clip_by_norm}[kind]
    return [clip(g, most) for g in gradients]


def devices(count):
    """Divides this machine's CPU into `count` logical CPUs. Call it once, before TensorFlow has looked for devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


def cpus(cores):
    """Returns the strategy of a program with that many cores; None if it needs none."""
    if cores == 1:
        return None
    # Sum on one device: TensorFlow's collectives confuse two strategies of one process, of 4 and of 8 cores, with one group.
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(cores)], tf.distribute.ReductionToOneDevice())


def parts(variable):
    """Returns a variable's copies, one per replica."""
    return variable.values if hasattr(variable, "values") else (variable,)


def write(variable, value):
    """Assigns one value to all replicas, or a row to each."""
    value = np.asarray(value)
    for r, part in enumerate(parts(variable)):
        part.assign(value[r] if value.ndim > len(part.shape) else value)


class Training:
    """A model with an optimizer of TensorFlow, started from a program's state. strategy: one with as many replicas as the
    program has cores, or None."""

    def __init__(self, program, state, strategy=None):
        self.program, self.cores, self.strategy = program, program.cores, strategy
        self.counters = Counters(program.optimizer, {})
        with strategy.scope() if strategy else tf.init_scope():
            self.params = {k: tf.Variable(self.row(k, state), name=k.replace("/", "_"))
                           for k in program.of_role("parameter", state)}
            self.optimizer = OPTIMIZERS[program.optimizer["kind"]](program.optimizer)
            if not self.optimizer.reduces:
                self.optimizer.build(self.params.values())
        # Slots are created by the first update, so make one with zero gradients; load() undoes it.
        self.run(lambda: self.optimizer.apply_gradients([(tf.zeros(v.shape), v) for v in self.params.values()]))
        self.slots = {f"{name}.{ours}": slot for i, (name, v) in enumerate(self.params.items())
                      for ours, slot in self.optimizer.slots(i, v).items() if f"{name}.{ours}" in state}
        self.compiled = tf.function(lambda *arguments: self.run(self.replica, *arguments), autograph=False)
        self.load(state)

    def row(self, name, state):
        return state[name] if self.cores == 1 else state[name][0]

    def load(self, state):
        """Starts again from another state, and keeps what is compiled."""
        for name, variable in {**self.params, **self.slots}.items():
            write(variable, state[name])
        self.counters.values = self.program.of_role("counter", state)
        self.averages = {k: np.array(v) for k, v in state.items() if k.endswith(".ema")}
        self.stats = self.program.of_role("statistic", state)

    def run(self, function, *arguments):
        return self.strategy.run(function, arguments) if self.strategy else function(*arguments)

    def context(self, replica, inputs, stats, random):
        """The context of a layer: variables, random numbers, and the other cores as the sharding defines. All-reduces have gradients."""
        sharding, several = self.program.sharding, self.cores > 1
        gathers, means = several and sharding.get("batchwise") == "gathered", several and sharding.get("token_mean") == "global"

        def gathered(x):    # in a graph, its size is not known otherwise
            return tf.ensure_shape(replica.all_gather(x, 0), [x.shape[0] * self.cores, *x.shape[1:]])

        def own(x):
            return tf.reshape(x, [self.cores, -1, *x.shape[1:]])[replica.replica_id_in_sync_group]

        return types.SimpleNamespace(
            params=self.params, stats=stats, random=random, updates={}, weights=inputs.get("weights"),
            synced=several and sharding["batchnorm"] == "synced", cores=self.cores,
            across=lambda x: replica.all_reduce("MEAN", x),
            gather=gathered if gathers else lambda x: x, own=own if gathers else lambda x: x,
            token_mean=(lambda x: replica.all_reduce("MEAN", x)) if means else lambda x: x)

    def replica(self, inputs, stats, random):
        """Runs on one replica and applies the update. Returns loss, gradients after the all-reduce, statistics, results of layers."""
        program, context = self.program, tf.distribute.get_replica_context()
        c, layers = self.context(context, inputs, stats, random), {}
        if program.activations:
            c.show = lambda name, value: layers.setdefault(name, value)
        with tf.GradientTape(persistent=True) as tape:
            losses = losses_of(c, program, inputs)
            share = self.cores if program.sharding["reduction"] == "mean" else 1
            objectives = {prefix: loss / share for prefix, loss in losses.items()}
        wanted = [a.name.removesuffix(".grad") for a in program.activations if a.name.endswith(".grad")]
        at_layers = tape.gradient(next(iter(losses.values())), [layers[k] for k in wanted]) if wanted else []
        shown = {a.name: layers[a.name] for a in program.activations if a.name in layers}
        shown |= {f"{k}.grad": g for k, g in zip(wanted, at_layers) if g is not None}
        by_name = {}
        for prefix, objective in objectives.items():
            wanted = [k for k in self.params if k.startswith(prefix)]
            by_name.update(zip(wanted, tape.gradient(objective, [self.params[k] for k in wanted])))
        gradients = [tf.convert_to_tensor(by_name[k]) for k in self.params]
        if self.cores == 1:
            gradients = reduced = clipped(gradients, program.optimizer)
        elif program.sharding.get("clipping") == "before_all_reduce" or program.optimizer.get("clip", "none") == "none":
            gradients = clipped(gradients, program.optimizer)
            reduced = [context.all_reduce("SUM", g) for g in gradients]
        else:    # apply_gradients sums over replicas, so each contributes its share of the clipped gradient
            reduced = clipped([context.all_reduce("SUM", g) for g in gradients], program.optimizer)
            gradients = [g / self.cores for g in reduced]
        self.optimizer.apply_gradients(zip(gradients if self.optimizer.reduces else reduced, self.params.values()))
        return next(iter(losses.values())), dict(zip(self.params, reduced)), {**stats, **c.updates}, shown

    def split(self, values):
        """Returns {name: one value per replica}."""
        if self.strategy is None:
            return {k: tf.constant(v) for k, v in values.items()}
        rows = {k: [tf.constant(v)] if self.cores == 1 else [tf.constant(row) for row in v] for k, v in values.items()}
        return {k: self.strategy.experimental_distribute_values_from_function(lambda c, v=v: v[c.replica_id_in_sync_group])
                for k, v in rows.items()}

    def rows(self, value):
        """Returns an array of the replicas' values; several replicas: [cores, ...]."""
        local = self.strategy.experimental_local_results(value) if self.strategy else (value,)
        return local[0].numpy() if self.cores == 1 else np.stack([x.numpy() for x in local])

    def host(self, value):
        """Returns the same, but one replica's array if all agree."""
        return of_cores([x.numpy() for x in self.strategy.experimental_local_results(value)]) if self.cores > 1 else self.rows(value)

    def step(self, inputs, random):
        """Runs a step on arrays as the program feeds them. Returns the loss and the gradients as the optimizer gets them."""
        self.optimizer.set(np.asarray(inputs["learning_rate"]).flat[0], self.counters)
        batch = self.split({k: v for k, v in inputs.items() if k in ("images", "tokens", "labels", "weights")})
        loss, gradients, stats, layers = self.compiled(batch, self.split(self.stats), self.split(random))
        self.shown = {k: self.host(v) for k, v in layers.items()}
        self.counters.advance()
        self.stats = {k: self.rows(v) for k, v in stats.items()}
        for k, average in self.averages.items():
            average -= (average - self.rows(self.params[k.removesuffix(".ema")])) * np.float32(1 - self.program.optimizer["ema"])
        return self.host(loss), {k: self.host(g) for k, g in gradients.items()}

    def state(self):
        found = {k: self.host(v) for k, v in {**self.params, **self.slots}.items()}
        return {**found, **self.stats, **self.averages, **self.counters.values}

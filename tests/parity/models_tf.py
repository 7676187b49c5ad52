"""A dumped scenario in TensorFlow: tf.nn and the optimizers of tf.compat.v1.train, float32.

    build/parity/venv-tf/bin/python tests/parity/models_tf.py --job digits_mlp.h5 tf.h5 R -

A new layer is an entry of LAYERS, an optimizer one of OPTIMIZERS. Corner S is MirroredStrategy on as many logical CPUs as
the scenario has cores; the optimizer's apply_gradients does the all-reduce, as in a user's program.
"""
import os
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from dump_file import Recorder, run_jobs, stride_of, walk, write_result  # noqa: E402


# ---- layers: function(context, layer, x..) --------------------------------------------------------------------------------

def with_bias(c, layer, y):
    return tf.nn.bias_add(y, c.params[layer["name"] + "/bias"]) if layer["bias"] else y


def dense(c, layer, x):
    return with_bias(c, layer, tf.matmul(x, c.params[layer["name"] + "/kernel"]))


def conv2d(c, layer, x):
    return with_bias(c, layer, tf.nn.conv2d(x, c.params[layer["name"] + "/kernel"], stride_of(layer), layer["padding"].upper(),
                                           dilations=layer.get("dilation", 1)))


def depthwise_conv2d(c, layer, x):
    h, w, _, outputs = c.params[layer["name"] + "/kernel"].shape
    kernel = tf.reshape(c.params[layer["name"] + "/kernel"], [h, w, x.shape[3], outputs // x.shape[3]])
    y = tf.nn.depthwise_conv2d(x, kernel, [1, stride_of(layer), stride_of(layer), 1], layer["padding"].upper(),
                               dilations=[layer["dilation"]] * 2)
    return with_bias(c, layer, y)


def conv2d_transpose(c, layer, x):
    size, stride = layer["kernel"], stride_of(layer)
    extra = 0 if layer["padding"] == "same" else max(size, stride) - stride
    shape = [x.shape[0], x.shape[1] * stride + extra, x.shape[2] * stride + extra, layer["filters"]]
    y = tf.nn.conv2d_transpose(x, c.params[layer["name"] + "/kernel"], shape, stride, layer["padding"].upper())
    return with_bias(c, layer, y)


def max_pool(_, layer, x):
    return tf.nn.max_pool2d(x, layer["window"], stride_of(layer), layer["padding"].upper())


def avg_pool(_, layer, x):
    return tf.nn.avg_pool2d(x, layer["window"], stride_of(layer), layer["padding"].upper())


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


# ---- optimizers: function(settings, learning rate) ------------------------------------------------------------------------

def sgd(_, rate):
    return tf.compat.v1.train.GradientDescentOptimizer(rate)


def momentum(o, rate):
    return tf.compat.v1.train.MomentumOptimizer(rate, o["momentum"], use_nesterov=o["nesterov"])


def adam(o, rate):
    return tf.compat.v1.train.AdamOptimizer(rate, o["beta1"], o["beta2"], o["epsilon"])


class Keras:
    """An optimizer of tf.keras, whose learning rate is set at every step."""

    def __init__(self, optimizer, rate):
        self.optimizer, self.rate = optimizer, rate

    def apply_gradients(self, pairs):
        self.optimizer.learning_rate = self.rate()
        self.optimizer.apply_gradients(pairs)


def adamw(o, rate):
    return Keras(tf.keras.optimizers.AdamW(0.0, o["weight_decay"], o["beta1"], o["beta2"], o["epsilon"]), rate)


class Adagrad:
    """The kernel with an epsilon beside the root, which no optimizer class of TensorFlow uses any more."""

    def __init__(self, o, rate):
        self.o, self.rate, self.slots = o, rate, {}

    def apply_gradients(self, pairs):
        for g, v in pairs:
            slot = self.slots.setdefault(v.ref(), tf.Variable(tf.fill(v.shape, self.o["initial_accumulator"])))
            tf.raw_ops.ResourceApplyAdagradV2(var=v.handle, accum=slot.handle, lr=self.rate(), epsilon=self.o["epsilon"], grad=g)


def adadelta(o, rate):
    return tf.compat.v1.train.AdadeltaOptimizer(rate, o["rho"], o["epsilon"])


def rmsprop(o, rate):
    return tf.compat.v1.train.RMSPropOptimizer(rate, o["rho"], o["momentum"], o["epsilon"], centered=o["centered"])


def adamax(o, rate):
    return Keras(tf.keras.optimizers.Adamax(0.0, o["beta1"], o["beta2"], o["epsilon"]), rate)


def adafactor(o, rate):
    if not o["parameter_scale"] or o["relative_step"] or o["beta1"]:
        raise SystemExit("tf: Keras's Adafactor has parameter_scale, no relative_step and no beta1")
    return Keras(tf.keras.optimizers.Adafactor(0.0, clip_threshold=o["clipping_threshold"], relative_step=False), rate)


def lamb(o, rate):
    return Keras(tf.keras.optimizers.Lamb(0.0, o["beta1"], o["beta2"], o["epsilon"], weight_decay=o["weight_decay"] or None), rate)


OPTIMIZERS = {f.__name__: f for f in (sgd, momentum, adam, adamw, adadelta, rmsprop, adamax, adafactor, lamb)}
OPTIMIZERS["adagrad"] = Adagrad


def losses_of(c, dump, inputs):
    """Losses by the prefix of the parameters that descend them; the first one is reported."""
    if dump.loss["kind"] == "gan":
        fake = walk(dump.layers, LAYERS, c, inputs["features"], "generator")
        of_real, of_fake = (walk(dump.layers, LAYERS, c, x, "discriminator") for x in (inputs["features"], fake))
        total = tf.reduce_mean if dump.loss["reduction"] == "mean" else tf.reduce_sum
        return {"discriminator/": total(tf.nn.softplus(-of_real) + tf.nn.softplus(of_fake)),
                "generator/": total(tf.nn.softplus(-of_fake))}
    output = walk(dump.layers, LAYERS, c, inputs["features"])
    loss = reduce_loss(c, LOSSES[dump.loss["kind"]](c, output, inputs["labels"], dump.loss), dump.loss)
    return {"": loss + dump.optimizer.get("l2", 0) * sum(tf.nn.l2_loss(w) for w in c.params.values() if w.shape.rank >= 2)}


def clipped(gradients, o):
    kind, most = o.get("clip", "none"), o.get("clip_at")
    if kind == "global_norm":
        return tf.clip_by_global_norm(gradients, most)[0]
    clip = {"none": lambda g, _: g, "value": lambda g, c: tf.clip_by_value(g, -c, c), "norm": tf.clip_by_norm}[kind]
    return [clip(g, most) for g in gradients]


# ---- training -------------------------------------------------------------------------------------------------------------

class Trainer:
    def __init__(self, dump, sharded):
        self.dump, self.cores = dump, dump.cores if sharded else 1
        if sharded:
            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * self.cores)
            self.strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(self.cores)])
        else:
            self.strategy = tf.distribute.get_strategy()
        with self.strategy.scope():
            self.params = {k: tf.Variable(v, name=k.replace("/", "_")) for k, v in dump.initial("parameter").items()}
            self.rate = tf.Variable(0.0, trainable=False)
            self.optimizer = OPTIMIZERS[dump.optimizer["kind"]](dump.optimizer, lambda: self.rate)
        # One copy per replica, [replica, ...]: each core has statistics of its own.
        self.stats = [{k: tf.constant(v) for k, v in dump.initial("statistic").items()} for _ in range(self.cores)]

    def context(self, replica, inputs, stats, random):
        """What a layer sees: variables, random numbers, and the other cores as [tpu] says. Their all-reduces have gradients."""
        tpu, several = self.dump.tpu, self.cores > 1
        gathers, means = several and tpu.get("batchwise") == "gathered", several and tpu.get("token_mean") == "global"
        if tpu.get("batchnorm_group", 0) not in (0, self.cores):
            raise SystemExit("tf: MirroredStrategy has no all-reduce over groups of replicas")

        def own(x):
            return tf.split(x, self.cores)[replica.replica_id_in_sync_group]

        return types.SimpleNamespace(
            framework="tf", params=self.params, stats=stats, random=random, updates={}, weights=inputs.get("weights"),
            synced=several and tpu["batchnorm"] == "synced", cores=self.cores,
            across=lambda x: replica.all_reduce("MEAN", x),
            gather=(lambda x: replica.all_gather(x, 0)) if gathers else lambda x: x, own=own if gathers else lambda x: x,
            token_mean=(lambda x: replica.all_reduce("MEAN", x)) if means else lambda x: x)

    def replica(self, inputs, stats, random):
        """On one replica: loss, gradients after the all-reduce, statistics; the update is applied."""
        context = tf.distribute.get_replica_context()
        c = self.context(context, inputs, stats, random)
        with tf.GradientTape(persistent=True) as tape:
            losses = losses_of(c, self.dump, inputs)
            share = self.cores if self.dump.tpu["reduction"] == "mean" else 1
            objectives = {prefix: loss / share for prefix, loss in losses.items()}
        by_name = {}
        for prefix, objective in objectives.items():
            wanted = [k for k in self.params if k.startswith(prefix)]
            by_name.update(zip(wanted, tape.gradient(objective, [self.params[k] for k in wanted])))
        loss = next(iter(losses.values()))
        gradients = [tf.convert_to_tensor(by_name[k]) for k in self.params]
        if self.cores == 1:
            gradients = reduced = clipped(gradients, self.dump.optimizer)
        elif self.dump.tpu.get("clipping") == "before_all_reduce" or self.dump.optimizer.get("clip", "none") == "none":
            gradients = clipped(gradients, self.dump.optimizer)
            reduced = [context.all_reduce("SUM", g) for g in gradients]
        else:    # apply_gradients sums over replicas: each gives its share of what is clipped
            reduced = clipped([context.all_reduce("SUM", g) for g in gradients], self.dump.optimizer)
            gradients = [g / self.cores for g in reduced]
        self.optimizer.apply_gradients(zip(gradients, self.params.values()))
        return loss, dict(zip(self.params, reduced)), {**stats, **c.updates}

    def split(self, values):
        """A batch's rows, as one value per replica."""
        if self.cores == 1:
            return {k: tf.constant(v) for k, v in values.items()}
        parts = [{k: tf.constant(np.split(v, self.cores)[r]) for k, v in values.items()} for r in range(self.cores)]
        return {k: self.per_replica([p[k] for p in parts]) for k in values}

    def per_replica(self, values):
        return self.strategy.experimental_distribute_values_from_function(lambda c: values[c.replica_id_in_sync_group])

    def step(self, i):
        inputs, random = self.dump.step(i)
        self.rate.assign(inputs["learning_rate"])
        batch = self.split({k: inputs[k] for k in ("features", "labels", "weights") if k in inputs})
        stats = {k: self.per_replica([s[k] for s in self.stats]) if self.cores > 1 else v for k, v in self.stats[0].items()}
        loss, gradients, stats = self.strategy.run(self.replica, (batch, stats, self.split(random)))
        local = self.strategy.experimental_local_results
        self.stats = [{k: local(v)[r] for k, v in stats.items()} for r in range(self.cores)]
        return [x.numpy() for x in local(loss)], {k: local(g)[0].numpy() for k, g in gradients.items()}


def run(dump, out, corner, _wrong):
    trainer = Trainer(dump, corner == "S")
    recorder = Recorder(dump.steps)
    for i in range(dump.steps):
        recorder.step(i, *trainer.step(i))
    state = {k: v.numpy() for k, v in {**trainer.params, **trainer.stats[0]}.items()}
    write_result(out, "tf", tf.__version__, recorder, state)


if __name__ == "__main__":
    run_jobs(run)

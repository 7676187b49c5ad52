"""A dumped scenario in TensorFlow: tf.nn and the optimizers of tf.compat.v1.train, float32.

    build/parity/venv-tf/bin/python tests/parity/models_tf.py digits_mlp.h5 tf.h5 [--corner S]

A new layer is an entry of LAYERS, an optimizer one of OPTIMIZERS. --corner S is MirroredStrategy on as many logical CPUs as
the scenario has cores; the optimizer's apply_gradients does the all-reduce, as in a user's program.
"""
import argparse
import os
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from dump_file import Dump, Recorder, stride_of, walk, write_result  # noqa: E402


# ---- layers: function(context, layer, x..) --------------------------------------------------------------------------------

def with_bias(c, layer, y):
    return tf.nn.bias_add(y, c.params[layer["name"] + "/bias"]) if layer["bias"] else y


def dense(c, layer, x):
    return with_bias(c, layer, tf.matmul(x, c.params[layer["name"] + "/kernel"]))


def conv2d(c, layer, x):
    return with_bias(c, layer, tf.nn.conv2d(x, c.params[layer["name"] + "/kernel"], stride_of(layer), layer["padding"].upper()))


def max_pool(_, layer, x):
    return tf.nn.max_pool2d(x, layer["window"], stride_of(layer), layer["padding"].upper())


def avg_pool(_, layer, x):
    return tf.nn.avg_pool2d(x, layer["window"], stride_of(layer), layer["padding"].upper())


def flatten(_c, _layer, x):
    return tf.reshape(x, [x.shape[0], -1])


def relu(_c, _layer, x):
    return tf.nn.relu(x)


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


def dropout(c, layer, x):
    keep = c.random[layer["name"] + "/rng_uniform"] >= np.float32(layer["rate"])
    return tf.where(keep, x / (1 - layer["rate"]), 0.0)


LAYERS = {f.__name__: f for f in (dense, conv2d, max_pool, avg_pool, flatten, relu, batch_norm, dropout)}


# ---- losses: function(logits, labels) -> one number per sample ------------------------------------------------------------

def softmax_cross_entropy(logits, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def mean_squared_error(logits, labels):
    return tf.keras.losses.MSE(tf.one_hot(labels, logits.shape[-1]), logits)


LOSSES = {f.__name__: f for f in (softmax_cross_entropy, mean_squared_error)}


# ---- optimizers: function(settings, learning rate) ------------------------------------------------------------------------

def sgd(_, rate):
    return tf.compat.v1.train.GradientDescentOptimizer(rate)


def momentum(o, rate):
    return tf.compat.v1.train.MomentumOptimizer(rate, o["momentum"], use_nesterov=o["nesterov"])


def adam(o, rate):
    return tf.compat.v1.train.AdamOptimizer(rate, o["beta1"], o["beta2"], o["epsilon"])


OPTIMIZERS = {f.__name__: f for f in (sgd, momentum, adam)}


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
            self.params = {k: tf.Variable(v, name=k) for k, v in dump.initial("parameter").items()}
            self.rate = tf.Variable(0.0, trainable=False)
            self.optimizer = OPTIMIZERS[dump.optimizer["kind"]](dump.optimizer, lambda: self.rate)
        # One copy per replica, [replica, ...]: each core has statistics of its own.
        self.stats = [{k: tf.constant(v) for k, v in dump.initial("statistic").items()} for _ in range(self.cores)]

    def replica(self, inputs, stats, random):
        """On one replica: loss, gradients after the all-reduce, statistics; the update is applied."""
        context = tf.distribute.get_replica_context()
        synced = self.cores > 1 and self.dump.tpu["batchnorm"] == "synced"
        # all_reduce has the gradient that it needs: the all-reduce of the cotangents.
        c = types.SimpleNamespace(framework="tf", params=self.params, stats=stats, random=random, updates={}, synced=synced,
                                  cores=self.cores, across=lambda x: context.all_reduce("MEAN", x))
        with tf.GradientTape() as tape:
            per_sample = LOSSES[self.dump.loss["kind"]](walk(self.dump.layers, LAYERS, c, inputs["images"]), inputs["labels"])
            loss = (tf.reduce_mean if self.dump.loss["reduction"] == "mean" else tf.reduce_sum)(per_sample)
            objective = loss / self.cores if self.dump.tpu["reduction"] == "mean" else loss
        gradients = tape.gradient(objective, list(self.params.values()))
        reduced = [context.all_reduce("SUM", g) for g in gradients] if self.cores > 1 else gradients
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
        batch = self.split({k: inputs[k] for k in ("images", "labels")})
        stats = {k: self.per_replica([s[k] for s in self.stats]) if self.cores > 1 else v for k, v in self.stats[0].items()}
        loss, gradients, stats = self.strategy.run(self.replica, (batch, stats, self.split(random)))
        local = self.strategy.experimental_local_results
        self.stats = [{k: local(v)[r] for k, v in stats.items()} for r in range(self.cores)]
        return [x.numpy() for x in local(loss)], {k: local(g)[0].numpy() for k, g in gradients.items()}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("dump")
    arguments.add_argument("out")
    arguments.add_argument("--corner", choices=["R", "S"], default="R")
    options = arguments.parse_args()
    dump = Dump(options.dump)
    trainer = Trainer(dump, options.corner == "S")
    recorder = Recorder(dump.steps)
    for i in range(dump.steps):
        recorder.step(i, *trainer.step(i))
    state = {k: v.numpy() for k, v in {**trainer.params, **trainer.stats[0]}.items()}
    write_result(options.out, "tf", tf.__version__, recorder, state)


if __name__ == "__main__":
    main()

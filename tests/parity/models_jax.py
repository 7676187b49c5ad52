"""A dumped scenario in JAX: layers in jax.numpy and lax, optimizers of optax, all of it float32.

    build/parity/venv-jax/bin/python tests/parity/models_jax.py digits_mlp.h5 jax.h5 [--corner S] [--wrong NAME]

A new layer is an entry of LAYERS, an optimizer one of OPTIMIZERS. --corner S trains on as many host devices as the scenario
has cores, gradients summed by psum. --wrong makes one deliberate mistake (wrong_jax.py): the suite must see it.
"""
import argparse
import os
import types

from dump_file import Dump, Recorder, stride_of, walk, write_result

arguments = argparse.ArgumentParser()
arguments.add_argument("dump")
arguments.add_argument("out")
arguments.add_argument("--corner", choices=["R", "S"], default="R")
arguments.add_argument("--wrong")
options = arguments.parse_args()
dump = Dump(options.dump)
os.environ["JAX_PLATFORMS"] = "cpu"
if options.corner == "S":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={dump.cores}"

import jax  # noqa: E402  (after the flags)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax import lax  # noqa: E402

jax.config.update("jax_default_matmul_precision", "highest")


# ---- layers: function(context, layer, x..) --------------------------------------------------------------------------------

def dense(c, layer, x):
    y = x @ c.params[layer["name"] + "/kernel"]
    return y + c.params[layer["name"] + "/bias"] if layer["bias"] else y


def conv2d(c, layer, x):
    s = stride_of(layer)
    y = lax.conv_general_dilated(x, c.params[layer["name"] + "/kernel"], (s, s), layer["padding"].upper(),
                                 dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + c.params[layer["name"] + "/bias"] if layer["bias"] else y


def window(layer, x, start, reducer):
    w, s = layer["window"], stride_of(layer)
    return lax.reduce_window(x, start, reducer, (1, w, w, 1), (1, s, s, 1), layer["padding"].upper())


def max_pool(_, layer, x):
    return window(layer, x, -jnp.inf, lax.max)


def avg_pool(_, layer, x):
    return window(layer, x, 0.0, lax.add) / window(layer, jnp.ones_like(x), 0.0, lax.add)


def flatten(_c, _layer, x):
    return x.reshape(x.shape[0], -1)


def relu(_c, _layer, x):
    return jax.nn.relu(x)


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


def dropout(c, layer, x):
    keep = c.random[layer["name"] + "/rng_uniform"] >= np.float32(layer["rate"])
    return jnp.where(keep, x / (1 - layer["rate"]), 0.0)


LAYERS = {f.__name__: f for f in (dense, conv2d, max_pool, avg_pool, flatten, relu, batch_norm, dropout)}


# ---- losses: function(logits, labels) -> one number per sample ------------------------------------------------------------

def softmax_cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def mean_squared_error(logits, labels):
    return jnp.mean((logits - jax.nn.one_hot(labels, logits.shape[-1])) ** 2, -1)


LOSSES = {f.__name__: f for f in (softmax_cross_entropy, mean_squared_error)}


# ---- optimizers: function(settings) -> (optax transformation, its settings at a step) -------------------------------------

def sgd(_):
    return optax.inject_hyperparams(optax.sgd)(learning_rate=0.0), lambda _: {}


def momentum(o):
    make = optax.inject_hyperparams(optax.sgd, static_args=("momentum", "nesterov"))
    return make(learning_rate=0.0, momentum=o["momentum"], nesterov=o["nesterov"]), lambda _: {}


def adam(o):
    # optax divides by sqrt(v / (1 - b2^t)) + eps; TensorFlow's epsilon hat is eps * sqrt(1 - b2^t).
    make = optax.inject_hyperparams(optax.adam, static_args=("b1", "b2"))
    return (make(learning_rate=0.0, b1=o["beta1"], b2=o["beta2"], eps=o["epsilon"]),
            lambda step: {"eps": o["epsilon"] / np.sqrt(1 - o["beta2"] ** (step + 1))})


OPTIMIZERS = {f.__name__: f for f in (sgd, momentum, adam)}


# ---- training -------------------------------------------------------------------------------------------------------------

def forward(params, stats, inputs, random, across, synced_cores):
    c = types.SimpleNamespace(framework="jax", params=params, stats=stats, random=random, updates={}, across=across,
                              synced_cores=synced_cores)
    per_sample = LOSSES[dump.loss["kind"]](walk(dump.layers, LAYERS, c, inputs["images"]), inputs["labels"])
    return (jnp.mean if dump.loss["reduction"] == "mean" else jnp.sum)(per_sample), {**stats, **c.updates}


def whole_step(params, stats, inputs, random):
    compute = jax.value_and_grad(forward, has_aux=True)
    (loss, stats), gradients = compute(params, stats, inputs, random, lambda x: x, 1)
    return loss[None], stats, gradients


def sharded_step():
    """One device per core: its rows of the batch, statistics of its own, gradients reduced over all."""
    mesh = jax.make_mesh((dump.cores,), ("cores",), axis_types=(jax.sharding.AxisType.Auto,))
    synced = dump.tpu["batchnorm"] == "synced"
    reduce = lax.pmean if dump.tpu["reduction"] == "mean" else lax.psum
    across = (lambda x: lax.pmean(x, "cores")) if synced else lambda x: x

    def one_core(params, stats, inputs, random):
        own = jax.tree.map(lambda s: s[0], stats)
        compute = jax.value_and_grad(forward, has_aux=True)
        (loss, own), gradients = compute(params, own, inputs, random, across, dump.cores if synced else 1)
        return loss[None], jax.tree.map(lambda s: s[None], own), reduce(gradients, "cores")

    p, rows = jax.P(), jax.P("cores")
    return jax.shard_map(one_core, mesh=mesh, in_specs=(p, rows, rows, rows), out_specs=(rows, rows, p), check_vma=False)


def main():
    if options.wrong:
        import wrong_jax
        wrong_jax.apply(options.wrong, globals())
    sharded = options.corner == "S"
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
        batch = {k: jnp.asarray(v) for k, v in inputs.items() if k in ("images", "labels")}
        losses, stats, gradients = step_function(params, stats, batch, random)
        recorder.step(i, losses, gradients)
        for key, value in {"learning_rate": rate, **settings(i)}.items():
            slots.hyperparams[key] = jnp.float32(value)
        params, slots = update(params, slots, gradients)
    first = {k: v[0] for k, v in stats.items()} if sharded else stats
    write_result(options.out, "jax", f"{jax.__version__}, optax {optax.__version__}", recorder, {**params, **first})


if __name__ == "__main__":
    main()

"""Mistakes on a mesh that sharding_models.py has not, for causes_test.py. A case is (step, state, batch) or (step, state, batch, whole)."""

import jax
import jax.numpy as jnp
import sharding_models as m
from jax import lax
from jax.sharding import PartitionSpec as P

tree_map = jax.tree_util.tree_map


def step_of(body, rows=True):
    spec = P("data") if rows else P()
    inner = m.shard_map(body, m.mesh(8), (P(), spec, spec), (P(), P()))
    return jax.jit(lambda p, b: inner(p, *b)), m.params(), m.batch()


def averages(of_layer):
    """Batch norm whose variance, or else whose running variance alone, is the mean of the devices' own."""

    def loss(p, x, y):
        z = x @ p["w1"]
        mean = lax.pmean(jnp.mean(z, 0), "data")
        averaged = lax.pmean(jnp.mean((z - jnp.mean(z, 0)) ** 2, 0), "data")
        var = averaged if of_layer else lax.pmean(jnp.mean((z - mean) ** 2, 0), "data")
        h = (z - mean) * lax.rsqrt(var + 1e-5)
        return jnp.mean((jax.nn.relu(h * p["b1"]) @ p["w2"] - y) ** 2), (mean, averaged)

    def body(state, x, y):
        p, stats = state["params"], state["batch_stats"]
        (value, (mean, var)), g = jax.value_and_grad(loss, has_aux=True)(p, x, y)
        stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}
        return {"params": m.descend(p, m.mean(g)), "batch_stats": stats}, lax.pmean(value, "data")

    inner = m.shard_map(body, m.mesh(8), (P(), P("data"), P("data")), (P(), P()))
    state = {"params": m.params(), "batch_stats": {"mean": jnp.zeros(8), "var": jnp.ones(8)}}
    return (lambda s, b: inner(s, *b)), state, m.batch()


def spread():
    """A layer that adds how far the samples lie apart, of each device's own."""

    def loss(p, x, y):
        h = jnp.tanh(x @ p["w1"] + p["b1"])
        return jnp.mean((h @ p["w2"] + jnp.sqrt(jnp.var(h, 0) + 1e-6).mean() - y) ** 2)

    return m.data_parallel(m.mean, loss)


def penalty(p):
    return 0.01 * sum(jnp.sum(w**2) for w in jax.tree_util.tree_leaves(p))


def decayed():
    """A sum of gradients, each with the whole penalty."""
    return m.data_parallel(
        lambda g: lax.psum(g, "data"), lambda p, x, y: jnp.sum((m.forward(p, x) - y) ** 2) / 96 + penalty(p), report=lax.psum
    )


def of_one_device():
    return m.data_parallel(m.mean, lambda p, x, y: m.mse(p, x, y) + jnp.where(lax.axis_index("data") == 0, penalty(p), 0.0))


def rate(change):
    def body(p, x, y):
        value, g = jax.value_and_grad(m.mse)(p, x, y)
        lr = change(0.1, lax.psum(1, "data"))
        return tree_map(lambda a, b: a - lr * b, p, m.mean(g)), lax.pmean(value, "data")

    return step_of(body)


def shards(place):
    """Each device takes the rows of device place(i) out of the batch that all are given."""

    def body(p, x, y):
        rows = x.shape[0] // lax.psum(1, "data")
        first = place(lax.axis_index("data")) * rows
        x, y = (lax.dynamic_slice_in_dim(v, first, rows) for v in (x, y))
        value, g = jax.value_and_grad(m.mse)(p, x, y)
        return m.descend(p, m.mean(g)), lax.pmean(value, "data")

    return step_of(body, rows=False)


def remainder():
    """The last two rows of the last device are left out of its mean."""

    def loss(p, x, y):
        last = lax.axis_index("data") == lax.psum(1, "data") - 1
        real = jnp.where(last & (jnp.arange(x.shape[0]) >= x.shape[0] - 2), 0.0, 1.0)
        return jnp.sum(jnp.mean((m.forward(p, x) - y) ** 2, 1) * real) / jnp.sum(real)

    return m.data_parallel(m.mean, loss)


def optimizer_first():
    """Each device takes a step by its own gradient, and the parameters are averaged."""

    def body(p, x, y):
        value, g = jax.value_and_grad(m.mse)(p, x, y)
        return m.mean(tree_map(lambda a, b: a - 0.1 * b / (jnp.abs(b) + 1e-3), p, g)), lax.pmean(value, "data")

    return step_of(body)


def shard_norm():
    """The step of fsdp() that clips by the norms of shards, beside its step on one device."""

    def whole(p, b):
        value, g = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(b[0] @ p["w1"]) @ p["w2"] - b[1]) ** 2))(p)
        return m.descend(p, m.shard_clip(lambda s: s)(g)), value

    return (*m.fsdp(clip=m.shard_clip(lambda s: s)), whole)


PLANTS = {
    "averaged_variance": lambda: averages(True),
    "averaged_statistics": lambda: averages(False),
    "batch_wise": spread,
    "l2": decayed,
    "repeated_term": decayed,
    "rank": of_one_device,
    "rate_times_cores": lambda: rate(lambda lr, n: lr * n),
    "rate_over_cores": lambda: rate(lambda lr, n: lr / n),
    "same_shard": lambda: shards(lambda i: 0),
    "shard_twice": lambda: shards(lambda i: jnp.where(i == 1, 0, i)),
    "remainder_dropped": remainder,
    "late_reduction": optimizer_first,
    "shard_norm": shard_norm,
}
HEALTHY = {"own shards": lambda: shards(lambda i: i)}

"""Small steps on a mesh for sharding_test.py: what healthy code looks like, and how it goes wrong.

A case is (step, state, batch, whole or None); `mesh(4, 2)` has the axes data and model.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

tree_map = jax.tree_util.tree_map


def shard_map(f, mesh, in_specs, out_specs, check=False):
    """jax.shard_map of any version."""
    if hasattr(jax, "shard_map"):
        return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check)
    from jax.experimental.shard_map import shard_map as old

    return old(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=check)


def mesh(*shape, names=("data", "model")):
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), names[: len(shape)])


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def params():
    return {"w1": 0.5 * normal(0, 5, 8), "b1": 0.1 * normal(1, 8), "w2": 0.5 * normal(2, 8, 3)}


def batch(rows=32):
    return normal(3, rows, 5), normal(4, rows, 3)


def forward(p, x):
    return jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]


def mse(p, x, y):
    return jnp.mean((forward(p, x) - y) ** 2)


def descend(p, g):
    return tree_map(lambda a, b: a - 0.1 * b, p, g)


def clipped(g, most=0.1):
    norm = jnp.sqrt(sum(jnp.sum(v**2) for v in jax.tree_util.tree_leaves(g)))
    return tree_map(lambda v: v * jnp.minimum(1.0, most / norm), g)


def data_parallel(reduce, loss=mse, axes="data", shape=(8,), spec=None, report=lax.pmean, check=False):
    """A step whose devices differentiate the loss of their own rows and then `reduce` the gradient."""

    def body(p, x, y):
        value, g = jax.value_and_grad(loss)(p, x, y)
        return descend(p, reduce(g)), report(value, axes)

    spec = P(axes) if spec is None else spec
    inner = shard_map(body, mesh(*shape), (P(), spec, spec), (P(), P()), check)
    return jax.jit(lambda p, b: inner(p, *b)), params(), batch()


def mean(g):
    return lax.pmean(g, "data")


# ---- numbers that are written for the mesh, and sums that come twice -------------------------


def vocabulary(masked=True):
    """An embedding whose rows are divided over the devices, with the size of a shard written in the code."""

    def body(p, ids, y):
        at = ids - lax.axis_index("data") * 8
        rows = p["e"][jnp.clip(at, 0, 7)]
        rows = jnp.where(((at >= 0) & (at < 8))[..., None], rows, 0) if masked else rows
        return jnp.mean((lax.psum(rows, "data").mean(1) @ p["w"] - y) ** 2)

    inner = shard_map(body, mesh(8), ({"e": P("data"), "w": P()}, P(), P()), P(), True)

    def step(p, b):
        loss, g = jax.value_and_grad(lambda p: inner(p, *b))(p)
        return descend(p, g), loss

    ids = jnp.asarray(np.random.default_rng(5).integers(0, 64, (16, 4)), jnp.int32)
    return jax.jit(step), {"e": normal(6, 64, 5), "w": normal(7, 5, 3)}, (ids, normal(8, 16, 3))


def token_share(count):
    """The loss of a device is its share of the mean over all real tokens."""
    weights = jnp.asarray(np.arange(32) % 8 < np.arange(32) // 4 + 1, jnp.float32)

    def loss(p, x, y):
        at = lax.axis_index("data") * 4
        w = lax.dynamic_slice_in_dim(weights, at, x.shape[0])
        return count(jnp.sum(jnp.sum((forward(p, x) - y) ** 2, 1) * w), lax.psum(jnp.sum(w), "data"))

    return data_parallel(mean, loss)


def bias_before_sum(before):
    """A dense layer divided over its inputs, whose bias is added before or after the sum."""

    def body(p, x, y):
        h = jnp.tanh(x @ p["w1"]) @ p["w2"]
        out = lax.psum(h + p["b2"], "data") if before else lax.psum(h, "data") + p["b2"]
        return jnp.mean((out - y) ** 2)

    inner = shard_map(body, mesh(8), ({"w1": P(None, "data"), "w2": P("data"), "b2": P()}, P(), P()), P(), True)

    def step(p, b):
        loss, g = jax.value_and_grad(lambda p: inner(p, *b))(p)
        return descend(p, g), loss

    state = {"w1": 0.5 * normal(0, 5, 8), "w2": 0.5 * normal(2, 8, 3), "b2": normal(1, 3)}
    return jax.jit(step), state, batch()


def micro_batches(vary=lambda v: v):
    """Gradients of four micro-batches, by parameters that are the same on all devices, which shard_map sums itself."""

    def body(p, x, y):
        own = tree_map(vary, p)
        xs, ys = x.reshape(4, -1, 5), y.reshape(4, -1, 3)
        total = tree_map(jnp.zeros_like, own)
        for i in range(4):
            total = tree_map(jnp.add, total, jax.grad(mse)(own, xs[i], ys[i]))
        return descend(p, mean(tree_map(lambda g: g / 4, total))), lax.pmean(mse(p, x, y), "data")

    inner = shard_map(body, mesh(8), (P(), P("data"), P("data")), (P(), P()), True)
    return jax.jit(lambda p, b: inner(p, *b)), params(), batch()


def pairs(gather):
    """A contrastive loss: each sample against all others, of all devices or of its own only."""

    def body(p, x, y):
        def loss(p):
            u, v = x @ p["w1"], gather(jnp.tanh(y @ p["w2"].T))
            own = jnp.arange(x.shape[0]) + (lax.axis_index("data") * x.shape[0] if v.shape[0] > x.shape[0] else 0)
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(u @ v.T), own[:, None], 1))

        value, g = jax.value_and_grad(loss)(p)
        return descend(p, mean(g)), lax.pmean(value, "data")

    inner = shard_map(body, mesh(8), (P(), P("data"), P("data")), (P(), P()))
    return jax.jit(lambda p, b: inner(p, *b)), params(), batch()


def owned():
    """An embedding whose rows are looked up by the device that owns them: ids // 8 and ids % 8."""

    def body(p, ids, y):
        rows = p["e"][ids % 8]
        mine = (ids // 8 == lax.axis_index("data"))[..., None]
        return jnp.mean((lax.psum(jnp.where(mine, rows, 0), "data").mean(1) @ p["w"] - y) ** 2)

    inner = shard_map(body, mesh(8), ({"e": P("data"), "w": P()}, P(), P()), P(), True)

    def step(p, b):
        loss, g = jax.value_and_grad(lambda p: inner(p, *b))(p)
        return descend(p, g), loss

    return jax.jit(step), vocabulary()[1], vocabulary()[2]


def one_part(device):
    """Trains on the rows of one device only: on one device this code trains on none."""

    def loss(p, x, y):
        return mse(p, x, y) * jnp.where(lax.axis_index("data") == device, 8.0, 0.0)

    return data_parallel(mean, loss)


def on_rows(first, last):
    """Returns the step of data_parallel on one device, of a part of the batch."""

    def step(p, b):
        value, g = jax.value_and_grad(mse)(p, *(a[first:last] for a in b))
        return descend(p, g), value

    return step


# ---- batch norm ------------------------------------------------------------------------------


def normalised(x, across):
    m = across(jnp.mean(x, 0))
    v = jnp.maximum(0.0, across(jnp.mean(x**2, 0)) - m**2)
    return (x - m) * lax.rsqrt(v + 1e-5), m, v


def normed(total=jnp.mean, across=mean):
    """A loss with synced batch norm, in which the gradient of b1 cancels."""

    def loss(p, x, y):
        h, _, _ = normalised(x @ p["w1"] + p["b1"], across)
        return total((jax.nn.relu(h) @ p["w2"] - y) ** 2)

    return loss


def batch_norm(across, statistics=mean):
    """A layer with batch norm and running statistics; `across` is what is done to the statistics of a device."""

    def loss(p, x, y):
        h, m, v = normalised(x @ p["w1"], across)
        if statistics is not mean:
            _, m, v = normalised(x @ p["w1"], lambda s: s)
        return jnp.mean((jax.nn.relu(h * p["b1"]) @ p["w2"] - y) ** 2), (m, v)

    def body(state, x, y):
        p, stats = state["params"], state["batch_stats"]
        (value, (m, v)), g = jax.value_and_grad(loss, has_aux=True)(p, x, y)
        m, v = statistics((m, v))
        stats = {"mean": 0.9 * stats["mean"] + 0.1 * m, "var": 0.9 * stats["var"] + 0.1 * v}
        return {"params": descend(p, mean(g)), "batch_stats": stats}, lax.pmean(value, "data")

    inner = shard_map(body, mesh(8), (P(), P("data"), P("data")), (P(), P()))
    state = {"params": params(), "batch_stats": {"mean": jnp.zeros(8), "var": jnp.ones(8)}}
    return (lambda s, b: inner(s, *b)), state, batch()


# ---- masked tokens, dropout ------------------------------------------------------------------


def masked(total, reduce=mean):
    """A loss over tokens of which devices hold unequal numbers; total(sum, count) is the loss of a device."""

    def body(p, x, y, mask):
        def loss(p):
            each = jnp.mean((forward(p, x) - y) ** 2, -1)
            return total(jnp.sum(each * mask), jnp.sum(mask))

        value, g = jax.value_and_grad(loss)(p)
        return descend(p, reduce(g)), lax.pmean(value, "data")

    mask = jnp.asarray(
        np.arange(32) < np.repeat([4, 1, 3, 2, 4, 4, 2, 3], 4) + np.repeat(np.arange(8) * 4, 4), jnp.float32
    )
    inner = shard_map(body, mesh(8), (P(), P("data"), P("data"), P("data")), (P(), P()))
    return (lambda p, b: inner(p, *b)), params(), (*batch(), mask)


def dropout(fold):
    """Dropout by a key that the step is given; fold(key) is the key of a device."""

    def body(p, x, y, key):
        key = fold(key)

        def loss(p):
            h = jnp.tanh(x @ p["w1"] + p["b1"])
            h = h * jax.random.bernoulli(key, 0.7, h.shape) / 0.7
            return jnp.mean((h @ p["w2"] - y) ** 2)

        value, g = jax.value_and_grad(loss)(p)
        return descend(p, mean(g)), lax.pmean(value, "data")

    inner = shard_map(body, mesh(8), (P(), P("data"), P("data"), P()), (P(), P()))
    return (lambda p, b: inner(p, *b)), params(), (*batch(), jax.random.PRNGKey(3))


def weight_noise(fold):
    """Noise on the weights, which all devices must draw alike."""

    def body(p, x, y, key):
        noise = tree_map(lambda w: 0.1 * jax.random.normal(fold(key), w.shape), p)
        value, g = jax.value_and_grad(lambda p: mse(tree_map(jnp.add, p, noise), x, y))(p)
        return descend(p, mean(g)), lax.pmean(value, "data")

    inner = shard_map(body, mesh(8), (P(), P("data"), P("data"), P()), (P(), P()))
    return (lambda p, b: inner(p, *b)), params(), (*batch(), jax.random.PRNGKey(3))


# ---- sharded state ---------------------------------------------------------------------------


def fsdp(gather_axis=0, scatter=None, clip=None):
    """Parameters in shards: gathered for the loss, their gradients summed into shards."""

    def body(p, x, y):
        full = {k: lax.all_gather(v, "data", axis=gather_axis if v.ndim > 1 else 0, tiled=True) for k, v in p.items()}
        value, g = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2))(full)
        g = tree_map(scatter or (lambda v: lax.psum_scatter(v, "data", tiled=True) / lax.psum(1, "data")), g)
        if clip:
            g = clip(g)
        return descend(p, g), lax.pmean(value, "data")

    state = {"w1": 0.5 * normal(0, 8, 8), "w2": 0.5 * normal(1, 8, 8)}
    specs = {"w1": P("data"), "w2": P("data")}
    inner = shard_map(body, mesh(8), (specs, P("data"), P("data")), (specs, P()))
    return (lambda p, b: inner(p, *b)), state, (normal(2, 32, 8), normal(3, 32, 8))


def slices(place=lambda i, n: i):
    """Each device keeps its rows of the summed gradient, as an optimizer with sharded state does."""

    def body(p, x, y):
        full = lax.all_gather(p["w"], "data", tiled=True)
        value, g = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(full)
        rows, n = p["w"].shape[0], lax.psum(1, "data")
        own = lax.dynamic_slice_in_dim(lax.pmean(g, "data"), place(lax.axis_index("data"), n) * rows, rows)
        return {"w": p["w"] - 0.1 * own}, lax.pmean(value, "data")

    inner = shard_map(body, mesh(8), ({"w": P("data")}, P("data"), P("data")), ({"w": P("data")}, P()))
    return (lambda p, b: inner(p, *b)), {"w": 0.5 * normal(0, 16, 3)}, (normal(2, 32, 16), normal(3, 32, 3))


def shard_clip(total):
    def clip(g):
        squares = sum(jnp.sum(v**2) for v in jax.tree_util.tree_leaves(g))
        return tree_map(lambda v: v * jnp.minimum(1.0, 0.1 / jnp.sqrt(total(squares))), g)

    return clip


def tensor_parallel(
    inner_sum=lambda v: lax.psum(v, "model"),
    reduce=mean,
    shared=lambda g: lax.psum(g, "model"),
    share=lambda v: v / lax.psum(1, "model"),
):
    """Two axes: columns of w1 and rows of w2 over model, the batch over data; it sums derivatives itself."""

    def body(p, x, y):
        def loss(p):
            h = jnp.tanh((x * p["scale"]) @ p["w1"])
            out = inner_sum(h @ p["w2"])
            # Each device along model computes the same loss: its derivative is taken once.
            whole = jnp.mean((out - y) ** 2)
            return share(whole), whole

        (_, value), g = jax.value_and_grad(loss, has_aux=True)(p)
        g["scale"] = shared(g["scale"])
        return descend(p, reduce(g)), lax.pmean(value, ("data", "model"))

    specs = {"w1": P(None, "model"), "w2": P("model", None), "scale": P()}
    state = {"w1": 0.5 * normal(0, 5, 8), "w2": 0.5 * normal(1, 8, 3), "scale": 1 + 0.1 * normal(2, 5)}
    inner = shard_map(body, mesh(4, 2), (specs, P("data"), P("data")), (specs, P()))
    return (lambda p, b: inner(p, *b)), state, batch()


def experts(split=0, concat=0):
    """A mixture of experts: rows travel to the device of their expert and back, by all_to_all."""

    def body(p, x, y):
        def loss(p):
            rows = x.reshape(8, 8, 5)  # eight rows for each of the eight experts, in a fixed order
            sent = lax.all_to_all(rows, "data", split, concat, tiled=True)  # now from each of the eight devices
            out = jnp.tanh(sent @ p["up"][0])
            out = lax.all_to_all(out, "data", split, concat, tiled=True)
            return jnp.mean((out.reshape(-1, 8) @ p["down"] - y) ** 2)

        value, g = jax.value_and_grad(loss)(p)
        # An expert's gradient holds the rows of all devices already.
        return descend(p, {"up": g["up"] / lax.psum(1, "data"), "down": lax.pmean(g["down"], "data")}), lax.pmean(
            value, "data"
        )

    specs = {"up": P("data"), "down": P()}
    inner = shard_map(body, mesh(8), (specs, P("data"), P("data")), (specs, P()))
    state = {"up": normal(0, 8, 5, 8), "down": normal(1, 8, 3)}
    return (lambda p, b: inner(p, *b)), state, (normal(2, 512, 5), normal(3, 512, 3))


def experts_whole(p, b):
    """The mixture of experts on one device: 64 rows of each device, eight for each expert."""
    x, y = b

    def loss(p):
        rows = x.reshape(8, 8, 8, 5)  # device, expert, row
        out = jnp.tanh(jnp.einsum("nerd,edh->nerh", rows, p["up"]))
        return jnp.mean((out.reshape(-1, 8) @ p["down"] - y) ** 2)

    value, g = jax.value_and_grad(loss)(p)
    return descend(p, g), value


def pipeline(direction=1):
    """Four stages, one a device, that pass activations on by ppermute."""

    def body(p, x, y):
        n = 4

        def loss(p):
            h, here = x, lax.axis_index("stage")
            for _ in range(n):
                h = jnp.tanh(h @ p["w"][0])
                h = lax.ppermute(h, "stage", [(i, (i + direction) % n) for i in range(n)])
            # What device 0 began with has gone through all stages in order and is back there.
            return jnp.where(here == 0, jnp.mean((h - y) ** 2), 0.0)

        value, g = jax.value_and_grad(loss)(p)
        return descend(p, g), lax.psum(value, "stage")

    inner = shard_map(body, mesh(4, names=("stage",)), ({"w": P("stage")}, P(), P()), ({"w": P("stage")}, P()))
    return (lambda p, b: inner(p, *b)), {"w": 0.6 * normal(0, 4, 6, 6)}, (normal(1, 16, 6), normal(2, 16, 6))


def pipeline_whole(p, b):
    x, y = b

    def loss(p):
        h = x
        for i in range(4):
            h = jnp.tanh(h @ p["w"][i])
        return jnp.mean((h - y) ** 2)

    value, g = jax.value_and_grad(loss)(p)
    return descend(p, g), value


def halo(direction=1):
    """A convolution along an axis that is divided: each device gets the last element of its neighbour."""

    def body(p, x, y):
        def loss(p):
            n = lax.psum(1, "data")
            left = lax.ppermute(x[-1:], "data", [(i, (i + direction) % n) for i in range(n)])
            padded = jnp.concatenate([left, x])
            return jnp.mean((jnp.tanh(padded[1:] * p["a"] + padded[:-1] * p["b"]) - y) ** 2)

        value, g = jax.value_and_grad(loss)(p)
        return descend(p, mean(g)), lax.pmean(value, "data")

    inner = shard_map(body, mesh(8), (P(), P("data"), P("data")), (P(), P()))
    return (lambda p, b: inner(p, *b)), {"a": normal(0, 3), "b": normal(1, 3)}, (normal(2, 32, 3), normal(3, 32, 3))


def similarities(order=None, place=lambda i, n: i):
    """A loss over all pairs of samples: features are gathered; order(features) may mix them up."""

    def body(p, x, y):
        def loss(p):
            a, b = x @ p["w1"], y @ p["w2"].T
            every = lax.all_gather(b, "data", tiled=True)
            if order is not None:
                every = lax.all_gather(order(b), "data", tiled=True)
            logits = a @ every.T
            own = place(lax.axis_index("data"), lax.psum(1, "data")) * a.shape[0] + jnp.arange(a.shape[0])
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), own[:, None], 1))

        value, g = jax.value_and_grad(loss)(p)
        return descend(p, mean(g)), lax.pmean(value, "data")

    inner = shard_map(body, mesh(8), (P(), P("data"), P("data")), (P(), P()))
    return (lambda p, b: inner(p, *b)), params(), batch()


# ---- pmap and jit ----------------------------------------------------------------------------


def replicated(reduce, report=lambda v: lax.pmean(v, "batch")):
    """pmap: a copy of the state for each device, the batch as [device, row, ...]."""

    @functools.partial(jax.pmap, axis_name="batch")
    def step(p, b):
        value, g = jax.value_and_grad(mse)(p, *b)
        return descend(p, reduce(g)), report(value)

    copies = tree_map(lambda v: jnp.stack([v] * 8), params())
    return step, copies, tuple(v.reshape(8, 4, -1) for v in batch())


def replicated_with_keys(keys):
    """pmap with dropout, by a key for each device."""

    @functools.partial(jax.pmap, axis_name="batch")
    def step(p, b):
        x, y, key = b
        dropped = x * jax.random.bernoulli(key, 0.7, x.shape) / 0.7
        value, g = jax.value_and_grad(mse)(p, dropped, y)
        return descend(p, lax.pmean(g, "batch")), lax.pmean(value, "batch")

    copies = tree_map(lambda v: jnp.stack([v] * 8), params())
    return step, copies, (*(v.reshape(8, 4, -1) for v in batch()), keys)


def annotated():
    """jit with NamedSharding: the program's meaning does not depend on it."""
    m = mesh(4, 2)
    here = {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None)}
    p = {k: jax.device_put(v, NamedSharding(m, here[k])) for k, v in params().items()}
    b = tuple(jax.device_put(v, NamedSharding(m, P("data"))) for v in batch())

    @jax.jit
    def step(p, b):
        x = lax.with_sharding_constraint(b[0], NamedSharding(m, P("data", None)))
        value, g = jax.value_and_grad(mse)(p, x, b[1])
        return descend(p, g), value

    return step, p, b


def typed(reduce):
    """A mesh whose axes belong to the types of arrays, as jax.make_mesh makes them."""
    m = Mesh(np.array(jax.devices()), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))

    def body(p, x, y):
        value, g = jax.value_and_grad(mse)(p, x, y)
        return descend(p, reduce(g)), lax.pmean(value, "data")

    inner = shard_map(body, m, (P(), P("data"), P("data")), (P(), P()))
    here = jax.device_put((params(), batch()), (NamedSharding(m, P()), NamedSharding(m, P("data"))))
    return jax.jit(lambda p, b: inner(p, *b)), *here


def automatic():
    """The derivative outside of shard_map, which sums it by itself."""
    inner = shard_map(lambda p, x, y: lax.pmean(mse(p, x, y), "data"), mesh(8), (P(), P("data"), P("data")), P(), True)

    @jax.jit
    def step(p, b):
        value, g = jax.value_and_grad(inner)(p, *b)
        return descend(p, g), value

    return step, params(), batch()


def scanned(reduce):
    """Gradient accumulation in a loop, two micro-batches on each device."""

    def body(p, x, y):
        def micro(total, b):
            value, g = jax.value_and_grad(mse)(p, *b)
            return tree_map(lambda a, b: a + b / 2, total, g), value

        g, values = lax.scan(micro, tree_map(jnp.zeros_like, p), (x.reshape(2, -1, 5), y.reshape(2, -1, 3)))
        return descend(p, reduce(g)), lax.pmean(values.mean(), "data")

    inner = shard_map(body, mesh(8), (P(), P("data"), P("data")), (P(), P()))
    return (lambda p, b: inner(p, *b)), params(), batch()

"""Healthy JAX training steps in the forms that people write them in: name -> function that returns (step, state, batches).

`several` spreads the batches over all devices of the process."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

try:
    import flax.linen as nn
    import optax
    from flax.training import train_state
except ImportError:  # the models that need them are left out
    nn = None

tree_map = jax.tree_util.tree_map


def rows(seed, *shapes):
    random = np.random.default_rng(seed)
    return [random.normal(size=s).astype("float32") for s in shapes]


def cross_entropy(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))


def images(count=3, side=8, channels=1, size=16):
    random = np.random.default_rng(7)
    return [
        {"image": random.normal(size=(size, side, side, channels)).astype("f4"),
         "label": random.integers(0, 10, size).astype("i4")}
        for _ in range(count)
    ]  # fmt: skip


def tokens(count=3, size=8, length=12, words=29):
    random = np.random.default_rng(8)
    return [random.integers(0, words, (size, length)).astype("i4") for _ in range(count)]


def mlp():
    """Plain SGD with momentum; params, velocity and loss as three results."""
    w1, w2 = rows(0, (12, 32), (32, 4))
    params = {"w1": w1 * 0.3, "b1": np.zeros(32, "f4"), "w2": w2 * 0.3}

    def loss_of(params, x, y):
        return jnp.mean((jax.nn.gelu(x @ params["w1"] + params["b1"]) @ params["w2"] - y) ** 2)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, velocity, x, y):
        loss, g = jax.value_and_grad(loss_of)(params, x, y)
        velocity = tree_map(lambda v, g: 0.9 * v + g, velocity, g)
        return tree_map(lambda p, v: p - 0.1 * v, params, velocity), velocity, loss

    batches = [tuple(rows(i, (16, 12), (16, 4))) for i in range(3)]
    return step, (params, tree_map(np.zeros_like, params)), batches


def rnn():
    """lax.scan over time, not jitted, loss first; a PRNG key of the old kind in the state."""
    w, u, o = rows(1, (8, 16), (16, 16), (16, 3))
    params = {"w": w * 0.3, "u": u * 0.2, "o": o * 0.3}

    def loss_of(params, x, y, key):
        h, _ = jax.lax.scan(lambda h, x: (jnp.tanh(x @ params["w"] + h @ params["u"]), None), jnp.zeros((16, 16)), x)
        keep = jax.random.bernoulli(key, 0.8, h.shape)
        return cross_entropy(jnp.where(keep, h / 0.8, 0) @ params["o"], y)

    def step(state, batch):
        key, now = jax.random.split(state["key"])
        loss, g = jax.value_and_grad(loss_of)(state["params"], batch["x"], batch["y"], now)
        return loss, {"params": tree_map(lambda p, g: p - 0.1 * g, state["params"], g), "key": key}

    random = np.random.default_rng(3)
    batches = [{"x": random.normal(size=(10, 16, 8)).astype("f4"), "y": random.integers(0, 3, 16)} for _ in range(3)]
    return step, {"params": params, "key": jax.random.PRNGKey(0)}, batches


def transformer():
    """One block of attention written by hand, layer norm, embedding, Adam by hand; half precision in the middle."""
    e, q, k, v, o, f = rows(2, (29, 16), (16, 16), (16, 16), (16, 16), (16, 16), (16, 64))
    params = {"e": e, "q": q * 0.2, "k": k * 0.2, "v": v * 0.2, "o": o * 0.2, "f": f * 0.2, "g": f.T.copy() * 0.1}

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss_of(p, t):
        x = p["e"][t[:, :-1]]
        h = norm(x)
        s = jnp.einsum("btd,bsd->bts", h @ p["q"], h @ p["k"]) / 4
        s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -1e9)
        x = x + jax.nn.softmax(s) @ (h @ p["v"]) @ p["o"]
        wide = jax.nn.silu(norm(x).astype(jnp.bfloat16) @ p["f"].astype(jnp.bfloat16)).astype(jnp.float32)
        x = x + wide @ p["g"]
        return cross_entropy(norm(x) @ p["e"].T, t[:, 1:])

    @jax.jit
    def step(state, batch):
        loss, g = jax.value_and_grad(loss_of)(state["params"], batch)
        n = state["count"] + 1
        m = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], g)
        v = tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], g)
        params = tree_map(
            lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**n)) / (jnp.sqrt(v / (1 - 0.999**n)) + 1e-8), state["params"], m, v
        )
        return dict(params=params, m=m, v=v, count=n), {"loss": loss, "words": batch.size}

    zeros = tree_map(np.zeros_like, params)
    return step, dict(params=params, m=zeros, v=zeros, count=jnp.zeros((), jnp.int32)), tokens()


def conv():
    """Strided and depthwise convolutions, max pooling, by lax alone."""
    a, b, c = rows(4, (3, 3, 1, 8), (3, 3, 1, 8), (32, 10))
    params = {"a": a * 0.3, "b": b * 0.3, "c": c * 0.2}

    def loss_of(p, image, label):
        at = dict(dimension_numbers=("NHWC", "HWIO", "NHWC"))
        h = jax.nn.relu(jax.lax.conv_general_dilated(image, p["a"], (2, 2), "SAME", **at))
        h = jax.nn.relu(jax.lax.conv_general_dilated(h, p["b"], (1, 1), "SAME", feature_group_count=8, **at))
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(h.reshape(h.shape[0], -1) @ p["c"], label)

    @jax.jit
    def step(params, image, label):
        loss, g = jax.value_and_grad(loss_of)(params, image, label)
        return tree_map(lambda p, g: p - 0.05 * g, params, g), loss

    return step, params, [(b["image"], b["label"]) for b in images()]


def vae():
    """Random draws from a typed key in the batch, two losses, clipping by the global norm."""
    e, d = rows(5, (20, 8), (4, 20))

    def loss_of(p, x, key):
        m, s = jnp.split(x @ p["e"], 2, -1)
        z = m + jnp.exp(0.5 * s) * jax.random.normal(key, m.shape)
        kl = -0.5 * jnp.mean(jnp.sum(1 + s - m**2 - jnp.exp(s), -1))
        back = jnp.mean(jnp.sum((z @ p["d"] - x) ** 2, -1))
        return back + kl, {"kl": kl, "back": back}

    @jax.jit
    def step(params, x, key):
        (loss, parts), g = jax.value_and_grad(loss_of, has_aux=True)(params, x, key)
        size = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree_util.tree_leaves(g)))
        g = tree_map(lambda g: g * jnp.minimum(1.0, 1.0 / size), g)
        return tree_map(lambda p, g: p - 0.1 * g, params, g), {"loss": loss, **parts}

    make = getattr(jax.random, "key", jax.random.PRNGKey)
    return step, {"e": e * 0.2, "d": d * 0.2}, [(rows(i, (8, 20))[0], make(i)) for i in range(3)]


def experts():
    """A mixture of four experts with top_k and a while loop that counts."""
    g, w = rows(6, (8, 4), (4, 8, 8))

    def loss_of(p, x, y):
        weight, which = jax.lax.top_k(jax.nn.softmax(x @ p["g"]), 2)
        out = jnp.einsum("bd,bkde->bke", x, p["w"][which])
        return jnp.mean((jnp.einsum("bke,bk->be", jnp.tanh(out), weight) - y) ** 2)

    @jax.jit
    def step(state, batch):
        loss, g = jax.value_and_grad(loss_of)(state["p"], *batch)
        rate = jax.lax.fori_loop(0, 3, lambda i, r: r * 0.9, 0.1)
        return {"p": tree_map(lambda p, g: p - rate * g, state["p"], g), "n": state["n"] + 1}, loss

    return step, {"p": {"g": g, "w": w * 0.3}, "n": 0}, [rows(i, (8, 8), (8, 8)) for i in range(3)]


def flax_cnn():
    """Flax with batch norm and dropout; optax AdamW with a cosine schedule and clipping; TrainState."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.Conv(8, (3, 3))(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
            x = nn.avg_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
            x = nn.Dropout(0.3, deterministic=not train)(nn.relu(nn.Dense(32)(x)))
            return nn.Dense(10)(x)

    class State(train_state.TrainState):
        batch_stats: dict = None
        key: jax.Array = None

    net = Net()
    variables = net.init(jax.random.PRNGKey(0), jnp.zeros((1, 8, 8, 1)), False)
    tx = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 100), weight_decay=1e-4)
    )
    state = State.create(
        apply_fn=net.apply, params=variables["params"], tx=tx, batch_stats=variables["batch_stats"],
        key=jax.random.PRNGKey(1),
    )  # fmt: skip

    @jax.jit
    def train_step(state, batch):
        def loss_of(params):
            logits, new = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats}, batch["image"], True, mutable=["batch_stats"],
                rngs={"dropout": jax.random.fold_in(state.key, state.step)},
            )  # fmt: skip
            return cross_entropy(logits, batch["label"]), (logits, new["batch_stats"])

        (loss, (logits, stats)), g = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        state = state.apply_gradients(grads=g, batch_stats=stats)
        return state, {"loss": loss, "accuracy": jnp.mean(jnp.argmax(logits, -1) == batch["label"])}

    return train_step, state, images()


def flax_transformer():
    """Flax attention, scanned over two layers by nn.scan, remat, optax Adam."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2)(h, h)
            return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x)))), None

    class Net(nn.Module):
        @nn.compact
        def __call__(self, t):
            x = nn.Embed(29, 16)(t)
            layers = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
            x, _ = layers()(x, None)
            return nn.Dense(29)(x)

    net = Net()
    params = net.init(jax.random.PRNGKey(0), jnp.zeros((1, 11), jnp.int32))
    tx = optax.adam(1e-3)

    @jax.jit
    def step(params, opt_state, t):
        loss, g = jax.value_and_grad(lambda p: cross_entropy(net.apply(p, t[:, :-1]), t[:, 1:]))(params)
        updates, opt_state = tx.update(g, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, tx.init(params)), tokens()


def flax_lstm():
    """nn.RNN over an LSTM cell, optax with accumulation of gradients and decay."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.RNN(nn.LSTMCell(16))(x)[:, -1])

    net = Net()
    params = net.init(jax.random.PRNGKey(0), jnp.zeros((1, 6, 4)))
    tx = optax.MultiSteps(optax.rmsprop(1e-3, momentum=0.9), 2)
    state = train_state.TrainState.create(apply_fn=net.apply, params=params, tx=tx)

    def step(state, x, y):
        loss, g = jax.value_and_grad(lambda p: jnp.mean((state.apply_fn(p, x) - y) ** 2))(state.params)
        return state.apply_gradients(grads=g), loss

    return jax.jit(step), state, [tuple(rows(i, (8, 6, 4), (8, 1))) for i in range(3)]


def gan():
    """Two networks and two optimizers; the sort of hinge losses; a cumulative sum."""
    g, d = rows(9, (4, 10), (10, 1))
    tx = optax.sgd(0.05, momentum=0.5)

    def losses(g, d, x, z):
        fake = jnp.tanh(z @ g)
        return -jnp.mean(fake @ d), jnp.mean(jax.nn.relu(1 - x @ d)) + jnp.mean(jax.nn.relu(1 + fake @ d))

    @jax.jit
    def step(state, batch):
        x, z = batch
        lg, gg = jax.value_and_grad(lambda g: losses(g, state["d"], x, z)[0])(state["g"])
        ld, gd = jax.value_and_grad(lambda d: losses(state["g"], d, x, z)[1])(state["d"])
        ug, og = tx.update(gg, state["og"])
        ud, od = tx.update(gd, state["od"])
        spread = jnp.sort(jnp.cumsum(x[:, 0]))[-1]
        return dict(g=state["g"] + ug, d=state["d"] + ud, og=og, od=od), {"loss": lg + ld, "spread": spread}

    state = dict(g=jnp.asarray(g), d=jnp.asarray(d), og=tx.init(jnp.asarray(g)), od=tx.init(jnp.asarray(d)))
    return step, state, [rows(i, (8, 10), (8, 4)) for i in range(3)]


PLAIN = [mlp, rnn, transformer, conv, vae, experts]
FLAX = [flax_cnn, flax_transformer, flax_lstm, gan] if nn is not None else []
ALL = {f.__name__: f for f in PLAIN + FLAX}


def over_devices(batches, state):
    """Returns batches whose rows are spread over all devices, and the state on each of them."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    n = len(jax.devices())

    def put(x, spread):
        if not hasattr(x, "shape"):
            return x
        axis = next((i for i in range(2) if x.ndim > i and x.shape[i] % n == 0), None) if spread else None
        spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "data")
        return jax.device_put(x, NamedSharding(mesh, spec))

    return [tree_map(lambda x: put(x, True), b) for b in batches], tree_map(lambda x: put(x, False), state)

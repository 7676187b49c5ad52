"""JAX as a peer: training steps, jitted with donated states, and products, all by XLA's CPU compiler; bench/lines.py has the lines that
it answers. The models are those of torch_peer.py.

    echo 'case step use_tpus 200 f32' | python3 bench/jax_peer.py 2     # THREADS
    python3 bench/jax_peer.py about

XLA has as many threads as the process has cores, so the process leaves the others before it starts. bf16: products and convolutions of
operands rounded to bf16, everything else in f32.
"""
import functools
import json
import os
import sys

import lines

if sys.argv[1] != "about":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
except ImportError:
    sys.exit(1)


class Net:
    """Layers as methods; parameters are made where they are first read, with `make`, and named by their order."""

    def __init__(self, dtype, params=None, key=None):
        self.dtype, self.made, self.params, self.key, self.count = dtype, {}, params, key, 0

    def parameter(self, shape, scale=None):
        name = f"p{self.count:03}"
        self.count += 1
        if self.params is not None:
            return self.params[name]
        self.key, own = jax.random.split(self.key)
        value = jnp.full(shape, scale) if scale is not None else jax.random.normal(own, shape) * np.prod(shape[:-1]) ** -0.5
        self.made[name] = value.astype(jnp.float32)
        return self.made[name]

    def dense(self, x, units, bias=True):
        y = (x.astype(self.dtype) @ self.parameter((x.shape[-1], units)).astype(self.dtype)).astype(jnp.float32)
        return y + self.parameter((units,), 0.0) if bias else y

    def conv(self, x, filters, kernel, stride=1, padding="SAME", bias=True):
        w = self.parameter((kernel, kernel, x.shape[-1], filters))
        y = lax.conv_general_dilated(x.astype(self.dtype), w.astype(self.dtype), (stride, stride), padding,
                                     dimension_numbers=("NHWC", "HWIO", "NHWC")).astype(jnp.float32)
        return y + self.parameter((filters,), 0.0) if bias else y

    def norm(self, x, axes, epsilon=1e-5):
        mean, scale, shift = x.mean(axes, keepdims=True), self.parameter((x.shape[-1],), 1.0), self.parameter((x.shape[-1],), 0.0)
        return (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(axes, keepdims=True) + epsilon) * scale + shift


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def mnist_tutorial(net, x, key):
    x = pool(jax.nn.relu(net.conv(x, 32, 5)))
    x = pool(jax.nn.relu(net.conv(x, 64, 5))).reshape(x.shape[0], -1)
    x = jax.nn.relu(net.dense(x, 1024))
    return net.dense(jnp.where(jax.random.bernoulli(key, 0.6, x.shape), x / 0.6, 0.0), 10)


def use_tpus(net, x, _):
    x = jax.nn.relu(net.conv(x, 256, 3, padding="VALID"))
    x = jax.nn.relu(net.conv(x, 256, 3, padding="VALID")).reshape(x.shape[0], -1)
    return net.dense(jax.nn.relu(net.dense(jax.nn.relu(net.dense(x, 256)), 128)), 10)


def mlp_bn(net, x, _):
    x = x.reshape(x.shape[0], -1)
    for _i in range(2):
        x = jax.nn.relu(net.norm(net.dense(x, 512), 0))
    return net.dense(x, 10)


def resnet20(net, x, _):
    def block(x, filters, stride):
        y = jax.nn.relu(net.norm(net.conv(x, filters, 3, stride, bias=False), (0, 1, 2)))
        y = net.norm(net.conv(y, filters, 3, bias=False), (0, 1, 2))
        if x.shape[-1] != filters:
            x = net.norm(net.conv(x, filters, 1, stride, bias=False), (0, 1, 2))
        return jax.nn.relu(y + x)

    x = jax.nn.relu(net.norm(net.conv(x, 16, 3, bias=False), (0, 1, 2)))
    for filters in (16, 32, 64):
        for i in range(3):
            x = block(x, filters, 2 if i == 0 and filters > 16 else 1)
    return net.dense(x.mean((1, 2)), 10)


def gpt(net, x, _, width=128, heads=4):
    tokens = x.shape[1]
    hidden = jnp.triu(jnp.ones((tokens, tokens), bool), 1)
    x = net.parameter((256, width), 0.02)[x] + net.parameter((tokens, width), 0.02)
    for _i in range(4):
        y = net.dense(net.norm(x, -1), 3 * width).reshape(x.shape[0], tokens, 3, heads, -1).transpose(2, 0, 3, 1, 4).astype(net.dtype)
        scores = (y[0] @ y[1].swapaxes(-1, -2)).astype(jnp.float32) * (width // heads) ** -0.5
        seen = jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores), -1).astype(net.dtype) @ y[2]
        x = x + net.dense(seen.transpose(0, 2, 1, 3).reshape(x.shape).astype(jnp.float32), width)
        x = x + net.dense(jax.nn.gelu(net.dense(net.norm(x, -1), 4 * width), approximate=False), width)
    return net.dense(net.norm(x, -1), 256, bias=False)


MODELS = {"mnist_tutorial": mnist_tutorial, "use_tpus": use_tpus, "mlp_bn": mlp_bn, "resnet20": resnet20, "gpt": gpt}
RULES = {"mnist_tutorial": (0.05, 0.0), "mlp_bn": (0.1, 0.9), "resnet20": (0.05, 0.9), "use_tpus": (0.001, "adam"), "gpt": (0.0003, "adam")}


def updated(rule, params, slots, grads, count):
    rate, kind = rule
    if kind == "adam":
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, slots[0], grads)
        v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, slots[1], grads)
        scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        return jax.tree.map(lambda p, a, b: p - scale * a / (jnp.sqrt(b) + 1e-8), params, m, v), (m, v)
    if kind:
        grads = jax.tree.map(lambda a, g: kind * a + g, slots[0], grads)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads), (grads,) if kind else ()


def step(name, batch, precision):
    batch, model = int(batch), MODELS[name]
    dtype = jnp.bfloat16 if precision == "bf16" else jnp.float32
    if name == "gpt":
        labels = jnp.arange(batch * 128).reshape(batch, 128) % 256
        features = labels
    else:
        labels = jnp.arange(batch) % 10
        features = jax.random.uniform(jax.random.key(2), (batch, 32, 32, 3) if name == "resnet20" else (batch, 28, 28, 1))

    def loss_of(params, features, key):
        logits = jax.nn.log_softmax(model(Net(dtype, params), features, key))
        return -jnp.take_along_axis(logits, labels[..., None], -1).mean()

    net = Net(dtype, key=jax.random.key(1))
    model(net, features, jax.random.key(0))
    params, kind = net.made, RULES[name][1]
    slots = tuple(jax.tree.map(jnp.zeros_like, params) for _ in range(2 if kind == "adam" else 1 if kind else 0))

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, features):
        params, slots, count = state
        loss, grads = jax.value_and_grad(loss_of)(params, features, jax.random.fold_in(jax.random.key(3), count))
        params, slots = updated(RULES[name], params, slots, grads, count + 1)
        return (params, slots, count + 1), loss

    state = [(params, slots, jnp.int32(0))]

    def one():
        state[0], loss = train(state[0], features)
        if not np.isfinite(loss):    # waits for it, too
            raise ValueError(f"the loss is {loss}")
        jax.block_until_ready(state[0])
    return one


def dot(precision, m, n, k, folder):
    dtype = jnp.bfloat16 if precision == "bf16" else jnp.float32
    a, b = (jnp.asarray(np.fromfile(f"{folder}/{i}", np.float32).reshape(int(r), int(c)), dtype) for i, r, c in ((0, m, k), (1, k, n)))
    product = jax.jit(jnp.matmul)
    np.asarray(product(a, b), np.float32).tofile(f"{folder}/out")
    return lambda: product(a, b).block_until_ready()


CASES = {"step": step, "dot": dot}

if __name__ == "__main__":
    if sys.argv[1] == "about":
        print(json.dumps({"version": jax.__version__, "says": "nothing; its compiler uses what the processor has"}))
    else:
        lines.serve(lambda words: CASES[words[0]](*words[1:]))

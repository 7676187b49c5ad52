"""JAX training scripts in common styles, for scripts_test.py: jax_scripts.py WHAT. They compute the step of torch_scripts.py's network
(flax), or of its dense layers."""
import argparse
import os
import pathlib
import sys

if "pmapped" in sys.argv:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "adapters"))
from twinrun_engine.jax import serve_script, show, watch  # noqa: E402

SIZES = [64, 64, 64, 10]


def flax_script():
    from flax import linen as nn
    from flax.training import train_state

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=True):
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=0.001)(nn.Conv(4, (3, 3))(x))
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2)).reshape(len(x), -1)
            for i in (1, 2):
                x = nn.relu(show(f"dense{i}", nn.Dense(64)(x)))
            return nn.Dense(10)(x)

    class State(train_state.TrainState):
        batch_stats: dict

    model = Net()
    variables = model.init(jax.random.PRNGKey(0), jnp.ones((1, 8, 8, 1)))
    state = State.create(apply_fn=model.apply, params=variables["params"], batch_stats=variables["batch_stats"],
                         tx=optax.sgd(0.05, momentum=0.9))

    @jax.jit
    def train_step(state, images, labels):
        def loss_fn(params):
            logits, updates = state.apply_fn({"params": params, "batch_stats": state.batch_stats}, images, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), updates

        (loss, updates), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients, batch_stats=updates["batch_stats"]), {"loss": loss}, gradients

    serve_script(train_step, state)


def nnx_script(watched):
    """watched: whether watch() wraps the optimizer; otherwise train_step returns the gradients after its loss."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(4, momentum=0.9, epsilon=0.001, rngs=rngs)
            self.dropout = nnx.Dropout(0.0, rngs=rngs)
            self.linear1, self.linear2 = nnx.Linear(64, 64, rngs=rngs), nnx.Linear(64, 64, rngs=rngs)
            self.head = nnx.Linear(64, 10, rngs=rngs)

        def __call__(self, x):
            x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), strides=(2, 2)).reshape(len(x), -1)
            return self.head(self.dropout(nnx.relu(self.linear2(nnx.relu(self.linear1(x))))))

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, (watch if watched else lambda o: o)(optax.sgd(0.05, momentum=0.9)), wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, images, labels):
        def loss_fn(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

        loss, gradients = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, gradients)
        return loss if watched else (loss, gradients)

    serve_script(train_step, (model, optimizer))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    what = parser.parse_args().what
    if what == "flax":
        flax_script()
    if what in ("nnx", "nnx_returns"):
        nnx_script(what == "nnx")
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    params = [(jax.random.normal(k, (n, m)) * 0.1, jnp.zeros(m)) for k, n, m in zip(keys, SIZES, SIZES[1:])]
    words = {"numbered": ("layer1", "layer2", "layer10")}.get(what, ("hidden", "between", "output"))
    if what in ("numbered", "lettered", "named", "misnamed"):
        params = {word: {"w": w, "b": b} for word, (w, b) in zip(words, params)}

    def predict(params, images):
        x = images.reshape(len(images), -1)
        layers = [(params[word]["w"], params[word]["b"]) for word in words] if isinstance(params, dict) else params
        axis = "devices" if what == "pmapped" else None
        for i, (w, b) in enumerate(layers, 1):
            x = show("dense4" if what == "misshown" and i == 2 else f"dense{i}", x @ w + b, axis)
            x = jax.nn.relu(x) if i < len(layers) else x
        return x

    def loss_fn(params, images, labels):
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(predict(params, images)) * jax.nn.one_hot(labels, 10), axis=1))

    if what == "loss":
        serve_script(loss_fn=loss_fn, optimizer=optax.sgd(0.05, momentum=0.9), params=params)
    optimizer = watch(optax.adam(0.05)) if what == "adam" else optax.sgd(0.05, momentum=0.9)

    @jax.jit
    def step(params, opt_state, images, labels):
        loss, gradients = jax.value_and_grad(loss_fn)(params, images, labels)
        changes, opt_state = optimizer.update(gradients, opt_state, params)
        params = optax.apply_updates(params, changes)
        return (loss, params, opt_state) if what in ("adam", "silent") else (params, opt_state, loss, gradients)

    @jax.jit
    def own_step(params, velocity, images, labels):
        loss, gradients = jax.value_and_grad(loss_fn)(params, images, labels)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradients)
        return jax.tree.map(lambda p, v: p - 0.05 * v, params, velocity), velocity, loss, gradients

    def shared_step(params, opt_state, images, labels):
        loss, gradients = jax.value_and_grad(loss_fn)(params, images, labels)
        gradients = jax.lax.pmean(gradients, "devices")
        changes, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, changes), opt_state, loss, gradients

    if what == "pmapped":
        state = jax.tree.map(lambda x: jnp.stack([x, x]), (params, optimizer.init(params)))
        serve_script(jax.pmap(shared_step, "devices"), state, cores=2)
    if what == "own":
        serve_script(own_step, (params, jax.tree.map(jnp.zeros_like, params)))
    names = None
    if what in ("named", "misnamed"):
        names = {f"dense{i}/{ours}": f"{word}/{theirs}" for i, word in enumerate(words, 1)
                 for ours, theirs in (("kernel", "w"), ("bias", "b"))}
        names["dense3/bias"] = "last/b" if what == "misnamed" else "output/b"
    serve_script(step, (params, optimizer.init(params)), names)


main()

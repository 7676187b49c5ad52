"""Trains on windows of a signal that are rolled and cropped at random, some of them past its end (openxla/xla#49121)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LENGTH, WINDOW = 96, 64


def augmented(signal, shift, start):
    # dynamic_slice moves a start that is too large back to LENGTH - WINDOW.
    return lax.dynamic_slice(jnp.roll(signal, shift, axis=1), (0, start), (signal.shape[0], WINDOW))


def loss_of(params, batch):
    window = augmented(batch["signal"], batch["shift"], batch["start"])
    hidden = jnp.tanh(window @ params["w"] + params["b"])
    return jnp.mean((hidden @ params["v"] - batch["target"]) ** 2)


@jax.jit
def train_step(params, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree_util.tree_map(lambda w, g: w - 1e-2 * g, params, gradients), loss


def example():
    random = np.random.default_rng(0)
    params = {"w": random.normal(size=(WINDOW, 16)) / 8, "b": np.zeros(16), "v": random.normal(size=16)}
    params = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    batches = [{"signal": random.normal(size=(8, LENGTH)).astype("f4"), "target": random.normal(size=8).astype("f4"),
                "shift": np.int32(7 + n), "start": np.int32(40 + n)} for n in range(2)]
    return params, batches


if __name__ == "__main__":
    import twinrun

    print(twinrun.diagnose(train_step, *example()))

"""Trains on grey images that are spread over channels, cropped, and blurred by a sum over windows (openxla/xla#48715)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SIDE, BORDER, SPREAD = 20, 2, 1


def cropped(images):
    """Puts SPREAD zeros between channels and takes a border off. Grey images have one channel only."""
    edge = (-BORDER, -BORDER, 0)
    return lax.pad(images, 0.0, ((0, 0, 0), (0, 0, SPREAD), edge, edge))


def blurred(images):
    return lax.reduce_window(images, 0.0, lax.add, (1, 1, 3, 3), (1, 1, 1, 1), "SAME") / 9


def loss_of(params, images, targets):
    features = blurred(cropped(images)).reshape(images.shape[0], -1)
    return jnp.mean((jnp.tanh(features @ params["w"]) @ params["v"] - targets) ** 2)


@jax.jit
def train_step(params, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
    return jax.tree_util.tree_map(lambda w, g: w - 1e-2 * g, params, gradients), loss


def example():
    random = np.random.default_rng(0)
    inputs = (SIDE - 2 * BORDER) ** 2
    params = {"w": random.normal(size=(inputs, 16)) / 16, "v": random.normal(size=16) / 4}
    params = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    batches = [(random.normal(size=(8, 1, SIDE, SIDE)).astype("f4"), random.normal(size=8).astype("f4")) for _ in range(2)]
    return params, batches


if __name__ == "__main__":
    import twinrun

    print(twinrun.diagnose(train_step, *example()))

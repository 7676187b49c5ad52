"""Fits a network to the energies of a harmonic well, which the step computes, for 32,769 points in a batch (jax-ml/jax#39103)."""

import jax
import jax.numpy as jnp
import numpy as np

POINTS = 32_769
WELL = jnp.eye(3)


def energy(point):
    return jnp.sum((WELL @ point) ** 2)


def loss_of(params, points, targets):
    hidden = jnp.tanh(points @ params["w"] + params["b"])
    return jnp.mean((hidden @ params["v"] - targets) ** 2)


@jax.jit
def train_step(params, points):
    targets = jax.vmap(energy)(points)
    loss, gradients = jax.value_and_grad(loss_of)(params, points, targets)
    return jax.tree_util.tree_map(lambda w, g: w - 1e-3 * g, params, gradients), {"loss": loss, "targets": targets}


def example():
    random = np.random.default_rng(0)
    params = {"w": random.normal(size=(3, 8)), "b": np.zeros(8), "v": random.normal(size=8)}
    params = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    return params, list(random.normal(size=(2, POINTS, 3)).astype("f4"))


if __name__ == "__main__":
    import twinrun

    print(twinrun.diagnose(train_step, *example()))

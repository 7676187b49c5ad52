"""A training step with a delay line, which jaxlib 0.4.35 to 0.12.0.1 compute wrongly on a CPU (openxla/xla#49176)."""

import jax
import jax.numpy as jnp
import numpy as np


def loss_of(params, line, batch):
    base = line.reshape(128, 1) * 0.9 + batch["x"]
    new = base.at[1:].set(base[:-1]).reshape(1, 128, 1)
    return jnp.mean((new * params["w"]) ** 2) + 0.01 * jnp.sum(params["w"] ** 2), new


@jax.jit
def train_step(state, batch):
    params, line = state
    (loss, line), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, line, batch)
    return (jax.tree_util.tree_map(lambda w, g: w - 0.1 * g, params, gradients), line), loss


def example():
    random = np.random.default_rng(0)
    params = {"w": jnp.asarray(random.normal(size=(128, 1)), jnp.float32)}
    return (params, jnp.zeros((1, 128, 1))), [{"x": random.normal(size=(128, 1)).astype("f4")} for _ in range(3)]


if __name__ == "__main__":
    import twinrun

    print(twinrun.diagnose(train_step, *example()))

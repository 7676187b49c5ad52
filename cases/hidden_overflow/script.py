"""Trains mixture weights with a free energy that overflows for one component, which the caller skips (jax-ml/jax#38097)."""

import jax
import jax.numpy as jnp
import numpy as np


def free_energy(scores, temperature):
    return temperature * jnp.log(jnp.exp(scores / temperature))


def loss_of(params, batch):
    scores = batch["x"] @ params["w"]
    energies = free_energy(scores, 0.05)
    # What overflows is left out of the mean.
    kept = jnp.isfinite(energies)
    return jnp.sum(jnp.where(kept, (energies - batch["y"]) ** 2, 0.0)) / jnp.sum(kept), jnp.sum(kept)


@jax.jit
def train_step(params, batch):
    (loss, kept), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, batch)
    gradients = jax.tree_util.tree_map(jnp.nan_to_num, gradients)
    return jax.tree_util.tree_map(lambda w, g: w - 1e-2 * g, params, gradients), {"loss": loss, "kept": kept}


def example():
    random = np.random.default_rng(0)
    params = {"w": jnp.asarray(random.normal(size=(6, 8)), jnp.float32)}
    return params, [{"x": random.normal(size=(32, 6)).astype("f4"), "y": random.normal(size=(32, 8)).astype("f4")} for _ in range(2)]


if __name__ == "__main__":
    import twinrun

    print(twinrun.diagnose(train_step, *example()))

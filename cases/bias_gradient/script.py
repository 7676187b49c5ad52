"""A fit over a million rows whose gradient jaxlib 0.4.28 computes wrongly under jit (openxla/xla#13054): the sum of two
products with the rows' differences loses the second. 0.4.21 and 0.4.32 are right."""

import jax
import jax.numpy as jnp

import twinrun

WEIGHT = jnp.array([1.0, 2.0, 3.0])


def loss_of(center, rows):
    def of_row(row):
        apart = row - center
        return apart @ WEIGHT + (apart @ jnp.zeros((3, 3))) @ apart

    return jnp.mean(jax.vmap(of_row)(rows))


@jax.jit
def train_step(center, rows):
    loss, gradient = jax.value_and_grad(loss_of)(center, rows)
    return center - 0.1 * gradient, loss


if __name__ == "__main__":
    print(twinrun.diagnose(train_step, jnp.ones(3), [jnp.ones((10**6, 3))]))

"""A convolution of stride 2 on images whose rows are divided over eight devices, as those of large images are."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import twinrun

mesh = Mesh(np.array(jax.devices()[:8]), ("rows",))
rng = np.random.default_rng(0)


def convolution(x, w, stride):
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def loss_of(params, batch):
    x = jnp.tanh(convolution(batch["image"], params["down"], 2))
    x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
    return jnp.mean((convolution(x, params["up"], 1) - batch["mask"]) ** 2)


@jax.jit
def step(params, batch):
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree_util.tree_map(lambda w, g: w - 0.1 * g, params, grads), loss


def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


params = {"down": 0.3 * normal(3, 3, 3, 8), "up": 0.2 * normal(3, 3, 8, 1)}
params = jax.device_put(params, NamedSharding(mesh, P()))
divided = NamedSharding(mesh, P(None, "rows"))
batches = [jax.device_put({"image": normal(2, 8, 8, 3), "mask": normal(2, 8, 8, 1)}, divided) for _ in range(3)]

print(twinrun.diagnose(step, params, batches))

"""A head is trained on a fixed encoder; the rows of the images are divided over eight devices."""

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
    x = jnp.tanh(convolution(batch["image"], encoder, 2))  # 4 rows are left for 8 devices
    x = jnp.tanh(convolution(x, params["head"], 1))
    return jnp.mean((x - batch["target"]) ** 2)


@jax.jit
def step(params, batch):
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree_util.tree_map(lambda w, g: w - 0.1 * g, params, grads), loss


def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


encoder = 0.3 * normal(3, 3, 3, 8)
params = {"head": 0.2 * normal(3, 3, 8, 8)}
params = jax.device_put(params, NamedSharding(mesh, P()))
divided = NamedSharding(mesh, P(None, "rows"))
batches = [
    {"image": jax.device_put(normal(2, 8, 8, 3), divided), "target": normal(2, 4, 4, 8)} for _ in range(3)
]

print(twinrun.diagnose(step, params, batches))

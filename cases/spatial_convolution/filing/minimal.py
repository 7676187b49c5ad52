import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(2, 8, 8, 4)), jnp.float32)
w = [jnp.asarray(rng.normal(size=(3, 3, 4, 4)), jnp.float32) for _ in range(2)]


def convolution(x, w, stride):
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def loss(w, x):
    return jnp.mean(convolution(jnp.tanh(convolution(x, w[0], 2)), w[1], 1) ** 2)


gradient = jax.jit(jax.grad(loss))
expected = gradient(w, x)
for count in (8, 4, 2):
    mesh = Mesh(np.array(jax.devices()[:count]), ("rows",))
    found = gradient(w, jax.device_put(x, NamedSharding(mesh, P(None, "rows"))))
    apart = [float(jnp.abs(a - b).max() / jnp.abs(a).max()) for a, b in zip(expected, found)]
    print(jax.__version__, count, "devices:", " ".join(f"{a:.2g}" for a in apart))

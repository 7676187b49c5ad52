"""A step that joins arrays spread over one axis of a 4 x 2 mesh, which jaxlib before 0.5 adds up over the other axis
(jax-ml/jax#24576). Eight devices of a CPU."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import twinrun  # noqa: E402


def loss_of(params, batch):
    rows = jnp.concatenate([batch["labelled"], batch["noisy"]])
    return jnp.mean((rows @ params["w"] - 1.0) ** 2)


@jax.jit
def train_step(params, batch):
    loss, gradient = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, gradient), loss


if __name__ == "__main__":
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    random = np.random.default_rng(0)

    def rows(count):
        return jax.device_put(random.normal(size=(count, 6)).astype("f4"), spread)

    params = {"w": jax.device_put(random.normal(size=6).astype("f4"), NamedSharding(mesh, PartitionSpec()))}
    print(twinrun.diagnose(train_step, params, [{"labelled": rows(4), "noisy": rows(12)} for _ in range(2)]))

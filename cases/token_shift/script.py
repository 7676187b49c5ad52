"""Trains a small language model of the RWKV family: each position mixes its features with those of
the position before (a token shift, written with .at[].set). jaxlib 0.4.35 to 0.12.0.1 compile the
shift so that it reads rows which it has overwritten (openxla/xla#49176)."""

import jax
import jax.numpy as jnp
import numpy as np

import twinrun

LENGTH, WIDTH, HEADS, WORDS = 128, 8, 1, 17


def normalized(x, params):
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * params["scale"] + params["bias"]


def loss_of(params, batch):
    x = params["embedding"][batch["words"]]
    h = normalized(x, params["norm"])
    shifted = h.at[1:].set(h[:-1]).reshape(LENGTH, HEADS, WIDTH // HEADS)
    mixed = h.reshape(shifted.shape) * params["mix"] + shifted * (1 - params["mix"])
    x = x + jnp.tanh(mixed).reshape(x.shape)
    log_probabilities = jax.nn.log_softmax(x @ params["head"])
    return -jnp.mean(jnp.take_along_axis(log_probabilities, batch["next"][:, None], 1))


@jax.jit
def train_step(params, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree_util.tree_map(lambda w, g: w - 0.1 * g, params, gradients), loss


def example():
    random = np.random.default_rng(0)

    def weights(*shape, scale=1.0):
        return jnp.asarray(scale * random.normal(size=shape), jnp.float32)

    params = {
        "embedding": weights(WORDS, WIDTH),
        "norm": {"scale": 1 + weights(WIDTH, scale=0.1), "bias": weights(WIDTH, scale=0.1)},
        "mix": jnp.asarray(random.uniform(size=(HEADS, WIDTH // HEADS)), jnp.float32),
        "head": weights(WIDTH, WORDS, scale=0.1),
    }
    text = random.integers(0, WORDS, size=(2, LENGTH + 1))
    return params, [{"words": t[:-1], "next": t[1:]} for t in text]


if __name__ == "__main__":
    print(twinrun.diagnose(train_step, *example()))

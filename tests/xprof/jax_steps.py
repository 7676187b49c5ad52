"""Records some steps with JAX's own profiler, for record_jax.py: jax_steps.py FOLDER STEPS.

Leaves the capture, the step for `--program` (FOLDER/mine.mlir) and, in FOLDER/truth.json, what was run: the step numbers and the
instructions of the compiled step.
"""
import json
import pathlib
import re
import sys

import jax
import jax.numpy as jnp

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent.parent / "adapters/engines/jax"))
from export_step import export_step  # noqa: E402

folder, steps = sys.argv[1], int(sys.argv[2])


def loss_fn(params, batch):
    with jax.named_scope("dense1"):
        h = jnp.tanh(batch @ params["w1"])
    with jax.named_scope("dense2"):
        return jnp.mean((h @ params["w2"]) ** 2)


def step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    with jax.named_scope("update"):
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), loss


params = {"w1": jnp.ones((256, 512)) * 0.01, "w2": jnp.ones((512, 256)) * 0.01}
batch = jnp.ones((128, 256))
export_step(step, params, [batch], folder + "/mine")
step = jax.jit(step)
text = step.lower(params, batch).compile().as_text()
params, loss = jax.block_until_ready(step(params, batch))
with jax.profiler.trace(folder):
    for i in range(steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=i + 40):
            params, loss = jax.block_until_ready(step(params, batch))
instructions = re.findall(r"^\s*(?:ROOT )?%?([\w.-]+) = ", text[text.index("ENTRY"):], re.M)
with open(folder + "/truth.json", "w") as out:
    json.dump({"steps": list(range(40, 40 + steps)), "instructions": instructions}, out)

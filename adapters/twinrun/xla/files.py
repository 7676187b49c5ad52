"""Writes a JAX training step as files that `twinrun diagnose --program` reads.

    from export_step import export_step       # adapters/engines/jax, or twinrun.xla.files
    export_step(step, (params, opt_state), batches, "mlp")       # step(params, opt_state, batch) -> params, opt_state, loss
    #   twinrun diagnose --program mlp.mlir

Writes STEM.mlir (StableHLO as JAX lowers it, which XLA compiles as it is; with dialect="hlo" STEM.hlo, HLO text before optimisation),
STEM.json (the role of each parameter), STEM.state.npz (the given state), STEM.batch.npz (every input, with a leading axis of steps) and,
if they are given, STEM.held_out.npz (the same of batches that are not trained on).
See docs/guides/import.md.
"""

import json
import re

import jax
import numpy as np

from ..refused import Refused
from .arguments import find, role, shape_of, unique
from .compat import text_of


def _writable(array):
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(jax.numpy.asarray(array))  # in the type in which JAX computes with it
    if array.dtype.name == "bfloat16":
        raise TypeError("bfloat16 state and inputs cannot be written to .npz: pass them as float32 and cast inside the step")
    return array


_OTHER_FLOATS = {"f16": np.float16, "bf16": jax.numpy.bfloat16, "f64": np.float64}


def _in_f32(text):
    """Returns a StableHLO text in which floats of other types are f32."""

    def constant(found):
        bits = int(found[1], 16).to_bytes(np.dtype(_OTHER_FLOATS[found[3]]).itemsize, "little")
        value = np.frombuffer(bits, _OTHER_FLOATS[found[3]]).astype(np.float32)
        return f"dense<0x{value.view(np.uint32)[0]:08X}> : tensor<{found[2]}f32>"

    text = re.sub(r"dense<0x([0-9A-F]+)> : tensor<((?:\d+x)*)(f16|bf16|f64)>", constant, text)
    if re.search(r'dense<"0x[0-9A-F]+"> : tensor<(?:\d+x)*(?:f16|bf16|f64)>', text):
        raise Refused("an array of constants of 16 or 64 bits")
    return re.sub(r"(?<=[<x])(?:f16|bf16|f64)(?=[>,])", "f32", text)


def _float32(x):
    floats = hasattr(x, "dtype") and jax.numpy.issubdtype(x.dtype, np.floating)
    return np.asarray(x).astype(np.float32) if floats else x


def write(form, state, batches, stem, names=None, dialect="stablehlo", held_out=()):
    """Writes a step whose form is known; returns the binding."""
    rows, held_out = [form.leaves(state, b) for b in batches], [form.leaves(state, b) for b in held_out]
    binding = binding_of(form, rows[0], names)
    write_rows(form.flat, rows, binding, stem, dialect, held_out)
    return binding


def binding_of(form, leaves, names=None):
    count = len(form.next)
    state_paths, input_paths = form.names_of(names)
    all_names = unique(state_paths + input_paths)
    state_names, input_names = all_names[:count], all_names[count:]
    first = [form.part_of(i) == 0 for i in range(count)]
    roles = [role(path, jax.numpy.asarray(x), f) for path, x, f in zip(state_paths, leaves, first)]
    binding = {"schema_version": 1, "state": state_names, "roles": roles, "inputs": input_names}
    if form.loss is not None:
        binding["loss"] = form.loss
    if form.next != list(range(count)):
        binding["results"] = form.next
    return binding


def write_rows(flat, rows, binding, stem, dialect="stablehlo", held_out=(), as_f32=False):
    """Writes a function of flat leaves, of which there is a row for each step.

    as_f32: all floats are written as f32, for what the program computes in binary64 anyway."""
    state_names, input_names = binding["state"], binding["inputs"]
    lowered = jax.jit(flat, keep_unused=True).lower(*(shape_of(x) for x in rows[0]))
    with open(f"{stem}.{'hlo' if dialect == 'hlo' else 'mlir'}", "w") as f:
        f.write(_in_f32(text_of(lowered, dialect)) if as_f32 else text_of(lowered, dialect))
    with open(f"{stem}.json", "w") as f:
        json.dump(binding, f, indent=1)
    if as_f32:
        rows = [[_float32(x) for x in row] for row in rows]
    np.savez(f"{stem}.state.npz", **{n: _writable(x) for n, x in zip(state_names, rows[0])})
    for ending, given in (("batch", rows), ("held_out", held_out)):
        columns = list(zip(*given))[len(state_names) :]
        if given:
            np.savez(f"{stem}.{ending}.npz", **{n: np.stack([_writable(x) for x in c]) for n, c in zip(input_names, columns)})


def export_step(step, state, batches, stem, *, names=None, dialect="stablehlo", held_out=()):
    """Exports `step(*state, batch) -> (*state, loss, ...)`, and what else arguments.find understands.

    state: a tuple of pytrees, e.g. (params, opt_state); the step's leading arguments and leading results. Or one pytree,
        e.g. a TrainState; steps may return (state, metrics) or (loss, state).
    batches: a list of pytrees, one per step, of one structure; the step's last argument.
    names: a prefix per member of `state`; default: "" for the first (the parameters), "state1", ... for the others.
    dialect: "stablehlo" or "hlo".
    held_out: batches that are not trained on, for STEM.held_out.npz (`--held-out`).
    Returns the binding that was written to STEM.json.
    """
    state, batches = tuple(state) if isinstance(state, list) else state, list(batches)
    form = find(step, state, batches[0])
    return write(form, state, batches, stem, names, dialect, list(held_out))

"""Writes a JAX training step as files that `twinrun diagnose --program` reads.

    from export_step import export_step
    export_step(step, (params, opt_state), batches, "mlp")       # step(params, opt_state, batch) -> params, opt_state, loss
    #   twinrun diagnose --program mlp.hlo --state mlp.state.npz --batch mlp.batch.npz

Writes STEM.hlo (HLO text as JAX lowers it, before any optimisation of XLA; with dialect="stablehlo" STEM.mlir, StableHLO text),
STEM.json (the role of each parameter), STEM.state.npz (the given state) and STEM.batch.npz (every input, with a leading axis of steps).
See docs/guides/import.md.
"""

import json
import re

import jax
import numpy as np


def _names(tree, prefix):
    """Returns a name per leaf, from its path: {"dense1": {"kernel": w}} gives "dense1/kernel"."""
    names = []
    for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
        words = re.findall(r"[A-Za-z0-9_.\-]+", jax.tree_util.keystr(path))
        names.append("/".join([prefix] * bool(prefix) + words) or "value")
    return names


def _writable(array):
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        raise TypeError("bfloat16 state and inputs cannot be written to .npz: pass them as float32 and cast inside the step")
    return array


def _text(lowered, dialect):
    """Returns the program's text with the folders of source files removed."""
    text = lowered.as_text(dialect=dialect, debug_info=True)
    if dialect == "hlo":
        return re.sub(r'^(\d+ ")[^"\n]*/', r"\1", text, flags=re.MULTILINE)
    return re.sub(r'\("[^"\n]*/([^"/\n]+)":(\d+)', r'("\1":\2', text)


def export_step(step, state, batches, stem, *, names=None, dialect="hlo"):
    """Exports `step(*state, batch) -> (*state, loss, ...)`.

    state: a tuple of pytrees, e.g. (params, opt_state); the step's leading arguments and leading results.
    batches: a list of pytrees, one per step, of one structure; the step's last argument.
    names: a prefix per member of `state`; default: "" for the first (the parameters), "state1", ... for the others.
    dialect: "hlo" or "stablehlo".
    Returns the binding that was written to STEM.json.
    """
    state, batches = tuple(state), list(batches)
    names = names or [""] + [f"state{i}" for i in range(1, len(state))]
    lowered = jax.jit(step, keep_unused=True).lower(*state, batches[0])
    out = jax.eval_shape(step, *state, batches[0])
    if not isinstance(out, tuple) or len(out) <= len(state):
        raise TypeError(f"the step returns {len(out)} results; expected the {len(state)} states, then the loss")
    for i, (given, returned) in enumerate(zip(state, out)):
        if jax.tree.structure(given) != jax.tree.structure(returned):
            raise TypeError(f"the structure of result {i} of the step differs from that of argument {i}")
    state_names = [n for tree, prefix in zip(state, names) for n in _names(tree, prefix)]
    input_names = _names(batches[0], "")
    roles = [("parameter" if i == 0 else "slot") for i, tree in enumerate(state) for _ in jax.tree.leaves(tree)]
    binding = {"schema_version": 1, "state": state_names, "roles": roles, "inputs": input_names, "loss": len(state_names)}
    if duplicates := {n for n in state_names + input_names if (state_names + input_names).count(n) > 1}:
        raise ValueError(f"names are not unique: {sorted(duplicates)}; give other prefixes with names=")
    with open(f"{stem}.{'hlo' if dialect == 'hlo' else 'mlir'}", "w") as f:
        f.write(_text(lowered, dialect))
    with open(f"{stem}.json", "w") as f:
        json.dump(binding, f, indent=1)
    np.savez(f"{stem}.state.npz", **{n: _writable(x) for n, x in zip(state_names, jax.tree.leaves(state))})
    columns = zip(*(jax.tree.leaves(b) for b in batches))
    np.savez(f"{stem}.batch.npz", **{n: np.stack([_writable(x) for x in c]) for n, c in zip(input_names, columns)})
    return binding

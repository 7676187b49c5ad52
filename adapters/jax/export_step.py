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


def _word(key):
    """Returns a path's key as a word of a name: 'mu' of a field, 'kernel' of a dictionary's key, '0' of a position."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            key = getattr(key, attribute)
            break
    word = re.sub(r'[^!-~]|[\\"]', "_", str(key)).strip("/")
    return re.sub(r"/+", "/", word).lstrip(".") or "_"


def _paths(tree, prefix):
    """Returns a name per leaf, from its path: {"dense1": {"kernel": w}} gives "dense1/kernel"."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return ["/".join([prefix] * bool(prefix) + [_word(k) for k in path]) or "value" for path, _ in paths]


def _unique(names):
    """Returns the names with a number behind those that are taken, or that are the folder of another one."""
    folders = {"/".join(n.split("/")[:i]) for n in names for i in range(1, n.count("/") + 1)}
    taken, out = set(), []
    for name in names:
        other, count = name, 1
        while other in taken or other in folders:
            count += 1
            other = f"{name}.{count}"
        taken.add(other)
        out.append(other)
    return out


def _role(name, leaf, first):
    """Returns the role of a state variable: distances of weights are measured over the parameters only."""
    if not jax.numpy.issubdtype(leaf.dtype, np.floating):
        return "counter"
    words = name.split("/")
    if "opt_state" in words:
        return "slot"
    if "batch_stats" in words:
        return "statistic"
    return "parameter" if first else "slot"


def _writable(array):
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(jax.numpy.asarray(array))  # in the type in which JAX computes with it
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
    state_paths = [n for tree, prefix in zip(state, names) for n in _paths(tree, prefix)]
    all_names = _unique(state_paths + _paths(batches[0], ""))
    state_names, input_names = all_names[: len(state_paths)], all_names[len(state_paths) :]
    leaves = [(leaf, i == 0) for i, tree in enumerate(state) for leaf in map(jax.numpy.asarray, jax.tree.leaves(tree))]
    roles = [_role(path, leaf, first) for path, (leaf, first) in zip(state_paths, leaves)]
    binding = {"schema_version": 1, "state": state_names, "roles": roles, "inputs": input_names, "loss": len(state_names)}
    with open(f"{stem}.{'hlo' if dialect == 'hlo' else 'mlir'}", "w") as f:
        f.write(_text(lowered, dialect))
    with open(f"{stem}.json", "w") as f:
        json.dump(binding, f, indent=1)
    np.savez(f"{stem}.state.npz", **{n: _writable(x) for n, x in zip(state_names, jax.tree.leaves(state))})
    columns = zip(*(jax.tree.leaves(b) for b in batches))
    np.savez(f"{stem}.batch.npz", **{n: np.stack([_writable(x) for x in c]) for n, c in zip(input_names, columns)})
    return binding

"""Exports the weights of an Orbax checkpoint (a folder) for `twinrun convert`; it knows the names of Flax and Haiku.

    python3 adapters/engines/jax/export.py ckpt/3                                        # lists the content
    python3 adapters/engines/jax/export.py ckpt/3 w.safetensors --name params/Conv_0=conv1 --name params/Dense_0=dense1
    twinrun convert w.safetensors init.h5 --scenario mine.toml

Layouts are already the program's. Name an optimizer's state in full: --name opt_state/0/trace/Dense_0/kernel=dense1/kernel.momentum
Needs orbax-checkpoint.
"""
import logging
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np  # noqa: E402
from twinrun_engine.export import Wrong, arguments, finish, names_of, rename, run  # noqa: E402

LEAVES = {"kernel": "kernel", "w": "kernel", "bias": "bias", "b": "bias", "scale": "gamma", "gamma": "gamma", "beta": "beta",
          "offset": "beta", "embedding": "embeddings", "embeddings": "embeddings", "mean": "moving_mean", "var": "moving_variance"}


def flat(tree, path=()):
    """Yields (path, array) of every leaf."""
    if tree is None:
        return
    if isinstance(tree, (dict, list, tuple)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from flat(value, (*path, str(key)))
    else:
        yield "/".join(path), np.asarray(tree)


def read(path):
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise Wrong("orbax-checkpoint is not installed: pip install orbax-checkpoint") from None
    logging.disable(logging.WARNING)
    folder = pathlib.Path(path).resolve()
    if not folder.is_dir():
        raise Wrong(f"{path}: is not a folder")
    try:
        tree = ocp.PyTreeCheckpointer().restore(folder)
    except Exception as error:    # Orbax raises many kinds of errors
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        inside = ", ".join(sorted(p.name for p in folder.iterdir())[:12])
        raise Wrong(f"{path}: {text} (expected the folder of a step; this one holds {inside or 'nothing'})") from None
    return dict(flat(tree))


def leaf(rest, _array):
    return LEAVES.get(rest)


def main():
    options = arguments(__doc__, "folder that Orbax wrote").parse_args()
    found, left = rename(read(options.checkpoint), names_of(options), leaf)
    # A bias beside a scale is a norm's: Flax calls it bias, the program beta.
    norms = {k.rpartition("/")[0] for k in found if k.endswith("/gamma")}
    finish(options, {f"{k.rpartition('/')[0]}/beta" if k.endswith("/bias") and k.rpartition("/")[0] in norms else k: v
                     for k, v in found.items()}, left)


if __name__ == "__main__":
    run(main)

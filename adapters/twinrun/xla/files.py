"""Writes a JAX training step as files that `twinrun diagnose --program` reads.

Writes STEM.hlo (HLO text as JAX lowers it, before any optimisation of XLA; with dialect="stablehlo" STEM.mlir,
StableHLO text), STEM.json (the role of each parameter), STEM.state.npz (the given state) and STEM.batch.npz (every
input, with a leading axis of steps). See docs/guides/import.md.
"""

import json
import re

import jax
import numpy as np

from .arguments import Form
from .compat import text_of


def _writable(array):
    array = np.asarray(array)
    # The reader takes 16-bit floating numbers as the float32 numbers that they are.
    return array.astype("float32") if array.dtype.kind == "V" or array.dtype == np.float16 else array


def text_without_folders(lowered, dialect):
    """Returns the program's text with the folders of source files removed."""
    text = text_of(lowered, dialect)
    if dialect == "hlo":
        return re.sub(r'^(\d+ ")[^"\n]*/', r"\1", text, flags=re.MULTILINE)
    return re.sub(r'\("[^"\n]*/([^"/\n]+)":(\d+)', r'("\1":\2', text)

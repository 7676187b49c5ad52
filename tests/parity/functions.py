"""How far a framework's elementary functions are from exact, in ulps of binary32: evidence for kForeignElementaryUlps.

    build/parity/venv-jax/bin/python tests/parity/functions.py jax          # or tf, torch
    exp 0.96 at -87.3 ...                                                   # worst error, and where

Arguments: 100,000 binary32 numbers, evenly spaced among the bit patterns of each function's interesting range, both signs.
Truth: binary64 of the C library, whose own error (below an ulp of binary64) is too small to matter.
"""
import math
import os
import sys

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

TRUTH = {"exp": math.exp, "log": math.log, "tanh": math.tanh, "log1p": math.log1p, "erf": math.erf,
         "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "rsqrt": lambda x: 1 / math.sqrt(x)}
RANGES = {"exp": (1e-6, 87.0, True), "log": (1e-37, 1e37, False), "tanh": (1e-6, 20.0, True), "log1p": (1e-6, 1e6, False),
          "erf": (1e-6, 5.0, True), "sigmoid": (1e-6, 80.0, True), "rsqrt": (1e-37, 1e37, False)}


def functions_of(framework):
    if framework == "jax":
        import jax
        from jax import lax
        table = {"exp": lax.exp, "log": lax.log, "tanh": lax.tanh, "log1p": lax.log1p, "erf": lax.erf,
                 "sigmoid": jax.nn.sigmoid, "rsqrt": lax.rsqrt}
        return {k: (lambda x, f=f: np.asarray(jax.jit(f)(x))) for k, f in table.items()}
    if framework == "tf":
        import tensorflow as tf
        return {k: (lambda x, f=f: f(x).numpy()) for k, f in (
            ("exp", tf.exp), ("log", tf.math.log), ("tanh", tf.tanh), ("log1p", tf.math.log1p), ("erf", tf.math.erf),
            ("sigmoid", tf.sigmoid), ("rsqrt", tf.math.rsqrt))}
    import torch
    return {k: (lambda x, f=getattr(torch, k): f(torch.from_numpy(x)).numpy()) for k in TRUTH}


def main():
    for name, function in functions_of(sys.argv[1]).items():
        low, high, both = RANGES[name]
        bits = np.linspace(*(int(np.float32(v).view(np.uint32)) for v in (low, high)), 100_000).astype(np.uint32)
        x = bits.view(np.float32)
        x = np.concatenate([-x, x]) if both else x
        truth = np.array([TRUTH[name](float(v)) for v in x])
        ulps = np.abs(function(x).astype(np.float64) - truth) / np.spacing(np.abs(truth).astype(np.float32)).astype(np.float64)
        print(f"{name:8} {ulps.max():5.2f} at {x[ulps.argmax()]:.9g}")


main()

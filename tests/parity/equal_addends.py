"""Evidence for docs/method/numerics.md: a float32 sum in one chain drifts where its addends are equal, and TensorFlow's BiasAddGrad is one.

    build/parity/venv-tf/bin/python tests/parity/equal_addends.py

For n copies of 0.1 and for n numbers near 0.1, the relative error in units of 2^-24 of: a chain in numpy, numpy's pairwise sum,
TensorFlow's BiasAddGrad and reduce_sum. A chain of independent roundings would lose about sqrt(n / 3).
"""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def error(computed, exact):
    return abs(float(computed) - exact) / exact * 2**24


def main():
    print(f"{'n':>8} {'addends':<8} {'sqrt(n/3)':>9} {'chain':>9} {'pairwise':>9} {'BiasAddGrad':>12} {'reduce_sum':>11}")
    for n in (1024, 8192, 23328, 65536):
        spread = np.random.default_rng(1).uniform(0.09, 0.11, n).astype(np.float32)
        for name, x in (("equal", np.full(n, 0.1, np.float32)), ("spread", spread)):
            exact = float(np.sum(x, dtype=np.float64))
            image = tf.constant(np.repeat(x[:, None], 4, 1).reshape(n, 1, 1, 4))
            print(f"{n:8} {name:<8} {np.sqrt(n / 3):9.1f} {error(np.cumsum(x, dtype=np.float32)[-1], exact):9.1f}"
                  f" {error(x.sum(), exact):9.1f} {error(tf.raw_ops.BiasAddGrad(out_backprop=image)[0], exact):12.1f}"
                  f" {error(tf.reduce_sum(image, [0, 1, 2])[0], exact):11.1f}")


main()

"""Healthy steps on a mesh are not accused; planted mistakes are named by mechanism.

    XLA_FLAGS is set here; needs JAX (77: it is not installed)
"""

import os
import pathlib
import sys
import unittest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[3] / "adapters"), str(pathlib.Path(__file__).resolve().parent)]
try:
    import jax
except ImportError:
    print("skipped: JAX is not installed (TWINRUN_JAX_PYTHON)")
    sys.exit(77)

import jax.numpy as jnp
import numpy as np
import sharding_models as m
from jax import lax
from jax.sharding import PartitionSpec as P
from twinrun.mesh import compare, emulated, whole

tree_map = jax.tree_util.tree_map


def divided(g, by):
    return tree_map(lambda v: v / by, g)


def both(g):
    return lax.pmean(g, ("data", "model"))


TWO = {"axes": ("data", "model"), "shape": (4, 2), "spec": P(("data", "model"))}

HEALTHY = {
    "pmean": lambda: m.data_parallel(m.mean),
    "psum over psum(1)": lambda: m.data_parallel(lambda g: divided(lax.psum(g, "data"), lax.psum(1, "data"))),
    "psum over 8": lambda: m.data_parallel(lambda g: divided(lax.psum(g, "data"), 8)),
    "psum over device_count": lambda: m.data_parallel(lambda g: divided(lax.psum(g, "data"), jax.device_count())),
    "sum of samples": lambda: m.data_parallel(
        lambda g: lax.psum(g, "data"), lambda p, x, y: jnp.sum((m.forward(p, x) - y) ** 2) / 96, report=lax.psum),
    "loss over 8": lambda: m.data_parallel(lambda g: lax.psum(g, "data"), lambda *a: m.mse(*a) / 8, report=lax.psum),
    "clipping after": lambda: m.data_parallel(lambda g: m.clipped(m.mean(g))),
    "two axes": lambda: m.data_parallel(both, **TWO),
    "two axes one by one": lambda: m.data_parallel(lambda g: lax.pmean(lax.pmean(g, "data"), "model"), **TWO),
    "synced batch norm": lambda: m.batch_norm(m.mean),
    "token mean": lambda: m.masked(lambda s, n: s / lax.pmean(n, "data")),
    "dropout": lambda: m.dropout(lambda k: jax.random.fold_in(k, lax.axis_index("data"))),
    "weight noise": lambda: m.weight_noise(lambda k: k),
    "fsdp": lambda: m.fsdp(),
    "fsdp clipped": lambda: m.fsdp(clip=m.shard_clip(lambda s: lax.psum(s, "data"))),
    "tensor parallel": lambda: m.tensor_parallel(),
    "experts": lambda: (*m.experts(), m.experts_whole),
    "pipeline": lambda: (*m.pipeline(), m.pipeline_whole),
    "slices": lambda: m.slices(),
    "halo": lambda: m.halo(),
    "similarities": lambda: m.similarities(),
    "pmap": lambda: m.replicated(lambda g: lax.pmean(g, "batch")),
    "pmap, own losses": lambda: m.replicated(lambda g: lax.pmean(g, "batch"), report=lambda v: v),
    "jit": lambda: m.annotated(),
    "automatic": lambda: m.automatic(),
    "accumulated": lambda: m.scanned(m.mean),
}  # fmt: skip

# name: (case, causes, what the line must hold)
PLANTED = {
    "sum": (lambda: m.data_parallel(lambda g: lax.psum(g, "data")), ["unscaled"]),
    "divided twice": (lambda: m.data_parallel(lambda g: divided(m.mean(g), 8)), ["scaled_twice"]),
    "divided in the loss": (
        lambda: m.data_parallel(m.mean, lambda *a: m.mse(*a) / jax.device_count(), report=lax.psum), ["scaled_twice"]),
    "sum of samples averaged": (
        lambda: m.data_parallel(m.mean, lambda p, x, y: jnp.sum((m.forward(p, x) - y) ** 2), report=lax.psum),
        ["reduction"]),
    "clipped first": (lambda: m.data_parallel(lambda g: m.mean(m.clipped(g))), ["clipping"]),
    "clipped by value first": (
        lambda: m.data_parallel(lambda g: m.mean(tree_map(lambda v: jnp.clip(v, -0.02, 0.02), g))), ["clipping"]),
    "never reduced": (lambda: m.data_parallel(lambda g: g), ["no_all_reduce"]),
    "one never reduced": (lambda: m.data_parallel(lambda g: {**m.mean(g), "b1": g["b1"]}), ["no_all_reduce"]),
    "one axis forgotten": (lambda: m.data_parallel(m.mean, **TWO), ["forgotten_axis"]),
    "summed twice": (lambda: m.data_parallel(lambda g: lax.psum(m.mean(g), "data")), ["summed_twice"]),
    "an axis too many": (
        lambda: m.data_parallel(lambda g: divided(lax.psum(g, ("data", "model")), 4), shape=(4, 2)), ["summed_twice"]),
    "own batch norm": (lambda: m.batch_norm(lambda s: s), ["batch_norm"]),
    "own statistics": (lambda: m.batch_norm(m.mean, lambda s: s), ["statistics"]),
    "mean of means": (lambda: m.masked(lambda s, n: s / n), ["token_mean"]),
    "one key": (lambda: m.dropout(lambda k: k), ["one_stream"]),
    "a key each": (lambda: m.weight_noise(lambda k: jax.random.fold_in(k, lax.axis_index("data"))), ["stream_per_core"]),
    "norm of the shard": (lambda: m.fsdp(clip=m.shard_clip(lambda s: s)), ["shard_norm"]),
    "slices from the end": (lambda: m.slices(lambda i, n: n - 1 - i), ["permuted"]),
    "no sum over model": (lambda: m.tensor_parallel(inner_sum=lambda v: v), ["partial_sum"]),
    "shared never summed": (lambda: m.tensor_parallel(shared=lambda g: g), ["forgotten_axis"]),
    "experts mixed up": (lambda: (*m.experts(1, 1), m.experts_whole), ["wrong_dimensions"]),
    "pipeline backwards": (lambda: (*m.pipeline(-1), m.pipeline_whole), ["wrong_direction"]),
    "halo from the other side": (lambda: m.halo(-1), ["wrong_direction"]),
    "gathered out of order": (
        lambda: m.similarities(lambda v: lax.ppermute(v, "data", [(i, (i + 3) % 8) for i in range(8)])), ["permuted"]),
    "labels of the next device": (lambda: m.similarities(place=lambda i, n: (i + 1) % n), ["permuted"]),
    "pmap sum": (lambda: m.replicated(lambda g: lax.psum(g, "batch")), ["unscaled"]),
    "pmap never reduced": (lambda: m.replicated(lambda g: g), ["no_all_reduce"]),
    "pmap clipped first": (lambda: m.replicated(lambda g: lax.pmean(m.clipped(g), "batch")), ["clipping"]),
    "accumulated sum": (lambda: m.scanned(lambda g: lax.psum(g, "data")), ["unscaled"]),
}  # fmt: skip
if __name__ == "__main__" and os.environ.get("SHOW"):
    import time
    want = sys.argv[1:]
    for name, c in {**HEALTHY, **{k: v for k, v in PLANTED.items()}}.items():
        if want and name not in want: continue
        t = time.time()
        fn = c if callable(c) else c[0]
        step, state, b, *w = fn()
        try:
            r = compare(step, state, [b], *w)
        except Exception as e:
            import traceback
            if want: traceback.print_exc()
            print("!!", name, type(e).__name__, str(e)[:300]); continue
        good = (not r["differs"]) if callable(c) else [x["cause"] for x in r["causes"]] == c[1]
        print("ok " if good else "BAD", name, [(x["cause"], x["line"], x["factor"], x["names"], x["axes"]) for x in r["causes"]], "" if good else (r["kinds"], r["first_parameter"], r["factor"]), r["notes"], "%.1f" % (time.time() - t))

"""Healthy steps on a mesh are not accused; planted mistakes are named by mechanism.

XLA_FLAGS is set here; needs JAX (77: it is not installed)
"""

import os
import subprocess
import sys
import tempfile
import unittest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import with_jax  # noqa: F401, I001

import jax
import jax.numpy as jnp
import kinds
import numpy as np
import sharding_models as m
import twinrun
from jax import lax
from jax.sharding import PartitionSpec as P
from twinrun import command
from twinrun.mesh import compare, emulated, plain, whole
from twinrun.mesh.evaluate import binary64
from twinrun.mesh.results import Results
from twinrun.xla import repro
from twinrun.xla.equations import trace
from twinrun.xla.judge import Fragment

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
    "pmap, numbers of keys": lambda: m.replicated_with_keys(jax.random.split(jax.random.PRNGKey(3), 8)),
    "pmap, typed keys": lambda: m.replicated_with_keys(jax.random.split(jax.random.key(3), 8)),
    "pmap, own losses": lambda: m.replicated(lambda g: lax.pmean(g, "batch"), report=lambda v: v),
    "jit": lambda: m.annotated(),
    "automatic": lambda: m.automatic(),
    "accumulated": lambda: m.scanned(m.mean),
    "vocabulary": lambda: m.vocabulary(),
    "vocabulary by owners": lambda: m.owned(),
    "share of tokens times 8": lambda: m.token_share(lambda total, count: total / count * 8),
    "bias after the sum": lambda: m.bias_before_sum(False),
    "pairs of all": lambda: m.pairs(lambda v: lax.all_gather(v, "data", tiled=True)),
    "a gradient that cancels": lambda: m.data_parallel(lambda g: m.clipped(m.mean(g)), m.normed()),
}  # fmt: skip

EXPLICIT = hasattr(jax, "shard_map") and hasattr(jax.sharding, "AxisType")
if EXPLICIT:
    HEALTHY["explicit axes"] = lambda: m.typed(m.mean)

# name: (case, causes)
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
    "clipped first, and summed": (
        lambda: m.data_parallel(lambda g: lax.psum(m.clipped(g), "data")), ["clipping", "unscaled"]),
    "a sum reported": (lambda: m.data_parallel(m.mean, report=lax.psum), ["unscaled"]),
    "one axis of two clipped first": (
        lambda: m.data_parallel(lambda g: lax.pmean(m.clipped(m.mean(g)), "model"), **TWO), ["clipping"]),
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
    "a key each": (
        lambda: m.weight_noise(lambda k: jax.random.fold_in(k, lax.axis_index("data"))), ["stream_per_core"]),
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
    "clipped first, a gradient cancels": (
        lambda: m.data_parallel(lambda g: m.mean(m.clipped(g)), m.normed()), ["clipping"]),
    "never reduced, synced batch norm": (lambda: m.data_parallel(lambda g: g, m.normed()), ["no_all_reduce"]),
    "sum of samples averaged, synced batch norm": (
        lambda: m.data_parallel(m.mean, m.normed(jnp.sum)), ["reduction"]),
    "sum, token mean": (
        lambda: m.masked(lambda s, n: s / lax.pmean(n, "data"), lambda g: lax.psum(g, "data")), ["unscaled"]),
    "own batch norm, a gradient cancels": (
        lambda: m.data_parallel(m.mean, m.normed(across=lambda s: s)), ["batch_norm"]),
    "sum of means": (lambda: m.data_parallel(m.mean, m.normed(across=lambda s: lax.psum(s, "data"))), ["sum_for_mean"]),
    "mean of sums": (
        lambda: m.data_parallel(m.mean, m.normed(across=lambda s: m.mean(s) / lax.psum(1, "data"))), ["mean_for_sum"]),
    "psum in the derivative": (lambda: m.tensor_parallel(share=lambda v: v), ["summed_in_derivative"]),
    "psum in the derivative and twice": (
        lambda: m.tensor_parallel(share=lambda v: v, reduce=lambda g: lax.psum(m.mean(g), "data")),
        ["summed_in_derivative", "summed_twice"]),
    "the wrong axis": (lambda: m.tensor_parallel(reduce=lambda g: lax.pmean(g, "model")), ["wrong_axis"]),
    "share of tokens averaged": (lambda: m.token_share(lambda total, count: total / count), ["reduction"]),
    "bias before the sum": (lambda: m.bias_before_sum(True), ["repeated_term"]),
    "micro-batches summed by shard_map": (lambda: m.micro_batches(), ["summed_by_transpose"]),
    "pairs of one device": (lambda: m.pairs(lambda v: v), ["pairs_of_samples"]),
    "summed by shard_map alone": (lambda: m.data_parallel(lambda g: g, check=True), ["summed_by_transpose"]),
    "averaged after shard_map summed": (lambda: m.data_parallel(m.mean, check=True), ["summed_by_transpose"]),
    "accumulated sum": (lambda: m.scanned(lambda g: lax.psum(g, "data")), ["unscaled"]),
}  # fmt: skip


if EXPLICIT:
    PLANTED["explicit axes, sum"] = (lambda: m.typed(lambda g: lax.psum(g, "data")), ["unscaled"])


class Meaning(unittest.TestCase):
    """Set by add(): one test for each case."""


def add(name, check):
    setattr(Meaning, "test_" + "".join(c if c.isalnum() else "_" for c in name), check)


def healthy(make):
    def test(self):
        step, state, batch, *whole_step = make()
        found = compare(step, state, [batch], *whole_step)
        self.assertFalse(found["differs"], found)

    return test


def planted(make, causes):
    def test(self):
        step, state, batch, *whole_step = make()
        found = compare(step, state, [batch], *whole_step)
        self.assertTrue(found["differs"] and found["explained"], found)
        self.assertEqual([c["cause"] for c in found["causes"]], causes, found)
        for cause in found["causes"]:
            self.assertRegex(cause["line"], r"^sharding_(models|test)\.py:\d+$")
            self.assertNotRegex(cause["sentence"] + cause["cure"], r"[{}]")

    return test


for name, make in HEALTHY.items():
    add("healthy " + name, healthy(make))
for name, (make, causes) in PLANTED.items():
    add("planted " + name, planted(make, causes))


class Words(unittest.TestCase):
    """What is said beside the causes."""

    def test_code_for_this_mesh_is_not_accused(self):
        step, state, batch = m.one_part(3)
        found = compare(step, state, [batch])
        self.assertTrue(found["differs"] and not found["explained"], found)
        self.assertRegex(str(found["written_for_mesh"]), r"sharding_models\.py:\d+")
        found = compare(step, state, [batch], m.on_rows(12, 16))
        self.assertFalse(found["differs"], found)
        found = compare(step, state, [batch], m.on_rows(16, 20))
        self.assertTrue(found["differs"])
        self.assertEqual(found["written_for_mesh"], [])

    def test_a_clip_that_is_reached_hides_a_factor(self):
        for name, reduce, blind in (("mean", m.mean, False), ("sum", lambda g: m.clipped(lax.psum(g, "data")), True),
                                    ("mean behind a clip", lambda g: m.clipped(m.mean(g), 1e3), False)):  # fmt: skip
            step, state, batch = m.data_parallel(reduce)
            found = compare(step, state, [batch])
            self.assertEqual((found["differs"], found["blind"]), (False, blind), (name, found))

    def test_a_number_written_for_this_mesh_is_noted(self):
        step, state, batch = HEALTHY["psum over 8"]()
        self.assertIn("taken as the number of devices", " ".join(compare(step, state, [batch])["notes"]))

    def test_an_axis_that_divides_nothing_is_noted(self):
        step, state, batch = m.data_parallel(m.mean, spec=P())
        found = compare(step, state, [batch])
        self.assertFalse(found["differs"])
        self.assertIn("nothing is divided along data", " ".join(found["notes"]))

    def test_parameters_that_drift_are_named(self):
        step, state, batch = PLANTED["one never reduced"][0]()
        found = compare(step, state, [batch])
        self.assertEqual(found["drift"], ["b1"])
        self.assertIn("b1", found["causes"][0]["sentence"])
        self.assertEqual(found["first_parameter"], "b1")

    def test_what_rounding_alone_moves_is_not_the_first_variable(self):
        step, state, batch = PLANTED["clipped first, a gradient cancels"][0]()
        found = compare(step, {**state, "b1": 0 * state["b1"]}, [batch])
        self.assertIn("rounding alone moves them: b1", " ".join(found["notes"]))
        self.assertEqual(found["first_parameter"], "w1")

    def test_the_sum_of_parts_is_the_cure_of_a_gradient_that_devices_hold_in_parts(self):
        step, state, batch = PLANTED["shared never summed"][0]()
        self.assertIn("jax.lax.psum", compare(step, state, [batch])["causes"][0]["cure"])

    def test_floats_of_other_sizes_are_explained_as_well(self):
        step, state, batch = PLANTED["sum"][0]()
        for dtype in (jnp.bfloat16, jnp.float16):
            found = compare(step, tree_map(lambda v, to=dtype: v.astype(to), state), [batch])
            self.assertEqual([c["cause"] for c in found["causes"]], ["unscaled"], found)

    def test_what_no_mechanism_explains_is_said_to_differ(self):
        step, state, batch = m.data_parallel(lambda g: tree_map(lambda v: v * (1 + lax.axis_index("data")), m.mean(g)))
        found = compare(step, state, [batch])
        self.assertTrue(found["differs"])
        self.assertFalse(found["explained"])
        self.assertEqual((found["first_parameter"], found["causes"]), ("b1", []))

    def test_the_step_on_one_device_is_asked_for(self):
        step, state, batch = m.pipeline()
        with self.assertRaisesRegex(Exception, "whole="):
            compare(step, state, [batch])

    def test_a_whole_step_that_means_something_else_is_no_matter_of_sharding(self):
        step, state, batch = m.data_parallel(m.mean)

        def other(p, b):
            value, g = jax.value_and_grad(m.mse)(p, *b)
            return tree_map(lambda a, d: a - 0.2 * d, p, g), value

        found = compare(step, state, [batch], other)
        self.assertTrue(found["differs"])
        self.assertFalse(found["explained"])


class Programs(unittest.TestCase):
    """The functions that others export."""

    def test_the_emulated_step_has_no_collectives_and_the_same_results(self):
        for name in ("pmean", "two axes", "fsdp", "tensor parallel", "experts", "pipeline", "halo", "pmap", "dropout"):
            step, state, batch = HEALTHY[name]()[:3]
            with self.subTest(name):
                lowered = jax.jit(emulated(step)).lower(state, batch)
                for word in (
                    "all_reduce",
                    "all_gather",
                    "collective_permute",
                    "all_to_all",
                    "reduce_scatter",
                    "shard_map",
                ):
                    self.assertNotIn("stablehlo." + word, lowered.as_text())
                mine, theirs = jax.jit(emulated(step))(state, batch), step(state, batch)
                # Sums of at most 512 terms in another order, and as many roundings.
                self.assertLess(apart(mine, theirs), 1024 * 2.0**-24, name)

    def test_a_broken_step_stays_broken(self):
        for name in ("sum", "own batch norm", "halo from the other side", "pmap never reduced"):
            step, state, batch = PLANTED[name][0]()[:3]
            with self.subTest(name):
                mine, theirs = jax.jit(emulated(step))(state, batch), step(state, batch)
                self.assertLess(apart(mine, theirs), 1024 * 2.0**-24, name)
                self.assertGreater(apart(whole(step)(state, batch), theirs), 2.0**-10, name)

    def test_the_whole_step_is_the_step_on_one_device(self):
        step, state, batch = m.data_parallel(m.mean)
        new, value = whole(step)(state, batch)
        expected, g = jax.value_and_grad(m.mse)(state, *batch)
        self.assertLess(apart((new, value), (m.descend(state, g), expected)), 1024 * 2.0**-24)

    def test_tracing_on_another_mesh_leaves_nothing_behind(self):
        step, state, batch = m.data_parallel(m.mean)
        before = step(state, batch)
        compare(step, state, [batch])
        after = step(state, batch)
        self.assertEqual(apart(before, after), 0)
        self.assertEqual((jax.device_count(), m.mesh(4, 2).shape["data"], m.mesh(4, 2).size), (8, 4, 8))

    def test_binary64_by_numpy_is_that_of_jax(self):
        for name in ("fsdp clipped", "synced batch norm", "similarities"):
            step, state, batch = HEALTHY[name]()
            results = []
            for table in (dict(plain.PLAIN), {}):
                r = Results(step, state, batch)
                kept = dict(plain.PLAIN)
                plain.PLAIN.clear()
                plain.PLAIN.update(table)
                try:
                    with binary64():
                        r.run()
                        results.append([np.asarray(r.sharded[o]) for o in r.s.outputs])
                finally:
                    plain.PLAIN.update(kept)
            for a, b in zip(*results):
                # 1,024 roundings of binary64.
                self.assertLessEqual(float(np.linalg.norm(a - b)), 1024 * 2.0**-53 * float(np.linalg.norm(a)), name)


def apart(a, b):
    """The largest relative difference of an array of two trees."""
    worst = 0.0
    for x, y in zip(jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b)):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        worst = max(worst, float(np.linalg.norm(x - y)) / (float(np.linalg.norm(y)) or 1.0))
    return worst


class Script(unittest.TestCase):
    def test_a_constraint_is_kept_in_the_script(self):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        spread = jax.sharding.NamedSharding(mesh, P(None, "data"))
        program = trace(lambda x: [2 * lax.with_sharding_constraint(x[:, 1:], spread)], [np.ones((2, 9), "f4")])
        fragment = Fragment(program, program.equations)
        x = [jnp.asarray(np.arange(18, dtype="f4").reshape(2, 9))]
        path = repro.write(fragment, x, {}, fragment.function({})(*x), tempfile.mkdtemp(), "a test", 2.0**-24, 1)
        self.assertIn("constrained(", path.read_text())
        self.assertIn("PartitionSpec(None, 'data')", path.read_text())
        done = subprocess.run([sys.executable, str(path)], stdout=subprocess.PIPE, universal_newlines=True)
        self.assertEqual((done.returncode, done.stdout.split(":")[1].strip()), (0, "0 of 16 elements differ"), done.stdout)


class Door(unittest.TestCase):
    def test_its_bundle_is_proved_elsewhere(self):
        step, state, batch = m.data_parallel(lambda g: lax.psum(g, "data"))
        out = os.path.join(tempfile.mkdtemp(), "out")
        twinrun.diagnose(step, state, [batch] * 2, out=out)
        kinds.check(self, command.program(), out, "JAX step", 10)


if __name__ == "__main__":
    unittest.main()

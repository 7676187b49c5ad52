"""twinrun.diagnose on JAX steps: healthy ones are not accused, a wrong one is, and the search names what may not be joined.

python3 jax_test.py [Class.test]      # TWINRUN=path of the binary; exit status 77 without JAX
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE.parents[2] / "cases"
import with_jax  # noqa: F401, I001

import jax
import jax.numpy as jnp
import kinds
import models
import numpy as np
import twinrun
from twinrun import command
from twinrun.refused import Refused
from twinrun.trace_report import rows
from twinrun.xla import culprit, repro, singles
from twinrun.xla.arguments import find
from twinrun.xla.equations import trace
from twinrun.xla.judge import Answer
from twinrun.xla.noise import Instrument
from twinrun.xla.search import Lost, Search
from twinrun.xla.stepwise import on_one_device, one_by_one, outputs

warnings.filterwarnings("ignore")
tree_map = jax.tree_util.tree_map


# The slow suite tries the larger models, too, which take a minute each, and the equations of all of them, which `Healthy` computes as well.
EVERY = bool(os.environ.get("TWINRUN_TEST_ALL"))
MODELS = {name: make for name, make in models.ALL.items() if EVERY or name not in ("flax_transformer", "flax_lstm")}
BY_EQUATIONS = MODELS if EVERY else {"rnn": models.rnn, "transformer": models.transformer}


def folder():
    return tempfile.mkdtemp(prefix="twinrun_jax_")


class Forms(unittest.TestCase):
    def next_of(self, step, state, batch):
        form = find(step, state, batch)
        leaves = form.leaves(state, batch)
        return form, form.next_leaves(leaves, form.flat(*leaves))

    def test_orders_of_results(self):
        w, x = jnp.ones(3), jnp.arange(3.0)
        after, loss = w - 0.5 * x, jnp.sum(w * x)
        for results in (lambda s, l: (s, l), lambda s, l: (l, s), lambda s, l: {"state": s, "metrics": {"loss": l}},
                        lambda s, l: (jnp.float32(7), s, {"accuracy": 0 * l, "loss": l})):  # fmt: skip
            form, state = self.next_of(lambda w, x: results(w - 0.5 * x, jnp.sum(w * x)), w, x)  # noqa: B023
            self.assertTrue((state[0] == after).all())
            if "loss" in str(form.result_names):
                self.assertEqual(float(form.flat(w, x)[form.loss]) in (float(loss), 7.0), True)

    def test_leading_and_trailing_arguments(self):
        def step(params, momentum, x, y):
            return params + x, momentum + y, jnp.sum(x)

        _, state = self.next_of(step, (jnp.ones(2), jnp.zeros(2)), (jnp.ones(2), jnp.full(2, 3.0)))
        self.assertEqual([s.tolist() for s in state], [[2, 2], [3, 3]])

    def test_a_tuple_may_be_one_argument(self):
        _, state = self.next_of(lambda s, b: ((s[0] + b[0], s[1] + b[1]), 1.0 * b[0].sum()),
                                (jnp.ones(2), jnp.zeros(2)), (jnp.ones(2), jnp.ones(2)))  # fmt: skip
        self.assertEqual([s.tolist() for s in state], [[2, 2], [1, 1]])

    def test_keys(self):
        for make in [jax.random.PRNGKey] + ([jax.random.key] if hasattr(jax.random, "key") else []):
            def step(state, x):
                key, now = jax.random.split(state["key"])
                return {"w": state["w"] + jax.random.normal(now, x.shape), "key": key}, jnp.sum(x)

            state = {"w": jnp.zeros(2), "key": make(0)}
            form, after = self.next_of(step, state, jnp.ones(2))
            self.assertEqual(len(after), 2)
            self.assertEqual(form.next, [0, 1])

    def test_static_arguments_in_the_batch(self):
        step = jax.jit(lambda w, x, train: (w + x if train else w, jnp.sum(x)), static_argnums=2)
        _, state = self.next_of(step, jnp.ones(2), (jnp.ones(2), True))
        self.assertEqual(state[0].tolist(), [2, 2])

    def test_refusals_say_what_was_met(self):
        with self.assertRaisesRegex(Refused, "structure, shapes and types of the state"):
            find(lambda w, x: (w.astype(jnp.bfloat16), jnp.sum(x)), jnp.ones(2), jnp.ones(2))
        with self.assertRaisesRegex(Refused, "could not be called"):
            find(lambda w: (w, 1.0), jnp.ones(2), jnp.ones(2))


class Equations(unittest.TestCase):
    def test_the_list_of_equations_computes_the_step(self):
        for name, make in BY_EQUATIONS.items():
            with self.subTest(name):
                step, state, batches = make()
                form = find(step, state, batches[0])
                leaves = form.leaves(state, batches[0])
                program = trace(form.flat, leaves)
                base = outputs(program, one_by_one(program, on_one_device(leaves)))
                noise = Instrument(program).measure(leaves, base)
                self.assertEqual(noise.beyond(jax.jit(form.flat)(*leaves)), {})
                # Of most results the noise is below a thousandth of their size, or bfloat16's unit roundoff where that is used.
                wide = [np.median(s / (1e-30 + np.abs(b).max(initial=0))) for s, b in zip(noise.spread, noise.base)]
                half = "bf16" in str(jax.make_jaxpr(form.flat)(*leaves))
                self.assertLess(np.median(wide), 2**-8 if half else 1e-3)

    def test_places_are_the_users_lines(self):
        step, state, batches = models.mlp()
        form = find(step, state, batches[0])
        program = trace(form.flat, form.leaves(state, batches[0]))
        dots = [e.place for e in program.everything() if e.name == "dot_general"]
        self.assertTrue(dots and all(p.startswith("models.py:") for p in dots), dots)


class Trigger(unittest.TestCase):
    def setUp(self):
        self.x = np.random.default_rng(0).normal(size=(64, 512)).astype("f4")
        program = trace(lambda x: [jnp.sum(jnp.exp(x), 1), x[:, ::-1]], [self.x])
        self.noise = Instrument(program).measure([self.x], outputs(program, one_by_one(program, [self.x])))

    def test_another_order_of_a_sum_is_rounding(self):
        e = np.exp(self.x)
        one_by_one = np.zeros(64, "f4")
        for i in np.random.default_rng(1).permutation(512):
            one_by_one += e[:, i]
        self.assertEqual(self.noise.beyond([one_by_one, self.x[:, ::-1]]), {})

    def test_one_changed_element_is_not(self):
        wrong = np.exp(self.x).sum(1)
        wrong[3] -= np.exp(self.x[3, 4])  # a lost term
        self.assertEqual(self.noise.beyond([wrong, self.x[:, ::-1]]), {0: 1})

    def test_copies_have_no_rounding(self):
        moved = self.x[:, ::-1].copy()
        moved[0, 0] = np.nextafter(moved[0, 0], 9, dtype="f4")
        self.assertEqual(self.noise.beyond([np.asarray(self.noise.base[0]), moved]), {1: 1})


class Bisection(unittest.TestCase):
    def test_finds_what_must_be_together(self):
        for planted in ({0, 1}, {7, 8}, {130, 131, 140}, {3, 199}):
            search = Search(200, lambda chosen: planted <= set(chosen), time.monotonic() + 60)  # noqa: B023
            self.assertEqual(set(search.group()), planted)

    def test_neighbours_take_few_compilations(self):
        search = Search(4096, lambda chosen: {1000, 1001} <= set(chosen), time.monotonic() + 60)
        search.group()
        self.assertLessEqual(search.compilations, 1 + 2 * 12 + 4)

    def test_one_equation_may_be_wrong_on_several_devices(self):
        self.assertEqual(Search(50, lambda chosen: 20 in chosen, time.monotonic() + 60).group(), [20])

    def test_says_why_it_is_lost(self):
        with self.assertRaisesRegex(Lost, "right when"):
            Search(4, lambda chosen: False, time.monotonic() + 60).group()
        with self.assertRaisesRegex(Lost, "time"):
            Search(4, lambda chosen: True, time.monotonic() - 1).group()


class Stepwise(unittest.TestCase):
    def test_loops_are_computed_step_by_step(self):
        def function(x, n):
            carry, rows = jax.lax.scan(lambda c, r: (c * 0.5 + r, c), x[0], x, reverse=True)
            grown = jax.lax.while_loop(lambda v: v[0] < n, lambda v: (v[0] + 1, v[1] * 2), (0, carry))
            return [*jax.tree_util.tree_leaves(grown), rows, jax.lax.cond(n > 2, lambda c: -c, lambda c: c, carry)]

        x = np.arange(12, dtype="f4").reshape(4, 3)
        for n in (1, 3):
            program = trace(function, [x, np.int32(n)])
            found = outputs(program, one_by_one(program, on_one_device([x, np.int32(n)])))
            # Halves and doubles of small whole numbers: nothing is rounded.
            for a, b in zip(found, jax.jit(function)(x, n)):
                self.assertTrue(np.array_equal(a, b), (a, b))


class Healthy(unittest.TestCase):
    def test_models(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                step, state, batches = make()
                kept = tree_map(np.asarray, state) if name != "vae" else None
                report = twinrun.diagnose(step, state, batches, out=folder(), steps=2)
                self.assertEqual(report.verdict, "NOISE", str(report))
                self.assertIsNone(report.data["triggered"])
                self.assertGreater(report.data["singles"]["judged"], 0.5 * report.data["singles"]["of"], str(report))
                if kept is not None:  # donated arguments, too
                    for a, b in zip(jax.tree_util.tree_leaves(kept), jax.tree_util.tree_leaves(state)):
                        self.assertTrue(np.array_equal(a, b))


    def test_the_proof_has_its_own_time(self):
        step, state, batches = models.mlp()
        report = twinrun.diagnose(step, state, batches, out=folder(), steps=1, seconds=0)
        self.assertEqual(report.verdict, "NOISE", str(report))


class _Lying:
    """A compiled step that returns one changed element when it really runs."""

    def __init__(self, step):
        self.step, self.lower = step, step.lower

    def __call__(self, *arguments):
        params, loss = self.step(*arguments)
        if isinstance(loss, jax.core.Tracer):
            return params, loss
        return {**params, "a": params["a"].at[1, 1, 0, 3].add(0.01)}, loss


class Wrong(unittest.TestCase):
    def test_a_changed_result_is_a_proof(self):
        step, state, batches = models.conv()
        out = folder()
        report = twinrun.diagnose(_Lying(step), state, batches, out=out)
        self.assertEqual(report.verdict, "ENGINE_BUG", str(report))
        self.assertIn("1 of 72 elements of new a", str(report))
        self.assertIn("[1, 1, 0, 3]", str(report))
        kinds.check(self, command.program(), out, "JAX step", 20)

    def test_one_wrong_operation_is_named(self):
        """The judge is replaced: it says of every product that an element is outside."""
        step, state, batches = models.mlp()
        original = singles.judge

        def judge(text, arguments, results, where, stem, labels=(), timeout=0):
            outside = stem.startswith(("op_dot_general", "group"))
            return Answer({"results": [
                {"index": i, "elements": np.size(r), "outside": int(outside), "why": "", "largest_ratio": 0.5,
                 "worst": {"index": [0], "found": 1.0, "expected": 2.0, "radius": 0.1} if outside else None,
                 "median_relative_radius": 1e-6, "pattern": ""}
                for i, r in enumerate(results)]}, labels)  # fmt: skip

        singles.judge = culprit.judge = judge
        try:
            report = twinrun.diagnose(step, state, batches, out=folder())
        finally:
            singles.judge = culprit.judge = original
        self.assertEqual(report.verdict, "ENGINE_BUG")
        self.assertRegex(report.headline, r"XLA computes dot_general at models.py:\d+ wrongly")

    def run_script(self, name, flags=""):
        environment = dict(os.environ, PYTHONPATH=str(HERE.parents[2] / "adapters"))
        environment["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " " + flags).strip()
        done = subprocess.run([sys.executable, str(CASES / name / "script.py")], env=environment, cwd=folder(),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)  # fmt: skip
        return done.stdout

    def test_token_shift(self):
        script = runpy.run_path(str(CASES / "token_shift" / "script.py"))
        state, batches = script["example"]()
        _, loss = script["train_step"](state, batches[0])
        with jax.disable_jit():
            _, due = script["train_step"](state, batches[0])
        said = self.run_script("token_shift")
        if abs(loss - due) < 1e-4 * due:  # this version is right; a wrong one is off by a hundredth
            self.assertTrue(said.startswith("NOISE"), said)
            return
        self.assertTrue(said.startswith("ENGINE_BUG"), said)
        self.assertRegex(said, "(dynamic_update_slice|scatter).*reshape at script.py:22.* wrongly when it joins them")
        self.assertIn("right without the pass", said)
        self.assertIn("repro.py", said)
        self.assertTrue(self.run_script("token_shift", "--xla_disable_hlo_passes=algsimp").startswith("NOISE"))

    def test_mesh(self):
        said = self.run_script("mesh_concatenate")
        old = tuple(int(x) for x in jax.__version__.split(".")[:2]) < (0, 5)
        self.assertTrue(said.startswith("ENGINE_BUG" if old else "NOISE"), said)
        if old:
            self.assertIn("the partitioner's collective for concatenate at script.py:17", said)

    def test_bias(self):
        said = self.run_script("bias_gradient")
        bad = jax.__version__ == "0.4.28"
        self.assertTrue(said.startswith("ENGINE_BUG" if bad else "NOISE"), said)
        if bad:
            self.assertIn("script.py", said.splitlines()[0])


def moments(w, batch):
    """A batch norm whose variance is E[x^2] - E[x]^2."""
    x, y = batch
    mean = x.mean(0)
    variance = jnp.maximum((x * x).mean(0) - mean * mean, 0)  # LINE OF THE VARIANCE
    return jnp.mean((((x - mean) * jax.lax.rsqrt(variance + 1e-3)) @ w - y) ** 2)


def sgd(loss_of):
    @jax.jit
    def step(w, batch):
        loss, gradient = jax.value_and_grad(loss_of)(w, batch)
        return w - 0.05 * gradient, loss

    return step


def line_of(mark):
    lines = pathlib.Path(__file__).read_text().splitlines()
    return f"jax_test.py:{next(i for i, line in enumerate(lines, 1) if mark in line)}"


class NotLookedAt(unittest.TestCase):
    """Nothing is called noise that was not looked at."""

    def setUp(self):
        r = np.random.default_rng(0)
        self.w = jnp.asarray(r.normal(size=4), jnp.float32)
        self.x, self.y = r.normal(size=(64, 4)), r.normal(size=64).astype("f4")

    def diagnosed(self, loss_of, mean=0.0, spread=1.0):
        batch = ((mean + spread * self.x).astype("f4"), self.y)
        return twinrun.diagnose(sgd(loss_of), self.w, [batch], out=folder())

    def test_a_value_without_a_correct_digit(self):
        report = self.diagnosed(moments, 2000, 0.05)
        self.assertEqual(report.verdict, "INCONCLUSIVE", str(report))
        self.assertIn(f"sub float32[4] at {line_of('# LINE OF THE VARIANCE')} has no correct digit", report.headline)
        # The same code on features that are centred is looked at.
        report = self.diagnosed(moments, 0, 1)
        self.assertEqual(report.verdict, "NOISE", str(report))
        self.assertLess(max(report.data["undecided"].values()), 0.01)

    def test_an_operation_that_cannot_be_judged(self):
        def loss_of(w, batch):
            x, y = batch
            scale = jnp.linalg.eigvalsh(x.T @ x)  # LINE OF THE EIGENVALUES
            return jnp.mean((x @ (w * scale) / scale.sum() - y) ** 2)

        report = self.diagnosed(loss_of)
        self.assertEqual(report.verdict, "INCONCLUSIVE", str(report))
        self.assertRegex(report.headline, f"eigh float32.* at {line_of('# LINE OF THE EIGENVALUES')}")

    def test_what_is_off_the_path_does_not_count(self):
        @jax.jit
        def step(w, batch):
            x, y = batch
            loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
            return w - 0.05 * gradient, {"loss": loss, "condition": jnp.linalg.eigvalsh(x.T @ x)}

        report = twinrun.diagnose(step, self.w, [(self.x.astype("f4"), self.y)], out=folder())
        self.assertEqual(report.verdict, "NOISE", str(report))
        self.assertIn("eigh", str(report))

    def test_a_nan_is_named_with_its_maker(self):
        report = self.diagnosed(lambda w, b: jnp.mean((jnp.log(b[0] @ w - 100) - b[1]) ** 2))  # LINE OF THE NAN
        self.assertEqual(report.verdict, "PROGRAM", str(report))
        self.assertIn(f"log float32[64] at {line_of('# LINE OF THE NAN')} (NaN)", report.headline)
        # A step that leaves the state as it was keeps its word.
        def skipped(w, batch):
            loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.log(batch[0] @ w - 100)))(w)
            return jnp.where(jnp.isfinite(loss), w - gradient, w), loss

        report = twinrun.diagnose(skipped, self.w, [(self.x.astype("f4"), self.y)], out=folder())
        self.assertEqual(report.verdict, "NOISE", str(report))
        self.assertIn("first value that is not was made by log", str(report))

    def test_what_the_equations_take_for_granted_is_said(self):
        self.assertIn("not asked: whether the optimizer is its formula", str(self.diagnosed(lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2))))


_SIDE = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
import twinrun

RATE, CHANGE, SEED = map(float, sys.argv[1:])


@jax.custom_jvp
def scaled(w):
    return 8 * w


scaled.defjvp(lambda given, change: (8 * given[0], RATE * change[0]))


@jax.jit
def step(w, batch):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ scaled(w) - batch["y"]) ** 2))(w)
    return w - 0.001 * gradient * (1 + CHANGE), loss


r = np.random.default_rng(int(SEED))
batches = [{"x": r.normal(size=(8, 4)).astype("f4"), "y": r.normal(size=8).astype("f4")} for _ in range(2)]
print(twinrun.diagnose(step, jnp.zeros(4, jnp.float32), batches))
"""


class TwoSides(unittest.TestCase):
    """`twinrun diagnose A --against B` of a script that has itself diagnosed."""

    def diagnosed(self, a, b):
        where = pathlib.Path(folder())
        (where / "step.py").write_text(_SIDE)
        environment = dict(os.environ, PYTHONPATH=str(HERE.parents[2] / "adapters"))
        sides = [f"{sys.executable} {where / 'step.py'} {words}" for words in (a, b)]
        done = subprocess.run([command.program(), "diagnose", "--against", sides[1], "--json", "--quiet", *sides[0].split()],
                              env=environment, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)  # fmt: skip
        self.assertIn("{", done.stdout, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["verdict"]["exit_code"], done.returncode)
        return report

    def test_another_derivative_is_another_program(self):
        report = self.diagnosed("8 0 0", "1 0 0")
        self.assertEqual([report["verdict"]["class"], *(row["verdict"] for row in rows(report, "sides"))], ["PROGRAM", "NOISE", "NOISE"], report)
        worst = rows(report, "values")[0]
        self.assertEqual((worst["name"], worst["outside"]), ("new value", 4))
        self.assertAlmostEqual(worst["factor"], 0.125)
        self.assertIn("0.875 of the norm", report["verdict"]["headline"])

    def test_the_same_step_is_noise(self):
        report = self.diagnosed("8 0 0", "8 0 0")
        self.assertEqual((report["verdict"]["class"], report["counts"]["steps"]), ("NOISE", 2), report)

    def test_a_change_below_half_of_the_digits_is_open(self):
        report = self.diagnosed("8 0 0", "8 3e-5 0")
        self.assertEqual(report["verdict"]["class"], "INCONCLUSIVE", report)
        self.assertEqual((report["answers"]["operations"]["outcome"], report["answers"]["program"]["outcome"]), ("yes", "open"))
        self.assertTrue(rows(report, "values"))

    def test_other_batches_are_other_inputs(self):
        report = self.diagnosed("8 0 0", "8 0 1")
        self.assertEqual(report["verdict"]["class"], "PROGRAM", report)
        self.assertIn("do not get the same inputs: x of step 0", report["verdict"]["headline"])


class Script(unittest.TestCase):
    def test_written_fragment_is_run(self):
        def function(x, i):
            y = jnp.pad(x, ((1, 0), (0, 0)))[:-1]
            return [jnp.where(y > 0, y, jnp.float32(np.inf)) @ jnp.ones((3, 2), jnp.float32), x.at[i].set(0.0)[::2]]

        x = np.random.default_rng(0).normal(size=(4, 3)).astype("f4")
        program = trace(function, [x, np.int32(1)])
        from twinrun.xla.judge import Fragment

        fragment = Fragment(program, program.equations)
        arguments, impls = fragment.prepare([jnp.asarray(x), jnp.int32(1)][: len(fragment.program.inputs)])
        right = jax.jit(fragment.function(impls))(*arguments)
        where = folder()
        path = repro.write(fragment, arguments, impls, right, where, "a test", 2.0**-24, 3)
        self.assertIn("lax.dot_general_p.bind", path.read_text())
        done = subprocess.run([sys.executable, str(path)], stdout=subprocess.PIPE, universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("result 1: 0 of 6 elements differ", done.stdout)
        self.assertNotIn("twinrun", path.read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)

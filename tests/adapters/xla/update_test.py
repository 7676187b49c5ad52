"""Are optax's transformations their published formulas? Right ones are not accused, departures that are planted in optax's own helpers are
named, and so are those of its releases."""
import contextlib
import sys
import tempfile
import unittest
from unittest import mock

import with_jax  # noqa: F401  another interpreter takes over
import jax
import jax.numpy as jnp
import numpy as np

try:
    import optax
except ImportError:
    print(f"SKIPPED: {sys.executable} has no optax")
    raise SystemExit(77) from None
import twinrun
from twinrun.xla import update
from twinrun.xla.arguments import find

RANDOM = np.random.default_rng(3)
PARAMS = {"a": RANDOM.normal(size=(6, 8)).astype("f4"), "b": np.zeros(8, "f4"), "c": RANDOM.normal(size=(8, 2)).astype("f4")}
BATCHES = [(RANDOM.normal(size=(5, 6)).astype("f4"), RANDOM.normal(size=(5, 2)).astype("f4")) for _ in range(3)]
RATE = 1e-2
RIGHT = {name: getattr(optax, name, None) for name in (
    "adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "amsgrad", "fromage", "lamb", "lars", "lion", "nadam", "nadamw",
    "novograd", "optimistic_gradient_descent", "radam", "rmsprop", "sgd", "sign_sgd", "yogi")}
RIGHT.update({
    "momentum": lambda rate: optax.sgd(rate, 0.9), "nesterov": lambda rate: optax.sgd(rate, 0.9, nesterov=True),
    "schedule": lambda rate: optax.adamw(optax.cosine_decay_schedule(rate, 100), weight_decay=0.1),
    "clipped": lambda rate: optax.chain(optax.clip_by_global_norm(0.1), optax.clip(0.05), optax.adamw(rate)),
    "centred": lambda rate: optax.rmsprop(rate, centered=True, momentum=0.9),
    "injected": lambda rate: optax.inject_hyperparams(optax.adam)(rate), "several": lambda rate: optax.MultiSteps(optax.adam(rate), 2),
    "masked": lambda rate: optax.masked(optax.adam(rate), {"a": True, "b": False, "c": True}),
    "averaged": lambda rate: optax.chain(optax.adam(rate), optax.ema(0.9)), "half": lambda rate: optax.adam(rate, mu_dtype="bfloat16"),
    "epsilon": lambda rate: optax.adam(rate, eps=1e-3, eps_root=1e-4),
})  # fmt: skip


def step_of(optimizer):
    def step(state, batch):
        w, slots = state
        x, y = batch
        loss, g = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w["a"] + w["b"]) @ w["c"] - y) ** 2))(w)
        change, slots = optimizer.update(g, slots, w)
        return (optax.apply_updates(w, change), slots), loss

    return step


def found(optimizer):
    step, state, steps = step_of(optimizer), (PARAMS, optimizer.init(PARAMS)), []
    form = find(step, state, BATCHES[0])
    for batch in BATCHES:
        steps.append(form.leaves(state, batch))
        state, _ = step(state, batch)
    return update.check(form, steps)


@contextlib.contextmanager
def planted(name, make):
    """Puts a function in the place of one of optax.tree, which transformations call."""
    tree = optax._src.transform.optax.tree
    with mock.patch.object(tree, name, make(getattr(tree, name))):
        yield


WRONG = {
    ("adam", "without the correction of the bias"): ("bias_correction", lambda f: lambda x, decay, count: x),
    ("adamw", "with the correction of one step before"): ("bias_correction", lambda f: lambda x, decay, count: f(x, decay, jnp.maximum(count - 1, 1))),
    ("amsgrad", "without the correction of the bias"): ("bias_correction", lambda f: lambda x, decay, count: x),
    ("adabelief", ""): ("sub", lambda f: lambda a, b: jax.tree.map(lambda x, y: x - 0.9 * y, a, b)),
    ("radam", ""): ("update_moment", lambda f: lambda g, old, decay, order: f(g, old, decay**2, order)),
    ("adadelta", ""): ("update_moment", lambda f: lambda g, old, decay, order: f(g, old, 1 - decay, order)),
    ("lion", ""): ("update_moment", lambda f: lambda g, old, decay, order: jax.tree.map(lambda x, o: decay * o + x, g, old)),
    ("nadam", ""): ("update_moment_per_elem_norm", lambda f: lambda g, old, decay, order: f(g, old, decay, 1)),
    ("adamax", ""): ("update_infinity_moment", lambda f: lambda g, old, decay, eps: f(g, old, 0.5 * decay, eps)),
    ("lamb", ""): ("update_moment", lambda f: lambda g, old, decay, order: f(g, old, decay + 1e-3, order)),
}


class Updates(unittest.TestCase):
    def test_right_ones(self):
        for name, make in RIGHT.items():
            with self.subTest(name):
                if make is None:
                    self.skipTest(f"optax {optax.__version__} has no {name}")
                answer = found(make(RATE))
                self.assertIsNone(answer.wrong)
                self.assertEqual((answer.why, list(answer.unknown)), ("", []))
                self.assertTrue(answer.asked)
                self.assertLess(answer.worst, 1e-2 if name == "half" else 1e-4)

    def test_departures_are_named(self):
        for (name, looks), (helper, make) in WRONG.items():
            with self.subTest(name), planted(helper, make):
                wrong = found(getattr(optax, name)(RATE)).wrong
                self.assertTrue(wrong)
                self.assertIn("scale_by_", wrong["name"])
                if looks:
                    self.assertEqual(wrong["looks"], looks)

    @unittest.skipUnless(optax.__version__ in ("0.2.5", "0.2.6", "0.2.8"), "another release of optax")
    def test_of_releases(self):
        """PR 1715 of optax: the difference of two gradients is weighed by 1 - b2. rprop gives the update of the step before."""
        self.assertEqual(found(optax.adan(RATE)).wrong["what"], "state n")
        self.assertEqual(found(optax.rprop(RATE)).wrong["step"], 0)

    def test_what_has_no_formula_here(self):
        answer = found(optax.sm3(RATE))
        self.assertEqual((list(answer.unknown), list(answer.asked)), (["scale_by_sm3"], ["scale"]))

    def test_the_report(self):
        for name, verdict, said in (("adan", "PROGRAM", "optax's scale_by_adan is not its published formula"),
                                    ("adamw", "NOISE", "optax's scale_by_adam, add_decayed_weights, scale are their published formula")):
            optimizer = getattr(optax, name)(RATE)
            with tempfile.TemporaryDirectory() as folder:
                report = twinrun.diagnose(step_of(optimizer), (PARAMS, optimizer.init(PARAMS)), BATCHES, out=folder)
                self.assertEqual(report.verdict, verdict, str(report))
                self.assertIn(said, str(report))


if __name__ == "__main__":
    unittest.main()

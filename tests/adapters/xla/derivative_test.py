"""Is the gradient of a JAX step the derivative of its loss? Right ones are not accused, of wrong ones the rule is named, and what is meant is
told apart. Environment: as jax_test.py.
"""

import tempfile
import time
import unittest

import with_jax  # noqa: F401  I001

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import twinrun
from twinrun.xla import derivative
from twinrun.xla.arguments import find
from twinrun.xla.equations import trace

RANDOM = np.random.default_rng(0)
PARAMS = {"a": RANDOM.normal(size=(6, 8)).astype("f4"), "b": np.zeros(8, "f4"), "c": RANDOM.normal(size=(8, 3)).astype("f4")}
BATCH = (RANDOM.normal(size=(5, 6)).astype("f4"), RANDOM.normal(size=(5, 3)).astype("f4"))


def vjp(forward, backward):
    f = jax.custom_vjp(forward)
    f.defvjp(lambda x: (forward(x), x), lambda x, g: (backward(x, g),))
    return f


def jvp(forward, tangent):
    f = jax.custom_jvp(forward)
    f.defjvp(lambda given, change: (forward(given[0]), tangent(given[0], change[0])))
    return f


def repeated(body):
    return lambda x: lax.scan(lambda c, _: (body(c), None), x, None, length=4)[0]


S = jax.nn.sigmoid
UPPER = np.triu(np.ones((8, 8), "f4"))
RIGHT = {
    "a custom_vjp": vjp(lambda x: x * S(x), lambda x, g: g * S(x) * (1 + x * (1 - S(x)))),
    "a custom_jvp": jvp(jnp.exp, lambda x, t: t * jnp.exp(x)),
    "straight through": lambda x: x + lax.stop_gradient(jnp.round(x) - x),
    "a target": lambda x: x * lax.stop_gradient(jnp.max(x, -1, keepdims=True)),
    "within a scan": repeated(lambda c: jnp.tanh(1.1 * c) + lax.stop_gradient(c)),
    "a branch": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "a loop": lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x),
    "checkpointed": jax.checkpoint(lambda x: jnp.sin(x) * x),
    "bfloat16": lambda x: jax.nn.softmax((x.astype(jnp.bfloat16) @ UPPER.astype(jnp.bfloat16)).astype(jnp.float32)),
    "dropout": lambda x: jnp.where(jax.random.bernoulli(jax.random.PRNGKey(1), 0.5, x.shape), 2 * x, 0),
    "noise": lambda x: x + jax.random.normal(jax.random.PRNGKey(1), x.shape),
    "sorted": lambda x: jnp.sort(x, -1),
    "gathered": lambda x: x[:, jnp.array([0, 0, 1, 2, 3, 4, 5, 6])],
    "the largest": lambda x: x * (x >= lax.top_k(x, 3)[0][..., -1:]),
    "a gradient within": lambda x: jax.grad(lambda y: (y**3).sum())(x),
    "kinks at 0": lambda x: jax.nn.leaky_relu(x - x[:1]) + jnp.abs(x - x[1:2]),
}
WRONG = {
    "a missing term": vjp(lambda x: x * S(x), lambda x, g: g * S(x)),
    "a factor": vjp(jnp.tanh, lambda x, g: 2 * g * (1 - jnp.tanh(x) ** 2)),
    "a sign": vjp(jnp.sin, lambda x, g: -g * jnp.cos(x)),
    "not transposed": vjp(lambda x: x @ UPPER, lambda x, g: g @ UPPER),
    "a sum not taken": vjp(lambda x: x - x.mean(-1, keepdims=True), lambda x, g: g),
    "a tangent": jvp(jnp.exp, lambda x, t: t * x),
    "in bfloat16": vjp(lambda x: jnp.tanh(x.astype(jnp.bfloat16)).astype(jnp.float32), lambda x, g: g * (1 - jnp.tanh(x))),
}
MEANT = {
    "passes its input on": vjp(lambda x: x, lambda x, g: -g),
    "has steps": vjp(lambda x: jnp.round(x), lambda x, g: g),
}


def step_of(f):
    @jax.jit
    def step(w, batch):
        x, y = batch
        loss, g = jax.value_and_grad(lambda w: jnp.mean((f(x @ w["a"] + w["b"]) @ w["c"] - y) ** 2))(w)
        return jax.tree_util.tree_map(lambda p, q: p - 0.1 * q, w, g), loss

    return step


def found(f, params=PARAMS, allowed=()):
    form = find(step_of(f), params, BATCH)
    leaves = form.leaves(params, BATCH)
    return derivative.check(form, trace(form.flat, leaves), leaves, time.monotonic() + 60, allowed)


class Derivative(unittest.TestCase):
    def test_right_ones(self):
        for name, f in RIGHT.items():
            with self.subTest(name):
                answer = found(f)
                self.assertEqual((answer.asked, answer.wrong), (True, None), answer.why)
                self.assertLess(answer.worst, 1e-6)

    def test_of_wrong_ones_the_rule_is_named(self):
        for name, f in WRONG.items():
            with self.subTest(name):
                answer = found(f)
                self.assertTrue(answer.wrong, answer.why)
                self.assertRegex(answer.wrong["rule"], r"lambda|tanh|sin|exp")
                self.assertIn("derivative_test.py:", answer.wrong["place"])
                self.assertEqual(answer.wrong["meant"], "")
                self.assertGreater(answer.wrong["off"], 1e-2)

    def test_what_is_meant_is_told_apart(self):
        for meant, f in MEANT.items():
            with self.subTest(meant):
                self.assertEqual(found(f).wrong["meant"], meant)

    def test_one_on_purpose_hides_no_other(self):
        for first, second in (("passes its input on", "a missing term"), ("has steps", "a sign")):
            answer = found(lambda x, f=MEANT[first], g=WRONG[second]: x + f(x) + g(x))
            self.assertEqual(answer.wrong["meant"], "", answer.wrong)
        name = found(WRONG["a missing term"]).wrong["rule"]
        self.assertTrue(found(WRONG["a missing term"], allowed=[name]).wrong["allowed"])

    def test_at_single_values(self):
        zeros = {**PARAMS, "a": np.zeros((6, 8), "f4")}
        f = lambda x: jnp.where(x == 0, x, 8 * x)  # noqa: E731
        self.assertEqual(found(f, zeros).wrong["rule"], "here")
        self.assertIsNone(found(lambda x: jax.nn.relu(x) + jnp.abs(x), zeros).wrong)

    def test_the_report(self):
        for f, verdict, said in (
            (WRONG["a missing term"], "PROGRAM", "the gradient is not the derivative of the loss: the rule of __main__."),
            (MEANT["has steps"], "NOISE", "which seems to be meant"),
            (RIGHT["a custom_vjp"], "NOISE", "The gradient is the derivative of the loss"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                report = twinrun.diagnose(step_of(f), PARAMS, [BATCH], out=folder, steps=1)
                self.assertEqual(report.verdict, verdict, str(report))
                self.assertIn(said, str(report))
                if verdict == "PROGRAM":
                    allowed = twinrun.diagnose(step_of(f), PARAMS, [BATCH], out=folder, steps=1, allow=report.data["findings"][0]["op"])
                    self.assertEqual((allowed.verdict, allowed.data.get("remarks")), ("NOISE", []), str(allowed))
                    self.assertIn("as allow= says", str(allowed))


if __name__ == "__main__":
    unittest.main()

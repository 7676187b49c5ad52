"""Tests serve_script() with scripts in common styles (torch_scripts.py, jax_scripts.py): each computes the step of the plain script, bit
for bit, or reports why it cannot.

    python3 tests/adapters/run.py scripts     # in an interpreter with PyTorch; JAX's is TWINRUN_PARITY_JAX
"""
import functools
import pathlib
import re
import subprocess
import unittest

import numpy as np

import diagnosis
from diagnosis import interpreter
from harness import Failed, Harness, described

HERE = pathlib.Path(__file__).resolve().parent
LAYERS = [("conv2d", "conv1", "filters = 4\nkernel = 3\npadding = \"same\"\nstride = 0\ndilation = 1"), ("batch_norm", "batch_norm1", ""),
          ("relu", "relu1", ""), ("max_pool", "max_pool1", "window = 2\nstride = 0\npadding = \"same\""), ("flatten", "flatten1", ""),
          *[(kind, f"{kind}{i}", f"units = {units}" if units else "") for i, units in ((1, 64), (2, 64)) for kind in ("dense", "relu")
            if kind == "dense" or units],
          ("dense", "dense3", "units = 10")]
SLOTS = {"momentum": ["momentum"], "adam": ["adam_m", "adam_v"], "rmsprop": ["rms", "momentum"], "adamax": ["adamax_m", "adamax_v"]}
SHAPES = {"conv1/kernel": (3, 3, 1, 4), "conv1/bias": (4,), "batch_norm1/gamma": (4,), "batch_norm1/beta": (4,),
          "batch_norm1/moving_mean": (4,), "batch_norm1/moving_variance": (4,), "dense1/kernel": (64, 64), "dense1/bias": (64,),
          "dense2/kernel": (64, 64), "dense2/bias": (64,), "dense3/kernel": (64, 10), "dense3/bias": (10,)}


def role_of(name):
    return "counter" if name.endswith("_power") else "slot" if "." in name else "statistic" if "moving" in name else "parameter"


def session(optimizer="momentum", l2=0.0, dense=False):
    """Returns (program, state, inputs) of a small network, drawn from a seed. dense: only its dense layers."""
    draw, f = np.random.default_rng(1), np.float32
    state = {k: draw.normal(0, 0.2, s).astype(f) for k, s in SHAPES.items()}
    state["batch_norm1/moving_variance"] = draw.random(4).astype(f) + 1
    for name in [n for n in SHAPES if "moving" not in n]:
        state |= {f"{name}.{slot}": draw.random(SHAPES[name]).astype(f) for slot in SLOTS[optimizer]}
    if optimizer in ("adam", "adamax"):
        state |= {f"{optimizer}/beta{i}_power": np.asarray(f(b) * f(b)) for i, b in ((1, 0.9), (2, 0.999)) if optimizer == "adam" or i == 1}
    state = {k: v for k, v in state.items() if not dense or not k.startswith(("conv", "batch"))}
    inputs = {"images": draw.random((8, 8, 8, 1)).astype(f), "labels": draw.integers(0, 10, 8).astype(np.int32),
              "learning_rate": np.asarray(f(0.05))}
    layers = "".join(f'[[model.layers]]\nkind = "{kind}"\nname = "{name}"\n{keys}\n' for kind, name, keys in LAYERS[4 if dense else 0:])
    outputs = {"loss": np.zeros((), f)} | {f"{k}.grad": v for k, v in state.items() if role_of(k) == "parameter"}
    program = {"protocol": 1, "cores": 1, "batch": 8, "sharding": {"reduction": "mean"}, "random": [],
               "scenario": layers + f'[loss]\nkind = "softmax_cross_entropy"\n[optimizer]\nkind = "{optimizer}"\nmomentum = 0.9\n'
                                    f"beta1 = 0.9\nbeta2 = 0.999\nl2 = {l2}\n[train]\naccumulate = 1\n",
               "state": described(state, {k: role_of(k) for k in state}), "inputs": described(inputs), "outputs": described(outputs)}
    return program, state, inputs


def steps(framework, what, optimizer="momentum", l2=0.0, count=3, marked=True, more=(), dense=False, conventions=""):
    """Returns ([results of some steps], text of standard error, hello). The last step repeats the second one from its state."""
    script = HERE / {"pytorch": "torch_scripts.py", "jax": "jax_scripts.py"}[framework]
    program, state, inputs = session(optimizer, l2, dense)
    if conventions:
        program["scenario"] = f'conventions = "{conventions}"\n' + program["scenario"]
    with Harness(diagnosis.command(framework, script, what, *more), marked=marked) as h:
        hello = h.hello()
        name = h.prepare(program)
        found = [h.step(name, 1, i, inputs, {}, state if i == 0 else None) for i in range(count)]
        after = {k.removeprefix("state/"): v for k, v in found[0].items() if k.startswith("state/")}
        found.append(h.step(name, 1, 1, inputs, {}, after))
        return found, h.last_words(), hello


@functools.cache
def plain(what="plain", optimizer="momentum"):
    return steps("pytorch", what, optimizer)[0]


SHOWN = {"conv1": (8, 8, 8, 4), "batch_norm1": (8, 8, 8, 4), "relu1": (8, 8, 8, 4), "max_pool1": (8, 4, 4, 4), "flatten1": (8, 64),
         "dense1": (8, 64), "relu2": (8, 64), "dense2": (8, 64), "relu3": (8, 64), "dense3": (8, 10)}


def asking(program, batch=8, layers=SHOWN):
    """Returns the same program, which requests results of layers."""
    zeros = {name + end: np.zeros((batch, *shape[1:]), np.float32) for name, shape in layers.items() for end in ("", ".grad")}
    names = iter(["relu1", "relu2", "relu3"])    # the scenario's layers have their own names
    scenario = re.sub(r'name = "relu\d"', lambda _: f'name = "{next(names)}"', program["scenario"])
    return {**program, "scenario": scenario, "activations": described(zeros)}


def shown(framework, what, layers=SHOWN, dense=False, **more):
    """Returns (results of the layers in the first step, the result of that step, and of the same step of a program that requests none,
    before and after it, text of standard error)."""
    script = HERE / {"pytorch": "torch_scripts.py", "jax": "jax_scripts.py"}[framework]
    program, state, inputs = session(dense=dense)
    with Harness(diagnosis.command(framework, script, what), **more) as h:
        assert h.hello()["activations"]
        one, two = h.prepare(program), h.prepare(asking(program, layers=layers))
        before, found, after = (h.step(name, 1, 0, inputs, {}, state) for name in (one, two, one))
        own = {k.removeprefix("output/"): v for k, v in found.items() if k.removeprefix("output/").removesuffix(".grad") in SHOWN}
        return own, found, before, after, h.last_words()


def halves_of(program, inputs):
    """Returns the program of half a batch, and the inputs of two replicas."""
    half = {**program, "batch": 4, "inputs": described({k: v[:4] if v.ndim else v for k, v in inputs.items()})}
    return half, {k: np.stack([v[:4], v[4:]]) if v.ndim else np.stack([v, v]) for k, v in inputs.items()}


class Scripts(unittest.TestCase):
    framework = "pytorch"

    def setUp(self):
        if interpreter(self.framework) is None:
            self.skipTest(f"no {self.framework}")

    def same(self, found, due, but=()):
        for i, (one, other) in enumerate(zip(found, due, strict=True)):
            for name in other:
                if name not in but:
                    np.testing.assert_array_equal(one[name], other[name], f"{name} of step {i}")

    def close(self, found, due, tolerance=2e-6):
        for i, (one, other) in enumerate(zip(found, due, strict=True)):
            for name in other:
                np.testing.assert_allclose(one[name], other[name], rtol=0, atol=tolerance * (1 + np.abs(other[name]).max()),
                                           err_msg=f"{name} of step {i}")


class PyTorch(Scripts):
    def test_the_plain_one_goes_on_and_begins_again(self):
        found = plain()
        for name in found[1]:
            np.testing.assert_array_equal(found[1][name], found[3][name], name)
        self.assertGreater(np.abs(found[0]["output/conv1/kernel.grad"]).max(), 0)

    def test_told_from_the_model(self):
        found, said, hello = steps("pytorch", "model")
        self.same(found, plain())
        self.assertEqual((hello["conventions"], hello["precision"]), ("pytorch", "f32"))
        self.assertIn("dense1/kernel = model.first.weight", said)
        self.assertIn("'dense1/kernel' reads a flattened image of (4, 4, 4)", said)
        self.assertIn("as the script's graph shows", said)

    def test_told_from_the_optimizer(self):
        self.same(steps("pytorch", "no_model")[0], plain())

    def test_layers_of_one_shape_that_are_used_in_another_order(self):
        found, said, _ = steps("pytorch", "turned")
        self.same(found, plain())
        self.assertIn("in another order: dense1/kernel = model.second.weight", said)

    def test_an_image_that_is_flattened_channels_last(self):
        found, said, _ = steps("pytorch", "last")
        self.same(found, plain("plain_last"))
        self.assertIn("order of its numbers is height, width, channels, as the script's graph shows", said)
        self.close(found, plain(), 1e-4)    # the same function, with sums in another order
        self.same(steps("pytorch", "turned_last")[0], plain("plain_last"))

    def test_an_unknown_argument_and_options(self):
        self.same(steps("pytorch", "model", more=["--lr", "0.05"])[0], plain())
        with self.assertRaisesRegex(Failed, "unrecognized arguments"):    # without TWINRUN_SESSION, it looks like the script's
            steps("pytorch", "model", marked=False)

    def test_gradients_that_are_gone_after_the_step(self):
        for what in ("set_to_none", "zero_after"):
            with self.subTest(what):
                self.same(steps("pytorch", what)[0][:1], plain()[:1])

    def test_losses_that_are_numbers(self):
        for what in ("item", "numpy"):
            with self.subTest(what):
                self.same(steps("pytorch", what)[0], plain())

    def test_a_step_that_returns_no_loss(self):
        for what, found in (("nothing", "None"), ("vector", r"a tensor of shape \[3\]")):
            with self.assertRaisesRegex(Failed, f"train_step returned {found}. It must return the loss of its batch"):
                steps("pytorch", what)

    def test_a_parameter_that_is_frozen(self):
        found = steps("pytorch", "frozen")[0]
        self.assertEqual(np.abs(found[0]["output/conv1/bias.grad"]).max(), 0)
        self.same(found[:1], plain()[:1], [f"{part}/conv1/bias{leaf}" for part, leaf in (
            ("output", ".grad"), ("state", ""), ("state", ".momentum"))])

    def test_schedulers_and_closures(self):
        for what in ("scheduled", "closure"):
            with self.subTest(what):
                found, said, _ = steps("pytorch", what)
                self.same(found, plain())
                self.assertNotIn("Warning", said)

    def test_gradients_are_those_that_the_optimizer_takes(self):
        found = steps("pytorch", "clipped")[0]
        norm = np.sqrt(sum(np.sum(np.square(v, dtype=np.float64)) for k, v in found[0].items() if k.endswith(".grad")))
        self.assertAlmostEqual(norm, 0.01, delta=1e-5)

    def test_weight_decay_is_a_part_of_gradient_and_loss(self):
        found, (_, state, _) = steps("pytorch", "decay", l2=0.01)[0], session()
        due = plain()[0]["output/dense2/kernel.grad"] + np.float32(0.01) * state["dense2/kernel"]
        np.testing.assert_allclose(found[0]["output/dense2/kernel.grad"], due, atol=1e-6)
        squares = sum(np.sum(np.square(state[k], dtype=np.float64)) for k in SHAPES if "moving" not in k)
        self.assertAlmostEqual(float(found[0]["output/loss"]), float(plain()[0]["output/loss"]) + 0.005 * squares, delta=1e-4)

    def test_a_script_that_makes_no_update(self):
        with self.assertRaisesRegex(Failed, "train_step called step.. 0 times"):
            steps("pytorch", "no_step")

    def skipped_first(self, what):
        """The first step has no update, and its gradients are not finite; the steps of the plain script follow. Running statistics
        are one step ahead."""
        try:
            found, due, (_, state, _) = steps("pytorch", what)[0], plain(), session()
        except Failed as error:
            if "GradScaler" in str(error):
                self.skipTest("GradScaler on a CPU needs PyTorch 2.3")
            raise
        statistics = [k for k in due[0] if "moving" in k]
        self.assertFalse(all(np.isfinite(v).all() for k, v in found[0].items() if k.endswith(".grad")))
        for name in (k for k in found[0] if k.startswith("state/") and k not in statistics):
            np.testing.assert_array_equal(found[0][name], state[name.removeprefix("state/")], name)
        self.same(found[1:3], due[:2], but=statistics)
        return found

    def test_a_step_that_a_loss_scaler_skips(self):
        found = self.skipped_first("scaled")
        self.same(found[3:], found[1:2])    # its scale is the one of that step, not halved again

    def test_a_step_that_the_script_skips_itself(self):
        self.skipped_first("scaled_by_hand")

    def test_what_a_step_asks_for_by_name(self):
        found, said, _ = steps("pytorch", "asks")
        self.same(found, plain())
        self.assertIn("step 2 has []", said)
        with self.assertRaisesRegex(Failed, "train_step is called as train_step.images, labels. and may have arguments named"):
            steps("pytorch", "asks_too_much")

    def test_processes_that_share_a_batch(self):
        program, state, inputs = session()
        half, shared = halves_of(program, inputs)
        several = {**half, "cores": 2}
        environment = {"PYTHONPATH": str(HERE.parents[1] / "adapters")}
        command = [interpreter("pytorch"), "-m", "twinrun_engine.launch", "--cores", "2", HERE / "torch_scripts.py", "replicas"]
        with Harness(command, more=environment) as h:
            self.assertEqual(h.hello()["max_cores"], 2)
            one, two, three = h.prepare(program), h.prepare(several), h.prepare(asking(several, 4))
            whole = h.step(one, 1, 0, inputs, {}, state)
            self.same([whole], plain()[:1])
            found = h.step(two, 2, 0, shared, {}, {k: np.stack([v, v]) for k, v in state.items()})
            again = h.step(one, 1, 0, inputs, {}, state)
            self.same([again], [whole])
            layers = h.step(three, 2, 0, shared, {}, {k: np.stack([v, v]) for k, v in state.items()})
            self.assertEqual(h.end(), 0)
        self.assertEqual(layers["output/dense3"].shape, (2, 4, 10))
        for r in range(2):    # the gradient of its own loss, not of the mean
            share = np.exp(layers["output/dense3"][r]) / np.exp(layers["output/dense3"][r]).sum(1, keepdims=True)
            np.testing.assert_allclose(layers["output/dense3.grad"][r], (share - np.eye(10)[shared["labels"][r]]) / 4, atol=1e-6)
        np.testing.assert_array_equal(found["output/dense1/kernel.grad"][0], found["output/dense1/kernel.grad"][1])
        np.testing.assert_array_equal(found["state/dense1/kernel"][0], found["state/dense1/kernel"][1])
        self.assertNotEqual(*found["output/loss"])    # each from its own samples
        self.assertGreater(np.abs(np.subtract(*found["state/batch_norm1/moving_mean"])).max(), 0)
        # The mean of the results of each half alone.
        with Harness(diagnosis.command("pytorch", HERE / "torch_scripts.py", "plain")) as h:
            h.hello()
            name = h.prepare(half)
            halves = [h.step(name, 1, i, {k: v[i] for k, v in shared.items()}, {}, state) for i in range(2)]
        for key in ("output/dense1/kernel.grad", "output/conv1/kernel.grad"):
            np.testing.assert_allclose(found[key][0], (halves[0][key] + halves[1][key]) / 2, atol=1e-6)
        np.testing.assert_allclose(found["output/loss"], [half["output/loss"] for half in halves], atol=1e-6)

    def test_a_transformer_is_told(self):
        for what, query, output in (("joined", "c_attn.weight", "c_proj.weight"),
                                    ("apart", "attention.in_proj_weight", "attention.out_proj.weight")):
            done = subprocess.run(diagnosis.command("pytorch", HERE / "torch_names.py", what), capture_output=True, text=True, check=True)
            found = dict(line.split(" = ") for line in done.stdout.splitlines())
            self.assertEqual(found["attention2/key/kernel"], f"model.blocks[1].{query}[8:16] (8, 8)")
            self.assertEqual(found["attention2/output/kernel"], f"model.blocks[1].{output} (8, 8)")
            self.assertEqual(found["position_embedding1/embeddings"], "model.positions (5, 8)")
            self.assertEqual(found["dense4/kernel"], "model.blocks[1].down.weight (16, 8)")
            self.assertEqual(found["layer_norm3/beta"], "model.blocks[1].norm1.bias (8,)")

    def right(self, own, state, labels, images):
        """Results of layers, each computed by hand from the result of the previous one; gradients likewise."""
        w = {k: v.astype(np.float64) for k, v in state.items()}
        a = {k: v.astype(np.float64) for k, v in own.items()}

        def same(name, due):
            np.testing.assert_allclose(a[name], due, atol=2e-5 * (1 + np.abs(due).max()), err_msg=name)

        padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, :, :, 0]
        same("conv1", np.einsum("nhwij,ijo->nhwo", patches, w["conv1/kernel"][:, :, 0]) + w["conv1/bias"])
        mean, variance = a["conv1"].mean((0, 1, 2)), a["conv1"].var((0, 1, 2))
        same("batch_norm1", (a["conv1"] - mean) / np.sqrt(variance + 0.001) * w["batch_norm1/gamma"] + w["batch_norm1/beta"])
        same("relu1", np.maximum(a["batch_norm1"], 0))
        same("max_pool1", a["relu1"].reshape(8, 4, 2, 4, 2, 4).max((2, 4)))
        same("dense1", a["max_pool1"].reshape(8, 64) @ w["dense1/kernel"] + w["dense1/bias"])
        for i in (1, 2):
            same(f"relu{i + 1}", np.maximum(a[f"dense{i}"], 0))
            same(f"dense{i + 1}", a[f"relu{i + 1}"] @ w[f"dense{i + 1}/kernel"] + w[f"dense{i + 1}/bias"])
        share = np.exp(a["dense3"]) / np.exp(a["dense3"]).sum(1, keepdims=True)
        same("dense3.grad", (share - np.eye(10)[labels]) / 8)
        for i in (2, 1):
            same(f"relu{i + 1}.grad", a[f"dense{i + 1}.grad"] @ w[f"dense{i + 1}/kernel"].T)
            same(f"dense{i}.grad", a[f"relu{i + 1}.grad"] * (a[f"dense{i}"] > 0))
        same("max_pool1.grad", (a["dense1.grad"] @ w["dense1/kernel"].T).reshape(8, 4, 4, 4))
        same("batch_norm1.grad", a["relu1.grad"] * (a["batch_norm1"] > 0))
        self.assertAlmostEqual(float(np.abs(a["conv1.grad"].sum((0, 1, 2))).max()), 0, delta=1e-5)    # before batch norm

    def test_what_layers_give(self):
        _, state, inputs = session()
        for what in ("plain", "model", "turned", "inplace", "by_hand", "no_model", "closure", "last"):
            with self.subTest(what):
                own, found, before, after, _ = shown("pytorch", what)
                self.assertEqual(set(SHOWN) - {n.removesuffix(".grad") for n in own}, {"flatten1"})
                self.assertEqual(len(own), 18)
                self.right(own, state, inputs["labels"], inputs["images"])
                self.same([{k: v for k, v in found.items() if k in before}], [before])
                self.same([after], [before])

    def test_layers_that_are_not_known_for_certain_are_left_out(self):
        own = shown("pytorch", "twice")[0]    # one of the dense layers is called twice
        self.assertEqual({n for n in SHOWN if n not in own}, {"flatten1", "dense2", "relu3"})
        own = shown("pytorch", "more_in_it")[0]    # a module that computes more than the layer's function
        self.assertEqual({n for n in SHOWN if n not in own}, {"flatten1", "dense2", "relu3"})

    def test_a_step_that_cannot_be_watched_is_made_all_the_same(self):
        own, found, before, _, said = shown("pytorch", "watched_badly")
        self.assertEqual(own, {})
        self.same([found], [before])
        self.assertIn("this step cannot be watched", said)

    def test_precision_may_be_left_open(self):
        self.assertIsNone(steps("pytorch", "no_precision")[2]["precision"])

    def test_a_wrong_name(self):
        said = "given no 'dense3/bias' .10.; is it 'dense9/bias' .10..; the program has no 'dense9/bias'"
        with self.assertRaisesRegex(Failed, said):
            steps("pytorch", "misnamed")

    def test_optimizers(self):
        for what, kind in {"adam": "adam", "amsgrad": "adam", "adamax": "adamax", "rmsprop": "rmsprop", "rmsprop_plain": "rmsprop"}.items():
            with self.subTest(what):
                found = steps("pytorch", what, kind)[0]
                self.close(found[1:2], found[3:])    # from the state file as without it
                self.assertGreater(np.abs(found[0]["state/dense1/kernel"] - found[1]["state/dense1/kernel"]).max(), 1e-4)

    def test_the_momentum_of_rmsprop_has_the_rate_in_it_but_by_conventions_of_pytorch(self):
        _, state, _ = session("rmsprop")
        for conventions, inside, outside in (("", 0.05, 1), ("pytorch", 1, 0.05)):
            for what, momentum in (("rmsprop", 0.9), ("rmsprop_plain", 0)):
                found = steps("pytorch", what, "rmsprop", conventions=conventions)[0][0]
                g = found["output/dense2/kernel.grad"]
                rms = 0.9 * state["dense2/kernel.rms"] + 0.1 * g * g
                due = momentum * state["dense2/kernel.momentum"] + inside * g / (np.sqrt(rms) + 1e-8)
                np.testing.assert_allclose(found["state/dense2/kernel.momentum"], due, rtol=2e-6, atol=2e-6)
                np.testing.assert_allclose(found["state/dense2/kernel"], state["dense2/kernel"] - outside * due, atol=2e-6)


def by_hand(state, inputs):
    """Loss and gradients of the dense layers, in binary64."""
    w = {k: v.astype(np.float64) for k, v in state.items()}
    x, kept, rows = inputs["images"].reshape(8, -1).astype(np.float64), [], np.arange(8)
    for i in (1, 2, 3):
        kept.append(x)
        x = x @ w[f"dense{i}/kernel"] + w[f"dense{i}/bias"]
        x = np.maximum(x, 0) if i < 3 else x
    share = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    loss, g = -np.log(share[rows, inputs["labels"]]).mean(), share.copy()
    g[rows, inputs["labels"]] -= 1
    g, found = g / 8, {}
    for i in (3, 2, 1):
        found |= {f"dense{i}/kernel.grad": kept[i - 1].T @ g, f"dense{i}/bias.grad": g.sum(0)}
        g = (g @ w[f"dense{i}/kernel"].T) * (kept[i - 1] > 0)
    return loss, found


class Jax(Scripts):
    framework = "jax"

    def right(self, what, optimizer="momentum", **more):
        """A script of the dense layers: gradients by hand, momentum, and steps from the state file as without it."""
        found, said, hello = steps("jax", what, optimizer, dense=True, **more)
        _, state, inputs = session(optimizer, dense=True)
        loss, gradients = by_hand(state, inputs)
        self.assertAlmostEqual(float(found[0]["output/loss"]), loss, delta=1e-5)
        for name, due in gradients.items():
            np.testing.assert_allclose(found[0][f"output/{name}"], due, atol=2e-6, err_msg=name)
        self.close(found[1:2], found[3:])
        if optimizer == "momentum":
            for name in [n for n in state if "." not in n]:
                due = 0.9 * state[f"{name}.momentum"] + gradients[f"{name}.grad"]
                np.testing.assert_allclose(found[0][f"state/{name}.momentum"], due, atol=5e-6)
                np.testing.assert_allclose(found[0][f"state/{name}"], state[name] - 0.05 * due, atol=5e-6)
        return said, hello

    def test_parameters_and_optimizer_state_of_optax(self):
        said, hello = self.right("optax")
        self.assertEqual((hello["conventions"], hello["precision"]), ("optax", "f32"))
        self.assertIn("dense1/kernel = 0/0", said)

    def test_an_optimizer_of_the_script_s_own(self):
        self.right("own")

    def test_a_loss_alone(self):
        self.right("loss")

    def test_adam_whose_gradients_are_watched(self):
        self.right("adam", "adam")

    def test_dictionaries(self):
        self.right("numbered")
        with self.assertRaisesRegex(Failed, 'dense1, dense2 have one shape.*between, hidden do not.*names={"dense1/kernel": "between/w"'):
            self.right("lettered")
        self.right("named")
        with self.assertRaisesRegex(Failed, "'dense3/bias': the state has no 'last/b'; is it 'output/b' .10."):
            self.right("misnamed")

    def test_flax(self):
        # flax's running variance has no Bessel correction.
        due = [{k: v for k, v in result.items() if "moving_variance" not in k} for result in plain()]
        for what, mean in (("flax", "batch_stats/BatchNorm_0/mean"), ("nnx", "norm/mean"), ("nnx_returns", "norm/mean")):
            with self.subTest(what):
                found, said, _ = steps("jax", what)
                self.assertIn(f"batch_norm1/moving_mean = {mean}", said)
                self.close(found, due, 5e-6)

    def test_devices_that_share_a_batch(self):
        program, state, inputs = session(dense=True)
        half, shared = halves_of(program, inputs)
        with Harness([interpreter("jax"), HERE / "jax_scripts.py", "pmapped"]) as h:
            self.assertEqual(h.hello()["max_cores"], 2)
            layers = {name: SHOWN[name] for name in ("dense1", "dense2", "dense3")}
            one, two = h.prepare(program), h.prepare({**half, "cores": 2})
            three = h.prepare(asking({**half, "cores": 2}, 4, layers))
            both = {k: np.stack([v, v]) for k, v in state.items()}
            found = [h.step(two, 2, 0, shared, {}, both), h.step(two, 2, 1, shared, {})]
            whole = h.step(one, 1, 0, inputs, {}, state)
            own = h.step(three, 2, 0, shared, {}, both)
        x = shared["images"].reshape(2, 4, 64)
        np.testing.assert_allclose(own["output/dense1"], x @ state["dense1/kernel"] + state["dense1/bias"], atol=1e-5)
        mean = np.einsum("rni,rno->io", x, own["output/dense1.grad"]) / 2    # the gradient of each replica's own loss
        np.testing.assert_allclose(own["output/dense1/kernel.grad"][0], mean, atol=1e-6)
        loss, gradients = by_hand(state, inputs)
        self.assertAlmostEqual(float(whole["output/loss"]), loss, delta=1e-5)
        self.assertAlmostEqual(float(found[0]["output/loss"].mean()), loss, delta=1e-5)
        self.assertNotEqual(*found[0]["output/loss"])
        for name, due in gradients.items():
            for row in found[0][f"output/{name}"]:
                np.testing.assert_allclose(row, due, atol=2e-6, err_msg=name)
        self.assertGreater(np.abs(found[1]["state/dense1/kernel"] - found[0]["state/dense1/kernel"]).max(), 1e-4)

    def test_what_layers_give(self):
        _, state, inputs = session(dense=True)
        dense = {name: SHOWN[name] for name in ("dense1", "dense2", "dense3")}
        w = {k: v.astype(np.float64) for k, v in state.items()}
        for what in ("optax", "loss"):
            own, found, before, after, _ = shown("jax", what, dense, True)
            self.assertEqual(len(own), 6)
            x = inputs["images"].reshape(8, 64)
            for name in dense:
                np.testing.assert_allclose(own[name], x @ w[f"{name}/kernel"] + w[f"{name}/bias"], atol=1e-5)
                np.testing.assert_allclose(found[f"output/{name}/kernel.grad"], x.T @ own[f"{name}.grad"], atol=1e-6)
                x = np.maximum(own[name], 0)
            self.same([after], [before])
        self.assertEqual(len(shown("jax", "flax", dense)[0]), 4)
        with self.assertRaisesRegex(Failed, "the program has no output 'dense4'; is it 'dense"):
            shown("jax", "misshown", dense, True)

    def test_no_gradients(self):
        with self.assertRaisesRegex(Failed, "no gradient of 'dense1/kernel'. Return the gradients from train_step"):
            self.right("silent")


if __name__ == "__main__":
    unittest.main()

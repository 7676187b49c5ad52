"""Compares the engines of PyTorch, JAX and TensorFlow with the values of parity_dump (docs/method/numerics.md, "Parity"): losses and the whole state,
with slots and counters, after some steps. Two steps through the state file must equal two steps in memory, bit for bit.

    TWINRUN_PARITY_DUMP=build/release/tests/parity_dump python3 tests/adapters/frameworks_test.py

A framework is tested where it is installed: PyTorch in this interpreter or TWINRUN_PARITY_TORCH, the others where TWINRUN_PARITY_JAX and
TWINRUN_PARITY_TF name an interpreter or ./dev parity has installed them.
"""
import functools
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from harness import ROOT, Failed, Harness, described

try:
    import h5py
    sys.path.insert(0, str(ROOT / "tests/parity"))
    from dump_file import Dump
except ImportError:
    h5py = None

TOOL = os.environ.get("TWINRUN_PARITY_DUMP", str(ROOT / "build/release/tests/parity_dump"))
FRAMEWORKS = {"pytorch": ("torch", sys.executable), "jax": ("jax", ROOT / "build/parity/venv-jax/bin/python"),
              "tensorflow": ("tf", ROOT / "build/parity/venv-tf/bin/python")}
SMALL = ["data.train=256", "data.eval=32"]
# case: (scenario, settings), each with 3 steps.
CASES = {
    "mlp": ("digits_mlp", ["tpu.cores=4"]),
    "batch_norm": ("litmus_batchnorm_small", ["optimizer.kind=momentum"]),
    "adam": ("digits_mlp", ["tpu.cores=4", "optimizer.kind=adam", "optimizer.lr=0.003", "optimizer.epsilon=0.00001"]),
    "adamw": ("digits_mlp", ["tpu.cores=4", "optimizer.kind=adamw", "optimizer.lr=0.003"]),
    "adadelta": ("digits_mlp", ["tpu.cores=4", "optimizer.kind=adadelta", "optimizer.lr=0.3"]),
    "rmsprop": ("digits_mlp", ["tpu.cores=4", "optimizer.kind=rmsprop", "optimizer.lr=0.001", "optimizer.momentum=0.9"]),
    "adagrad": ("digits_mlp", ["tpu.cores=4", "optimizer.kind=adagrad", "optimizer.epsilon=0.0"]),
    "lamb": ("digits_mlp", ["tpu.cores=4", "optimizer.kind=lamb", "optimizer.lr=0.003"]),
    "adafactor": ("digits_mlp", ["tpu.cores=4", "optimizer.kind=adafactor", "optimizer.lr=0.003"]),
    "average": ("digits_mlp", ["tpu.cores=4", "optimizer.ema=0.9"]),
    "example": ("adapters/examples/mnist.toml", []),
    "clipped": ("digits_mlp", ["tpu.cores=4", "optimizer.clip=global_norm", "optimizer.clip_at=0.5"]),
    "unscaled": ("digits_mlp", ["tpu.cores=4", "tpu.scaling=never"]),
    "scaled_twice": ("digits_mlp", ["tpu.cores=4", "tpu.scaling=once_more"]),
    "alone": ("digits_mlp", ["tpu.cores=4", "tpu.reduction=none"]),
}
NOT_THERE = {("pytorch", "rmsprop"): "rmsprop is not supported", ("pytorch", "lamb"): "optimizer 'lamb' is not supported",
             ("pytorch", "adafactor"): "optimizer 'adafactor' is not supported",
             ("tensorflow", "unscaled"): "scaling 'never' is not supported",
             ("tensorflow", "scaled_twice"): "scaling 'once_more' is not supported"}


def interpreter(framework):
    """Returns the Python interpreter that has the module, or None."""
    module, default = FRAMEWORKS[framework]
    python = os.environ.get(f"TWINRUN_PARITY_{module.upper()}") or str(default)
    name = {"tf": "tensorflow"}.get(module, module)
    script = f"import importlib.util as u, sys; sys.exit(0 if all(map(u.find_spec, ('{name}', 'numpy'))) else 1)"
    try:
        return python if subprocess.run([python, "-c", script], capture_output=True, cwd="/").returncode == 0 else None
    except OSError:
        return None


@functools.cache
def dumps():
    return tempfile.TemporaryDirectory(prefix="twinrun-dumps-")


@functools.cache
def dumped(case):
    scenario, settings = CASES[case]
    path = os.path.join(dumps().name, f"{case}.h5")
    sets = [word for setting in [*SMALL, *settings] for word in ("--set", setting)]
    whole = [] if case != "example" else ["--whole-only"]
    subprocess.run([TOOL, scenario, path, *whole, "--steps", "3", "--members", "8", "--threads", "1", *sets], check=True, cwd=ROOT,
                   capture_output=True)
    return path


def program_of(dump):
    """Returns what twinrun would write to program-1.json, without the rows of replicas."""
    def one(values):
        return values if dump.cores == 1 else {k: v[0] for k, v in values.items()}

    state, (inputs, random) = one(dump.state()), map(one, dump.step(0))
    gradients = {f"{k}.grad": v for k, v in dump.of_role("parameter", state).items()}
    return {"protocol": 1, "scenario": dump.file.attrs["scenario"].decode(), "cores": dump.cores, "batch": len(inputs["labels"]),
            "algebra": "cpu", "sharding": dump.sharding, "state": described(state, dump.roles), "inputs": described(inputs),
            "random": described(random), "outputs": described({"loss": np.zeros((), np.float32), **gradients})}


def state_of(result):
    return {k.removeprefix("state/"): v for k, v in result.items() if k.startswith("state/")}


def bits(values):
    return {k: (v.dtype, v.shape, v.tobytes()) for k, v in values.items()}


class Engine(unittest.TestCase):
    """The tests of one framework; a class for each is made below."""
    framework, command, few = "", None, ()

    @classmethod
    def setUpClass(cls):
        if h5py is None:
            raise unittest.SkipTest("no h5py")
        if not os.path.exists(TOOL):
            raise unittest.SkipTest(f"{TOOL} is missing: build the target parity_dump")
        python = interpreter(cls.framework)
        if python is None:
            raise unittest.SkipTest(f"no {cls.framework}")
        cls.session = Harness([python, ROOT / "adapters" / (cls.command or f"engines/{cls.framework}/engine.py")])
        cls.addClassCleanup(cls.session.__exit__)
        cls.hello = cls.session.hello()

    def test_devices(self):
        devices = self.hello["devices"]
        self.assertGreaterEqual(len(devices), self.hello["max_cores"])
        for device in devices:
            self.assertTrue(device["name"] and device["kind"], device)
            self.assertEqual(device["trouble"], "")

    def compare(self, case, corner):
        if case not in (self.few or [case]) and not os.environ.get("TWINRUN_TEST_ALL"):
            self.skipTest("a test of the slow suite")
        dump, h = Dump(dumped(case), corner), self.session
        due, reason = dump.file[corner], NOT_THERE.get((self.framework, case))
        if reason:
            with self.assertRaisesRegex(Failed, reason):
                h.prepare(program_of(dump))
            return
        name, given = h.prepare(program_of(dump)), dump.state()
        kept = []
        for i in range(dump.steps):
            kept.append(h.step(name, dump.cores, i, *dump.step(i), given if i == 0 else None))
            loss = np.mean(kept[i]["output/loss"], dtype=np.float64)
            self.assertLessEqual(abs(loss - np.mean(due["ours/losses"][i])), due["bound/losses"][i], f"loss of step {i}")
        checked = 0
        for part, i, values in (("first", 0, "output/{}.grad"), ("last", -1, "output/{}.grad"), ("state", -1, "state/{}")):
            for flat, bound in due["bound"][part].items():
                found = kept[i][values.format(flat.replace("|", "/"))]
                for row in found if dump.cores > 1 and part != "state" else dump.first_core({"": found}).values():
                    distance = np.linalg.norm(row.astype(np.float64) - due["ours"][part][flat])
                    self.assertLessEqual(distance, max(bound[()], 1e-12), f"{part} {flat}")
                    checked += 1
        self.assertGreaterEqual(checked, len(dump.state()))
        # The same steps, each from a file with the state that the previous step returned, then all of them again.
        for i in range(dump.steps):
            again = h.step(name, dump.cores, i, *dump.step(i), state_of(kept[i - 1]) if i else given)
            self.assertEqual(bits(again), bits(kept[i]), f"step {i} through the state file")


def test_of(case, corner):
    return lambda self: self.compare(case, corner)


ONLY_S = ("unscaled", "scaled_twice")
for case_name in CASES.keys() - {"example", "alone"}:
    for which in ("R", "S"):
        in_s = case_name in ("mlp", "batch_norm", "adam", "adamw", "average", "clipped", "rmsprop", "adagrad", *ONLY_S)
        if in_s if which == "S" else case_name not in ONLY_S:
            setattr(Engine, f"test_{case_name}_{which}", test_of(case_name, which))


class PyTorch(Engine):
    framework = "pytorch"

    def test_hello(self):
        self.assertEqual((self.hello["name"], self.hello["precision"], self.hello["max_cores"]), ("pytorch", "f32", 1))

    def test_bf16(self):
        for more, declared in (([], "autocast"), (["--undeclared"], None)):
            with Harness([interpreter("pytorch"), ROOT / "adapters/engines/pytorch/engine.py", "--autocast-bf16", *more]) as h:
                self.assertEqual(h.hello()["precision"], declared)
                dump = Dump(dumped("mlp"), "R")
                found = h.step(h.prepare(program_of(dump)), 1, 0, *dump.step(0), dump.state())
                off = abs(found["output/loss"] - dump.file["R/ours/losses"][0, 0])
                self.assertGreater(off, dump.file["R/bound/losses"][0])    # the precision is another one
                self.assertLess(off, 0.05)

    def test_all_that_is_missing_is_told(self):
        dump = Dump(dumped("lamb"), "R")
        program = program_of(dump)
        program["scenario"] = program["scenario"].replace('kind = "relu"', 'kind = "gather"').replace("accumulate = 1", "accumulate = 4")
        with self.assertRaisesRegex(Failed, "^layer kind 'gather' is not supported; optimizer 'lamb' is not supported; "
                                            "accumulation of gradients is not supported$"):
            self.session.prepare(program)


class Script(unittest.TestCase):
    """The worked example of docs/guides/own-engine.md: a script's own training step."""

    @classmethod
    def setUpClass(cls):
        PyTorch.setUpClass.__func__(cls)

    framework, command, few = "pytorch", "examples/mnist_twinrun.py", ()
    compare = Engine.compare

    def test_the_example(self):
        self.assertEqual(self.hello["name"], "mnist_twinrun.py")
        self.compare("example", "R")

    def test_programs_take_turns(self):
        dump, h = Dump(dumped("example"), "R"), self.session
        one, two = h.prepare(program_of(dump)), h.prepare(program_of(dump))
        first = h.step(one, 1, 0, *dump.step(0), dump.state())
        due = h.step(one, 1, 1, *dump.step(1))
        h.step(two, 1, 0, *dump.step(2), state_of(due))
        h.step(one, 1, 0, *dump.step(0), dump.state())
        h.step(two, 1, 1, *dump.step(2))
        self.assertEqual(bits(h.step(one, 1, 1, *dump.step(1))), bits(due))
        self.assertNotEqual(bits(first), bits(due))

    def test_what_does_not_fit_is_told_together(self):
        program = program_of(Dump(dumped("adam"), "R"))
        said = (r"optimizer 'adam' is not supported: the script has SGD; the script has no tensors with the shapes of "
                r"'dense1' \(.*784, 64.*\); "
                "it has, in the program's layout, model.0..weight .3, 3, 1, 8., ")
        with self.assertRaisesRegex(Failed, said):
            self.session.prepare(program)

    def test_the_plain_script_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, header, data in (("train-images-idx3-ubyte", 16, np.zeros((64, 784))), ("train-labels-idx1-ubyte", 8, np.ones(64))):
                with gzip.open(os.path.join(folder, name + ".gz"), "wb") as file:
                    file.write(bytes(header) + data.astype(np.uint8).tobytes())
            done = subprocess.run([interpreter("pytorch"), ROOT / "adapters/examples/mnist_plain.py", folder], capture_output=True,
                                  text=True, check=True)
            losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
            self.assertEqual(len(losses), 10)
            self.assertLess(losses[-1], 0.01)


for name in dir(PyTorch):    # one device: no corner S
    if name.startswith("test_") and name.endswith("_S"):
        setattr(PyTorch, name, None)


class Several(Engine):
    """A script with several cores."""

    def test_replicas_may_differ(self):
        dump, h = Dump(dumped("adam"), "S"), self.session
        name, state = h.prepare(program_of(dump)), dump.state()
        state["dense2/bias"][2] += 1
        state["dense2/bias.adam_v"][1] = 0.25
        found = state_of(h.step(name, dump.cores, 0, *dump.step(0), state))
        moved = found["dense2/bias"] - state["dense2/bias"]
        self.assertLess(np.abs(moved[1]).max() * 2, np.abs(moved[0]).max())    # a larger second moment gives a smaller step
        np.testing.assert_allclose(moved[2], moved[0], atol=1e-6)              # the mean gradient, the replica's own weights
        np.testing.assert_array_equal(found["dense2/bias"][0], found["dense2/bias"][3])


class Jax(Several):
    framework = "jax"

    def test_nothing_is_reduced(self):
        """Each core descends the gradient of its own loss: the mean of these is what is reduced otherwise."""
        found = {}
        for case in ("mlp", "alone"):
            dump, h = Dump(dumped(case), "S"), self.session
            found[case] = h.step(h.prepare(program_of(dump)), dump.cores, 0, *dump.step(0), dump.state())
        own, mean = found["alone"]["output/dense1/kernel.grad"], found["mlp"]["output/dense1/kernel.grad"]
        self.assertEqual(own.shape[0], 4)
        self.assertGreater(np.abs(own[0] - own[1]).max(), 1e-4)
        np.testing.assert_allclose(own.mean(0), mean if mean.ndim == 2 else mean[0], atol=1e-6)
        weights = state_of(found["alone"])["dense1/kernel"]
        self.assertGreater(np.abs(weights[0] - weights[1]).max(), 0)


class Imported(unittest.TestCase):
    """The step of an imported program, from its StableHLO text (tests/program/import/fixtures)."""

    def test_jax_runs_the_text(self):
        python = interpreter("jax")
        if python is None:
            self.skipTest("no jax")
        stem = ROOT / "tests/program/import/fixtures/mlp_momentum"
        binding, (state, batches, expected) = json.loads(stem.with_suffix(".json").read_text()), (
            dict(np.load(f"{stem}.{part}.npz")) for part in ("state", "batch", "expected"))
        inputs = [{name: batches[name][i] for name in binding["inputs"]} for i in range(len(expected["loss"]))]
        named = [f"state/{name}" for name in binding["state"]]
        program = {"protocol": 1, "scenario": "[program]", "cores": 1, "batch": 6, "algebra": "cpu", "sharding": {}, "random": [],
                   "state": described({name: state[name] for name in binding["state"]}), "inputs": described(inputs[0]),
                   "outputs": described({"loss": np.float32(0)}),
                   "step": {"stablehlo": "step.mlir", "arguments": named + [f"input/{name}" for name in binding["inputs"]],
                            "results": [*named, "output/loss"]}}
        with Harness([python, ROOT / "adapters/engines/jax/engine.py", "--cores", "1"]) as h:
            self.assertTrue(h.hello()["programs"])
            shutil.copy(f"{stem}.mlir", os.path.join(h.folder, "step.mlir"))
            name = h.prepare(program)
            kept = [h.step(name, 1, i, fed, {}, state if i == 0 else None) for i, fed in enumerate(inputs)]
            # A loss of about 1 is made by sums of 8, 16, 4 and 6 terms and a few functions, in an order that depends on XLA's version:
            # fewer than 64 roundings.
            self.assertLessEqual(abs(kept[0]["output/loss"] - expected["loss"][0]), 64 * 2.0**-24 * max(1, abs(expected["loss"][0])))
            for i, fed in enumerate(inputs):
                again = h.step(name, 1, i, fed, {}, state_of(kept[i - 1]) if i else state)
                self.assertEqual(bits(again), bits(kept[i]), f"step {i} through the state file")


class TensorFlow(Several):
    framework, few = "tensorflow", ("mlp", "batch_norm", "adam", "clipped", "unscaled")


def load_tests(loader, _tests, _pattern):
    return unittest.TestSuite(loader.loadTestsFromTestCase(t) for t in (PyTorch, Script, Jax, Imported, TensorFlow))


if __name__ == "__main__":
    unittest.main()

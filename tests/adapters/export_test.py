"""Exports weights and momentum of each framework's own file through adapters/engines/*/export.py and `twinrun convert`: training must continue
as the framework would have continued it.

    python3 tests/adapters/run.py export
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np
from diagnosis import ADAPTERS, ROOT, command, interpreter, twinrun

TOOL = os.environ.get("TWINRUN_PARITY_DUMP", str(ROOT / "build/release/tests/parity_dump"))
EXAMPLE = ADAPTERS / "examples/mnist.toml"
SMALL = ["--set", "data.train=512", "--set", "data.eval=64"]
KEPT, STEPS = 3, 6
# Two programs that round to float32, with about 400 terms per sum and losses near 2. One step with another momentum moves them by 1e-3.
CLOSE = 2e-6
NAMES = {
    "pytorch": ["--name", "0=conv1", "--name", "4=dense1", "--name", "6=dense2", "--flattened", "dense1=7,7,8"],
    "jax": [word for theirs, ours in (("Conv_0", "conv1"), ("Dense_0", "dense1"), ("Dense_1", "dense2"))
            for word in ("--name", f"params/{theirs}={ours}", "--name", f"trace/{theirs}/kernel={ours}/kernel.momentum",
                         "--name", f"trace/{theirs}/bias={ours}/bias.momentum")],
    "tensorflow": [word for i, (number, ours) in enumerate(((0, "conv1"), (1, "dense1"), (2, "dense2")))
                   for word in ("--name", f"model/_functional/_operations/{(1, 4, 5)[i]}/_kernel={ours}/kernel",
                                "--name", f"model/_functional/_operations/{(1, 4, 5)[i]}/bias={ours}/bias",
                                "--name", f"{ours}_kernel_momentum={ours}/kernel.momentum",
                                "--name", f"{ours}_bias_momentum={ours}/bias.momentum")],
}
FILES = {"pytorch": "kept.pt", "jax": "kept", "tensorflow": "kept"}


def run(*words, code=0):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=ROOT)
    if done.returncode != code:
        raise AssertionError(f"{words}: exit status {done.returncode}; expected {code}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return done


class Export(unittest.TestCase):
    def setUp(self):
        if twinrun() is None or not os.path.exists(TOOL):
            self.skipTest("twinrun or parity_dump is missing: ./dev build release all")
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="twinrun-export-")))

    def framework(self, name, *modules):
        python = interpreter(name)
        check = f"import importlib.util as u, sys; sys.exit(0 if all(map(u.find_spec, {('h5py', *modules)!r})) else 1)"
        if python is None or subprocess.run([python, "-c", check], cwd="/").returncode:
            self.skipTest(f"no {name}, or no {' or '.join(('h5py', *modules))} beside it")
        return command(name)[0]

    def trained(self, name, python):
        """Returns its losses of all steps; its file after KEPT steps is in the folder."""
        run(TOOL, EXAMPLE, self.folder / "dump.h5", "--whole-only", "--steps", STEPS, "--members", 4, "--threads", 1, *SMALL)
        here = pathlib.Path(__file__).resolve().parent
        lines = run(python, here / "export_models.py", name, self.folder / "dump.h5", self.folder, KEPT).stdout.splitlines()
        return [float(line) for line in lines[-STEPS:]]

    def goes_on(self, weights, losses, slots=True):
        """Checks that twinrun's training from `weights` has the losses of the framework's."""
        init, run_file = self.folder / "init.h5", self.folder / "run.h5"
        run(twinrun(), "convert", weights, init, "--scenario", EXAMPLE, *SMALL, "--step", KEPT)
        run(twinrun(), "inspect", init)
        run(twinrun(), "train", EXAMPLE, *SMALL, "--set", f"train.steps={STEPS}", "--init", init, "-o", run_file, "-q")
        with h5py.File(run_file) as file:
            found = np.asarray(file["steps/loss"])[-(STEPS - KEPT):]
        for ours, theirs in zip(found if slots else found[:1], losses[KEPT:]):
            self.assertAlmostEqual(float(ours), theirs, delta=CLOSE * theirs)

    def whole_way(self, name, *modules):
        python = self.framework(name, *modules)
        losses = self.trained(name, python)
        weights = self.folder / "w.safetensors"
        run(python, ADAPTERS / "engines" / name / "export.py", self.folder / FILES[name], weights, *NAMES[name])
        self.goes_on(weights, losses)
        return python, losses

    def test_pytorch(self):
        python, _ = self.whole_way("pytorch")
        tool = [python, ADAPTERS / "engines/pytorch/export.py"]
        self.assertIn("no '9'", run(*tool, self.folder / "kept.pt", "o", "--name", "9=conv1", code=1).stderr)
        self.assertIn("H*W*C rows", run(*tool, self.folder / "kept.pt", "o", *NAMES["pytorch"][:-1], "dense1=7,7,9", code=1).stderr)
        (self.folder / "bad.pt").write_bytes(b"no such thing")
        self.assertIn("bad.pt", run(*tool, self.folder / "bad.pt", code=1).stderr)
        self.assertIn("0.weight", run(*tool, self.folder / "kept.pt").stdout)

    def test_pytorch_pickle_is_not_executed(self):
        python = self.framework("pytorch")
        script = f"import torch; torch.save(torch.nn.Linear(2, 2), {str(self.folder / 'whole.pt')!r})"
        run(python, "-c", script)
        said = run(python, ADAPTERS / "engines/pytorch/export.py", self.folder / "whole.pt", code=1).stderr
        self.assertIn("a pickled model is not", said)

    def test_jax(self):
        python, _ = self.whole_way("jax", "orbax")
        said = run(python, ADAPTERS / "engines/jax/export.py", self.folder / "none", code=1).stderr
        self.assertIn("is not a folder", said)

    def test_tensorflow(self):
        python, losses = self.whole_way("tensorflow")
        self.goes_on(self.folder / "kept.weights.h5", losses, slots=False)    # Keras's own file needs no export
        self.assertIn("none", run(python, ADAPTERS / "engines/tensorflow/export.py", self.folder / "none", code=1).stderr)


if __name__ == "__main__":
    sys.exit(unittest.main())

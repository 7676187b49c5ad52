"""Every cause of the catalogue (adapters/twinrun/causes.json) is planted in a step of JAX, and in the text of a step: both doors name it
as the catalogue says.

TWINRUN names the program; needs JAX (77: it is not installed)
"""

import os
import subprocess
import tempfile
import unittest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import with_jax  # noqa: F401, I001

import causes_models
import sharding_test
from twinrun.command import program
from twinrun.mechanisms import between, catalogue
from twinrun.mesh import compare, emulated, whole
from twinrun.xla.files import export_step

# Of each cause the steps of sharding_test.py that have it alone. Where the whole step can be made of no such step, it is another one.
KNOWN = {}
for _name, (_make, _causes) in sharding_test.PLANTED.items():
    if len(_causes) == 1 and not _name.startswith(("pmap", "explicit", "divided twice", "norm of")):
        KNOWN.setdefault(_causes[0], _make)
PLANTS = {**KNOWN, **causes_models.PLANTS}


def expected(cause, door):
    """The cause that a door names, or None."""
    told = catalogue()[cause]["doors"][door]
    return None if told.startswith("no: ") else cause if told == "yes" else told[3:]


def writer(case):
    step, state, batch, *given = case

    def written(folder):
        export_step(step, state, [batch], f"{folder}/sharded")
        export_step(given[0] if given else emulated(whole(step)), state, [batch], f"{folder}/whole")

    return written


class Jax(unittest.TestCase):
    def test_healthy(self):
        for name, make in causes_models.HEALTHY.items():
            step, state, batch = make()
            self.assertFalse(compare(step, state, [batch])["differs"], name)


class Text(unittest.TestCase):
    def test_healthy(self):
        names = "pmean", "clipping after", "synced batch norm", "token mean", "dropout", "weight noise", "tensor parallel", "accumulated"
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                writer(sharding_test.HEALTHY[name]())(folder)
                command = [program(), "diagnose", f"{folder}/sharded.mlir", "--whole", f"{folder}/whole.mlir"]
                command += ["--quick", "-o", f"{folder}/out"]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
                self.assertEqual(done.returncode, 0, (name, done.stdout))


def add(cause, name, door):
    def jax_test(self):
        step, state, batch, *given = PLANTS[cause]()
        found = compare(step, state, [batch], *given)
        self.assertEqual([c["cause"] for c in found["causes"]], [name], found)
        self.assertNotRegex(found["causes"][0]["sentence"] + found["causes"][0]["cure"], r"[{}]")

    def text_test(self):
        self.assertEqual([found["cause"] for found in between(writer(PLANTS[cause]()))], [name])

    setattr(*((Jax, f"test_{cause}", jax_test) if door == "jax" else (Text, f"test_{cause}", text_test)))


class Table(unittest.TestCase):
    def test_each_cause_that_is_named_is_planted(self):
        for cause in catalogue():
            for door in ("jax", "hlo"):
                self.assertTrue(cause in PLANTS or expected(cause, door) is None, (cause, door))


for _cause in PLANTS:
    for _door in ("jax", "hlo"):
        # sharding_test.py has what JAX names in its own steps.
        if expected(_cause, _door) and (_door == "hlo" or _cause in causes_models.PLANTS):
            add(_cause, expected(_cause, _door), _door)

if __name__ == "__main__":
    unittest.main()

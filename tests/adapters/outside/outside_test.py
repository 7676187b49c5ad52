"""Is the gradient the derivative of the loss? An outside test: scripts that people might write, of which central differences in
binary64 say whether their gradient is (truth.py, jax_cases.py), and what `twinrun diagnose` and `twinrun.diagnose` answer in float32,
bfloat16 and float16.
Wrong ones must end in PROGRAM with the Function and a line of its definition; of right ones and of what is meant none is accused.

Environment: TWINRUN, the binary; TWINRUN_TORCH_PYTHON and TWINRUN_JAX_PYTHON, interpreters that have PyTorch and JAX (default: this one).
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import forks  # noqa: E402
import scripts  # noqa: E402
import torch_steps  # noqa: E402

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "adapters"), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
EXIT_CODES = {"NOISE": 0, "PROGRAM": 15, "ENGINE_BUG": 20, "INCONCLUSIVE": 125}

# What goes wrong today: kind, names, precisions, the verdict, and why. One that goes right fails the test, so that this stays true.
MISSES = [
    ("right", "lstm", "bf16", "INCONCLUSIVE", "recurrent layers of half precision have no definition"),
    ("wrong", "compiled compiled_aot compiled_eager", "f32 bf16 f16", "INCONCLUSIVE",
     "torch.compile takes the Function apart, and its graph does not tell what is held fixed: the Function is listed as not examined"),
    ("meant", "compiled_straight_through", "f32 bf16 f16", "INCONCLUSIVE", "the same, and no bound is known of a rounding in a region"),
]
JAX_MISSES = [
    ("right", "lstm", "bf16", "INCONCLUSIVE", "recurrent layers of half precision have no definition"),
    ("right", "scale running_sum decayed scan remat loop causal penalty sorted", "bf16", "INCONCLUSIVE",
     "a step all of bfloat16, whose update may be rounding alone; the gradient is said to be the derivative"),
    ("right", "associative", "bf16", "INCONCLUSIVE", "arrays without elements are not judged in bfloat16"),
]


def python_of(variable, module):
    python = os.environ.get(variable) or sys.executable
    asked = subprocess.run([python, "-c", f"import {module}; print({module}.__version__)"], capture_output=True, text=True, env=ENVIRONMENT)
    return python if asked.returncode == 0 and not asked.stdout.startswith("1.") else None


TORCH, JAX = python_of("TWINRUN_TORCH_PYTHON", "torch"), python_of("TWINRUN_JAX_PYTHON", "jax")


def lines_of_class(script, name):
    """The lines of a class of a script."""
    lines = script.split("\n")
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith(f"class {name}("))
    indent = len(lines[first]) - len(lines[first].lstrip())
    end = next(i for i in range(first + 1, len(lines)) if lines[i].strip() and len(lines[i]) - len(lines[i].lstrip()) <= indent)
    return range(first + 1, end + 1)


class Table(unittest.TestCase):
    def hold(self, table, key, precision, verdict, miss):
        """`miss`: what is wrong with an answer; "" if nothing is."""
        is_it = (m[3] for m in table if m[0] == key[0] and key[1] in m[1].split() and precision in m[2].split())
        known = next(is_it, None)
        if known is None:
            self.assertEqual(miss, "", f"{key} in {precision}")
        else:
            self.assertNotEqual(miss, "", f"{key} in {precision} is right now: take it out of the table of misses")
            self.assertEqual(verdict, known, f"{key} in {precision} goes wrong otherwise: {miss}")

    def test_there_are_enough(self):
        self.assertGreaterEqual(min(len(scripts.right()), len(scripts.wrong())), 40)


@unittest.skipUnless(TORCH, "no interpreter has PyTorch")
class Torch(Table):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.forks = forks.Forks(TORCH, "torch", "torch._dynamo", environment=ENVIRONMENT)

    @classmethod
    def tearDownClass(cls):
        cls.forks.close()
        cls.place.cleanup()

    def written(self, name, text):
        script = pathlib.Path(self.place.name) / f"{name}.py"
        script.write_text(text)
        return script

    def report(self, script, precision):
        trace = script.with_suffix(".twin")
        made = subprocess.run([self.forks.python, "-m", "twinrun", "watch", "-o", trace, "--steps", "1", script, precision],
         env=ENVIRONMENT,
                              capture_output=True, text=True)
        if "could not create a primitive" in made.stderr:
            self.skipTest("oneDNN has no such kernel for this processor")
        self.assertEqual(made.returncode, 0, made.stderr[-2000:])
        told = subprocess.run([os.environ["TWINRUN"], "diagnose", "--json", trace, "-o", self.place.name + "/found"], capture_output=True,
         text=True)
        trace.unlink()
        report = json.loads(told.stdout)
        self.assertEqual(told.returncode, EXIT_CODES[report["verdict"]["class"]], report["verdict"]["headline"])
        return report

    def each(self, kind, judge):
        for name, made in getattr(scripts, kind)().items():
            text, named = made if isinstance(made, tuple) else (made, "")
            script = self.written(name, text)
            for precision in scripts.PRECISIONS[:1] if name in torch_steps.FLOAT32 else scripts.PRECISIONS:
                with self.subTest(f"{kind} {name} {precision}"):
                    report = self.report(script, precision)
                    verdict = report["verdict"]["class"]
                    self.hold(MISSES, (kind, name), precision, verdict, judge(report, text, named))

    @staticmethod
    def accused(report, *_):
        return "" if report["verdict"]["class"] == "NOISE" and not report["findings"] else report["verdict"]["headline"]

    @staticmethod
    def not_found(report, text, named):
        if report["verdict"]["class"] != "PROGRAM":
            return f"{report['verdict']['class']}: {report['verdict']['headline']}"
        found = report["findings"][0]
        if not named.isidentifier():
            return "" if re.search(named, found["sentence"] + found["place"]) else found["sentence"]
        line = re.match(r".*?\.py:(\d+) in", found["place"])
        is_it = found["op"].endswith(named) and line and int(line[1]) in lines_of_class(text, named)
        return "" if is_it else f"{found['op']} at {found['place']}"

    def test_truth(self):
        made = {kind: {str(self.written(f"{kind}_{name}", m if isinstance(m, str) else m[0])): (name, m) for name, m in table.items()}
                for kind, table in (("right", scripts.right()), ("wrong", scripts.wrong()))}
        told = subprocess.run([self.forks.python, HERE / "truth.py", *made["right"], *made["wrong"]], env=ENVIRONMENT, capture_output=True,
         text=True)
        self.assertEqual((told.returncode, told.stderr), (0, ""))
        off = json.loads(told.stdout)
        for script, (name, _) in made["right"].items():
            with self.subTest("right", name=name):
                self.assertLess(max(off[script][0], off[script][1].get(name, 0)), 1e-6)
        for script, (name, (_, named)) in made["wrong"].items():
            with self.subTest("wrong", name=name):
                self.assertGreater(off[script][0], 1e-2)
                if name == named:
                    self.assertGreater(off[script][1][name], 1e-2)

    def test_right_ones_are_not_accused(self):
        self.each("right", self.accused)

    def test_meant_ones_are_not_accused(self):
        self.each("meant", self.accused)

    def test_right_ones_beside_a_hook_are_not_accused(self):
        self.each("beside_a_hook", self.accused)

    def test_of_wrong_ones_the_function_and_its_line_are_named(self):
        self.each("wrong", self.not_found)

    def test_the_command_as_it_is_documented(self):
        wrong, right = self.written("wrong", scripts.wrong()["SwishMissingTerm"][0]), self.written("right", scripts.right()["Swish"])
        for script, code in ((wrong, 15), (right, 0)):
            told = subprocess.run([os.environ["TWINRUN"], "diagnose", "-o", self.place.name + "/told", self.forks.python, script, "f32"],
             env=ENVIRONMENT,
                                  capture_output=True, text=True)
            self.assertEqual(told.returncode, code, told.stdout + told.stderr)


@unittest.skipUnless(JAX, "no interpreter has JAX")
class Jax(Table):
    def told(self, what, precision):
        with tempfile.TemporaryDirectory() as place:
            told = subprocess.run([JAX, HERE / "jax_cases.py", what, precision, place], env=ENVIRONMENT, capture_output=True, text=True)
        self.assertEqual(told.returncode, 0, told.stderr[-2000:])
        return [json.loads(line) for line in told.stdout.splitlines() if line.startswith("[")]

    def test_truth(self):
        for kind, name, off in self.told("truth", "f64"):
            with self.subTest(kind, name=name):
                if kind == "right":
                    self.assertLess(off, 1e-6)
                if kind == "wrong":
                    self.assertGreater(off, 1e-2)

    def judged(self, precision):
        for kind, name, verdict, said, lines in self.told("diagnose", precision):
            with self.subTest(f"{kind} {name} {precision}"):
                miss = f"{verdict}: {said}"
                if kind != "wrong" and verdict == "NOISE":
                    miss = ""
                if kind == "wrong" and verdict == "PROGRAM":
                    at = re.search(rf"\b{name}\b.*?\b{name}\.py:(\d+)", said, re.DOTALL)
                    miss = "" if at and lines[0] <= int(at[1]) <= lines[1] else miss
                self.hold(JAX_MISSES, (kind, name), precision, verdict, miss)

    def test_float32(self):
        self.judged("f32")

    def test_bfloat16(self):
        self.judged("bf16")

    def test_float16(self):
        self.judged("f16")


if __name__ == "__main__":
    if not (TORCH or JAX):
        print("SKIPPED: no interpreter has PyTorch or JAX")
        raise SystemExit(77)
    unittest.main()

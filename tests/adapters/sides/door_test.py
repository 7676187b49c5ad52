"""`twinrun diagnose WHAT` of a user's script, trace, folder of ranks, two sides: each ends in one kind of report, which `report`, `bundle`,
`replay`, --fail-on and --json take.

python3 door_test.py        # TWINRUN=path of the binary; exit status 77 without PyTorch
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "adapters")]
import kinds  # noqa: E402
from twinrun.trace_report import rows  # noqa: E402

TWINRUN = os.environ["TWINRUN"]
PYTHON = os.environ.get("TWINRUN_TORCH_PYTHON") or "/usr/bin/python3"
HAS_TORCH = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0
PLANT = ("accumulation", "--plant", "mm_in_bfloat16")
STEPS = HERE / "steps.py"
RATE = """import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
"""
MODULE = "HloModule m\n\nENTRY e {\n  a = f32[3] parameter(0)\n  b = f32[3] parameter(1)\n  ROOT c = f32[3] add(a, b)\n}\n"


def write_values(path, **arrays):
    """Writes a file of safetensors; arrays: NAME_INDEX=[numbers], float32."""
    header, data = {}, b""
    for name, numbers in arrays.items():
        at = len(data)
        data += struct.pack(f"<{len(numbers)}f", *numbers)
        header[name.replace("_", "/")] = {"dtype": "F32", "shape": [len(numbers)], "data_offsets": [at, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@unittest.skipUnless(HAS_TORCH, f"{PYTHON} has no PyTorch")
class Door(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.made.name)
        cls.good, cls.wrong = cls.run_in(cls, STEPS, "accumulation"), cls.run_in(cls, "-o", "wrong", STEPS, *PLANT)

    @classmethod
    def tearDownClass(cls):
        cls.made.cleanup()

    def run_in(self, *words, verb="diagnose"):
        """Runs a verb as a user does: in the folder of the script, with the package found by the program."""
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment.update(TWINRUN_PYTHON=PYTHON, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        return subprocess.run([TWINRUN, verb, *map(str, words)], cwd=self.folder, env=environment, capture_output=True, text=True)

    def report(self, folder):
        return json.loads((self.folder / folder / "report.json").read_text())

    def test_a_script_is_recorded_judged_and_answered(self):
        self.assertEqual(self.good.returncode, 0, self.good.stderr)
        self.assertIn("steps.py accumulation: a Python script", self.good.stderr.splitlines()[0])
        self.assertLess(len(self.good.stdout.splitlines()), 26, self.good.stdout)
        self.assertTrue(self.good.stdout.startswith("NOISE: every result of the "), self.good.stdout)
        report = self.report("twinrun-results/steps")
        self.assertEqual((report["kind"], list(report["answers"]), report["counts"]["steps"]), ("recorded step", kinds.QUESTIONS, 2))
        self.assertEqual(report["answers"]["program"]["outcome"], "in part")
        self.assertEqual(self.wrong.returncode, 20, self.wrong.stderr)
        self.assertIn("aten.mm.default", self.wrong.stdout)
        self.assertIn("steps.py:", self.wrong.stdout)

    def test_what_every_kind_can_do(self):
        """A JAX step: tests/adapters/xla/jax_test.py."""
        again = self.run_in("wrong")
        self.assertEqual((again.returncode, again.stdout), (20, self.wrong.stdout))
        (self.folder / "m.hlo").write_text(MODULE)
        (self.folder / "uncleared.py").write_text(RATE.replace("    optimizer.zero_grad()\n", ""))
        write_values(self.folder / "values.safetensors", argument_0=[1, 2, 3], argument_1=[1, 1, 1], result_0=[2, 3, 5])
        made = (("scenario", "scenario", 20, True, ("drill_mlp", "--quick", "--fault", "drop_k_tail@dense2/dot_general")),
                ("wrong", "recorded step", 20, True, ()),
                ("from-trace", "recorded step", 20, True, ("wrong/trace.twin",)),
                ("wrong-step", "recorded step", 15, True, ("uncleared.py", "0.1")),
                ("two", "two sides", 20, "folder a/ or b/", ("--against", "wrong/trace.twin", "twinrun-results/steps/trace.twin")),
                ("module", "module", 20, True, ("m.hlo", "--values", "values.safetensors")))
        for name, kind, code, bundle, words in made:
            with self.subTest(name):
                if words:
                    self.assertEqual(self.run_in("-o", name, "-q", *words).returncode, code)
                kinds.check(self, TWINRUN, self.folder / name, kind, code, bundle)
        known = self.run_in("-o", "for-kinds.json", "twinrun-results/steps/trace.twin", verb="record")
        self.assertEqual(known.returncode, 0, known.stderr)
        self.assertEqual(self.run_in("for-kinds.json", "wrong/trace.twin", "-o", "known", verb="verify").returncode, 20)
        kinds.check(self, TWINRUN, self.folder / "known", "known step", 20, "send this folder")
        for words, says in ((("op", "m.hlo"), "this is no scenario: a compiled training step"), (("op", "scenario"), "a finished diagnosis")):
            self.assertIn(says, self.run_in(*words, verb="bisect").stderr)
        self.assertIn("twinrun diagnose scenario --against wrong", self.run_in("scenario", "wrong", verb="diff").stderr)

    def test_formats_of_a_recorded_step(self):
        self.assertEqual(self.run_in("wrong", "--format", "csv,junit", "-o", "formats", verb="report").returncode, 0)
        failures = xml.etree.ElementTree.parse(self.folder / "formats" / "junit.xml").getroot().attrib
        self.assertEqual((failures["tests"], failures["failures"]), ("5", "1"))
        self.assertIn("aten.mm.default", (self.folder / "formats" / "csv" / "operations.csv").read_text())
        self.assertIn("mm_in_bfloat16", (self.folder / "wrong" / "report.md").read_text())

    def test_a_bundle_is_proved_elsewhere(self):
        made = self.run_in("wrong", "-o", "fault.zip", verb="bundle")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertLess((self.folder / "fault.zip").stat().st_size, (self.folder / "wrong" / "trace.twin").stat().st_size / 10)
        with tempfile.TemporaryDirectory() as elsewhere:
            bundle = shutil.copy(self.folder / "fault.zip", elsewhere)
            again = self.run_in(bundle, verb="replay")
            self.assertEqual((again.returncode, "reproduced: aten.mm.default" in again.stdout), (0, True), again.stdout + again.stderr)
            # This machine's own kernel is right, so the fault is of the machine where it was recorded.
            environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "adapters")}
            here = subprocess.run([PYTHON, "-m", "twinrun", "replay", bundle], env=environment, capture_output=True, text=True)
            self.assertIn("NOISE: every result of the 1 judged calls is within its bound", here.stdout, here.stderr)
        nothing = self.run_in("twinrun-results/steps", "-o", "none.zip", verb="bundle")
        self.assertEqual((nothing.returncode, "nothing is accused" in nothing.stderr), (128, True), nothing.stderr)

    def test_another_side(self):
        sides = self.run_in("--against", "wrong/trace.twin", "-o", "sides", "twinrun-results/steps/trace.twin")
        self.assertEqual(sides.returncode, 20, sides.stderr)
        report = self.report("sides")
        self.assertEqual((report["kind"], report["verdict"]["side"]), ("two sides", "B"))
        self.assertEqual([row["verdict"] for row in rows(report, "sides")], ["NOISE", "ENGINE_BUG"])
        self.assertEqual(self.report("sides/b")["kind"], "recorded step")
        self.assertEqual(self.run_in("sides/b", "-o", "side.zip", verb="bundle").returncode, 0)
        same = self.run_in("--against", PYTHON, "--steps", "1", "-o", "same", STEPS, "cnn")
        self.assertEqual((same.returncode, self.report("same")["verdict"]["class"]), (0, "IDENTICAL"), same.stderr)

    def test_a_module_and_an_axis_of_bisect(self):
        shutil.copy(STEPS, self.folder / "stepping.py")
        module = self.run_in("--steps", "1", "-o", "module", "-m", "stepping", "cnn")
        self.assertEqual((module.returncode, self.report("module")["verdict"]["class"]), (0, "NOISE"), module.stderr)
        sides = self.run_in("op", "--b", PYTHON, "--steps", "1", "-o", "axis", STEPS, "cnn", verb="bisect")
        self.assertEqual((sides.returncode, self.report("axis")["kind"]), (0, "two sides"), sides.stderr)

    def test_a_trace_that_was_cut_short(self):
        whole = (self.folder / "twinrun-results/steps/trace.twin").read_bytes()
        (self.folder / "cut.twin").write_bytes(whole[:len(whole) // 3])
        self.assertEqual(self.run_in("cut.twin").returncode, 128)
        self.assertEqual(self.run_in("--partial", "cut.twin").returncode, 0)

    def test_a_known_step(self):
        trace = "twinrun-results/steps/trace.twin"
        self.assertEqual(self.run_in("-o", "kept/known.json", "--again", trace, trace, verb="record").returncode, 0)
        same, other = (self.run_in("kept/known.json", path, "--json", verb="verify") for path in (trace, "wrong/trace.twin"))
        self.assertEqual((same.returncode, json.loads(same.stdout)["verdict"]["class"]), (0, "IDENTICAL"), same.stderr)
        self.assertEqual((other.returncode, json.loads(other.stdout)["verdict"]["class"]), (20, "ENGINE_BUG"), other.stderr)
        made = self.run_in("-o", "script.json", "--steps", "1", STEPS, "cnn", verb="record")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(self.run_in("script.json", STEPS, "cnn", verb="verify").returncode, 0)
        (self.folder / "rate.py").write_text(RATE)
        self.assertEqual(self.run_in("-o", "rate.json", "rate.py", "0.05", verb="record").returncode, 0)
        other = self.run_in("rate.json", "rate.py", "0.06", verb="verify")
        self.assertEqual((other.returncode, "other numbers than were recorded" in other.stdout), (15, True), other.stdout + other.stderr)

    def test_what_cannot_be_diagnosed_says_what_to_type(self):
        (self.folder / "empty").mkdir(exist_ok=True)
        (self.folder / "some.zip").write_bytes(b"PK\x03\x04")
        (self.folder / "run.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
        (self.folder / "known.json").write_text('{"schema": 1, "kind": "known_step"}')
        for what, says in (("nothing.py", "no such file"), ("empty", "neither a report.json nor traces"), ("some.zip", "twinrun replay some.zip"),
                           ("run.h5", "twinrun inspect run.h5"), ("known.json", "twinrun verify known.json SCRIPT")):
            done = self.run_in(what)
            self.assertEqual((done.returncode, says in done.stderr), (128, True), done.stderr)


if __name__ == "__main__":
    if not HAS_TORCH:
        print(f"SKIPPED: {PYTHON} has no PyTorch")
        sys.exit(77)
    unittest.main()

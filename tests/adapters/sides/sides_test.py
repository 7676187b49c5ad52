"""`twinrun diagnose A --against B` and `python -m twinrun record, verify` on scripts: planted faults are named on their side, healthy sides are
not accused, and other inputs are told. Environment: TWINRUN, the binary; TWINRUN_TORCH_PYTHON, an interpreter that has PyTorch (default:
this one); TWINRUN_NEWER_TORCH_PYTHON, one with another release; TWINRUN_TORCH17_PYTHON, TWINRUN_TORCH110_PYTHON and
TWINRUN_TORCH112_PYTHON, ones with 1.7.1, 1.10.0 and 1.12.0."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "adapters")]
import forks  # noqa: E402
from twinrun.trace_report import rows  # noqa: E402

CASES = HERE.parent / "watch" / "cases"
COMPILED = HERE.parent / "watch" / "compiled" / "models.py"
PYTHON = os.environ.get("TWINRUN_TORCH_PYTHON") or sys.executable
NEWER, OLD17, OLD110, OLD112 = (os.environ.get(f"TWINRUN_{name}_PYTHON") for name in ("NEWER_TORCH", "TORCH17", "TORCH110", "TORCH112"))
HAS_TORCH = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[2] / "adapters"), "PYTHONWARNINGS": "ignore"}
WARM = forks.Forks(PYTHON, "torch", "torch._dynamo", environment=ENVIRONMENT).python if HAS_TORCH else ""


def needs(python, what):
    return unittest.skipUnless(python, f"{what} names no interpreter")


def steps(python, *words, before=""):
    python = WARM if python == PYTHON else python
    return f"{before}{python} {HERE / 'steps.py'} " + " ".join(words)


def diagnosed(a, b, folder=None):
    with tempfile.TemporaryDirectory() as made:
        out = pathlib.Path(folder or made)
        done = subprocess.run([os.environ["TWINRUN"], "diagnose", "--against", b, "--json", "-q", "--steps", "2", "-o", str(out), *a.split()],
                              env=ENVIRONMENT, capture_output=True, text=True)
        if not done.stdout:
            raise AssertionError(done.stderr)
        report = json.loads(done.stdout)
        assert report["verdict"]["exit_code"] == done.returncode, done.returncode
        for side in ("a", "b"):    # by itself
            if (out / side / "report.json").exists():
                report[side] = json.loads((out / side / "report.json").read_text())
        return report


def difference(report, role):
    return next((row for row in rows(report, "differences") if row["role"] == role), None)


class Case(unittest.TestCase):
    def expect(self, report, verdict, status):
        self.assertEqual((report["verdict"]["class"], report["verdict"]["exit_code"]), (verdict, status), report["verdict"]["headline"])
        return report

    def noise(self, a, b):
        report = self.expect(diagnosed(a, b), "NOISE", 0)
        self.assertEqual((report["a"]["findings"], report["b"]["findings"], rows(report, "inputs")), ([], [], []))
        first = difference(report, "first")
        self.assertNotIn("not judged", (first["a_bound"], first["b_bound"]), first)
        # Eager and compiled code round bfloat16 at other places, so not all keep half of their digits.
        self.assertGreater(report["counts"]["aligned_by_bits"] + report["counts"]["aligned_by_values"], report["counts"]["aligned_by_order"])
        return report


@unittest.skipUnless(HAS_TORCH, f"{PYTHON} has no PyTorch")
class TwoWays(Case):
    """Two ways to say one step, and what is none."""

    def ways(self, a, b="joined", verdict="NOISE", status=0):
        run = f"{WARM} {HERE / 'ways.py'} "
        report = self.expect(diagnosed(run + a, run + b), verdict, status)
        return report, float(report["numbers"]["meant"])

    def test_right_ones_mean_the_same(self):
        for way in ("micro", "divided_later", "explicit", "micro bfloat16"):
            with self.subTest(way):
                report, meant = self.ways(way, "joined " + way.partition(" ")[2])
                self.assertLess(meant, 1e-12)
                self.assertIn("without rounding, the gradients of step 0 are", report["answers"]["program"]["what"])

    def test_wrong_ones_by_their_cause(self):
        weights = "as a sum of side A's 4 backward passes, side B's has the weights"
        for way, said, to_do in (("means", weights, "a mean of means"), ("undivided", weights, "a mean of means"),
                                 ("cleared", "and side A's 0, 0, 0 and 1", "not between them"),
                                 ("clipped", ": side B's is ", ""), ("means bfloat16", weights, "a mean of means")):
            with self.subTest(way):
                report, meant = self.ways(way, "joined " + way.partition(" ")[2], "PROGRAM", 15)
                self.assertGreater(meant, 0.1)
                self.assertIn(said, report["verdict"]["headline"])
                self.assertIn("ways.py:", report["findings"][0]["place"])
                self.assertIn(to_do, " ".join(report["next_steps"]))

    def test_a_factor(self):
        report, _ = self.ways("equal_undivided", "joined equal", "PROGRAM", 15)
        self.assertIn("side A's is 4 times side B's, the sum of its 4 backward passes, which nothing divides", report["verdict"]["headline"])

    def test_a_small_difference_is_open(self):
        report, meant = self.ways("near", "joined", "INCONCLUSIVE", 125)
        self.assertTrue(2**-20 < meant < 2**-10, meant)
        self.assertIn("look for a constant", " ".join(report["next_steps"]))


@unittest.skipUnless(HAS_TORCH, f"{PYTHON} has no PyTorch")
class OneInstallation(Case):
    def test_the_same_script_is_identical(self):
        report = self.expect(diagnosed(steps(PYTHON, "lstm"), steps(PYTHON, "lstm")), "IDENTICAL", 0)
        self.assertEqual((report["counts"]["differing"], rows(report, "unaligned")), (0, []))

    def test_a_planted_kernel_is_named_on_its_side(self):
        for plant, side, op in (("mm_in_bfloat16", "B", "aten.mm.default"), ("second_moment_stale", "A", "aten.addcmul_.default")):
            with self.subTest(plant), tempfile.TemporaryDirectory() as folder:
                wrong, right = steps(PYTHON, "accumulation", "--plant", plant), steps(PYTHON, "accumulation")
                a, b = (wrong, right) if side == "A" else (right, wrong)
                report = self.expect(diagnosed(a, b, folder), "ENGINE_BUG", 20)
                self.assertEqual(report["verdict"]["side"], side)
                mine, other = (report[k] for k in (side.lower(), "ab".replace(side.lower(), "")))
                self.assertEqual({f["op"] for f in mine["findings"] if not f["composed"]}, {op})
                self.assertEqual(other["findings"], [])
                self.assertIn("steps.py:", mine["findings"][0]["place"])
                self.assertGreater(mine["findings"][0]["outside"], 0)
                if plant == "mm_in_bfloat16":
                    there = difference(report, "outside on B")
                    self.assertEqual((there["a_bound"].split(",")[0], there["same_inputs"]), ("within", "yes"))
                    self.assertEqual(mine["findings"][0]["module"], there["module"])
                    # What follows from the wrong result is not told as something else that differs.
                    self.assertEqual(rows(report, "inputs"), [])
                for page in ("report.html", "report.json", "a/report.html", "b/report.html"):
                    self.assertTrue((pathlib.Path(folder) / page).stat().st_size > 1000, page)
                self.assertIn(op, (pathlib.Path(folder) / "report.html").read_text())

    def test_both_sides_can_be_wrong(self):
        wrong = steps(PYTHON, "accumulation", "--plant", "mm_in_bfloat16")
        self.assertEqual(self.expect(diagnosed(wrong, wrong), "ENGINE_BUG", 20)["verdict"]["side"], "A and B")

    def test_other_inputs_are_told(self):
        for words, kind, what in ((("--seed", "12"), "draw", "aten.uniform_"), (("--second-seed", "5"), "draw", "aten.randn"),
                                  (("--batch", "7"), "draw", "[7, 30]"), (("--rate", "0.0021"), "number", "0.999979"),
                                  (("--activation", "gelu"), "operation", "aten.gelu"), (("--float64",), "draw", "float64"),
                                  (("--optimizer", "SGD"), "update", "the optimizers move the weights differently")):
            with self.subTest(words):
                report = diagnosed(steps(PYTHON, "accumulation"), steps(PYTHON, "accumulation", *words))
                self.expect(report, "PROGRAM", 15)
                self.assertEqual(rows(report, "inputs")[0]["kind"], kind)
                self.assertIn(what, report["verdict"]["headline"])

    def test_a_batch_from_outside_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "train.py"
            script.write_text("import sys, array, torch\n"
                              "numbers = array.array('f', [i % 7 + float(sys.argv[1]) * (i == 5) for i in range(24)])\n"
                              "x = torch.frombuffer(numbers, dtype=torch.float32).view(6, 4)\n"
                              "torch.manual_seed(0)\nnet = torch.nn.Linear(4, 2)\no = torch.optim.SGD(net.parameters(), 0.1)\n"
                              "for _ in range(2):\n    o.zero_grad(); net(x).square().mean().backward(); o.step()\n")
            report = diagnosed(*(f"{WARM} {script} {change}" for change in ("0", "1e-6")))
        self.expect(report, "PROGRAM", 15)
        first = rows(report, "inputs")[0]
        self.assertEqual((first["kind"], first["differing"], "of 24 elements" in first["sentence"]), ("tensor", 1, True))

    def test_a_side_that_fails_says_why(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([os.environ["TWINRUN"], "diagnose", "--against", steps(PYTHON, "cnn", "--nothing"), "-q", "-o", folder,
                                   *steps(PYTHON, "cnn").split()], env=ENVIRONMENT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 125, done.stderr)
        self.assertIn("unrecognized arguments: --nothing", done.stderr)

    def test_a_record_is_verified(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            known, report = folder / "known.json", folder / "report.json"

            def run(verb, *words):
                done = subprocess.run([WARM, "-m", "twinrun", verb, *map(str, words)], env=ENVIRONMENT, capture_output=True, text=True)
                return done.returncode, done.stdout + done.stderr

            script = HERE / "steps.py"
            self.assertEqual(run("record", "-o", known, script, "cnn")[0], 0)
            status, said = run("verify", known, "--each", "core", "--report", report, script, "cnn")
            self.assertEqual(status, 0, said)
            devices = json.loads(report.read_text())["devices"]
            self.assertEqual(len(devices), len(os.sched_getaffinity(0)))
            self.assertEqual({d["outcome"] for d in devices}, {"identical"})
            status, said = run("verify", known, "--report", report, script, "cnn", "--plant", "mm_in_bfloat16")
            self.assertEqual(status, 20, said)
            wrong = json.loads(report.read_text())["devices"][0]
            self.assertEqual((wrong["outcome"], wrong["findings"][0]["op"]), ("wrong", "aten.mm.default"))
            self.assertGreater(wrong["findings"][0]["outside"], 0)
            status, said = run("verify", known, script, "cnn", "--seed", "4")
            self.assertEqual(status, 15, said)
            status, said = run("verify", known, "--report", report, "--machine", "rack 7", script, "cnn", "--nothing")
            self.assertEqual(status, 125, said)
            self.assertIn("unrecognized arguments: --nothing", said)
            # A report may go to others: what a script said, and where files lie, stays here.
            for private in ("--nothing", name, str(HERE)):
                self.assertNotIn(f"{private}", report.read_text())
            self.assertEqual(json.loads(report.read_text())["machine"], "rack 7")
            known.write_text(known.read_text().replace('"op": "aten.relu.default"', '"op": "aten.gelu.default"', 1))
            self.assertNotEqual(run("verify", known, script, "cnn")[0], 0)
            # A wrong machine is none to hold others against.
            self.assertEqual(run("record", "-o", known, script, "cnn", "--plant", "mm_in_bfloat16")[0], 1)


class Reports(Case):
    def test_two_reports_are_set_side_by_side(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for side, verdict, cause in (("a", "NOISE", None), ("b", "ENGINE_BUG", "fusion")):
                (folder / side).mkdir()
                findings = [{"cause": cause, "sentence": "scatter is wrong"}] if cause else []
                (folder / side / "report.json").write_text(json.dumps(
                    {"verdict": {"class": verdict, "headline": f"side {side}"}, "findings": findings}))
            report = diagnosed(str(folder / "a"), str(folder / "b" / "report.json"))
            self.expect(report, "ENGINE_BUG", 20)
            self.assertEqual((report["verdict"]["side"], report["findings"][0]["cause"]), ("B", "fusion"))


@unittest.skipUnless(HAS_TORCH, f"{PYTHON} has no PyTorch")
class Releases(Case):
    @needs(NEWER, "TWINRUN_NEWER_TORCH_PYTHON")
    def test_healthy_releases_are_noise(self):
        for name in ("cnn", "transformer", "lstm", "accumulation"):
            with self.subTest(name):
                report = self.noise(steps(PYTHON, name), steps(NEWER, name))
                self.assertLess(max(s["update"] for s in rows(report, "steps")), 0.5)

    @needs(NEWER, "TWINRUN_NEWER_TORCH_PYTHON")
    def test_eager_and_compiled_are_noise(self):
        for name in ("cnn", "transformer", "accumulation", "autocast"):
            with self.subTest(name):
                words = (name, "--no-dropout")
                report = self.noise(steps(NEWER, *words), steps(NEWER, *words, "--compile"))
                self.assertIn("torch.compile.inductor", {row["op"] for row in rows(report["b"], "operations")})

    @needs(NEWER, "TWINRUN_NEWER_TORCH_PYTHON")
    def test_a_wrong_compiler_is_named(self):
        for plant in ("element", "weight", "bfloat16"):
            with self.subTest(plant):
                right, wrong = (f"{NEWER} {COMPILED} cnn{more}" for more in ("", f" --plant {plant}"))
                report = self.expect(diagnosed(right, wrong), "ENGINE_BUG", 20)
                self.assertEqual((report["verdict"]["side"], report["b"]["findings"][0]["op"]), ("B", "torch.compile.inductor"))

    @needs(NEWER, "TWINRUN_NEWER_TORCH_PYTHON")
    def test_a_plant_is_named_across_releases(self):
        report = diagnosed(steps(PYTHON, "accumulation", "--plant", "mm_in_bfloat16"), steps(NEWER, "accumulation"))
        self.assertEqual(self.expect(report, "ENGINE_BUG", 20)["verdict"]["side"], "A")

    @needs(OLD110 and OLD112, "TWINRUN_TORCH110_PYTHON or TWINRUN_TORCH112_PYTHON")
    def test_label_smoothing_is_wrong_in_1_10(self):
        a, b = (f"{python} {CASES / 'label_smoothing.py'} " for python in (OLD110, OLD112))
        report = self.expect(diagnosed(a + "4", b + "4"), "ENGINE_BUG", 20)
        self.assertEqual((report["verdict"]["side"], report["a"]["findings"][0]["op"]), ("A", "torch.nn.functional.cross_entropy"))
        self.assertEqual((difference(report, "outside on A")["same_inputs"], difference(report, "outside on A")["b_bound"].split(",")[0]), ("yes", "within"))
        self.assertIn(diagnosed(a + "0", b + "0")["verdict"]["class"], ("IDENTICAL", "NOISE"))

    @needs(OLD17 and OLD110, "TWINRUN_TORCH17_PYTHON or TWINRUN_TORCH110_PYTHON")
    def test_depthwise_gradient_is_wrong_in_1_7(self):
        a, b = (f"{python} {CASES / 'depthwise.py'} " for python in (OLD17, OLD110))
        report = self.expect(diagnosed(a + "24", b + "24"), "ENGINE_BUG", 20)
        self.assertEqual((report["verdict"]["side"], report["a"]["findings"][0]["op"]), ("A", "aten.convolution_backward.default"))
        self.assertIn(diagnosed(a + "23", b + "23")["verdict"]["class"], ("IDENTICAL", "NOISE"))


if __name__ == "__main__":
    if not HAS_TORCH:
        print(f"SKIPPED: {PYTHON} has no PyTorch")
        sys.exit(77)
    unittest.main()

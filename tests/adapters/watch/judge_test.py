"""`twinrun diagnose` on traces of this folder's scripts: healthy ones are not accused, and of each plant the operation,
the step and the line are named. Environment: TWINRUN, the binary; TWINRUN_TORCH_PYTHON, an interpreter that has PyTorch
(default: this one); TWINRUN_TEST_ALL=1, for all combinations of compiled regions."""
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

PYTHON = os.environ.get("TWINRUN_TORCH_PYTHON") or sys.executable
VERSION = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True,
                         text=True).stdout.strip()

COMPILES = VERSION and not VERSION.startswith("1.")
# The compiler of torch.compile takes most of this test's time, so each network and each plant is compiled in one way only, unless all is asked.
ALL = bool(os.environ.get("TWINRUN_TEST_ALL"))


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "adapters"), "OMP_NUM_THREADS": "1"}
FORKS = forks.Forks(PYTHON, "torch", "torch._dynamo", environment=ENVIRONMENT) if VERSION else None


def run(*words):
    made = subprocess.run([FORKS.python, *map(str, words)], env=ENVIRONMENT, capture_output=True, text=True)
    if made.returncode:
        raise AssertionError(made.stderr[-2000:])
    return made.stdout


def judged(trace, *options):
    told = subprocess.run([os.environ["TWINRUN"], "diagnose", "--json", str(trace), "-o", str(trace) + ".found", *options],
                          capture_output=True, text=True)
    if told.returncode not in (0, 15, 20, 125):
        raise AssertionError(told.stderr)
    report = json.loads(told.stdout)
    if report["verdict"]["exit_code"] != told.returncode:
        raise AssertionError(f"exit status {told.returncode}, and {report['verdict']['exit_code']} in the report")
    return report


def watched(script, *args, steps=2, options=()):
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace.twin"
        try:
            run("-m", "twinrun", "watch", "-o", trace, "--steps", steps, script, *args)
        except AssertionError:
            # oneDNN has no LSTM in bfloat16 for processors without AVX-512.
            if subprocess.run([FORKS.python, script, *map(str, args)], env=ENVIRONMENT, capture_output=True).returncode:
                raise unittest.SkipTest(f"{script} itself does not run here") from None
            raise
        return judged(trace, *options)


LOOP = """
import ctypes, numpy, torch, torch.nn.functional as F
torch.manual_seed(0)
def memory(t): return numpy.frombuffer((ctypes.c_float * t.numel()).from_address(t.data_ptr()), numpy.float32)
{setup}
o = torch.optim.SGD([p for p in globals().get("m", torch.nn.ParameterList([globals().get("w")])).parameters()], 0.1)
for i in range(4):
    {step}
    o.zero_grad(); loss.backward(); o.step()
"""
FUNCTION = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {forward}
    @staticmethod
    def backward(ctx, g):
        {backward}
m = torch.nn.Linear(16, 16)
"""
OWN = "loss = Own.apply(m(torch.randn(8, 16))).pow(2).sum()"
# What the public showed: set-up, one step, the verdict, and a part of its headline or of the first open question.
WILD = {
    "a kernel that works in place": (FUNCTION.format(forward="memory(x)[:] *= 2; return x", backward="return g * 2"), OWN,
                                     "INCONCLUSIVE", "no recorded call wrote it"),
    "a kernel that is wrong": (FUNCTION.format(forward="y = torch.empty_like(x); memory(y)[:] = memory(x) ** 2 * 1.5; return y",
                                               backward="return g"), OWN, "INCONCLUSIVE", "a kernel that was launched past"),
    "a backward pass that is no derivative": (
        FUNCTION.format(forward="ctx.save_for_backward(x); return x * x.sigmoid()",
                        backward="x, = ctx.saved_tensors; s = x.sigmoid(); return g * (s + x * s)"), OWN,
        "PROGRAM", "from __main__.Own on, whose backward pass is defined at"),
    "an operator of the script's": ("""
@torch.library.custom_op("mine::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor: return torch.from_numpy(x.detach().numpy() ** 2 * 1.5)
square.register_autograd(lambda ctx, g: g)
m = torch.nn.Linear(16, 16)""", "loss = square(m(torch.randn(8, 16))).sum()", "INCONCLUSIVE", "mine.square.default was not judged"),
    "convolutions by Winograd": ("torch.backends.mkldnn.enabled = False; torch.set_num_threads(1); m = torch.nn.Conv2d(1, 8, 3, padding=1)",
                                 "loss = m(F.pad(torch.randn(16, 1, 16, 16), (6, 6, 6, 6))).pow(2).mean()", "NOISE", ""),
    "attention under autocast": ("w = torch.nn.Parameter(torch.ones(16))", """q, k, v = (torch.randn(2, 4, 8, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16): y = F.scaled_dot_product_attention(q * w, k, v.bfloat16())
    loss = y.float().pow(2).sum()""", "NOISE", ""),
    "sums in bfloat16": ("w = torch.nn.Parameter(torch.ones(8).bfloat16())", """x = torch.randn(4, 8, 16, 16).bfloat16()
    x = x.contiguous(memory_format=torch.channels_last)
    y = F.batch_norm(x, None, None, w, torch.zeros_like(w).requires_grad_(), True)
    loss = (y.contiguous() * torch.randn(4, 8, 16, 16).bfloat16()).sum()""", "NOISE", ""),
    "weights that become NaN": ("m = torch.nn.Linear(4, 2)", "loss = (m(torch.randn(8, 4)) - 10).sqrt().sum()", "PROGRAM",
                                "aten.sqrt.default returns the first NaN"),
    "buckets by the logarithm of 0": ("m = torch.nn.Embedding(8, 4)", """d = torch.arange(6)
    loss = m(torch.where(d < 2, d, (d.float().log() * 2).to(torch.long).clamp(max=7))).pow(2).sum()""", "NOISE", ""),
    "numbers that float32 rounds": ("w = torch.nn.Parameter(torch.tensor([.1, .3, .7, -.3, .9, 1.1, -.7, .2]))", """x, y = w.detach().clone(), w * 1
    loss = sum(v.sum() for v in (F.threshold(y, .3, .1), F.hardtanh(y, -.3, .7), F.hardshrink(y, .3), F.softshrink(y, .3), F.celu(y, .3),
                                 y * (x == .3), y * (x <= .7), torch.fmod(y, .3), torch.remainder(y, .3), (x // .3) * y, torch.isin(x, .3) * y,
                                 torch.logit(y.abs().clamp(.1, .9), .3), torch.bucketize(x, torch.tensor([.3, .7])) * y, F.rrelu(y, .1, .3)))""",
                                    "NOISE", ""),
    "a metric without a definition": ("m = torch.nn.Linear(4, 2)", """y = m(torch.randn(8, 4)); loss = y.pow(2).sum()
    torch.linalg.eigvalsh(y.detach().t() @ y.detach())""", "NOISE", ""),
}


@unittest.skipUnless(COMPILES, f"{PYTHON} has no current PyTorch")
class Wild(unittest.TestCase):
    def test_nobody_is_accused_and_nothing_called_noise_that_was_not_looked_at(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, (setup, step, verdict, part) in WILD.items():
                with self.subTest(name):
                    script = pathlib.Path(folder) / "script.py"
                    script.write_text(LOOP.format(setup=setup, step=step))
                    report = watched(script)
                    self.assertEqual(report["verdict"]["class"], verdict, report["verdict"]["headline"])
                    self.assertIn(part, " ".join([report["verdict"]["headline"], *(q["what"] for q in report["open"])]))


@unittest.skipUnless(VERSION, f"{PYTHON} has no PyTorch")
class Judge(unittest.TestCase):
    def test_healthy_scripts_are_not_accused(self):
        for script in sorted((HERE / "models").glob("*.py")):
            # Before 2.0, kernels keep intermediate results in bfloat16: docs/method/calls.md.
            for extra in ((), ("--autocast",)) if not VERSION.startswith("1.") else ((),):
                with self.subTest(script=script.name, extra=extra):
                    # The judge takes ten seconds for a step of this network.
                    report = watched(script, "--steps", 2, *extra, steps=1 if script.stem == "resnet18" else 2)
                    # NAdam of PyTorch 1 is not its formula.
                    old = VERSION.startswith("1.") and script.stem == "contrastive"
                    self.assertEqual([f["op"] for f in report["findings"]], ["torch.optim.NAdam"] if old else [])
                    # All but a handful are judged, and the rest is listed.
                    self.assertGreater(report["counts"]["judged"], 0.9 * report["counts"]["calls"])
                    listed = sum(row["calls"] for row in rows(report, "not_judged"))
                    self.assertEqual(report["counts"]["judged"] + listed + report["counts"]["judged_by_parts"], report["counts"]["calls"])

    @unittest.skipUnless(COMPILES, "PyTorch 1 has no such kernels for binary16 on CPUs")
    def test_numbers_that_half_precision_does_not_hold_accuse_nobody(self):
        report = watched(HERE / "half_numbers.py")
        self.assertEqual(report["findings"], [])
        self.assertEqual(report["counts"]["judged"], report["counts"]["calls"])

    @unittest.skipUnless(COMPILES, "no attention under autocast")
    def test_other_algorithms_and_casts_accuse_nobody(self):
        for name in ("nnpack", "attention", "sequences", "draws"):
            with self.subTest(name):
                report = watched(HERE / "formulas.py", name)
                self.assertEqual(report["findings"], [])
                self.assertEqual(report["counts"]["judged"], report["counts"]["calls"])

    def test_a_formula_that_holds_under_conditions_is_named_where_they_do_not_hold(self):
        found = watched(HERE / "formulas.py", "scores")["findings"]
        self.assertEqual({f["op"].rpartition(".")[0] for f in found}, {"aten._ctc_loss_backward"})
        self.assertIn("F.ctc_loss", found[0]["place"] if COMPILES else "F.ctc_loss")

    def test_a_result_without_a_correct_digit_is_told_apart(self):
        report = watched(HERE.parents[2] / "cases" / "one_element_norm" / "script.py")
        self.assertEqual(report["verdict"]["class"], "NOISE")
        found = [f for f in rows(report, "ill_conditioned") if f["op"] == "aten.native_layer_norm_backward.default"]
        self.assertTrue(found)
        self.assertEqual(float(found[0]["expected"]), 0)
        self.assertGreater(float(found[0]["error"]), 0)
        self.assertLess(float(found[0]["error"]), float(found[0]["bound"]))

    @unittest.skipUnless(COMPILES, "no torch.compile")
    def test_compiled_regions_are_not_accused(self):
        for name in ("cnn", "transformer"):
            for extra in ((), ("--autocast",)):
                with self.subTest(name=name, extra=extra):
                    if (name == "cnn") == bool(extra) and not ALL:
                        continue
                    report = watched(HERE / "compiled" / "models.py", name, *extra)
                    self.assertEqual(report["findings"], [])
                    regions = [row for row in rows(report, "operations") if row["op"] == "torch.compile.inductor"]
                    # A forward and a backward region a step: the script ran compiled, and each was judged.
                    self.assertEqual([(row["calls"], row["judged"]) for row in regions], [(4, 4)])
        report = watched(HERE / "compiled" / "models.py", "optimizer")
        self.assertEqual((report["findings"], report["counts"]["steps"]), ([], 2))

    @unittest.skipUnless(COMPILES, "no torch.compile")
    def test_a_count_that_the_radii_leave_open_accuses_nobody(self):
        self.assertEqual(watched(HERE / "compiled" / "models.py", "angles")["findings"], [])

    @unittest.skipUnless(COMPILES, "no torch.compile")
    def test_a_compiled_minimum_of_bytes_is_named(self):
        script = HERE / "compiled" / "models.py"
        wrong = float(run(script, "bytes", "--steps", 1).split()[-1]) > 1e-3    # in this version, on this processor
        report = watched(script, "bytes")
        self.assertEqual(report["verdict"]["class"], "ENGINE_BUG" if wrong else "NOISE")
        if wrong:
            self.assertIn("aten.amin.default", str(report["findings"][0]["evidence"]))

    @unittest.skipUnless(COMPILES, "no torch.compile")
    def test_planted_regions_are_named(self):
        for plant, phase in (("element", "forward"), ("weight", "forward"), ("bfloat16", "backward")):
            for name in ("cnn", "transformer") if ALL else ("cnn",):    # which is compiled once
                with self.subTest(plant=plant, name=name):
                    report = watched(HERE / "compiled" / "models.py", name, "--plant", plant)
                    self.assertEqual(report["verdict"]["class"], "ENGINE_BUG")
                    first = report["findings"][0]
                    self.assertEqual((first["op"], first["phase"], first["step"]), ("torch.compile.inductor", phase, 0))
                    self.assertIn("loss = F.cross_entropy(model(x), y)", first["place"])

    def test_one_changed_element_is_found(self):
        with tempfile.TemporaryDirectory() as name:
            run(HERE / "changed.py", name)
            report = judged(pathlib.Path(name) / "healthy.twin")
            self.assertEqual((report["findings"], rows(report, "not_judged")), ([], []))
            traces = [t for t in pathlib.Path(name).glob("*.twin") if t.stem != "healthy"]
            self.assertGreater(len(traces), 20)
            for trace in traces:
                with self.subTest(trace.stem):
                    found = judged(trace)["findings"]
                    self.assertEqual([(f["op"].split(".")[1], f["outside"]) for f in found], [(trace.stem, 1)])

    def test_planted_kernels_are_named(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            run(HERE / "planted.py", folder)
            for trace in sorted(folder.glob("healthy-*.twin")):
                with self.subTest(trace.name):
                    report = judged(trace)
                    self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []))
            plants = json.loads((folder / "expected.json").read_text())
            self.assertGreaterEqual(len(plants), 30)
            for plant, expected in plants.items():
                with self.subTest(plant):
                    self.check(judged(folder / f"{plant}.twin"), expected)

    @unittest.skipUnless(COMPILES, "these kernels are replaced in PyTorch 2")
    def test_what_a_gpu_may_round_is_allowed_to_a_gpu_alone(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            run(HERE / "gpu.py", folder)
            for kernel, op in json.loads((folder / "expected.json").read_text()).items():
                with self.subTest(kernel):
                    on_gpu, on_cpu = (judged(folder / f"{kernel}-{device}.twin") for device in ("gpu", "cpu"))
                    self.assertEqual((on_gpu["verdict"]["class"], on_gpu["findings"]), ("NOISE", []))
                    self.assertGreater(on_gpu["counts"]["judged"], 100)
                    self.assertEqual({f["op"] for f in on_cpu["findings"] if not f["composed"]}, {op})
            wrong = judged(folder / "wrong-gpu.twin")
            self.assertEqual({f["op"] for f in wrong["findings"]}, {"aten.mm.default"})

    def check(self, report, expected):
        """Compares the findings of one plant with its row of expected.json."""
        self.assertEqual(report["verdict"]["class"], "ENGINE_BUG")
        findings = [f for f in report["findings"] if not f["composed"]]
        first = findings[0]
        self.assertEqual((first["op"], first["step"]), (expected["op"], expected["step"]), first)
        line = first["place"].split("\n")[0]
        self.assertIn("planted.py:", line)
        self.assertIn(expected["line"], line)
        if expected["outside"] is not None:
            self.assertEqual(first["outside"], expected["outside"], first)
        # Other operations got wrong inputs and computed rightly with them, so none is accused.
        self.assertEqual({f["op"] for f in findings}, {expected["op"]})
        if expected["once"]:
            self.assertEqual(len({f["call"] for f in findings}), 1)
        # A function that is composed of calls is recorded after them, with the same place.
        for whole in (f for f in report["findings"] if f["composed"]):
            self.assertTrue(any((f["step"], f["place"]) == (whole["step"], whole["place"]) and f["call"] < whole["call"]
                                for f in findings), whole)


if __name__ == "__main__":
    if not VERSION:
        print(f"SKIPPED: {PYTHON} has no PyTorch")
        sys.exit(77)
    unittest.main()

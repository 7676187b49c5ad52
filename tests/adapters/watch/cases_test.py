"""Bugs of real versions of PyTorch, named by `twinrun watch` and `twinrun diagnose` in scripts as users write them (cases/ of this
repository), each with a healthy control. Environment: TWINRUN, the binary; TWINRUN_TORCH17_PYTHON and TWINRUN_TORCH110_PYTHON, interpreters with PyTorch 1.7.1 and
1.10.0; TWINRUN_TORCH_PYTHON, one with a newer PyTorch (default: this one)."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import judge_test
from judge_test import watched

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE.parents[2] / "cases"
OLD, MIDDLE = (os.environ.get(f"TWINRUN_TORCH{name}_PYTHON") for name in ("17", "110"))
NEW = os.environ.get("TWINRUN_TORCH_PYTHON") or sys.executable

# Run under the watch: prints the parameters' digests after the steps, and whether anything that was replaced is still there.
OBSERVED = """
import contextlib, hashlib, sys, threading, torch, torch.nn.functional as F
import twinrun
owners = (torch, torch.Tensor, torch._C._nn, torch._VF, F, torch.jit)
before = [dict(vars(o)) for o in owners]
found = []
def train():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2),
                                torch.nn.Dropout(0.3), torch.nn.Flatten(), torch.nn.Linear(72, 5), torch.nn.LayerNorm(5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3)
    for _ in range(2):
        x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x) * 2 - 1, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
plain = train()
with twinrun.watch(sys.argv[1], steps=2) as w:
    other = threading.Thread(target=lambda: found.append((torch.ones(3) + 1).sum().item()))
    other.start()
    other.join()
    compiled = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    watched = train()
assert found == [6.0], found
assert w.recorder.error is None, w.recorder.error
assert plain == watched, "watching changed the parameters"
for o, was in zip(owners, before):
    now = vars(o)
    changed = [k for k in set(was) | set(now) if was.get(k) is not now.get(k) and not k.startswith("__abstract")]
    assert not changed, (o, changed)
assert train() == plain
"""


def case(name, python):
    return unittest.skipUnless(python, f"{name} names no interpreter with the affected PyTorch")


def judged(python, script, *args):
    saved, judge_test.PYTHON = judge_test.PYTHON, python
    try:
        path = CASES / script
        return watched(path / "script.py" if path.is_dir() else path, *args)
    finally:
        judge_test.PYTHON = saved


def line_of(script, text):
    lines = (CASES / script / "script.py").read_text().splitlines()
    return next(f"script.py:{i} " for i, line in enumerate(lines, 1) if text in line)


class Cases(unittest.TestCase):
    def named(self, report, op, script, text):
        self.assertEqual(report["verdict"]["class"], "ENGINE_BUG")
        self.assertEqual({f["op"] for f in report["findings"]}, {op})
        self.assertEqual({f["step"] for f in report["findings"]}, {0, 1})
        for finding in report["findings"]:
            self.assertIn(line_of(script, text), finding["place"])

    def healthy(self, report):
        self.assertEqual(report["findings"], [])
        self.assertGreater(report["counts"]["judged"], 0.8 * report["counts"]["calls"])

    def observed(self, python):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([python, "-W", "ignore", "-c", OBSERVED, os.path.join(folder, "trace.twin")],
                                  env={**os.environ, "PYTHONPATH": str(CASES.parent / "adapters")}, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])

    @case("TWINRUN_TORCH17_PYTHON", OLD)
    def test_depthwise_weight_gradient_of_1_7(self):
        for groups in (24, 48, 96, 144):
            with self.subTest(groups=groups):
                report = judged(OLD, "depthwise_stride", str(groups))
                self.named(report, "aten.convolution_backward.default", "depthwise_stride", "self.depthwise(images)")
                for finding in report["findings"]:
                    self.assertEqual((finding["result"], finding["phase"]), ("result 2 of 3", "backward"))
        for groups in (23, 25):
            with self.subTest(groups=groups):
                self.healthy(judged(OLD, "depthwise_stride", str(groups)))

    @case("TWINRUN_TORCH110_PYTHON", MIDDLE)
    def test_depthwise_is_healthy_in_1_10(self):
        self.healthy(judged(MIDDLE, "depthwise_stride", "24"))

    @case("TWINRUN_TORCH110_PYTHON", MIDDLE)
    def test_label_smoothing_of_1_10(self):
        self.named(judged(MIDDLE, "label_smoothing", "4"), "torch.nn.functional.cross_entropy", "label_smoothing", "loss = criterion")
        self.healthy(judged(MIDDLE, "label_smoothing", "0"))

    @case("TWINRUN_TORCH110_PYTHON", MIDDLE)
    @unittest.skipUnless(judge_test.VERSION, f"{NEW} has no PyTorch")
    def test_label_smoothing_is_healthy_later(self):
        self.healthy(judged(NEW, "label_smoothing", "4"))

    @case("TWINRUN_TORCH110_PYTHON", MIDDLE)
    def test_healthy_scripts_are_not_accused(self):
        newer = {"video.py"}    # uses Tensor.scatter_reduce
        for script in sorted(s for s in (HERE / "models").glob("*.py") if s.name not in newer):
            with self.subTest(script=script.name):
                self.healthy(judged(MIDDLE, script, "--steps", "2"))

    def test_watching_changes_nothing(self):
        for python in filter(None, (OLD, MIDDLE)):
            with self.subTest(python):
                self.observed(python)
        if not OLD and not MIDDLE:
            self.skipTest("neither TWINRUN_TORCH17_PYTHON nor TWINRUN_TORCH110_PYTHON names an interpreter")


if __name__ == "__main__":
    if not OLD and not MIDDLE:
        print("SKIPPED: TWINRUN_TORCH17_PYTHON and TWINRUN_TORCH110_PYTHON name no interpreters with PyTorch 1.7.1 and 1.10.0")
        sys.exit(77)
    unittest.main()

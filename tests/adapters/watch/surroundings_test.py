"""Scripts that do what recorders do not expect, to threads, signals, folders and streams: they run as without recording."""
import os
import pathlib
import re
import subprocess
import sys

from reader import Trace
from watch_test import ROOT, Case, read_of_an_evaluation

TRAINING = """
import torch
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
o = torch.optim.SGD(m.parameters(), lr=0.1)
def step():
    o.zero_grad(); m(torch.randn(3, 4)).pow(2).mean().backward(); o.step()
"""


class Surroundings(Case):
    def both(self, text, *options, args=()):
        """Returns a script's results as `python SCRIPT` and as `watch` run it: they print the same, and end alike."""
        done = self.script(text, *options, args=args)
        plain = subprocess.run([sys.executable, "-W", "ignore", os.path.join(self.folder, "script.py"), *args], capture_output=True, text=True,
                               cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout), (plain.returncode, plain.stdout), done.stderr + plain.stderr)
        return done

    def test_what_a_script_sees_of_itself(self):
        done = self.both("""
import atexit, os, pickle, sys
print(os.path.isabs(__file__), __name__, __package__, __spec__, "torch" in sys.modules, sys.argv.pop(0) and sys.argv)
os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(torch.get_num_threads())
class Mine: pass
atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Mine()))).__name__))
sys.argv.clear()
""" + TRAINING + "step(), step()\n", "--steps", "2", "--run-on", args=("--lr", "1"))
        self.assertEqual(Trace(self.path).end["steps"], 2)
        self.assertNotIn("profiles or traces", done.stderr)

    def test_exceptions_of_handlers_of_signals_are_the_scripts(self):
        done = self.both(TRAINING + """
import signal
class Timeout(Exception): pass
def late(number, frame): raise Timeout
signal.signal(signal.SIGALRM, late)
for i in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        while True: step()
    except Timeout: pass
print("all came")
""", "--steps", "100000", "--run-on")
        self.assertIn("all came", done.stdout)

    def test_a_traceback_has_the_frames_of_the_script(self):
        done = self.both(TRAINING + """
step(), step()
try: torch.mm(torch.ones(2, 3), torch.ones(2, 3))
except RuntimeError as e: raise KeyError("other") from e
""", "--steps", "2", "--run-on")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(re.findall(r'File ".*/(.*)", line (\d+)', done.stderr), [("script.py", "10"), ("script.py", "11")])

    def test_what_a_script_prints_of_its_frames(self):
        """Stacks inside of calls, tracebacks that it handles, and the way through modules."""
        self.both("""
import inspect, sys, torch, traceback
import torch.nn.functional as F
class Block(torch.nn.Module):
    def forward(self, x):
        traceback.print_stack(file=sys.stdout)
        print([frame.function for frame in inspect.stack()])
        return F.mse_loss(x, torch.ones(4, 5))
m = torch.nn.Sequential(torch.nn.Linear(3, 4), Block())
o = torch.optim.SGD(m.parameters(), lr=0.1)
class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): traceback.print_stack(file=sys.stdout); return g
for i in range(2):
    o.zero_grad(); Same.apply(m[0](torch.ones(2, 3))).sum().backward(); o.step()
    try: m(torch.ones(3, 3))
    except RuntimeError: traceback.print_exc(file=sys.stdout)
""", "--steps", "2", "--run-on")

    def test_nothing_of_ours_is_around_a_script(self):
        """Neither frames nor variables, and warnings name its lines, for which its filters hold."""
        done = self.both(TRAINING + """
import os, sys, traceback, warnings
import torch.nn.functional as F
print(sys._getframe().f_back, len(traceback.extract_stack()), sorted(sys.modules["__main__"].__dict__)[:8], sys.excepthook is sys.__excepthook__)
print(sorted(name for name in os.environ if name.startswith("TWINRUN_W")), [entry for entry in sys.path if "/site" in entry[-6:]])
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    def wide():
        return F.mse_loss(torch.ones(8), torch.ones(8, 1))
    for i in range(2):
        step(), wide(), torch.add(torch.ones(4), 1, out=torch.empty(3))
    print([(os.path.basename(w.filename), w.lineno) for w in found])
warnings.filterwarnings("error", module="__main__")
try: wide()
except UserWarning as e: print(type(e).__name__)
def deep(): return deep()
sys.setrecursionlimit(120)
try: deep()
except RecursionError as e: print(len(traceback.extract_tb(e.__traceback__)))
""", "--steps", "3", "--run-on")
        self.assertEqual(done.stdout.count("UserWarning"), 1)

    def test_a_script_that_profiles_itself_is_told(self):
        done = self.both("import sys\n" + TRAINING + """
with torch.autograd.profiler.profile(): step()
sys.setprofile(lambda *event: None)
step(), step()
sys.setprofile(None)
""", "--steps", "3", "--run-on")
        self.assertEqual(done.stderr.count("profiles or traces its own calls"), 1, done.stderr)

    def test_what_a_script_replaces_is_not_ours(self):
        self.both(TRAINING + """
import json, os
def no(*given, **named): raise RuntimeError("none of yours")
json.dumps = os.write = os.replace = os.unlink = no
for i in range(3): step()
print("end")
""", "--steps", "2", "--run-on")
        self.assertEqual(Trace(self.path).end["steps"], 2)

    def test_another_program_in_its_place(self):
        done = self.both("import os, sys\nif len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, 'again'])\nprint(sys.argv[1:])\n")
        self.assertIn("goes on as another program", done.stderr)

    def test_functions_that_a_script_replaces_run_once(self):
        self.both(TRAINING + """
import torch.nn.functional as F
plain, relu, strides = F.mse_loss, torch.Tensor.relu, torch.Tensor.stride
def scaled(*given, **named): print("loss"); return 0.5 * plain(*given, **named)
def leaky(t): print("relu"); return relu(t) + 0.1 * t
def stride(t, *given): print("stride"); return strides(t, *given)
F.mse_loss, torch.Tensor.relu, torch.Tensor.stride = scaled, leaky, stride
for i in range(3):
    o.zero_grad(); loss = F.mse_loss(m(torch.ones(3, 4)).relu(), torch.ones(3, 2)); loss.backward(); o.step()
    print(loss.item().hex())
""", "--steps", "3", "--run-on")
        self.assertEqual(Trace(self.path).end["steps"], 3)

    def test_an_optimizer_that_evaluates_its_closure_makes_one_step(self):
        self.both(TRAINING + """
o = torch.optim.LBFGS(m.parameters(), max_iter=5, line_search_fn="strong_wolfe")
x = torch.ones(3, 4)
def closure():
    o.zero_grad(); loss = m(x).pow(2).mean(); loss.backward(); return loss
for i in range(3): print(o.step(closure).item().hex())
""", "--steps", "2", "--run-on")
        trace = Trace(self.path)
        self.assertEqual(trace.end["steps"], 2)
        self.assertGreater(sum(c.name == "aten.mean.default" and c.step == 0 for c in trace.calls), 2)

    def test_what_is_lazy_is_recorded_when_it_has_values(self):
        self.both("""
import torch
m = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 1))
for i in range(2):
    x = torch.ones(2, 4)
    if not i: m(x); o = torch.optim.SGD(m.parameters(), 0.1)
    o.zero_grad(); m(x).sum().backward(); o.step()
""", "--steps", "2", "--run-on")
        self.assertEqual(Trace(self.path).end["left_out"]["error"], 0)

    def test_a_script_that_ends_before_it_imports_pytorch(self):
        done = self.both("import sys; sys.exit(3)")
        self.assertIn("did not import torch", done.stderr)

    def test_folders_and_descriptors_that_go(self):
        os.mkdir(os.path.join(self.folder, "gone"))
        self.both(TRAINING + """
import os
step()
os.makedirs("gone", exist_ok=True); os.chdir("gone"); os.rmdir(os.getcwd())
os.path.abspath = os.path.relpath = None
step()
""", "--steps", "2", "--run-on")
        end = Trace(self.path).end
        self.assertEqual((end["steps"], end["left_out"]["error"]), (2, 0))

    def test_steps_of_other_threads_are_not_taken_for_recorded_ones(self):
        done = self.both(TRAINING + """
import threading
t = threading.Thread(target=lambda: [step() for _ in range(6)])
t.start(); t.join(); print("done")
""", "--steps", "2")
        self.assertIn("6 steps of an optimizer ran in other threads", done.stderr)
        end = Trace(self.path).end
        self.assertEqual((end["steps"], end["steps_elsewhere"]), (0, 6))

    def test_an_evaluation_computes_the_same_and_may_be_printed(self):
        self.both("""
import torch
torch.manual_seed(0)
m = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
o = torch.optim.SGD(m.parameters(), lr=0.1)
padded = torch.tensor([[False, False, True], [False, True, True]])
for i in range(3):
    x = torch.randn(2, 3, 8)
    o.zero_grad(); loss = m(x).pow(2).mean(); loss.backward(); o.step()
    m.eval()
    with torch.no_grad(): y = m(x, src_key_padding_mask=padded)
    print(loss.item().hex(), y.mean().item().hex())
    m.train()
""", "--steps", "3", "--run-on")
        trace = Trace(self.path)
        self.assertGreater(trace.end["skipped_evaluation"], 0)
        self.assertFalse(read_of_an_evaluation(trace))

    def test_a_module_is_run_by_its_name(self):
        os.mkdir(os.path.join(self.folder, "pkg"))
        pathlib.Path(self.folder, "pkg", "__init__.py").write_text("")
        pathlib.Path(self.folder, "pkg", "other.py").write_text(TRAINING)
        pathlib.Path(self.folder, "pkg", "train.py").write_text("import sys\nfrom .other import step\nprint(__package__, sys.argv[1:])\nstep(), step()\n")
        done = self.run_script("pkg.train", "--steps", "2", "-m", args=("--lr", "1"))
        self.assertEqual((done.returncode, done.stdout), (0, "pkg ['--lr', '1']\n"), done.stderr)
        self.assertEqual(Trace(self.path).end["steps"], 2)
        self.assertIn("there is no module 'nothing'", self.run_script("nothing", "-m").stderr)

    def test_a_closed_standard_output_is_not_taken_for_the_trace(self):
        path = os.path.join(self.folder, "script.py")
        pathlib.Path(path).write_text(TRAINING + """
import os
try: os.write(1, b"not for the trace")
except OSError: pass
step(), step()
""")
        done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "twinrun", "watch", "-o", self.path, "--steps", "2", path],
                              capture_output=True, cwd=self.folder, env={**os.environ, "PYTHONPATH": str(ROOT / "adapters")})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(Trace(self.path).end["steps"], 2)

"""Recording as users run: what a step is in loops and wrappers of all kinds, memory that no recorded call wrote, ranks, and scripts that
are killed. The traces are read by reader.py."""
import contextlib
import ctypes
import io
import os
import pathlib
import signal
import subprocess
import sys
import types
import unittest
from unittest import mock

import numpy as np

from reader import Trace, tensors
from watch_test import OPTIMIZER, ROOT, Case, read_of_an_evaluation

try:
    import torch
    import torch.nn.functional as F
    from torch import nn

    import twinrun
    from twinrun import encode
except ImportError:
    torch = None

CHANGED = 4
NODES = torch is not None and hasattr(torch._C, "_current_autograd_node")


def raw(t):
    """A tensor's memory, as a launched kernel has it."""
    return np.frombuffer((ctypes.c_float * t.numel()).from_address(t.data_ptr()), np.float32)


def names(trace, step):
    return [c.name.split(".")[1] for c in trace.calls if c.step == step and c.name.startswith("aten")]


class Memory(Case):
    """What changes memory without a call."""

    def test_a_kernel_that_works_in_place(self):
        x, seen = torch.ones(8, 8), []

        def run():
            y = x + 1
            memory = raw(y)
            memory[:] = 7
            seen.append(y * y)
            z = y - 1
            raw(z)[5] = 3
            F.layer_norm(z, (8,))
            return z + y

        trace = self.record(run)
        mul = self.named(trace, "aten.mul.Tensor")[0]
        self.assertEqual((trace.array(mul.args[0]).max(), [t.flags & CHANGED for t in mul.args]), (7, [CHANGED, 0]))
        np.testing.assert_array_equal(trace.array(mul.out), seen[0].numpy())
        norm, inner = self.named(trace, "torch.nn.functional.layer_norm")[0], self.named(trace, "aten.native_layer_norm.default")[0]
        for t in norm.kwargs["input"], inner.args[0]:
            self.assertEqual((trace.array(t).reshape(-1)[5], t.flags & CHANGED), (3, CHANGED))
        last = self.named(trace, "aten.add.Tensor")[-1]
        self.assertFalse(any(t.flags & CHANGED for t in last.args[:2]), "the change was told already")
        self.assertFalse(any(t.flags & CHANGED for c in trace.calls for t in tensors(c.out)))

    def test_large_memory_is_compared_too(self):
        x = torch.zeros(1 << 19)
        trace = self.record(lambda: (x + 1, raw(x).__setitem__(1 << 18, 1), x + 2, x + 3))
        self.assertEqual([bool(c.args[0].flags & CHANGED) for c in self.named(trace, "aten.add.Tensor")], [False, True, False])

    def test_a_registered_operation_that_writes_more_than_it_says(self):
        if not hasattr(torch.library, "custom_op"):
            self.skipTest("no custom_op")
        library = torch.library.Library("twinrun_loops", "DEF")
        library.define("touch(Tensor x) -> Tensor")
        library.impl("touch", lambda x: (raw(x).__setitem__(0, 9), x.view_as(x))[1], "CPU")
        x = torch.zeros(4)
        trace = self.record(lambda: torch.ops.twinrun_loops.touch(x + 0))
        call = self.named(trace, "twinrun_loops.touch.default")[0]
        self.assertEqual((trace.array(call.args[0])[0], trace.array(call.out)[0]), (0, 9))

    def test_memory_that_is_shared_while_it_is_watched(self):
        m = nn.Linear(4, 4)

        def run():
            m(torch.ones(1, 4))
            m.share_memory()
            m(torch.ones(1, 4))
            child = os.fork()
            if not child:
                raw(m.weight)[:] += 1
                os._exit(0)
            os.waitpid(child, 0)
            return m(torch.ones(1, 4))

        trace = self.record(run)
        weights = [t for c in self.named(trace, "aten.t.default") for t in c.args]
        np.testing.assert_array_equal(trace.array(weights[-1]), m.weight.detach().numpy())
        self.assertEqual([bool(t.flags & CHANGED) for t in weights], [False, False, True])

    def test_sums_that_tell_a_devices_memory(self):
        x = torch.randn(3000)
        before = encode._digest(encode._storage_of(x), x, 0, 12000)
        self.assertLess(before.numel(), 12000)
        for change in (lambda: raw(x).__setitem__(5, 1), lambda: raw(x).__setitem__(2999, 1),
                       lambda: raw(x).__setitem__(slice(0, 2), raw(x)[[1, 0]]), lambda: raw(x).__setitem__(slice(0, 3000), raw(x)[::-1].copy())):
            after = encode._digest(encode._storage_of(x), x, 0, 12000)
            self.assertTrue(torch.equal(before, after))
            change()
            before = encode._digest(encode._storage_of(x), x, 0, 12000)
            self.assertFalse(torch.equal(before, after))

    def test_launches_of_triton(self):
        """A stand-in with the hooks of Triton's releases; this machine cannot launch its kernels."""
        class Chain(list):
            add = list.append

            def __call__(self, metadata):
                for each in self:
                    each(metadata)

        said = []
        new = types.ModuleType("triton.knobs")
        new.runtime = types.SimpleNamespace(launch_enter_hook=Chain())
        old = types.ModuleType("triton.compiler")
        old.CompiledKernel = type("CompiledKernel", (), {"launch_enter_hook": staticmethod(lambda *_: said.append(1))})
        for modules, owner in (({"triton.knobs": new}, new.runtime), ({"triton.compiler": old}, old.CompiledKernel)):
            with mock.patch.dict(sys.modules, {"triton": types.ModuleType("triton"), **modules}):
                for name in {"triton.knobs", "triton.compiler"} - set(modules):
                    sys.modules.pop(name, None)
                before = owner.launch_enter_hook

                def run():
                    torch.ones(2)
                    owner.launch_enter_hook(types.SimpleNamespace(get=lambda: {"name": "rotary"}))
                    torch.ones(2)

                trace = self.record(run)
                self.assertEqual([c.name for c in trace.calls], ["aten.ones.default", "triton.rotary", "aten.ones.default"])
                self.assertRegex(trace.calls[1].place, r"loops_test.py:\d+ in run: owner.launch_enter_hook")
                self.assertEqual((owner.launch_enter_hook, list(new.runtime.launch_enter_hook)), (before, []))
        self.assertEqual(said, [1])


class Steps(Case):
    """Each step holds a forward pass, a backward pass and an update."""

    def loop(self, wrap=lambda o: o, count=4, model=None, others=(), body=None, **options):
        torch.manual_seed(0)
        model = model or nn.Linear(3, 2)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
        with twinrun.watch(self.path, **options):
            for i in range(count):
                if body:
                    body(i, model, optimizer)
                    continue
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
        return Trace(self.path)

    def whole(self, trace, steps, forward=1, updates=1):
        self.assertEqual((trace.end["steps"], trace.steps), (steps, steps))
        for step in range(steps):
            found = names(trace, step)
            order = [n for n in found if n in ("addmm", "mse_loss", "pow", "mean") or "backward" in n or n.startswith(("_foreach_add_", "add_", "_fused"))]
            self.assertEqual(found.count("addmm"), forward, (step, found))
            self.assertRegex(order[-1], "add_|fused", f"step {step} does not end with its update: {found}")
            calls = [c for c in trace.calls if c.step == step]
            self.assertTrue((not NODES or any(c.node for c in calls)) and any(c.flags & OPTIMIZER for c in calls))

    def test_a_wrapper_is_the_optimizer_that_it_wraps(self):
        class Wrapper(torch.optim.Optimizer):    # as accelerate's: without the constructor of its base, so without hooks
            def __init__(self, optimizer):
                self.optimizer = optimizer

            param_groups = property(lambda self: self.optimizer.param_groups)

            def zero_grad(self):
                self.optimizer.zero_grad()

            def step(self):
                self.optimizer.step()

        class Hooked(torch.optim.Optimizer):     # as Lookahead or a moving average: it has hooks of its own
            def __init__(self, optimizer):
                super().__init__([p for g in optimizer.param_groups for p in g["params"]], {})
                self.optimizer = optimizer

            def step(self):
                self.optimizer.step()

        class Child(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        sibling = torch.optim.SGD([nn.Parameter(torch.ones(1, requires_grad=False), requires_grad=False)], lr=1)    # of frozen weights
        for wrap in (Wrapper, Hooked, lambda o: Child(o.param_groups, lr=0.1)):
            with self.subTest(wrap):
                self.whole(self.loop(wrap, steps=1, first=1), 1)
                self.whole(self.loop(wrap, steps=2), 2)
        del sibling

    def test_an_optimizer_that_never_steps(self):
        unused = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)
        trace = self.loop(steps=2)
        self.assertEqual([names(trace, s).count("addmm") for s in range(2)], [2, 1])    # only the second step tells that it never will
        self.whole(self.loop(steps=2, first=1), 2)
        del unused

    def test_gradient_accumulation_and_a_schedule(self):
        def body(i, model, optimizer):
            if i == 0:
                self.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            for _ in range(3):
                model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            self.schedule.step()
            optimizer.zero_grad()

        self.whole(self.loop(body=body, steps=2), 2, forward=3)

    def test_a_step_that_a_scaler_skips(self):
        if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
            self.skipTest("no scaler on the CPU")
        scaler = torch.amp.GradScaler("cpu")

        def body(i, model, optimizer):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((4, 3), torch.inf if i == 1 else 1.0)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

        trace = self.loop(body=body, steps=2)
        self.assertEqual([names(trace, s).count("addmm") for s in range(2)], [1, 2])    # what it skips belongs to the next update

    def test_a_closure_is_no_call_of_the_optimizer(self):
        def body(i, model, optimizer):
            def closure():
                optimizer.zero_grad()
                loss = model(torch.ones(4, 3)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)

        trace = self.loop(body=body, steps=2)
        self.whole(trace, 2)
        self.assertFalse(any(c.flags & OPTIMIZER for c in trace.calls if c.node or c.name == "aten.addmm.default"))

    def test_an_update_that_raises(self):
        model = nn.Linear(3, 2)

        def body(i, model, optimizer):
            with contextlib.suppress(ZeroDivisionError):
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step(lambda: 1 / (i - 1) if i < 2 else 0)

        self.assertEqual(self.loop(body=body, model=model, steps=9, count=4).end["steps"], 3)

    # Loops without an optimizer

    def manual(self, update, count=4, micro=1, **options):
        torch.manual_seed(0)
        w = torch.randn(3, 2, requires_grad=True)
        with twinrun.watch(self.path, **options):
            for _ in range(count):
                for _ in range(micro):
                    F.mse_loss(torch.randn(4, 3) @ w, torch.zeros(4, 2)).backward()
                w = update(w)
        return Trace(self.path)

    @unittest.skipUnless(NODES, "this version does not tell that a backward pass runs")
    def test_updates_by_hand(self):
        def data(w):
            w.data -= 0.1 * w.grad
            w.grad = None
            return w

        def in_place(w):
            with torch.no_grad():
                w -= 0.1 * w.grad
                w.grad.zero_()
            return w

        def foreach(w):
            with torch.no_grad():
                torch._foreach_add_([w], [w.grad], alpha=-0.1)
            w.grad = None
            return w

        def new(w):
            return (w - 0.1 * w.grad).detach().requires_grad_()

        for update, last in ((data, "sub_"), (in_place, "zero_"), (foreach, "_foreach_add_"), (new, "detach")):
            for options, steps in (({"steps": 2}, 2), ({"steps": 2, "first": 1}, 2), ({"steps": 9}, 4), ({"steps": 2, "micro": 3}, 2)):
                with self.subTest(update.__name__, **options):
                    trace = self.manual(update, **options)
                    self.assertEqual((trace.end["steps"], trace.steps), (steps, steps))
                    for step in range(steps):
                        found = names(trace, step)
                        self.assertEqual(found.count("mse_loss"), options.get("micro", 1), (step, found))
                        self.assertLess(found.index("mse_loss_backward"), found.index(last), found)

    def test_gradients_of_torch_func(self):
        if not NODES or not hasattr(torch, "func"):
            self.skipTest("no torch.func")
        w = {"w": torch.randn(3, 2)}
        for options, steps in (({"steps": 2}, 2), ({"steps": 2, "first": 1}, 2)):
            with twinrun.watch(self.path, **options):
                for _ in range(4):
                    x = torch.randn(4, 3)
                    gradients = torch.func.grad(lambda p: F.mse_loss(x @ p["w"], torch.zeros(4, 2)))(w)
                    w = {k: v - 0.1 * gradients[k] for k, v in w.items()}
            trace = Trace(self.path)
            self.assertEqual(trace.end["steps"], steps)
            for step in range(steps):
                found = names(trace, step)
                self.assertEqual((found.count("mse_loss_backward"), "sub" in found), (1, True), found)

    @unittest.skipUnless(NODES, "this version does not tell that a backward pass runs")
    def test_loops_whose_optimizer_never_steps(self):
        """It sets the learning rate, or another function has taken the place of its step. The first two updates count as one step."""
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with twinrun.watch(self.path, steps=3):
            for _ in range(4):
                model(torch.ones(2, 3)).sum().backward()
                with torch.no_grad():
                    for p in model.parameters():
                        p -= optimizer.param_groups[0]["lr"] * p.grad
                        p.grad = None
        self.assertEqual(Trace(self.path).end["steps"], 3)

    # Evaluation

    def test_evaluation_between_steps_is_left_out(self):
        def body(i, model, optimizer):
            model.train()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                outputs = model(torch.randn(9, 3))
                F.mse_loss(outputs, torch.zeros(9, 2)).item()
                nn.CrossEntropyLoss()(model(torch.randn(9, 3)), torch.zeros(9, dtype=torch.long)).item()
            outputs.repeat(2, 1)

        trace = self.loop(body=body, steps=2)
        self.whole(trace, 2)
        self.assertFalse([c.name for c in trace.calls if "loss" in c.name or "entropy" in c.name or "repeat" in c.name])
        self.assertGreaterEqual(trace.end["skipped_evaluation"], 8)
        self.assertEqual(read_of_an_evaluation(trace), [])

    def test_a_target_network_is_a_part_of_the_step(self):
        target = nn.Linear(3, 2).eval()

        def body(i, model, optimizer):
            x = torch.randn(4, 3)
            with torch.no_grad():
                goal = target(x)
            F.mse_loss(model(x), goal).backward()
            optimizer.step()
            optimizer.zero_grad()

        trace = self.loop(body=body, steps=2)
        self.whole(trace, 2, forward=2)
        self.assertEqual(trace.end["skipped_evaluation"], 0)

    def test_what_evaluation_computed_and_the_step_reads_is_told(self):
        def body(i, model, optimizer):    # pseudo labels of the trained model itself
            x = torch.randn(4, 3)
            with torch.no_grad():
                goal = model.eval()(x)
            F.mse_loss(model.train()(x), goal).backward()
            optimizer.step()
            optimizer.zero_grad()

        trace = self.loop(body=body, steps=2)
        self.assertEqual((len(read_of_an_evaluation(trace)), trace.end["steps"]), (4, 2))    # by the loss and its gradient

    def test_what_evaluation_computed_without_weights_is_an_input(self):
        kept = []

        class Masked(nn.Linear):
            def forward(self, x):
                kept[:] = kept or [torch.ones(2).cumsum(0)]
                return super().forward(x) * kept[0]

        def body(i, model, optimizer):
            with torch.no_grad():
                model.eval()(torch.randn(4, 3))
            model.train()(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        trace = self.loop(body=body, steps=2, model=Masked(3, 2))
        self.assertGreater(trace.end["skipped_evaluation"], 0)
        self.assertEqual((read_of_an_evaluation(trace), trace.end["steps"]), ([], 2))

    # Functions of the script

    @unittest.skipUnless(NODES, "this version does not tell which node runs")
    def test_functions_of_the_script(self):
        class Swish(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * torch.sigmoid(x)

            @staticmethod
            def backward(ctx, g):
                s = torch.sigmoid(ctx.saved_tensors[0])
                return g * s

        class Straight(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()

            @staticmethod
            def backward(ctx, g):
                return g

        x = torch.randn(4, requires_grad=True)
        trace = self.record(lambda: Straight.apply(Swish.apply(x) + Swish.apply(x * 2)).sum().backward())
        swish, straight = (f"{f.__module__}.{f.__qualname__}" for f in (Swish, Straight))
        self.assertIn(f"{swish}Backward", {c.node for c in trace.calls})
        self.assertIn("MulBackward0", {c.node for c in trace.calls})
        found = {f["name"]: f for f in trace.end["functions"]}
        self.assertEqual({name: f["calls"] for name, f in found.items()}, {swish: 2, straight: 1})
        self.assertRegex(found[straight]["place"], r"loops_test.py:\d+ in backward: def backward\(ctx, g\):")
        loss = self.record(lambda: Straight.apply(x.sum()).backward())
        self.assertEqual([f["calls"] for f in loss.end["functions"]], [1])


TRAINING = """
import os, signal, sys, torch
torch.set_num_threads(1)
def train(rank, steps=4, kill=None):
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(steps):
        loss = model(torch.randn(4, 3)).square().mean()
        if i == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


class Scripts(Case):
    def traces(self):
        return sorted(p.name for p in pathlib.Path(self.folder).glob("*.twin*"))

    def test_a_script_that_is_killed(self):
        done = self.script(TRAINING + "train(0, kill=2)")
        self.assertEqual(done.returncode, -signal.SIGKILL)
        trace = Trace(self.path, cut=True)
        self.assertEqual((trace.steps, {c.step for c in trace.calls}), (2, {0, 1}))
        before = pathlib.Path(self.path).read_bytes()
        done = self.script(TRAINING + "train(0, kill=0)")
        self.assertEqual((done.returncode, self.traces()), (-signal.SIGKILL, ["t.twin", "t.twin.part"]))
        self.assertEqual(pathlib.Path(self.path).read_bytes(), before, "a killed run has destroyed the trace before it")
        done = self.script("import torch\ntorch.ones(2)\nraise ValueError('early')")
        self.assertIn("stays as it is", done.stderr)
        self.assertEqual(pathlib.Path(self.path).read_bytes(), before)

    def test_four_steps_and_then_it_stops(self):
        done = self.script(TRAINING + "train(0, 6)\nprint('on')")
        self.assertEqual((done.returncode, done.stdout, Trace(self.path).end["steps"]), (0, "", 4), done.stderr)
        done = self.script(TRAINING + "train(0, 6)\nprint('on')\nraise ValueError('later')", "--run-on", "--steps", "1")
        trace = Trace(self.path)
        self.assertEqual((done.returncode, done.stdout), (1, "on\n"))
        self.assertEqual((trace.end["steps"], trace.end["exception"]), (1, None), "the steps were over")

    def test_processes_that_train(self):
        text = TRAINING + """
import torch.multiprocessing as mp
def several(rank):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
    torch.ones(2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(several, nprocs=2)
    alone = mp.get_context("fork").Process(target=train, args=(5,))
    alone.start()
    alone.join()
    list(torch.utils.data.DataLoader(torch.arange(4), num_workers=2))
    assert alone.exitcode == 0
"""
        done = self.script(text, "--steps", "2", args=(os.path.join(self.folder, "group"),))
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self.traces()
        self.assertRegex(" ".join(found), r"^t\.pid\d+\.twin t\.rank0\.twin t\.rank1\.twin$")
        for name, rank, world in zip(found, (0, 0, 1), (1, 2, 2)):
            trace = Trace(os.path.join(self.folder, name))
            self.assertEqual((trace.end["steps"], trace.end["left_out"]["error"], trace.meta["rank"], trace.meta["world"]), (2, 0, rank, world))
            self.assertFalse([c.name for c in trace.calls for t in tensors([c.args, c.out]) if t.flags & CHANGED], "a reduction that is late")

    def test_ranks_of_a_launcher(self):
        script = pathlib.Path(self.folder) / "script.py"
        script.write_text(TRAINING + "import torch.distributed as dist\ndist.init_process_group('gloo')\nx = torch.ones(2)\n"
                          "dist.all_reduce(x)\ntrain(dist.get_rank())\ndist.destroy_process_group()\n")
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "twinrun",
                               "watch", "-o", "t.twin", "--steps", "2", "script.py"], capture_output=True, text=True, cwd=self.folder,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "adapters"), "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.traces(), ["t.rank0.twin", "t.rank1.twin"])
        for rank in range(2):
            trace = Trace(os.path.join(self.folder, f"t.rank{rank}.twin"))
            self.assertEqual((trace.end["steps"], trace.meta["rank"], trace.meta["world"]), (2, rank, 2))

    def test_one_file_has_one_writer(self):
        with twinrun.watch(self.path):
            torch.ones(1)
            with twinrun.watch(self.path) as other:
                torch.ones(2)
        self.assertEqual([len(Trace(p).calls) for p in (self.path, other.path)], [2, 1])
        self.assertRegex(other.path, r"t\.pid\d+\.twin$")

    def test_adapters_hide_no_package(self):
        names = [p.name for p in (ROOT / "adapters").iterdir() if p.is_dir() and p.name not in ("twinrun", "twinrun_engine", "__pycache__")]
        code = f"import importlib.util\nprint([n for n in {[*names, 'jax', 'pytorch', 'tensorflow']} if importlib.util.find_spec(n)])"
        done = subprocess.run([sys.executable, "-I", "-c", f"import sys\nsys.path[:] = [{str(ROOT / 'adapters')!r}] + [p for p in sys.path if "
                               "'site-packages' not in p and 'dist-packages' not in p]\n" + code], capture_output=True, text=True)
        self.assertFalse({"jax", "pytorch", "tensorflow"} & set(eval(done.stdout)), done.stdout)


if __name__ == "__main__":
    unittest.main()

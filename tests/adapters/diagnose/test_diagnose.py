"""twinrun.diagnose on ten models: healthy ones are not accused, planted mistakes of data parallelism and of the engine
are named.

python3 test_diagnose.py [Class.test]      # TWINRUN=path of the binary
"""

import math
import os
import sys
import tempfile
import unittest
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../../adapters"), HERE, os.path.join(HERE, "..")]
import with_torch  # noqa: E402, F401, I001

try:
    import torch
except ImportError:
    print("SKIP: PyTorch is not installed")
    sys.exit(77)

if tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 4):
    print(f"SKIP: PyTorch {torch.__version__} is installed; 2.4 or newer is needed")
    sys.exit(77)
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import models
import twinrun

warnings.filterwarnings("ignore")
REPLICAS = 8


def step_of(loss, before_update=None, scale=1.0):
    def step(model, optimizer, batch):
        optimizer.zero_grad()
        value = loss(model, batch) * scale
        value.backward()
        if before_update:
            before_update(model)
        optimizer.step()
        return value

    return step


def reduce(model, average=True, skip=()):
    for name, p in model.named_parameters():
        if p.grad is not None and name not in skip:
            dist.all_reduce(p.grad)
            if average:
                p.grad /= dist.get_world_size()


def clip_first(model):
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 0.01)
    reduce(model)


def clip_last(model):
    reduce(model)
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 0.01)


def last_weight(model):
    return [n for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1][-1]


class Case(unittest.TestCase):
    def diagnose(self, made, step, **options):
        model, optimizer, batches, _ = made
        before = [p.detach().clone() for m in (model if isinstance(model, list) else [model]) for p in m.parameters()]
        with tempfile.TemporaryDirectory() as folder:
            report = twinrun.diagnose(step, model, optimizer, batches, out=folder, **options)
        after = [p for m in (model if isinstance(model, list) else [model]) for p in m.parameters()]
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, after)), "the user's parameters were changed")
        return report


def make(name, **kw):
    torch.manual_seed(1)
    return models.ALL[name](**kw)


class Healthy(Case):
    def check(self, name):
        made = make(name)
        step = step_of(made[3]) if made[3] else models.gan_step
        for replicas in (1, REPLICAS):
            report = self.diagnose(made, step, replicas=replicas)
            self.assertEqual(report.verdict, "NOISE", f"{name} with {replicas}: {report}")
            if replicas > 1:
                self.assertFalse(report.meaning["differs"], report)
                self.assertTrue(all(v < 2.0**-26 for v in report.meaning["kinds"].values()))

    def test_own_all_reduce(self):
        made = make("mlp")
        self.assertEqual(
            self.diagnose(made, step_of(made[3], clip_last), replicas=REPLICAS, sync="step").verdict, "NOISE"
        )


    def test_distributed_data_parallel_in_a_closure(self):
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
            try:
                _, _, batches, loss = make("mlp")
                model = make("mlp", norm=nn.LayerNorm)[0]
                wrapped = nn.parallel.DistributedDataParallel(model)
                optimizer = torch.optim.AdamW(wrapped.parameters(), 1e-3)
                step = lambda batch: step_of(loss)(wrapped, optimizer, batch)  # noqa: E731
                report = self.diagnose((wrapped, optimizer, batches, loss), step, replicas=REPLICAS)
            finally:
                dist.destroy_process_group()
        self.assertEqual(report.verdict, "NOISE", report)
        self.assertFalse(report.meaning["differs"], report)


class Mistakes(Case):
    NAMES = ("mlp", "cnn", "gpt", "unet", "embedding_bag", "lora")

    def expect(self, name, causes, step, made=None, **options):
        report = self.diagnose(made or make(name), step, replicas=REPLICAS, **options)
        self.assertEqual(report.verdict, "SHARDING", f"{name}: {report}")
        self.assertEqual([c["cause"] for c in report.meaning["causes"]], causes, f"{name}: {report}")
        return report

    def check(self, name):
        loss = make(name)[3]
        self.expect(name, ["unscaled"], step_of(loss, lambda m: reduce(m, average=False)), sync="step")
        skipped = last_weight(make(name)[0])
        report = self.expect(name, ["no_all_reduce"], step_of(loss, lambda m: reduce(m, skip=(skipped,))), sync="step")
        self.assertIn(skipped.replace(".", "/"), report.headline)
        self.expect(name, ["clipping"], step_of(loss, clip_first), sync="step")

    def test_no_all_reduce_at_all(self):
        self.expect("cnn", ["no_all_reduce"], step_of(make("cnn")[3]), sync="step")

    def test_bucket_that_ddp_ignores(self):
        made = make("lora")
        made[0]._ddp_params_and_buffers_to_ignore = ["4.weight"]
        self.assertIn("4/weight", self.expect("lora", ["no_all_reduce"], step_of(made[3]), made).headline)

    def test_sum_of_losses(self):
        self.expect("cnn", ["reduction"], step_of(lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="sum")))

    def test_divided_twice(self):
        def step(model, optimizer, batch):
            return step_of(models.classify, scale=1 / dist.get_world_size())(model, optimizer, batch)

        self.expect("embedding_bag", ["scaled_twice"], step)

    def test_local_count(self):
        def loss(model, batch):
            real = (batch[1] < 2).float() + 0.25
            return (F.cross_entropy(model(batch[0]), batch[1], reduction="none") * real).sum() / real.sum()

        made = make("embedding_bag")
        report = self.expect("embedding_bag", ["token_mean"], step_of(loss), made)
        real = ((made[2][0][1] < 2).float() + 0.25).view(REPLICAS, -1).sum(1)
        shares = [float(s) for s in report.meaning["causes"][0]["shares"].split(", ")]
        for share, expected in zip(shares, (real / real.sum()).tolist()):
            self.assertTrue(math.isclose(share, expected, rel_tol=1e-3), (shares, real))

    def test_batch_norm(self):
        for name in ("mlp", "resnet18"):
            made = make(name, norm=nn.BatchNorm1d if name == "mlp" else nn.BatchNorm2d)
            self.expect(name, ["batch_norm"], step_of(made[3]), made)

    def test_batch_norm_of_a_gan(self):
        self.expect("gan", ["batch_norm"], models.gan_step, make("gan", norm=nn.BatchNorm2d))

    def test_two_causes(self):
        made = make("mlp", norm=nn.BatchNorm1d)
        self.expect(
            "mlp", ["batch_norm", "unscaled"], step_of(made[3], lambda m: reduce(m, average=False)), made, sync="step"
        )


class Unknown(Case):
    """Differences that have no known cause are reported without one."""

    def check(self, name, loss):
        report = self.diagnose(make(name), step_of(loss), replicas=REPLICAS)
        self.assertEqual((report.verdict, report.causes[0]), ("SHARDING", "unknown"), report)
        self.assertTrue(report.meaning["first_parameter"])

    def test_a_loss_across_samples(self):
        def contrastive(model, batch):
            x = F.normalize(model(batch[0]))
            return F.cross_entropy(x @ x.detach().roll(1, 1).t(), torch.arange(len(x)))

        self.check("lora", contrastive)

    def test_replicas_without_samples_that_count(self):
        def loss(model, batch):
            real = (torch.arange(len(batch[1])) < 1).float() * (batch[1] == 2)
            return (F.cross_entropy(model(batch[0]), batch[1], reduction="none") * real).sum() / (batch[1] == 2).sum()

        self.check("embedding_bag", loss)


class Engine(Case):
    def test_a_fault_comes_before_the_meaning(self):
        report = self.diagnose(
            make("mlp", norm=nn.BatchNorm1d),
            step_of(models.classify),
            replicas=REPLICAS,
            faults="truncate_bf16@*mm*,from=1",
            precision="highest",
        )
        self.assertEqual(report.verdict, "ENGINE_BUG", report)

    def test_a_fault_is_found_in_the_users_line(self):
        made = make("cnn")
        report = self.diagnose(made, step_of(made[3]), faults="truncate_bf16@*mm*,from=1", precision="highest")
        self.assertEqual(report.verdict, "ENGINE_BUG", report)
        self.assertIn("models.py", str(report.data["findings"][0]))


class Refusals(Case):
    def refused(self, text, step, made=None, **options):
        with self.assertRaisesRegex(RuntimeError, text):
            self.diagnose(made or make("embedding_bag"), step, **options)

    def test_unsupported_op_names_its_line(self):
        self.refused(
            r"test_diagnose\.py:\d+: aten\.sort",
            step_of(lambda m, b: models.classify(m, b) + m(b[0]).sort().values[0, 0]),
        )

    def test_state_outside(self):
        calls = []

        def loss(model, batch):
            calls.append(1)
            return models.classify(model, batch) * len(calls)

        self.refused("something that is not in model, optimizer or batch", step_of(loss))

    def test_parameters_outside(self):
        made, other = make("embedding_bag"), nn.Linear(2, 2)
        made[1].add_param_group({"params": list(other.parameters())})
        self.refused("no given model has", step_of(made[3]), made)

    def test_an_earlier_answer_is_not_taken(self):
        model, optimizer, batches, loss = make("embedding_bag")
        with tempfile.TemporaryDirectory() as folder:
            twinrun.diagnose(step_of(loss), model, optimizer, batches, out=folder)
            with self.assertRaisesRegex(RuntimeError, "tpu.nonsense"):
                twinrun.diagnose(step_of(loss), model, optimizer, batches, out=folder, settings={"tpu.nonsense": "1"})
            self.assertFalse(os.path.exists(os.path.join(folder, "report.json")))

    def test_indivisible(self):
        self.refused("multiple of replicas", step_of(models.classify), replicas=7)


for _name in models.ALL:
    setattr(Healthy, f"test_{_name}", lambda self, n=_name: self.check(n))
for _name in Mistakes.NAMES:
    setattr(Mistakes, f"test_{_name}", lambda self, n=_name: self.check(n))

if __name__ == "__main__":
    unittest.main()

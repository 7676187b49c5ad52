"""twinrun.diagnose on ten models: healthy ones are not accused, planted mistakes of data parallelism and of the engine
are named.

python3 test_diagnose.py [Class.test]      # TWINRUN=path of the binary
"""

import contextlib
import math
import os
import random
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
ALL = bool(os.environ.get("TWINRUN_TEST_ALL"))    # the slow suite: every mistake in every model, larger models, and twice as many replicas
REPLICAS = 8 if ALL else 4


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


def dense(*middle, samples=16):
    """A small model of 10 inputs and 4 classes, its optimizer, two batches."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 12), nn.Tanh(), *middle, nn.Linear(12, 4))
    batches = [(torch.randn(samples, 10), torch.randint(0, 4, (samples,))) for _ in range(2)]
    return model, torch.optim.SGD(model.parameters(), 0.1), batches, models.classify


def over_parts(loss, split):
    """A step that adds up gradients over the parts of its batch."""

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        parts = split(batch)
        values = [loss(model, part) / len(parts) for part in parts]
        for value in values:
            value.backward()
        optimizer.step()
        return sum(v.detach() for v in values)

    return step


def halves(batch):
    return list(zip(*(t.chunk(2) for t in batch)))


def counted(model, batch, over_all=lambda count: count):
    """The mean over the samples of classes 1 to 3."""
    real = batch[1] > 0
    return (F.cross_entropy(model(batch[0]), batch[1], reduction="none") * real).sum() / over_all(real.sum())


@contextlib.contextmanager
def group_of_one():
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        try:
            yield nn.parallel.DistributedDataParallel
        finally:
            dist.destroy_process_group()


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.first = nn.Embedding(9, 6), nn.Parameter(torch.randn(1, 1, 6))
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(6, 4)

    def forward(self, ids):
        x = torch.cat([self.first.expand(len(ids), -1, -1), self.tokens(ids)], 1)
        return self.out(torch.tanh(self.drop(x)).mean(1))


class Rotary(nn.Module):
    """Cosine, sine, and the largest and smallest along a dimension with where they are."""

    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        a, b = self.query(x).chunk(2, -1)
        angle = torch.arange(x.shape[1])[:, None] / 10.0 ** torch.arange(4)
        x = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        top, which = x.max(-1, keepdim=True)
        hot = F.one_hot(x.argmin(-1), 8) + 2 * F.one_hot(x.argmax(-1), 8) + F.one_hot(which[..., 0], 8)
        return self.out(x * top + hot).mean(1) + x.min(1).values[:, :4]


class Healthy(Case):
    def noise(self, made, step, **options):
        report = self.diagnose(made, step, **dict({"replicas": 4}, **options))
        self.assertEqual(report.verdict, "NOISE", report)
        return report

    def test_dropout_of_each_sample_in_parts_of_a_batch(self):
        strided = lambda batch: [tuple(t[k::2] for t in batch) for k in range(2)]  # noqa: E731
        pairs = lambda batch: list(zip(*(t.split(2) for t in batch)))  # noqa: E731
        for split in (halves, strided, pairs):
            made = dense(nn.Dropout(0.5))
            report = self.noise(made, over_parts(made[3], split))
        self.assertIn("backward passes of a step add up", str(report))
        self.assertIn("not asked: whether ranks draw different numbers", str(report))

    def test_dropout_of_tokens_that_repeat_and_of_a_learned_one(self):
        _, _, _, loss = dense()
        model = Tokens()
        ids = torch.randint(0, 9, (16, 5))
        ids[:, 2:] = 0  # padding
        made = model, torch.optim.SGD(model.parameters(), 0.1), [(ids, torch.randint(0, 4, (16,)))], loss
        self.noise(made, over_parts(loss, halves))

    def test_noise_of_each_sample(self):
        levels = torch.linspace(0.9, 0.1, 20)

        def loss(model, batch):
            at = levels[torch.randint(0, 20, (len(batch[0]),))].view(-1, 1)
            return models.classify(model, (at * batch[0] + (1 - at) * torch.randn_like(batch[0]), batch[1]))

        self.noise(dense(), over_parts(loss, halves))

    def test_each_rank_takes_its_slice(self):
        from torch.distributed import get_rank as rank_of_this_process

        def clip(model, rank):
            reduce(model)
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            size = -(-len(flat) // dist.get_world_size())
            square = (flat[rank * size : (rank + 1) * size] ** 2).sum()
            dist.all_reduce(square)
            for p in model.parameters():
                p.grad *= (0.05 / square.sqrt()).clamp(max=1.0)

        for rank in (lambda: rank_of_this_process(), lambda: int(os.environ["RANK"])):
            made = dense()
            report = self.noise(made, step_of(made[3], lambda m: clip(m, rank())), sync="step")
        self.assertIn("not asked: the replicas' own steps", str(report))

    def test_a_count_of_all_replicas(self):
        def summed(count):
            dist.all_reduce(count)
            return count / dist.get_world_size()

        def gathered(count):
            every = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
            dist.all_gather(every, count)
            return sum(every) / len(every)

        for over_all in (summed, gathered):
            self.noise(dense(), step_of(lambda m, b: counted(m, b, over_all)))

    def test_averaged_at_the_last_of_two_passes(self):
        def step(model, optimizer, batch):
            optimizer.zero_grad()
            first, last = halves(batch)
            with model.no_sync():
                (models.classify(model, first) / 2).backward()
            value = models.classify(model, last) / 2
            value.backward()
            optimizer.step()
            return value

        with group_of_one() as wrapper:
            model, optimizer, batches, loss = dense()
            report = self.noise((wrapper(model), optimizer, batches, loss), step)
        self.assertNotIn("which modules are inside", str(report))

    def test_rotary(self):
        torch.manual_seed(1)
        model = Rotary()
        batches = [(torch.randn(8, 5, 8), torch.randint(0, 4, (8,)))]
        made = model, torch.optim.SGD(model.parameters(), 0.1), batches, models.classify
        self.noise(made, step_of(models.classify), replicas=2)

    def check(self, name):
        made = make(name)
        step = step_of(made[3]) if made[3] else models.gan_step
        for replicas in (1, REPLICAS) if ALL or name in ("mlp", "lstm") else (REPLICAS,):
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
    NAMES = ("mlp", "cnn", "gpt", "unet", "embedding_bag", "lora") if ALL else ("gpt", "lora")

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


    def named(self, cause, made, step, **options):
        report = self.diagnose(made, step, replicas=4, **options)
        self.assertEqual((report.verdict, [c["cause"] for c in report.meaning["causes"]]), ("SHARDING", [cause]), report)
        return report

    def test_a_penalty_of_one_rank(self):
        def penalised(which):
            def loss(model, batch):
                value = models.classify(model, batch)
                return value + sum((p**2).sum() for p in model.parameters()) if which() else value

            return step_of(loss)

        for which in (lambda: dist.get_rank() == 0, lambda: dist.get_rank() == dist.get_world_size() - 1):
            self.assertIn("test_diagnose.py:", self.named("rank", dense(), penalised(which)).headline)

    def test_a_collective_of_one_rank(self):
        def log(model):
            reduce(model)
            if dist.get_rank() == 0:
                dist.all_reduce(torch.ones(3))

        made = dense()
        self.named("unmatched", made, step_of(made[3], log), sync="step")

    def test_the_same_dropout_on_all_ranks(self):
        def loss(model, batch):
            torch.manual_seed(1)
            return models.classify(model, batch)

        self.named("one_stream", dense(nn.Dropout(0.5)), step_of(loss))

    def test_a_head_outside_of_the_wrapper(self):
        with group_of_one() as wrapper:
            body, head = wrapper(nn.Linear(10, 6)), nn.Linear(6, 4)
            _, _, batches, _ = dense()
            optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
            step = step_of(lambda _, batch: F.cross_entropy(head(body(batch[0])), batch[1]))
            for given in ([body, head], [body.module, head]):  # the step alone may know the wrapper
                report = self.named("no_all_reduce", (given, optimizer, batches, None), step)
                self.assertIn("update 1/weight, 1/bias by", report.headline)

    def test_a_wrapper_that_never_averages(self):
        def step(model, optimizer, batch):
            with model.no_sync():
                return step_of(models.classify)(model, optimizer, batch)

        with group_of_one() as wrapper:
            model, optimizer, batches, loss = dense()
            self.named("no_all_reduce", (wrapper(model), optimizer, batches, loss), step)

    def test_counts_of_each_part_of_a_batch(self):
        report = self.named("token_mean", dense(samples=32), over_parts(counted, halves))
        self.assertEqual(len(report.meaning["causes"][0]["shares"].split(", ")), 8)

    def test_a_function_of_means(self):
        def loss(model, batch):
            share = model(batch[0]).softmax(1).mean(0)
            return models.classify(model, batch) + (share * share.log()).sum()

        report = self.named("late_reduction", dense(), step_of(loss))
        self.assertIn("test_diagnose.py:", report.findings[0]["cure"])

    def test_a_buffer_of_one_rank(self):
        model, optimizer, batches, _ = dense()
        model.register_buffer("centre", torch.zeros(4))

        def loss(model, batch):
            out = model(batch[0])
            with torch.no_grad():
                model.centre.mul_(0.9).add_(out.mean(0), alpha=0.1)
            return F.cross_entropy(out, batch[1])

        report = self.named("statistics", (model, optimizer, batches, loss), step_of(loss))
        self.assertIn("centre", report.headline)
        self.assertIn("first statistic that differs: centre", str(report))

    def test_a_loss_across_samples(self):
        def contrastive(model, batch):
            x = F.normalize(model(batch[0]))
            return F.cross_entropy(x @ x.detach().roll(1, 1).t(), torch.arange(len(x)))

        report = self.named("pairs_of_samples", make("lora"), step_of(contrastive))
        self.assertIn("mm at test_diagnose.py:", report.findings[0]["cure"])


class Unknown(Case):
    """Differences that have no known cause are reported without one."""

    def check(self, name, loss):
        report = self.diagnose(make(name), step_of(loss), replicas=REPLICAS)
        self.assertEqual((report.verdict, report.causes[0]), ("SHARDING", "unknown"), report)
        self.assertTrue(report.meaning["first_parameter"])

    def test_replicas_without_samples_that_count(self):
        def loss(model, batch):
            real = (torch.arange(len(batch[1])) < 1).float() * (batch[1] == 2)
            return (F.cross_entropy(model(batch[0]), batch[1], reduction="none") * real).sum() / (batch[1] == 2).sum()

        self.check("embedding_bag", loss)

    def test_an_order_that_only_the_whole_batch_has(self):
        def mixed(model, batch):
            order = torch.randperm(len(batch[0]))
            return models.classify(model, (0.7 * batch[0] + 0.3 * batch[0][order], batch[1]))

        report = self.diagnose(dense(), step_of(mixed), replicas=4)
        self.assertEqual(report.verdict, "INCONCLUSIVE", report)
        self.assertIn("randperm at test_diagnose.py:", report.headline)


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

    def test_a_collective_that_is_not_known(self):
        def gather(model):
            dist.all_gather_object([None] * dist.get_world_size(), 1)

        self.refused(r"all_gather_object at test_diagnose\.py:\d+", step_of(models.classify, gather), replicas=4)

    def test_all_is_as_before(self):
        """What a step changes beside its parameters' values is put back, also where it is refused."""
        model, optimizer, batches, loss = dense(nn.Dropout(0.1))
        parameter, folder, drawn, layers = model[0].weight, os.getcwd(), random.getstate(), dict(model.named_modules())
        storage, dtype = parameter.data_ptr(), torch.get_default_dtype()

        def step(model, optimizer, batch):
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            random.random()
            os.chdir(tempfile.gettempdir())
            torch.set_default_dtype(torch.float64)
            model[0].bias.requires_grad_(False)
            model[0].register_forward_hook(lambda *_: None)
            model.add_module("more", nn.Identity())
            model[0].weight.data = model[0].weight.data.clone()
            return value

        with contextlib.suppress(RuntimeError), tempfile.TemporaryDirectory() as out:
            twinrun.diagnose(step, model, optimizer, batches, out=out)
        self.assertEqual((os.getcwd(), random.getstate(), torch.get_default_dtype()), (folder, drawn, dtype))
        self.assertEqual((dict(model.named_modules()), len(model[0]._forward_hooks)), (layers, 0))
        self.assertEqual((model[0].weight.data_ptr(), model[0].bias.requires_grad), (storage, True))

    def test_a_step_that_fails(self):
        self.refused(r"KeyError at test_diagnose\.py:\d+", step_of(lambda m, b: {}["loss"]))

    def test_an_earlier_answer_is_not_taken(self):
        model, optimizer, batches, loss = dense()
        with tempfile.TemporaryDirectory() as folder:
            twinrun.diagnose(step_of(loss), model, optimizer, batches, out=folder)
            with self.assertRaisesRegex(RuntimeError, "tpu.nonsense"):
                twinrun.diagnose(step_of(loss), model, optimizer, batches, out=folder, settings={"tpu.nonsense": "1"})
            self.assertFalse(os.path.exists(os.path.join(folder, "report.json")))

    def test_indivisible(self):
        self.refused("multiple of replicas", step_of(models.classify), replicas=7)


for _name in models.ALL if ALL else [m for m in models.ALL if m not in ("resnet18", "vit", "gan")]:
    setattr(Healthy, f"test_{_name}", lambda self, n=_name: self.check(n))
for _name in Mistakes.NAMES:
    setattr(Mistakes, f"test_{_name}", lambda self, n=_name: self.check(n))

if __name__ == "__main__":
    unittest.main()

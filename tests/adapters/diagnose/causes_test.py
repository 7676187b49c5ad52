"""Every cause of the catalogue (adapters/twinrun/causes.json) that test_diagnose.py does not plant is planted in a step of PyTorch, which
is told as the catalogue says.

TWINRUN names the program; needs PyTorch (77: it is not installed)
"""

import pathlib
import unittest

import test_diagnose  # noqa: I001  (skips without PyTorch)

import models
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from test_diagnose import dense, reduce, step_of
from twinrun.capture import capture
from twinrun.meaning import compare
from twinrun.mechanisms import catalogue


class Sum(torch.autograd.Function):
    """A sum over all replicas, whose derivative is one."""

    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, g):
        return summed(g)


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def mean(x):
    return Sum.apply(x) / dist.get_world_size()


class Norm(nn.Module):
    """A batch norm of one's own. averaged: of the layer, or else the running variance alone, the mean of the replicas' variances."""

    def __init__(self, averaged=None):
        super().__init__()
        self.averaged = averaged
        self.register_buffer("running_mean", torch.zeros(12))
        self.register_buffer("running_var", torch.ones(12))

    def forward(self, x):
        centre = mean(x.mean(0))
        exact, averaged = mean(((x - centre) ** 2).mean(0)), mean(((x - x.mean(0)) ** 2).mean(0))
        var = averaged if self.averaged == "layer" else exact
        with torch.no_grad():
            self.running_mean.mul_(0.9).add_(0.1 * centre)
            self.running_var.mul_(0.9).add_(0.1 * (averaged if self.averaged == "buffer" else var))
        return (x - centre) * (var + 1e-5).rsqrt()


def by_hand(rate):
    """A step that moves the parameters itself."""

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        value = models.classify(model, batch)
        value.backward()
        reduce(model)
        with torch.no_grad():
            for p in model.parameters():
                p -= rate(0.1, dist.get_world_size()) * p.grad
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
        return value

    return step


def hidden(join, strength):
    """A loss by how far units are from what `join` makes of the replicas' means."""

    def loss(model, batch):
        h = torch.tanh(model[0](batch[0]))
        return F.cross_entropy(model[2](h - strength * join(h.mean(0))), batch[1])

    return step_of(loss)


def spread(model, batch):
    h = torch.tanh(model[0](batch[0]))
    far = (h.var(0, unbiased=False) + 1e-6).sqrt().mean()
    return F.cross_entropy(model[2](h) + far * torch.arange(4.0), batch[1])


def decayed(model, batch):
    penalty = 0.01 * sum((p**2).sum() for p in model.parameters())
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum") / 16 + penalty


def remainder(model, batch):
    each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return each[: len(each) - 2 * (dist.get_rank() == dist.get_world_size() - 1)].mean()


def noisy(seed):
    def loss(model, batch):
        torch.manual_seed(seed())
        weight = model[0].weight + 0.1 * torch.randn_like(model[0].weight)
        return F.cross_entropy(model[2](torch.tanh(F.linear(batch[0], weight, model[0].bias))), batch[1])

    return step_of(loss)


def clamp_first(model):
    for p in model.parameters():
        p.grad.clamp_(-0.01, 0.01)
    reduce(model)


def averaged_after(model, optimizer, batch):
    value = step_of(models.classify)(model, optimizer, batch)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(summed(p) / dist.get_world_size())
    return value


def adam():
    model, _, batches, loss = dense()
    return model, torch.optim.Adam(model.parameters(), 0.01), batches, loss


def twice(model):
    reduce(model)
    reduce(model, average=False)


HAND, DDP = {"sync": "step"}, {}
# cause: (model, optimizer, ..), step, options
PLANTS = {
    "averaged_variance": lambda: (dense(Norm("layer")), step_of(models.classify), DDP),
    "averaged_statistics": lambda: (dense(Norm("buffer")), step_of(models.classify), DDP),
    "batch_wise": lambda: (dense(), step_of(spread), DDP),
    "l2": lambda: (dense(), step_of(decayed, lambda m: reduce(m, average=False)), HAND),
    "repeated_term": lambda: (dense(), step_of(decayed, lambda m: reduce(m, average=False)), HAND),
    "rate_times_cores": lambda: (dense(), by_hand(lambda rate, n: rate * n), HAND),
    "rate_over_cores": lambda: (dense(), by_hand(lambda rate, n: rate / n), HAND),
    "sum_for_mean": lambda: (dense(), hidden(Sum.apply, 0.3), DDP),
    "mean_for_sum": lambda: (dense(), hidden(lambda x: mean(x) / dist.get_world_size(), 3), DDP),
    "summed_twice": lambda: (dense(), step_of(models.classify, twice), HAND),
    "stream_per_core": lambda: (dense(), noisy(dist.get_rank), DDP),
    "clipping": lambda: (dense(), step_of(models.classify, clamp_first), HAND),
    "late_reduction": lambda: (adam(), averaged_after, HAND),
    "remainder_dropped": lambda: (dense(), step_of(remainder), DDP),
}
HEALTHY = {
    "norm": lambda: (dense(Norm()), step_of(models.classify), DDP),
    "rate": lambda: (dense(), by_hand(lambda rate, n: rate), HAND),
    "noise": lambda: (dense(), noisy(lambda: 3), DDP),
    "means": lambda: (dense(), hidden(mean, 0.3), DDP),
}


def compared(make):
    (model, optimizer, batches, _), step, options = make()
    whole = capture(step, model, optimizer, batches)
    return compare(step, model, optimizer, batches, whole, 4, options.get("sync", "ddp"))


class Causes(unittest.TestCase):
    def test_each_cause_that_is_named_is_planted(self):
        known = pathlib.Path(test_diagnose.__file__).read_text()
        for cause, row in catalogue().items():
            if not row["doors"]["torch"].startswith("no: "):
                self.assertTrue(cause in PLANTS or f'"{cause}"' in known, cause)

    def test_healthy(self):
        for name, make in HEALTHY.items():
            self.assertFalse(compared(make)["differs"], name)

    def test_a_rank_without_samples_that_count(self):
        """Without what is undone, a candidate may be nothing that can be computed."""

        def loss(model, batch):
            parts = [torch.empty_like(batch[1]) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, batch[1])
            return F.cross_entropy(model(batch[0]), parts[0])

        found = compared(lambda: (dense(), step_of(loss), DDP))
        self.assertEqual((found["differs"], found["causes"]), (True, []), found)


def add(cause, make):
    told = catalogue()[cause]["doors"]["torch"]

    def test(self):
        found = compared(make)
        self.assertEqual([c["cause"] for c in found["causes"]], [cause if told == "yes" else told[3:]], found)
        self.assertNotRegex(found["causes"][0]["sentence"] + found["causes"][0]["cure"], r"[{}]")

    setattr(Causes, f"test_{cause}", test)


for _cause, _make in PLANTS.items():
    add(_cause, _make)

if __name__ == "__main__":
    unittest.main()

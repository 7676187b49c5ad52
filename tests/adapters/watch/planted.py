"""Trains small networks while one kernel of PyTorch is replaced by a wrong one of plants.py:

    PYTHONPATH=adapters python tests/adapters/watch/planted.py FOLDER [NAME]

FOLDER/NAME.twin is the trace of one plant's two steps, FOLDER/healthy-*.twin are traces of the same steps without a
plant, made after all others, and FOLDER/expected.json says what must be found. A wrong kernel is registered with the
dispatcher, between the recorder and the backend's kernels, so that the recorder sees it as part of PyTorch. Deleting
its library object removes it, so one process runs all plants."""
import gc
import json
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import plants
import twinrun

KEYS = ("CPU", "CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd")
# Without it (before 2.0) a backward call has the line that began the backward pass.
NODES = hasattr(torch._C, "_current_autograd_node")


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.second = nn.Linear(32, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = F.relu(self.first(x))
        x = F.gelu(self.norm(x))
        y = torch.tanh(self.second(x))
        x = y * torch.sigmoid(x)
        return self.last(x)

    def batch(self):
        return torch.randint(0, 20, (24,)), torch.randint(0, 10, (24,))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.deeper = nn.Conv2d(8, 16, 3, padding=1)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        x = self.conv(x)
        x = F.relu(self.norm(x))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.deeper(x)
        x = F.avg_pool2d(x, 2, stride=1, padding=1)
        x = F.dropout(x, 0.25)
        x = x.flatten(2).transpose(1, 2).contiguous()
        q = self.query(x)
        k = self.key(x)
        scores = torch.bmm(q, k.transpose(1, 2)) / 4
        weights = torch.softmax(scores, -1)
        x = torch.bmm(weights, x)
        return self.last(x.mean(1))

    def batch(self):
        return torch.randn(8, 3, 12, 12), torch.randint(0, 10, (8,))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.three = nn.Linear(32, 96)
        self.last = nn.Linear(32, 10)

    def forward(self, tokens):
        x = self.three(self.embedding(tokens))
        q, k, v = x.view(3, 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x.transpose(1, 2).reshape(24, 32)
        return self.last(x)

    def batch(self):
        return torch.randint(0, 20, (24,)), torch.randint(0, 10, (24,))


NETWORKS = {"words": Words, "images": Images, "attention": Attention}
OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=3e-3, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=3e-3, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=False),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True)}


class Planted:
    """The kernel of one operation, wrong in the calls that the plant names, until it is taken out."""

    def __init__(self, plant):
        name = plant.operation + ("." + plant.overload if plant.overload != "default" else "")
        self.plant = plant
        self.operation = getattr(getattr(torch.ops.aten, plant.operation), plant.overload)
        key = next(k for k in KEYS if torch._C._dispatch_has_kernel_for_dispatch_key("aten::" + name, k))
        self.key = getattr(torch._C.DispatchKey, key)
        self.step, self.calls, self.inside = -1, 0, False
        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl(name, self.run, "BackendSelect")

    def begin_step(self):
        self.step, self.calls = self.step + 1, 0

    def right(self, *args, **kwargs):
        return self.operation._op_dk(self.key, *args, **kwargs)

    def run(self, *args, **kwargs):
        if self.inside:    # the wrong kernel itself uses the operation
            return self.right(*args, **kwargs)
        call, self.calls = self.calls, self.calls + 1
        if self.plant.step not in (None, self.step) or self.plant.call not in (None, call):
            return self.right(*args, **kwargs)
        self.inside = True
        try:
            return self.plant.kernel(self.right, *args, **kwargs)
        finally:
            self.inside = False

    def remove(self):
        self.library = None
        gc.collect()


def train(path, network, optimizer, autocast=False, planted=None):
    torch.manual_seed(3)
    net = NETWORKS[network]()
    optimizer = OPTIMIZERS[optimizer](net.parameters())
    with twinrun.watch(path, steps=2):
        for _ in range(2):
            if planted:
                planted.begin_step()
            optimizer.zero_grad(set_to_none=False)
            inputs, labels = net.batch()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                outputs = net(inputs)
                loss = F.cross_entropy(outputs, labels)
            loss.backward()
            optimizer.step()


def main():
    folder = pathlib.Path(sys.argv[1])
    chosen = [p for p in plants.PLANTS if p.is_in(torch.__version__) and sys.argv[2:] in ([], [p.name])]
    for plant in chosen:
        planted = Planted(plant)
        try:
            train(folder / f"{plant.name}.twin", plant.network, plant.optimizer, plant.autocast, planted)
        finally:
            planted.remove()
    for i, setting in enumerate(dict.fromkeys((p.network, p.optimizer, p.autocast) for p in chosen)):
        train(folder / f"healthy-{i}.twin", *setting)
        gc.collect()    # An optimizer that is not freed yet would count as one of the next training.
    expected = {p.name: {"op": f"aten.{p.operation}.{p.overload}", "step": p.first, "outside": p.outside,
                         "once": None not in (p.step, p.call), "line": p.at or (p.of if NODES else "loss.backward()")}
                for p in chosen}
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()

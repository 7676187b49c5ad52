"""Measures what recording costs: medians of step times with and without, in turns, on the same model.

    python3 bench/watch_cost.py [--steps 1] [--rounds 9] [--folder /tmp]
"""
import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "adapters"))

import torch    # noqa: E402
import torch.nn.functional as F    # noqa: E402
from torch import nn    # noqa: E402

import twinrun    # noqa: E402


def cnn(optimizer):
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
                          nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    return model, torch.randn(128, 1, 28, 28), torch.randint(0, 10, (128,)), optimizer(model.parameters())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x)).mean(dim=1))


def encoder(optimizer):
    model = Encoder()
    return model, torch.randint(0, 1000, (16, 64)), torch.randint(0, 10, (16,)), optimizer(model.parameters())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", default=None, help="where the trace is written")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    optimizers = {"SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), "Adam": lambda p: torch.optim.Adam(p, lr=1e-3)}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = os.path.join(folder, "t.twin")
        for name, build in (("MNIST CNN, b128", cnn), ("encoder, 4 layers, b16 x 64, width 256", encoder)):
            for called, optimizer in optimizers.items():
                torch.manual_seed(0)
                model, x, y, o = build(optimizer)

                def step():
                    begin = time.perf_counter()
                    o.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    o.step()
                    return time.perf_counter() - begin

                for _ in range(2):
                    step()
                plain, watched, after = [], [], []
                for _ in range(args.rounds):
                    plain += [step() for _ in range(args.steps)]
                    with twinrun.watch(path, steps=args.steps, budget="64GiB") as w:
                        watched += [step() for _ in range(args.steps)]
                        after += [step() for _ in range(args.steps)]
                    size, calls = os.path.getsize(path) / args.steps, w.recorder.calls / args.steps
                a, b, c = (statistics.median(v) * 1e3 for v in (plain, watched, after))
                print(f"{name}, {called}: {calls:.0f} calls, {size / 1e6:.0f} MB a step; plain {a:.1f} ms, watched {b:.1f} ms: "
                      f"{b / a:.2f} times; after the watched steps {c / a:.2f} times", flush=True)


main()

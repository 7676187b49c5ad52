"""Trains two steps of a small network, for comparisons of two installations: steps.py NAME [OPTIONS]. NAME: cnn, transformer, lstm,
accumulation (three micro-batches a step), or autocast (bfloat16). The other options change one thing that another side may have."""
import argparse
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


class Cnn(nn.Module):
    """Depthwise-separable blocks with group norm and a residual."""

    def __init__(self, activation):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 5, stride=2, padding=2)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.pointwise = nn.Conv2d(12, 12, 1)
        self.norm = nn.GroupNorm(3, 12)
        self.head = nn.Linear(12 * 16, 7)
        self.activation = activation

    def forward(self, x):
        x = self.activation(self.stem(x))
        x = x + self.activation(self.norm(self.pointwise(self.depthwise(x))))
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1))

    @staticmethod
    def batch(n):
        return torch.randn(n, 3, 20, 20), torch.randint(0, 7, (n,))


class Transformer(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 24), nn.Parameter(torch.randn(9, 24) * 0.02)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(24, 3, 48, dropout=0.0, activation=activation, batch_first=True)
                                    for _ in range(2))
        self.head = nn.Linear(24, 7)

    def forward(self, x):
        x = self.tokens(x) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))

    @staticmethod
    def batch(n):
        return torch.randint(0, 50, (n, 9)), torch.randint(0, 7, (n,))


class Lstm(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.recurrent = nn.LSTM(10, 20, num_layers=2, batch_first=True)
        self.hidden, self.head = nn.Linear(20, 16), nn.Linear(16, 7)
        self.activation = activation

    def forward(self, x):
        return self.head(self.activation(self.hidden(self.recurrent(x)[0][:, -1])))

    @staticmethod
    def batch(n):
        return torch.randn(n, 6, 10), torch.randint(0, 7, (n,))


class Mlp(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.norm = nn.Linear(30, 64), nn.BatchNorm1d(64)
        self.middle, self.head = nn.Linear(64, 64), nn.Linear(64, 7)
        self.activation = activation

    def forward(self, x):
        x = self.activation(self.norm(self.first(x)))
        return self.head(F.dropout(self.activation(self.middle(x)), self.dropout))

    @staticmethod
    def batch(n):
        return torch.randn(n, 30), torch.randint(0, 7, (n,))


NETWORKS = {"cnn": Cnn, "transformer": Transformer, "lstm": Lstm, "accumulation": Mlp, "autocast": Mlp}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=NETWORKS)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--second-seed", type=int, help="reseeds before the second batch")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--activation", default="relu", choices=("relu", "gelu"))
    parser.add_argument("--optimizer", default="AdamW", choices=("AdamW", "SGD"))
    parser.add_argument("--no-dropout", action="store_true")
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--plant", help="a wrong kernel of ../watch/plants.py")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    if args.float64:
        torch.set_default_dtype(torch.float64)
    kind = NETWORKS[args.name]
    net = kind(getattr(F, args.activation))
    net.dropout = 0.0 if args.no_dropout else 0.2
    run = torch.compile(net) if args.compile else net
    optimizer = getattr(torch.optim, args.optimizer)(net.parameters(), lr=args.rate)
    planted = None
    if args.plant:
        sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../watch"))
        import planted as planting
        import plants
        planted = planting.Planted(next(p for p in plants.PLANTS if p.name == args.plant))
    parts = 3 if args.name == "accumulation" else 1
    for step in range(2):
        if step == 1 and args.second_seed is not None:
            torch.manual_seed(args.second_seed)
        if planted:
            planted.begin_step()
        optimizer.zero_grad()
        for _ in range(parts):
            x, y = kind.batch(args.batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.name == "autocast"):
                loss = F.cross_entropy(run(x), y) / parts
            loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()

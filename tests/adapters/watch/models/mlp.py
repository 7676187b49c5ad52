"""Trains a regression: perceptrons with batch normalisation, Huber loss, Adam, an average of the weights."""
import argparse

import torch
import torch.nn as nn


class MLP(nn.Module):
    def __init__(self, inputs=20, width=128, depth=3):
        super().__init__()
        widths = [inputs] + [width] * depth
        self.body = nn.ModuleList()
        for a, b in zip(widths, widths[1:]):
            self.body.append(nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.1)))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.body:
            x = layer(x)
        return self.head(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = MLP()
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda old, new, n: 0.99 * old + 0.01 * new)
    criterion = nn.HuberLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    coefficients = torch.randn(20)

    for step in range(args.steps):
        x = torch.randn(64, 20)
        x[:, 3] *= 100    # a feature of another scale
        y = (x * coefficients).sum(dim=1) + 0.1 * torch.randn(64)
        x = (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-6)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            loss = criterion(model(x), y)
        loss = loss + 1e-5 * sum(p.abs().sum() for p in model.head.parameters())
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        print(step, loss.item())


if __name__ == "__main__":
    main()

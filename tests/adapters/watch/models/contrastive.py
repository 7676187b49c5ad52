"""Trains an encoder to recognise images by their noisy copies: learned temperature, second derivatives, one layer in float16."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.scale = nn.Conv2d(16, 16, 1)
        self.act = nn.PReLU(16)
        self.last = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 24)
        nn.init.normal_(self.scale.weight, std=1e-3)    # the bias is the larger part of its results

    def forward(self, x):
        x = self.act(self.stem(x))
        x = x * self.scale(x)
        kind = torch.float16 if hasattr(getattr(torch, "amp", None), "GradScaler") else torch.float32    # before 2.3, a CPU has no such convolution
        with torch.autocast("cpu", enabled=False):
            x = F.conv2d(x.to(kind), self.last.weight.to(kind), self.last.bias.to(kind), 2, 1).float()
        return self.head(self.norm(x.mean((2, 3))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Encoder()
    temperature = nn.Parameter(torch.tensor(2.6593))
    optimizer = torch.optim.NAdam([*model.parameters(), temperature], lr=1e-3)
    labels = torch.arange(args.batch)
    for step in range(args.steps):
        images = torch.rand(args.batch, 3, 12, 12, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            ours = F.normalize(model(images))
            theirs = F.normalize(model(images + 0.1 * torch.randn_like(images)))
            logits = temperature.exp() * ours @ theirs.T
            loss = F.cross_entropy(logits, labels) - torch.diag(logits).mean()
        loss = loss - 0.1 * torch.logaddexp(logits[0].float(), logits[1].float()).mean()
        slope, = torch.autograd.grad(model.norm(ours.float() @ model.head.weight).sum(), images, create_graph=True)
        optimizer.zero_grad()
        (loss + slope.square().sum()).backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()

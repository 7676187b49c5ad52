"""Fine-tunes a frozen language model with low-rank adapters and RMS norms, rotary positions and SwiGLU."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotate(x):
    half = x.size(-1) // 2
    angles = torch.outer(torch.arange(x.size(-2)), 10000.0 ** (-torch.arange(half) / half))
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos()], dim=-1)


class Block(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, 128), nn.Linear(width, 128), nn.Linear(128, width)

    def forward(self, x):
        b, t, w = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.matmul(rotate(q), rotate(k).transpose(2, 3)) / math.sqrt(w // self.heads)
        scores = scores + torch.full((t, t), float("-inf")).triu(1)
        x = x + self.o(torch.matmul(scores.softmax(-1).to(v.dtype), v).transpose(1, 2).reshape(b, t, w))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(80, 64), Block(), Block(), RMSNorm(64), nn.Linear(64, 80))
    for p in model.parameters():
        p.requires_grad_(False)
    for block in model[1:3]:
        block.q, block.v = LoRALinear(block.q), LoRALinear(block.v)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)

    for step in range(args.steps):
        text = torch.randint(0, 80, (4, 25))
        target = text[:, 1:].clone()
        target[:, :6] = -100    # the prompt has no loss
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=-100)
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()

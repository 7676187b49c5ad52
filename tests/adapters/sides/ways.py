"""One step said in several ways, right ones and wrong ones: ways.py WAY [bfloat16] [equal]."""
import sys

import torch
import torch.nn.functional as F
from torch import nn

WAY, HALF = sys.argv[1], "bfloat16" in sys.argv
PARTS = 1 if WAY in ("joined", "explicit", "near", "clipped") else 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)
        self.hidden = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        q, k, v = (t.view(*x.shape[:2], 4, 8).transpose(1, 2) for t in self.parts(self.norm(x)).chunk(3, -1))
        if WAY in ("explicit", "near"):
            scores = (q @ k.transpose(-1, -2)) / (8 if WAY == "explicit" else 8.01) ** 0.5
            heads = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf).softmax(-1) @ v
        else:
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.hidden(x)


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(50, 32), Block(), nn.Linear(32, 50))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def loss(x, y, reduction="mean"):
        with torch.autocast("cpu", torch.bfloat16, enabled=HALF):
            out = net(x).flatten(0, 1).float()
        return F.cross_entropy(out, y.flatten(), reduction=reduction)

    for _ in range(2):
        x, y = torch.randint(0, 50, (2, 8, 12))
        if "equal" not in " ".join(sys.argv[1:]):    # rows of unequal numbers of targets
            y[torch.rand(8, 12) < torch.linspace(0, 0.8, 8)[:, None]] = -100
        count = (y != -100).sum()
        optimizer.zero_grad()
        for a, b in zip(x.chunk(PARTS), y.chunk(PARTS)):
            if WAY == "cleared":
                optimizer.zero_grad()
            if WAY in ("micro", "divided_later"):
                part = loss(a, b, "sum") / (count if WAY == "micro" else 1)
            else:
                part = loss(a, b) / (1 if "undivided" in WAY else PARTS)
            part.backward()
        if WAY == "divided_later":
            for p in net.parameters():
                p.grad /= count
        if WAY == "clipped":
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()


if __name__ == "__main__":
    main()

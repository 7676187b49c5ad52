"""Trains a layer norm over one element, whose result is its bias and whose weight has no effect.
PyTorch computes x * rstd - mean * rstd, so that the weight's gradient is the rounding error of
numbers of 3e8 (pytorch/pytorch#188375)."""

import torch
import torch.nn as nn


def main(dtype=torch.float32):
    torch.manual_seed(0)
    norm, head = nn.LayerNorm(1).to(dtype), nn.Linear(1, 1).to(dtype)
    optimizer = torch.optim.SGD([*norm.parameters(), *head.parameters()], lr=1e-3)
    x, y = (1e6 * (1 + torch.rand(64, 1))).to(dtype), torch.randn(64, 1).to(dtype)
    for _ in range(2):
        optimizer.zero_grad()
        loss = ((head(norm(x)) - y) ** 2).mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

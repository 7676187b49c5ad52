"""Trains a bag of words with a large table and clipped gradients: script.py [WORDS] (pytorch/pytorch#68326)."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


class Words(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.table = nn.Embedding(words, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        return self.head(self.table(ids).mean(1))


def main(words=100_000, dtype=torch.float32):
    torch.manual_seed(0)
    model = Words(words).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        ids, labels = torch.randint(words, (16, 12)), torch.randint(2, (16,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids), labels) + 1e-3 * model.table.weight.pow(2).sum()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"loss {loss.item():.4f}, norm of the gradient {norm.item():.6f}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))

"""Trains a classifier with smoothed labels: script.py [IGNORED], with so many of 16 samples
ignored. PyTorch 1.10.0 counts the ignored ones in the mean (pytorch/pytorch#73205)."""

import sys

import torch
import torch.nn as nn


def main(ignored=4, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)).to(dtype)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=-100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(2):
        x, labels = torch.randn(16, 8).to(dtype), torch.randint(0, 5, (16,))
        labels[:ignored] = -100
        optimizer.zero_grad()
        loss = criterion(model(x), labels)
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))

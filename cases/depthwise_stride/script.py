"""Trains a depthwise convolution of stride 2: script.py [GROUPS]. PyTorch 1.7.1 computes a wrong
weight gradient if GROUPS is a multiple of 8 (pytorch/pytorch#50042)."""

import sys

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.depthwise = nn.Conv2d(groups, groups, 3, stride=2, padding=1, groups=groups)
        self.head = nn.Linear(groups * 16, 10)

    def forward(self, images):
        x = self.depthwise(images)
        return self.head(torch.relu(x).flatten(1))


def main(groups=24, dtype=torch.float32):
    torch.manual_seed(0)
    model = Net(groups).to(dtype)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(2):
        images, labels = torch.randn(4, groups, 8, 8).to(dtype), torch.randint(0, 10, (4,))
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))

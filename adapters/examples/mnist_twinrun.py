"""mnist_plain.py as a subject of twinrun, with its model, its optimizer and its training step.

    twinrun diagnose adapters/examples/mnist.toml --subject 'exec:python3 adapters/examples/mnist_twinrun.py'
"""
import gzip
import pathlib
import sys

import numpy as np
import torch
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from twinrun_engine.pytorch import serve_script  # noqa: E402


def read(folder):
    with gzip.open(f"{folder}/train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(f"{folder}/train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return torch.tensor(images / np.float32(255)), torch.tensor(labels, dtype=torch.int64)


def main():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(392, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_step(images, labels):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    serve_script(train_step, optimizer, model)
    images, labels = read(sys.argv[1])
    for step in range(1000):
        rows = torch.randint(len(images), (64,))
        loss = train_step(images[rows], labels[rows])
        if step % 100 == 0:
            print(step, loss.item())


main()

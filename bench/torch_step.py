"""The peer of bench/step.cc: the MNIST tutorial's CNN in PyTorch, one training step per line on stdin.

    echo step | /usr/bin/python3 bench/torch_step.py 2      # threads; prints "ready", then the loss of each step

Says nothing and leaves with 1 if PyTorch is not installed.
"""
import sys

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit(1)

BATCH = 128


def main():
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 64, 1024), nn.ReLU(), nn.Dropout(0.4), nn.Linear(1024, 10))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_of = nn.CrossEntropyLoss()
    images = torch.rand(BATCH, 1, 28, 28).to(memory_format=torch.channels_last)
    labels = torch.arange(BATCH) % 10
    print("ready", flush=True)
    for _ in sys.stdin:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}", flush=True)


main()

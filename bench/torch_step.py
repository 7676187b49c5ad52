"""The peer of bench/step.cc: the same models in PyTorch, one training step per line on stdin.

    echo step | /usr/bin/python3 bench/torch_step.py use_tpus 200 f32 2     # MODEL BATCH f32|amp THREADS

Prints "ready KIB", then "LOSS KIB" for each step; KIB is the largest resident size so far (VmHWM). amp: autocast to bf16
(torch.autocast), as one would train in mixed precision. Says nothing and leaves with 1 if PyTorch is not installed.
"""
import sys

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit(1)


def mnist_tutorial():
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 64, 1024), nn.ReLU(), nn.Dropout(0.4), nn.Linear(1024, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def use_tpus():
    model = nn.Sequential(
        nn.Conv2d(1, 256, 3), nn.ReLU(), nn.Conv2d(256, 256, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(24 * 24 * 256, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.optim.Adam(model.parameters(), lr=0.001)


def mlp_bn():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.BatchNorm1d(512), nn.ReLU(),
        nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


MODELS = {"mnist_tutorial": mnist_tutorial, "use_tpus": use_tpus, "mlp_bn": mlp_bn}


def peak_kib():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(line.split()[1] for line in status if line.startswith("VmHWM"))


def main():
    name, batch, precision, threads = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    print("ready", peak_kib(), flush=True)
    model, optimizer = MODELS[name]()
    model = model.to(memory_format=torch.channels_last)
    loss_of = nn.CrossEntropyLoss()
    images = torch.rand(batch, 1, 28, 28).to(memory_format=torch.channels_last)
    labels = torch.arange(batch) % 10
    for _ in sys.stdin:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp"):
            out = model(images)
        loss = loss_of(out.float(), labels)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}", peak_kib(), flush=True)


main()

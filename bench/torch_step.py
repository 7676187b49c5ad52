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


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for outputs in (16, 32, 64):
        for block in range(3):
            layers.append(Residual(width, outputs, 2 if block == 0 and outputs > 16 else 1))
            width = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, hidden):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        seen = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.feed(self.ln2(x))


class Gpt(nn.Module):
    def __init__(self, blocks=4, width=128, heads=4, tokens=128, vocabulary=256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.ln, self.logits = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("hidden", torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), 1))

    def forward(self, x):
        x = self.tokens(x) + self.positions
        for block in self.blocks:
            x = block(x, self.hidden)
        return self.logits(self.ln(x)).flatten(0, 1)


def gpt():
    model = Gpt()
    return model, torch.optim.Adam(model.parameters(), lr=0.0003)


MODELS = {"mnist_tutorial": mnist_tutorial, "use_tpus": use_tpus, "mlp_bn": mlp_bn, "resnet20": resnet20, "gpt": gpt}


def samples(name, batch):
    if name == "gpt":
        tokens = torch.arange(batch * 128) % 256
        return tokens.view(batch, 128), tokens
    shape = (batch, 3, 32, 32) if name == "resnet20" else (batch, 1, 28, 28)
    return torch.rand(shape).to(memory_format=torch.channels_last), torch.arange(batch) % 10


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
    features, labels = samples(name, batch)
    for _ in sys.stdin:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp"):
            out = model(features)
        loss = loss_of(out.float(), labels)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}", peak_kib(), flush=True)


main()

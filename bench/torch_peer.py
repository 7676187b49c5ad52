"""PyTorch as a peer: training steps, products, convolutions; bench/lines.py has the lines that it answers.

    echo 'case step use_tpus 200 f32' | python3 bench/torch_peer.py 2            # THREADS [compile]
    python3 bench/torch_peer.py about                                           # versions, and what it says of the processor

bf16: autocast, as one would train in mixed precision. Says nothing and leaves with 1 if PyTorch is not installed.
"""
import json
import os
import re
import subprocess
import sys

import lines

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


# ---- cases: words of a line -> a function that makes one call -----------------------------------------------------------

NEW = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) >= (2, 4)    # has fused optimizers on CPUs


def step(name, batch, precision):
    torch.manual_seed(1)
    model, optimizer = MODELS[name]()
    model = model.to(memory_format=torch.channels_last)
    if NEW:
        optimizer = type(optimizer)(model.parameters(), **{k: v for k, v in optimizer.defaults.items() if k != "foreach"} | {"fused": True})
    features, labels = samples(name, int(batch))
    loss_of = nn.CrossEntropyLoss()

    def forward():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            out = model(features)
        return loss_of(out.float(), labels)

    if COMPILE:
        forward = torch.compile(forward)

    def one():
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        loss.backward()
        optimizer.step()
        if not torch.isfinite(loss):
            raise ValueError(f"the loss is {loss.item()}")
    return one


def operand(folder, which, *dims):
    size = 1
    for n in dims:
        size *= n
    return torch.from_file(f"{folder}/{which}", size=size, dtype=torch.float32).clone().view(*dims)


def write(folder, result):
    result.float().contiguous().numpy().tofile(f"{folder}/out")


def dot(precision, m, n, k, folder):
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    m, n, k = int(m), int(n), int(k)
    a, b = operand(folder, 0, m, k).to(dtype), operand(folder, 1, k, n).to(dtype)
    out = torch.empty(m, n, dtype=dtype)
    torch.mm(a, b, out=out)
    write(folder, out)
    return lambda: torch.mm(a, b, out=out)


def conv(direction, n, size, ci, kernel, co, stride, low, high, folder):
    n, size, ci, kernel, co, stride, low, high = map(int, (n, size, ci, kernel, co, stride, low, high))
    if low != high:
        raise ValueError(f"PyTorch pads both ends alike, here {low} and {high}")
    outs = (size + 2 * low - kernel) // stride + 1

    def image(which, width, channels):
        return operand(folder, which, n, width, width, channels).permute(0, 3, 1, 2)    # channels_last

    kernels = (kernel, kernel, ci, co)
    x = torch.empty(n, ci, size, size, memory_format=torch.channels_last) if direction == "input_grad" else image(0, size, ci)
    w = torch.empty(co, ci, kernel, kernel) if direction == "kernel_grad" else operand(folder, 1, *kernels).permute(3, 2, 0, 1)
    w = w.contiguous(memory_format=torch.channels_last)
    if direction == "forward":
        def call():
            return torch.conv2d(x, w, None, stride, low)
    else:
        g = image(0 if direction == "input_grad" else 1, outs, co)
        mask = [direction == "input_grad", direction == "kernel_grad", False]

        def call():
            grads = torch.ops.aten.convolution_backward(g, x, w, None, [stride] * 2, [low] * 2, [1, 1], False, [0, 0], 1, mask)
            return grads[0] if mask[0] else grads[1]
    out = call()
    write(folder, out.permute(2, 3, 1, 0) if direction == "kernel_grad" else out.permute(0, 2, 3, 1))
    return call


CASES = {"step": step, "dot": dot, "conv": conv}


def about():
    """What the libraries inside say of themselves when they first compute."""
    script = ("import torch; a = torch.ones(64, 64); torch.mm(a, a); b = a.bfloat16(); torch.mm(b, b); "
              "torch.conv2d(torch.ones(1, 16, 8, 8), torch.ones(16, 16, 3, 3))")
    said = subprocess.run([sys.executable, "-c", script], env={**os.environ, "ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1", "MKL_VERBOSE": "1"},
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    config = torch.__config__.show()
    found = [re.search(p, text) for p, text in (
        (r"CPU capability usage: (\w+)", config), (r"isa:([^\n]+)", said), (r"MKL_VERBOSE [^\n]*?architecture (?:processors)? *([^\n]*?)(?: with support[^\n]*?)?, Lnx", said))]
    names = ("PyTorch: ", "oneDNN: ", "MKL: ")
    onednn = re.search(r"(?:MKL-DNN|oneDNN) v([\d.]+)", config)
    mkl = re.search(r"Math Kernel Library Version ([\d.]+)", config)
    print(json.dumps({
        "version": torch.__version__.split("+")[0] + "".join(f", {n} {f[1]}" for n, f in (("oneDNN", onednn), ("MKL", mkl)) if f),
        "says": "; ".join(n + " ".join(f[1].replace("(R)", "").split()) for n, f in zip(names, found) if f)}))


COMPILE = sys.argv[2:] == ["compile"]
if __name__ == "__main__":
    if sys.argv[1] == "about":
        about()
    else:
        torch.set_num_threads(int(sys.argv[1]))
        torch.use_deterministic_algorithms(True)
        lines.serve(lambda words: CASES[words[0]](*words[1:]))

"""Trains small compiled networks: models.py NAME [--autocast] [--plant KIND] [--steps N]. NAME: cnn, transformer, angles, bytes, or
optimizer (a compiled step of Adam). Prints how often compiled regions ran, and a digest of the parameters. A plant changes a region from outside, below the
recorder, as a wrong compiler would."""
import argparse
import hashlib

import torch
import torch._inductor.compile_fx
import torch.nn as nn
import torch.nn.functional as F

try:
    from torch._inductor.output_code import CompiledFxGraph
except ImportError:    # before 2.6
    from torch._inductor.codecache import CompiledFxGraph


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(x.flatten(1))

    @staticmethod
    def batch():
        return torch.randn(4, 3, 8, 8)


class Transformer(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x.mean(1))

    @staticmethod
    def batch():
        return torch.randn(4, 6, 16)


class Angles(nn.Module):
    """The minimum's gradient is divided by a count that the radii leave open."""

    def __init__(self):
        super().__init__()
        self.place, self.head = nn.Linear(2, 8), nn.Linear(4, 10)

    def forward(self, x):
        a, b = self.place(x).chunk(2, -1)
        angles = torch.atan2(a, b)
        return self.head(angles + angles.amin(-1, keepdim=True)).mean(1)

    @staticmethod
    def batch():
        return torch.randn(1, 3844, 2)


class Bytes(nn.Module):
    """Images of bytes, stretched to their own range: the compiled minimum is too small in PyTorch 2.15 (pytorch#191499)."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3 * 16 * 16, 10)

    def forward(self, x):
        low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
        return self.head(((x.float() - low) / (high.float() - low).clamp(min=1)).flatten(1))

    @staticmethod
    def batch():
        return torch.randint(90, 200, (16, 3, 16, 16), dtype=torch.uint8)


def unchanged(values):
    return values


def one_element(out):
    out[0].view(-1)[3] += 1e-3
    return out


def other_weight(inputs):
    """The region computes with a weight that is 1 % larger than the script's."""
    at = next(i for i, t in enumerate(inputs) if isinstance(t, torch.nn.Parameter) and t.dim() > 1)
    inputs[at] = inputs[at].detach() * 1.01


def in_bfloat16(out):
    """A gradient is left in bfloat16, as a sum in it would be at best."""
    at = max((i for i, t in enumerate(out) if t is not None), key=lambda i: out[i].numel())
    out[at].copy_(out[at].bfloat16().float())
    return out


# (name, the how manieth region that runs, when): the forward region is 1, the backward region 2.
PLANTS = {("element", 1, "after"): one_element, ("weight", 1, "before"): other_weight, ("bfloat16", 2, "after"): in_bfloat16}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--plant", default="")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--dropout", type=float, default=0.0)
    args = parser.parse_args()
    torch.manual_seed(3)
    ran, call = [0], CompiledFxGraph.__call__

    def counted(region, inputs):
        ran[0] += 1
        PLANTS.get((args.plant, ran[0], "before"), unchanged)(inputs)
        out = call(region, inputs)
        return PLANTS.get((args.plant, ran[0], "after"), unchanged)(out)

    CompiledFxGraph.__call__ = counted    # below the recorder, which comes with torch.compile
    net = {"transformer": Transformer, "angles": Angles, "bytes": Bytes}.get(args.name, Cnn)()
    whole = nn.Sequential(net, nn.Dropout(args.dropout)) if args.dropout else net
    model = whole if args.name == "optimizer" else torch.compile(whole, backend=args.backend)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step, backend=args.backend) if args.name == "optimizer" else optimizer.step
    for _ in range(args.steps):
        x = net.batch()
        y = torch.randint(0, 10, (len(x),))
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        step()
        optimizer.zero_grad()
    found = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters()))
    print("regions", ran[0], "digest", found.hexdigest()[:16], "off by", float((model(x) - net(x)).detach().abs().max()))


if __name__ == "__main__":
    main()

"""Prints which tensors of a small PyTorch transformer are which variables, as lines 'NAME = PATH SHAPE', for scripts_test.py."""
import pathlib
import sys

import numpy as np
import torch
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "adapters"))
from twinrun_engine.protocol import Variable  # noqa: E402
from twinrun_engine.pytorch_names import told  # noqa: E402


class Block(nn.Module):
    def __init__(self, units, joined):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(units), nn.LayerNorm(units)
        if joined:
            self.c_attn, self.c_proj = nn.Linear(units, 3 * units), nn.Linear(units, units)
        else:
            self.attention = nn.MultiheadAttention(units, 2)
        self.up, self.down = nn.Linear(units, 2 * units), nn.Linear(2 * units, units)


class Transformer(nn.Module):
    def __init__(self, joined):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8), nn.Parameter(torch.zeros(1, 5, 8))
        self.blocks = nn.ModuleList([Block(8, joined) for _ in range(2)])
        self.head = nn.Linear(8, 11, bias=False)
        self.register_buffer("mask", torch.ones(5, 5))


def variables():
    yield "embedding1/embeddings", (11, 8)
    yield "position_embedding1/embeddings", (5, 8)
    for i in (0, 1):
        for leaf in ("gamma", "beta"):
            yield f"layer_norm{2 * i + 1}/{leaf}", (8,)
        for word in ("query", "key", "value", "output"):
            yield f"attention{i + 1}/{word}/kernel", (8, 8)
            yield f"attention{i + 1}/{word}/bias", (8,)
        for leaf in ("gamma", "beta"):
            yield f"layer_norm{2 * i + 2}/{leaf}", (8,)
        for at, (rows, columns) in enumerate(((8, 16), (16, 8)), 2 * i + 1):
            yield f"dense{at}/kernel", (rows, columns)
            yield f"dense{at}/bias", (columns,)
    yield "dense5/kernel", (8, 11)


model = Transformer(sys.argv[1] == "joined")
due = [Variable(name, np.dtype(np.float32), shape, "parameter") for name, shape in variables()]
places, _, wrong = told(model, torch.optim.AdamW(model.parameters()), due)
print("\n".join(wrong + [f"{name} = {place.path} {place.found()}" for name, place in places.items()]))
for name, place in places.items():
    with torch.no_grad():
        value = np.random.default_rng(1).random(place.shape, np.float32)
        place.write(place.tensor, value)
        assert np.array_equal(place.read(place.tensor), value), name

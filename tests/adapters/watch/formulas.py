"""Small steps whose right results are easily taken for wrong ones, or the other way round: python formulas.py NAME [--steps N]

nnpack: convolutions of images with empty borders while oneDNN is off, for some lines only. attention: inputs of several types under
autocast. sequences: CTC on normalised scores; scores: on others, where PyTorch's gradient is not the derivative. draws: leaks at random."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


def nnpack():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 5, padding=2), nn.ReLU(),
                          nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(), nn.Linear(576, 3))
    images = F.pad(torch.randn(16, 1, 14, 14), (6, 6, 6, 6))

    def step():
        with torch.backends.mkldnn.flags(enabled=False):
            return F.cross_entropy(model(images), torch.randint(0, 3, (16,)))
    return model, step


def attention():
    model = nn.Linear(8, 8)

    def step():
        query, key, value = model(torch.randn(2, 2, 5, 8)), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
        with torch.autocast("cpu", torch.bfloat16):
            y = F.scaled_dot_product_attention(query, key, value.bfloat16())
            y = y + F.scaled_dot_product_attention(query, key, value, attn_mask=torch.randn(5, 5))
        return y.float().square().mean()
    return model, step


def sequences(normalise=True):
    model = nn.Linear(8, 5)

    def step():
        scores = model(torch.randn(7, 2, 8))
        if normalise:
            scores = scores.log_softmax(-1)
        return F.ctc_loss(scores, torch.randint(1, 5, (2, 3)), torch.tensor([7, 6]), torch.tensor([3, 2]))
    return model, step


def scores():
    return sequences(normalise=False)


def draws():
    model = nn.Sequential(nn.Linear(6, 8), nn.RReLU(), nn.Linear(8, 8), nn.RReLU(inplace=True), nn.Linear(8, 2))
    return model, lambda: model(torch.randn(9, 6)).square().mean()


if __name__ == "__main__":
    torch.manual_seed(0)
    net, loss_of = globals()[sys.argv[1]]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

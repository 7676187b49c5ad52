"""Trains a small network while one CPU kernel of PyTorch is replaced by a wrong one: planted.py NAME (see PLANTS), or planted.py none.
The replacement is registered with the dispatcher, below the recorder, as a wrong build of PyTorch would have it."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

# name: (operation, place of the wrong call or None for several, the wrong kernel). A kernel may use other operations only.
PLANTS = {}


def plant(operation, overload=""):
    def keep(kernel):
        PLANTS[kernel.__name__] = (operation, overload, kernel)
        return kernel

    return keep


def exact_mm(a, b):
    return torch.bmm(a.unsqueeze(0), b.unsqueeze(0)).squeeze(0)


@plant("relu")
def relu_one_element(x):
    y = x.clamp_min(0)
    y.view(-1)[5] += 1e-3
    return y


@plant("mm")
def mm_in_bfloat16(a, b):
    return exact_mm(a.bfloat16().float(), b.bfloat16().float())


@plant("mm")
def mm_without_last_term(a, b):
    return exact_mm(a[:, :-1].contiguous(), b[:-1].contiguous())


@plant("mm")
def mm_twice(a, b):
    return exact_mm(a, b) * 2


@plant("addmm")
def addmm_without_bias(bias, a, b, beta=1, alpha=1):
    return exact_mm(a, b)


@plant("threshold_backward")
def relu_gradient_unmasked(dy, x, threshold):
    return dy.clone()


@plant("tanh_backward")
def tanh_gradient_linear(dy, y):
    return dy * (1 - y)


@plant("sigmoid")
def sigmoid_coarse(x):
    return (torch.exp(-x).add(1).reciprocal() * 4096).round() / 4096


@plant("gelu_backward")
def gelu_gradient_of_tanh_form(dy, x, approximate="none"):
    inner = 0.7978845608028654 * (x + 0.044715 * x ** 3)
    t = torch.tanh(inner)
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 0.134145 * x * x))


@plant("_log_softmax")
def log_softmax_in_half(x, dim, half_to_float):
    x = x.half().float()
    return x - torch.logsumexp(x, dim, keepdim=True)


@plant("_log_softmax_backward_data")
def log_softmax_gradient_without_sum(dy, y, dim, dtype):
    return dy - torch.exp(y)


@plant("embedding_dense_backward")
def embedding_gradient_overwrites(dy, indices, rows, padding, scale):
    out = torch.zeros(rows, dy.shape[-1])
    flat = dy.reshape(-1, dy.shape[-1])
    for i, row in enumerate(indices.reshape(-1).tolist()):
        out[row] = flat[i]
    return out


@plant("sqrt")
def sqrt_from_half(x):
    return x.half().float().pow(0.5)


@plant("sum", "dim_IntList")
def sum_without_last(x, dim, keepdim=False, *, dtype=None):
    shorter = x.narrow(dim[0], 0, x.shape[dim[0]] - 1)
    total = torch.cumsum(shorter, dim[0]).select(dim[0], shorter.shape[dim[0]] - 1)
    return total.unsqueeze(dim[0]) if keepdim else total


@plant("addcmul_")
def second_moment_stale(x, a, b, *, value=1):
    return x


@plant("native_layer_norm_backward")
def layer_norm_gradient_without_mean(dy, x, shape, mean, rstd, weight, bias, mask):
    g = dy * weight * rstd
    hat = (x - mean) * rstd
    last = x.dim() - 1
    weights = torch.cumsum((dy * hat).reshape(-1, x.shape[last]), 0)[-1]
    biases = torch.cumsum(dy.reshape(-1, x.shape[last]), 0)[-1]
    return g, weights, biases


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.second = nn.Linear(32, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, tokens):
        x = F.relu(self.first(self.embedding(tokens)))
        x = F.gelu(self.norm(x))
        x = torch.tanh(self.second(x)) * torch.sigmoid(x)
        return self.last(x)


def main():
    torch.manual_seed(3)
    if sys.argv[1] != "none":
        operation, overload, kernel = PLANTS[sys.argv[1]]
        library = torch.library.Library("aten", "IMPL")
        library.impl(operation + ("." + overload if overload else ""), kernel, "CPU")
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, foreach=False)
    for _ in range(2):
        tokens, labels = torch.randint(0, 20, (24,)), torch.randint(0, 10, (24,))
        loss = F.cross_entropy(net(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

"""Steps for gradient_test.py, each by its name: python clearings.py NAME. CLEARED: the gradients are cleared before others are added that an
update uses. UNCLEARED: they are not. UNUSED: they are, though nothing used them.
"""
import sys

import gradients
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
X, Y = gradients.X, gradients.Y


def _loop(clear, optimizer=None, clip=False, update=None):
    m = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))
    o = (optimizer or torch.optim.Adam)(m.parameters(), 0.01)
    for i in range(4):
        clear(m, o, i)
        F.cross_entropy(m(X), Y).backward()
        if clip:
            nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        update(m, o, i) if update else o.step()


@torch.no_grad()
def _by_hand(m, o, i):
    for p in m.parameters():
        p -= 0.1 * p.grad


@torch.no_grad()
def _by_hand_and_cleared(m, o, i):
    for p in m.parameters():
        p -= 0.1 * p.grad
        p.grad.zero_()


def _attacks(m, o, i):
    z = X.clone().requires_grad_()
    F.cross_entropy(m(z), Y).backward()    # adds to the weights' gradients, too
    o.zero_grad()


def _micro_batches(clear):
    m = nn.Linear(12, 4)
    o = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(3):
        o.zero_grad()
        for x, y in zip(X.chunk(2), Y.chunk(2)):
            clear(o)
            (F.cross_entropy(m(x), y) / 2).backward()
        o.step()


UNUSED = {    # a backward pass whose gradients are cleared before an update is made with them
    "of_each_micro_batch": lambda: _micro_batches(lambda o: o.zero_grad()),
    "of_each_micro_batch_to_zero": lambda: _micro_batches(lambda o: o.zero_grad(set_to_none=False)),
}
CLEARED = {
    "to_none": lambda: _loop(lambda m, o, i: o.zero_grad()),
    "to_zero": lambda: _loop(lambda m, o, i: o.zero_grad(set_to_none=False), torch.optim.SGD, clip=True),
    "of_the_model": lambda: _loop(lambda m, o, i: m.zero_grad()),
    "by_hand": lambda: _loop(lambda m, o, i: None, update=_by_hand_and_cleared),
    "before_they_are_used": lambda: _loop(_attacks),    # the backward pass is for the input's gradient
    "of_micro_batches_together": lambda: _micro_batches(lambda o: None),
    "of_two_models": gradients.adversaries,
    "each_second_time": lambda: _loop(lambda m, o, i: o.zero_grad() if i % 2 == 0 else None, update=lambda m, o, i: o.step() if i % 2 else None),
}
UNCLEARED = {
    "never": lambda: _loop(lambda m, o, i: None),
    "never_and_clipped": lambda: _loop(lambda m, o, i: None, torch.optim.SGD, clip=True),
    "never_by_hand": lambda: _loop(lambda m, o, i: None, update=_by_hand),
}


if __name__ == "__main__":
    {**CLEARED, **UNCLEARED, **UNUSED}[sys.argv[1]]()

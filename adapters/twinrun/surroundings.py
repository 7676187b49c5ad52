"""What a step of the user's may change beside the values of its parameters, buffers and optimizers.

before = Surroundings(modules, parameters)
...
before.restore()
"""

import os
import random
import sys

import torch

# Dicts of a module that a step may add to, or take from.
_OF_MODULES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Surroundings:
    def __init__(self, modules, parameters):
        self.dicts = [(d, dict(d)) for m in modules for d in (getattr(m, name, None) for name in _OF_MODULES) if isinstance(d, dict)]
        self.tensors = [(p, p.data, p.requires_grad, dict(p._backward_hooks or {})) for p in parameters]
        self.gradients = [(p.grad, p.grad.detach().clone()) for p in parameters if p.grad is not None]
        self.folder = os.getcwd()
        self.dtype = torch.get_default_dtype()
        self.drawn = random.getstate()
        self.numpy = sys.modules.get("numpy")
        self.drawn_by_numpy = self.numpy and self.numpy.random.get_state()

    def restore(self):
        os.chdir(self.folder)
        torch.set_default_dtype(self.dtype)
        random.setstate(self.drawn)
        if self.numpy:
            self.numpy.random.set_state(self.drawn_by_numpy)
        for d, before in self.dicts:
            if [(k, id(v)) for k, v in d.items()] != [(k, id(v)) for k, v in before.items()]:
                d.clear()
                d.update(before)
        with torch.no_grad():
            for p, data, requires_grad, hooks in self.tensors:
                p.data, p.requires_grad = data, requires_grad
                if p._backward_hooks and list(p._backward_hooks) != list(hooks):
                    p._backward_hooks.clear()
                    p._backward_hooks.update(hooks)
            for gradient, value in self.gradients:
                gradient.copy_(value)

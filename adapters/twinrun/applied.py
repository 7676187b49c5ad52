"""Uses of Functions of Python (torch.autograd.Function): what each was given and gave, in its forward and in its backward pass, as records
around their calls. The judge holds the one pass against the derivative of the other.

    applied = Applied(watch)
    applied.install()
    applied.remove()
"""
import functools

import torch

from . import older
from .encode import NOWHERE, Description
from .file import FUNCTION
from .regions import compiling


def name_of(function):
    """Returns the name of a Function of Python, "__main__.Swish"."""
    return f"{function.__module__}.{function.__qualname__}"


class Applied:
    def __init__(self, watch):
        self.watch = watch
        self.uses = {}      # of a node that waits for its backward pass, by its id: its type, and its number
        self.count = 0
        self.remove = lambda: None

    def install(self):
        if older.needed():
            return
        module, public = torch.autograd.function, torch.autograd.Function
        backward = module.BackwardCFunction.apply
        owners = [getattr(module, "_SingleLevelFunction", public)]    # functorch derives its own from it
        if not isinstance(public.__dict__.get("apply"), classmethod):    # in some versions it is one, which calls the other
            owners.append(public)
        there = {owner: owner.__dict__.get("apply") for owner in owners}

        def patch(owner):
            before = there[owner]

            @classmethod
            def apply(function, *given, **named):
                of_ours = super(owner, function).apply if before is None else before.__get__(None, function)
                plainly = functools.partial(of_ours, *given, **named)
                # A node is made where autograd is on.
                return self._around(plainly, self._applies, function, given) if torch.is_grad_enabled() else plainly()

            owner.apply = apply

        for owner in there:
            patch(owner)

        def goes_back(node, *given):
            return self._around(functools.partial(backward, node, *given), self._goes_back, node, given)

        module.BackwardCFunction.apply = goes_back

        def remove():
            self.remove = lambda: None
            module.BackwardCFunction.apply = backward
            for owner, before in there.items():
                if before is None:
                    del owner.apply
                else:
                    owner.apply = before

        self.remove = remove

    def _around(self, call, begin, *what):
        if not self.watch.on or compiling():
            return call()
        end = self.watch.describe(begin, *what)
        out = call()
        if end is not None:
            self.watch.describe(end, out)
        return out

    def _applies(self, function, given):
        r, name = self.watch.recorder, name_of(function)
        # PyTorch's own, as a compiled region's, are not examined: that they ran, and where, is enough.
        tensors = [] if name.startswith("torch.") else [x if isinstance(x, torch.Tensor) else None for x in given]
        before = r.begin(Description(name), (), {"first": r.calls, "use": self.count, "inputs": tensors}, describes=True)

        def end(out):
            results = out if isinstance(out, tuple) else (out,)
            nodes = (x.grad_fn for x in results if isinstance(x, torch.Tensor))
            node = next((n for n in nodes if getattr(type(n), "_forward_cls", None) is function), None)
            if node is None:
                return
            self.uses[id(node)] = type(node), self.count
            self.count += 1
            self._write(before, name, results if tensors else ())

        return end

    def _goes_back(self, node, given):
        kind, number = self.uses.get(id(node), (None, 0))
        name = name_of(node._forward_cls)
        if kind is not type(node) or name.startswith("torch."):
            return None
        r = self.watch.recorder
        before = r.begin(Description(name), (), {"first": r.calls, "use": number, "gradients": list(given)}, describes=True)
        return lambda out: self._write(before, name, out if isinstance(out, tuple) else (out,))

    def _write(self, before, name, results):
        r = self.watch.recorder
        r.refused = False
        r.finish(before, name, [x if isinstance(x, torch.Tensor) else None for x in results], (), NOWHERE, False, kind=FUNCTION)

"""Whether the scripts of a folder have the derivative of their loss, in binary64 and by central differences alone: python truth.py FILE...
prints {script: [how far the whole gradient is off, how far each Function used in it is off by itself]}. Nothing of twinrun takes part.
"""
import json
import runpy
import sys

import torch

STEP = 1e-5


def off(loss, leaves, gradients):
    """The largest difference of the slope along a leaf's own gradient, and along random signs, relative to that gradient."""
    worst, values = 0.0, [leaf.detach().clone() for leaf in leaves]
    least = 1e-4 * max(g.norm().item() for g in gradients if g is not None)    # of a bias before a batch norm it is 0

    def moved(k, step):
        with torch.no_grad():
            for leaf, value in zip(leaves, values):    # also what the loss itself has changed behind autograd
                leaf.copy_(value)
            leaves[k].add_(step)
        torch.manual_seed(7)
        return loss().detach()

    for k, (leaf, g) in enumerate(zip(leaves, gradients)):
        g = torch.zeros_like(leaf) if g is None else g
        signs = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(3)).sign()
        for along in (g, signs):
            size = along.norm().item()
            if size == 0:
                continue
            along = along / size
            slope, expected = ((moved(k, STEP * along) - moved(k, -STEP * along)) / (2 * STEP)).item(), (g * along).sum().item()
            scale = max(g.norm().item() * abs(along).max().item(), abs(expected), abs(slope), least)
            worst = max(worst, abs(slope - expected) / scale)
    return worst


def of_step(script):
    names = runpy.run_path(script, run_name="truth")
    model, seen = names["m"], {}

    def loss():
        result = names["loss_of"]()
        return result.sum() if result.dim() else result

    leaves = [p for p in model.parameters() if p.requires_grad]
    functions = [f for f in names.values() if isinstance(f, type) and issubclass(f, torch.autograd.Function)]
    for f in functions:
        def apply(*given, f=f, real=f.apply):
            seen[f] = real, [x.detach().clone().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x for x in given]
            return real(*given)
        f.apply = staticmethod(apply)
    values = [p.detach().clone() for p in leaves]
    torch.manual_seed(7)
    loss().backward()
    with torch.no_grad():
        for p, value in zip(leaves, values):
            p.copy_(value)
    return [off(loss, leaves, [p.grad for p in leaves]), {f.__name__: of_function(*use) for f, use in seen.items()
                                                                 if any(torch.is_tensor(x) and x.requires_grad for x in use[1])}]


def of_function(apply, given):
    inputs = [x for x in given if torch.is_tensor(x) and x.requires_grad]

    def loss():
        results = apply(*given)
        results = results if isinstance(results, tuple) else (results,)
        return sum((r * torch.randn(r.shape, generator=torch.Generator().manual_seed(k))).sum() for k, r in enumerate(results))

    torch.manual_seed(7)
    return off(loss, inputs, torch.autograd.grad(loss(), inputs, allow_unused=True))


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.compile = lambda f=None, **_: f if f is not None else (lambda g: g)    # a compiler adds nothing to the truth
    found = {}
    for script in sys.argv[1:]:
        try:
            found[script] = of_step(script)
        except Exception as error:
            import traceback; print(script, traceback.format_exc()[-600:], file=sys.stderr)
    print(json.dumps(found))

"""Writes the scripts that outside_test.py has diagnosed, from the tables in torch_functions.py and torch_steps.py."""
import torch_functions
import torch_steps

PRECISIONS = ("f32", "bf16", "f16")
HEADER = """import copy
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
X, Y, IMAGES, KINDS = torch.randn(16, 12), torch.randint(0, 4, (16,)), torch.randn(8, 3, 12, 12), torch.randint(0, 4, (8,))
TEXTS, WORDS = torch.randn(4, 9, 16), torch.randint(0, 20, (4, 9))
"""
LOOP = """
        optimizer.zero_grad()
        with autocast():
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()"""
FOOTER = """

def loss_of():
    return {loss}


def autocast():
    return torch.autocast("cpu", torch.float16 if sys.argv[1] == "f16" else torch.bfloat16, enabled=sys.argv[1] != "f32")


if __name__ == "__main__":
    optimizer = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, enabled=sys.argv[1] == "f16")
    for i in range(3):{loop}
"""


def lines_of(body, before=""):
    """"a; b; c" as a block that returns c."""
    *steps, result = [s for line in body.split("\n") for s in ([line] if line.startswith("for ") else line.split("; "))]
    return "".join(f"        {s}\n" for s in (*steps, *filter(None, [before])) if s) + f"        return {result}\n"


def function(name, arguments, forward, saves, backward):
    results = lines_of(forward).splitlines()[-1].count(",") + 1
    return (f"class {name}(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, {arguments}):\n"
            + lines_of(forward, f"ctx.save_for_backward({saves})")
            + f"\n    @staticmethod\n    def backward(ctx, {'g, k' if results == 2 else 'g'}):\n        {saves}, = ctx.saved_tensors\n"
            + lines_of(backward))


def script_of_function(name, host, arguments, call, forward, saves, backward):
    made, data, body = torch_functions.HOSTS[host]
    weights = "".join(f"        {w} = {text}\n" for w, text in torch_functions.WEIGHTS.items() if w in call)
    return (f"{HEADER}\n\n{function(name, arguments, forward, saves, backward)}\n\nclass Net(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        {made}\n{weights}\n    def forward(self, "
            f"x):{body.format(call=f'{name}.apply{call}')}\n\n\n"
            f"m = Net()\n{FOOTER.format(loss=f'm({data})', loop=LOOP)}")


def script_of_step(setup, loss, loop=None, more=""):
    return HEADER + setup + "\n" + more + FOOTER.format(loss=loss, loop=loop or LOOP)


def right():
    """name: script. The name of a Function's script is the Function's."""
    out = {name: script_of_function(name, host, arguments, call, forward, saves, backward)
           for name, host, arguments, call, forward, saves, backward, _ in torch_functions.FUNCTIONS}
    return {**out, **{name: script_of_step(*step) for name, step in torch_steps.RIGHT.items()}}


def beside_a_hook():
    """Right Functions in steps whose gradient is wrong by a hook: then each Function is examined by itself."""
    hook = "m = Net()\nm.c.weight.register_hook(lambda g: 2 * g)\n"
    return {name: text.replace("m = Net()\n", hook) for name, text in right().items() if "m = Net()\n" in text}


def meant():
    return {name: script_of_step(*step) for name, step in torch_steps.MEANT.items()}


def wrong():
    """name: (script, what the first finding must name)."""
    out = {}
    for name, host, arguments, call, forward, saves, _, mistakes in torch_functions.FUNCTIONS:
        for mistake, backward in mistakes.items():
            other = (forward, backward) if isinstance(backward, str) else backward
            out[name + mistake] = script_of_function(name + mistake, host, arguments, call, other[0], saves, other[1]), name + mistake
    return {**out, **{name: (script_of_step(*step), named) for name, (step, named) in torch_steps.WRONG.items()}}

"""A training script of PyTorch as an engine: docs/own-engine.md. Unlike the rest of the package this needs torch.

    from twinrun_engine.pytorch import serve_script
    serve_script(train_step, optimizer, {"dense1/kernel": model[1].weight, "dense1/bias": model[1].bias})

train_step(images, labels) is the script's own: forward, backward, optimizer.step(); it returns the loss.
"""
import os
import sys

import numpy as np
import torch

from .model import Counters, features_of
from .protocol import Unsupported, serve

TO_TORCH = {2: (1, 0), 4: (3, 2, 0, 1)}     # kernels, by rank
FROM_TORCH = {2: (1, 0), 4: (2, 3, 1, 0)}

# Of each of the program's optimizers: its slot -> torch.optim's. All of them hold the same numbers, so that loading and saving move
# bits. RMSprop's momentum does not: it has no learning rate in it.
SLOTS = {
    "sgd": {},
    "momentum": {"momentum": "momentum_buffer"},
    "adam": {"adam_m": "exp_avg", "adam_v": "exp_avg_sq"},
    "adamw": {"adam_m": "exp_avg", "adam_v": "exp_avg_sq"},
    "adagrad": {"accumulator": "sum"},
    "adadelta": {"accum": "square_avg", "accum_update": "acc_delta"},
    "rmsprop": {"rms": "square_avg", "mg": "grad_avg"},
    "adamax": {"adamax_m": "exp_avg", "adamax_v": "exp_inf"},
}
CLASSES = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "adadelta": "Adadelta"}


def is_kernel(name):
    """Of a parameter, its slots and its average: conv1/kernel, conv1/kernel.adam_m."""
    return name.rsplit("/", 1)[-1].split(".")[0] == "kernel"


def to_torch(name, value, device="cpu"):
    """The program's array in PyTorch's layout, in memory of its own."""
    axes = TO_TORCH.get(value.ndim) if is_kernel(name) else None
    return torch.tensor(np.ascontiguousarray(value.transpose(axes) if axes else value), device=device)


def from_torch(name, value):
    value = value.detach().cpu().numpy()
    axes = FROM_TORCH.get(value.ndim) if is_kernel(name) else None
    return np.ascontiguousarray(value.transpose(axes)) if axes else value.copy()


def unflattened(value, image):
    """Rows of a dense kernel in the program's order (height, width, channel) where PyTorch flattened channels first; image: (height,
    width, channels) or None."""
    if image is None:
        return value
    height, width, channels = image
    return np.ascontiguousarray(value.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(value.shape))


class Script:
    """The engine that serve_script() serves."""

    def __init__(self, train_step, optimizer, tensors, flattened, hello):
        self.train_step, self.optimizer, self.tensors, self.flattened, self.last = train_step, optimizer, tensors, flattened, None
        self.hello = {"name": os.path.basename(sys.argv[0]), "version": f"torch {torch.__version__}", "precision": "f32", **hello}

    def into(self, name, value):
        """The program's array as the script has it."""
        image = self.flattened.get(name.split(".")[0])
        if image is not None:    # rows are height, width, channel here, and channel, height, width there
            value = value.reshape(*image, -1).transpose(2, 0, 1, 3).reshape(value.shape)
        return to_torch(name, value)

    def out(self, name, tensor):
        return unflattened(from_torch(name, tensor), self.flattened.get(name.split(".")[0]))

    def prepare(self, program):
        kind, reasons = program.optimizer["kind"], []
        if program.cores > 1:
            reasons.append("one core only")
        if CLASSES.get(kind) != type(self.optimizer).__name__:
            reasons.append(f"no optimizer '{kind}': the script has {type(self.optimizer).__name__}")
        due = {v.name: v.shape for v in program.state if v.role in ("parameter", "statistic")}
        for name, shape in due.items():
            if name not in self.tensors:
                reasons.append(f"serve_script() was given no '{name}'")
            elif (found := from_torch(name, self.tensors[name]).shape) != shape:
                reasons.append(f"'{name}' is {list(found)}, due is {list(shape)}")
        reasons += [f"the program has no '{name}'" for name in self.tensors if name not in due]
        if reasons:
            raise Unsupported(reasons)

    def slots(self, program):
        """{the program's name of a slot: (the parameter, PyTorch's name of the slot)}."""
        names = SLOTS[program.optimizer["kind"]]
        return {v.name: (v.name.rsplit(".", 1)[0], names[v.name.rsplit(".", 1)[1]]) for v in program.state if v.role == "slot"}

    def load(self, program, state):
        counters = Counters(program.optimizer, program.of_role("counter", state))
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(self.into(name, state[name]))
        for name, (parameter, slot) in self.slots(program).items():
            tensor = self.tensors[parameter]
            self.optimizer.state[tensor].update(
                {slot: self.into(name, state[name]).to(tensor.device), "step": torch.tensor(float(counters.updates()))})
        return counters

    def step(self, program, _step, state, inputs, _random):
        if state is None and self.last is not program:    # another program has used the model in between
            state = program.own[0]
        counters = self.load(program, state) if state is not None else program.own[1]
        features, labels = torch.from_numpy(features_of(inputs)), torch.from_numpy(inputs["labels"]).long()
        loss = self.train_step(features.permute(0, 3, 1, 2) if features.dim() == 4 else features, labels)
        counters.advance()
        after = {name: self.out(name, tensor) for name, tensor in self.tensors.items()}
        after.update({name: self.out(name, self.optimizer.state[self.tensors[parameter]][slot])
                      for name, (parameter, slot) in self.slots(program).items()})
        after.update(counters.values)
        gradients = {f"{name}.grad": self.out(name, self.tensors[name].grad) for name in program.of_role("parameter", after)}
        program.own, self.last = (after, counters), program
        return after, {"loss": loss.detach().cpu().numpy(), **gradients}


def serve_script(train_step, optimizer, tensors, flattened=None, **hello):
    """Answers twinrun with a script's own training step, until it ends; does not return.

    train_step(images, labels): images NCHW, labels int64; does one whole step and returns the loss
    tensors    {the program's name: the script's parameter or buffer}, in PyTorch's layout
    flattened  {"dense1/kernel": (height, width, channels)} for a dense layer that reads a flattened image
    hello      what the engine declares, where it is not precision="f32" (docs/engine-protocol.md)
    """
    serve(Script(train_step, optimizer, tensors, flattened or {}, hello))
    sys.exit(0)

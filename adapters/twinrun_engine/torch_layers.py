"""Records what the layers of a PyTorch script return in one step, and the gradients there, so that twinrun can tell in which layer a
step went wrong. It watches the torch functions that the script calls. A layer with parameters is recognized by them, any other layer by
its kind and by what it reads; what is not certain is left out."""
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

# Names of the functions that compute layers without parameters.
KINDS = {
    "relu": ("relu", "relu_", "threshold"), "leaky_relu": ("leaky_relu", "leaky_relu_"), "gelu": ("gelu",), "silu": ("silu",),
    "sigmoid": ("sigmoid", "sigmoid_"), "tanh": ("tanh", "tanh_"), "max_pool": ("max_pool2d", "max_pool2d_with_indices"),
    "avg_pool": ("avg_pool2d",), "global_avg_pool": ("adaptive_avg_pool2d", "mean"), "global_max_pool": ("adaptive_max_pool2d", "amax"),
    "add": ("add", "add_", "__add__", "__radd__", "__iadd__"), "concat": ("cat", "concat", "concatenate"),
}
# Functions that return a parameter, or a part of it, in another form.
FORMS = ("t", "transpose", "permute", "__getitem__", "view", "reshape", "unsqueeze", "expand", "contiguous", "to", "float", "chunk", "split",
         "unbind", "__get__")


def tensors_in(values):
    for value in values:
        if torch.is_tensor(value):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)


def first_of(result):
    return next(tensors_in([result]), None)


class Shown(TorchFunctionMode):
    """with Shown(program, places, images, model) as shown: ...; shown.found() is then {"conv1": array, "conv1.grad": array, ..}.

    places  {the program's name of a variable: its Place}
    images  {layer: (height, width, channels)} of layers that read an image flattened in another order"""

    def __init__(self, program, places, images, model=None):
        super().__init__()
        self.hooks = [] if model is None else [m.register_forward_hook(lambda module, _, result: self.gave(module, result))
                                               for m in model.modules() if any(p is not None for p in m._parameters.values())]
        self.shapes = {v.name: v.shape for v in program.activations}
        self.order = [{**layer, "input": layer.get("input") or [before]} for layer, before in
                      zip(program.layers, ["data", *[layer["name"] for layer in program.layers]])]
        self.owners, self.parameters, self.images = {}, {}, images    # id of a tensor: its layers; layer: ids of its parameters
        for name, place in places.items():
            layer, leaf = name.split("/")[0], name.rsplit("/", 1)[-1]
            self.owners.setdefault(id(place.tensor), set()).add(layer)
            if not leaf.startswith("moving"):
                self.parameters.setdefault(layer, set()).add(id(place.tensor))
        tied = {layer for layers in self.owners.values() if len(layers) > 1 for layer in layers}
        self.parameters = {layer: ids for layer, ids in self.parameters.items() if layer not in tied}
        self.used = {layer: set() for layer in self.parameters}
        self.forms = {i: i for i in self.owners}       # id of a tensor: id of the parameter that it is a form of
        self.values, self.gradients = {}, {}           # layer: array
        self.made = {}                                 # id of a tensor: the layer that returned it
        self.kept, self.dropped, self.on = [], set(), True    # kept alive, so that no id is reused

    def __exit__(self, *error):
        for hook in self.hooks:
            hook.remove()
        return super().__exit__(*error)

    def __torch_function__(self, function, _types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        name = getattr(function, "__name__", "")
        if name in ("backward", "grad"):    # a recomputation in the backward pass is not another use of a layer
            self.on = False
        if self.on:
            self.look(name, list(tensors_in([*arguments, *(named or {}).values()])), result)
        return result

    def look(self, name, read, result):
        own = {self.forms[id(t)] for t in read if id(t) in self.forms}
        data = [t for t in read if id(t) not in self.forms]
        if own and not data:
            for form in tensors_in([result] if name in FORMS else []):
                if name != "__get__" or form._base is not None:    # accepts .T but not .grad
                    self.kept.append(form)
                    self.forms[id(form)] = next(iter(own))
            return
        out = first_of(result)
        if out is None or not out.is_floating_point():
            return
        self.kept.append(out)
        before = [self.made.get(id(t)) for t in read]
        if name in ("contiguous", "clone"):
            self.made[id(out)] = before[0]
        else:
            self.made.pop(id(out), None)    # changed in place
        layers = [layer for layer, due in self.parameters.items() if own & due]
        for layer in layers:
            if len(layers) > 1 or self.used[layer] == self.parameters[layer]:    # used more than once: ambiguous
                self.dropped.add(layer)
            self.used[layer] |= own & self.parameters[layer]
            if self.used[layer] == self.parameters[layer]:
                self.take(layer, out, swapped="multi_head" in name)
        for layer in self.order if not own else []:
            if name in KINDS.get(layer["kind"], ()) and layer["name"] not in self.images:
                count = len(layer["input"])
                either = sorted if layer["kind"] == "add" else list
                if None not in before[:count] and either(before[:count]) == either(layer["input"]):
                    self.take(layer["name"], out)

    def gave(self, module, result):
        """Drops a layer whose module returned something other than its function did: the module computes more than the layer."""
        layers = {layer for t in module._parameters.values() for layer in self.owners.get(id(t), ())}
        if len(layers) == 1 and torch.is_tensor(result):
            layer = next(iter(layers))
            if layer in self.values and self.made.get(id(result)) != layer:
                self.dropped.add(layer)

    def take(self, layer, out, swapped=False):
        """Records `out` as the layer's result. swapped: the axis of tokens precedes that of the batch."""
        shape = self.shapes.get(layer)
        value = self.read(out.detach(), shape, swapped)
        if layer in self.values:
            self.dropped.add(layer)
        if value is None or layer in self.dropped:
            return
        self.values[layer] = value
        self.made[id(out)] = layer
        if out.grad_fn is not None and f"{layer}.grad" in self.shapes:
            at = out.output_nr

            def keep(gradients):
                if gradients[at] is not None and (gradient := self.read(gradients[at], shape, swapped)) is not None:
                    self.gradients[layer] = gradient
            # Hook the node, not the tensor: a later write into the tensor belongs to another node.
            if hasattr(out.grad_fn, "register_prehook"):
                out.grad_fn.register_prehook(keep)
            else:
                out.grad_fn.register_hook(lambda _, gradients: keep(gradients))

    @staticmethod
    def read(tensor, shape, swapped):
        """Returns a copy in the program's layout, or None if the shape differs."""
        if shape is None:
            return None
        tensor = tensor.transpose(0, 1) if swapped else tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor
        same = [n for n in tensor.shape if n > 1] == [n for n in shape if n > 1]    # [8, 4, 1, 1] counts as [8, 4]
        return np.array(tensor.float().cpu().numpy().reshape(shape), np.float32) if same else None

    def found(self):
        values = {k: v for k, v in self.values.items() if k not in self.dropped}
        return {**values, **{f"{k}.grad": v for k, v in self.gradients.items() if k in values}}

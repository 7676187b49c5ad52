"""Finds the program's variables in a PyTorch script, from names that its author gives or from the modules themselves."""
import gc
import re

import numpy as np
import torch

from .names import Ambiguous, Candidate, Form, Unit, leaves_of, matched, means_something, nearest

TO_TORCH = {2: (1, 0), 4: (3, 2, 0, 1)}     # kernels, by rank
FROM_TORCH = {2: (1, 0), 4: (2, 3, 1, 0)}


def is_kernel(name):
    """Whether a parameter, slot or average belongs to a kernel: conv1/kernel, conv1/kernel.adam_m."""
    return name.rsplit("/", 1)[-1].split(".")[0] == "kernel"


def inverse(axes):
    return tuple(int(i) for i in np.argsort(axes))


class Place:
    """Where a variable is stored: in a tensor or in some of its rows (attention's joined projections), possibly with permuted axes.
    image: (height, width, channels) if its rows are those of an image that the script flattens channels first."""

    def __init__(self, tensor, shape, axes=None, rows=None, path="", unsure=False):
        self.tensor, self.shape, self.axes, self.rows, self.path = tensor, tuple(shape), axes, rows, path
        self.image, self.unsure = None, unsure    # unsure: a square kernel that no module owns, which may be transposed

    def of(self, whole):
        """Returns the variable's part of a tensor with the parameter's shape: the parameter itself, its gradient or a slot."""
        return whole if self.rows is None else whole[self.rows]

    def found(self):
        """Returns the tensor's shape in the program's layout."""
        shape = tuple(self.of(self.tensor).shape)
        if self.axes:
            return tuple(shape[i] for i in inverse(self.axes))
        same = [n for n in shape if n > 1] == [n for n in self.shape if n > 1]
        return self.shape if same else shape    # [1, tokens, units] counts as [tokens, units]

    def read(self, whole):
        """Returns the program's array, read from a tensor."""
        value = self.of(whole).detach()
        value = (value.float() if value.dtype in (torch.float16, torch.bfloat16) else value).cpu().numpy()
        value = (value.transpose(inverse(self.axes)) if self.axes else value).reshape(self.shape)
        if self.image:
            height, width, channels = self.image
            value = value.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(self.shape)
        return np.array(value, order="C")

    def write(self, whole, value):
        """Writes the program's array into a tensor."""
        if self.image:
            value = value.reshape(*self.image, -1).transpose(2, 0, 1, 3).reshape(self.shape)
        value = torch.from_numpy(np.array(value.transpose(self.axes) if self.axes else value, order="C"))
        part = self.of(whole)
        part.copy_(value.reshape(part.shape))


# ---- names that were given ----------------------------------------------------------------------------------------------------

def given(tensors, variables):
    """Returns ({name: Place}, [errors]) for {name: tensor} or {name: (tensor, slice of its rows)}."""
    places, wrong = {}, []
    due = {v.name: v.shape for v in variables}
    for name, value in tensors.items():
        tensor, rows = value if isinstance(value, tuple) else (value, None)
        if not torch.is_tensor(tensor):
            wrong.append(f"'{name}' is given as {type(tensor).__name__}; expected a parameter or a buffer, a torch.Tensor")
            continue
        tensor_shape = tuple((tensor if rows is None else tensor[rows]).shape)
        axes = TO_TORCH.get(len(tensor_shape)) if is_kernel(name) else None
        if len(tensor_shape) == 2 and tensor_shape == due.get(name) != tensor_shape[::-1]:
            axes = None    # [in, out], as in x @ w
        places[name] = Place(tensor, due.get(name, tensor_shape), axes, rows, f'tensors["{name}"]')
    shapes = {n: p.found() for n, p in places.items()}
    for name, shape in due.items():
        if name not in tensors:
            near = nearest(name, shape, {n: s for n, s in shapes.items() if n not in due})
            wrong.append(f"serve_script() was given no '{name}'" + f" {list(shape)}" + (f"; is it {near}?" if near else ""))
        elif name in shapes and shapes[name] != tuple(shape):
            wrong.append(f"'{name}' is {list(shapes[name])}; expected {list(shape)}")
    for name in tensors:
        if name not in due:
            near = nearest(name, shapes.get(name, ()), {n: s for n, s in due.items() if n not in tensors})
            wrong.append(f"the program has no '{name}'" + (f"; it has {near}" if near else ""))
    return places, wrong


# ---- names that are found from the modules ---------------------------------------------------------------------------------------

def attribute(path, name=""):
    """Returns the expression for it in the script: model.features[0].weight."""
    words = [w for w in (*path.split("."), name) if w]
    return "model" + "".join(f"[{w}]" if w.isdigit() else f".{w}" for w in words)


def forms(label, tensor, owner):
    """Returns the ways to read a tensor. owner: the module that owns it, if its class tells what its weight is, else None."""
    shape = tuple(tensor.shape)
    if owner is not None and label == "weight":
        leaf = "embeddings" if isinstance(owner, (torch.nn.Embedding, torch.nn.EmbeddingBag)) else "gamma" if len(shape) == 1 else "kernel"
        axes = TO_TORCH.get(len(shape)) if leaf == "kernel" else None
        return [Form((leaf,), tuple(shape[i] for i in inverse(axes)) if axes else shape, axes)]
    leaves = leaves_of(label, len(shape))
    if len(shape) > 2 and shape[0] == 1:    # [1, tokens, units]
        return [Form(leaves, shape[1:])]
    if len(shape) == 4:
        return [Form(leaves, tuple(shape[i] for i in FROM_TORCH[4]), TO_TORCH[4])]
    return [Form(leaves, shape)] + ([Form(("kernel",), shape[::-1], (1, 0))] if len(shape) == 2 else [])


def candidate(path, label, tensor, owner, rows=None):
    shown = tensor if rows is None else tensor[rows]
    return Candidate(path + (f"[{rows.start}:{rows.stop}]" if rows else ""), (tensor, rows), forms(label, shown, owner))


def joined(path, size, weight, bias, owner):
    """Returns the units of query, key and value if one weight has the rows of all three."""
    units = []
    for i, word in enumerate(("query", "key", "value")):
        rows = slice(i * size, (i + 1) * size)
        tensors = [candidate(name, label, t, owner, rows) for name, label, t in ((path[0], "weight", weight), (path[1], "bias", bias))
                   if t is not None]
        units.append(Unit(attribute(path[2]), tensors, word))
    return units


def units_of_module(model, variables):
    """Returns a Unit for each layer of a model, in the order of their definition."""
    shapes = {v.shape for v in variables if is_kernel(v.name)}
    attention = any(v.name.endswith("/query/kernel") for v in variables)
    units, seen = [], set()
    for path, module in model.named_modules():
        own = {n: t for n, t in (*module._parameters.items(), *module._buffers.items())
               if t is not None and id(t) not in seen and n != "num_batches_tracked"}
        seen |= {id(t) for t in own.values()}
        if not own:
            continue
        weight, bias = own.get("weight"), own.get("bias")
        if isinstance(module, torch.nn.MultiheadAttention) and "in_proj_weight" in own:
            units += joined((attribute(path, "in_proj_weight"), attribute(path, "in_proj_bias"), path), module.embed_dim,
                            own["in_proj_weight"], own.get("in_proj_bias"), torch.nn.Linear(1, 1))
        elif (attention and weight is not None and weight.dim() == 2 and len(weight) == 3 * weight.shape[1]
              and tuple(weight.shape)[::-1] not in shapes):
            units += joined((attribute(path, "weight"), attribute(path, "bias"), path), weight.shape[1], weight, bias, module)
        elif weight is not None:
            units.append(Unit(attribute(path), [candidate(attribute(path, n), n, t, module) for n, t in own.items()], path))
        else:    # parameters of the model itself: w1, b1, w2, b2 are two units; a tensor without a meaningful name is its own unit
            grouped = {}
            for n, t in own.items():
                known = means_something(n)
                if known or isinstance(t, torch.nn.Parameter):    # this leaves out masks and similar buffers
                    group = (re.findall(r"\d+$", n) or [""])[0] if known else n
                    grouped.setdefault((known, group), []).append(candidate(attribute(path, n), n, t, None))
            units += [Unit(attribute(path), tensors, path) for tensors in grouped.values()]
    return units


def units_of_parameters(parameters):
    """Groups parameters that no module owns: a weight, and what follows it up to the next weight."""
    units = []
    for i, p in enumerate(parameters):
        if p.dim() > 1 or not units:
            units.append(Unit(f"parameter {i}", []))
        units[-1].tensors.append(candidate(f"parameters[{i}]", "", p, None))
    return units


def model_of(optimizer):
    """Returns the outermost module that has all parameters of an optimizer, or None."""
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    models = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
    models = [m for m in models if wanted <= {id(p) for p in m.parameters()}]
    inside = {id(part) for m in models for part in m.modules() if part is not m}
    return next((m for m in models if id(m) not in inside), None)


def told(model, optimizer, variables):
    """Returns ({name: Place}, [lists of the program's units that only the order of definition distinguishes], [errors])."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    model = model if model is not None else model_of(optimizer)
    units = units_of_parameters(parameters) if model is None else units_of_module(model, variables)
    learned = {id(p) for p in parameters}
    due = {v.name for v in variables}
    units = [u for u in units if any(isinstance(t.handle[0], torch.nn.Parameter) or id(t.handle[0]) in learned
                                     or any(leaf.startswith("moving") for f in t.forms for leaf in f.leaves) for t in u.tensors)]
    if not any(name.endswith("/moving_mean") for name in due):
        units = [u for u in units if any(id(t.handle[0]) in learned or isinstance(t.handle[0], torch.nn.Parameter) for t in u.tensors)]
    try:
        pairs, close = matched(variables, units)
    except Ambiguous as error:
        return {}, [], [str(error)]
    places = {}
    for v in variables:
        chosen, form = pairs[v.name]
        tensor, rows = chosen.handle
        square = len(chosen.forms) > 1 and chosen.forms[0].shape == chosen.forms[1].shape and is_kernel(v.name)
        places[v.name] = Place(tensor, v.shape, form.how, rows, chosen.path, square)
    used = {id(p.tensor) for p in places.values()}
    wrong = [f"the program has no variable for {t.path} {list(t.handle[0].shape)}" for u in units for t in u.tensors
             if id(t.handle[0]) in learned and id(t.handle[0]) not in used]
    return places, close, wrong

"""Exports the weights of a PyTorch file (.pt, .pth) for `twinrun convert`: kernels HWIO and [in, out], the program's names and slots.

    python3 adapters/engines/pytorch/export.py model.pt                                  # lists the content
    python3 adapters/engines/pytorch/export.py model.pt w.safetensors --name 0=conv1 --name 4=dense1 --flattened dense1=7,7,8
    twinrun convert w.safetensors init.h5 --scenario mine.toml

The file holds a state_dict, or a dictionary with one (model, state_dict, model_state_dict) and optionally the optimizer's
(optimizer, optimizer_state_dict), as torch.save writes them. Nothing in it is executed.
"""
import pathlib
import pickle
import sys
import types
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from twinrun_engine.export import Wrong, arguments, finish, names_of, rename, run  # noqa: E402
from twinrun_engine.model import powers  # noqa: E402
from twinrun_engine.pytorch import SLOTS, from_torch, unflattened  # noqa: E402

MODELS, OPTIMIZERS = ("model", "state_dict", "model_state_dict"), ("optimizer", "optimizer_state_dict")
PROJECTIONS = ("query", "key", "value")


ALLOWED = {("collections", "OrderedDict"), ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter"),
           ("torch", "Size"), ("torch", "device")}


class Tensors(pickle.Unpickler):
    """Reads tensors and plain data of a pickle. Before version 2.0, torch's own weights_only refuses floats such as a learning rate."""

    def find_class(self, module, name):
        if (module, name) in ALLOWED or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains a {module}.{name}")


def read(path):
    """Returns (state_dict, the optimizer's state_dict or None)."""
    only = types.ModuleType("tensors_only")
    only.Unpickler, only.load, only.UnpicklingError = Tensors, lambda file, **more: Tensors(file, **more).load(), pickle.UnpicklingError
    try:
        with mock.patch.object(torch.serialization, "pickle", only):    # version 1.13 ignores its argument pickle_module
            held = torch.load(path, map_location="cpu", pickle_module=only, weights_only=False)
    except Exception as error:    # a damaged file raises many kinds of errors
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Wrong(f"{path}: {text} (expected a file of torch.save(model.state_dict(), ...); a pickled model is not supported)") from None
    if not isinstance(held, dict):
        raise Wrong(f"{path}: holds {type(held).__name__}; expected a state_dict")
    model = next((held[k] for k in MODELS if isinstance(held.get(k), dict)), held)
    tensors = {k: v for k, v in model.items() if isinstance(v, torch.Tensor)}
    if not tensors:
        raise Wrong(f"{path}: holds no tensors; its keys are {', '.join(map(str, held))[:400]}")
    return tensors, next((held[k] for k in OPTIMIZERS if isinstance(held.get(k), dict)), None)


def leaf(rest, array):
    """Returns the program's name of a module's tensor. A weight with one dimension belongs to a norm."""
    names = {"weight": "gamma" if array.ndim == 1 else "kernel", "bias": "bias", "running_mean": "moving_mean",
             "running_var": "moving_variance", "out_proj.weight": "output/kernel", "out_proj.bias": "output/bias"}
    return rest if rest.startswith(PROJECTIONS) else names.get(rest)


def split(tensors):
    """Splits the joined projections of a MultiheadAttention."""
    found = {}
    for name, value in tensors.items():
        if (rest := name.rpartition(".")[2]) in ("in_proj_weight", "in_proj_bias"):
            kind = "kernel" if rest == "in_proj_weight" else "bias"
            prefix = name[:-len(rest)]
            found.update({f"{prefix}{which}/{kind}": part for which, part in zip(PROJECTIONS, value.chunk(3))})
        else:
            found[name] = value
    return found


def norms(found):
    """Renames the bias of a norm, which its weight reveals, to beta."""
    return {f"{ours[:-5]}/beta" if ours.endswith("/bias") and f"{ours[:-5]}/gamma" in found else ours: v for ours, v in found.items()}


def kind_of(group):
    """Returns the program's name of the optimizer with such a parameter group."""
    if "betas" in group:
        return "adamw" if group.get("weight_decay") else "adam"
    return "adagrad" if "lr_decay" in group else "adadelta" if "rho" in group else "momentum" if group.get("momentum") else "sgd"


def slots_of(optimizer, tensors):
    """Returns ({parameter|slot: tensor}, {counter: number}). Parameters are numbered in the model's order, without buffers."""
    group = optimizer["param_groups"][0]
    order = [i for g in optimizer["param_groups"] for i in g["params"]]
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    parameters = [k for k in tensors if not k.endswith(buffers)]
    if len(order) != len(parameters):
        raise Wrong(f"the optimizer has {len(order)} parameters; the model has {len(parameters)}, so its slots cannot be named")
    kind, found, updates = kind_of(group), {}, 0
    for index, name in zip(order, parameters):
        state = optimizer["state"].get(index, {})
        updates = max(updates, int(state.get("step", 0)))
        found.update({f"{name}|{ours}": state[theirs] for ours, theirs in SLOTS[kind].items()
                      if isinstance(state.get(theirs), torch.Tensor)})
    counters = powers(group["betas"], updates) if kind in ("adam", "adamw") else {}
    return found, counters


def main():
    parser = arguments(__doc__, "file that torch.save wrote")
    parser.add_argument("--flattened", action="append", default=[], metavar="LAYER=H,W,C",
                        help="a dense layer after a flatten, by its name in the scenario, and the image's size, as in dense1=7,7,8")
    parser.add_argument("--no-optimizer", action="store_true", help="export only the weights")
    options = parser.parse_args()
    tensors, optimizer = read(options.checkpoint)
    slots, counters = slots_of(optimizer, tensors) if optimizer and not options.no_optimizer else ({}, {})
    found, left = rename(split(tensors), names_of(options), leaf)
    images = {}
    for word in options.flattened:
        layer, _, shape = word.partition("=")
        try:
            images[f"{layer}/kernel"] = tuple(int(n) for n in shape.split(","))
        except ValueError:
            raise Wrong(f"--flattened {word}: expected LAYER=H,W,C") from None
        kernel = found.get(f"{layer}/kernel")
        if kernel is None or len(images[f"{layer}/kernel"]) != 3 or np.prod(images[f"{layer}/kernel"]) != kernel[1].shape[1]:
            raise Wrong(f"--flattened {word}: '{layer}/kernel' is {list(kernel[1].shape[::-1]) if kernel else 'missing'}; "
                        "it must have H*W*C rows")

    def ours_is(name, value):
        return unflattened(from_torch(name, value), images.get(name.split(".")[0]))

    found = norms(found)
    whole = {name: (theirs, ours_is(name, value)) for name, (theirs, value) in found.items()}
    for name, (theirs, _) in found.items():
        whole.update({f"{name}.{slot.rsplit('|', 1)[1]}": (slot.replace("|", "."), ours_is(f"{name}.{slot}", value))
                      for slot, value in slots.items() if slot.rsplit("|", 1)[0] == theirs})
    taken = {theirs for theirs, _ in whole.values()}
    left += [name.replace("|", ".") for name in slots if name.replace("|", ".") not in taken]
    whole.update({name: ("the optimizer's steps", value) for name, value in counters.items()})
    finish(options, whole, left)


if __name__ == "__main__":
    run(main)

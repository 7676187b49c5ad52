"""What models built from a scenario share in every framework: the order of layers, padding, and Adam's counters."""
import math

import numpy as np

from .protocol import Unsupported


def walk(layers, table, context, features, part=""):
    """Returns the output of the model, or of a part of a GAN. A layer reads the previous one, or those that its `input` names.
    table: kind -> function(context, layer, *inputs). context.show, if present: function(name, output of the layer) -> the same output."""
    values, previous, show = {"data": features}, "data", getattr(context, "show", None)
    for layer in layers:
        if layer.get("part", "") != part:
            continue
        if layer["kind"] not in table:
            raise Unsupported([f"layer kind '{layer['kind']}' is not supported"])
        inputs = [values[name] for name in layer.get("input") or [previous]]
        previous = layer["name"]
        full = f"{part}/{previous}" if part else previous
        values[previous] = table[layer["kind"]](context, {**layer, "name": full}, *inputs)
        if show is not None:
            values[previous] = show(full, values[previous])
    return values[previous]


def features_of(inputs):
    """Returns the input that a model begins with."""
    return inputs["tokens" if "tokens" in inputs else "images"]


def same_padding(size, window, stride, dilation=1):
    """TensorFlow's SAME padding along one axis: (low, high); an odd cell is on the high side."""
    total = max(0, (-(-size // stride) - 1) * stride + dilation * (window - 1) + 1 - size)
    return total // 2, total - total // 2


def stride_of(layer):
    """A layer's stride; 0 stands for the default, which is 1 for convolutions and the window for pools."""
    return layer["stride"] or layer.get("window", 1)


def pads_of(layer, sizes):
    """Padding of a convolution or a pool along axes of these sizes: ((low, high), ..). The layer's padding is "same", "valid" or a
    number of cells on every side."""
    if layer["padding"] == "same":
        window = layer.get("kernel") or layer["window"]
        return tuple(same_padding(n, window, stride_of(layer), layer.get("dilation", 1)) for n in sizes)
    cells = 0 if layer["padding"] == "valid" else int(layer["padding"])
    return ((cells, cells),) * len(sizes)


# The supported forms of sharding (docs/reference/engine-protocol.md, `sharding`); any other value is refused.
SHARDING = {"reduction": ("mean", "sum"), "batchnorm": ("per_core", "synced"), "batchwise": ("per_core", "gathered"),
            "token_mean": ("per_core", "global"), "clipping": ("after_all_reduce", "before_all_reduce"),
            "statistics": ("as_normalised",), "scaling": ("by_reduction",), "l2_terms": ("by_reduction",)}


# The formulas that the engines here have, which are TensorFlow's: section -> key -> values. A scenario with any other value is refused
# by the name of the key, not computed by another formula.
FORMULAS = {
    "": {"conventions": ("auto", "tensorflow")},
    "data": {"scale": (1,), "offset": (0,), "channels": ("as_given",), "transposed": (False,), "label_offset": (0,)},
    "loss": {"over_classes": ("mean",), "input": ("logits",), "ignored": (-1,)},
    "optimizer": {"epsilon_form": ("auto", "tf"), "bias_correction": ("both",), "correction_lead": (0,), "amsgrad": (False,),
                  "dampening": (0,), "frozen": ([],), "clip_form": ("auto", "tf"), "l2_of": ("kernels",), "stopped": ([],),
                  "trust": ("decayed",), "ema_of": ("updated",)},
    "layer": {"count_padding": (False,), "flipped": (False,), "order": ("channels_last",), "scaled": (True,), "keeps": ("high",),
              "variance": ("auto", "tf"), "statistics": ("batch",), "unbiased": (False,), "transposed": (False,),
              "fill": ("least",), "unused": ([],), "scaled_by": ("head",), "head_units": ("blocks",), "terms": ("all",), "factor": (1,),
              "padding_index": (-1,), "at_zero": ("none",), "epsilon_to": ("variance",), "axes": ("features",)},
}


def other_formulas(program):
    """Lists formulas of the scenario that the engines here do not have, as texts for Unsupported."""
    def off(table, wanted, place):
        return [f"{place}{key} = {table[key]!r} is not supported" for key, values in wanted.items()
                if key in table and table[key] not in values]
    found = off(program.scenario, FORMULAS[""], "")
    for section in ("data", "loss", "optimizer"):
        found += off(program.scenario.get(section, {}), FORMULAS[section], section + ".")
    optimizer = program.optimizer
    if optimizer.get("weight_decay", 0) > 0 and optimizer["kind"] not in ("adamw", "lars", "lamb"):
        found.append(f"optimizer.weight_decay of '{optimizer['kind']}' is not supported")
    if optimizer["kind"] == "adamw" and (optimizer.get("decay_form", "auto") not in ("auto", "decoupled") or
                                         optimizer.get("decay_of", "all") != "all"):
        found.append("no weight decay other than AdamW's of all parameters is supported")
    if optimizer["kind"].startswith("adam") and optimizer.get("nesterov", False):
        found.append(f"optimizer.nesterov of '{optimizer['kind']}' is not supported")
    for layer in program.layers:
        found += off(layer, FORMULAS["layer"], layer.get("name", layer["kind"]) + ": ")
        if layer["kind"] == "conv2d_transpose" and layer["padding"] not in ("same", "valid"):
            found.append(f"{layer.get('name', layer['kind'])}: padding = {layer['padding']!r} is not supported")
    return found


def missing(program, layers, losses, optimizers, sharding=SHARDING):
    """Lists what a framework's tables lack, as texts for Unsupported. `sharding`: the forms that it has, if these are others."""
    kinds = dict.fromkeys(layer["kind"] for layer in program.layers)
    found = [f"layer kind '{kind}' is not supported" for kind in kinds if kind not in layers]
    if program.loss["kind"] not in {*losses, "gan"}:
        found.append(f"loss '{program.loss['kind']}' is not supported")
    if program.optimizer["kind"] not in optimizers:
        found.append(f"optimizer '{program.optimizer['kind']}' is not supported")
    if program.scenario["train"].get("accumulate", 1) > 1:
        found.append("accumulation of gradients is not supported")
    found += other_formulas(program)
    if program.cores > 1:
        found += [f"{key} '{program.sharding[key]}' is not supported" for key, words in sharding.items()
                  if program.sharding.get(key, words[0]) not in words]
    return found


def of_cores(rows):
    """Combines one array per replica into the program's form: one array if all agree bit for bit, else [cores, ...]."""
    one = np.asarray(rows[0])
    return one if all(np.asarray(row).tobytes() == one.tobytes() for row in rows[1:]) else np.stack([np.asarray(row) for row in rows])


def powers(betas, updates):
    """Adam's counters after the given number of updates: beta^(updates + 1) as products of binary32 numbers."""
    found = {}
    for name, beta in zip(("adam/beta1_power", "adam/beta2_power"), betas):
        value = np.float32(beta)
        for _ in range(updates):
            value = np.float32(value * np.float32(beta))
        found[name] = np.asarray(value)
    return found


class Counters:
    """The program's counters (`adam/beta1_power`, `adafactor/step`), and the number of updates that they stand for. Frameworks count
    updates; the program keeps binary32 powers, as TensorFlow does, which are passed on bit for bit and multiplied in the same way."""

    def __init__(self, optimizer, values):
        self.betas = {"beta1_power": optimizer.get("beta1", 0), "beta2_power": optimizer.get("beta2", 0)}
        self.values = {name: np.array(value) for name, value in values.items()}

    def updates(self):
        """Returns the number of updates so far. When the powers are too small to tell it, every bias correction is 1."""
        for name, value in self.values.items():
            value, beta = float(value.flat[0]), self.betas.get(name.split("/")[1])
            if beta is None:
                return int(value) - 1    # adafactor/step counts from 1
            if beta > 0 and 1e-30 < value <= 1:
                return max(0, round(math.log(value) / math.log(beta)) - 1)
        return 10_000_000 if self.values else 0

    def advance(self):
        for name, value in self.values.items():
            beta = self.betas.get(name.split("/")[1])
            self.values[name] = np.asarray(value + 1 if beta is None else value * np.float32(beta), value.dtype)

    def adam_rate(self, correction1, correction2):
        """Returns the factor of the learning rate that replaces a framework's own bias corrections, 1 - beta^t, by the program's. A
        framework takes powers of beta; the program multiplies binary32 numbers. In the first steps, where 1 - beta2^t is small, the
        difference in the last bits is about 10^-5 of it, far more than a rounding."""
        one, two = (1 - float(next(np.asarray(v).flat[0] for k, v in self.values.items() if k.endswith(which)))
                    for which in ("beta1_power", "beta2_power"))
        if not (0 < one <= 1 and 0 < two <= 1):
            return 1.0
        return math.sqrt(two / correction2) * (correction1 / one)


# ---- images that are flattened ------------------------------------------------------------------------------------------------

def convolved(size, window, layer):
    """Height or width after a convolution or a pool."""
    return (size + sum(pads_of(layer, (size,))[0]) - layer.get("dilation", 1) * (window - 1) - 1) // stride_of(layer) + 1


def shape_after(layer, shape):
    """Returns one sample's shape after a layer with one input."""
    kind = layer["kind"]
    if kind in ("conv2d", "depthwise_conv2d", "max_pool", "avg_pool"):
        height, width = (convolved(n, layer.get("kernel") or layer["window"], layer) for n in shape[:2])
        channels = layer.get("filters") or shape[2] * layer.get("multiplier", 1)
        return (height, width, channels)
    if kind == "conv2d_transpose":
        stride, size = stride_of(layer), layer["kernel"]
        return (*(n * stride if layer["padding"] == "same" else (n - 1) * stride + max(size, stride) for n in shape[:2]), layer["filters"])
    if kind in ("dense", "embedding"):
        return (*(shape[:-1] if kind == "dense" else shape), layer["units"])
    if kind == "minibatch_stddev":
        return (*shape[:-1], shape[-1] + 1)
    if kind in ("global_max_pool", "global_avg_pool", "masked_mean"):
        return shape[-1:]
    if kind in ("flatten", "reshape"):
        return tuple(layer["shape"]) if kind == "reshape" else (math.prod(shape),)
    if kind == "noise":
        return (layer["units"],)
    return shape


KEEP_ORDER = ("relu", "leaky_relu", "gelu", "silu", "sigmoid", "tanh", "batch_norm", "layer_norm", "dropout", "l2_normalize", "flatten")


def flattened_images(layers, sample):
    """Returns {layer: (height, width, channels)} of the layers that read, or keep, a flattened image whose order matters: one with
    several channels and several pixels. sample: the shape of one sample."""
    known, previous, found = {"data": (tuple(sample), None)}, {"": "data"}, {}
    for layer in layers:
        part = layer.get("part", "")
        names = layer.get("input") or [previous.get(part, "data")]
        reads = [known.get(name, (None, None)) for name in names]
        shape, image = reads[0]
        if layer["kind"] == "concat":
            shape, image = None if any(s is None for s, _ in reads) else (*shape[:-1], sum(s[-1] for s, _ in reads)), None
        elif shape is not None:
            if layer["kind"] == "flatten" and len(shape) == 3 and shape[2] > 1 and shape[0] * shape[1] > 1:
                image = shape
            elif image is not None:
                found[f"{part}/{layer['name']}" if part else layer["name"]] = image
            try:
                shape = shape_after(layer, shape)
            except (KeyError, IndexError, TypeError):
                shape = None
            image = image if layer["kind"] in KEEP_ORDER or (layer["kind"] == "add" and all(r == reads[0] for r in reads)) else None
        known[layer["name"]], previous[part] = (shape, image), layer["name"]
    return found

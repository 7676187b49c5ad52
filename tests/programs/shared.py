"""What the engines of this folder share, whatever their framework: options, the feed, the learning rate, and the places where a
fault can be planted. No formula of a model, a loss or an optimizer stands here: each framework's engine has its own.

These engines are blind witnesses for the verdict PROGRAM. They are written from docs/ alone, and neither use the adapters' models nor
anything of the catalogue that twinrun itself has.
"""
import argparse
import math
import pathlib
import sys

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "adapters"))

from twinrun_engine import Unsupported  # noqa: E402

ORDERS = ("plain", "reversed", "split", "tree")


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--variant", default="", help="names of variants.py, with commas")
    parser.add_argument("--order", choices=ORDERS, default="plain", help="of the sums of a dense product and of a batch")
    parser.add_argument("--cores", type=int, default=1, help="the most replicas of one program")
    parser.add_argument("--conventions", default="", help="what hello says under this key, if anything: pytorch, optax")
    parser.add_argument("--fault", default="", help="a name of engine_faults.py")
    parser.add_argument("folder", help="session folder; given by twinrun")
    return parser.parse_args()


class Base:
    """An engine without its mathematics."""

    def __init__(self, name, chosen):
        self.variants = [v for v in chosen.variant.split(",") if v]
        self.order = chosen.order
        self.hello = {"name": name, "precision": "f32"}
        if chosen.cores > 1:
            self.hello["max_cores"] = chosen.cores
        if chosen.conventions:
            self.hello["conventions"] = chosen.conventions

    def has(self, *names):
        return any(name in self.variants for name in names)

    def number(self, prefix, otherwise):
        """0.99 where a variant is called adam_beta2_0.99, and `prefix` is adam_beta2_."""
        for variant in self.variants:
            if variant.startswith(prefix):
                try:
                    return float(variant.removeprefix(prefix))
                except ValueError:
                    pass
        return otherwise

    def refuse(self, program, layers, losses, optimizers):
        found = [f"no layer kind '{kind}'" for kind in dict.fromkeys(layer["kind"] for layer in program.layers) if kind not in layers]
        found += [f"no loss '{program.loss['kind']}'"] if program.loss["kind"] not in losses else []
        found += [f"no optimizer '{program.optimizer['kind']}'"] if program.optimizer["kind"] not in optimizers else []
        if found:
            raise Unsupported(found)

    # ---- what a step is fed -------------------------------------------------------------------------------------------------

    def rows(self, program, values, variables):
        """Every array with the axis of the cores in front, also where there is one core."""
        return {v.name: (np.asarray(values[v.name])[None] if program.cores == 1 else np.asarray(values[v.name])) for v in variables}

    def feed(self, program, step, inputs, random):
        """(inputs, random), each array [cores, batch, ...], as the script's input pipeline makes them of what the program is fed."""
        inputs, random = self.rows(program, inputs, program.inputs), self.rows(program, random, program.random)
        fed = {k: v for k, v in inputs.items() if k in ("images", "tokens", "labels", "weights")}
        if self.has("next_batch"):
            fed.update(self.read_next(program, inputs["sample_ids"]))
        if "images" in fed:
            x = fed["images"]
            if self.has("input_times_255"):
                x = x * np.float32(255)
            if self.has("input_over_255"):
                x = x / np.float32(255)
            if self.has("input_mnist_standardised"):
                x = (x - np.float32(0.1307)) / np.float32(0.3081)
            if self.has("input_minus_one_to_one"):
                x = (x - np.float32(0.5)) / np.float32(0.5)
            if self.has("input_channels_reversed"):
                x = x[..., ::-1]
            if self.has("input_transposed"):
                x = np.swapaxes(x, 2, 3)
            fed["images"] = x
        if self.has("labels_off_by_one"):
            fed["labels"] = np.maximum(fed["labels"] - 1, 0)
        if self.order == "reversed":
            fed, random = ({k: v[:, ::-1] for k, v in part.items()} for part in (fed, random))
        return {k: v.copy() for k, v in fed.items()}, {k: v.copy() for k, v in random.items()}

    @staticmethod
    def read_next(program, ids):
        """The batch of the next step, of a data set of .npy files that is read in its order."""
        data = program.scenario["data"]
        features, labels = (np.load(pathlib.Path(data["dir"]) / name, mmap_mode="r") for name in data["files"][:2])
        total = data["train"] or len(labels)
        later = (ids.astype(np.int64) + program.cores * program.batch) % total
        return {"images": np.asarray(features[later], np.float32), "labels": np.asarray(labels[later], np.int32)}

    # ---- the learning rate --------------------------------------------------------------------------------------------------

    def rate(self, program, step, inputs):
        """Of this step: what the program feeds, unless the script has a schedule of its own."""
        o, given = program.optimizer, float(np.asarray(inputs["learning_rate"]).flat[0])
        warm = o.get("warmup_steps", 0)
        if self.has("schedule_one_step_late"):
            given = schedule(o, max(0, step - 1))
        if self.has("schedule_one_step_early"):
            given = schedule(o, step + 1)
        if self.has("schedule_ignored"):
            given = o["lr"]
        if self.has("schedule_staircase_forgotten"):
            given = schedule({**o, "staircase": False}, step)
        if self.has("warmup_missing"):
            given = schedule({**o, "warmup_steps": 0}, max(0, step - warm))
        if self.has("warmup_begins_at_one") and step < warm:
            given = o["lr"] * (step + 1) / warm
        if self.has("schedule_counts_the_warmup") and step >= warm:
            given = schedule({**o, "warmup_steps": 0}, step)
        for name, factor in (("rate_times_10", 10), ("rate_tenth", 0.1), ("rate_half", 0.5),
                             ("rate_times_batch", program.cores * program.batch), ("rate_over_batch", 1 / (program.cores * program.batch))):
            if self.has(name):
                given *= factor
        return np.float32(given)

    # ---- where faults are planted: arrays of numpy, [cores, ...] -------------------------------------------------------------

    on_parts = None        # function(program, step, {parameter: gradients of each core}) -> the same
    on_gradients = None    # function(program, step, {parameter: gradients as the optimizer takes them}) -> the same
    on_state = None        # function(program, step, state before, state after) -> state after

    def mask(self, step, layer, shape):
        """What a layer's result, of one core, is multiplied with; None: nothing."""
        return None

    def masked_at(self, step):
        """Whether mask() says anything at this step."""
        return False


def schedule(o, step):
    """The learning rate of a step, by the formulas of docs/method/numerics.md."""
    warm, lr, kind = o.get("warmup_steps", 0), o["lr"], o["schedule"]
    if step < warm:
        return lr * step / warm
    s = step - warm
    if kind == "exponential":
        x = s / o["decay_steps"]
        return lr * o["decay_rate"] ** (math.floor(x) if o["staircase"] else x)
    if kind == "cosine":
        q = min(s, o["decay_steps"]) / o["decay_steps"]
        return lr * ((1 - o["alpha"]) * 0.5 * (1 + math.cos(math.pi * q)) + o["alpha"])
    if kind == "piecewise":
        return [lr, *o["values"]][sum(s > b for b in o["boundaries"])]
    if kind == "polynomial":
        q = min(s, o["decay_steps"]) / o["decay_steps"]
        return (lr - o["end_lr"]) * (1 - q) ** o["power"] + o["end_lr"]
    return lr


def same_pads(size, window, stride):
    """TensorFlow's SAME along one axis: the odd cell is on the high side."""
    total = max(0, (-(-size // stride) - 1) * stride + window - size)
    return total // 2, total - total // 2


def first_layer(program):
    """The name of the first layer that has parameters."""
    return next(v.name.split("/")[0] for v in program.state if v.role == "parameter")


def last_bias(program):
    return [v.name for v in program.state if v.role == "parameter" and v.name.endswith("/bias")][-1]


def updates_made(beta, power):
    """How many updates a power of beta, beta^(updates + 1), stands for."""
    return max(0, round(math.log(max(float(power), 1e-30)) / math.log(beta)) - 1)

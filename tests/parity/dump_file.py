"""What the framework programs share: reading parity_dump's file, walking a model's layers, writing results.

    dump = Dump("digits_mlp.h5")
    y = walk(dump.layers, LAYERS, context, features)    # LAYERS: kind -> function(context, layer, *inputs)
    write_result("jax.h5", "jax", version, recorder)    # the layout of /R/ours in the dump

Python 3.11, numpy and h5py only: it runs in every framework's environment.
"""
import argparse
import os
import sys
import tomllib
import traceback

import h5py
import numpy as np


class Dump:
    """A file of parity_dump. Arrays keep their dtype; names have '/' again."""

    def __init__(self, path):
        self.file = h5py.File(path, "r")
        self.scenario = tomllib.loads(self.file.attrs["scenario"].decode())
        self.layers = self.scenario["model"]["layers"]
        self.loss = self.scenario["loss"]
        self.optimizer = self.scenario["optimizer"]
        self.tpu = self.scenario["tpu"]
        self.cores = self.tpu["cores"]
        self.steps = len(self.file["inputs/learning_rate"])

    def group(self, path):
        return {name.replace("|", "/"): np.asarray(data) for name, data in self.file[path].items()}

    def initial(self, role):
        """State variables of a role (parameter, slot, statistic, counter), by name, float32."""
        return {name.replace("|", "/"): np.asarray(data) for name, data in self.file["initial"].items()
                if data.attrs["role"].decode() == role}

    def step(self, i):
        """What step i is fed: (inputs, random numbers), by name. What a model starts from is inputs["features"]."""
        inputs = {name: values[i] for name, values in self.file["inputs"].items()}
        inputs["features"] = inputs["tokens" if "tokens" in inputs else "images"]
        random = {name.replace("|", "/"): values[i] for name, values in self.file["random"].items()}
        return inputs, random


def walk(layers, table, context, features, part=""):
    """The model's output, or that of a GAN's part. A layer reads the one before it, or those that its `input` names."""
    values, previous = {"data": features}, "data"
    for layer in layers:
        if layer.get("part", "") != part:
            continue
        if layer["kind"] not in table:
            raise SystemExit(f"{context.framework}: no layer kind '{layer['kind']}' in its table: {', '.join(table)}")
        inputs = [values[name] for name in layer.get("input") or [previous]]
        previous = layer["name"]
        full = f"{part}/{previous}" if part else previous
        values[previous] = table[layer["kind"]](context, {**layer, "name": full}, *inputs)
    return values[previous]


def same_padding(size, window, stride, dilation=1):
    """TensorFlow's SAME along one axis: (low, high); the odd cell is on the high side."""
    total = max(0, (-(-size // stride) - 1) * stride + dilation * (window - 1) + 1 - size)
    return total // 2, total - total // 2


def stride_of(layer):
    """A layer's stride; 0 is the default: 1 for convolutions, the window for pools."""
    return layer["stride"] or layer.get("window", 1)


def run_jobs(run):
    """Runs every --job DUMP OUT CORNER WRONG of the command line in a child of its own: the framework is imported once, and
    nothing of one job is left to the next. WRONG is '-' or a deliberate mistake."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--job", nargs=4, action="append", required=True, metavar=("DUMP", "OUT", "R|S", "WRONG"))
    failed = 0
    for dump, out, corner, wrong in arguments.parse_args().job:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(Dump(dump), out, corner, None if wrong == "-" else wrong)
                status = 0
            except BaseException:    # SystemExit too: its message is what the caller shows
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            print(f"failed: {dump} {corner} {wrong}", file=sys.stderr)
            failed += 1
    sys.exit(1 if failed else 0)


class Recorder:
    """Losses, gradients of the first and the last step, norms of all, state at the end. All float64 copies."""

    def __init__(self, steps):
        self.steps, self.losses, self.first, self.last, self.norms = steps, [], {}, {}, {}

    def step(self, i, losses, gradients):
        self.losses.append(np.atleast_1d(np.asarray(losses, np.float64)))
        for name, g in gradients.items():
            g = np.asarray(g, np.float64)
            self.norms.setdefault(name, []).append(np.linalg.norm(g))
            if i == 0:
                self.first[name] = g
            if i == self.steps - 1:
                self.last[name] = g


def write_result(path, framework, version, recorder, state, notes=()):
    with h5py.File(path, "w") as file:
        file.attrs["framework"], file.attrs["version"], file.attrs["notes"] = framework, version, "\n".join(notes)
        file["losses"] = np.stack(recorder.losses)
        parts = {"first": recorder.first, "last": recorder.last, "norms": recorder.norms, "state": state}
        for part, values in parts.items():
            group = file.create_group(part)
            for name, value in values.items():
                group[name.replace("/", "|")] = np.asarray(value, np.float64)

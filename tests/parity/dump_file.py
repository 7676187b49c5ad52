"""What the framework programs share: reading parity_dump's file, running jobs, writing results.

    adapter("jax")                                  # afterwards `import models` finds models.py of adapters/engines/jax
    dump = Dump("digits_mlp.h5", "R")               # has what models need of a program
    write_result("jax.h5", "jax", version, recorder, state)    # the layout of /R/ours in the dump

Python 3.11, numpy and h5py only: it runs in every framework's environment.
"""
import argparse
import os
import pathlib
import sys
import tomllib
import traceback

import h5py
import numpy as np

ADAPTERS = pathlib.Path(__file__).resolve().parents[2] / "adapters"


def adapter(name):
    """Makes an adapter's models importable."""
    sys.path += [str(ADAPTERS), str(ADAPTERS / "engines" / name)]


class Dump:
    """A file of parity_dump for run R, the whole batch on one core, or for run S. It replaces the Program of twinrun_engine that an
    engine has. Arrays keep their dtype; names have '/' again."""

    def __init__(self, path, corner="R"):
        self.file = h5py.File(path, "r")
        self.scenario = tomllib.loads(self.file.attrs["scenario"].decode())
        self.layers = self.scenario["model"]["layers"]
        self.loss = self.scenario["loss"]
        self.optimizer = self.scenario["optimizer"]
        self.sharding = self.scenario["tpu"]
        self.cores = self.sharding["cores"] if corner == "S" else 1
        self.activations = ()    # results of layers are not requested
        self.steps = len(self.file["inputs/learning_rate"])
        self.roles = {name.replace("|", "/"): data.attrs["role"].decode() for name, data in self.file["initial"].items()}

    def of_role(self, role, state):
        """Returns the part of `state` ({name: anything}) whose variables have the role: parameter, slot, statistic, counter."""
        return {name: state[name] for name, of in self.roles.items() if of == role}

    def state(self):
        """Returns the initial state; with several cores, a row for each."""
        found = {name.replace("|", "/"): np.asarray(data) for name, data in self.file["initial"].items()}
        return found if self.cores == 1 else {k: np.stack([v] * self.cores) for k, v in found.items()}

    def step(self, i):
        """Returns what step i is fed: (inputs, random numbers), by name; with several cores, a row for each."""
        inputs = {name: values[i] for name, values in self.file["inputs"].items()}
        random = {name.replace("|", "/"): values[i] for name, values in self.file["random"].items()}
        if self.cores == 1:
            return inputs, random
        return tuple({k: v.reshape(self.cores, -1, *v.shape[1:]) if v.ndim else np.stack([v] * self.cores) for k, v in part.items()}
                     for part in (inputs, random))

    def first_core(self, values):
        """Returns replica 0 of {name: array}."""
        return values if self.cores == 1 else {k: v[0] for k, v in values.items()}


def run_jobs(run):
    """Runs every --job DUMP OUT CORNER WRONG of the command line in a child process, so that the framework is imported once and
    no job affects the next. WRONG is '-' or a deliberate mistake."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--job", nargs=4, action="append", required=True, metavar=("DUMP", "OUT", "R|S", "WRONG"))
    failed = 0
    for dump, out, corner, wrong in arguments.parse_args().job:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(Dump(dump, corner), out, corner, None if wrong == "-" else wrong)
                status = 0
            except BaseException:    # SystemExit too, because the caller shows its message
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            print(f"failed: {dump} {corner} {wrong}", file=sys.stderr)
            failed += 1
    sys.exit(1 if failed else 0)


class Recorder:
    """Records losses, gradients of the first and the last step, norms of all gradients and the final state, as float64 copies."""

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

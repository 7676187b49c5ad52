"""Plays twinrun's side of the engine protocol (docs/reference/engine-protocol.md) for tests that need no C++.

    with Harness([python, "engine.py"]) as h:
        h.hello(); h.prepare(program); reply = h.step(program, 0, inputs, random, state)
"""
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "adapters"))

from twinrun_engine import load, save  # noqa: E402

DTYPES = {"float32": "F32", "int32": "I32", "bool": "BOOL"}


class Failed(Exception):
    """The engine returned an error, broke the protocol, died or hung."""


def described(arrays, roles=None):
    return [{"name": k, "dtype": DTYPES[str(v.dtype)], "shape": list(v.shape), **({"role": roles[k]} if roles else {})}
            for k, v in arrays.items()]


class Harness:
    def __init__(self, command, limit=300, marked=True, more=None):
        """marked: whether the environment names the session folder, too, as twinrun does. more: other environment variables."""
        self.folder = tempfile.mkdtemp(prefix="twinrun-engine-test-")
        environment = {k: v for k, v in os.environ.items() if k != "TWINRUN_SESSION"} | (more or {})
        if marked:
            environment["TWINRUN_SESSION"] = self.folder
        self.limit, self.alive, self.programs = limit, [], 0
        self.errors = open(os.path.join(self.folder, "stderr"), "w+", encoding="utf-8")
        self.process = subprocess.Popen([*map(str, command), self.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, env=environment)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(3)
        self.errors.close()
        shutil.rmtree(self.folder)

    def end(self, patience=20):
        """Closes the engine's input and returns its exit status."""
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()

    def last_words(self):
        self.errors.flush()
        return pathlib.Path(self.errors.name).read_text(errors="replace")[-4000:]

    def line(self):
        until = time.monotonic() + self.limit
        while b"\n" not in self.buffer:
            if not select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))[0]:
                raise Failed("is late")
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            if not got:
                raise Failed(f"ended with status {self.process.wait()}: {self.last_words()}")
            self.buffer += got
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line

    def send_raw(self, line):
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        while True:
            said = self.line()
            try:
                reply = json.loads(said)
            except ValueError:
                raise Failed(f"no message: {said!r}") from None
            if "alive" not in reply:
                return reply
            self.alive.append(reply["alive"])

    def ask(self, **message):
        reply = self.send_raw(json.dumps(message).encode())
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

    def hello(self, protocol=1):
        return self.ask(do="hello", protocol=protocol)["hello"]

    def prepare(self, program):
        self.programs += 1
        name = f"program-{self.programs}.json"
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            json.dump(program, file)
        reply = self.ask(do="prepare", program=name)
        assert reply == {"prepared": name}, reply
        return name

    def arrays(self, cores, prefix, values):
        """Writes arrays as twinrun does: equal rows once, others one by one. values: [cores, ...] if cores > 1."""
        found = {}
        for name, v in values.items():
            if cores == 1 or all(row.tobytes() == v[0].tobytes() for row in v):
                found[f"{prefix}/{name}"] = v if cores == 1 else v[0]
            else:
                found.update({f"{prefix}/{name}@{r}": row for r, row in enumerate(v)})
        return found

    def step(self, program, cores, number, inputs, random, state=None):
        """Returns {name: array} of the result file, 'state/NAME' and 'output/NAME'; with several cores, each is [cores, ...]."""
        fed, given = f"inputs-{number}.safetensors", None
        save(os.path.join(self.folder, fed), self.arrays(cores, "input", inputs) | self.arrays(cores, "random", random))
        if state is not None:
            given = f"state-{number}.safetensors"
            save(os.path.join(self.folder, given), self.arrays(cores, "state", state))
        reply = self.ask(do="step", program=program, step=number, inputs=fed, state=given, result=f"result-{number}")
        assert reply["stepped"] == number, reply
        result = load(os.path.join(self.folder, reply["result"]))
        if cores == 1:
            return result
        names = dict.fromkeys(name.rsplit("@", 1)[0] for name in result)
        return {n: np.stack([result[f"{n}@{r}"] if f"{n}@0" in result else result[n] for r in range(cores)]) for n in names}

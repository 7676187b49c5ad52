"""twinrun's engine protocol, version 1: lines of JSON on standard input and output, arrays in files of a session folder.

With one core, every array has the shape that the program declares. With several cores, every array has an additional leading axis,
[cores, ...], and row r belongs to replica r. What is equal on all replicas may be returned without that axis.
"""
import dataclasses
import difflib
import json
import os
import sys
import threading
import tomllib
import traceback
import typing

import numpy as np

from .safetensors import DTYPES, load, save

PROTOCOL = 1
MOST_TEXT = 8000    # of an error, in characters; a message is at most 1 MiB
channel = None      # what serve() writes to; one per process, because it takes over standard output


class Unsupported(Exception):
    """Everything that an engine cannot do, in one error: Unsupported(["no layer kind 'gather'", "no optimizer 'lamb'"])."""

    def __init__(self, reasons):
        super().__init__("; ".join(reasons))


class Refused(Exception):
    """A request, or what an engine returned, breaks the protocol."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """A state variable, input, random op or output of a program."""
    name: str
    dtype: np.dtype
    shape: tuple
    role: str = ""            # of a state variable: parameter, slot, statistic, counter
    per_core: bool = False    # of an input: each replica gets its own


class Program:
    """The program of which an engine computes steps."""

    def __init__(self, name, text, step_text=None):
        self.name = name
        # Of an imported program: its step as StableHLO text, and the names of the text's arguments and results in order, such as
        # "state/w1", "input/images", "output/loss". Of a scenario: None, and the engine builds the model from the scenario.
        self.step_text = step_text
        self.arguments, self.results = (text.get("step", {}).get(part, []) for part in ("arguments", "results"))
        self.scenario = tomllib.loads(text["scenario"])    # every key with its value: docs/reference/scenarios.md
        self.cores, self.batch = text["cores"], text["batch"]    # number of replicas; samples per replica
        self.algebra = text.get("algebra", "cpu")          # "cpu" or "xla": formula of rmsprop and adamax (docs/reference/formulas.md#two-algebras)
        self.sharding = text["sharding"]                   # reduction, batchnorm, batchnorm_group, batchwise, token_mean, clipping
        self.layers = self.scenario.get("model", {}).get("layers", [])
        self.loss = self.scenario.get("loss", {})
        self.optimizer = self.scenario.get("optimizer", {})
        self.state, self.inputs, self.random, self.outputs, self.activations = (
            [self.variable(v) for v in text.get(part, [])] for part in ("state", "inputs", "random", "outputs", "activations"))
        self.started = False
        self.own: typing.Any = None    # free for the engine: every step gets the same Program

    @staticmethod
    def variable(v):
        if v["dtype"] not in DTYPES:
            raise Refused(f"{v['name']}: unknown dtype {v['dtype']!r}")
        return Variable(v["name"], np.dtype(DTYPES[v["dtype"]]), tuple(v["shape"]), v.get("role", ""), v.get("per_core", False))

    def of_role(self, role, state):
        """Returns the part of `state` ({name: anything}) whose variables have the role."""
        return {v.name: state[v.name] for v in self.state if v.role == role}

    def read(self, path, prefix, variables):
        """Reads {name: array} of `variables` from a file. What is equal on all replicas is stored once and broadcast, read-only."""
        arrays, found, wrong = load(path), {}, []

        def take(name, v):
            if name not in arrays:
                wrong.append(f"there is no '{name}'")
            elif (arrays[name].dtype, arrays[name].shape) != (v.dtype, v.shape):
                wrong.append(f"'{name}' is {arrays[name].dtype} {list(arrays[name].shape)}; expected {v.dtype} {list(v.shape)}")
            return arrays.get(name)

        for v in variables:
            name = f"{prefix}/{v.name}"
            if self.cores == 1:
                found[v.name] = take(name if name in arrays else f"{name}@0" if f"{name}@0" in arrays else name, v)
            elif f"{name}@0" in arrays:
                rows = [take(f"{name}@{r}", v) for r in range(self.cores)]
                found[v.name] = None if wrong else np.stack(rows)
            else:
                one = take(name, v)
                found[v.name] = None if wrong else np.broadcast_to(one, (self.cores, *v.shape))
        if wrong:
            raise Refused(f"{os.path.basename(path)}: {'; '.join(wrong)}")
        return found

    def to_write(self, prefix, variables, values, optional=()):
        """Returns the arrays of a file with `values`, checked against `variables`; `optional` variables may be missing. Replicas that
        agree bit for bit are written once."""
        arrays, wrong = {}, []
        names = {v.name for v in (*variables, *optional)}
        for v in (*variables, *optional):
            if v.name not in values:
                if v in variables:
                    wrong.append(f"no {prefix} '{v.name}' was returned")
                continue
            value = exact(values[v.name], v.dtype)
            if value.dtype != v.dtype or value.shape not in (v.shape, (self.cores, *v.shape)):
                wrong.append(f"{prefix} '{v.name}' is {value.dtype} {list(value.shape)}; expected {v.dtype} {list(v.shape)}"
                             + (f", or one for each of {self.cores} cores" if self.cores > 1 else ""))
            elif value.shape == v.shape or all(row.tobytes() == value[0].tobytes() for row in value[1:]):
                arrays[f"{prefix}/{v.name}"] = value if value.shape == v.shape else value[0]
            else:
                arrays.update({f"{prefix}/{v.name}@{r}": row for r, row in enumerate(value)})
        near = {name: difflib.get_close_matches(name, names, 1) for name in values if name not in names}
        wrong += [f"the program has no {prefix} '{name}'" + (f"; is it '{like[0]}'?" if like else "") for name, like in near.items()]
        if wrong:
            raise Refused("; ".join(wrong))
        return arrays


def exact(value, dtype):
    """Returns an array; Python numbers (loss.item()) become `dtype` if that changes none of them."""
    value = np.asarray(value)
    if value.dtype != dtype and value.dtype in (np.float64, np.int64) and dtype != np.bool_:
        with np.errstate(all="ignore"):
            cast = value.astype(dtype)
            if np.array_equal(cast.astype(value.dtype), value, equal_nan=value.dtype == np.float64):
                return cast
    return value


class Channel:
    def __init__(self, stream):
        self.stream, self.lock = stream, threading.Lock()

    def send(self, message):
        with self.lock:
            self.stream.write(json.dumps(message) + "\n")
            self.stream.flush()


def alive(text="at work"):
    """Tells twinrun that long work such as compiling goes on, which restarts the time limit. Does nothing outside serve()."""
    if channel is not None:
        channel.send({"alive": str(text)[:MOST_TEXT]})


class Session:
    """Answers requests about one engine in one folder."""

    def __init__(self, engine, folder):
        self.engine, self.folder, self.programs = engine, folder, {}

    def path(self, name):
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", ".."):
            raise Refused(f"{name!r} is not a file of the session folder")
        return os.path.join(self.folder, name)

    def answer(self, request):
        what = request.get("do")
        if what not in ("hello", "prepare", "step"):
            raise Refused(f"unknown request {what!r}; expected hello, prepare or step")
        return getattr(self, what)(request)

    def hello(self, request):
        if request.get("protocol") != PROTOCOL:
            raise Refused(f"this engine supports protocol {PROTOCOL}, not {request.get('protocol')!r}")
        return {"hello": {"protocol": PROTOCOL, **self.engine.hello}}

    def prepare(self, request):
        name = request["program"]
        with open(self.path(name), encoding="utf-8") as file:
            text = json.load(file)
        step = None
        if "step" in text:
            if not self.engine.hello.get("programs"):
                raise Refused("this engine runs scenarios only, not imported programs")
            with open(self.path(text["step"]["stablehlo"]), encoding="utf-8") as file:
                step = file.read()
        program = Program(name, text, step)
        self.engine.prepare(program)
        self.programs[name] = program
        return {"prepared": name}

    def step(self, request):
        program = self.programs.get(request["program"])
        if program is None:
            raise Refused(f"program {request['program']!r} was not prepared")
        fed = self.path(request["inputs"])
        inputs, random = program.read(fed, "input", program.inputs), program.read(fed, "random", program.random)
        given = request.get("state")
        if given is None and not program.started:
            raise Refused(f"the first step of {program.name} needs a state")
        state = None if given is None else program.read(self.path(given), "state", program.state)
        program.started = True
        state, outputs = self.engine.step(program, request["step"], state, inputs, random)
        arrays = program.to_write("state", program.state, state) | program.to_write("output", program.outputs, outputs,
                                                                                           program.activations)
        result = request["result"] + ".safetensors"
        save(self.path(result), arrays)
        return {"stepped": request["step"], "result": result}


def error_text(error):
    """Returns what an exception says; of one that is not ours to give, its type and the line that raised it as well."""
    if isinstance(error, (Unsupported, Refused)):
        return str(error)[:MOST_TEXT]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}"[:MOST_TEXT - len(place)] + place


def take_session():
    """Removes the session folder from the command line if TWINRUN_SESSION names it, because a script that reads its own arguments does
    not expect another one. The modules that serve scripts call this when they are imported."""
    if sys.argv[1:] and sys.argv[-1] == os.environ.get("TWINRUN_SESSION"):
        del sys.argv[-1]


def serve(engine, folder=None):
    """Answers twinrun until it closes our standard input. folder: the session folder; by default the one that the environment
    variable TWINRUN_SESSION names, else the last argument of the command line. Meanwhile everything that is printed, also by C libraries,
    goes to standard error, because standard output carries the protocol. An exception is reported to twinrun in one line; its traceback
    goes to standard error."""
    global channel
    if folder is None:
        folder = os.environ.get("TWINRUN_SESSION", "")
        folder = folder if os.path.isdir(folder) else sys.argv[-1]
    if not os.path.isdir(folder):
        sys.exit(f"{folder}: is not a folder. An engine is started by twinrun: twinrun diagnose .. --subject 'exec:COMMAND'")
    sys.stdout.flush()
    channel = Channel(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    session = Session(engine, folder)
    try:
        for line in sys.stdin.buffer:
            try:
                reply = session.answer(json.loads(line))
            except Exception as error:    # the engine's code may raise anything: report it to twinrun and continue the session
                traceback.print_exc()
                sys.stderr.flush()
                reply = {"error": error_text(error)}
            channel.send(reply)
    except (BrokenPipeError, KeyboardInterrupt):
        pass    # twinrun has ended, or ends this engine
    finally:
        channel = None

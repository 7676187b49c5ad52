"""Does this device compute what a healthy one did? `record` keeps the digests of what a script's steps compute, `verify` runs the same
steps on each device of a machine and holds them against it.

    python -m twinrun record -o known.json step.py
    python -m twinrun verify --report report.json known.json step.py
"""
import argparse
import datetime
import glob
import json
import os
import subprocess
import sys
import tempfile

from . import checksum
from .command import program
from .refused import Refused
from .trace_report import printed

# What a device's outcome is called, and which exit status wins: a wrong device, another step, no answer.
OUTCOMES = {"IDENTICAL": "identical", "NOISE": "other_kernels", "ENGINE_BUG": "wrong", "PROGRAM": "other_step",
            "INCONCLUSIVE": "undecided", "UNAVAILABLE": "unavailable"}
STATUS = {"wrong": 20, "other_step": 15, "undecided": 125, "unavailable": 125, "other_kernels": 0, "identical": 0}
GRAVITY = list(STATUS)


def make_repeatable():
    """Chooses kernels that repeat their bits, and seeds what the script does not."""
    import random

    import torch
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    torch.manual_seed(0)
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
    except TypeError:    # before 1.11 it is an error to have none
        pass
    torch.backends.cudnn.benchmark = False


class NoTrace(Exception):
    pass


def _trace(path, args, threads, more=None, cores=None):
    """Runs the script under the watch, in a process of its own."""
    environment = dict(os.environ, TWINRUN_REPEATABLE="1", PYTHONHASHSEED="0", CUBLAS_WORKSPACE_CONFIG=":4096:8", **(more or {}))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(threads)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "twinrun", "watch", "--stop", "--steps", str(args.steps), "-o", path, args.script, *args.args]
    pin = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=pin)
    if done.returncode or not os.path.exists(path):
        raise NoTrace(done.stderr.decode("utf-8", "replace").strip()[-2000:] or f"exit status {done.returncode}")


def record_script(words):
    parser = argparse.ArgumentParser(prog="python -m twinrun record", description="Keeps the digests of what a script's "
                                     "first steps compute, on a machine that computes rightly.")
    parser.add_argument("--threads", type=int, default=1, help="threads of the script (1)")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps, from the first (2)")
    parser.add_argument("-o", "--out", default="known.json", help="the file to write (known.json)")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        traces = [os.path.join(folder, name) for name in ("first.twin", "again.twin")]
        try:
            for path in traces:
                _trace(path, args, args.threads)
        except NoTrace as e:
            print(f"twinrun: {args.script} could not be recorded: {e}", file=sys.stderr)
            return 125
        done = subprocess.run([program(), "record", traces[0], "--again", traces[1], "-o", args.out, "-q"])
    return done.returncode


def _sockets():
    """Returns the cores of each socket that this process may use."""
    allowed, found = os.sched_getaffinity(0), {}
    for path in glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id"):
        core = int(path.split("/")[5][3:])
        if core in allowed:
            with open(path) as file:
                found.setdefault(file.read().strip(), set()).add(core)
    return [found[name] for name in sorted(found)] or [allowed]


def _accelerators():
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    count = int(done.stdout) if done.stdout.strip().isdigit() else 0
    return asked.split(",")[:count] if asked else [str(i) for i in range(count)]


def _places(known, each):
    """Returns (name, environment, cores) of each device."""
    if known["accelerator"]:
        return [(f"cuda:{i}", {"CUDA_VISIBLE_DEVICES": i}, None) for i in _accelerators()]
    groups = {"machine": [os.sched_getaffinity(0)], "socket": _sockets(), "core": [{c} for c in sorted(os.sched_getaffinity(0))]}[each]
    return [(f"cpu {','.join(map(str, sorted(g)))}", {}, g) for g in groups]


def verify_script(words):
    parser = argparse.ArgumentParser(prog="python -m twinrun verify", description="Runs the recorded steps on each device of this "
                                     "machine, with the threads of the record, and says which computes something else.")
    parser.add_argument("--each", choices=("machine", "socket", "core"), default="socket", help="how CPUs are divided (socket)")
    parser.add_argument("--report", help="JSON file to write, with each device")
    parser.add_argument("--machine", help="what the report calls this machine (nothing)")
    parser.add_argument("--bits", action="store_true", help="exit with 1 where bits differ, too, although every result is within its bound")
    parser.add_argument("known")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    try:
        with open(args.known, "rb") as file:
            known = checksum.loads(file.read())
        threads, args.steps = int(known["settings"]["threads"]), known["steps"]
        places = _places(known, args.each)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        print(f"twinrun: {args.known} is not what `python -m twinrun record` writes: {e}", file=sys.stderr)
        return 128
    rows = []
    for name, environment, cores in places:
        found, said = _verify(args, threads, environment, cores)
        rows.append({"device": name, **found})
        print(f"{rows[-1]['outcome']:14} {name}: {rows[-1]['headline']}{said and ': ' + said}", flush=True)
        for where in rows[-1].get("findings", [])[:1]:
            print(f"               step {where['step']}, call {where['call']}: {where['sentence']}"
                  + (f", module {where['module']}" if where["module"] else ""))
    if not rows:
        rows.append({"device": "cuda", "outcome": "unavailable", "headline": "the step was recorded on an accelerator, and none is here"})
        print(f"unavailable    {rows[0]['headline']}")
    worst = min((row["outcome"] for row in rows), key=GRAVITY.index)
    status = STATUS[worst] or (1 if args.bits and worst != "identical" else 0)
    if args.report:
        when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        with open(args.report, "w") as file:
            file.write(checksum.dumps({
                "schema": 1, "kind": "verify_step", "outcome": worst, "exit_code": status, "machine": args.machine, "when": when,
                "known": os.path.basename(args.known), "root_digest": known["root_digest"], "script": os.path.basename(args.script), "devices": rows}))
    return status


def _verify(args, threads, environment, cores):
    """Returns what is found of a device, and what a script said that failed there, which is not for the report."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.twin")
        try:
            _trace(path, args, threads, environment, cores)
        except NoTrace as e:
            lines = str(e).splitlines()
            return {"outcome": "unavailable", "headline": "the step did not run"}, ([s for s in lines if not s.startswith("twinrun: ")] or lines)[-1]
        done = subprocess.run([program(), "verify", args.known, path, "--json", "-q"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
    try:
        found = printed(done)
    except Refused as error:
        return {"outcome": "unavailable", "headline": "the trace could not be judged"}, str(error)
    return {"outcome": OUTCOMES[found["verdict"]["class"]], "headline": found["verdict"]["headline"],
            **{key: found[key] for key in ("verdict", "answers", "findings", "counts", "details")}}, ""

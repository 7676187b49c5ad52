"""The command line: `watch` records a script, `environment` makes one of released versions, every
other verb is the program twinrun's."""
import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

from . import watched
from .refused import Refused

USAGE = """usage: python -m twinrun watch [-o trace.twin] [--steps N] [--first N] [--budget 4GiB] [--observer] [--run-on] SCRIPT|-m MODULE ARGS...
       python -m twinrun record [-o known.json] SCRIPT ARGS...     what a step computes on a healthy machine
       python -m twinrun verify known.json SCRIPT ARGS...          does each device here compute the same?
       python -m twinrun replay BUNDLE.zip                         does this PyTorch compute the calls of a bundle rightly?
       python -m twinrun environment PACKAGE==VERSION [REQUIREMENT..] [--python 3.11] [--remove]
       python -m twinrun environment --releases PACKAGE
       python -m twinrun VERB ...     any verb of the program twinrun, such as diagnose"""


def program():
    """Returns the path of the program: TWINRUN, beside the interpreter, in PATH, or what a checkout has built."""
    named = os.environ.get("TWINRUN")
    beside = os.path.join(os.path.dirname(sys.executable), "twinrun")
    built = os.path.join(os.path.dirname(__file__), "../../build/release/twinrun")
    for path in (named, beside, shutil.which("twinrun"), os.path.abspath(built)):
        if path and os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise FileNotFoundError(f"the program twinrun was found neither beside {sys.executable} nor in PATH; name it in the environment "
                            "variable TWINRUN")


def main(words=None):
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] == "watch":
        if importlib.util.find_spec("torch") is None:
            print(f"twinrun: {sys.executable} has no PyTorch, which watch records; call `python -m twinrun watch` by the interpreter that "
                  "runs the script", file=sys.stderr)
            return 2
        return watch_script(words[1:])
    if words[0] in ("record", "verify") and any(w.endswith(".py") for w in words):
        from .known import record_script, verify_script
        return {"record": record_script, "verify": verify_script}[words[0]](words[1:])
    if words[0] == "replay" and importlib.util.find_spec("torch") is not None:
        from .again import holds_calls, replay
        if any(holds_calls(word) for word in words[1:]):
            try:
                return replay(words[1:])
            except Refused as e:
                print(f"twinrun: {e}", file=sys.stderr)
                return 128
    if words[0] == "environment":
        from .environments import main as environment
        return environment(words[1:])
    try:
        path = program()
    except FileNotFoundError as e:
        print(f"twinrun: '{words[0]}' is a verb of the program twinrun: {e}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execv(path, [path, *words])


def _parsed(words):
    parser = argparse.ArgumentParser(prog="python -m twinrun watch", description="Records training steps of a PyTorch script.")
    parser.add_argument("-o", "--output", default="trace.twin",
                        help="the trace (trace.twin); each of several ranks writes its own (trace.rank0.twin)")
    parser.add_argument("--steps", type=int, default=4, help="how many training steps to record (4)")
    parser.add_argument("--first", type=int, default=0, help="the first of them, from 0 (0)")
    parser.add_argument("--budget", default="4GiB", help="how large the trace may become (4GiB)")
    parser.add_argument("--stop", action="store_true", default=True, help="end the script after the recorded steps (the default)")
    parser.add_argument("--run-on", action="store_false", dest="stop", help="let the script run to its end")
    parser.add_argument("--observer", action="store_true",
                        help="run the script twice, with and without recording, and compare the parameters after the recorded steps")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as for python -m")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    from .file import parse_size
    try:
        args.budget = parse_size(args.budget)
    except ValueError as e:
        parser.error(str(e))
    if args.steps < 1 or args.first < 0:
        parser.error("--steps must be at least 1, --first at least 0")
    if args.module and importlib.util.find_spec(args.script.partition(".")[0]) is None:
        parser.error(f"there is no module '{args.script}'")
    if not args.module and not os.path.exists(args.script):
        parser.error(f"there is no script '{args.script}'")
    folder = os.path.dirname(os.path.abspath(args.output))
    if not os.path.isdir(folder):
        parser.error(f"--output {args.output}: there is no folder '{folder}'")
    if os.path.isdir(args.output) or not os.access(folder, os.W_OK):
        parser.error(f"--output {args.output}: it is a folder, or '{folder}' cannot be written to")
    return args


def watch_script(words):
    args = _parsed(words)
    return _observe(words, args) if args.observer else watched.run(args)


def _observe(words, args):
    """Runs the script in two processes, and writes into the trace whether recording changed what it computes."""
    from .file import replace_end
    words = [w for w in words[:len(words) - len(args.args)] if w not in ("--observer", "--run-on")] + args.args
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        def run(which):
            told = os.path.join(folder, which)
            environment = dict(os.environ, TWINRUN_OBSERVE=told)
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (
                os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.environ.get("PYTHONPATH"))))
            if which != "with":
                environment["TWINRUN_OBSERVE_ONLY"] = "1"
            done = subprocess.run([sys.executable, "-m", "twinrun", "watch", *words], env=environment,
                                  stdout=None if which == "with" else subprocess.DEVNULL)
            if os.path.exists(told):
                with open(told) as file:
                    found[which] = file.read()
            return done.returncode

        code = run("with")
        if code:
            return code
        run("without")
        same = "with" in found and found.get("with") == found.get("without")
        if not same and "without" in found:
            run("again")
    step = args.first + args.steps - 1
    if "with" in found and "without" not in found:
        print("twinrun: without recording, no optimizer of torch.optim tells of this script's steps, so nothing was compared")
        return 0
    observer = {"same": same, "with": found.get("with"), "without": found.get("without"), "what": f"parameters after step {step}"}
    if not same:
        observer["repeats"] = found.get("again") is not None and found.get("again") == found.get("without")
    replace_end(args.output, lambda end: end.update(observer=observer))
    if same:
        print(f"twinrun: parameters after step {step} are the same with and without recording ({found['with'][:16]})")
    elif not found:
        print("twinrun: the script ended before the recorded steps were complete, so nothing was compared")
    elif observer["repeats"]:
        print(f"twinrun: parameters after step {step} differ with and without recording, and the script repeats without: recording "
              "changed what the script computes")
    else:
        print(f"twinrun: parameters after step {step} differ between two runs without recording, too: the script does not repeat, so "
              f"this comparison says nothing about recording. Seed it, and use torch.use_deterministic_algorithms(True).")
    return 0

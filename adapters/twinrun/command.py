"""The command line: `watch` records a script, `environment` makes one of released versions, every
other verb is the program twinrun's."""
import argparse
import hashlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tempfile

USAGE = """usage: python -m twinrun watch [-o trace.twin] [--steps N] [--first N] [--budget 4GiB] [--observer] [--run-on] SCRIPT ARGS...
       python -m twinrun record [-o known.json] SCRIPT ARGS...      what a step computes on a healthy machine
       python -m twinrun verify known.json SCRIPT ARGS...           does each device here compute the same?
       python -m twinrun environment PACKAGE==VERSION [REQUIREMENT..] [--python 3.11] [--remove]
       python -m twinrun environment --releases PACKAGE
       python -m twinrun VERB ...     any verb of the program twinrun, such as judge"""


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
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    from .watch import parse_size
    try:
        args.budget = parse_size(args.budget)
    except ValueError as e:
        parser.error(str(e))
    if args.steps < 1 or args.first < 0:
        parser.error("--steps must be at least 1, --first at least 0")
    if not os.path.exists(args.script):
        parser.error(f"there is no script '{args.script}'")
    folder = os.path.dirname(os.path.abspath(args.output))
    if not os.path.isdir(folder):
        parser.error(f"--output {args.output}: there is no folder '{folder}'")
    if os.path.isdir(args.output) or not os.access(folder, os.W_OK):
        parser.error(f"--output {args.output}: it is a folder, or '{folder}' cannot be written to")
    return args


def digest(tensors):
    """Returns the SHA-256 of tensors' bytes."""
    import torch
    found = hashlib.sha256()
    with torch.no_grad():
        for t in tensors:
            t = t.detach().cpu().contiguous()
            found.update(str((t.dtype, tuple(t.shape))).encode())
            found.update((t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes())
    return found.hexdigest()


class _Stop(SystemExit):
    """Ends the script after the recorded steps."""


def stop():
    raise _Stop(0)


def watch_script(words):
    args = _parsed(words)
    if args.observer:
        return _observe(words, args)
    from .regions import Regions, Uncounted
    from .steps import Steps
    from .watch import watch
    silent = os.environ.pop("TWINRUN_OBSERVE_ONLY", None)
    told = os.environ.pop("TWINRUN_OBSERVE", None)

    def complete():
        if told:
            with open(told, "w") as file:
                file.write(digest(counter.parameters()))
        if args.stop:
            stop()

    if os.environ.pop("TWINRUN_REPEATABLE", None):
        from .known import make_repeatable
        make_repeatable()
    # What `python SCRIPT` does to the path and the arguments.
    sys.argv = [args.script, *args.args]
    sys.path[0] = os.path.dirname(os.path.abspath(args.script))
    if silent:
        def ends():
            if counter.steps == args.first + args.steps:
                complete()
        counter = Steps(ends)
        counter.install()
        # The other run counts steps of compiled optimizers so, too.
        Regions(Uncounted(counter), counter.hide, counter.show).install()
        runpy.run_path(args.script, run_name="__main__")
        return 0
    w = watch(args.output, args.steps, args.first, args.budget, script=args.script, after=complete if told or args.stop else None)
    try:
        with w:
            counter = w.counter
            runpy.run_path(args.script, run_name="__main__")
    except _Stop:
        pass
    except Exception as error:    # told as `python SCRIPT` tells it, without the frames around the script
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != args.script:
            frame = frame.tb_next
        error = error.with_traceback(frame or error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        if w.recorder is not None and not w.done and not w.children.started:
            print(f"twinrun: the script made {w.counter.steps} training steps; --first {args.first} --steps {args.steps} asks for "
                  f"{args.first + args.steps}", file=sys.stderr)
    return 0


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

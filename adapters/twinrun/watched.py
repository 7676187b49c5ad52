"""A script under `watch`. The interpreter runs it, as it does without us, so there is nothing of ours around it: `run` becomes that
interpreter, and `begin` is called in it before the script (site/sitecustomize.py)."""
import atexit
import hashlib
import importlib.util
import json
import os
import subprocess
import sys

from . import file, messages  # noqa: F401  as long as nobody has put functions of his own in the place of the library's
from .frames import without_ours

_HANDED = "TWINRUN_WATCHED"    # from `run` to `begin`
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run(args):
    """Becomes `python SCRIPT ARGS`. Returns an exit status where that cannot be."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        messages.say("watch needs the environment and the module site: call Python without -E, -I and -S")
        return 2
    path = os.environ.get("PYTHONPATH")
    environment = {**os.environ, _HANDED: json.dumps({**vars(args), "path": path}),
                   "PYTHONPATH": os.pathsep.join(filter(None, (os.path.join(_OURS, "site"), path)))}
    flags = subprocess._args_from_interpreter_flags()
    if getattr(sys.stdout, "write_through", False):    # the one flag that it leaves out
        flags.append("-u")
    if sys.stdout is not None:
        sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *flags, *(["-m"] if args.module else []), args.script, *args.args], environment)


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


def stop():
    """Ends the script after the recorded steps."""
    raise SystemExit(0)


def begin():
    """Watches what this interpreter will run, from the moment in which it has imported PyTorch."""
    handed = json.loads(os.environ.pop(_HANDED))
    path = handed.pop("path")
    os.environ.pop("PYTHONPATH")
    if path is not None:
        os.environ["PYTHONPATH"] = path
    messages.keep()
    watched = _Watched(**handed)
    atexit.register(watched.ends)    # before all that the script registers, and so after it
    if hasattr(sys, "addaudithook"):    # since Python 3.8
        sys.addaudithook(watched.hears)
    _when_imported("torch", watched.begins)


class _Watched:
    def __init__(self, output, steps, first, budget, stop, script, **_):
        self.output, self.steps, self.first, self.budget, self.stop, self.script = output, steps, first, budget, stop, script
        self.silent, self.told, self.repeatable = (os.environ.pop(f"TWINRUN_{name}", None)
                                                   for name in ("OBSERVE_ONLY", "OBSERVE", "REPEATABLE"))
        self.process, self.began, self.error = os.getpid(), False, None
        self.watch = None      # which records
        self.counter = None    # of the steps

    def begins(self):
        self.began = True
        if self.repeatable:
            from .known import make_repeatable
            make_repeatable()
        if self.silent:
            return self._counts()
        from .recording import watch
        watched = watch(self.output, self.steps, self.first, self.budget, script=self.script,
                        after=self._complete if self.told or self.stop else None)
        try:
            watched.__enter__()
        except OSError as e:
            messages.say(str(e))
            raise SystemExit(2) from None
        self.watch, self.counter = watched, watched.counter

    def _counts(self):
        """Counts steps and records nothing."""
        from .regions import Regions, Uncounted
        from .steps import Steps

        def ends():
            if counter.steps == self.first + self.steps:
                self._complete()
        self.counter = counter = Steps(ends)
        counter.install()
        # The other run counts steps of compiled optimizers so, too.
        Regions(Uncounted(counter), counter.hide, counter.show).install()

    def _complete(self):
        if self.told:
            with open(self.told, "w") as file:
                file.write(digest(self.counter.parameters()))
        if self.stop:
            stop()

    def hears(self, event, args):
        """Of the interpreter: it is about to show the exception that ends the script, and shall show it as without us; or the script
        puts another program in its own place."""
        if event == "sys.excepthook":
            self.error = args[2]
            without_ours(self.error)
        elif event == "os.exec" and os.getpid() == self.process and not (self.watch is not None and self.watch.done):
            messages.say("the script goes on as another program (os.exec), which is not recorded: watch what it becomes")

    def ends(self):
        if os.getpid() != self.process:
            return
        if not self.began:
            messages.say("torch was imported past Python's import system, so nothing was recorded" if "torch" in sys.modules else
                         "the script did not import torch, so nothing was recorded")
        if self.watch is None:
            return
        watch = self.watch
        watch.__exit__(type(self.error), self.error, None)
        if watch.done or watch.children.started:
            return
        elsewhere = watch.counter.elsewhere
        messages.say(f"the script made {watch.counter.steps} training steps; --first {self.first} --steps {self.steps} asks for "
                     f"{self.first + self.steps}" + (f". {elsewhere} steps of an optimizer ran in other threads, whose calls are not "
                                                     "recorded: call twinrun.watch in the thread that trains" if elsewhere else ""))


def _when_imported(name, then):
    """Calls `then` as soon as the module is there: what a script sets before it imports PyTorch (threads, devices) has its effect."""
    if name in sys.modules:
        return then()

    class Finder:
        looking = False

        @classmethod
        def find_spec(cls, wanted, path=None, target=None):
            if wanted != name or cls.looking:
                return None
            cls.looking = True
            try:
                spec = importlib.util.find_spec(name)
            finally:
                cls.looking = False
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module):
                    execute(module)
                    if cls in sys.meta_path:
                        sys.meta_path.remove(cls)
                        then()
                spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder)

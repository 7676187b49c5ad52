"""Records the calls of training steps: the modes and hooks around a script, and what a step is.

    with twinrun.watch("trace.twin") as w:
        train()
"""
import os
import sys
import threading
import weakref

import torch

from . import launches, older
from .applied import Applied, name_of
from .children import Children, named, rank
from .encode import COMPOSED, NO_GRADIENT, OPTIMIZER, Recorder, Skip, key_of
from .file import PART, STEP, TraceFile, parse_size
from .frames import Frames
from .messages import forget, say
from .places import Modules, Places, is_of_a_handler, pass_on, raised_at
from .modes import depth, hidden, is_on_top, modes, plain, unnoticed
from .regions import Regions, compiling, inside
from .settings import loosest, nnpack_convolves, settings
from .steps import Steps
from .updates import Updates

UNKNOWN = -1
READS = ("aten._local_scalar_dense.default", "aten.detach.default", "aten.is_nonzero.default")    # begin no training, whatever they read
ACCUMULATES = ("torch::autograd::AccumulateGrad", "AccumulateGrad")    # the nodes that add to a leaf's gradient
HOOKED = (*ACCUMULATES, "CompiledFunctionBackward")    # nodes in which others' code runs

_sequence = getattr(torch._C._autograd, "_get_sequence_nr", None)
_node = getattr(torch._C, "_current_autograd_node", None)
_watches = weakref.WeakSet()


def _tracers():
    """Returns what follows the calls of this thread: functions of sys.settrace and sys.setprofile, and PyTorch's profiler."""
    profiler = getattr(torch.autograd, "_profiler_enabled", bool)()
    return {id(f) for f in (sys.gettrace(), sys.getprofile()) if f is not None} | ({"profiler"} if profiler else set())


def _in_child():
    for watch in list(_watches):
        watch._forget()


os.register_at_fork(after_in_child=_in_child)


class watch:
    """Records `steps` training steps, from step `first` on, into the file `path`. The code inside runs as it would without. `path` is
    the file's name once it is written: several ranks write `trace.rank0.twin` and so on, processes without a rank `trace.pid1234.twin`."""

    def __init__(self, path, steps=4, first=0, budget="4GiB", script=None, after=None, child=False):
        if steps < 1 or first < 0:
            raise ValueError(f"steps={steps}, first={first}; expected steps of at least 1 and first of at least 0")
        self.path, self.steps, self.first, self.budget = path, steps, first, parse_size(budget)
        self.given, self.child = os.path.abspath(path), child    # the script may go to another folder
        self.of_script = script is not None    # which is to train
        self.script = script or (sys.argv[0] if sys.argv else "")
        self.after = after        # is called once, when the last watched step is complete
        self.on = False           # calls are recorded now
        self.done = False
        self.complete = 0         # steps that were recorded
        self.between = True       # no training has begun since the last step
        self.trained = {}         # id of a module: whether it holds parameters that are trained
        self.functions, self.kinds = {}, {}    # Functions of the script: what the end tells of them; of a node's type: the name
        self.dissolved = {}    # Functions of the script that torch.compile has taken apart: what the end tells of them
        self.recorder = None
        self.lock = threading.RLock()
        self.nodes, self.sequence, self.last = {}, 0, None
        self.alone = None         # what of PyTorch's the last call was a part of
        self.modes, self.put_away = [], []
        self.message = None
        self.tracers = _tracers()    # those that were there before; None: it was told

    # Entering and leaving

    def __enter__(self):
        self.settings = self._settings()
        self.meta = {"framework": "torch", "version": str(torch.__version__).split("+")[0], "python": sys.version.split()[0],
                     "script": os.path.basename(self.script).encode("utf-8", "replace").decode(), "threads": torch.get_num_threads(),
                     "settings": self.settings}
        file = TraceFile(self._name(), self.meta)
        self.recorder = Recorder(file, self.budget, sees_all=not older.needed())
        self.places, self.modules = Places(), Modules(self._put_away, self._put_back)
        self.updates = Updates(self)
        self.counter = Steps(self._step_ends, self.updates)
        self.counter.install()
        self.modules.install()
        self.regions = Regions(self, self._hide, self._show)
        self.regions.install()
        self.applied = Applied(self)
        self.applied.install()
        self.launches = launches.Launches(self._launched)
        self.children = Children({"path": self.given, "steps": self.steps, "first": self.first, "budget": self.budget,
                                  "script": self.script, "stop": self.after is not None})
        self.children.install()
        self.frames = Frames()
        self.frames.install()
        self.depth = depth()
        _watches.add(self)
        if self.first == 0:
            self._record()
        elif not older.needed():
            self._enter_modes()    # to count the steps of a loop that no optimizer updates
        return self

    @staticmethod
    def _settings():
        with plain(), hidden():
            return settings()

    def _name(self):
        """Returns the file's name, and notes the rank."""
        mine, world = rank()
        self.meta.update(rank=mine or 0, world=world)
        if mine is not None and world > 1:
            return named(self.given, f"rank{mine}")
        return named(self.given, f"pid{os.getpid()}") if self.child else self.given

    def __exit__(self, kind, error, trace):
        self.after = None    # the script has ended
        if error is None and not self.done:
            self.counter.leaves_off()
        self.on = False
        self._remove()
        self._unwind()
        if self.recorder.file.fd is not None:
            self._finish(error)
        _watches.discard(self)
        return False

    def _remove(self):
        self.regions.remove()
        self.applied.remove()
        self.counter.remove()
        self.modules.remove()
        self.launches.remove()
        self.children.remove()
        self.frames.remove()

    def _forget(self):
        """In a child process: the file belongs to the parent."""
        self.on, self.done = False, True
        if self.recorder is not None:
            self._remove()
            self._unwind()
            self.recorder.file.abandon()
        forget()

    def _record(self):
        """Begins to record, if no mode of the script lies above ours."""
        if not self.modes and not self._enter_modes():
            return
        self.recorder.start_step(0, self.steps)
        self.sequence = _sequence() if _sequence else 0
        self.on = True

    def _enter_modes(self):
        if depth() != self.depth:
            return False
        for mode in modes(self):
            with unnoticed():
                mode.__enter__()
            self.modes.append(mode)
        return True

    def _unwind(self):
        """Takes our modes off, if they lie on top; a mode that the script never leaves stays above them."""
        while self.modes and is_on_top(self.modes[-1]):
            self.modes.pop().__exit__(None, None, None)

    def _finish(self, error=None):
        r = self.recorder
        text = None
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            text = f"{type(error).__name__} raised at {raised_at(error)}"    # its words may hold what is secret
        end = {"calls": r.calls, "steps": self.complete, "bytes": r.file.size, "exception": text,
               "left_out": dict(r.left_out), "observer": None, "settings": self.settings,
               "functions": [{"name": name, "place": place, "calls": len(numbers)} for name, place, numbers in self.functions.values()]
               + [{"name": name, "place": place, "compiled": True} for name, place in self.dissolved.values()],
               "dropout_off": [] if self.modules.drops else list(self.modules.silent.values()),
               "skipped_evaluation": r.passed, "steps_elsewhere": self.counter.elsewhere,
               "steps_asked": self.steps if self.of_script else 0, "steps_made": self.counter.steps}
        try:
            with plain(), hidden():
                known = ((r.storages.get(key_of(p)), name) for name, p in self.modules.parameters())
                end["parameters"] = {str(storage.number): name for storage, name in known if storage is not None}
        except Exception as e:    # of a module whose parameters have no memory, or that does not say what it holds
            pass_on(e)
        if r.error is not None:
            end["left_out"]["first_error"] = r.error
        if not self.complete and (self.child or self.children.started):
            r.file.discard()    # it did not train
            return
        name = self._name()
        keep = not self.complete and (text or not r.calls) and os.path.exists(name)
        for finish in [lambda: r.file.record_end(end), *([] if keep else [lambda: r.file.publish(name, self.meta)])]:
            try:
                finish()
            except OSError as e:
                r.note(f"{r.file.path}: {e.strerror}; " + ("the trace is cut short" if os.path.exists(name) else "nothing is kept"))
        self.path = r.file.path + ("" if r.file.published else PART)
        r.file.abandon()
        if keep:
            say(f"no step is complete, so {name} stays as it is; what was recorded is in {self.path}")
        if r.error:
            say(f"while recording: {r.error}")
        if r.left_out["budget"]:
            say(f"{r.left_out['budget']} of {r.calls} calls are without some of their bytes, because a step's share of the budget of "
                f"{self.budget} bytes was spent. Give a larger --budget, or watch more --steps: each keeps other calls.")

    # Compiled functions

    def _hide(self):
        """Dynamo takes over: it must not see our hooks, nor a function mode."""
        self.counter.hide()
        self.modules.hide()
        self._put_away()

    def _show(self):
        self.counter.show()
        if not self.done:
            self.modules.show()
        self._put_back()

    def _put_away(self):
        """Takes the mode of functions off for a while, if it lies on top."""
        mode = self.modes[-1] if self.modes else None
        if mode is None or not isinstance(mode, getattr(torch.overrides, "TorchFunctionMode", ())) or not is_on_top(mode):
            self.put_away.append(None)
            return
        self.put_away.append(self.modes.pop())
        mode.__exit__(None, None, None)

    def _put_back(self):
        mode = self.put_away.pop() if self.put_away else None
        if mode is not None and not self.done:
            mode.__enter__()
            self.modes.append(mode)

    def region_begins(self, schema, args, kwargs):
        with self.lock:
            try:
                with plain(), hidden():
                    self.between = False
                    before = self.recorder.begin(schema, args, kwargs)
                    self._locate(before)
                    return before
            except Exception as e:
                self._failed(e)
        return None

    def region_ends(self, before, written, out, raised, known):
        """`written`: the inputs that the region wrote; all that it may have written, where its graph is not known."""
        if not self.on:
            return
        r = self.recorder
        with self.lock:
            try:
                with plain(), hidden():
                    r.refused = False
                    results = [] if raised else list(out)
                    r.wrote(r.tensors(written, []))
                    r.returned(r.tensors(results, []))
                    number = r.calls
                    r.finish(before, before.schema.name, results, written if known else [],
                             (before.place, before.module, before.node, before.forward, self._flags(before)), raised)
                    if before.link is not None:
                        before.link[0] = number
            except Exception as e:
                self._failed(e)

    # Steps

    def next_step(self):
        """Tells that a step is complete, for loops without an optimizer of torch.optim."""
        self.counter.told()

    def _step_ends(self):
        done = self.done
        try:
            self._keep_and_go_on()
        except Exception as e:    # ours is none of the script's
            self._failed(e)
        if self.done and not done and self.after:
            self.after()

    def _keep_and_go_on(self):
        done = self.counter.steps    # those that are complete
        self.between, self.trained = True, {}
        if self.done:
            if self.modes:
                self._unwind()
            return
        if self.on:
            self.settings = loosest(self.settings, self._settings())    # scripts change them after they were started
            self.launches.install()
            if self.tracers is not None and _tracers() - self.tracers:
                self.tracers = None
                say("the script profiles or traces its own calls: what it counts has those of the recording, too")
            with self.lock:
                self._keep_step()
        if done >= self.first + self.steps:
            self.done, self.on = True, False
            self._unwind()
            self.modules.remove()
            self.children.remove()
            self.frames.remove()
            with self.lock:
                self._finish()
        elif self.on:
            with self.lock:
                self.recorder.start_step(done - self.first, self.steps)
        elif done >= self.first:
            self._record()
        elif self.modes and not self.counter.loop:
            self._unwind()

    def _keep_step(self):
        """A step is whole: what was recorded can be read from now on, whatever happens to this process."""
        r = self.recorder
        self.complete += 1
        try:
            r.file.record(STEP, self.complete, b"")
            r.file.flush()
            r.file.publish(self._name(), self.meta)
            self.path = r.file.path
        except OSError as e:
            r.note(f"{r.file.path}: {e.strerror}; the trace is cut short")

    # Calls

    def describe(self, function, *arguments):
        """Calls what writes a description around calls. What cannot be described is not asked about; the calls are recorded all the same."""
        if not self.on:
            return None
        try:
            with self.lock, plain(), hidden():
                return function(*arguments)
        except Exception as e:
            pass_on(e)
            return None

    def _failed(self, error):
        """A call cannot be recorded. What a handler of signals raised while we worked is the script's, and goes on."""
        r = self.recorder
        r.left_out["error"] += 1
        if is_of_a_handler(error):
            r.note(f"{type(error).__name__} of a handler of signals came in between")
            raise error
        r.note(f"{type(error).__name__}: {error}")

    def looks(self, func, args, kwargs):
        """Follows a call for what it tells of the steps. Returns whether it is left out: it belongs to an evaluation between steps."""
        r, counter = self.recorder, self.counter
        node = _node() if _node else None
        tensors = r.tensors([*args, *kwargs.values()], [])
        if counter.loop:
            counter.sees(key_of, node is not None, tensors, r.tensors(r.schema_of(func).written(args, kwargs), []))
        if self.on and self.between and self._evaluates(tensors, node is not None, str(func)):
            return True
        # A metric of an evaluation may be computed and read at any time.
        return bool(self.on and r.skipped and tensors and node is None and all(key_of(t) in r.skipped for t in tensors))

    def _evaluates(self, tensors, backward=False, name=""):
        """Whether a call between two steps is one of a trained model in eval mode, without gradients, or reads what such a call has
        computed. What another model computes (a target or a teacher) is a part of the step."""
        gradients = torch.is_grad_enabled()
        if name not in READS and (backward or gradients and any(t.requires_grad for t in tensors)):
            self.between = False
            return False
        module = None if gradients else self.modules.outermost
        if module is not None:
            trained = self.trained.get(id(module))
            if trained is None:
                ids = self.counter.trained()
                trained = self.trained[id(module)] = any(id(p) in ids for p in module.parameters())
            if trained:
                self.between = not module.training
                return not module.training
        skipped = self.recorder.skipped
        return bool(skipped) and any(key_of(t) in skipped for t in tensors)

    def _launched(self, name):
        """A kernel of Triton is launched by the script itself."""
        if not self.on or inside() or compiling():
            return
        r = self.recorder
        with self.lock:
            try:
                with plain(), hidden():
                    before = r.begin(launches.SCHEMA, (), {})
                    self._locate(before)
                    r.finish(before, f"triton.{name}", None, [], (before.place, before.module, before.node, before.forward, 0), False)
            except Exception as e:
                self._failed(e)

    def call(self, func, args, kwargs):
        before, left_out = None, False
        with self.lock:
            try:
                with plain(), hidden():
                    if self.between or self.counter.loop or self.recorder.skipped:
                        left_out = self.looks(func, args, kwargs)
                    if self.on and not left_out:
                        before = self._before(func, args, kwargs)
            except Skip:
                pass
            except Exception as e:
                self._failed(e)
        if left_out:
            out = func(*args, **kwargs)
            with self.lock, plain(), hidden():
                self.recorder.pass_over(self.recorder.schema_of(func), args, kwargs, out)
            return out
        if before is None:
            return func(*args, **kwargs)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            self._after(before, args, kwargs, None, True)
            raise
        self._after(before, args, kwargs, out, False)
        return out

    def _before(self, func, args, kwargs):
        r = self.recorder
        if not self.launches.installed and "triton" in sys.modules:
            self.launches.install()
        node = _node() if _node else None
        # Within a node of the backward pass that is not the script's, and within an optimizer of PyTorch, none but PyTorch's code runs.
        alone = True if self.counter.own else None
        if alone is None and node is not None and _sequence and not self._made_by(node) and node.name() not in HOOKED:
            alone = node._sequence_nr(), type(node)
        schema = r.schema_of(func)
        if node is not None and node.name() in ACCUMULATES:
            leaf = r.storages.get(key_of(node.variable))
            if leaf is not None:
                kwargs = {**kwargs, "variable": leaf.number}    # which leaf's gradient this is
        if self.updates.starting is not None and node is None and self.counter.optimizing:
            self.updates.begins()
            self.alone = alone = True    # nothing else runs between this and the call
        r.saw = self._made_by
        try:
            before = r.begin(schema, args, kwargs, alone is not None and alone == self.alone)
        finally:
            r.saw = None
        if not torch.is_grad_enabled():
            before.flags |= NO_GRADIENT
        self.alone = alone
        self._locate(before, node)
        if before.schema.name.startswith("aten.convolution.") and not self.settings["nnpack_convolutions"]:
            self.settings["nnpack_convolutions"] = nnpack_convolves()    # a script may turn oneDNN off for a few lines
        return before

    def _made_by(self, node):
        """Takes note of a node of autograd; returns the name that it gets if it is a Function of Python."""
        kind = type(node)
        name = self.kinds.get(kind)
        if name is None:
            made = getattr(kind, "_forward_cls", None)
            # torch.compile's own are none of the script.
            name = "" if made is None or made.__module__.startswith("torch._") else f"{name_of(made)}Backward"
            self.kinds[kind] = name
            if name:
                self.functions[kind] = *self._described(made), set()
        if name:
            self.functions[kind][2].add(node._sequence_nr() if hasattr(node, "_sequence_nr") else id(node))
        return name

    def _described(self, made):
        """Returns the name of a Function of Python, and where its backward is defined."""
        return name_of(made), self.places.of(getattr(made, "backward", None))

    def dissolves(self, made):
        """Dynamo takes a Function of Python apart: no node of a backward pass has its name then."""
        if made not in self.dissolved and not made.__module__.startswith("torch."):
            self.dissolved[made] = self._described(made)

    def _locate(self, before, node=None):
        """Notes where the script makes a call, and which call of the forward pass it is the gradient of."""
        r = self.recorder
        before.link = None
        before.forward, before.node = UNKNOWN, 0
        node = node or (_node() if _node else None)
        if node is None:
            before.place, before.module = r.file.string(self.places.here()), r.file.string(self.modules.path)
        else:
            name = self._made_by(node)
            # Gradients of several uses are added up in the name of the node that gave the last of them.
            if name and before.schema.name.startswith("aten.add.") and not name.startswith("torch.") and self.places.in_engine():
                name = ""
            inner = self.places.in_backward()
            before.node = r.file.string(name or (f"a hook of {node.name()}" if inner else node.name()))
            link = self.nodes.get(node._sequence_nr()) if _sequence else None    # before 2.1 nodes have no numbers
            if link is not None:
                before.forward, before.place, before.module = link
                if name.startswith("torch.utils.checkpoint."):    # lines of the script run again
                    before.place = r.file.string(self.places.here())
            else:
                before.place, before.module = r.file.string(self.places.here()), 0
            if inner:
                before.place = r.file.string(inner)
        if _sequence:
            now, then = _sequence(), self.sequence
            if now > then:
                for number in range(then, now - 1):    # nodes that the last call made after it ran
                    if self.last is not None:
                        self.nodes.setdefault(number, self.last)
                before.link = self.nodes[now - 1] = [UNKNOWN, before.place, before.module]
                self.last = before.link
                self.sequence = now

    def _flags(self, before):
        return OPTIMIZER if self.counter.optimizing and not before.node else 0

    def _after(self, before, args, kwargs, out, raised):
        if not self.on:
            return
        with self.lock:
            try:
                with plain(), hidden():
                    r = self.recorder
                    number = r.calls
                    r.end(before, args, kwargs, out, (before.place, before.module, before.node, before.forward, self._flags(before)), raised)
                    if before.link is not None:
                        before.link[0] = number
                    return number
            except Skip:
                pass
            except Exception as e:
                self._failed(e)

    def function(self, spec, func, args, kwargs):
        """Calls a function that is composed of others, and records it after them."""
        before = None
        r = self.recorder
        with self.lock:
            try:
                with plain(), hidden():
                    given = spec.named(args, kwargs)
                    tensors = r.tensors(list(given.values()), [])
                    if self.between and self._evaluates(tensors):
                        raise Skip
                    before = r.begin(spec, (), given)
                    before.place, before.module = r.file.string(self.places.here()), r.file.string(self.modules.path)
                    versions = [r.version_of(t) for t in tensors]
            except Skip:
                pass
            except Exception as e:
                before = None
                self._failed(e)
        if before is None:
            return func(*args, **kwargs)
        out, raised = None, True
        r.composed += 1
        try:
            out = func(*args, **kwargs)
            raised = False
        finally:
            r.composed -= 1
            if self.on:
                with self.lock:
                    try:
                        with plain(), hidden():
                            r.refused = False
                            written = [t for t, v in zip(tensors, versions) if r.version_of(t) != v]
                            r.finish(before, spec.name, out, written, (before.place, before.module, 0, UNKNOWN, COMPOSED), raised)
                    except Skip:
                        pass
                    except Exception as e:
                        self._failed(e)
        return out

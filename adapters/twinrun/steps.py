"""What a training step is: it begins where the one before ended, and ends after the update."""
import functools
import gc
import sys
import threading
import types
import weakref

import torch

from .modes import plain
from .places import pass_on


def _with_subclasses(base):
    found = {base}
    for cls in base.__subclasses__():
        found |= _with_subclasses(cls)
    return found


def _held(optimizer):
    """Returns the parameters of an optimizer, also of one that wraps another and shows its groups; not those that have no memory."""
    try:
        return [p for group in optimizer.param_groups for p in group["params"] if type(p).__name__ != "FakeTensor"]
    except Exception as e:    # one that is not built yet, or has lost what it wraps
        pass_on(e)
        return []


def _codes(function):
    """Returns the code of Python that a call of a function begins with, in a list, which is empty if it is not known. What the object
    itself says of its attributes is not asked."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        function = getattr(type(function), "__call__", None)
    if isinstance(function, types.MethodType):
        function = function.__func__
    return [function.__code__] if isinstance(function, types.FunctionType) else []


def _living():
    """Returns all optimizers that have parameters."""
    # By the type: isinstance would ask every object for its __class__, which some answer with a warning.
    kinds = _with_subclasses(torch.optim.Optimizer)
    return [o for o in [o for o in gc.get_objects() if type(o) in kinds] if _held(o)]


class Steps:
    """Counts steps by hooks on all optimizers. `ends` is called after each that is complete; `update`, if there is one, learns of each
    optimizer that starts and ends.

    What counts is the parameters that an optimizer holds, not the object: one that wraps another one (accelerate, Lightning, apex, moving
    averages) holds the same, and a step that runs within another one is a part of it. A step ends when the parameters that were updated
    in the step before have been; in the first one, all those that a living optimizer holds and that require a gradient. It also ends
    after an optimizer that steps again (the others do not step each time, or never), and after one that did not step the last time. So
    it never ends between a backward pass and the update that this is for.

    A loop that no optimizer updates is followed by its calls (`sees`, `enters`).

    Modes see the calls of their thread alone, so only the steps of the thread that made this object count; `elsewhere` counts the others."""

    def __init__(self, ends, update=None):
        self.ends, self.update, self.steps, self.elsewhere = ends, update, 0, 0
        self.thread = threading.get_ident()
        self.unstepped = 0        # steps of a loop that updated parameters which an optimizer holds that did not step
        self.inside = []          # (frame, code of its closure or None, whether all of it is PyTorch's) of the optimizers that step now, the outermost first
        self.stepped = set()      # ids of the parameters that were updated in this step
        self.expected = None
        self.manual = False
        self.patched = []
        self.handles, self.hidden = [], False
        self.optimizers = []      # weak references, in the order of their first step
        self.loop = True          # no optimizer has stepped, and none lives as far as is known
        self._begin()

    def _begin(self):
        self.leaves = set()       # storages of the parameters that the forward pass has read
        self.backward, self.later, self.updated, self.transformed, self.outside = False, False, False, False, False

    def install(self):
        from torch.optim import Optimizer
        module = sys.modules[Optimizer.__module__]
        if hasattr(module, "register_optimizer_step_post_hook"):
            self.handles = [module.register_optimizer_step_pre_hook(self._before),
                            module.register_optimizer_step_post_hook(self._after)]
        elif not self.patched:
            self._patch(Optimizer)

    def hide(self):
        """Dynamo traces the script: what it compiles must not hold our hooks."""
        for handle in self.handles:
            handle.remove()
        self.hidden, self.handles = bool(self.handles), []

    def show(self):
        if self.hidden:
            self.hidden = False
            self.install()

    def compiled(self):
        """A compiled function has written parameters, and no hook has told of a step. Within an optimizer it is a part of its step."""
        if not self.manual and not self.inside:
            for optimizer in _living():
                self._keep(optimizer)
            self.loop = False
            self._end()

    def remove(self):
        self.hide()
        self.hidden = False
        for owner, name, original in self.patched:
            setattr(owner, name, original)
        self.patched = []

    def _patch(self, base):
        """Before 2.0: wraps `step` of every class of optimizers, those that are defined later too."""
        def wrapped(original):
            def step(optimizer, *args, **kwargs):
                self._before(optimizer, (optimizer, *args), kwargs)
                out = original(optimizer, *args, **kwargs)
                self._after(optimizer)
                return out
            for name, value in vars(original).items():
                setattr(step, name, value)
            step.__name__ = getattr(original, "__name__", "step")
            step.twinrun = True
            return step

        def visit(cls):
            found = vars(cls).get("step")
            if callable(found) and not getattr(found, "twinrun", False) and cls is not base:
                self.patched.append((cls, "step", found))
                cls.step = wrapped(found)
            for below in cls.__subclasses__():
                visit(below)

        visit(base)
        original = base.__init__

        def init(optimizer, *args, **kwargs):
            original(optimizer, *args, **kwargs)
            visit(base)

        self.patched.append((base, "__init__", original))
        base.__init__ = init

    def told(self):
        """The script itself says that a step is complete; hooks no longer do."""
        self.manual, self.loop = True, False
        self._end()

    # Optimizers

    @property
    def optimizing(self):
        """Whether an optimizer computes its update now, and not the gradient in a closure."""
        closures = [codes for _, codes, _ in self.inside if codes is not None]
        return bool(self.inside) and not (closures and self._runs(sum(closures, [])))

    def _runs(self, closures):
        """Whether one of these runs within the optimizers. Optimizers compute their update without gradients; a closure may switch them off."""
        if torch.is_grad_enabled():
            return True
        frame, end = sys._getframe(2), self.inside[0][0]
        while frame is not None and frame is not end:
            if frame.f_code in closures:
                return True
            frame = frame.f_back
        return False

    @property
    def own(self):
        """Whether an optimizer of PyTorch computes its update now: the script has no part in it."""
        return len(self.inside) == 1 and self.inside[0][2]

    def _before(self, optimizer, args=(), kwargs=None):
        if threading.get_ident() != self.thread:
            return
        frame, running = sys._getframe(1), []
        while self.inside and frame.f_back is not None:
            frame = frame.f_back
            running.append(frame)
        self.inside = [one for one in self.inside if any(one[0] is frame for frame in running)]    # the others ended with an exception
        closure = next((_codes(one) for one in (*args[1:], (kwargs or {}).get("closure")) if callable(one)), None)
        self.inside.append((sys._getframe(1), closure, closure is None and type(optimizer).__module__.startswith("torch.optim.")))
        if self.update is not None:
            self.update.starts(optimizer)

    def _after(self, optimizer, *_):
        if threading.get_ident() != self.thread:
            self.elsewhere += 1
            return
        if self.update is not None:
            self.update.ends(optimizer)
        frame = sys._getframe(1)
        while self.inside and self.inside.pop()[0] is not frame:
            pass
        self._keep(optimizer)
        if self.inside or self.manual:
            return
        self.loop = False
        with plain():    # a mode of the script's shall not see what is asked of parameters
            held = set(map(id, _held(optimizer)))
            if self.expected is None:
                self.expected = {id(p) for o in _living() for p in _held(o) if p.requires_grad}
        again = not held.isdisjoint(self.stepped)
        self.stepped |= held
        if held and (again or held.isdisjoint(self.expected) or self.stepped >= self.expected):
            self._end()

    def _keep(self, optimizer):
        if not any(each() is optimizer for each in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))

    def _end(self):
        if self.stepped and not self.manual:
            self.expected = self.stepped
        self.stepped = set()
        self._begin()
        self.steps += 1
        self.ends()

    def parameters(self):
        """Yields the parameters that the optimizers hold, in their order."""
        seen = set()
        for reference in self.optimizers:
            optimizer = reference()
            for p in _held(optimizer) if optimizer is not None else ():
                if id(p) not in seen:
                    seen.add(id(p))
                    yield p

    def trained(self):
        """Returns the ids of the parameters that are trained: those that optimizers hold and that require a gradient."""
        return {id(p) for p in (self.parameters() if self.optimizers else (p for o in _living() for p in _held(o))) if p.requires_grad}

    # Loops without an optimizer

    def sees(self, key_of, backward, tensors, written):
        """Follows the calls of a loop until an optimizer steps. After a backward pass and a write to a parameter (a leaf that the forward
        pass read), the next call that autograd records begins a step; so does one that reads a new leaf in the place of the old one."""
        self.key_of = key_of
        if self.inside:    # an optimizer computes its closure; the step ends after it
            return
        if backward:
            self.backward = True
            return
        self.later = self.backward
        if self.backward and not self.updated:
            self.updated = any(key_of(t) in self.leaves for t in written)
        if torch.is_grad_enabled():
            leaves = {key_of(t) for t in tensors if t.requires_grad and t.is_leaf}
            if self.backward and (leaves - self.leaves or self.updated and any(t.requires_grad for t in tensors)):
                self._turns()
            self.leaves |= leaves

    def enters(self, transformed):
        """Follows the functions of a loop whose gradients torch.func computes: after one that runs outside of all transforms, the next
        transform begins a step."""
        if transformed and self.outside:
            self._turns()
        self.transformed |= transformed
        self.outside |= not transformed and self.transformed and self.backward

    def leaves_off(self):
        """The script ends: the last step of a loop without an optimizer is complete if it has updated something. New leaves in the place
        of the old ones show only when they are read; the steps before tell that there are some."""
        if self.loop and self.backward and (self.updated or self.outside or self.steps and self.later):
            self._turns()

    def _turns(self):
        with plain():
            # One whose parameters the forward pass has not read is none of this loop's.
            living = any(p.requires_grad and (not self.leaves or self.key_of(p) in self.leaves) for o in _living() for p in _held(o))
        if living:
            # The optimizer will step. One that has not when its parameters are updated a second time sets the learning rate alone.
            self.unstepped += self.updated
            if self.unstepped < 2:
                self.updated = False
                return
        self._end()

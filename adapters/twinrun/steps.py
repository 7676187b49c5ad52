"""What a training step is: it ends when the optimizers have stepped."""
import gc
import weakref

import torch

from .places import Hooks


def _with_subclasses(base):
    found = {base}
    for cls in base.__subclasses__():
        found |= _with_subclasses(cls)
    return found


def _living():
    """Returns all optimizers that have parameters."""
    # By the type: isinstance would ask every object for its __class__, which some answer with a warning.
    kinds = _with_subclasses(torch.optim.Optimizer)
    return [o for o in [o for o in gc.get_objects() if type(o) in kinds] if o.param_groups]


class Steps(Hooks):
    """Counts steps by hooks on all optimizers. `ends` is called after each that is complete.

    With one optimizer a step ends right after its step. Where several live (a GAN), it ends when each that stepped in the last round has
    stepped, or before an optimizer steps again."""

    def __init__(self, ends):
        self.ends, self.steps = ends, 0
        self.stepping = 0         # an optimizer steps now
        self.stepped = []         # ids of those that stepped in this step
        self.expected = None
        self.manual = False
        self.patched = []
        self.optimizers = []      # weak references, in the order of their first step

    def install(self):
        from torch.optim import Optimizer
        module = __import__("sys").modules[Optimizer.__module__]
        if hasattr(module, "register_optimizer_step_post_hook"):
            self.handles = [module.register_optimizer_step_pre_hook(self._before),
                            module.register_optimizer_step_post_hook(self._after)]
        else:
            self._patch(Optimizer)

    def compiled(self):
        """A compiled function has written parameters, and no hook has told of a step."""
        if not self.manual:
            for optimizer in _living():
                self._keep(optimizer)
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
                if self.stepping:    # a class that calls its base's
                    return original(optimizer, *args, **kwargs)
                self._before(optimizer)
                try:
                    out = original(optimizer, *args, **kwargs)
                finally:
                    self.stepping = 0
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
        self.manual = True
        self._end()

    def _before(self, optimizer, *_):
        if id(optimizer) in self.stepped and not self.manual:
            self._end()
        self.stepping = 1

    def _after(self, optimizer, *_):
        self.stepping = 0
        self._keep(optimizer)
        if self.manual:
            return
        if id(optimizer) not in self.stepped:
            self.stepped.append(id(optimizer))
        if self.expected is None:
            self.expected = len(_living())
        if len(self.stepped) >= self.expected:
            self._end()

    def _keep(self, optimizer):
        if not any(each() is optimizer for each in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))

    def _end(self):
        if self.stepped and not self.manual:
            self.expected = len(self.stepped)
        self.stepped = []
        self.steps += 1
        self.ends()

    def parameters(self):
        """Yields the parameters that the optimizers hold, in their order."""
        seen = set()
        for reference in self.optimizers:
            optimizer = reference()
            for group in optimizer.param_groups if optimizer is not None else ():
                for p in group["params"]:
                    if id(p) not in seen:
                        seen.add(id(p))
                        yield p

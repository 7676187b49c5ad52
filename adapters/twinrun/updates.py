"""What an optimizer is given and what it leaves, as a record around its calls: the judge holds its update against the published formula.

    updates.starts(optimizer)    # when its step() is called
    updates.begins()             # before its first call, when the gradients are there
    updates.ends(optimizer)      # when step() returns

A record has no values of its own: parameters, gradients and state are those that the calls of the optimizer read and wrote.
"""
import sys

import torch

from .encode import NOWHERE, Description
from .file import UPDATE

SCALES = ("grad_scale", "found_inf")    # where torch.amp.GradScaler leaves the scale to the optimizer's own kernel


def _kind(optimizer):
    cls = type(optimizer)
    # torch.optim.adam.Adam is known as torch.optim.Adam.
    public = cls.__module__.startswith("torch.optim.") and getattr(torch.optim, cls.__name__, None) is cls
    return Description(f"torch.optim.{cls.__name__}" if public else f"{cls.__module__}.{cls.__qualname__}", without=("without",))


def _has_hooks(optimizer):
    """Whether others' code runs within its step, before or after the update. One of all optimizers' hooks is ours."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    of_all = [len(getattr(module, f"_global_optimizer_{k}_hooks", ())) for k in ("pre", "post")]
    return any(getattr(optimizer, f"_optimizer_step_{k}_hooks", None) for k in ("pre", "post")) or max(of_all) > 1


def _settings(optimizer, group):
    found = {k: v for k, v in group.items() if isinstance(k, str) and k != "params" and _is_setting(v)}
    found.update({k: v for k in SCALES if isinstance(v := getattr(optimizer, k, None), torch.Tensor)})
    return {f"setting.{k}": v for k, v in found.items()}


def _is_setting(v):
    if isinstance(v, (tuple, list)):
        return all(isinstance(x, (bool, int, float, type(None))) for x in v)
    return isinstance(v, (bool, int, float, str, type(None))) or isinstance(v, torch.Tensor) and v.numel() == 1


def _state(optimizer, params, started=None):
    """Returns {name: a value for each parameter, None where it has none}. `started`: what there was when the step began (`_start`)."""
    of_each = [optimizer.state.get(p) or {} for p in params]
    if started is not None:
        of_each = [{k: s.get(k) if v is None else v for k, v in started.get(id(p), {}).items()} for p, s in zip(params, of_each)]
    names = dict.fromkeys(k for s in of_each for k, v in s.items() if isinstance(k, str) and isinstance(v, (torch.Tensor, int, float)))
    return {f"state.{n}": [s.get(n) for s in of_each] for n in names}


class Updates:
    def __init__(self, watch):
        self.watch = watch
        self.starting = None    # an optimizer that has made no call of its update, and the state that it began with
        self.open = []          # (the optimizer's id, [(what was given, the numbers of the group's parameters)])

    def starts(self, optimizer):
        self.open = [one for one in self.open if one[0] != id(optimizer)]    # one that ended with an exception
        self.starting = None
        self.watch.describe(self._start, optimizer)

    def begins(self):
        (optimizer, started), self.starting = self.starting, None
        self.watch.describe(self._begin, optimizer, started)

    def ends(self, optimizer):
        if self.starting is not None and self.starting[0] is optimizer:
            self.watch.describe(self._begin_of_nothing, *self.starting)
        self.starting = None
        while self.open:
            begun = self.open.pop()
            if begun[0] == id(optimizer):
                self.watch.describe(self._end, optimizer, begun[1])
                return

    def _start(self, optimizer):
        # Older versions count steps in numbers, and go on before the first call. What is None is a tensor, and is read then.
        started = {id(p): {k: v if isinstance(v, (int, float)) else None for k, v in s.items()} for p, s in optimizer.state.items()}
        self.starting = optimizer, started

    def _begin_of_nothing(self, optimizer, started):
        """An optimizer has made no call: it is described if that is because no parameter has a gradient."""
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            self._begin(optimizer, started)

    def _begin(self, optimizer, started):
        r, kind, groups = self.watch.recorder, _kind(optimizer), []
        self.open.append((id(optimizer), groups))
        hooks = {"hooks": True} if _has_hooks(optimizer) else {}
        for group in optimizer.param_groups:
            moved = [i for i, p in enumerate(group["params"]) if p.grad is not None]
            params = [group["params"][i] for i in moved]
            given = {**hooks, "first": r.calls, "parameters": params, "gradients": [p.grad for p in params],
                     "without": [p for p in group["params"] if p.grad is None and p.requires_grad],
                     "frozen": sum(not p.requires_grad for p in group["params"]), **_settings(optimizer, group),
                     **_state(optimizer, params, started)}
            groups.append((r.begin(kind, (), given, quiet=bool(groups), describes=True), moved))

    def _end(self, optimizer, groups):
        r = self.watch.recorder
        for group, (before, moved) in zip(optimizer.param_groups, groups):
            params = [group["params"][i] for i in moved]
            state = _state(optimizer, params)
            r.refused = False
            r.finish(before, before.schema.name, [list(state), *state.values()], params, NOWHERE, False, kind=UPDATE)

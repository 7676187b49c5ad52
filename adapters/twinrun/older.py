"""Recording on PyTorch before 1.13, which has no dispatch mode. While a step is watched, functions and methods of Python that one
operation stands behind are replaced by ones that record it; the nodes of autograd that a call made get a hook, which records what the
backward pass computed there. docs/method/calls.md says what is not seen."""
import copy
import functools
import itertools
import re
import threading
import types

import torch
import torch.nn.functional as F

from . import functions
from .encode import NO_GRADIENT, OPTIMIZER, Skip
from .older_table import BACKWARD, COMMON, DY, MASK, OPERATORS, OTHER, RENAMED, SAME, SHAPE, THROUGH, Forward, bare

MAX_NODES = 32    # of one call; recurrent layers have thousands
BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def needed():
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return True
    return not hasattr(TorchDispatchMode, "__enter__")


class Overload:
    """A schema, as encode.py reads those of newer versions."""

    def __init__(self, name, schema=None):
        self.name, self.schema, self.arguments = name, schema, ()
        if schema is not None:
            text = str(schema).split(" -> ")[0]
            written = set(re.findall(r"\(\w!\)(?:\[\])? (\w+)", text))
            if name.startswith("_foreach_") and name.endswith("_"):    # their schemas say nothing of it
                written.add(schema.arguments[0].name)
            names = re.findall(r"(\w+)(?:=|,|\)$)", text.partition(", *, ")[2] or text.partition("(*, ")[2])
            self.arguments = [types.SimpleNamespace(
                name=a.name, kind=str(a.type), kwarg_only=a.name in names, missing=not a.has_default_value(), default=a.default_value,
                alias_info=types.SimpleNamespace(is_write=True) if a.name in written else None) for a in schema.arguments]
        self._schema = self

    def __str__(self):
        return self.name

    def bind(self, args, kwargs):
        """Returns (all arguments by name, those given by position, those given by name), or None if they do not fit."""
        rows = self.arguments
        names = {a.name for a in rows}
        given, out = {}, kwargs.get("out")
        if isinstance(out, tuple):    # the schema has a name for each
            kwargs = {**{k: v for k, v in kwargs.items() if k != "out"}, **dict(zip([a.name for a in rows if a.alias_info], out))}
        for key, v in kwargs.items():
            key = key if key in names else rows[0].name if key == "input" else RENAMED.get(key, key)
            if key not in names:
                return None
            given[key] = v
        places = [a for a in rows if not a.kwarg_only]
        if len(args) > len(places):
            return None
        for a, v in zip(places, args):
            if a.name in given:
                return None
            given[a.name] = v
        for a in rows:
            if a.name not in given and a.missing or a.name in given and not _fits(a.kind, given[a.name]):
                return None
        bound = Forward((a.name, given.get(a.name, a.default)) for a in rows)
        bound.written = [a.name for a in rows if a.alias_info]
        bound.like = given.get(rows[0].name)
        last = max((i for i, a in enumerate(places) if a.name in given), default=-1)
        return bound, [bound[a.name] for a in places[:last + 1]], {a.name: given[a.name] for a in rows if a.kwarg_only and a.name in given}


def _fits(kind, v):
    if kind.startswith("Optional["):
        return v is None or _fits(kind[9:-1], v)
    if kind.startswith("List["):
        return all(_fits(kind[5:-1], x) for x in v) if isinstance(v, (list, tuple)) else kind == "List[int]" and type(v) is int
    plain = {"Tensor": torch.Tensor, "number": (int, float, complex), "float": (int, float), "bool": bool, "str": str,
             "int": (int, torch.dtype, torch.layout, torch.memory_format), "Device": (str, torch.device)}.get(kind)
    return plain is not None and isinstance(v, plain) and not (kind == "int" and isinstance(v, bool))


@functools.lru_cache(maxsize=None)
def _overloads(name):
    found = [Overload(name, s) for s in torch._C._jit_get_schemas_for_operator("aten::" + name)]
    for each in found:
        each.name = f"aten.{name}.{each.schema.overload_name or 'default'}"
    return found


@functools.lru_cache(maxsize=None)
def _overload(name):
    return Overload(name)


def _autocast():
    return any(getattr(torch, name, bool)() for name in ("is_autocast_enabled", "is_autocast_cpu_enabled"))


class Patches:
    """In the place of the modes of newer versions."""

    def __init__(self, owner):
        self.owner, self.thread, self.local = owner, threading.get_ident(), threading.local()
        self.patched = []    # (owner, name, the function, what is in its place, whether the owner itself had it)

    def __enter__(self):
        nn = torch._C._nn
        lists = [name for name in dir(torch) if name.startswith("_foreach_")]
        for owner in (torch, torch.Tensor, nn, torch._VF, F):
            for name in [*SAME, *(n + "_" for n in SAME), *OTHER, *lists]:
                found = getattr(owner, name, None)
                if isinstance(found, BUILTIN):
                    self._patch(owner, name, found, functools.partial(self._call, name))
        for name, meant in OPERATORS.items():
            found = getattr(torch.Tensor, name, None)
            if found is not None:
                self._patch(torch.Tensor, name, found, functools.partial(self._call, meant))
        for name in functions.NAMES:
            found = getattr(F, name, None)
            if isinstance(found, types.FunctionType) and not getattr(found, "twinrun", False):
                self._patch(F, name, found, functools.partial(self._composed, functions.Function(name, found)))
        self._patch(torch.jit, "script", torch.jit.script, self._script)    # a compiler of what the functions really are
        return self

    def __exit__(self, *error):
        for owner, name, original, call, own in reversed(self.patched):
            if vars(owner).get(name) is not call:    # somebody else has replaced it
                continue
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        self.patched = []

    def _patch(self, owner, name, original, record):
        def call(*args, **kwargs):
            # Only the thread that watches is recorded, as with modes, and not what recording itself calls.
            if not self.owner.on or getattr(self.local, "inside", False) or threading.get_ident() != self.thread:
                return original(*args, **kwargs)
            return record(original, args, kwargs)

        call = functools.wraps(original, [a for a in functools.WRAPPER_ASSIGNMENTS if hasattr(original, a)])(call)
        call.twinrun = True
        self.patched.append((owner, name, original, call, name in vars(owner)))
        setattr(owner, name, call)

    def _composed(self, spec, original, args, kwargs):
        if _autocast():
            spec = copy.copy(spec)
            spec.name = f"autocast.{spec.short}"
        return self.owner.function(spec, original, args, kwargs)

    def _script(self, original, args, kwargs):
        self.__exit__()
        try:
            return original(*args, **kwargs)
        finally:
            self.__enter__()

    def _call(self, name, func, args, kwargs):
        owner, before, stops = self.owner, None, ()
        with owner.lock:
            self.local.inside = True
            try:
                r = owner.recorder
                bound, op, given, named = self._meant(name, args, kwargs)
                info = r.file.string(owner.places.here()), r.file.string(owner.modules.path)
                if op is not None:
                    if owner.updates.starting is not None and owner.counter.optimizing:
                        owner.updates.begins()
                    before = r.begin(r.schema_of(op), given, named)
                    before.place, before.module, before.node, before.forward, before.link = *info, 0, -1, None
                    if not torch.is_grad_enabled():
                        before.flags |= NO_GRADIENT
                stops = [t.grad_fn for t in r.tensors([*args, *kwargs.values()], [])]
            except Skip:
                return func(*args, **kwargs)
            except Exception as e:
                owner._failed(e)
                return func(*args, **kwargs)
            finally:
                self.local.inside = False
        raised, out, number = True, None, -1
        try:
            out = func(*args, **kwargs)
            raised = False
        finally:
            if owner.on:
                with owner.lock:
                    self.local.inside = True
                    try:
                        if before is not None and out is not NotImplemented:
                            number = owner._after(before, given, named, out, raised)
                        self._hook(name, out, stops, bound, info, -1 if number is None else number)
                    except Exception as e:
                        owner._failed(e)
                    finally:
                        self.local.inside = False
        return out

    def _meant(self, name, args, kwargs):
        """Returns the arguments by name (None: not understood), the operation, and its arguments."""
        forms = [args, (args[0], args[1:])] if args else [args]    # view(2, 3) is view((2, 3))
        for form, over in itertools.product(forms, _overloads(name)):
            found = over.bind(form, kwargs)
            if found is not None:
                bound, given, named = found
                if _autocast():    # it may compute with other inputs than it was given
                    return None, _overload(f"autocast.{name}"), list(args), kwargs
                op, arguments = OTHER.get(name, (over, None))
                if isinstance(op, str):
                    op = _overload(op)
                return bound, op, arguments(bound) if arguments else given, {} if arguments else named
        return None, _overload(f"torch.{name}"), list(args), kwargs

    # The backward pass

    def _hook(self, name, out, stops, bound, info, number):
        """Puts hooks on the nodes that a call made."""
        outs = self.owner.recorder.tensors([out], [])
        todo, seen = [t.grad_fn for t in outs], 0
        while todo and seen < MAX_NODES:
            node = todo.pop(0)
            if node is None or node in stops or "Accumulate" in node.name() or "twinrun" in node.metadata:
                continue
            seen += 1
            node.metadata["twinrun"] = True
            todo += [n for n, _ in node.next_functions]
            kind = re.sub(r"Backward\d*$", "", node.name())
            parts = []
            try:
                if bound is not None and kind in BACKWARD:
                    parts = BACKWARD[kind](self._forward(kind, node, name, bound, outs[0]))
            except Exception:    # a call of another form: it is listed
                pass
            node.register_hook(functools.partial(self._backward, node.name(), parts, info, number))

    def _forward(self, kind, node, name, bound, out):
        """Returns what a node's gradient may be computed from."""
        own = kind not in COMMON or kind.lower() == name.replace("_", "").replace("true", "").replace("divide", "div")
        f = Forward((k, bare(v)) for k, v in bound.items() if k not in bound.written) if own else Forward()
        f.node, f.like = node, bare(bound.like) if own else DY
        if own:
            f["out"] = bare(out)
        if kind in COMMON:
            for key, kept in (("self", "self"), ("other", "other"), ("out", "result")):
                v = f.saved(kept)
                if v is not None:
                    f[key] = v
        return f

    def _backward(self, node, parts, info, number, grads, dys):
        owner = self.owner
        if not owner.on or dys[0] is None:
            return
        with owner.lock:
            self.local.inside = True
            try:
                left = {i for i, g in enumerate(grads) if isinstance(g, torch.Tensor)}
                for which, op, args, likes in parts:
                    mine = [i for i in which if i in left]
                    fit = [dys[0] if v is DY else v for v in likes or ()]
                    if not mine or fit and any(getattr(fit[i - which[0]], "shape", None) != grads[i].shape for i in mine):
                        continue
                    if op == THROUGH:
                        lead = dys[0].dim() - grads[mine[0]].dim()
                        if lead < 0 or dys[0].shape[lead:] != grads[mine[0]].shape:
                            continue
                        op, args = ("aten.sum.dim_IntList", [DY, list(range(lead))]) if lead else ("aten.alias.default", args)
                    values = {DY: dys[0], MASK: [i in mine for i in which], SHAPE: list(grads[mine[0]].shape)}
                    args = [values.get(a, a) if type(a) is object else a for a in args]
                    result = grads[which[0]] if len(which) == 1 else [grads[i] if i < len(grads) else None for i in which]
                    self._write(op, args, result, info, node, number)
                    left -= set(mine)
                if left:
                    self._write(f"autograd.{node.split(':')[-1]}", list(dys), [grads[i] for i in sorted(left)], info, node, number)
            except Skip:
                pass
            except Exception as e:
                owner._failed(e)
            finally:
                self.local.inside = False

    def _write(self, op, args, result, info, node, number):
        r = self.owner.recorder
        before = r.begin(r.schema_of(_overload(op)), args, {})
        r.end(before, args, {}, result, (*info, r.file.string(node), number, OPTIMIZER if self.owner.counter.optimizing else 0))

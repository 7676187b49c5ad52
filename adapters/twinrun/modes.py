"""The modes that see the calls of a script: how they are stacked, and what keeps them from seeing ours."""
import contextlib
import functools
import sys
import types

import torch

from . import functions, older
from .regions import compiling, inside

_level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", lambda: None)    # of torch.func


class Hidden:
    """Keeps what we call from the modes of the script."""

    def __enter__(self):
        self.guard = torch._C._DisableTorchDispatch()    # works as long as it lives
        if hasattr(self.guard, "__enter__"):             # since 2.0
            self.guard.__enter__()

    def __exit__(self, *error):
        if hasattr(self.guard, "__exit__"):
            self.guard.__exit__(*error)
        self.guard = None


hidden = Hidden if hasattr(torch._C, "_DisableTorchDispatch") else contextlib.nullcontext
plain = getattr(torch._C, "DisableTorchFunction", contextlib.nullcontext)    # the same, of functions


@contextlib.contextmanager
def unnoticed():
    """Dynamo before 2.9 skips what runs under a dispatch mode, which it knows by this flag."""
    module = sys.modules.get("torch.utils._python_dispatch")
    before = getattr(module, "_is_in_torch_dispatch_mode", None)
    yield
    if before is not None:
        module._is_in_torch_dispatch_mode = before


def depth():
    return _dispatch_depth(), _function_depth()


def _dispatch_depth():
    try:
        return torch._C._len_torch_dispatch_stack()
    except AttributeError:
        return 0


def _function_depth():
    try:
        return torch._C._len_torch_function_stack()
    except AttributeError:
        return 0


def is_on_top(mode):
    if isinstance(mode, older.Patches):
        return True
    try:
        if hasattr(torch._C, "_len_torch_dispatch_stack"):
            if isinstance(mode, torch.overrides.TorchFunctionMode):
                n = torch._C._len_torch_function_stack()
                return n > 0 and torch._C._get_function_stack_at(n - 1) is mode
            n = torch._C._len_torch_dispatch_stack()
            return n > 0 and torch._C._get_dispatch_stack_at(n - 1) is mode
        swap = torch._C._set_torch_function_mode if isinstance(mode, torch.overrides.TorchFunctionMode) else \
            torch._C._set_torch_dispatch_mode
        return False if swap is None else _top(mode) is mode
    except AttributeError:
        return False


def _top(mode):
    """Returns the innermost mode of this kind, in 1.13."""
    getter = "_get_torch_function_mode" if isinstance(mode, torch.overrides.TorchFunctionMode) else "_get_torch_dispatch_mode"
    get = getattr(torch._C, getter, None)
    return get() if get else None


class Originals:
    """PyTorch's functions as they were when this module was imported. A function of PyTorch tells a mode itself by its name, and a script
    may have put one of its own under that name: called by the mode, it would run twice."""

    MOST = 1000
    BUILTIN = (*older.BUILTIN, types.MethodWrapperType)

    def __init__(self):
        self.owners = [(owner, {n: f for n in dir(owner) if callable(f := getattr(owner, n, None)) and not isinstance(f, type)})
                       for owner in (torch.Tensor, torch.nn.functional, torch.functional, torch)]
        self.known = {id(f) for _, functions in self.owners for f in functions.values()}    # which live as long as PyTorch
        self.asked = {}    # by id: (another function, what it stands for)

    def behind(self, func):
        if isinstance(func, self.BUILTIN) or id(func) in self.known:
            return func
        found = self.asked.get(id(func))
        if found is None:
            names = ((owner, name, original) for owner, functions in self.owners for name, original in functions.items())
            original = next((original for owner, name, original in names if vars(owner).get(name) is func), func)
            if len(self.asked) >= self.MOST:    # a script makes a function for each call
                self.asked.clear()
            found = self.asked[id(func)] = func, original
        return found[1]


_originals = Originals()


def _mend(module, kind):
    """PyTorch 1.13 takes a mode off for each call, and puts it back, in Python: where an exception of a handler of signals comes in
    between, no mode is left, and every call after it would fail."""
    caller = getattr(module, f"_Torch{kind.title()}StackMode", None)
    if caller is None:
        return
    name, left = f"__torch_{kind}__", getattr(torch._C, f"_len_torch_{kind}_stack")
    asks, takes = getattr(caller, name), getattr(torch._C, f"_set_torch_{kind}_mode")

    def ask(self, func, types, args=(), kwargs=None):
        if left() > 0:
            return asks(self, func, types, args, kwargs)
        takes(None)
        return func(*args, **(kwargs or {}))

    setattr(caller, name, ask)


@functools.lru_cache(maxsize=None)
def _classes():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    kinds = {torch.Tensor: "plain", torch.nn.Parameter: "plain"}
    default = [getattr(torch._C, name) for name in ("_disabled_torch_dispatch_impl",) if hasattr(torch._C, name)]

    def kind_of(t):
        if t.__name__ in ("FakeTensor", "FunctionalTensor"):
            return "fake"
        own = getattr(t, "__torch_dispatch__", None)
        base = getattr(torch.Tensor, "__torch_dispatch__", None)
        return "plain" if own is None or own in default or own is base or own == base else "subclass"

    _mend(torch.overrides, "function")
    _mend(sys.modules[TorchDispatchMode.__module__], "dispatch")

    class Calls(TorchDispatchMode):
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls):
            return True    # dynamo runs eagerly under other modes

        def __init__(self, owner):
            super().__init__()
            self.owner = owner

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            owner = self.owner
            if not (owner.on or owner.counter.loop and not owner.done) or inside() or compiling():
                return func(*args, **(kwargs or {}))
            for t in types:
                kind = kinds.get(t)
                if kind is None:
                    kind = kinds[t] = kind_of(t)
                if kind == "fake":
                    return func(*args, **(kwargs or {}))
                if kind == "subclass":    # the calls that it makes come here
                    return NotImplemented
            return owner.call(func, args, kwargs or {})

    class Functions(TorchFunctionMode):
        def __init__(self, owner):
            super().__init__()
            self.owner, self.table = owner, functions.table()

        def __torch_function__(self, func, types, args=(), kwargs=None):
            owner = self.owner
            func = _originals.behind(func)
            try:
                spec = self.table.get(func) if owner.on and not compiling() else None
            except TypeError:    # a function that cannot be a key
                spec = None
            transformed = _level() is not None
            if owner.counter.loop and not owner.done:
                owner.counter.enters(transformed)
            if transformed:    # its tensors stand for others and have no bytes
                spec = None
            if spec is None:
                return func(*args, **(kwargs or {}))
            return self.owner.function(spec, func, args, kwargs or {})

    return Calls, Functions


def modes(owner):
    if older.needed():
        return [older.Patches(owner)]
    calls, function = _classes()
    return [calls(owner), function(owner)]

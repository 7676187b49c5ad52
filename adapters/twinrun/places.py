"""Where a call comes from: the lines of the user's source, and the path of the module."""
import functools
import inspect
import linecache
import os
import sys
import traceback
import weakref
from types import FrameType

import torch

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_PACKAGES = tuple(os.path.join(_LIBRARY, name) + os.sep for name in ("site-packages", "dist-packages"))
MAX_FRAMES = 16
try:
    _FOLDER = os.getcwd()    # names are relative to it, wherever the script goes, and whatever it removes
except OSError:
    _FOLDER = os.sep
_join, _normal = os.path.join, os.path.normpath


def _is_users(file):
    if file.startswith("<frozen") or not file:
        return False
    path = _absolute(file)
    if path.startswith((_OURS, _TORCH)):
        return False
    return not path.startswith(_LIBRARY) or path.startswith(_PACKAGES)


def _runs_backward(code):
    """Whether a function of PyTorch is one from which a backward pass runs."""
    return (code.co_name in ("backward", "grad", "_engine_run_backward") and
            code.co_filename.endswith(("autograd/graph.py", "autograd/__init__.py", "_tensor.py")))


def _absolute(file):
    return _normal(_join(_FOLDER, file))


def shown(file):
    if file.startswith("<"):
        return file
    path, folder = _absolute(file), _FOLDER.rstrip(os.sep) + os.sep
    return path[len(folder):] if path.startswith(folder) else path


def _source(file, line):
    try:
        return linecache.getline(file if file.startswith("<") else _absolute(file), line)
    except Exception as e:    # the script has replaced what opens files
        pass_on(e)
        return ""


def _code_of(function):
    """Returns the code of a function of Python, of which a decorator may have made another one; None of others."""
    try:
        return getattr(inspect.unwrap(function), "__code__", None)
    except ValueError:    # they wrap each other
        return None


def _users_frames(error):
    """Yields (frame, line) of the user's that an exception passed, the outermost first."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_users(frame.f_code.co_filename):
            yield frame, line


def raised_at(error):
    """Returns the file and line of the user's that an exception passed last; "" if it passed none."""
    found = ""
    for frame, line in _users_frames(error):
        found = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
    return found


def is_of_a_handler(error):
    """Whether an exception that came while we worked was raised by a handler of signals: by a function of the script's that has a frame."""
    for frame, _ in _users_frames(error):
        given = list(frame.f_locals.values())
        given += [v for g in given if isinstance(g, tuple) for v in g]
        return any(isinstance(v, FrameType) for v in given)
    return False


def pass_on(error):
    """Raises again what a handler of signals has raised while we worked: it is the script's."""
    if is_of_a_handler(error):
        raise error


class Places:
    """Gives the text of the frames that are the user's."""

    def __init__(self):
        self.users = {}    # code object: whether it is the user's
        self.lines = {}    # (code object, line): its text
        self.texts = {}    # those of a stack: the text

    def here(self):
        frame, stack, users = sys._getframe(2), [], self.users
        while frame is not None:
            code = frame.f_code
            mine = users.get(code)
            if mine is None:
                mine = users[code] = _is_users(code.co_filename)
            if mine:
                stack.append((code, frame.f_lineno))
                if len(stack) == MAX_FRAMES:
                    break
            frame = frame.f_back
        key = tuple(stack)
        text = self.texts.get(key)
        if text is None:
            text = self.texts[key] = "\n".join(map(self._line, stack))
        return text

    def in_backward(self):
        """Returns the line of the user's function that PyTorch's backward pass calls now, or "": the backward of a Function, or a hook,
        which was registered to see or change a gradient. What checkpointing computes again is none."""
        frame, found = sys._getframe(2), None
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if file.startswith("<eval_with_key>"):    # a graph that dynamo made: not registered by anybody
                pass
            elif file.startswith(_TORCH):
                if _runs_backward(code):
                    return "" if found is None else self._line(found)
                if file.endswith("utils/checkpoint.py"):
                    return ""
            elif found is None and _is_users(file):
                found = code, frame.f_lineno
            frame = frame.f_back
        return ""

    def in_engine(self):
        """Whether PyTorch's backward pass makes a call by itself, not a function of the script that it calls."""
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if file.startswith(_TORCH):
                if _runs_backward(code):
                    return True
            elif _is_users(file):
                return False
            frame = frame.f_back
        return False

    def of(self, function):
        """Returns the line where a function of Python is defined."""
        code = _code_of(function)
        if code is None:
            return ""
        lines = range(code.co_firstlineno, code.co_firstlineno + MAX_FRAMES)    # decorators come first
        return self._line((code, next((n for n in lines if "def " in _source(code.co_filename, n)), lines[0])))

    def _line(self, place):
        text = self.lines.get(place)
        if text is None:
            code, line = place
            source = _source(code.co_filename, line or 0).strip()
            text = self.lines[place] = f"{shown(code.co_filename)}:{line} in {code.co_name}: {source}"
        return text


# Their forward pass in eval mode goes another way, whose result has other rows for padding, unless a function of a tensor is overridden.
_FAST = tuple(getattr(torch.nn, name) for name in ("TransformerEncoder", "TransformerEncoderLayer", "MultiheadAttention")
              if hasattr(torch.nn, name))

_DROPOUT = torch.nn.modules.dropout._DropoutNd


def behind(function):
    """Returns the function of PyTorch that one of ours (Modules) stands for."""
    return getattr(function, "twinrun_behind", function)


class Modules:
    """Follows which module runs, around the function that all calls of modules pass: with hooks on all modules they would go another way
    through PyTorch, which tracebacks show. The outermost one that is called gives the names."""
    original = None    # that function

    def __init__(self, fast_begins, fast_ends):
        self.stack = []      # (module, path)
        self.root, self.names = None, {}
        self.fast = None     # a module that runs now, which computes something else where a mode of functions is
        self.fast_begins, self.fast_ends = fast_begins, fast_ends
        self.roots = weakref.WeakSet()    # outermost modules that ran
        self.drops, self.silent = False, {}    # whether a module drops; paths of those that would, and are in evaluation mode

    @property
    def path(self):
        return self.stack[-1][1] if self.stack else ""

    @property
    def outermost(self):
        return self.stack[0][0] if self.stack else None

    def install(self):
        original = self.original = torch.nn.Module._call_impl

        @functools.wraps(original)
        def _call_impl(module, *args, **kwargs):
            if torch.nn.Module._call_impl is not _call_impl:    # we are put away, and something has kept this function
                return original(module, *args, **kwargs)
            self._enter(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                self._leave(module)

        _call_impl.twinrun_behind = original
        self.ours = _call_impl
        self.show()

    def hide(self):
        """Dynamo traces the script: what it compiles must not hold us."""
        if torch.nn.Module._call_impl is self.ours:
            self._set(self.original)

    def show(self):
        if torch.nn.Module._call_impl is self.original:
            self._set(self.ours)

    @staticmethod
    def _set(function):
        if torch.nn.Module.__call__ is torch.nn.Module._call_impl:    # before 2.1
            torch.nn.Module.__call__ = function
        torch.nn.Module._call_impl = function

    def remove(self):
        self.hide()
        self.stack, self.root, self.names = [], None, {}

    def _enter(self, module):
        try:
            if not self.stack and self.root is not module:
                self.root, self.names = module, {id(m): name for name, m in module.named_modules()}
                self.roots.add(module)
            name = self.names.get(id(module))
            if name is None and self.root is not None:
                self.names.update((id(m), n) for n, m in self.root.named_modules())
                name = self.names.get(id(module))
            if name is None:    # one that the root does not hold
                name = ".".join(filter(None, (self.path, type(module).__name__)))
            self.stack.append((module, name))
        except Exception as e:    # a module with a hostile named_modules has no path
            pass_on(e)
            self.stack.append((module, ""))
        if isinstance(module, _DROPOUT) and torch.is_grad_enabled():
            if module.training:
                self.drops = True
            elif type(module.p) is float and module.p > 0:
                self.silent[id(module)] = self.path
        if isinstance(module, _FAST) and not module.training and self.fast is None:
            self.fast = module
            self.fast_begins()

    def parameters(self):
        """Returns the names of the parameters of the modules that ran, with the parameters."""
        found = {}
        for root in list(self.roots):
            found.update((id(p), (name, p)) for name, p in root.named_parameters())
        return list(found.values())

    def _leave(self, module):
        if module is self.fast:
            self.fast = None
            self.fast_ends()
        at = next((i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i][0] is module), None)
        if at is not None:
            del self.stack[at]
        if not self.stack:
            self.root = None    # do not keep the module alive, nor trust its names in the next call

"""The frames that a script sees, in tracebacks, stacks and warnings: none of ours, and none of those that PyTorch puts between our modes
and its operations."""
import functools
import inspect
import itertools
import os
import sys
import traceback
import warnings

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BETWEEN = tuple(os.path.join("torch", *path) for path in (
    ("_compile.py",), ("_dynamo", "eval_frame.py"), ("_ops.py",), ("overrides.py",), ("utils", "_python_dispatch.py")))
_AMONG = r"twinrun\.|torch\.(_compile|_ops|overrides|_dynamo\.eval_frame|utils\._python_dispatch)$"    # the same, as names of modules
# What all functions of `traceback` call, with pairs of a frame and a place; the first since Python 3.11.
_EXTRACT = next(name for name in ("_extract_from_extended_frame_gen", "extract") if hasattr(traceback.StackSummary, name))


def _is_ours(frame):
    return frame.f_code.co_filename.startswith(_OURS)


def _is_among(frame):
    return _is_ours(frame) or frame.f_code.co_filename.endswith(_BETWEEN)


def _seen(items, frame=lambda item: item):
    """Returns those of the items, the outermost first, whose frames there would be without us."""
    kept, skipped = [], False
    for among, part in itertools.groupby(items, lambda item: _is_among(frame(item))):
        part = list(part)
        if among and any(_is_ours(frame(item)) for item in part):
            skipped = True
            continue
        # A function of PyTorch asks a mode, which calls it again.
        if skipped and kept and frame(kept[-1]).f_code is frame(part[0]).f_code:
            kept.pop()
        kept, skipped = kept + part, False
    return kept


def without_ours(error):
    """Takes our frames out of the traceback of an exception of the script, and out of those of its causes."""
    todo, done = [error], set()
    while todo:
        each = todo.pop()
        if each is None or id(each) in done:
            continue
        done.add(id(each))
        todo += [each.__cause__, each.__context__]
        links, link = [], each.__traceback__
        while link is not None:
            links.append(link)
            link = link.tb_next
        kept = _seen(links, lambda link: link.tb_frame)
        for link, following in zip(kept, [*kept[1:], None]):
            link.tb_next = following
        each.__traceback__ = kept[0] if kept else None


def _outside(message):
    """Returns the frame that a warning names, and the one outside of ours that it would name without us, or None."""
    stack, frame = [], sys._getframe(2)
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    stack.reverse()
    at = next((i for i in range(len(stack) - 1, -1, -1) if (stack[i].f_code.co_filename, stack[i].f_lineno) ==
               (message.filename, message.lineno)), None)
    if at is None or not _is_among(stack[at]):
        return None, None
    seen = {id(frame) for frame in _seen(stack)}
    return stack[at], None if id(stack[at]) in seen else next((f for f in reversed(stack[:at]) if id(f) in seen), None)


class Frames:
    """Keeps ours from what the script is shown, from `install` to `remove`."""

    def __init__(self):
        self.patched = []      # (owner, name, what stood there, ours)
        self.shows = self.filter = None

    def install(self):
        extract, outer = vars(traceback.StackSummary)[_EXTRACT], inspect.getouterframes

        def extracts(summary, places, **options):
            places = list(places)
            inwards = len(places) < 2 or places[0][0].f_back is not places[1][0]    # a traceback; a stack begins with the innermost
            seen = _seen(places if inwards else reversed(places), lambda place: place[0])
            return extract.__func__(summary, iter(seen if inwards else reversed(seen)), **options)

        @functools.wraps(outer)
        def outerframes(frame, context=1):
            return _seen(outer(frame, context)[::-1], lambda info: info.frame)[::-1]

        self._patch(traceback.StackSummary, _EXTRACT, classmethod(extracts))
        self._patch(inspect, "getouterframes", outerframes)
        self.shows = getattr(warnings, "_showwarnmsg", None)
        if self.shows is not None:
            self._patch(warnings, "_showwarnmsg", self._warns)
            warnings.filterwarnings("always", module=_AMONG)    # what holds there does not: they come to us
            self.filter = warnings.filters[0]

    def _patch(self, owner, name, ours):
        self.patched.append((owner, name, vars(owner)[name], ours))
        setattr(owner, name, ours)

    def remove(self):
        for owner, name, original, ours in self.patched:
            if vars(owner).get(name) is ours:    # else the script has put one of its own there
                setattr(owner, name, original)
                if owner is warnings and self.filter in warnings.filters:
                    warnings.filters.remove(self.filter)
        self.patched = []

    def _warns(self, message):
        """Python and PyTorch tell where a warning comes from by the frame around it, which may be one of ours. It is given again at the
        frame outside of them: the filters hold for that one."""
        inner, outer = _outside(message)
        if outer is None:
            return self.shows(message)
        # It is none of that line's, which may warn again.
        key = str(message.message), message.category, message.lineno
        inner.f_globals.get("__warningregistry__", {}).pop(key, None)
        registry = outer.f_globals.setdefault("__warningregistry__", {})
        warnings.warn_explicit(message.message, message.category, outer.f_code.co_filename, outer.f_lineno,
                               outer.f_globals.get("__name__"), registry, None, message.source)

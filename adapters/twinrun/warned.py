"""Warnings under the watch. Python and PyTorch tell where a warning comes from by the frame around it, which is one of ours, or of
PyTorch's dispatcher, where our modes lie between. It is given again at the frame outside of them: the filters hold for that one."""
import sys
import warnings

from .watched import is_between, is_ours


_AMONG = r"twinrun\.|torch\.(_compile|_ops|overrides|_dynamo\.eval_frame|utils\._python_dispatch)$"


class Warned:
    original = None

    def install(self):
        self.original = getattr(warnings, "_showwarnmsg", None)

        def show(message):
            inner, outer = _frames(message)
            if outer is None:
                return self.original(message)
            # It is none of that line's, which may warn again.
            key = str(message.message), message.category, message.lineno
            inner.f_globals.get("__warningregistry__", {}).pop(key, None)
            registry = outer.f_globals.setdefault("__warningregistry__", {})
            warnings.warn_explicit(message.message, message.category, outer.f_code.co_filename, outer.f_lineno,
                                   outer.f_globals.get("__name__"), registry, outer.f_globals, message.source)

        self.shown = show
        if self.original is not None:
            warnings._showwarnmsg = show
            warnings.filterwarnings("always", module=_AMONG)    # what holds there does not: they come to us
            self.filter = warnings.filters[0]

    def remove(self):
        if getattr(warnings, "_showwarnmsg", None) is self.shown:
            warnings._showwarnmsg = self.original
            if self.filter in warnings.filters:
                warnings.filters.remove(self.filter)


def _frames(message):
    """Returns the frame that a warning names, and the one outside of ours that it would name without us, or None."""
    called, ours, inner, frame = None, False, None, sys._getframe(2)    # called: the last frame that is none of ours
    while frame is not None:
        among = is_ours(frame) or is_between(frame)
        if inner is not None and not among:
            break
        called, ours = (called, ours or is_ours(frame)) if among else (frame, False)
        if (frame.f_code.co_filename, frame.f_lineno) == (message.filename, message.lineno):
            inner = frame
            if not among:
                return inner, None
        frame = frame.f_back
    if frame is not None and called is not None and frame.f_code is called.f_code:    # it asked the mode, which called it again
        frame = frame.f_back
    return inner, frame if inner is not None and ours else None

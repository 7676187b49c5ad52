"""The error of a step that cannot be captured or written."""


class Refused(RuntimeError):
    """The message says what was found, where, and what to do."""


class Unasked(Refused):
    """What data parallelism means could not be asked; the engine still can be."""

"""What twinrun says to the user of a script, whatever the script does with its streams."""
import contextlib
import fcntl
import os
import sys
import types

os = types.SimpleNamespace(**vars(os))    # a script may put functions of its own in the place of the module's
_HIGH = 200    # scripts print the numbers that they get
_kept = None    # (a descriptor of the standard error that the process began with, what it was)


def high(fd):
    """Returns a descriptor of the same file with a high number, and closes this one."""
    try:
        return _high(fd)
    finally:
        os.close(fd)


def _high(fd):
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:    # a process that may have few
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def keep():
    """Keeps the present standard error for what is said later."""
    global _kept
    with contextlib.suppress(OSError):
        fd = _high(2)
        _kept = fd, os.fstat(fd)


def forget():
    """Closes it: a child process that lives on shall not keep its parent's standard error open."""
    global _kept
    if _kept is not None:
        with contextlib.suppress(OSError):
            os.close(_kept[0])
        _kept = None


def say(text):
    if _kept is not None:
        fd, was = _kept
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), was):    # the script may have closed it, and opened another file
                os.write(fd, f"twinrun: {text}\n".encode("utf-8", "backslashreplace"))
        return
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(f"twinrun: {text}", file=sys.stderr)

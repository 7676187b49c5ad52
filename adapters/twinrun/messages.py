"""What twinrun says to the user of a script, whatever the script does with its streams."""
import contextlib
import fcntl
import os
import sys

_kept = None    # (a descriptor of the standard error that the process began with, what it was)


def high(fd):
    """Returns a descriptor of the same file that is none of the three standard ones, which a script may have closed."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def keep():
    """Keeps the present standard error for what is said later."""
    global _kept
    with contextlib.suppress(OSError):
        fd = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
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

"""Runs Python scripts in forks of a process that has imported a framework already: importing PyTorch takes five seconds of processor time,
TensorFlow more, and recording or serving a small step takes one.

    forks = Forks(python, "torch")
    subprocess.run([forks.python, "-m", "twinrun", "watch", script])

forks.python is a program that behaves as the interpreter does. Arguments, environment, folder, the three standard streams and the exit status are those of the command. If one of the two processes dies,
so does the other.
"""
import atexit
import fcntl
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings


class Forks:
    def __init__(self, python, *modules, environment=None):
        """modules: what is imported before the first fork, where the interpreter has it."""
        self.folder = tempfile.TemporaryDirectory(prefix="twinrun-forks-")
        self.place, self.python = (os.path.join(self.folder.name, name) for name in ("socket", "python3"))
        here = os.path.dirname(os.path.abspath(__file__))
        with open(self.python, "w") as program:
            program.write(f"#!/usr/bin/python3 -IS\nimport sys\nsys.path.insert(0, {here!r})\nimport forks\n"
                          f"forks.run({self.place!r}, {python!r}, sys.argv[1:])\n")
        os.chmod(self.python, 0o755)
        self.server = subprocess.Popen([python, __file__, self.place, *modules], stdin=subprocess.PIPE,
                                       env={**os.environ, **(environment or {})})
        atexit.register(self.close)

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.folder.cleanup()


# ---- the process that stands for the script

def run(place, python, words):
    if words[0] == "-W":
        words = words[2:]
    if words[0] not in ("-m", "-c") and words[0].startswith("-"):
        os.execv(python, [python, *words])
    connection = socket.socket(socket.AF_UNIX)
    until = time.monotonic() + 120    # for the imports
    while True:
        try:
            connection.connect(place)
            break
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    what = json.dumps({"words": words, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
    socket.send_fds(connection, [len(what).to_bytes(8, "little")], [0, 1, 2])
    connection.sendall(what)
    for stream in (0, 1, 2):    # the script's alone from now on: a pipe ends when it closes it
        os.close(stream)
    status = connection.recv(1)
    if not status:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(status[0])


# ---- the process that forks

def received(connection):
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    data, size = b"", int.from_bytes(size, "little")
    while len(data) < size:
        data += connection.recv(size - len(data))
    return json.loads(data), streams


class Becomes(BaseException):
    """os.execve, of an interpreter that this process stands for."""

    def __init__(self, path, words, environment):
        self.words, self.environment = words[1:], environment


def execve(*given):
    raise Becomes(*given)


def become(asked, streams):
    """Makes this process the script that was asked for."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[1:1] = [p for p in asked["environment"].get("PYTHONPATH", "").split(":") if p]
    os.execve = execve
    try:
        run_words(asked["words"], asked)
    except Becomes as other:
        run_watched(other, asked)


def run_watched(other, asked):
    os.environ.clear()
    os.environ.update(other.environment)
    from twinrun import watched
    watched.begin()
    run_words(list(itertools.dropwhile(lambda word: word.startswith("-") and word != "-m", other.words)), asked)


def run_words(words, asked):
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], asked["folder"]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], asked["folder"]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def child(connection):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        asked, streams = received(connection)
        # SIGIO, which ends this process, when the one that stands for it has died.
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        become(asked, streams)
        status = 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = (0 if end.code is None else end.code & 255) if not isinstance(end.code, str) else 1
    except BaseException as error:
        sys.audit("sys.excepthook", sys.excepthook, type(error), error, error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        connection.send(bytes([status]))
        os._exit(status)    # ending the interpreter would write to every page of the framework's modules


def serve(place, modules):
    warnings.simplefilter("ignore")
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:    # PyTorch 1 has no torch._dynamo
            pass
    gc.collect()
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            child(connection)
        connection.close()


if __name__ == "__main__":
    sys.path[0] = ""    # no script has this folder
    serve(sys.argv[1], sys.argv[2:])

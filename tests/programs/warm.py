"""Engines that start without the seconds that importing a framework takes: a process that has it forks one for each that twinrun starts.

    python3 warm.py serve jax SOCKET                              # the process; ends when its standard input does
    python3 -I -S warm.py start SOCKET SCRIPT [OPTIONS] FOLDER    # in the place of `python3 SCRIPT [OPTIONS] FOLDER`

A diagnosis starts an engine four times or so; a run of all tests thousands of times. The forked process has standard input, output
and error of the one that twinrun started, so that nothing but time is different: run_programs.py --cold does without.
"""
import array
import json
import os
import socket
import sys


def start(path, words):
    """Hands our three files and our command to the process, and ends as the engine does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(path)
        message = json.dumps({"words": words, "cwd": os.getcwd()}).encode()
        server.sendmsg([len(message).to_bytes(4, "little") + message],
                       [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
        for file in (0, 1):
            os.close(file)    # the engine alone holds them now, so that twinrun sees their end
        status = server.recv(1)
    os._exit(status[0] if status else 1)


def accept(connection):
    files = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(3 * files.itemsize))
    for level, kind, found in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(found[: len(found) - len(found) % files.itemsize])
    size = int.from_bytes(data[:4], "little")
    while len(data) < 4 + size:
        data += connection.recv(1 << 16)
    return json.loads(data[4:]), list(files)


def run(connection, request, files):
    """The engine, in a process of its own; never returns."""
    import runpy
    import traceback
    status = 1
    try:
        for to, file in enumerate(files):
            os.dup2(file, to)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)
        os.chdir(request["cwd"])
        sys.argv = request["words"]
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:    # of an engine, of any kind: the process that forked us must not go on in our place
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            connection.send(bytes([status & 255]))
        finally:
            os._exit(status & 255)


def serve(framework, path):
    import signal
    import threading
    __import__("numpy")
    if framework == "torch":
        import torch
        torch.set_num_threads(1)
    else:
        import jax.numpy    # noqa: F401  no backend starts: that is for the forked process
        import optax    # noqa: F401
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen(16)
        while True:
            connection, _ = server.accept()
            request, files = accept(connection)
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                run(connection, request, files)
            for file in files:
                os.close(file)
            connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3])
    else:
        start(sys.argv[2], sys.argv[3:])

"""Starts a PyTorch script once for each core, as torchrun does; the first process answers twinrun.

    twinrun diagnose mine.toml --subject 'exec:python3 -m twinrun_engine.launch --cores 2 mine.py --lr 0.1'

Each process finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, so that
torch.distributed.init_process_group("gloo") needs no arguments besides.
"""
import argparse
import os
import socket
import subprocess
import sys
import time

from .protocol import take_session


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(prog="python3 -m twinrun_engine.launch", description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, required=True, help="number of processes, one for each core")
    parser.add_argument("script", help="script that calls serve_script() after init_process_group()")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    take_session()
    options = parser.parse_args()
    world = {"WORLD_SIZE": str(options.cores), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    children = []
    for rank in range(options.cores):
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        files = {} if rank == 0 else {"stdin": subprocess.DEVNULL, "stdout": sys.stderr}
        children.append(subprocess.Popen([sys.executable, options.script, *options.arguments], env=environment, **files))
    failed = None
    while failed is None and children[0].poll() is None:    # if one process ends early, the others wait for it for ever
        failed = next((child.returncode for child in children[1:] if child.poll()), None)
        time.sleep(0.05)
    for child in children[0 if failed is not None else 1:]:
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    sys.exit(failed if failed is not None else children[0].returncode)


if __name__ == "__main__":
    main()

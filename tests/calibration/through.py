"""Runs an engine of mixed_engine.py in a process that has already loaded its framework: through.py SOCKET WORDS.. (mixed_precision.py)."""
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    socket.send_fds(client, ["\0".join([os.getcwd(), *sys.argv[2:]]).encode()], [0, 1, 2])
    for place in (0, 1):
        os.close(place)
    sys.exit(client.recv(1) != b"\0")

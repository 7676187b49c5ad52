#!/usr/bin/env python3
"""Compiles each of our headers alone: what it uses it must include itself. (The sources are compiled several at once, which hides this.)

Most of such a compilation is what the header includes. Where that has one of STAGES, directly or not, the compilation begins with this
one precompiled: nothing is seen that the header does not include anyway, and the stage is itself compiled alone.
"""

import concurrent.futures
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CLANG = ["clang++", "-std=c++20", "-march=x86-64-v3", "-w", "-I.", "-isystem", "/usr/include/hdf5/serial"]
STAGES = [
    "harness/experiment/experiment.h",
    "backends/core/backend.h",
    "program/graph/program.h",
    "program/ops/graph.h",
    "scenarios/scenario.h",
    "program/base/tensor.h",
    "program/base/result.h",
]


@functools.cache
def included(header):
    """Returns the names of our headers that a header includes, directly or not."""
    found = set(re.findall(r'^#include "([^"]+\.h)"', pathlib.Path(header).read_text(encoding="utf-8"), re.M))
    found = set(filter(os.path.exists, found))
    return found.union(*map(included, found))


def main():
    listed = subprocess.run(["git", "ls-files", "*.h"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    headers = sys.argv[1:] or [h for h in listed if not h.startswith("tests/")]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:

        def precompiled(stage):
            result = os.path.join(folder, stage.replace("/", "_"))
            done = subprocess.run([*CLANG, "-x", "c++-header", stage, "-o", result], check=False)
            return result if done.returncode == 0 else None    # its own compilation says why

        stages = dict(zip(STAGES, pool.map(precompiled, STAGES)))

        def compiles(header):
            begin = next((["-include-pch", stages[s]] for s in STAGES if stages[s] and s in included(header)), [])
            return subprocess.run([*CLANG, "-fsyntax-only", *begin, "-x", "c++", header], check=False).returncode == 0

        failed = [h for h, fine in zip(headers, pool.map(compiles, headers)) if not fine]
    print("\n".join([f"does not include what it uses: {h}" for h in failed] or [f"{len(headers)} headers, each compiled alone"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

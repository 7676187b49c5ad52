#!/usr/bin/env python3
"""Peak memory and time of a training step over the number of emulated cores, as a Markdown table.

  bench/pods.py [--scenario NAME] [--cores 8,64] [NAME=BINARY ...]   (default: now=build/release/twinrun)

The time of a step is processor time, of both threads together, with what they spend waiting for each
other, so measure on an idle machine: that of a run of some steps less that of a run of one step, divided by their
number. The memory is the largest resident set of the process, with the data set, the evaluation
and the program itself. Every run is made in a process of its own, with two host threads. Runs of equal
settings must have equal state digests, whichever binary made them.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

CORES = [8, 64, 512, 1024, 2048]
SCENARIOS = [("digits_mlp", 1), ("digits_cnn", 2), ("resnet20", 2)]  # and samples of a core


def run(binary, scenario, cores, samples, steps, folder):
    """Processor seconds, peak bytes and state digest of one training."""
    words = [binary, "train", scenario, "--engine", "tpu", "--cores", str(cores), "--threads", "2",
             "--set", f"tpu.cores={cores}", "--set", f"train.batch={cores * samples}",
             "--set", f"train.steps={steps}", "--restart", "-q", "--out", f"{folder}/run.h5"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    digest = re.search(r"state digest ([0-9a-f]+)", out)
    if status != 0 or not digest:
        sys.exit(f"{' '.join(words)}\n{out}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, digest.group(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scenario", choices=[name for name, _ in SCENARIOS])
    parser.add_argument("--cores", type=lambda text: [int(n) for n in text.split(",")], default=CORES)
    parser.add_argument("binaries", nargs="*", default=["now=build/release/twinrun"])
    args = parser.parse_args()
    binaries = dict(word.split("=", 1) for word in args.binaries)
    print("| scenario | cores | batch | " +
          " | ".join(f"{name}: memory | processor time of a step" for name in binaries) + " |")
    print("|---|---|---|" + "---|---|" * len(binaries))
    with tempfile.TemporaryDirectory() as folder:
        for scenario, samples in SCENARIOS:
            for cores in args.cores if args.scenario in (None, scenario) else []:
                cells, digests = [], set()
                more = max(1, 400 // cores)  # steps besides the first one
                for binary in binaries.values():
                    one, _, _ = run(binary, scenario, cores, samples, 1, folder)
                    all, peak, digest = run(binary, scenario, cores, samples, 1 + more, folder)
                    digests.add(digest)
                    cells += [f"{peak / 2**20:,.0f} MiB", f"{(all - one) / more:.2g} s"]
                if len(digests) != 1:
                    sys.exit(f"{scenario} on {cores} cores: different bits: {digests}")
                print(f"| `{scenario}` | {cores:,} | {cores * samples:,} | {' | '.join(cells)} |",
                      flush=True)


if __name__ == "__main__":
    main()

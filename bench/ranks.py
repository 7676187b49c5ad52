#!/usr/bin/env python3
"""What a layout over ranks of MPI costs, measured on this machine, and a model of it on many hosts. docs/developers/processors.md has the figures.

    bench/ranks.py cost [--pairs 5] [SCENARIO]     two ranks of a thread each against a process of two threads
    bench/ranks.py project                         the time of a step on 8 to 256 hosts
Builds first: ./dev build mpi
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/mpi"))
from ring import Step  # noqa: E402

BUILD = ROOT / "build/release"
MPI = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Steps of the longer and of the shorter run, whose difference leaves out the start and the evaluation.
STEPS = {"digits_cnn": (210, 10), "resnet20": (14, 2)}


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(command, folder, clock):
    began = clock()
    subprocess.run(command, cwd=folder, env=MPI, check=True, stdout=subprocess.DEVNULL)
    return clock() - began


def step_seconds(launch, scenario, folder, settings, clock=time.monotonic):
    words = [*launch, "train", scenario, "--engine", "tpu", "-q", "-o", "run.h5", "--restart", *settings]
    many, few = STEPS[scenario]
    long, short = (seconds([*words, "--set", f"train.steps={n}"], folder, clock) for n in (many, few))
    return (long - short) / (many - few)


THREADS = [str(BUILD / "twinrun")]
RANKS = ["mpirun", "-np", "2", str(BUILD / "twinrun_mpi")]


def cost(pairs, scenarios):
    print("| | two threads, a step | two ranks, a step | overhead, median of pairs | pairs |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for scenario in scenarios:
            sides = {"threads": (THREADS, ("--threads", "2")), "ranks": (RANKS, ("--threads", "1"))}
            taken = {side: [] for side in sides}
            for pair in range(pairs):
                for side in sorted(sides, reverse=pair % 2 == 1):  # alternating
                    launch, settings = sides[side]
                    taken[side].append(step_seconds(launch, scenario, folder, settings))
            over = [100 * (r / t - 1) for r, t in zip(taken["ranks"], taken["threads"])]
            print(
                f"| `{scenario}` | {1e3 * statistics.median(taken['threads']):.1f} ms | {1e3 * statistics.median(taken['ranks']):.1f} ms "
                f"| {statistics.median(over):+.1f} % | {', '.join(f'{o:+.1f} %' for o in over)} |",
                flush=True,
            )


# Name, bytes a second and seconds of latency of a link. Sources: MPI one way within a region of Google Cloud, after its tuning
# (cloud.google.com/blog/products/compute/how-to-reduce-mpi-latency-for-hpc-workloads-on-google-cloud); Azure's HBv4
# (github.com/MicrosoftDocs/azure-docs/blob/main/articles/virtual-machines/hbv4-performance.md).
LINKS = (("25 Gbit/s Ethernet, TCP", 25e9 / 8, 8e-6), ("InfiniBand NDR", 400e9 / 8, 2e-6))
CORES, SAMPLES_A_CORE = 512, 8


def project():
    for scenario in ("digits_cnn", "resnet20"):
        settings = [f"tpu.cores={CORES}", f"train.batch={CORES * SAMPLES_A_CORE}"]
        words = [str(BUILD / "twinrun"), "inspect", scenario, "--ops", *(w for s in settings for w in ("--set", s))]
        step = Step(subprocess.check_output(words, text=True))
        with tempfile.TemporaryDirectory() as folder:
            # A step is what all cores share, and a part for each core.
            few, many = (
                step_seconds(
                    THREADS, scenario, folder,
                    ("--threads", "1", "--set", f"tpu.cores={n}", "--set", f"train.batch={n * SAMPLES_A_CORE}"),
                    processor_seconds,
                )
                for n in (4, 16)
            )
        each = (many - few) / 12
        common = max(0.0, few - 4 * each)
        print(f"\n`{scenario}`: {1e3 * each:.2f} ms a core and {1e3 * common:.2f} ms for what cores share, processor time of one thread.\n")
        print("| hosts | cores each | messages | MB | compute |", " | ".join(name for name, *_ in LINKS), "|")
        print("|---|---|---|---|---|" + "---|" * len(LINKS))
        for hosts in (1, 8, 16, 32, 64, 128, 256):
            messages, sent = step.needs(hosts) if hosts > 1 else (0, 0)
            compute = each * CORES / hosts + common
            # An exchange waits for the slowest host: partial sums pass through all hosts one after the other, as gathered parts
            # do in the ring algorithm of MPI_Allgatherv. Every host sends as much as any other.
            gathers = len(step.sums) + 2
            waits = len(step.sums) * hosts + gathers * (hosts - 1) if hosts > 1 else 0
            times = [compute + waits * latency + sent / hosts / bandwidth for _, bandwidth, latency in LINKS]
            print(
                f"| {hosts} | {CORES // hosts} | {messages:,} | {sent / 1e6:,.1f} | {1e3 * compute:,.1f} ms |",
                " | ".join(f"{1e3 * t:,.1f} ms" for t in times),
                "|",
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "project"))
    parser.add_argument("scenario", nargs="?", choices=sorted(STEPS))
    parser.add_argument("--pairs", type=int, default=5)
    words = parser.parse_args()
    if words.what == "cost":
        cost(words.pairs, [words.scenario] if words.scenario else sorted(STEPS))
    else:
        project()


if __name__ == "__main__":
    main()

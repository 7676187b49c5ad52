"""Long use: does twinrun's memory stay flat, and does it give the same bits for hours?

    ./dev soak                     eight hours
    ./dev soak --minutes 20        shorter
    ./dev soak --write             also writes its section of docs/developers/testing.md

One training runs from beginning to end, with periodic checkpoints; its memory and its open files are read
from /proc. Beside it short trainings, diagnoses and a drill are run again and again; each must give the
same digest every time.

A training keeps a record of every step until the run is written (HISTORY bytes, checkpoints/run.h), so its
memory may grow by that much a step and by nothing else.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TWINRUN = os.environ.get("TWINRUN", str(SOURCE / "build/release/twinrun"))
# Per step: losses and norms (StepScalars, 16 bytes) and the digest of the state (16). They lie in vectors that may be
# twice as long as their content (2); to write a periodic checkpoint they are copied (1) and put into columns (1). The
# heap keeps what it once had (harness/host/heap.h).
HISTORY = (16 + 16) * (2 + 1 + 1)
# A file is built in memory up to this size, then on the disk (checkpoints/container/image_memory.h).
IMAGE = 64 << 20
# What an allocator may keep beside it once it is warm.
SLACK = 32 << 20
LONG = ["train", "digits_mlp", "-q", "--threads", "1", "--set", "train.steps=100000000", "--set",
        "train.checkpoint_every=5000", "--set", "train.eval_every=5000"]


def status(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", text)[1]) * 1024


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def without_times(value):
    """A report without what may differ from run to run: times, the machine's load, paths."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not re.search("second|time|_ms|path|folder|load|date|command", k)}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def digest_of_report(folder):
    report = json.loads((folder / "report.json").read_text())
    kept = {k: report[k] for k in ("verdict", "runs", "comparisons") if k in report}
    return hashlib.sha256(json.dumps(without_times(kept), sort_keys=True).encode()).hexdigest()[:16]


def digest_of_output(pattern):
    def digest(_folder, out):
        found = re.search(pattern, out)
        return found[1] if found else "none: " + out[-200:]
    return digest


SHORT = {
    "train": (["train", "digits_cnn", "--set", "train.steps=20", "-o", "run.h5"],
              digest_of_output(r"run digest (\w+)")),
    "diagnose": (["diagnose", "litmus_precision", "--quick", "--fresh", "-o", "out"],
                 lambda folder, _out: digest_of_report(folder / "out")),
    "drill": (["drill", "drill_mlp", "--cases", "8", "-o", "drill"],
              digest_of_output(r"(\d+ of \d+[^\n]*)")),
}


class Command:
    """Runs of one command: their digests and the largest memory of each."""

    def __init__(self, name):
        self.name, (self.words, self.digest) = name, SHORT[name]
        self.digests, self.peaks = collections.Counter(), []

    def run(self):
        with tempfile.TemporaryDirectory(prefix="twinrun-soak-") as folder:
            out = open(os.path.join(folder, "stdout"), "w+")
            child = subprocess.Popen([TWINRUN + ("_dev" if self.name == "drill" else ""), *self.words], cwd=folder, stdout=out, stderr=subprocess.STDOUT)
            _, state, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(state)
            out.seek(0)
            text = out.read()
            out.close()
            if child.returncode < 0 or child.returncode == 128:
                self.digests[f"exit {child.returncode}: {text[-200:]}"] += 1
                return
            self.digests[self.digest(pathlib.Path(folder), text)] += 1
            self.peaks.append(usage.ru_maxrss * 1024)

    def row(self):
        ok = len(self.digests) == 1 and self.peaks and max(self.peaks) - min(self.peaks) < SLACK
        return [self.name, f"{sum(self.digests.values())} runs", f"{len(self.digests)} digest(s)",
                f"{min(self.peaks, default=0) >> 20} to {max(self.peaks, default=0) >> 20} MB at most", "ok" if ok else "FAILED"]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--minutes", type=float, default=480)
    p.add_argument("--write", action="store_true", help="write the section of docs/developers/testing.md")
    p.add_argument("--page", type=pathlib.Path, default=SOURCE / "docs/developers/testing.md", help=argparse.SUPPRESS)
    a = p.parse_args()
    end = time.monotonic() + 60 * a.minutes
    commands = [Command(name) for name in SHORT]
    with tempfile.TemporaryDirectory(prefix="twinrun-soak-") as folder:
        log = open(os.path.join(folder, "log"), "w+")
        long = subprocess.Popen([TWINRUN, *LONG, "-v", "-o", "long.h5"], cwd=folder, stdout=log, stderr=log)
        samples = []
        while time.monotonic() < end and long.poll() is None:
            for command in commands:
                command.run()
                if long.poll() is None:
                    samples.append((status(long.pid), files(long.pid)))
            left = max(0, end - time.monotonic())
            sys.stderr.write(f"\r{sum(sum(c.digests.values()) for c in commands)} runs, {left / 60:.0f} minutes left ")
            sys.stderr.flush()
        sys.stderr.write("\n")
        ended_early = long.poll() is not None
        long.send_signal(signal.SIGINT)
        long.wait()
        log.seek(0)
        text = log.read()
        steps = [int(n) for n in re.findall(r"interrupted at step (\d+)", text)]
    steps = steps[-1] if steps else 0
    # The first quarter warms up: caches, the heap, the first checkpoints.
    warm = samples[len(samples) // 4:]
    grown = (warm[-1][0] - warm[0][0]) if warm else 0
    allowed = HISTORY * steps + IMAGE + SLACK
    opened = {n for _, n in warm}
    flat = bool(warm) and not ended_early and steps > 0 and grown <= allowed and max(opened) - min(opened) <= 2
    rows = [["one long training", f"{steps:,} steps".replace(",", " "), f"{min(opened, default=0)} to {max(opened, default=0)} open files",
             f"grew by {grown / 2**20:.1f} MB, {HISTORY * steps / 2**20:.1f} MB of history allowed", "ok" if flat else "FAILED"]]
    rows += [c.row() for c in commands]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    print(table)
    for c in commands:
        if len(c.digests) != 1:
            print(f"{c.name}: {dict(c.digests)}")
    if not flat and ended_early:
        print(text[-2000:])
    if a.write:
        section = (f"## Long use\n\n`./dev soak --minutes {a.minutes:g}`: one training runs the whole time; the other commands run again and again "
                   "beside it.\n\n| | | | | |\n|---|---|---|---|---|\n" + table + "\n")
        write_section(a.page, "soak", section)
    return 0 if all(row[-1] == "ok" for row in rows) else 1


def write_section(page, name, text):
    """Replaces what stands between the markers of this section, or appends it."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    old = page.read_text() if page.exists() else "# Reliability, measured\n"
    new = begin + text + end
    if begin in old:
        old = old[:old.index(begin)] + new + old[old.index(end) + len(end):]
    else:
        old = old.rstrip("\n") + "\n\n" + new
    page.write_text(old)


if __name__ == "__main__":
    sys.exit(main())

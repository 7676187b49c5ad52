#!/usr/bin/env python3
"""Kills shares of a drill, and checks that no case is lost: shares.py PROGRAM [--cases N] [--shares N] [--rounds N].

A drill runs whole; then in shares, two processes at a time, of which a tenth is killed by SIGKILL at a random time. Those are started
again with --resume, and a tenth of them (at least one) is killed once more; then all end. The merged tables must be byte for byte
those of the whole drill. Exit status: 0, or 1 with what was found.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILES = ("drill.json", "drill.md", "cases.csv")
SEED = 1


class Campaign:
    def __init__(self, program, folder, cases):
        self.folder = Path(folder)
        shutil.copy(HERE / "tiny.toml", self.folder)
        self.words = [f"{program}_dev", "drill", "tiny.toml", "--cases", str(cases), "--threads", "1", "-q"]
        self.program = program

    def start(self, *more):
        return subprocess.Popen([*self.words, *more], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def whole(self):
        """Runs the drill whole; returns the seconds that it took."""
        begin = time.monotonic()
        process = self.start("-o", "whole")
        _, err = process.communicate()
        if process.returncode not in (0, 1):  # 1: there are misses
            raise SystemExit(f"the whole drill ended with {process.returncode}: {err}")
        return time.monotonic() - begin

    def records(self):
        """Whole lines of all shares, by id."""
        found = {}
        for path in self.folder.glob("out/*/cases.jsonl"):
            for line in path.read_text().split("\n")[:-1]:
                found.setdefault(json.loads(line)["id"], []).append(line)
        return found


def killed_while(campaign, count, left, victims, draws, each, wide=2):
    """Starts the shares `left`, `wide` at a time, and kills `victims`, each at a random time. Returns those to
    be started again, and the number of kills."""
    queue, running, again, kills = list(left), {}, [], 0
    while queue or running:
        while queue and len(running) < wide:
            share = queue.pop(0)
            process = campaign.start("-o", f"out/{share}", "--share", f"{share}/{count}", "--resume")
            dies = time.monotonic() + draws.random() * each if share in victims else None
            running[share] = process, dies
        for share, (process, dies) in list(running.items()):
            if process.poll() is not None:
                err = process.stderr.read()
                process.stderr.close()
                del running[share]
                if process.returncode == -9:
                    again.append(share)
                elif process.returncode not in (0, 1):    # 1: there are misses
                    raise SystemExit(f"share {share} ended with {process.returncode}: {err}")
            elif dies is not None and time.monotonic() >= dies:
                process.kill()
                kills += 1
                running[share] = process, None
        time.sleep(0.01)
    return again, kills


def tried(campaign, args, draws, each):
    """One campaign, of whose shares a tenth is killed at first, and a tenth of what is left once more. Returns kills and faults."""
    shutil.rmtree(campaign.folder / "out", ignore_errors=True)
    left, kills, wrong, passes = list(range(args.shares)), 0, [], 0
    while left:
        victims = set(draws.sample(left, max(1, round(len(left) / 10)))) if passes < 2 else set()
        before = campaign.records()
        left, more = killed_while(campaign, args.shares, left, victims, draws, each)
        after = campaign.records()
        # What was recorded before a kill is there afterwards, to the last digit: it was not computed again.
        wrong += [f"case {i} was lost or computed again" for i in before if not set(before[i]) <= set(after.get(i, []))]
        kills, passes = kills + more, passes + 1
        draws.shuffle(left)
    wrong += [f"case {i} has {len(lines)} records" for i, lines in campaign.records().items() if len(lines) != 1]
    at = campaign.folder
    (at / "merged").mkdir(exist_ok=True)
    with open(at / "merged/cases.jsonl", "w") as file:
        file.writelines(path.read_text() for path in at.glob("out/*/cases.jsonl"))
    process = campaign.start("-o", "merged", "--resume")
    _, err = process.communicate()
    if process.returncode not in (0, 1):
        return kills, [*wrong, f"the shares together ended with {process.returncode}: {err}"]
    return kills, wrong + [f"{f} differs" for f in FILES if (at / "whole" / f).read_bytes() != (at / "merged" / f).read_bytes()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--shares", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4, help="campaigns in which shares are killed")
    args = parser.parse_args()
    draws, kills, wrong = random.Random(SEED), 0, []
    with tempfile.TemporaryDirectory(prefix="twinrun_shares_") as folder:
        campaign = Campaign(str(Path(args.program).resolve()), folder, args.cases)
        each = campaign.whole() / args.shares
        for _ in range(args.rounds):
            more, found = tried(campaign, args, draws, each)
            kills, wrong = kills + more, wrong + found
    for what in wrong:
        print(f"FOUND {what}")
    print(f"{kills} kills in {args.rounds} campaigns of {args.cases} cases in {args.shares} shares; "
          + (f"{len(wrong)} faults" if wrong else f"{', '.join(FILES)} are those of the whole, and no case was lost"))
    if kills == 0:
        print("FOUND no share was killed, so nothing was tried")
    return 1 if wrong or kills == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The crash campaign: every call of a short run fails, is cut short, or is the last one before the process is killed.

    ./dev crash [--verb V ..] [--tries N] [--write]     every call; N random kills of each verb (200)
    tests/crash/crash.py --program P --shim S --share   what CI runs: every call of train and record, a stride of the others

After each disturbance the run must have ended with its right result or with a clear error, no file under a final name may be
torn, no temporary may be left after an error, and the same command given again must end with the undisturbed result. Exit
status: 0, or 1 if anything was found.
"""

import argparse
import errno
import os
import random
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import environments  # noqa: E402
import power  # noqa: E402
from scenes import VERBS, Ran, Scene  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/developers/testing.md"
BEGIN, END = "<!-- crash: begin -->", "<!-- crash: end -->"
SEED = 1
# What can go wrong with a call, by its name.
ERRORS = {
    "create": [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EIO],
    "open": [errno.EMFILE, errno.EIO],
    "read": [errno.EIO],
    "write": [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG],
    "fsync": [errno.EIO, errno.ENOSPC, errno.EDQUOT],
    "close": [errno.EIO, errno.ENOSPC],
    "rename": [errno.EIO, errno.ENOSPC, errno.EROFS],
    "mkdir": [errno.ENOSPC, errno.EDQUOT, errno.EROFS],
    "unlink": [errno.EIO, errno.EROFS],
    "rmdir": [errno.EIO],
    "flock": [errno.ENOLCK],
    "ftruncate": [errno.EIO, errno.EFBIG],
    "link": [errno.ENOSPC, errno.EROFS],
    "start": [errno.EAGAIN],
}
CHANGES = {"create", "write", "ftruncate", "fsync", "rename", "link", "mkdir", "unlink", "rmdir"}
FULL_DISK = "create,write,mkdir,fsync,rename"


class Tally:
    """Counts tries by verb and by what was done, and keeps what was wrong."""

    def __init__(self):
        self.rows, self.wrong = {}, []

    def add(self, verb, mode, wrong, words=""):
        row = self.rows.setdefault((verb, mode), [0, 0])
        row[0] += 1
        if wrong:
            row[1] += 1
            self.wrong.append(f"{verb}, {mode}: {words}{wrong}")
            print(f"FOUND {self.wrong[-1]}", flush=True)


def every_call(scene, tally, stride, every_error):
    """Lets each call fail and be cut short, and kills the process before each one that changes what is stored."""
    changing = [c.number for c in scene.calls if c.name in CHANGES]
    for call in scene.calls[SEED % stride::stride]:
        words = f"call {call.number} ({call.name} {call.path.removeprefix(str(scene.work))}): "
        errors = ERRORS[call.name]
        for code in errors if every_error else [errors[call.number // stride % len(errors)]]:
            one(scene, tally, "a call fails", f"{words}{errno.errorcode[code]}: ", may_leave=call.name in ("unlink", "rmdir"),
                FAILING_CALLS_AT=call.number, FAILING_CALLS_DO=f"fail:{code}")
        if call.name == "create":
            one(scene, tally, "the disk is full from here", words, FAILING_CALLS_AT=call.number, FAILING_CALLS_LAST=10**9,
                FAILING_CALLS_ONLY=FULL_DISK, FAILING_CALLS_DO=f"fail:{errno.ENOSPC}")
        if call.name == "write":
            one(scene, tally, "a short write", words, FAILING_CALLS_AT=call.number, FAILING_CALLS_DO="short")
        if call.number in changing:
            one(scene, tally, "killed before a call", words, kill=True, FAILING_CALLS_AT=call.number,
                FAILING_CALLS_DO="kill-before")
        if call.number == changing[-1]:
            one(scene, tally, "killed after the last call", words, kill=True, FAILING_CALLS_AT=call.number,
                FAILING_CALLS_DO="kill-after")


def one(scene, tally, mode, words, kill=False, may_leave=False, **settings):
    scene.fresh()
    ran = scene.disturbed(**settings)
    wrong = scene.judge(ran, kill, may_leave) or scene.judge_again()
    tally.add(scene.verb.name, mode, wrong, words)


def allocations(scene, tally, tries):
    """The Nth allocation fails: the first ones, then evenly spread over the run."""
    many = scene.allocations
    numbers = sorted({*range(1, min(many, tries // 4) + 1), *(1 + many * i // tries for i in range(tries))})
    for number in numbers:
        one(scene, tally, "an allocation fails", f"allocation {number} of {many}: ", FAILING_CALLS_MALLOC=number)


def random_kills(scene, tally, tries, draws):
    """Kills at random times, without the library."""
    scene.fresh()
    begin = time.monotonic()
    scene.run(scene.verb.words)
    whole = time.monotonic() - begin
    for _ in range(tries):
        scene.fresh()
        process = scene.start(scene.verb.words)
        after = draws.random() * whole
        time.sleep(after)
        process.kill()
        out, err = process.communicate()
        wrong = scene.judge(Ran(process.returncode, out, err), kill=True) or scene.judge_again()
        tally.add(scene.verb.name, "killed at a random time", wrong, f"after {after:.3f} s: ")


def lost_power(scene, tally, stride):
    verb = scene.verb.name
    for again, wrong in power.check(scene, SEED, stride):
        tally.add(verb, "power lost: the files found", wrong)
        if again:
            tally.add(verb, "power lost: the command again", None)
    # The same run without its syncs must not pass.
    if not any(wrong for _, wrong in power.check(scene, SEED, 10**9, without="fsync")):
        tally.add(verb, "power lost: the files found", "a run that syncs nothing would pass, too")


def surroundings(scene, tally):
    for title, function in environments.ALL.items():
        for what, wrong in function(scene):
            tally.add(scene.verb.name, title, wrong, f"{what}: ")


def table(rows, verbs):
    modes = list(dict.fromkeys(mode for _, mode in rows))
    lines = ["| tries | " + " | ".join(f"`{v}`" for v in verbs) + " |", "|---|" + "---|" * len(verbs)]
    for mode in modes:
        cells = []
        for verb in verbs:
            tries, wrong = rows.get((verb, mode), [0, 0])
            cells.append("" if tries == 0 else f"{tries}" if wrong == 0 else f"{tries}, **{wrong} wrong**")
        lines.append(f"| {mode} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def add_to_page(tally, counts):
    """Writes the section; cells of its table that were not tried now stay as they are there."""
    page = PAGE.read_text() if PAGE.exists() else "# Reliability\nWhat was tried against twinrun, by which command, and what was found.\n"
    old = page[page.index(BEGIN):page.index(END)] if BEGIN in page else ""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in old.splitlines() if line.startswith("| ")]
    merged, calls = {}, {}
    for verb, number in re.findall(r"`(\w+)` (\d+)[,)]", old):
        calls[verb] = int(number)
    for mode, *cells in rows[1:]:
        for verb, cell in zip(rows[0][1:], cells):
            numbers = [int(n) for n in re.findall(r"\d+", cell)]
            if numbers:
                merged[verb.strip("`"), mode] = [*numbers, 0][:2]
    calls.update(counts)
    text = section({**merged, **tally.rows}, {verb: calls[verb] for verb in VERBS if verb in calls})
    if old:
        text = page[:page.index(BEGIN)] + text + page[page.index(END) + len(END):]
    else:
        text = page.rstrip() + "\n\n" + text + "\n"
    PAGE.write_text(text)


def section(rows, counts):
    total = sum(tries for tries, _ in rows.values())
    wrong = sum(wrong for _, wrong in rows.values())
    calls = ", ".join(f"`{verb}` {n}" for verb, n in counts.items())
    found = "None ended wrongly." if wrong == 0 else f"{wrong} ended wrongly."
    return f"""{BEGIN}
## Crashes and failing calls
`./dev crash --write`, last on {time.strftime('%Y-%m-%d', time.gmtime())}: {total:,} tries. {found}

A library that is loaded before the others (`tests/crash/failing_calls.cc`) counts the calls by which a run of four steps
changes or reads what is stored, and the threads and processes that it starts:
({calls}).
Each of them fails with a documented error, is cut short, or is the last one before which the process is killed. The same
command then runs once more, undisturbed (`resume` is `drill --resume` with nothing left to be run). A try is right if the
run ended with its right result or with a clear error and a documented exit code, no file under a final name is torn, no
temporary file is left after an error, and the second command ends with the digests of an undisturbed run.

{table(rows, list(counts))}

*Power lost*: from a log of all writes, with what was synced, the folders are rebuilt that a disk may hold after each
call: unsynced names are there or not, unsynced sectors of 512 bytes are there, missing or zeros. Every final name held a
whole old or a whole new file. Allocations inside libhdf5 are spared, because it does not survive one that fails.
{END}"""


def one_verb(o, folder, name):
    """All of it for one verb. Returns the tally and the number of calls."""
    tally, draws, begin = Tally(), random.Random(SEED), time.monotonic()
    scene = Scene(o.program.resolve(), o.shim.resolve(), VERBS[name], Path(folder) / name)
    few = len(scene.calls) < 60  # train and record: all of it, always
    stride = 1 if few or not o.share else max(1, len(scene.calls) // 12)
    tries = o.tries if not o.share else 12 if few else 6
    if "calls" in o.part:
        every_call(scene, tally, stride, every_error=few and not o.share)
    if "power" in o.part:
        lost_power(scene, tally, 1 if few else 10 if not o.share else 200)
    if "memory" in o.part:
        allocations(scene, tally, 60 if few and o.share else tries)
    if "kills" in o.part:
        random_kills(scene, tally, tries, draws)
    if "surroundings" in o.part and (few or not o.share):
        surroundings(scene, tally)
    print(f"{name}: {len(scene.calls)} calls, {scene.allocations} allocations, {time.monotonic() - begin:.0f} s", flush=True)
    return tally, len(scene.calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "build/release/twinrun", type=Path)
    parser.add_argument("--shim", default=ROOT / "build/release/tests/libfailing_calls.so", type=Path)
    parser.add_argument("--verb", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--tries", type=int, default=200, help="random kills of each verb, and allocations that fail")
    parser.add_argument("--share", action="store_true", help="what CI runs")
    parser.add_argument("--part", nargs="+", choices=["calls", "memory", "kills", "power", "surroundings"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="verbs that are tried side by side")
    parser.add_argument("--write", action="store_true", help="write these cells of docs/developers/testing.md")
    o = parser.parse_args()
    o.part = o.part or ["calls", "power", "memory", "kills", "surroundings"]
    tally, counts = Tally(), {}
    with tempfile.TemporaryDirectory(prefix="twinrun-crash-") as folder, ProcessPoolExecutor(o.jobs) as pool:
        os.chmod(folder, 0o755)
        shutil.copy(f"{o.program}_dev", folder)
        for file in ("program", "shim"):  # where a user who is not root can run them
            setattr(o, file, Path(shutil.copy(getattr(o, file), folder)))
        for name, (found, calls) in zip(o.verb, pool.map(partial(one_verb, o, folder), o.verb)):
            counts[name] = calls
            tally.rows.update(found.rows)
            tally.wrong += found.wrong
    print(table(tally.rows, o.verb))
    print(f"{sum(t for t, _ in tally.rows.values())} tries, {len(tally.wrong)} wrong")
    if o.write:
        add_to_page(tally, counts)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

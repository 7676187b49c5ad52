#!/usr/bin/env python3
"""The campaign: the slow tests, drill, real cases, calibration and speed, several processes at a time, and their pages in docs/results/.

    ./dev campaign                            everything, two processes at a time; hours
    ./dev campaign --parts drill --cases 254 --shares 8 --jobs 4
    ./dev campaign --write                    also writes the pages
    ./dev campaign --fresh                    begins anew; without it, a campaign that was killed goes on

A part is a list of jobs. A job is a command that goes on where it was killed: shares of the drill keep their records, the calibration
its rows. A job that ends badly runs again, three times at most; then it is listed, and the others run.
What is measured by the clock (speed) runs last and alone. OUT/progress.html says how far it is and renews itself. Exit status: 0;
1: a job has failed or the tables have misses; 130: interrupted.
"""

import argparse
import ctypes
import datetime
import html
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRIES = 3
PARTS = ("tests", "drill", "cases", "calibration", "speed")
RENEWED = 5  # seconds


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_us():
    """In a child: ends it when this process is killed, so that the next campaign finds no one in its folders. Records are safe."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Job:
    def __init__(self, name, words, records=None, cases=0, alone=False, fine=(0,), environment=None):
        self.name, self.words, self.records, self.cases, self.alone, self.fine = name, [str(w) for w in words], records, cases, alone, fine
        self.environment = environment or {}
        self.state, self.tries, self.begun, self.seconds, self.process = "waits", 0, 0.0, 0.0, None

    def progress(self):
        """(cases recorded, cases planned); None: the job has no records."""
        if self.records is None:
            return None
        try:
            return self.records.read_bytes().count(b"\n"), self.cases
        except OSError:
            return 0, self.cases


def drill(args, twinrun):
    return [f"{twinrun}_dev", "drill", *args.scenarios, "--cases", args.cases, "--threads", 1, "--resume", "-q"]


def jobs_of(args, out, twinrun):
    shares, jobs = range(args.shares), []
    if "tests" in args.parts:
        jobs += [Job(f"tests {i}/{args.shares}", ["ctest", "--test-dir", pathlib.Path(twinrun).parent, "--no-tests=error",
                                                  "--output-on-failure", "-L", "slow", "-I", f"{i + 1},,{args.shares}"])
                 for i in shares]  # fmt: skip
    if "drill" in args.parts:
        jobs += [
            Job(f"drill {i}/{args.shares}", [*drill(args, twinrun), "--share", f"{i}/{args.shares}", "-o", out / f"drill/{i}"],
                out / f"drill/{i}/cases.jsonl", len(range(i, args.cases, args.shares)), fine=(0, 1))
            for i in shares
        ]  # fmt: skip
    if "cases" in args.parts:
        names = args.names or sorted(p.parent.name for p in (SOURCE / "cases").glob("*/case.toml"))
        jobs += [Job(f"cases {name}", [sys.executable, SOURCE / "cases/run.py", name, "--program", twinrun], fine=(0, 77)) for name in names]
    if "calibration" in args.parts:
        tests = pathlib.Path(twinrun).parent / "tests/harness_tests"
        jobs.append(Job("calibration, effect", [tests, "--gtest_filter=EffectCalibration*"],
                        environment={"TWINRUN_CALIBRATION_PAIRS": str(args.pairs)}))  # fmt: skip
        jobs.append(Job("calibration, mixed precision",  # 1: one was accused, which the table says
                        [sys.executable, SOURCE / "tests/calibration/mixed_precision.py", "healthy", "--json", out / "mixed.jsonl"],
                        fine=(0, 1)))  # fmt: skip
    if "speed" in args.parts:
        words = [SOURCE / "dev", "bench", *(["--write"] if args.write else [])]
        jobs.append(Job("speed", words, alone=True, fine=(0, 1)))  # 1: a target is missed without a reason
    return jobs


class Campaign:
    def __init__(self, out, jobs, wide):
        self.out, self.jobs, self.wide, self.stopped = out, jobs, wide, False
        self.began = time.monotonic()
        (out / "done").mkdir(parents=True, exist_ok=True)
        (out / "logs").mkdir(exist_ok=True)
        for job in jobs:
            # Another command is another job, even if its name is the same.
            place = self.done(job)
            if place.exists() and json.loads(place.read_text())["words"] == job.words:
                job.state, job.seconds = "done", json.loads(place.read_text())["seconds"]

    @staticmethod
    def name(job):
        return job.name.replace("/", "-of-").replace(" ", "-").replace(",", "")

    def done(self, job):
        return self.out / "done" / f"{self.name(job)}.json"

    def log(self, job):
        return self.out / "logs" / f"{self.name(job)}.txt"

    def start(self, job):
        job.tries += 1
        job.state, job.begun = "runs", time.monotonic()
        with open(self.log(job), "wb") as log:
            job.process = subprocess.Popen(job.words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=SOURCE, preexec_fn=die_with_us,
                                           env={**os.environ, **job.environment})  # fmt: skip

    def end(self, job):
        code = job.process.returncode
        job.seconds = time.monotonic() - job.begun
        if code in job.fine:
            job.state = "done"
            replace(self.done(job), json.dumps({"words": job.words, "seconds": round(job.seconds, 1), "code": code}) + "\n")
        else:
            job.state = "waits" if job.tries < TRIES and not self.stopped else "failed"
            print(f"{job.name} ended with {code}; {self.log(job)}", file=sys.stderr, flush=True)

    def run(self):
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        signal.signal(signal.SIGINT, lambda *_: self.stop())
        shown = 0.0
        while True:
            for job in self.jobs:
                if job.state == "runs" and job.process.poll() is not None:
                    self.end(job)
            running = [j for j in self.jobs if j.state == "runs"]
            waiting = [] if self.stopped else [j for j in self.jobs if j.state == "waits"]
            ready = [j for j in waiting if not j.alone]
            if not ready and not running:
                ready = waiting[:1]
            for job in ready[: max(0, self.wide - len(running))] if not any(j.alone for j in running) else []:
                self.start(job)
                running.append(job)
            if time.monotonic() - shown > RENEWED or not running:
                shown = time.monotonic()
                self.show()
            if not running:
                return
            time.sleep(0.1)

    def stop(self):
        self.stopped = True
        for job in self.jobs:
            if job.state == "runs":
                job.process.terminate()

    def figures(self):
        """(share done, seconds left or None), by cases where there are records, else by jobs."""
        share = 0.0
        for job in self.jobs:
            have, planned = job.progress() or (0, 0)
            share += 1 if job.state in ("done", "failed") else have / planned if planned else 0
        share /= max(1, len(self.jobs))
        if not hasattr(self, "first"):
            self.first = share
        gained, spent = share - self.first, time.monotonic() - self.began
        return share, spent / gained * (1 - share) if gained > 0.01 else None

    def show(self):
        share, left = self.figures()
        told = "" if left is None or share == 1 else f", about {datetime.timedelta(seconds=round(left))} left"
        rows = []
        for job in self.jobs:
            have = job.progress()
            cases = f"{have[0]} of {have[1]}" if have and have[1] else ""
            seconds = time.monotonic() - job.begun if job.state == "runs" else job.seconds
            cells = (job.name, job.state + (f", try {job.tries}" if job.tries > 1 else ""), cases, f"{seconds:.0f} s" if seconds else "")
            rows.append(f'<tr class="{job.state}">' + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
        replace(self.out / "progress.html", PAGE.format(
            renew=RENEWED, title=f"{share:.0%}{told}", rows="\n".join(rows),
            when=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")))  # fmt: skip
        states = [j.state for j in self.jobs]
        print(f"campaign: {share:.0%}{told}; {states.count('done')} of {len(states)} jobs done"
              + (f", {states.count('failed')} failed" if "failed" in states else ""), file=sys.stderr, flush=True)  # fmt: skip


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{renew}"><title>campaign: {title}</title>
<style>body {{ font: 15px sans-serif; margin: 2em }} td {{ padding: 2px 12px }} .done {{ color: #2a7a2a }} .failed {{ color: #b00020 }}
.runs {{ font-weight: bold }}</style></head>
<body><h1>{title}</h1><p>{when}; renewed every {renew} seconds while the campaign runs.</p>
<table><tr><th>job</th><th>state</th><th>cases</th><th>time</th></tr>
{rows}
</table></body></html>
"""


def replace(path, text):
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def section(page, name, text):
    """Writes a section of a page between its two marks; at the end of the page if it has none yet."""
    path = SOURCE / "docs/results" / page
    begin, end = f"<!-- campaign {name}: begin -->", f"<!-- campaign {name}: end -->"
    old, new = path.read_text(encoding="utf-8"), f"{begin}\n{text.strip()}\n{end}"
    if begin in old:
        old = old[: old.index(begin)] + new + old[old.index(end) + len(end) :]
    else:
        old = old.rstrip() + "\n\n" + new + "\n"
    replace(path, old)
    print(f"wrote {path}", file=sys.stderr)


def drill_section(folder, shares):
    run = json.loads((folder / "run.json").read_text())
    text = (folder / "drill.md").read_text().replace("\n### ", "\n#### ")
    return (f"## The last campaign\n`./dev campaign --write`, {shares} shares, on {run['machine']}, {datetime.date.today()}; "
            f"{run['core_seconds_per_case']:.1f} core-seconds per case. Command: `{run['command']}`.\n\n{text}")  # fmt: skip


def finish(args, out, campaign, twinrun):
    """Makes the tables of what is complete, and writes pages. Returns whether all is well."""
    well = all(j.state == "done" for j in campaign.jobs)
    done = {part: all(j.state == "done" for j in campaign.jobs if j.name.startswith(part)) for part in args.parts}
    if done.get("drill"):
        whole = out / "drill/whole"
        whole.mkdir(exist_ok=True)
        with open(whole / "cases.jsonl", "w", encoding="utf-8") as file:
            file.writelines((out / f"drill/{i}/cases.jsonl").read_text(encoding="utf-8") for i in range(args.shares))
        code = subprocess.run([str(w) for w in (*drill(args, twinrun), "-o", whole)]).returncode
        well = well and code == 0
        if code in (0, 1) and args.write:
            section("drill.md", "drill", drill_section(whole, args.shares))
    if done.get("cases"):
        words = [sys.executable, SOURCE / "cases/run.py", *args.names, "--program", twinrun, "--known"]
        well = subprocess.run([*words, *(["--write"] if args.write else [])]).returncode == 0 and well
    if done.get("calibration"):
        logs = [campaign.log(j) for j in campaign.jobs if j.name.startswith("calibration")]
        tables = ["\n".join(line for line in log.read_text().splitlines() if line.startswith("|")) for log in logs]
        text = "## The last calibration\n`./dev campaign --write`: pairs of runs without an effect and with one, then healthy engines " + \
            "of mixed precision ([numerics.md](../method/numerics.md#precisions-of-other-engines)).\n\n" + "\n\n".join(t for t in tables if t)
        print(text)
        if args.write:
            section("drill.md", "calibration", text)
    return well


def main():
    parser = argparse.ArgumentParser(prog="./dev campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="of tests, drill, cases, calibration, speed, between commas (all)")
    parser.add_argument("--shares", type=int, default=16, help="of the drill (%(default)s)")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1), help="processes at a time (%(default)s)")
    parser.add_argument("--cases", type=int, default=2400, help="of the drill (%(default)s)")
    parser.add_argument("--scenarios", nargs="*", default=[], help="of the drill (all drill_*)")
    parser.add_argument("--names", nargs="*", default=[], help="of the real cases (all)")
    parser.add_argument("--pairs", type=int, default=400, help="null pairs of the calibration (%(default)s)")
    parser.add_argument("-o", "--out", default="build/campaign", help="folder of the campaign (%(default)s)")
    parser.add_argument("--fresh", action="store_true", help="remove what an earlier campaign left in OUT")
    parser.add_argument("--write", action="store_true", help="write docs/results/")
    parser.add_argument("--program", default=os.environ.get("TWINRUN") or SOURCE / "build/release/twinrun", help="the program twinrun")
    args = parser.parse_args()
    args.parts = args.parts.split(",")
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"--parts: there is no '{part}'; known: {', '.join(PARTS)}")
    if args.shares < 1 or args.jobs < 1:
        parser.error(f"--shares {args.shares}, --jobs {args.jobs}: each must be 1 or more")
    twinrun = str(pathlib.Path(args.program).absolute())
    if not os.access(twinrun, os.X_OK):
        parser.error(f"there is no program {twinrun}; ./dev build makes it")
    out = (SOURCE / args.out).resolve()
    if args.fresh and (out / "done").is_dir():  # a folder of a campaign, and none other
        shutil.rmtree(out)
    campaign = Campaign(out, jobs_of(args, out, twinrun), args.jobs)
    print(f"campaign: {out / 'progress.html'}", file=sys.stderr)
    campaign.run()
    if campaign.stopped:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0 if finish(args, out, campaign, twinrun) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs the cases: `./dev cases [NAME..]`. Each version of a case gets an environment of its own,
made once outside of the tree; there script.py is diagnosed, and the verdict is held against what is
due. docs/results/cases.md has the form of a case.

Exit status: 0, all that ran got their due; 1, one did not; 77, nothing could be run.
"""

import argparse
import fcntl
import hashlib
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ADAPTERS = HERE.parent / "adapters"
sys.path.insert(0, str(ADAPTERS))
from twinrun import checksum, environments  # noqa: E402

ACCUSATIONS = ("ENGINE_BUG", "SHARDING", "PROGRAM")
TOOLS = ("allclose 1e-3", "allclose 1e-5", "assert_close")
PAGE = HERE.parent / "docs" / "results" / "cases.md"
KNOWN = (
    "title",
    "thread",
    "package",
    "bad",
    "good",
    "python",
    "requires",
    "open",
    "way",
    "environment",
    "wrong",
    "due",
    "args",
)


WORDS = ("title", "thread", "bad", "good", "open", "wrong")  # what a run's result does not depend on


class Case:
    """A folder of cases/: case.toml and script.py."""

    def __init__(self, folder):
        self.name, self.script = folder.name, folder / "script.py"
        with open(folder / "case.toml", "rb") as file:
            self.told = tomllib.load(file)
        unknown = set(self.told) - set(KNOWN)
        if unknown:
            raise SystemExit(
                f"{folder / 'case.toml'}: {', '.join(sorted(unknown))}: no such key; known: {', '.join(KNOWN)}"
            )
        self.package, self.due = self.told["package"], self.told["due"]
        decides = {k: v for k, v in self.told.items() if k not in WORDS}
        self.digest = hashlib.sha256(
            self.script.read_bytes() + json.dumps(decides, sort_keys=True).encode()
        ).hexdigest()[:16]
        self.versions = sorted(
            [(v, True) for v in self.told.get("bad", [])] + [(v, False) for v in self.told.get("good", [])],
            key=lambda pair: environments.version_key(pair[0]),
        )

    def environment(self, version):
        return environments.environment(
            [f"{self.package}=={version}", *self.told.get("requires", [])], self.told.get("python")
        )


def called(words, variables, folder, seconds):
    """Returns (exit status, what was printed)."""
    try:
        done = subprocess.run(
            [str(w) for w in words],
            env=variables,
            cwd=folder,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return 124, f"it took more than {seconds} seconds"
    return done.returncode, done.stdout


def busy():
    """Returns the processor seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def diagnosed(case, python, program, folder, seconds):
    """Returns report.json of the script's diagnosis, the seconds that it took, and what other tools say."""
    variables = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONHOME")}
    variables.update(
        PYTHONPATH=str(ADAPTERS),
        TWINRUN=str(program),
        JAX_PLATFORMS="cpu",
        TF_CPP_MIN_LOG_LEVEL="2",
        PYTHONDONTWRITEBYTECODE="1",
        **case.told.get("environment", {}),
    )
    args = case.told.get("args", [])
    started, before = time.monotonic(), busy()
    if case.told["way"] == "watch":
        status, said = called(
            [python, "-W", "ignore", "-m", "twinrun", "watch", "--steps", "1", "--run-on", "-o", "trace.twin", case.script, *args],
            variables,
            folder,
            seconds,
        )
        # Whatever became of the script afterwards: a trace that is not complete is refused. The exit
        # status of diagnose tells the verdict.
        _, judged = called([program, "diagnose", "trace.twin", "-o", "judged", "-q"], variables, folder, seconds)
        said += judged
    else:
        status, said = called([python, "-W", "ignore", case.script, *args], variables, folder, seconds)
    took = {"seconds": round(time.monotonic() - started, 1), "cpu_seconds": round(busy() - before, 1)}
    reports = sorted(pathlib.Path(folder).rglob("report.json"), key=lambda p: p.stat().st_mtime)
    if not reports:
        raise RuntimeError(f"no report; it ended with status {status}: " + " ".join(said.split())[-500:])
    status, said = called([python, "-W", "ignore", HERE / "other_tools.py", case.script], variables, folder, seconds)
    lines = said.splitlines() or [""]
    try:
        others = json.loads(lines[-1])
    except ValueError:
        others = {"left out": f"status {status}: {lines[-1][:200]}"}
    return checksum.loads(reports[-1].read_bytes()), took, others


def verdict_of(report):
    return report["verdict"]["class"], report["verdict"].get("headline", "")


def named(report):
    """Returns what a report names: the ops of a group, the calls outside their bounds, or those
    without a correct digit."""
    if report.get("group"):
        return list(dict.fromkeys(str(g) for g in report["group"]))
    calls = report.get("findings", []) or report.get("ill_conditioned", [])
    told = []
    for c in filter(lambda c: c.get("op"), calls):
        place = re.sub(r"\S*/(\S+\.py:\d+).*", r"\1", c.get("place", "").splitlines()[0]) if c.get("place") else ""
        told.append(f"{c['op']} at {place}" if place else c["op"])
    return list(dict.fromkeys(told)) or [f["sentence"] for f in report.get("findings", []) if f.get("sentence")]


def run_version(case, version, bad, program, seconds):
    row = {"case": case.name, "version": version, "bad": bad, "digest": case.digest}
    try:
        made = case.environment(version)
    except environments.Unavailable as e:
        return {**row, "skipped": str(e)}
    row.update(python=made["python_version"], cold=made["seconds"], bytes=made["bytes"])
    with tempfile.TemporaryDirectory(prefix="twinrun_cases_") as folder:
        try:
            report, took, row["others"] = diagnosed(case, made["python"], program, folder, seconds)
            row.update(took)
        except RuntimeError as e:
            return {**row, "verdict": "none", "named": str(e), "met": False}
    row["verdict"], headline = verdict_of(report)
    names = named(report)
    row["named"] = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    if bad:
        row["met"] = row["verdict"] == case.due["verdict"] and bool(
            re.search(case.due["names"], " ".join([headline, *names]))
        )
    else:
        row["met"] = row["verdict"] not in ACCUSATIONS
    return row


def chosen(args, version):
    return not args.versions or re.fullmatch(args.versions, version)


def other(row, tool):
    """Returns what another tool said: whether it took the two results for the same."""
    said = row.get("others", {}).get(tool)
    return "–" if said is None else "agrees" if said else "differs"


def table(rows, head):
    widths = [max(len(str(r[i])) for r in [head, *rows]) for i in range(len(head))]
    return "\n".join("  ".join(str(c).ljust(w) for c, w in zip(r, widths)).rstrip() for r in [head, *rows])


def cells(row):
    kind = "bad" if row["bad"] else "good"
    if "skipped" in row:
        return [row["case"], row["version"], kind, "skipped", "", "", "", "", "", "", ""]
    seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
    return [
        row["case"],
        row["version"],
        kind,
        row["verdict"],
        "met" if row["met"] else "NOT MET",
        f"{row['cold']:.0f}",
        seconds,
        *(other(row, t) for t in TOOLS),
        row["named"][:80],
    ]


HEAD = ["case", "version", "", "verdict", "due", "cold s", "warm s", *TOOLS, "named"]


def results_file():
    return pathlib.Path(environments.cache()).parent / "cases.json"


def remembered():
    try:
        return checksum.loads(results_file().read_bytes())
    except (OSError, ValueError):
        return {}


def remember(rows):
    """Adds rows to those of earlier runs, and returns all of them; other runs may do the same now."""
    results_file().parent.mkdir(parents=True, exist_ok=True)
    with open(results_file().with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = {**remembered(), **{f"{r['case']} {r['version']}": r for r in rows}}
        results_file().write_text(checksum.dumps(known))
    return known


def main():
    parser = argparse.ArgumentParser(
        prog="./dev cases", description="Diagnoses released versions that compute wrongly, and good ones."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases (all)")
    parser.add_argument("--list", action="store_true", help="list the cases only")
    parser.add_argument(
        "--write", action="store_true", help="write docs/results/cases.md from this run and earlier ones"
    )
    parser.add_argument("--versions", help="only versions that match this regular expression")
    parser.add_argument("--free", action="store_true", help="remove each environment after its use")
    parser.add_argument("--seconds", type=int, default=1200, help="how long one diagnosis may take (1200)")
    parser.add_argument(
        "--program",
        default=os.environ.get("TWINRUN") or HERE.parent / "build/release/twinrun",
        help="the program twinrun",
    )
    parser.add_argument("--known", action="store_true", help="run nothing: what earlier runs found, of the scripts as they are now")
    args = parser.parse_args()
    folders = {p.parent.name: p.parent for p in sorted(HERE.glob("*/case.toml"))}
    for name in args.names:
        if name not in folders:
            parser.error(f"there is no case '{name}'; known: {', '.join(folders)}")
    cases = [Case(folders[n]) for n in args.names or folders]
    if args.list:
        print(
            table(
                [
                    [c.name, c.package, " ".join(v for v, _ in c.versions), c.told["thread"], c.told["title"]]
                    for c in cases
                ],
                ["case", "package", "versions", "thread", "title"],
            )
        )
        return 0
    program = pathlib.Path(args.program).absolute()
    if not os.access(program, os.X_OK):
        parser.error(f"there is no program {program}; ./dev build makes it")
    earlier = remembered() if args.known else {}
    rows = [row for row in earlier.values() if any((row["case"], row.get("digest")) == (c.name, c.digest) for c in cases)]
    for case in [] if args.known else cases:
        for version, bad in case.versions:
            if not chosen(args, version):
                continue
            row = run_version(case, version, bad, program, args.seconds)
            print(
                f"{case.name} {version}: "
                + (f"skipped: {row['skipped']}" if "skipped" in row else f"{row['verdict']}: {row['named']}"),
                file=sys.stderr,
                flush=True,
            )
            rows.append(row)
            if args.free:
                environments.remove([f"{case.package}=={version}"])
    ran = [r for r in rows if "skipped" not in r]
    known = remember(ran)
    print(table([cells(r) for r in rows], HEAD))
    for row in rows:
        if "skipped" in row:
            print(f"skipped {row['case']} {row['version']}: {row['skipped']}")
    if args.write:
        import page

        every = [Case(f) for f in folders.values()]
        digests = {c.name: c.digest for c in every}  # what an earlier script of a case said is of no use
        known = {k: row for k, row in known.items() if row.get("digest") == digests.get(row["case"])}
        PAGE.write_text(page.replaced(PAGE.read_text(), page.text(every, known, other, TOOLS)))
        print(f"wrote {PAGE}")
    if not ran:
        print("SKIPPED: no case could be run")
        return 77
    return 0 if all(r["met"] for r in ran) else 1


if __name__ == "__main__":
    sys.exit(main())

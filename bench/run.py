"""./dev bench: measures ours and all peers, side by side in one run, and prints a table.

    ./dev bench                          everything: an hour and a half on two idle cores
    ./dev bench --filter '^conv forward' rows whose name matches a regular expression
    ./dev bench --write                  also docs/results/speed.json, where these rows replace earlier ones, and its summary, speed.md
    ./dev bench --profile                only records with perf again where the time of rows goes that miss their targets, as --write does
    ./dev bench --page                   only writes speed.md again, such as after an edit of docs/results/speed-notes.toml
    ./dev bench --json                   {machine, peers, rows, skipped} on stdout
    ./dev bench --samples 15             samples of each side; at least 7

Names begin with: ceiling, dot f32, dot bf16, conv, elementary, digest, diff, checkpoint, field proof, step, memory, traffic, growth,
start-up, diagnose, watched step. What a machine lacks is a line "skipped: why". Exit status 1: --write or --page found a missed row
without a reason in docs/results/speed-notes.toml.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

import commands
import figures
import page
import peers
import profiles

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/bench"
PAGE, DATA, NOTES = (ROOT / "docs/results" / n for n in ("speed.md", "speed.json", "speed-notes.toml"))


def measured_lines(args, entries):
    """Yields the lines of twinrun_bench and those of whole commands."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(entries, file)
        file.flush()
        words = [BUILD / "twinrun_bench", "--peers", file.name, "--samples", str(args.samples)]
        words += ["--filter", args.filter] if args.filter else []
        # Otherwise, OpenBLAS's workers spin for seconds after a call and occupy the core that the next sample needs.
        with open(BUILD / "peers.log", "w", encoding="utf-8") as log, subprocess.Popen(
            words, env={**os.environ, "OPENBLAS_THREAD_TIMEOUT": "4"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        ) as child:
            for line in child.stdout:
                yield json.loads(line)
        if child.returncode:
            lines = (BUILD / "peers.log").read_text(encoding="utf-8").splitlines()
            said = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(("@", "***"))]  # but no stack trace
            yield {"skipped": "further rows", "why": f"twinrun_bench ended with {child.returncode}: {said[-1] if said else ''}", "peer": ""}
    yield from commands.lines(lambda name: re.search(args.filter or "", name), args.samples, str(BUILD / "twinrun"))


def until_interrupted(lines):
    """What was measured before an interrupt counts, for instance for --write."""
    try:
        yield from lines
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)


class Table:
    """Prints lines as they come, each with the heading of its section before the first."""

    HEAD = f"{'what':<46} {'T':>2} {'ours':>9} {'unit':<8} {'ratio':>6} {'quartiles':<14} {'target':>6} met  ratio to each peer"

    def __init__(self, silent):
        self.silent, self.heading, self.any = silent, "", False

    def say(self, text):
        if self.silent:
            return
        if not self.any:
            print(self.HEAD)
        if self.heading:
            print(self.heading)
        self.any, self.heading = True, ""
        print(text, flush=True)

    def row(self, r):
        middle, low, high = r["ratio"]
        target = "-" if r["target"] is None else f"{r['target']:.2f}"
        met = {None: "", True: "yes", False: "NO"}[r["met"]]
        each = ", ".join(f"{n} {v[0]:.3f}" for n, v in r["ratios"].items())
        spread = f"{low:.3f}-{high:.3f}"
        self.say(f"  {r['name']:<44} {r['threads']:>2} {r['ours'][0]:>9.4g} {r['unit']:<8} {middle:>6.3f} {spread:<14} {target:>6} {met:<4} {each}")

    def skipped(self, line):
        who = f" {line['peer']}" if line["peer"] else ""
        self.say(f"  {line['skipped']:<44}{who} skipped: {line['why']}")


def name_of(machine):
    return f"{machine['cpu']}, {machine['host CPU cores']} cores, {machine['isa']}"


def commit():
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout.strip()
    own = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return (git("rev-parse", "--short=8", "HEAD") or "unknown") + ("+" if own else "")


def facts_of(machine, rows):
    """What the page says of the machine, from this run where it measured it."""
    facts = {k: machine[k] for k in ("os", "compiler", "load before") if k in machine}
    for r in rows:
        if r["name"].startswith("ceiling") and "machine" in r["peers"]:
            name, figure = r["name"].split(",")[0], r["peers"]["machine"][0]
            facts[f"{name}, {r['threads']} thread{'s' if r['threads'] > 1 else ''}"] = f"{figure:.0f} {r['unit']}"
    return facts


def write(measured):
    DATA.write_text(page.to_json(measured), encoding="utf-8")
    return write_page(measured)


def add_profiles(rows):
    """Profiles the rows that miss their targets; returns how many of them have none."""
    without, known = 0, {}
    for row in (r for r in rows if r["met"] is False):
        row.pop("profile", None)
        command = commands.words_of(row["name"], "twinrun", "")  # two rows may be of one command
        found = known[str(command)] if str(command) in known else profiles.of(row, BUILD)
        if command:
            known[str(command)] = found
        if found:
            row["profile"] = {**found, "commit": commit()}
        without += found is None
        said = profiles.text(row["profile"]) if found else "skipped: no profile"
        print(f"  {row['name']:<44} {row['threads']:>2} {said}", file=sys.stderr, flush=True)
    return without


def profile_again(measured, wanted):
    said = subprocess.run([BUILD / "twinrun_bench", "--filter", "^$"], stdout=subprocess.PIPE, text=True, check=True).stdout
    name = name_of(json.loads(said.splitlines()[0])["machine"])
    if name not in measured:
        print(f"bench: no row of {name} is measured yet: ./dev bench --write", file=sys.stderr)
        return 1
    without = add_profiles([r for r in measured[name]["rows"].values() if re.search(wanted or "", r["name"])])
    return write(measured) or (1 if without else 0)


def write_page(measured):
    notes = tomllib.loads(NOTES.read_text(encoding="utf-8")).get("note", [])
    text, unexplained = page.render(measured, notes)
    PAGE.write_text(page.replaced(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    for name in unexplained:
        print(f"bench: {name}: the target is missed, and no [[note]] of {NOTES.relative_to(ROOT)} says why", file=sys.stderr)
    return 1 if unexplained else 0


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", help="rows whose name matches this regular expression")
    parser.add_argument("--samples", type=int, default=7, help="of each side, at least 7")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--write", action="store_true", help="merge the rows into docs/results/speed.json, and write the page")
    parser.add_argument("--profile", action="store_true", help="profile the rows that miss their targets, and write the page")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page from the rows that are there")
    args = parser.parse_args()
    args.samples = max(7, args.samples)
    try:
        re.compile(args.filter or "")
    except re.error as e:
        parser.error(f"--filter {args.filter}: {e}")
    measured = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    if args.page:
        return write_page(measured)
    if args.profile:
        return profile_again(measured, args.filter)

    load = f"{os.getloadavg()[0]:.2f}"
    entries, missing = peers.found()
    known = {e["name"]: {k: e[k] for k in ("version", "says", "setting")} for e in entries}
    known.update({n: {"why": w} for n, w in missing.items()})
    linked = peers.linked()
    if linked:
        known[linked.pop("name")] = linked
    out, rows, skipped, machine = Table(args.json), [], [], {}
    for name, why in missing.items():
        out.say(f"  peer {name} skipped: {why}")
    for line in until_interrupted(measured_lines(args, entries)):
        if "machine" in line:
            machine = {**line["machine"], "load before": load}
        elif "section" in line:
            out.heading = line["section"]
        elif "skipped" in line:
            skipped.append(line)
            out.skipped(line)
        else:
            rows.append(figures.growth(line) if "growth" in line else figures.summary(line))
            out.row(rows[-1])
    name = name_of(machine)
    if args.json:
        print(json.dumps({"machine": machine, "peers": known, "rows": rows, "skipped": skipped}, indent=1))
    else:
        below = sum(r["met"] is False for r in rows)
        print(f"\n{len(rows)} rows, {below} below target. {name}, load before {load}")
    if not args.write:
        return 0
    add_profiles(rows)
    facts = {**measured.get(name, {}).get("facts", {}), **facts_of(machine, rows)}
    return write(page.merged(measured, name, facts, known, rows, time.strftime("%Y-%m-%d", time.gmtime()), commit()))


if __name__ == "__main__":
    sys.exit(main())

"""Runs the fuzz targets under libFuzzer, two at a time, and prints a table (./dev fuzz).

With --parts N each reader's executions are divided among N processes with other seeds.

Each reader has its own folders below build/fuzz: seeds (made anew), corpus (kept from run to run) and findings.
With --write the table goes into docs/developers/testing.md.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/fuzz"
DRIVER = BUILD / "tests/fuzz_readers"
PAGE = ROOT / "docs/developers/testing.md"
# What the page promises: executions for each kind of reader.
CAMPAIGN = {"text": 1_000_000, "json": 1_000_000, "binary": 1_000_000, "trace": 1_000_000, "hdf5": 100_000}
# The sanitizers slow a reader down ten to twenty times: 60 s are some seconds without them.
TIMEOUT_S, MEMORY_MB = 60, 1024
reader_folders = {}
# An isolated reader of libhdf5 is ended after 4 s of CPU time, which take longer where others use the machine.
ISOLATED_TIMEOUT_S = 60


def readers():
    """(name, kind, longest input, what it reads) of every reader."""
    listed = subprocess.run([DRIVER, "--list"], capture_output=True, text=True, check=True)
    return [line.split("\t") for line in listed.stdout.splitlines()]


def figure(text, pattern, default="0"):
    found = re.findall(pattern, text)
    return found[-1] if found else default


def prepare(reader):
    """Makes a reader's folders and seeds."""
    name = reader[0]
    folders = {part: BUILD / part / name for part in ("seeds", "corpus", "findings", "logs")}
    shutil.rmtree(folders["seeds"], ignore_errors=True)
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, TWINRUN_FUZZ_READER=name)
    subprocess.run([DRIVER, "--seeds", folders["seeds"]], env=environment, check=True)
    return folders, environment


def run(reader, part, args):
    """Runs one of the parts of a reader's executions; returns its row of the table."""
    name, kind, longest, reads = reader
    folders, environment = reader_folders[name]
    command = [DRIVER, f"-max_len={longest}", f"-timeout={ISOLATED_TIMEOUT_S if kind == 'hdf5' else TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MB}", f"-seed={part + 1}",
               "-print_final_stats=1", "-print_funcs=0", f"-artifact_prefix={folders['findings']}/{part}-", f"-dict={BUILD}/words.dict"]
    if args.seconds:
        command.append(f"-max_total_time={args.seconds}")
    if args.runs or args.campaign:
        command.append(f"-runs={-(-(args.runs or CAMPAIGN[kind]) // args.parts)}")
    before = set(folders["findings"].glob(f"{part}-*"))
    done = subprocess.run([*command, folders["corpus"], folders["seeds"]], env=environment, cwd=ROOT,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    log = done.stderr
    (folders["logs"] / f"{part}.txt").write_text(log[:100_000] + "\n...\n" + log[-100_000:])
    new = sorted(set(folders["findings"].glob(f"{part}-*")) - before)
    if done.returncode == 0:
        # The signal handler that a child inherits leaves a file when an isolated reader of libhdf5 crashes there, as it may.
        for file in new:
            file.unlink()
        new = []
    return row_of(reader, log, [str(f.relative_to(ROOT)) for f in new] or ([] if done.returncode == 0 else ["no file"]))


def row_of(reader, log, findings):
    """The row of a process from what it printed."""
    first = figure(log, r"INITED cov: (\d+)")
    return {"name": reader[0], "reads": reader[3], "executions": int(figure(log, r"stat::number_of_executed_units: +(\d+)")),
            "rate": int(figure(log, r"exec/s: (\d+)")), "coverage": int(figure(log, r" cov: (\d+)")),
            "new": int(figure(log, r" cov: (\d+)")) - int(first),
            "slowest": int(figure(log, r"stat::slowest_unit_time_sec: +(\d+)")),
            "memory": int(figure(log, r"stat::peak_rss_mb: +(\d+)")),
            "findings": findings,
            "last": next((line for line in log.splitlines() if "VIOLATION" in line or "ERROR: " in line
                          or "runtime error" in line), "")}


def together(rows):
    """The row of a reader from those of its parts, which ran side by side or one after another."""
    whole = dict(rows[0])
    for row in rows[1:]:
        whole.update({key: whole[key] + row[key] for key in ("executions", "rate", "findings")},
                     **{key: max(whole[key], row[key]) for key in ("coverage", "new", "slowest", "memory")},
                     last=whole["last"] or row["last"])
    whole["findings"] = sorted(set(whole["findings"]))
    return whole


def collected(folders, chosen):
    """The rows of the logs in folders of several campaigns, such as of several machines."""
    rows = []
    for reader in chosen:
        logs = [file.read_text(errors="replace") for folder in folders
                for file in sorted(pathlib.Path(folder).glob(f"{reader[0]}/*.txt"))]
        parts = [row_of(reader, log, ["in a log"] * bool(re.search(r"ERROR: |runtime error|VIOLATION", log))) for log in logs
                 if "stat::number_of" in log]
        rows += [together(parts)] if parts else []
    return rows


COLUMNS = ("reader", "reads", "executions", "per second", "coverage", "of it new", "slowest input", "peak memory", "findings")


def cells(row):
    return (row["name"], row["reads"], f"{row['executions']:,}", f"{row['rate']:,.0f}", f"{row['coverage']:,}",
            f"{row['new']:,}", f"{row['slowest']} s" if row["slowest"] else "below 1 s", f"{row['memory']:,} MB",
            str(len(row["findings"])))


def printed(rows):
    table = [COLUMNS, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    for line in table:
        print("  ".join(text.ljust(width) if i < 2 else text.rjust(width)
                        for i, (text, width) in enumerate(zip(line, widths))).rstrip())


def summary(rows):
    executions, findings = (sum(row["executions"] for row in rows), sum(len(row["findings"]) for row in rows))
    return f"{executions:,} executions of {len(rows)} readers, {findings} findings"


def write(rows, command):
    """Replaces the section of the page between its two marks."""
    begin, end = "<!-- fuzzing: begin -->", "<!-- fuzzing: end -->"
    lines = [begin, f"Written by `{command}`.", "", "| " + " | ".join(COLUMNS) + " |",
             "|---|---|" + "--:|" * (len(COLUMNS) - 2)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    lines += ["", summary(rows) + ".", end]
    page = PAGE.read_text()
    head, rest = page.split(begin)
    PAGE.write_text(head + "\n".join(lines) + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help="default: all of them")
    parser.add_argument("--runs", type=int, help="executions of each")
    parser.add_argument("--seconds", type=int, help="time for each; default: 60, without --runs and --campaign")
    parser.add_argument("--campaign", action="store_true",
                        help="a million executions of each, a hundred thousand where libhdf5 reads")
    parser.add_argument("--write", action="store_true", help="write the table into docs/developers/testing.md")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time; default: 2")
    parser.add_argument("--parts", type=int, default=1, help="processes for each reader; default: 1")
    parser.add_argument("--collect", nargs="+", metavar="FOLDER", help="run nothing; sum up the logs of earlier campaigns")
    args = parser.parse_args()
    if not (args.runs or args.campaign):
        args.seconds = args.seconds or 60
    subprocess.run([DRIVER, "--words", BUILD / "words.dict"], check=True)
    known = readers()
    unknown = set(args.readers) - {reader[0] for reader in known}
    if unknown:
        sys.exit(f"./dev fuzz: no reader {', '.join(sorted(unknown))} (known: {', '.join(r[0] for r in known)})")
    chosen = [reader for reader in known if not args.readers or reader[0] in args.readers]
    if args.collect:
        rows = collected(args.collect, chosen)
        printed(rows)
        print(summary(rows))
        if args.write:
            write(rows, "./dev fuzz --campaign`, in parts and on two machines, added up by `./dev fuzz --collect")
        return 0
    reader_folders.update((reader[0], prepare(reader)) for reader in chosen)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        parts = [[pool.submit(run, reader, part, args) for reader in chosen] for part in range(args.parts)]
        rows = [together([future.result() for future in of_reader]) for of_reader in zip(*parts)]
    printed(rows)
    for row in rows:
        for finding in row["findings"]:
            print(f"{row['name']}: {finding}: {row['last']}")
    print(summary(rows))
    if args.write:
        write(rows, "./dev fuzz " + " ".join(sys.argv[1:]))
    return 1 if any(row["findings"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

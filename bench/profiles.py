"""Where the time of our side of a row goes: shares by function, from perf, and the memory traffic that is counted.

    profiles.of({"name": "dot f32 512x512x512", "threads": 1}, "build/bench")
    # {"functions": {"f32_tile": 0.91, "copy_term": 0.06}, "bandwidth": 3.1}

Only our calls are recorded: twinrun_bench lets perf begin when operands and peers are ready. Whole commands (commands.py) are recorded
from their start. Of a row of growth it is the step of the greatest value. A row of memory has {"held": {part: MiB}} instead, what our
engine holds at its peak. `bandwidth` is in GB/s: bytes that a call reads and writes, counted (operands and results once; of a step those of all
its units), over its time; None for whole commands. Virtual machines seldom have counters of memory, so none is used.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import commands

SHOWN, LEAST = 4, 0.03    # functions of a row, and their least share
EVENT = ["-e", "cpu-clock", "-F", "1999"]    # a timer: there on every machine
KERNEL = "kernel"


def short(symbol):
    """A function's own name: without namespaces, template arguments, parameters and what a compiler appends to copies. A lambda is called
    by the function that it stands in."""
    handled = re.match(r"std::_Function_handler<[^,]*\([^)]*\), (.*)>::_M_\w+", symbol)
    if handled:
        return short(handled[1])
    symbol = re.sub(r"\s*\[clone [^]]*\]|\.(part|constprop|isra|cold|lto_priv)\.\d+", "", symbol)
    symbol = symbol.replace("(anonymous namespace)", "unnamed").replace("operator()", "call")
    while True:
        inner = re.sub(r"<[^<>]*>|\([^()]*\)", "", symbol)
        if inner == symbol:
            break
        symbol = inner
    words = [w for w in re.split(r"\s+", symbol.split("[")[0]) if w != "const" and ("::" in w or re.fullmatch(r"[\w.@~]+", w))]
    parts = [p for p in (words[-1] if words else symbol).split("::") if p]
    named = [p for p in parts if p not in ("call", "unnamed", "_M_invoke") and not p.startswith("{lambda")]
    return (named or parts or [symbol])[-1]


def shares(report):
    """{function: share} of the text of `perf report --sort dso,symbol`, dearest first; everything in the kernel is one."""
    found = {}
    for line in report.splitlines():
        match = re.match(r"\s*([\d.]+)%\s+(\S+)\s+\[(.)\]\s+(.*\S)", line)
        if match:
            percent, _, where, symbol = match.groups()
            name = KERNEL if where == "k" else short(symbol)
            found[name] = found.get(name, 0) + float(percent) / 100
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def top(found):
    return {name: round(share, 3) for name, share in list(found.items())[:SHOWN] if share >= LEAST}


def recorded(words, file, control=()):
    done = subprocess.run(["perf", "record", "-q", *EVENT, "-o", file, *control, "--", *words], env={**os.environ, "TWINRUN_CACHE": ""},
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    report = subprocess.run(["perf", "report", "-q", "-i", file, "--stdio", "--sort", "dso,symbol", "-g", "none"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout, shares(report.stdout)


def text(profile):
    """"f32_tile 91%, copy_term 6%; 3.1 GB/s", or "activations and gradients 71.2 MiB, ..."."""
    if "held" in profile:
        return ", ".join(f"{part} {mib:.3g} MiB" for part, mib in sorted(profile["held"].items(), key=lambda item: -item[1]) if mib >= 0.1)
    functions = ", ".join(f"{name} {share:.0%}" for name, share in profile["functions"].items())
    moved = profile.get("bandwidth")
    return functions + ("" if moved is None else f"; {moved:.3g} GB/s")


def of(row, build):
    """The profile of a row, or None if it has none: no perf, no call that is timed, or a row that counts instead of timing."""
    if not shutil.which("perf"):
        return None
    with tempfile.TemporaryDirectory(prefix="twinrun-bench-") as folder:
        file, fifo = f"{folder}/perf.data", f"{folder}/control"
        words = commands.words_of(row["name"], str(pathlib.Path(build) / "twinrun"), folder)
        if words:
            _, found = recorded(words, file)
            return {"functions": top(found), "bandwidth": None} if found else None
        os.mkfifo(fifo)
        words = [f"{build}/twinrun_bench", "--filter", f"^{re.escape(row['name'])}$", "--threads", str(row["threads"]), "--profile", fifo]
        said, found = recorded(words, file, ["--delay=-1", f"--control=fifo:{fifo}"])
    lines = [json.loads(line) for line in said.splitlines()]
    mine = next((line for line in lines if "profiled" in line), None)
    if mine and "held" in mine:
        return {"held": mine["held"]}
    if mine is None or not found:
        return None
    return {"functions": top(found), "bandwidth": mine["bytes"] / mine["seconds"] / 1e9 if mine["bytes"] else None}

"""The generated part of docs/results/speed.md: a summary of the rows that were measured, and the reasons of the largest misses.

    text, unexplained = page.render(measured, notes)

`measured` is docs/results/speed.json: for each machine its facts, its peers and its rows, each with the day and the commit. `notes` is
docs/results/speed-notes.toml: [[note]] with `rows`, a regular expression over names, `machine`, one over machines (all), `why` and `next`.
"""

import json
import re
import statistics

import figures

BEGIN, END = "<!-- bench: begin -->\n", "<!-- bench: end -->\n"
LARGEST = 10    # misses of a machine that the page explains
# Beginning of the names of rows, and what they measure against what. Other rows have no target, and are in speed.json alone.
GROUPS = (
    ("dot f32 ", "products in binary32"),
    ("dot bf16 ", "products in bfloat16"),
    ("dot bf16/own ", "the same, our own in binary32"),
    ("conv ", "convolutions in binary32"),
    ("step cpu ", "steps on `cpu`"),
    ("step tpu ", "steps on `tpu`, mixed precision"),
    ("step tpu/cpu ", "the same, our own on `cpu`"),
    ("step tpu8/tpu1 ", "8 emulated cores, one"),
    ("step digests ", "digests of states, none"),
    ("step op digests ", "digests of all ops, none"),
    ("field proof ", "proof of a sharding, one step"),
    ("memory ", "peak memory of training"),
    ("diagnose ", "a diagnosis, six single runs"),
    ("watched step ", "a watched step, two plain ones"),
    ("start-up ", "start-up, 50 ms"),
    ("diff ", "`twinrun diff`, h5diff"),
    ("checkpoint ", "a checkpoint, the disk"),
    ("growth ", "slope of time over work, 1"),
)


def key(row):
    return f"{row['name']}|{row['threads']}"


def merged(measured, machine, facts, peers, rows, day, commit):
    """Returns `measured` with these rows instead of the machine's earlier ones of the same names and threads; the others are kept."""
    here = measured.get(machine, {"facts": {}, "peers": {}, "rows": {}})
    new = {key(r): {**r, "day": day, "commit": commit} for r in rows}
    return {**measured, machine: {"facts": facts, "peers": {**here["peers"], **peers}, "rows": {**here["rows"], **new}}}


def to_json(measured):
    """One row per line, so that a diff shows what changed; four digits, which is more than a figure keeps from run to run."""
    def rounded(value):
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, dict):
            return {k: rounded(v) for k, v in value.items()}
        return [rounded(v) for v in value] if isinstance(value, list) else value
    machines = []
    for name, machine in measured.items():
        rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(rounded(r))}" for k, r in machine["rows"].items())
        head = "".join(f' "{part}": {json.dumps(machine[part])},\n' for part in ("facts", "peers"))
        machines.append(f"{json.dumps(name)}: {{\n{head} \"rows\": {{\n{rows}\n }}\n}}")
    return "{\n" + ",\n".join(machines) + "\n}\n"


def line(cells):
    return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |\n"


def table(head, rows):
    return line(head) + line(["---"] * len(head)) + "".join(line(r) for r in rows)


def times(ratio):
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def groups_table(rows):
    """A row for each group: how many rows it has, their ratios to the best peer, and the targets."""
    out = []
    for beginning, text in GROUPS:
        of_group = sorted((r for r in rows if r["name"].startswith(beginning)), key=lambda r: r["ratio"][0])
        if of_group:
            worst, best = (f"{times(r['ratio'][0])} {r['name'].removeprefix(beginning)} ×{r['threads']}" for r in (of_group[0], of_group[-1]))
            aimed = [r for r in of_group if r["met"] is not None]
            targets = ", ".join(f"{t:.3g}" for t in sorted({r["target"] for r in aimed}))
            met = f"{sum(r['met'] for r in aimed)}/{len(aimed)}" if aimed else ""
            out.append([text, len(of_group), times(statistics.median(r["ratio"][0] for r in of_group)), best, worst, targets, met])
    return table(["ours, peer", "rows", "median", "best", "worst", "target", "met"], out)


def peers_text(machine):
    rows, out = list(machine["rows"].values()), []
    for name, peer in machine["peers"].items():
        reached = figures.share(rows, name)
        out.append(f"{name} missing: {peer['why']}" if "why" in peer else f"{name} {peer['version']}" + ("" if reached is None else f" ({reached:.0%})"))
    return "Peers, and what they reach of the FMA ceiling: " + "; ".join(out) + ".\n"


def note_of(row, machine, notes):
    return next((n for n in notes if re.search(n["rows"], row["name"]) and re.search(n.get("machine", ""), machine)), None)


def render(measured, notes):
    """Returns the generated text and the missed rows that no note explains."""
    text, unexplained, by_reason = "", [], {}
    for name, machine in measured.items():
        rows = list(machine["rows"].values())
        aimed = [r for r in rows if r["met"] is not None]
        missed = sorted((r for r in aimed if not r["met"]), key=lambda r: r["ratio"][0] / r["target"])
        days, commits = (", ".join(sorted({r[k] for r in rows})) for k in ("day", "commit"))
        ceilings = ", ".join(f"{found[1]} {v}" for k, v in machine["facts"].items() if (found := re.fullmatch("ceiling (.*), 1 thread", k)))
        text += f"## {name}\n\nMeasured {days} at {commits}. Ceilings of a thread: {ceilings or 'not measured'}.\n\n{peers_text(machine)}\n"
        text += f"{len(rows)} rows, {len(missed)} of {len(aimed)} targets missed.\n\n{groups_table(rows)}\n"
        for i, row in enumerate(missed):
            note = note_of(row, name, notes)
            if note is None:
                unexplained.append(f"{name}: {row['name']}, {row['threads']} threads")
            if i < LARGEST:
                reason = " ".join(note["why"].split()) if note else "No reason is written yet (docs/results/speed-notes.toml)."
                said = f"{row['name']} ×{row['threads']} {row['ratio'][0] / row['target']:.0%}"
                by_reason.setdefault(reason, {}).setdefault(name, []).append(said)
    if by_reason:
        text += f"## The {LARGEST} largest misses of each machine, in shares of their targets\n\n"
    for reason, machines in by_reason.items():
        text += f"- {reason}\n" + "".join(f"  - {name}: {'; '.join(named)}\n" for name, named in machines.items())
    return text, unexplained


def replaced(page, text):
    """The page with `text` between its markers."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return page[: page.index(BEGIN)] + BEGIN + "\n" + text.rstrip("\n") + "\n\n" + page[page.index(END):]

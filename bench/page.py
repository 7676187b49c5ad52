"""The generated part of docs/results/speed.md, from the rows that were measured and the reasons that were written.

    text, unexplained = page.render(measured, notes)

`measured` is docs/results/speed.json: for each machine its facts, its peers and its rows, each with the day and the commit. `notes` is
docs/results/speed-notes.toml: [[note]] with `rows`, a regular expression over names, `machine`, one over machines (all), `why` and `next`.
"""

import json
import re

import figures

BEGIN, END = "<!-- bench: begin -->\n", "<!-- bench: end -->\n"
# Regular expression over the names of rows, heading, what the reader has to know.
TOPICS = (
    (r"^dot f32 ", "Products in binary32", "M x N x K; GFLOP/s."),
    (r"^dot bf16 ", "Products in bfloat16", "In the contract's order of sums; GFLOP/s. PyTorch's and JAX's results are bfloat16."),
    (r"^dot bf16/own ", "Products in bfloat16 against our own in binary32", "GFLOP/s."),
    (r"^conv ", "Convolutions in binary32", "Images NHWC, batch x height x width x channels; GFLOP/s."),
    (r"^step cpu ", "Steps on `cpu` against frameworks in binary32", "Steps per second."),
    (r"^step tpu ", "Steps on `tpu` against frameworks in mixed precision", "Steps per second."),
    (r"^(step|field proof) ", "Steps against our own", "Steps per second."),
    (r"^memory ", "Peak memory of training", "MiB beyond the process's own."),
    (r"^(diagnose|watched step) ", "Diagnoses and watched steps", "A diagnosis in single runs, a watched step in plain ones; less is better."),
    (r"^start-up ", "Start-up", "Milliseconds of the whole command; less is better."),
    (r"^(diff|digest|checkpoint) ", "Files and digests", "GB/s."),
    (r"^growth ", "Growth", "Slope of log(seconds) over log(work), least squares, with its 95 % interval; at most 1 and its error."),
    (r"^traffic ", "Memory traffic of a step", "MB that the plan reads and writes, counted, against states and inputs alone."),
    (r"", "Ceilings and functions", "Shares of what the machine can do; functions in ns against glibc's."),
)

EXPLAINED = """Where the time of our side goes: the share of each function in samples of perf, all threads together, from 3 % on; everything
in the operating system is `kernel`. GB/s are counted bytes over time, to be compared with `ceiling triad`: operands and results once; of a
step, those of all its units, as if nothing stayed in a cache between two of them. Of a row of growth it is the step of the greatest value;
of a row of memory, what holds it.

"""


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


def number(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def times(ratio):
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def quartiles(ratio):
    middle, low, high = map(times, ratio)
    return f"{middle} ({low} to {high})" if low != high else middle


def topic_of(row):
    return next(i for i, (pattern, _, _) in enumerate(TOPICS) if re.search(pattern, row["name"]))


def topic_table(rows):
    """Ours, the ratio to each peer, and the ratio to the best of them with its quartiles."""
    names = list(dict.fromkeys(n for r in rows for n in r["ratios"]))
    several = len(names) > 1
    head = ["row", "threads", "ours", *names, *(["against the best"] if several else []), "target", "met", "measured"]
    out = []
    for r in rows:
        shown = (lambda ratio: times(ratio[0])) if several else quartiles
        cells = [shown(r["ratios"][n]) if n in r["ratios"] else "-" for n in names]
        ours = number(r["ours"][0]) if r["unit"] != "slope" else quartiles(r["ours"])
        target = "" if r["target"] is None else f"{r['target']:.2f}"
        out.append([r["name"], r["threads"], ours, *cells, *([quartiles(r["ratio"])] if several else []), target,
                    {None: "", True: "yes", False: "**no**"}[r["met"]], f"{r['day']}, {r['commit']}"])
    return table(head, out)


def peers_table(machine):
    rows = list(machine["rows"].values())
    out = []
    for name, peer in machine["peers"].items():
        if "why" in peer:
            out.append([name, "", "", "", f"missing: {peer['why']}"])
            continue
        reached = figures.share(rows, name)
        out.append([name, peer["version"], peer["says"], "" if reached is None else f"{reached:.0%}", peer["setting"]])
    return table(["peer", "version", "vectors that it says it uses", "share of the FMA ceiling", "setting"], out)


def note_of(row, machine, notes):
    return next((n for n in notes if re.search(n["rows"], row["name"]) and re.search(n.get("machine", ""), machine)), None)


def profile_text(profile):
    """"f32_tile 91 %, copy_term 6 %; 3.1 GB/s", or "activations and gradients 71.2 MiB, ..."."""
    if "held" in profile:
        return ", ".join(f"{part} {number(mib)} MiB" for part, mib in sorted(profile["held"].items(), key=lambda item: -item[1]) if mib >= 0.1)
    functions = ", ".join(f"`{name}` {share:.0%}" for name, share in profile["functions"].items())
    moved = profile.get("bandwidth")
    return functions + ("" if moved is None else f"; {number(moved)} GB/s")


def missed(machine, rows, notes):
    """The missed targets by reason, each with its profile, and the names of rows without a reason."""
    by_note, unexplained = {}, []
    for row in rows:
        if row["met"] is not False:
            continue
        note = note_of(row, machine, notes)
        said = [row["name"], row["threads"], f"{row['ratio'][0]:.2f} of {row['target']:.2f}",
                profile_text(row["profile"]) if "profile" in row else "not recorded"]
        if note is None:
            unexplained.append(f"{machine}: {row['name']}, {row['threads']} threads")
        by_note.setdefault(notes.index(note) if note else len(notes), []).append(said)
    text = ""
    for which in sorted(by_note):
        if which < len(notes):
            why, then = (" ".join(notes[which][k].split()) for k in ("why", "next"))
            text += f"{why} **Next:** {then}\n\n"
        else:
            text += "No reason is written yet (docs/results/speed-notes.toml).\n\n"
        text += table(["row", "threads", "reached", "where our time goes"], by_note[which]) + "\n"
    return text, unexplained


def render(measured, notes):
    """Returns the generated text and the missed rows that no note explains."""
    text, unexplained = "", []
    for name, machine in measured.items():
        rows = list(machine["rows"].values())
        aimed = [r for r in rows if r["met"] is not None]
        text += f"## {name}\n\n"
        text += "; ".join(f"{k} {v}" for k, v in machine["facts"].items()) + ".\n"
        text += f"{len(rows)} rows, {sum(r['met'] is False for r in aimed)} of {len(aimed)} targets missed.\n\n"
        text += "### Peers\n\n" + peers_table(machine) + "\n"
        text += ("The share is that of `dot f32 1024x1024x1024` on one thread in the ceiling of fused multiply-adds "
                 "(`ceiling fma`), both measured here.\n\n")
        for i, (_, heading, explained) in enumerate(TOPICS):
            of_topic = [r for r in rows if topic_of(r) == i]
            if of_topic:
                text += f"### {heading}\n\n{explained}\n\n" + topic_table(of_topic) + "\n"
        reasons, without = missed(name, rows, notes)
        text += "### What is missed, and why\n\n" + (reasons and EXPLAINED + reasons or ("Nothing.\n" if aimed else "No row with a target has been measured.\n")) + "\n"
        unexplained += without
    return text, unexplained


def replaced(page, text):
    """The page with `text` between its markers."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return page[: page.index(BEGIN)] + BEGIN + "\n" + text.rstrip("\n") + "\n\n" + page[page.index(END):]

"""The generated part of docs/results/cases.md, from the cases and what their runs said."""

BEGIN, END = "<!-- cases: begin -->\n", "<!-- cases: end -->\n"


def text(cases, known, other, tools):
    """`known`: {"NAME VERSION": row}, the rows of run.py; other(row, tool): the word of another tool."""
    lines = [
        f"| case | version | | verdict | as expected | {tools[1]} |",
        "|---|---|---|---|---|---|",
    ]
    for case in cases:
        for version, bad in case.versions:
            row, kind = known.get(f"{case.name} {version}"), "bad" if bad else "good"
            cells = ["not run", "", ""]
            if row is not None:
                cells = [f"`{row['verdict']}`", "yes" if row["met"] else "**no**", other(row, tools[1])]
            lines.append("| " + " | ".join([case.name, f"{case.package} {version}", kind, *cells]) + " |")
    lines += ["", *summary(cases, known, other, tools), "", "## What is wrong, and what was named", ""]
    for case in cases:
        told = case.told
        thread = told["thread"].removeprefix("none yet: ")
        if thread != told["thread"]:
            thread = f"[not filed yet](../../{thread})"
        still = "; the newest release still does it" if told.get("open") else ""
        lines.append(f"- **[{case.name}](../../cases/{case.name}/script.py)** ({thread}{still}). {told['title']}: {told['wrong']}.")
        for version, bad in case.versions[::-1]:
            row = known.get(f"{case.name} {version}")
            if row and bad:
                lines.append(f"  Named on {case.package} {version}: {row['named']}.")
                break
    return "\n".join(lines) + "\n"


def summary(cases, known, other, tools):
    """Returns how many bad versions each tool saw, and how many good ones it accused."""
    rows = [known[k] for c in cases for k in (f"{c.name} {v}" for v, _ in c.versions) if k in known]
    bad, good = [r for r in rows if r["bad"]], [r for r in rows if not r["bad"]]
    proven = sum(r["met"] and r["verdict"] == "ENGINE_BUG" for r in bad)
    lines = [
        "| | bad versions found | good versions accused |",
        "|---|---|---|",
        f"| twinrun | {sum(r['met'] for r in bad)} of {len(bad)}, {proven} of them as `ENGINE_BUG` | "
        f"{sum(not r['met'] for r in good)} of {len(good)} |",
    ]
    for tool in tools:
        said = [[other(r, tool) for r in part if other(r, tool) != "–"] for part in (bad, good)]
        lines.append(f"| {tool} | " + " | ".join(f"{s.count('differs')} of {len(s)}" for s in said) + " |")
    return lines


def replaced(page, text):
    """The page with `text` between its markers."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return page[: page.index(BEGIN)] + BEGIN + text + page[page.index(END) :]

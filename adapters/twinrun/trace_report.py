"""`twinrun.judge`: the verdict of a recorded trace, by the program twinrun.

verdict = twinrun.judge("trace.twin")
verdict.verdict, verdict.findings, verdict.path
"""
import json
import os
import subprocess

from .command import program
from .refused import Refused
from .report import shown


class Judged:
    """verdict: the class; headline, findings (dicts, the earliest first: sentence, step, call, op, place, ..), open (what the weights
    depend on and was not examined: dicts with what, how, place, times), calls and judged (how many), path (the page); data: all of
    report.json."""

    def __init__(self, path, data):
        self.path, self.data = path, data
        self.verdict, self.headline, self.findings = data["verdict"]["class"], data["verdict"]["headline"], data["findings"]
        self.open, self.calls, self.judged = data["open"], data["counts"]["calls"], data["counts"]["judged"]

    def rows(self, table):
        """Returns the rows of a table of report.json, such as "operations", as dicts."""
        return rows(self.data, table)

    def _sentences(self):
        for f in self.findings[:5]:
            yield f"step {f['step']}, call {f['call']}: {f['sentence']}"
        if len(self.findings) > 5:
            yield f"and {len(self.findings) - 5} more"
        for question in self.open[:5]:
            yield f"{question['what']}" + (f" at {question['place']}" if question["place"] else "") + f". To examine it: {question['how']}"

    def __str__(self):
        return "\n".join([f"{self.verdict}: {self.headline}", *(f"  - {s}" for s in self._sentences()), f"  {self.path}"])

    __repr__ = __str__

    def _repr_html_(self):
        return shown(self.data, f"{self.headline}; {self.judged} of {self.calls} calls were judged", self._sentences(), self.path)


def printed(done):
    """Returns the document that the program has printed for --json; raises Refused where that says why there is none."""
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {"error": ""}
    if "error" in found:
        said = done.stderr if isinstance(done.stderr, str) else done.stderr.decode("utf-8", "replace")
        raise Refused(said.strip() or f"twinrun ended with {done.returncode}")
    return found


def rows(data, table):
    for one in data["details"]:
        if one["id"] == table:
            keys = [column["key"] for column in one["columns"]]
            return [dict(zip(keys, row)) for row in one["rows"]]
    return []


def judge(path, out=None, threads=None):
    """Judges every call of the trace at `path`; writes the report into the folder `out` (default: `path` without its ending, and
    -judged)."""
    path = os.fspath(path)
    out = os.fspath(out) if out is not None else os.path.splitext(path)[0] + "-judged"
    command = [program(), "diagnose", path, "--out", out, "--json", "--quiet"] + (["--threads", str(threads)] if threads else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return Judged(os.path.join(out, "report.html"), printed(done))

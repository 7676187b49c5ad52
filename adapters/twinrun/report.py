"""What `twinrun.diagnose` returns, for PyTorch and for JAX, and how it has `twinrun diagnose --program` judge files."""

import html
import math
import subprocess
from pathlib import Path

from . import checksum
from .command import program as binary
from .refused import Refused


_WHY_BLIND = "it gives the same state with half of them (a clip that is reached); give a state and batches of a step that is not clipped"


def _kind(meaning):
    return meaning.get("first_kind") or ("variable" if meaning.get("of") else "gradient")


class Report:
    """verdict: the class; effect, headline, findings, path (the folder); data: report.json of the run; meaning: of
    data parallelism."""

    def __init__(self, path, data, meaning, notes):
        self.path, self.data, self.meaning, self.notes = str(path), data, meaning, notes
        engine = data["verdict"]
        self.verdict, self.effect, self.headline = engine["class"], engine["effect"], engine["headline"]
        self.findings = [{"cause": f.get("cause", ""), "sentence": f.get("sentence", "")} for f in data["findings"]]
        # A reference that cannot be trusted, and an engine that breaks its own bounds, come before what the program
        # means.
        if meaning and self.verdict not in ("ENGINE_BUG", "NONDETERMINISTIC"):
            self._say_meaning(meaning)
        if meaning:
            self._answer_sharding(meaning)

    def _answer_sharding(self, meaning):
        """Has report.json say of the sharding what this object says."""
        outcome, what = (
            ("open", meaning["refused"]) if meaning.get("refused")
            else ("no" if self.verdict == "SHARDING" else "open", self.headline) if meaning["differs"]
            else ("in part", f"one step is the whole batch's, in binary64; not asked: whether the gradients have the right size, because {_WHY_BLIND}") if meaning.get("blind")
            else ("not asked", "the step's mesh has one device; XLA_FLAGS=--xla_force_host_platform_device_count=8 gives eight")
            if math.prod((meaning.get("axes") or {"": meaning.get("replicas", 2)}).values()) == 1
            else ("yes", "one step is the whole batch's, in binary64")
        )  # fmt: skip
        self.data["answers"]["sharding"] = {"outcome": outcome, "what": what}
        if meaning.get("blind") and not meaning["differs"]:
            self.data.setdefault("remarks", []).append(f"the step does not show whether its gradients have the right size: {_WHY_BLIND}")
        self.data["verdict"].update({"class": self.verdict, "headline": self.headline})
        known = [f["sentence"] for f in self.data["findings"]]
        told = [{**f, "class": self.verdict, "level": " ", "place": f.get("line", "")} for f in self.findings if f["sentence"] not in known]
        self.data["findings"] = told + self.data["findings"]
        self.data["next_steps"] = list(dict.fromkeys(f["cure"] for f in told if f.get("cure"))) + self.data.get("next_steps", [])

    def _say_meaning(self, meaning):
        if meaning.get("refused"):
            self._doubt(
                f"The engine computes the step as it is written, but what its sharding means is not known: {meaning['refused']}"
            )
        elif meaning["differs"] and meaning.get("written_for_mesh"):
            self._doubt(
                "The step on its mesh is not the same code on one device, by no known cause. But the code is written for this "
                f"mesh ({', '.join(meaning['written_for_mesh'][:3])}) and may mean something else on one device than you do: "
                "give the step on one device as whole="
            )
        elif meaning["differs"]:
            self.verdict = "SHARDING"
            self.headline = (
                meaning["causes"][0]["sentence"]
                if meaning["causes"]
                else "Data parallelism changes what the program means, by no known cause; the first "
                f"{_kind(meaning)} that is not the whole batch's is that of {meaning['first_parameter']}."
            )
            unknown = [{"cause": "unknown", "sentence": self.headline}]
            self.findings = (meaning["causes"] or unknown) + self.findings

    def _doubt(self, headline):
        if self.verdict in ("NOISE", "IDENTICAL"):
            self.verdict, self.headline = "INCONCLUSIVE", headline

    @property
    def causes(self):
        return [f["cause"] for f in self.findings]

    def __str__(self):
        lines = [f"{self.verdict}: {self.headline}"]
        if self.meaning and not self.meaning.get("refused") and self.meaning["kinds"]:
            kinds = ", ".join(f"{k} {v:.3g}" for k, v in self.meaning["kinds"].items())
            lines.append(
                f"  one step of {self.meaning.get('of') or str(self.meaning['replicas']) + ' replicas'} against the whole "
                f"batch, in binary64, relative: "
                f"{kinds} "
                f"(allowed {self.meaning['threshold']:.3g})"
            )
            if self.meaning["first_parameter"]:
                factor = self.meaning.get("factor")
                lines.append(
                    f"  first {_kind(self.meaning)} that differs: "
                    f"{self.meaning['first_parameter']}"
                    + (f", {factor:.6g} times the whole batch's" if factor is not None else "")
                )
        lines += [
            f"  - {f['sentence']}" + (f" Cure: {f['cure']}." if f.get("cure") else "")
            for f in self.findings
            if f["sentence"]
        ]
        lines += [f"  look at this: {r}" for r in self.data.get("remarks", ())]
        return "\n".join(lines + [f"  {n}" for n in self.notes if n not in self.data.get("remarks", ())] + [f"  {self.path}"])

    __repr__ = __str__

    def _repr_html_(self):
        sentences = [
            f["sentence"] + (f" Cure: {f['cure']}." if f.get("cure") else "")
            for f in self.findings
            if f["sentence"]
        ]
        return shown(self.data, self.headline, sentences, str(Path(self.path) / "report.html"))


def shown(data, headline, sentences, page):
    """Returns the HTML of an answer in a notebook: verdict, the five questions, findings, the address of the page."""
    answers = "".join(
        f"<tr><td>{question}</td><td><b>{html.escape(answer['outcome'])}</b></td><td>{html.escape(answer['what'])}</td></tr>"
        for question, answer in data["answers"].items()
    )
    listed = "".join(f"<li>{html.escape(s)}</li>" for s in sentences)
    return (
        f"<h3>{html.escape(data['verdict']['class'])}</h3><p>{html.escape(headline)}</p><table>{answers}</table>"
        + (f"<ul>{listed}</ul>" if listed else "")
        + f'<p><a href="{html.escape(page)}">{html.escape(page)}</a></p>'
    )


def forget(folder):
    """Removes an earlier answer from the folder, so that it is not taken for the one of this run."""
    for name in ("report.json", "report.html", "meaning.json", "sharded.mlir", "whole.mlir"):
        (Path(folder) / name).unlink(missing_ok=True)


def save(folder, data):
    """Writes report.json, and has the program make its pages."""
    (Path(folder) / "report.json").write_text(checksum.dumps(data, default=str))
    command = [binary(), "report", str(folder), "--format", "html,markdown,junit"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode:
        raise Refused(f"the pages of {folder} could not be made: {done.stderr.strip()}")


def run_program(program, folder, subject, precision, faults, settings):
    command = [binary(), "diagnose", "--program", program, "--subject", subject, "--out", str(folder), "--quiet"]
    for key, value in dict(settings or {}, **({"tpu.precision": precision} if precision else {})).items():
        command += ["--set", f"{key}={value}"]
    for fault in [faults] if isinstance(faults, str) else faults:
        command += ["--fault", fault]
    report = Path(folder) / "report.json"
    report.unlink(missing_ok=True)  # an earlier run's
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode < 0 or not report.exists():
        ended = f"it was ended by signal {-done.returncode}; " if done.returncode < 0 else ""
        raise Refused("twinrun could not judge the step: " + ended + done.stderr.strip())
    try:
        return checksum.loads(report.read_bytes())
    except ValueError as e:
        raise Refused(f"{report}: {e}") from None

"""`twinrun.diagnose`: a user's PyTorch training step under twinrun's instruments. docs/guides/pytorch.md is the guide.

report = twinrun.diagnose(step, model, optimizer, batches, replicas=8, out="runs/mine")
report.verdict, report.path
"""

import html
import inspect
import json
import subprocess
from pathlib import Path

import torch

from .capture import capture
from .command import program as binary
from .meaning import compare
from .refused import Refused
from .stablehlo import write


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
        if meaning and meaning["differs"] and self.verdict not in ("ENGINE_BUG", "NONDETERMINISTIC"):
            self.verdict = "SHARDING"
            self.headline = (
                meaning["causes"][0]["sentence"]
                if meaning["causes"]
                else "Data parallelism changes what the program means, by no known cause; the first gradient that is "
                "not "
                f"the whole batch's is that of {meaning['first_parameter']}."
            )
            unknown = [{"cause": "unknown", "sentence": self.headline}]
            self.findings = (meaning["causes"] or unknown) + self.findings

    @property
    def causes(self):
        return [f["cause"] for f in self.findings]

    def __str__(self):
        lines = [f"{self.verdict}: {self.headline}"]
        if self.meaning:
            kinds = ", ".join(f"{k} {v:.3g}" for k, v in self.meaning["kinds"].items())
            lines.append(
                f"  one step of {self.meaning['replicas']} replicas against the whole batch, in binary64, relative: "
                f"{kinds} "
                f"(allowed {self.meaning['threshold']:.3g})"
            )
            if self.meaning["first_parameter"]:
                factor = self.meaning.get("factor")
                lines.append(
                    f"  first gradient that differs: {self.meaning['first_parameter']}"
                    + (f", {factor:.6g} times the whole batch's" if factor is not None else "")
                )
        lines += [
            f"  - {f['sentence']}" + (f" Cure: {f['cure']}." if f.get("cure") else "")
            for f in self.findings
            if f["sentence"]
        ]
        return "\n".join(lines + [f"  {n}" for n in self.notes] + [f"  {self.path}"])

    __repr__ = __str__

    def _repr_html_(self):
        rows = "".join(
            f"<li>{html.escape(f['sentence'])}"
            + (f" <i>Cure: {html.escape(f['cure'])}.</i>" if f.get("cure") else "")
            + "</li>"
            for f in self.findings
            if f["sentence"]
        )
        link = html.escape(str(Path(self.path) / "report.html"))
        return (
            f"<h3>{html.escape(self.verdict)}</h3><p>{html.escape(self.headline)}</p><ul>{rows}</ul>"
            f'<p><a href="{link}">{link}</a></p>'
        )


def _run(program, folder, subject, precision, faults, settings):
    command = [binary(), "diagnose", "--program", program, "--subject", subject, "--out", str(folder), "--quiet"]
    for key, value in dict(settings or {}, **({"tpu.precision": precision} if precision else {})).items():
        command += ["--set", f"{key}={value}"]
    for fault in [faults] if isinstance(faults, str) else faults:
        command += ["--fault", fault]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    report = Path(folder) / "report.json"
    if not report.exists():
        raise Refused("twinrun could not judge the step: " + done.stderr.strip())
    return json.loads(report.read_text())


def _check_loss(data, own, program):
    """Holds the reference engine's loss of the first step against PyTorch's; later steps start from other states."""
    losses = next(r["losses"] for r in data["runs"] if r["name"] == "R")
    # Sums of float32 in two orders differ by about n units of roundoff, 2^-24 each: far below 2^-12 for what a step
    # adds up in
    # twinrun's blocks. Another formula is far above it.
    # With bfloat16, a sum in another order may round to the neighbour, 2^-8 away; four such roundings are allowed for.
    allowed = 2.0**-6 if "bf16" in Path(program).read_text() else 2.0**-12
    if own == own and losses and not abs(float(losses[0]) - own) <= allowed * max(abs(own), 2.0**-12):
        raise Refused(
            f"twinrun computes a loss of {losses[0]} in the first step, but PyTorch {own}: an op was written wrongly. "
            "This is a bug of twinrun; please report it with the .mlir file"
        )


def diagnose(
    step,
    model=None,
    optimizer=None,
    batches=None,
    subject="tpu",
    replicas=1,
    sync="ddp",
    out="runs/twinrun",
    precision=None,
    steps=None,
    faults=(),
    settings=None,
    seed=0,
):
    """Diagnoses `step(model, optimizer, batch) -> loss`, or `step(batch) -> loss` of a script that has model and
    optimizer as globals.

    model, optimizer: one, or a list or dict of them. batches: one tuple or dict of tensors per step; with replicas,
    whole batches.
    replicas: how many replicas DistributedDataParallel would train. sync: "ddp", gradients are averaged after the
    backward pass and
    buffers are replica 0's; "step", the step itself calls torch.distributed.all_reduce.
    subject, precision, faults, settings: as `twinrun diagnose` has them. The objects are left as they were."""
    if sync not in ("ddp", "step"):
        raise ValueError(f"sync is '{sync}'; allowed: 'ddp', 'step'")
    if batches is None or model is None or optimizer is None:
        raise TypeError("diagnose needs step, model, optimizer and batches")
    batches = list(batches)[:steps]
    if not batches:
        raise ValueError("batches is empty; give one batch per step")
    if len(inspect.signature(step).parameters) == 1:
        inner, step = step, lambda model, optimizer, batch: inner(batch)  # noqa: E731
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    whole = capture(step, model, optimizer, batches, seed=seed)
    write(whole, str(folder / "whole"), whole.batches, whole.draws)
    program, own, meaning = "whole.mlir", whole.losses[0], None
    if replicas > 1:
        meaning = compare(step, model, optimizer, batches, whole, replicas, sync, seed)
        replica = meaning.pop("replica")
        meaning["replicas"], own = replicas, meaning.pop("loss")
        program = "sharded.mlir"
        write(replica, str(folder / "sharded"), whole.batches, whole.draws)
        (folder / "meaning.json").write_text(json.dumps(meaning, indent=1))
    data = _run(str(folder / program), folder, subject, precision, faults, settings)
    _check_loss(data, own, folder / program)
    return Report(folder, data, meaning, whole.notes)

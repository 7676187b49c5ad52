"""`twinrun.diagnose`: a user's PyTorch training step under twinrun's instruments. docs/guides/pytorch.md is the guide.

report = twinrun.diagnose(step, model, optimizer, batches, replicas=8, out="runs/mine")
report.verdict, report.path
"""

import inspect
import os
import json
from pathlib import Path

import torch

from .capture import capture
from .meaning import compare
from .refused import Refused, Unasked
from .report import Report, forget, run_program, save
from .stablehlo import write


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
    folder = Path(os.environ.get("TWINRUN_OUT") or out)
    folder.mkdir(parents=True, exist_ok=True)
    forget(folder)
    whole = capture(step, model, optimizer, batches, seed=seed)
    write(whole, str(folder / "whole"), whole.batches, whole.draws)
    program, own, meaning, notes = "whole.mlir", whole.losses[0], None, list(whole.notes)
    if replicas > 1:
        try:
            meaning = compare(step, model, optimizer, batches, whole, replicas, sync, seed)
        except Unasked as error:
            meaning = {"differs": False, "refused": str(error)}
        replica, draws = meaning.pop("replica", None), meaning.pop("draws", None)
        meaning["replicas"] = replicas
        notes += meaning.get("notes", ())
        if draws is not None:
            program, own = "sharded.mlir", meaning.pop("loss")
            write(replica, str(folder / "sharded"), whole.batches, draws)
        elif not meaning.get("refused"):
            notes.append("not asked: the replicas' own steps of the engine, which differ by rank: it was given the whole batch's")
        (folder / "meaning.json").write_text(json.dumps(meaning, indent=1))
    data = run_program(str(folder / program), folder, subject, precision, faults, settings)
    _check_loss(data, own, folder / program)
    report = Report(folder, data, meaning, notes)
    if meaning:
        save(folder, report.data)
    return report

"""Event files of `twinrun report --format tensorboard`, read by TensorBoard's own loader.

    read_event_files.py --twinrun BINARY

Trains a run and reports it beside a run that only a report.json holds; every scalar must come back with its step, bit for bit as binary32.
TWINRUN_TENSORBOARD names an interpreter that has the package `tensorboard`. Exit status 77 where there is none.
"""
import argparse
import importlib.util
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

STEPS = 5
LOSSES = [2.5, 0.1, 1e-30, "nan", "inf"]


def as_binary32(x):
    return struct.unpack("<f", struct.pack("<f", float(x)))[0]


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def scalars_of(folder):
    """What TensorBoard shows of a run: {tag: [(step, value)]}."""
    from tensorboard.backend.event_processing import event_accumulator
    run = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.TENSORS: 0, event_accumulator.SCALARS: 0})
    run.Reload()
    shown = {tag: [(e.step, e.value) for e in run.Scalars(tag)] for tag in run.Tags()["scalars"]}
    for tag in run.Tags()["tensors"]:    # the loader makes tensors of simple values
        from tensorboard.util import tensor_util
        shown[tag] = [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in run.Tensors(tag)]
    return shown


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--twinrun", required=True)
    options = parser.parse_args()
    if importlib.util.find_spec("tensorboard") is None:
        python = os.environ.get("TWINRUN_TENSORBOARD")
        if python and os.path.abspath(python) != os.path.abspath(sys.executable):
            return subprocess.run([python, *sys.argv]).returncode
        print("SKIPPED: no package tensorboard; TWINRUN_TENSORBOARD names an interpreter that has it")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "runs").mkdir()
        twinrun = lambda *words: subprocess.run([options.twinrun, *words], check=True, cwd=folder, stdout=subprocess.PIPE, text=True).stdout
        twinrun("train", "digits_mlp", "-q", "--set", f"train.steps={STEPS}", "--set", "train.eval_every=2", "-o", "runs/T.h5")
        runs = [{"name": "T"}, {"name": "R", "steps": STEPS, "eval_loss": 0.25, "eval_accuracy": 0.5, "losses": LOSSES}]
        (folder / "report.json").write_text(json.dumps({"schema": 1, "verdict": {"class": "NOISE"}, "runs": runs}))
        twinrun("report", ".", "--format", "tensorboard")
        first = (folder / "tensorboard/T/events.out.tfevents.0.twinrun").read_bytes()
        twinrun("report", ".", "--format", "tensorboard")
        assert (folder / "tensorboard/T/events.out.tfevents.0.twinrun").read_bytes() == first, "other bytes"

        r = scalars_of(folder / "tensorboard/R")
        assert set(r) == {"loss", "held_out/loss", "held_out/accuracy"}, r
        assert [step for step, _ in r["loss"]] == list(range(STEPS)), r
        assert all(same(value, as_binary32(wanted)) for (_, value), wanted in zip(r["loss"], LOSSES)), r
        assert r["held_out/loss"] == [(STEPS, 0.25)] and r["held_out/accuracy"] == [(STEPS, 0.5)], r

        t = scalars_of(folder / "tensorboard/T")
        assert set(t) == {"loss", "loss_replica0", "learning_rate", "gradient_norm", "held_out/loss", "held_out/accuracy"}, t
        assert [step for step, _ in t["held_out/loss"]] == [2, 4, 5], t
        said = json.loads(twinrun("train", "digits_mlp", "-q", "--json", "--set", f"train.steps={STEPS}", "-o", "again.h5"))
        assert t["held_out/loss"][-1][1] == as_binary32(said["eval_loss"]), (t, said)
        for tag, points in t.items():
            assert all(math.isfinite(value) for _, value in points), (tag, points)
            print(f"{tag}: {points}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

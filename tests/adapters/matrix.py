"""Diagnoses every library scenario with each framework's engine as the subject: a healthy framework must get the verdict that our own
reference gets in its place, with NOISE for IDENTICAL.

    python3 tests/adapters/matrix.py                        # all installed frameworks; prints the table of docs/results/drill.md
    python3 tests/adapters/matrix.py --only jax --scenario digits_mlp --json rows.json
    python3 tests/adapters/matrix.py --quick                # the rows that the test suite runs

Exit status 1: a row differs from the expected verdict. Heavy models keep their layers and get few steps and samples: SETTINGS.
"""
import argparse
import json
import os
import re
import sys
import time

from diagnosis import FRAMEWORKS, Refused, diagnose, interpreter, subject

# Settings with which a diagnosis takes minutes at most; `resnet50`, which is only planned and profiled, is not among them.
FEW = ["diagnose.seeds=2", "diagnose.max_seeds=2"]
SETTINGS = {
    **dict.fromkeys(("digits_mlp", "litmus_batchnorm_small"), ["train.steps=60", *FEW]),
    **{f"drill_{name}": ["diagnose.seeds=3", "diagnose.max_seeds=3"] for name in ("attention", "cnn", "depthwise", "dropout", "mlp", "triplet")},
    **dict.fromkeys(("litmus_clip_before_reduce", "litmus_dropout", "litmus_precision", "litmus_reduction_sum", "mlp_bn",
                     "triplet_phrases"), ["train.steps=8", *FEW]),
    "litmus_nan": [],
    "digits_cnn": ["train.steps=4", "train.batch=64", "data.train=256", "data.eval=64", *FEW],
    "gan_digits": ["train.steps=4", "data.train=256", "data.eval=64", *FEW],
    "gpt_shakespeare": ["train.steps=2", "train.batch=8", "data.train=256", "data.eval=32", *FEW],
    "gpt_synthetic": ["train.steps=3", "train.batch=16", "data.train=256", "data.eval=64", *FEW],
    "mnist_quick": ["train.steps=4", "train.batch=32", "data.train=256", "data.eval=64", *FEW],
    "mnist_tutorial": ["train.steps=2", "train.batch=32", "data.train=256", "data.eval=64", *FEW],
    "resnet20": ["train.steps=2", "train.batch=16", "data.train=128", "data.eval=32", *FEW],
    "use_tpus": ["train.steps=2", "train.batch=8", "data.train=64", "data.eval=32", *FEW],
}
DATA = {"gpt_shakespeare": "TWINRUN_SHAKESPEARE", "mnist_quick": "TWINRUN_MNIST", "mnist_tutorial": "TWINRUN_MNIST"}
CONFIGURATIONS = [("pytorch", 1), ("jax", 1), ("jax", 8), ("tensorflow", 1), ("tensorflow", 8)]
QUICK = ["drill_mlp", "drill_cnn", "drill_triplet"]


def settings_of(scenario, cores):
    found = [*SETTINGS[scenario], f"tpu.cores={cores}"]
    if scenario in DATA:
        found.append(f"data.dir={os.environ[DATA[scenario]]}")
    return found


def due(scenario, cores, cache={}):
    """Returns the verdict of our own reference as the subject, with NOISE for IDENTICAL. NOISE itself needs no such comparison."""
    if (scenario, cores) not in cache:
        found = diagnose(scenario, "cpu", settings_of(scenario, cores))["verdict"]["class"]
        cache[scenario, cores] = "NOISE" if found == "IDENTICAL" else found
    return cache[scenario, cores]


def refusal(text):
    """Returns the reasons of an engine that does not support the program; None if it failed: its text begins with an exception's name."""
    said = text.partition("the engine says: ")[2]
    return {"verdict": "not supported", "why": said} if said and not re.match(r"\w+: ", said) else None


def run(scenario, framework, cores):
    """Returns one row of the table."""
    row, begin = {"scenario": scenario, "framework": framework, "cores": cores}, time.monotonic()
    try:
        report = diagnose(scenario, subject(framework), settings_of(scenario, cores))
    except Refused as refused:
        row |= refusal(str(refused)) or {"verdict": "failed", "why": str(refused)}
    else:
        finding = report["findings"][0]
        verdict = report["verdict"]["class"]
        refused = refusal(finding["sentence"]) if finding["cause"] == "engine_failed" else None
        row |= refused or {"verdict": verdict, "due": verdict if verdict == "NOISE" else due(scenario, cores),
                           "why": "; ".join(dict.fromkeys(f["cause"] for f in report["findings"])),
                           "headline": report["verdict"]["headline"], "sentence": finding["sentence"],
                           "farthest": [e for e in finding["evidence"] if e.startswith("the farthest")]}
        row["subject"] = report["verdict"]["subject"]
    row["seconds"] = round(time.monotonic() - begin, 1)
    row["good"] = row["verdict"] in ("not supported", row.get("due"))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=FRAMEWORKS)
    parser.add_argument("--cores", type=int, action="append")
    parser.add_argument("--scenario", action="append", choices=SETTINGS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", help="file to which rows are appended, one per line")
    options = parser.parse_args()
    good = True
    for scenario in options.scenario or (QUICK if options.quick else SETTINGS):
        if scenario in DATA and DATA[scenario] not in os.environ:
            print(f"| `{scenario}` | | | no {DATA[scenario]} |")
            continue
        for framework, cores in CONFIGURATIONS:
            if (options.only and framework not in options.only) or (options.cores and cores not in options.cores):
                continue
            if interpreter(framework) is None:
                print(f"| `{scenario}` | {framework} ×{cores} | | no {framework} |")
                continue
            row = run(scenario, framework, cores)
            good = good and row["good"]
            print(f"| `{scenario}` | {framework} ×{cores} | {row['verdict']} | {row['why']} |"
                  + ("" if row["good"] else f" **due: {row.get('due')}** {row.get('sentence')}") + f" {row['seconds']}s", flush=True)
            if options.json:
                with open(options.json, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Measures with healthy engines of mixed precision as subjects how many are accused, and how small a planted fault is still found.

    python3 tests/calibration/mixed_precision.py healthy            # 234 runs: lists the accused ones, and prints a table
    python3 tests/calibration/mixed_precision.py faults             # the smallest fault found, by precision
    python3 tests/calibration/mixed_precision.py healthy --first 20 --jobs 2 --json rows.jsonl

Engines: mixed_engine.py, in the interpreter that TWINRUN_PARITY_TORCH and TWINRUN_PARITY_JAX name (PyTorch 2.3 or later for
float16 on a CPU). Each run is `twinrun diagnose SCENARIO --quick` of a few steps. A healthy engine counts as accused if the verdict
is ENGINE_BUG, PROGRAM, SHARDING or NONDETERMINISTIC. Exit status 1: one was accused. With --json, runs that are in the file are not
repeated.
"""
import argparse
import atexit
import collections
import concurrent.futures
import functools
import itertools
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINE = ROOT / "tests/calibration/mixed_engine.py"
TWINRUN = os.environ.get("TWINRUN_BINARY", str(ROOT / "build/release/twinrun"))
PYTHON = {"pytorch": os.environ.get("TWINRUN_PARITY_TORCH", sys.executable), "jax": os.environ.get("TWINRUN_PARITY_JAX", sys.executable)}

STEPS = ["train.steps=4", "diagnose.probe=auto"]
PER_CORE = ["tpu.batchnorm=per_core", "tpu.batchwise=per_core", "tpu.token_mean=per_core"]
# Name, scenario, settings, cores: models, optimizers, penalties, clips.
CASES = [
    ("perceptron, momentum", "drill_mlp", [], 1),
    ("perceptron, Adam, L2", "drill_mlp", ["optimizer.kind=adam", "optimizer.lr=0.002", "optimizer.l2=0.001"], 1),
    ("perceptron, momentum, clip to a norm", "drill_mlp", ["optimizer.clip=global_norm", "optimizer.clip_at=0.3"], 1),
    ("perceptron, momentum, 4 cores", "drill_mlp", [], 4),
    ("convolutions, batch norm, Adam", "drill_cnn", [], 1),
    ("convolutions, batch norm, SGD, L2", "drill_cnn", ["optimizer.kind=sgd", "optimizer.lr=0.05", "optimizer.l2=0.001"], 1),
    ("convolutions, batch norm, momentum, 2 cores", "drill_cnn", ["optimizer.kind=momentum", "optimizer.lr=0.05", *PER_CORE], 2),
    ("attention, AdamW, clip", "drill_attention", [], 1),
    ("attention, SGD, 2 cores", "drill_attention", ["optimizer.kind=sgd", "optimizer.lr=0.1", "optimizer.clip=none", *PER_CORE], 2),
    ("batch norm, dropout, momentum", "drill_dropout", ["optimizer.kind=momentum", "optimizer.lr=0.02"], 1),
]
# Framework, the precision it computes with, the precision it declares.
PRECISIONS = [
    ("pytorch", "f32", "null"), ("pytorch", "f32", "default"), ("pytorch", "f32", "autocast"), ("pytorch", "f32", "f32"),
    ("pytorch", "tf32", "null"), ("pytorch", "tf32", "tf32"), ("pytorch", "tf32", "default"), ("pytorch", "tf32_conv", "null"),
    ("pytorch", "default", "null"), ("pytorch", "default", "default"), ("pytorch", "high_dots", "high"),
    ("pytorch", "autocast", "null"), ("pytorch", "autocast", "autocast"), ("pytorch", "autocast", "default"),
    ("pytorch", "float16", "null"), ("pytorch", "float16", "float16"),
    ("pytorch", "bf16", "null"), ("pytorch", "bf16", "bf16"), ("pytorch", "bf16_params", "null"), ("pytorch", "bf16_params", "bf16_params"),
    ("jax", "bf16", "null"), ("jax", "bf16", "bf16"), ("jax", "default", "default"), ("jax", "f32", "null"),
]
# The gradient in which a fault is planted.
FAULTY = {"drill_mlp": ("dense1/kernel", []), "drill_cnn": ("conv1/kernel", [])}
FAULTS = [("pytorch", "f32", "f32"), ("pytorch", "f32", "null"), ("pytorch", "tf32", "null"), ("pytorch", "default", "default"),
          ("pytorch", "autocast", "autocast"), ("pytorch", "autocast", "null"), ("pytorch", "float16", "float16"), ("pytorch", "bf16", "bf16")]
LADDER = [2.0**-k for k in range(20, -1, -1)]


def runs():
    """The scenario's seed differs from run to run, so that no two have the same weights and samples."""
    seed = 100
    for (framework, precision, declare), (name, scenario, settings, cores) in itertools.product(PRECISIONS, CASES):
        seed += 1
        if framework == "jax" and cores > 2:
            continue
        if precision in ("tf32_conv", "high_dots") and scenario == "drill_mlp":
            continue    # no convolution or attention that would be computed differently
        yield {"framework": framework, "precision": precision, "declare": declare, "case": name, "scenario": scenario,
               "settings": [*settings, *STEPS, f"tpu.cores={cores}", f"seed={seed}"]}
    for wire, (name, scenario, settings, cores) in itertools.product(("bf16", "float16"), CASES):
        if cores > 1:
            seed += 1
            yield {"framework": "pytorch", "precision": "autocast", "declare": "autocast", "gradients": wire, "case": name,
                   "scenario": scenario, "settings": [*settings, *STEPS, f"tpu.cores={cores}", f"seed={seed}"]}


@functools.cache
def socket_of(framework):
    """A process that has loaded the framework; it ends with this one."""
    path = os.path.join(tempfile.mkdtemp(prefix="twinrun-calibration-"), framework)
    process = subprocess.Popen([PYTHON[framework], str(ENGINE), "keep-loaded", framework, path], stdin=subprocess.DEVNULL)
    atexit.register(process.kill)
    while not os.path.exists(path):
        if process.poll() is not None:
            sys.exit(f"{PYTHON[framework]} cannot load {framework}")
        time.sleep(0.1)
    return path


def diagnose(run):
    words = [sys.executable, "-S", ENGINE.with_name("through.py"), socket_of(run["framework"]), run["framework"], run["precision"],
             "--declare", run["declare"]]
    for key in ("gradients", "fault"):
        if run.get(key):
            words += [f"--{key}", run[key]]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="twinrun-calibration-") as folder:
        command = [TWINRUN, "diagnose", run["scenario"], "--subject", "exec:" + shlex.join(map(str, words)), "--json", "-q", "--quick",
                   "-o", folder, "--threads", "1"] + [w for s in run["settings"] for w in ("--set", s)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    row = {**run, "seconds": round(time.monotonic() - begin, 1)}
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return {**row, "verdict": "FAILED", "why": done.stderr.strip()[-600:]}
    finding = report["findings"][0] if report["findings"] else {}
    if finding.get("cause") == "engine_failed":
        return {**row, "verdict": "FAILED", "why": finding["sentence"]}
    return {**row, "verdict": report["verdict"]["class"], "headline": report["verdict"]["headline"],
            "why": finding.get("sentence", ""), "notes": report.get("notes", [])}


def key(row):
    return json.dumps([row.get(k) for k in ("framework", "precision", "declare", "gradients", "fault", "case", "scenario", "settings")])


class Rows:
    """Results, kept in a file if one is named."""

    def __init__(self, path):
        self.path, self.of = path, {}
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.of = {key(row): row for row in map(json.loads, file)}

    def get(self, run):
        if key(run) not in self.of:
            row = self.of[key(run)] = diagnose(run)
            if self.path:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        return self.of[key(run)]


def accused(row):
    return row["verdict"] in ("ENGINE_BUG", "PROGRAM", "SHARDING", "NONDETERMINISTIC", "FAILED")


def healthy(options, rows):
    chosen = list(runs())
    if options.only:
        chosen = [r for r in chosen if options.only in f"{r['framework']} {r['precision']} {r['declare']} {r['case']}"]
    chosen = chosen[::options.every][:options.first]
    if not chosen:
        sys.exit(f"no run is described by '{options.only}'")
    for framework in {run["framework"] for run in chosen}:
        socket_of(framework)
    table = collections.defaultdict(lambda: [0, 0])
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(rows.get, chosen):
            wire = f", gradients {row['gradients']}" if row.get("gradients") else ""
            label = f"{row['framework']} {row['precision']} | {row['declare']}{wire}"
            table[label][0] += 1
            table[label][1] += accused(row)
            if accused(row) or options.verbose:
                print(f"{row['verdict']}: {label}, {row['case']} ({row['seconds']} s): {row.get('headline', '')} {row['why']}", flush=True)
    print("\n| computes as | declares | runs | accused |\n|---|---|---|---|")
    for label, (count, wrong) in table.items():
        print(f"| {label} | {count} | {wrong} |")
    total, wrong = (sum(x) for x in zip(*table.values()))
    print(f"| all | | {total} | {wrong} |")
    return 1 if wrong else 0


def smallest(rows, run, kind, tensor):
    """Returns the smallest size of the ladder at which the fault is found, by bisection; None if it is not found at 1."""
    low, high = -1, len(LADDER)
    while high - low > 1:
        middle = (low + high) // 2
        if accused(rows.get({**run, "fault": f"{kind}:{tensor}:{LADDER[middle]!r}"})):
            high = middle
        else:
            low = middle
    return LADDER[high] if high < len(LADDER) else None


def faults(options, rows):
    jobs = []
    for framework, precision, declare in FAULTS:
        for scenario, (tensor, settings) in FAULTY.items():
            for kind, cores in (("scale", 1), ("element", 1), ("core", 2)):
                if scenario == "drill_cnn" and kind != "scale":
                    continue
                more = ["optimizer.kind=momentum", "optimizer.lr=0.05"] + (PER_CORE if cores > 1 else [])
                jobs.append(({"framework": framework, "precision": precision, "declare": declare, "case": "fault",
                              "scenario": scenario, "settings": [*settings, *more, *STEPS, f"tpu.cores={cores}"]}, kind, tensor))
    found = collections.defaultdict(dict)
    socket_of("pytorch")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for job, size in zip(jobs, pool.map(lambda j: smallest(rows, *j), jobs)):
            run, kind, _ = job
            found[run["precision"], run["declare"]][run["scenario"], kind] = size
    columns = [("drill_mlp", "scale"), ("drill_cnn", "scale"), ("drill_mlp", "element"), ("drill_mlp", "core")]
    print("| computes as | declares | " + " | ".join(f"{k}, {s}" for s, k in columns) + " |\n|---|---|---|---|---|---|")
    for (precision, declare), sizes in found.items():
        print(f"| {precision} | {declare} | " + " | ".join("-" if sizes.get(c) is None else f"{sizes[c]:.2g}" for c in columns) + " |")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("healthy", "faults"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="only every n-th run")
    parser.add_argument("--first", type=int, help="so many runs")
    parser.add_argument("--only", help="only runs whose description contains this text")
    parser.add_argument("--json", help="file of the rows, one per line")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    return (healthy if options.what == "healthy" else faults)(options, Rows(options.json))


if __name__ == "__main__":
    sys.exit(main())

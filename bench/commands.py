"""Rows whose figures are those of whole commands of twinrun: start-up, diagnoses in single runs, watched steps, cost against steps.

    for line in commands.lines(wanted, samples, "build/bench/twinrun"):   # the form of twinrun_bench's lines (bench.h)
"""

import json
import os
import pathlib
import subprocess
import tempfile
import time

# name, words, the most milliseconds.
STARTS = (
    ("start-up twinrun --version", ["--version"], 50),
    ("start-up twinrun train, one step", ["train", "digits_mlp", "--set", "train.steps=1", "-q", "-o", "{folder}/run.h5"], 50),
)
# name, scenario, steps: as in the library, or fewer where a diagnosis would take minutes. One seed, nothing kept.
DIAGNOSES = (
    ("digits_cnn", "digits_cnn", 100),
    ("mlp_bn", "mlp_bn", 200),
    ("mnist_quick", "mnist_quick", 50),
    ("resnet20", "resnet20", 10),
    ("gpt", "gpt_synthetic", 20),
)
# MNIST's files for the scenario that reads them: TWINRUN_MNIST, or where the project's own are.
MNIST = os.environ.get("TWINRUN_MNIST", str(pathlib.Path(__file__).resolve().parents[2] / "shared/data/mnist"))
MOST_RUNS, MOST_WATCHED = 6, 2    # of a diagnosis in single runs; of a watched step in plain ones
STEPS = (200, 400, 800, 1600, 3200)


class Failed(Exception):
    """A command did not do what is measured."""


def seconds_of(words, good=(0,)):
    started = time.perf_counter()
    done = subprocess.run(words, env={**os.environ, "TWINRUN_CACHE": ""}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    took = time.perf_counter() - started
    if done.returncode not in good:
        raise Failed(f"{' '.join(words[1:3])}: exit status {done.returncode}: " + " ".join(done.stdout.split())[:300])
    return took


def row(name, unit, ours, peers, threads=None, target=1.0):
    return {"row": name, "threads": threads or os.cpu_count(), "unit": unit, "smaller": True, "target": target, "ours": ours, "peers": peers}


def settings_of(scenario, steps):
    return ["--set", f"train.steps={steps}", *(["--set", f"data.dir={MNIST}"] if scenario == "mnist_quick" else []), "-q"]


def words_of(name, twinrun, folder):
    """The command behind a row of this module, or None."""
    for start, words, _ in STARTS:
        if name == start:
            return [twinrun, *(w.replace("{folder}", folder) for w in words)]
    for short, scenario, steps in DIAGNOSES:
        if name in names_of(short, steps):
            return [twinrun, "diagnose", scenario, *settings_of(scenario, steps), "--set", "diagnose.seeds=1", "-o", f"{folder}/out"]
    return None


def names_of(short, steps):
    return [f"diagnose {short}, one seed, {steps} steps", f"watched step {short}"]


def diagnosis(name, scenario, steps, twinrun, samples):
    """The lines of a diagnosis and of the watched step in it: T is the run whose every op is screened, S the same program, plain."""
    runs, watched = [], []
    settings, names = settings_of(scenario, steps), names_of(name, steps)
    with tempfile.TemporaryDirectory(prefix="twinrun-bench-") as folder:
        for i in range(samples):
            out = f"{folder}/{i}"
            # 0 to 20 are verdicts, 125 is "inconclusive": as much work as any other.
            whole = seconds_of([twinrun, "diagnose", scenario, *settings, "--set", "diagnose.seeds=1", "-o", out], (0, 10, 15, 20, 30, 125))
            runs.append(whole / seconds_of([twinrun, "train", scenario, *settings, "-o", f"{out}.h5"]))
            report = json.loads(pathlib.Path(out, "report.json").read_text(encoding="utf-8"))
            took = {r["name"]: r["seconds"] / r["steps"] for r in report["runs"] if r["steps"]}
            watched.append(took["T"] / took["S"])
    yield row(names[0], "runs", runs, {"at most": [MOST_RUNS]})
    yield row(names[1], "steps", watched, {"at most": [MOST_WATCHED]})


def lines(wanted, samples, twinrun):
    """Yields sections, rows and skipped rows; `wanted` says of a name whether it is measured."""
    yield {"section": "start-up: the whole command, in milliseconds"}
    with tempfile.TemporaryDirectory(prefix="twinrun-bench-") as folder:
        for name, words, most in STARTS:
            if wanted(name):
                words = words_of(name, twinrun, folder)
                try:
                    seconds_of(words)
                    yield row(name, "ms", [1e3 * seconds_of(words) for _ in range(samples)], {"at most": [most]})
                except Failed as e:
                    yield {"skipped": name, "why": str(e), "peer": ""}
        yield {"section": "growth: seconds of `twinrun train` against its steps, slope of the logarithms"}
        if wanted("growth steps"):
            points = []
            for steps in STEPS:
                words = [twinrun, "train", "digits_mlp", "--set", f"train.steps={steps}", "-q", "-o", f"{folder}/run.h5"]
                points.append([steps, sorted(seconds_of(words) for _ in range(3))[1]])
            yield {"growth": "growth steps", "threads": os.cpu_count(), "points": points}
    yield {"section": "diagnose: in single runs of `twinrun train`, nothing kept; watched step: T in plain steps, those of S"}
    for name, scenario, steps in DIAGNOSES:
        names = names_of(name, steps)
        if any(map(wanted, names)):
            try:
                yield from (line for line in diagnosis(name, scenario, steps, twinrun, 3) if wanted(line["row"]))
            except Failed as e:
                for one in filter(wanted, names):
                    yield {"skipped": one, "why": str(e), "peer": ""}

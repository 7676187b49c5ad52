"""Blind tests of the verdict PROGRAM: engines whose program is another one than the scenario's, healthy engines, and faulty ones.

    python3 tests/programs/run_programs.py                               # variants, as a user reaches the verdict
    python3 tests/programs/run_programs.py --quick --jobs 2 --json a.json
    python3 tests/programs/run_programs.py --set healthy --framework jax # or faults, or all
    python3 tests/programs/run_programs.py --only 'adam|clip' --verbose

A table of a line each, then: variants named right, healthy engines accused, faults explained away. twinrun is TWINRUN_BINARY, else the
release build's; the interpreters are those of ./dev parity (TWINRUN_PARITY_TORCH, TWINRUN_PARITY_JAX), which need numpy and torch, or
jax and optax. Exit status 1 where a healthy engine is accused, or a fault is explained away as a program.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "adapters")]

import engine_faults  # noqa: E402
import healthy  # noqa: E402
import variants  # noqa: E402
from diagnosis import interpreter, twinrun  # noqa: E402

PYTHONS, WARM = {}, {}    # by framework: its interpreter; the socket of the process that has imported it
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
ACCUSED = ("PROGRAM", "ENGINE_BUG", "SHARDING", "NONDETERMINISTIC")


def python_of(framework):
    """The interpreter that has it, or None."""
    if framework not in PYTHONS:
        PYTHONS[framework] = interpreter({"torch": "pytorch"}.get(framework, framework))
    return PYTHONS[framework]


def diagnose(scenario, settings, framework, options, data, arguments, quick):
    """(report or None, exit code, seconds, last words)"""
    script = HERE / "engine_faults.py" if "--fault" in options else HERE / f"{framework}_engine.py"
    words = [str(script), *(["--framework", framework] if "--fault" in options else []), *options]
    words = [python_of(framework), *(["-I", "-S", str(HERE / "warm.py"), "start", WARM[framework]] if framework in WARM else []), *words]
    if arguments.conventions:
        words += ["--conventions", {"torch": "pytorch", "jax": "optax"}[framework]]
    path = HERE / "scenarios" / f"{scenario}.toml"
    settings = [*settings, *([f"data.dir={data}"] if scenario == "features" else []), *arguments.settings]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="twinrun-programs-") as folder:
        command = [twinrun(), "diagnose", str(path) if path.exists() else scenario, "--subject", "exec:" + shlex.join(words), "--json", "-q",
                   "-o", folder, "--threads", str(arguments.threads), *(["--quick"] if quick else [])]
        command += [word for setting in settings for word in ("--set", setting)]
        if arguments.verbose:
            print("+", shlex.join(command), file=sys.stderr)
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1],
                              env=ENVIRONMENT)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = None
    return report, done.returncode, time.monotonic() - begin, done.stderr.strip()[-600:]


def sentences(report, only=None):
    found = [f for f in report["findings"] if only is None or f["class"] in only]
    return [report["verdict"]["headline"], *(f"{f['cause']}: {f['sentence']} {f['number_text']} {f['fingerprint']}" for f in found)]


def row_of(kind, name, framework, what, report, code, seconds, words):
    row = {"kind": kind, "name": name, "framework": framework, "what": what, "code": code, "seconds": round(seconds, 1)}
    if report is None:
        return row | {"class": "failed", "top": words.splitlines()[-1] if words else "", "text": words}
    finding = report["findings"][0] if report["findings"] else {"cause": "", "sentence": ""}
    return row | {"class": report["verdict"]["class"], "headline": report["verdict"]["headline"], "cause": finding["cause"],
                  "top": finding["sentence"], "text": "\n".join(sentences(report)),
                  "claim": "\n".join(sentences(report, (report["verdict"]["class"],))), "notes": report["notes"]}


def named(parts, text):
    """Whether a text has a word, or a key, of every mistake. Names of tensors do not count: each has a `bias`."""
    text = re.sub(r"\b[\w-]+/[\w/.-]+", "TENSOR", text)
    return all(any(re.search(word, text, re.IGNORECASE | re.DOTALL) for word in (*words, *keys)) for words, keys in parts)


def judge_variant(row, parts, verdicts):
    if row["class"] == "failed":
        return "failed"
    if row["cause"] == "engine_failed":
        return "failed"
    if row["class"] in verdicts and named(parts, row["claim"]):
        return "right"
    if row["class"] == "PROGRAM":
        return "misnamed"
    return "unseen" if row["class"] in ("NOISE", "IDENTICAL", "INCONCLUSIVE") else "not named"


def tasks_of(chosen):
    """[(kind, name, framework, what, scenario, settings, options, judge)]"""
    found = []
    if chosen.set in ("variants", "all"):
        for name, framework in variants.entries():
            what, scenario, settings, parts, cores, verdicts = variants.entry(name)
            options = ["--variant", variants.asked(name)] + (["--cores", str(cores)] if cores > 1 else [])
            settings = [*settings, f"tpu.cores={cores}"]
            found.append(("variant", name, framework, what, scenario, settings, options,
                          lambda row, parts=parts, verdicts=verdicts: judge_variant(row, parts, verdicts)))
    if chosen.set in ("healthy", "all"):
        for run in healthy.RUNS:
            options = ["--order", run.order] + (["--cores", str(run.cores)] if run.cores > 1 else [])
            found.append(("healthy", run.name, run.framework, "healthy", run.scenario, [*run.settings, f"tpu.cores={run.cores}"], options,
                          lambda row: "failed" if row["class"] == "failed" or row["cause"] == "engine_failed"
                          else "accused" if row["class"] in ACCUSED or "another program" in row["text"] else "right"))
    if chosen.set in ("faults", "all"):
        for fault in engine_faults.FAULTS.values():
            options = ["--fault", fault.name] + (["--cores", str(fault.cores)] if fault.cores > 1 else [])
            found.append(("fault", fault.name, fault.framework, fault.what, fault.scenario, [*fault.settings, f"tpu.cores={fault.cores}"], options,
                          lambda row: "failed" if row["class"] == "failed" or row["cause"] == "engine_failed"
                          else "explained away" if row["class"] == "PROGRAM" else "right" if row["class"] == "ENGINE_BUG" else "unseen"))
    return [task for task in found if (not chosen.framework or task[2] == chosen.framework)
            and (not chosen.only or re.search(chosen.only, f"{task[2]} {task[1]}"))]


def write_data(folder):
    """features.npy and labels.npy: ten clouds of 18 numbers, the same on every machine."""
    import numpy as np
    random = np.random.default_rng(20261124)
    labels = random.integers(0, 10, 285).astype(np.int32)
    clouds = random.normal(size=(10, 18))
    features = (clouds[labels] + 0.7 * random.normal(size=(285, 18))).astype(np.float32)
    np.save(pathlib.Path(folder) / "features.npy", features)
    np.save(pathlib.Path(folder) / "labels.npy", labels)


def warm(framework, folder):
    """Starts the process that forks a framework's engines (warm.py)."""
    path = pathlib.Path(folder) / f"{framework}.socket"
    # What XLA has compiled for one process of a diagnosis is there for the next.
    cache = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
             "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    process = subprocess.Popen([python_of(framework), str(HERE / "warm.py"), "serve", framework, str(path)], stdin=subprocess.PIPE,
                               env={**ENVIRONMENT, **cache})
    while not path.exists() and process.poll() is None:
        time.sleep(0.05)
    WARM[framework] = str(path)
    return process


def share(rows, results):
    return f"{sum(row['result'] in results for row in rows)} of {len(rows)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=("variants", "healthy", "faults", "all"), default="variants")
    parser.add_argument("--only", help="a regular expression that is looked for in 'FRAMEWORK NAME'")
    parser.add_argument("--framework", choices=("torch", "jax"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of twinrun")
    parser.add_argument("--quick", action="store_true", help="no further seeds, but for healthy engines: a quick look says nothing of a known cause")
    parser.add_argument("--conventions", action="store_true", help="engines declare the conventions of their framework")
    parser.add_argument("--settings", nargs="*", default=[], help="further KEY=VALUE for all")
    parser.add_argument("--cold", action="store_true", help="start every engine as a user would: slower by some seconds each")
    parser.add_argument("--json", help="where the rows are written")
    parser.add_argument("--verbose", action="store_true", help="command lines, and all findings")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    tasks = tasks_of(chosen)
    if chosen.list:
        for kind, name, framework, what, scenario, settings, options, _ in tasks:
            print(f"{kind:8} {framework:6} {name:48} {scenario:9} {what}")
        return 0
    if twinrun() is None:
        sys.exit("no twinrun: ./dev build, or TWINRUN_BINARY")
    rows, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="twinrun-programs-data-") as data:
        write_data(data)

        def run(task):
            kind, name, framework, what, scenario, settings, options, judge = task
            row = row_of(kind, name, framework, what, *diagnose(scenario, settings, framework, options, data, chosen, chosen.quick and kind != "healthy"))
            row["scenario"] = scenario
            row["result"] = judge(row)
            return row

        usable = [task for task in tasks if python_of(task[2])]
        for framework in {task[2] for task in tasks} - {task[2] for task in usable}:
            print(f"no {framework}: its rows are left out")
        processes = [] if chosen.cold else [warm(framework, data) for framework in sorted({task[2] for task in usable})]
        with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
            for row in pool.map(run, usable):
                rows.append(row)
                print(f"| {row['framework']} {row['name']} | {row['class']} | {row['code']} | {row['seconds']} s | {row['result']} | "
                      f"{row['top'][:170]} |", flush=True)
                if chosen.verbose:
                    print(row["text"])
                if chosen.json:
                    pathlib.Path(chosen.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
        for process in processes:
            process.stdin.close()
            process.wait()
    of = {kind: [row for row in rows if row["kind"] == kind] for kind in ("variant", "healthy", "fault")}
    print()
    if of["variant"]:
        print(f"variants: named right {share(of['variant'], ['right'])}; misnamed {share(of['variant'], ['misnamed'])}; "
              f"outside and not named {share(of['variant'], ['not named'])}; unseen {share(of['variant'], ['unseen'])}")
    if of["healthy"]:
        print(f"healthy: accused {share(of['healthy'], ['accused'])}")
    if of["fault"]:
        print(f"faults: explained away {share(of['fault'], ['explained away'])}; unseen {share(of['fault'], ['unseen'])}")
    if failed := [f"{row['framework']} {row['name']}" for row in rows if row["result"] == "failed"]:
        print(f"failed: {', '.join(failed)}")
    print(f"{len(rows)} runs in {time.monotonic() - begin:.0f} s")
    return 1 if any(row["result"] in ("accused", "explained away", "failed") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

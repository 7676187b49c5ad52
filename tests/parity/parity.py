"""`./dev parity`: dumps the cases, runs the frameworks on them, prints deviation, bound and ratio. Exit status 1: something
is outside its bound, or a deliberate mistake is inside.

    /usr/bin/python3 tests/parity/parity.py --tool build/release/tests/parity_dump digits_mlp --only jax
    /usr/bin/python3 tests/parity/parity.py --tool ... --json > parity.json
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tomllib

import h5py

import compare
import golden

HERE = pathlib.Path(__file__).resolve().parent
FRAMEWORKS = ("jax", "tf", "torch")


def arguments():
    parser = argparse.ArgumentParser(prog="./dev parity")
    parser.add_argument("cases", nargs="*", help="names in cases.toml; default: all")
    parser.add_argument("--only", choices=FRAMEWORKS, help="one framework")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead of the tables")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/method/numerics.md")
    parser.add_argument("--all", action="store_true", help="print every quantity, not only the worst of its kind")
    parser.add_argument("--reuse", action="store_true", help="reuse dumps and results that exist")
    parser.add_argument("--update-golden", action="store_true", help="rewrite tests/golden/parity")
    parser.add_argument("--tool", required=True, help="parity_dump")
    parser.add_argument("--work", default="build/parity", help="folder of dumps and results")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def python_of(framework, work):
    """Returns the interpreter that has the framework: from the environment, or where ./dev parity installs it."""
    default = "/usr/bin/python3" if framework == "torch" else str(work / f"venv-{framework}/bin/python")
    return os.environ.get(f"TWINRUN_PARITY_{framework.upper()}", default)


def scenario_of(case):
    name = case.get("scenario", case["name"])
    file = HERE / "scenarios" / f"{name}.toml"
    return str(file.relative_to(HERE.parent.parent)) if file.exists() else name


def wait(process):
    """Waits for a process of start(); prints nothing unless it failed."""
    _, error = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(process.args[:2])} ..: exit status {process.returncode}\n{error[-6000:]}")


def start(command):
    return subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            errors="replace")


def dump_case(case, options, path):
    sets = [part for pair in case.get("set", []) for part in ("--set", pair)]
    whole = [] if "S" in case["corners"] else ["--whole-only"]
    wait(start([options.tool, scenario_of(case), path, "--steps", case.get("steps", 20), "--members", case.get("members", 16),
                "--threads", options.threads, *whole, *sets]))


def jobs_of(case, only):
    """Yields (framework, corner, mistake) for all jobs of a case."""
    for corner in case["corners"]:
        for framework in case.get("frameworks", FRAMEWORKS):
            # PyTorch's replicas are processes, so S is not run.
            if only in (None, framework) and (corner, framework) != ("S", "torch"):
                yield framework, corner, None
    for wrong in case.get("wrong", []) if only in (None, "jax") else []:
        yield "jax", "S" if wrong.startswith("gradients_") else "R", wrong


def result_path(work, case, framework, corner, wrong):
    return work / ".".join([case["name"], framework, corner, *([wrong] if wrong else []), "h5"])


def run_all(cases, options, work):
    """Makes the dumps, then runs every framework's jobs, one process per framework."""
    def wanted(path, source=None):
        """Whether a file must be made: always, or if it is missing or older than the dump that it is made from."""
        return not (options.reuse and path.exists() and (source is None or path.stat().st_mtime > source.stat().st_mtime))

    for case in cases:
        if wanted(work / f"{case['name']}.h5"):
            dump_case(case, options, work / f"{case['name']}.h5")
    running = []
    for framework in FRAMEWORKS:
        jobs = [part for case in cases for f, corner, wrong in jobs_of(case, options.only)
                if f == framework and wanted(result_path(work, case, f, corner, wrong), work / f"{case['name']}.h5")
                for part in ("--job", work / f"{case['name']}.h5", result_path(work, case, f, corner, wrong), corner, wrong or "-")]
        if jobs:
            running.append(start([python_of(framework, work), HERE / f"run_{framework}.py", *jobs]))
    for process in running:
        wait(process)


def verdict(wrong, rows):
    outside = any(r.outside for r in rows)
    return outside if wrong else not outside


def main():
    options = arguments()
    work = pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    cases = tomllib.loads((HERE / "cases.toml").read_text())["case"]
    unknown = set(options.cases) - {c["name"] for c in cases}
    if unknown:
        sys.exit(f"./dev parity: unknown case {', '.join(sorted(unknown))}; known: {', '.join(c['name'] for c in cases)}")
    cases = [case for case in cases if not options.cases or case["name"] in options.cases]
    run_all(cases, options, work)
    good, report = True, []
    if options.markdown:
        print(compare.MARKDOWN_HEAD)
    for case in cases:
        for framework, corner, wrong in jobs_of(case, options.only):
            out = result_path(work, case, framework, corner, wrong)
            file = h5py.File(work / f"{case['name']}.h5", "r")
            rows = compare.compare(file, corner, out)
            with h5py.File(out, "r") as result:
                version = result.attrs["version"]
            right = verdict(wrong, rows)
            good = good and right
            title = f"{case['name']} {corner} {framework} {version}" + (f", wrong: {wrong}" if wrong else "")
            report.append({"case": case["name"], "corner": corner, "framework": framework, "version": version, "wrong": wrong,
                           "as_expected": right, "rows": [{**vars(r), "ratio": r.ratio, "outside": r.outside} for r in rows]})
            if options.markdown:
                print(compare.markdown_row(case["name"], corner, framework, wrong, rows))
            elif not options.json:
                print(compare.table(title, rows if options.all else compare.worst(rows)))
                print("" if right else ("  a mistake inside the bounds\n" if wrong else "  outside the bounds: not the same computation\n"),
                      flush=True)
            if options.update_golden:
                golden.write(HERE.parent / "golden/parity", case, scenario_of(case), corner, framework, version, wrong, file, out)
    if options.json:
        json.dump({"good": good, "results": report}, sys.stdout, indent=1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

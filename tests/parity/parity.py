"""`./dev parity`: dumps the cases, runs the frameworks on them, prints deviation, bound and ratio. Exit status 1: something
lies outside its bound, or a deliberate mistake lies inside.

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
    parser.add_argument("--json", action="store_true", help="a JSON document in the place of the tables")
    parser.add_argument("--all", action="store_true", help="every quantity, not the worst of its kind")
    parser.add_argument("--update-golden", action="store_true", help="rewrite tests/golden/parity")
    parser.add_argument("--tool", required=True, help="parity_dump")
    parser.add_argument("--work", default="build/parity", help="folder of dumps and results")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def python_of(framework, work):
    """The interpreter that has the framework: from the environment, or where ./dev parity puts it."""
    default = "/usr/bin/python3" if framework == "torch" else str(work / f"venv-{framework}/bin/python")
    return os.environ.get(f"TWINRUN_PARITY_{framework.upper()}", default)


def run(command):
    """Says nothing unless it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr[-4000:]}")


def scenario_of(case):
    name = case.get("scenario", case["name"])
    file = HERE / "scenarios" / f"{name}.toml"
    return str(file.relative_to(HERE.parent.parent)) if file.exists() else name


def dump_case(case, options, work):
    path = work / f"{case['name']}.h5"
    sets = [part for pair in case.get("set", []) for part in ("--set", pair)]
    whole = [] if "S" in case["corners"] else ["--whole-only"]
    run([options.tool, scenario_of(case), path, "--steps", case.get("steps", 20), "--members", case.get("members", 16),
         "--threads", options.threads, *whole, *sets])
    return path


def train(framework, dump, corner, work, wrong=None):
    out = work / f"{dump.stem}.{framework}.{corner}{'.' + wrong if wrong else ''}.h5"
    run([python_of(framework, work), HERE / f"models_{framework}.py", dump, out, "--corner", corner,
         *(["--wrong", wrong] if wrong else [])])
    return out


def results_of(case, options, work):
    """Every (case, corner, framework, wrong, rows, file) of a case."""
    dump = dump_case(case, options, work)
    with h5py.File(dump, "r") as file:
        for corner in case["corners"]:
            for framework in FRAMEWORKS:
                if framework not in case.get("frameworks", FRAMEWORKS) or options.only not in (None, framework):
                    continue
                if corner == "S" and framework == "torch":
                    continue    # its replicas are processes: not attempted
                out = train(framework, dump, corner, work)
                yield case, corner, framework, None, compare.compare(file, corner, out), out, file
        for wrong in case.get("wrong", []) if options.only in (None, "jax") else []:
            corner = "S" if wrong.startswith("gradients_") else "R"
            out = train("jax", dump, corner, work, wrong)
            yield case, corner, "jax", wrong, compare.compare(file, corner, out), out, file


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
        sys.exit(f"./dev parity: no case {', '.join(sorted(unknown))}; there are {', '.join(c['name'] for c in cases)}")
    good, report = True, []
    for case in cases:
        if options.cases and case["name"] not in options.cases:
            continue
        for case, corner, framework, wrong, rows, out, file in results_of(case, options, work):
            with h5py.File(out, "r") as result:
                version = result.attrs["version"]
            right = verdict(wrong, rows)
            good = good and right
            title = f"{case['name']} {corner} {framework} {version}" + (f", wrong: {wrong}" if wrong else "")
            report.append({"case": case["name"], "corner": corner, "framework": framework, "version": version, "wrong": wrong,
                           "as_expected": right, "rows": [{**vars(r), "ratio": r.ratio, "outside": r.outside} for r in rows]})
            if not options.json:
                print(compare.table(title, rows if options.all else compare.worst(rows)))
                print("" if right else ("  a mistake that the bounds do not show\n" if wrong else "  outside: not the same computation\n"),
                      flush=True)
            if options.update_golden:
                golden.write(HERE.parent / "golden/parity", case, scenario_of(case), corner, framework, version, wrong, file, out)
    if options.json:
        json.dump({"good": good, "results": report}, sys.stdout, indent=1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

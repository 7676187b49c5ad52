#!/usr/bin/env python3
"""`twinrun profile --xplane` reads what JAX's profiler records of a training on the CPU, and XProf agrees.

    record_jax.py TWINRUN

TWINRUN_PARITY_JAX names an interpreter that has JAX, TWINRUN_XPROF one that has xprof; exit status 77 without them.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 9


def main():
    twinrun, jax, xprof = sys.argv[1], os.environ.get("TWINRUN_PARITY_JAX", ""), os.environ.get("TWINRUN_XPROF", "")
    for python, package in ((jax, "jax"), (xprof, "xprof")):
        if not python or subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode != 0:
            print(f"SKIPPED: TWINRUN_PARITY_JAX and TWINRUN_XPROF name no interpreter with {package}")
            return 77
    failed = []

    def expect(holds, what):
        if not holds:
            failed.append(what)
            print(f"FAILED: {what}")

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([jax, HERE / "jax_steps.py", folder, str(STEPS)], check=True)
        truth = json.loads(pathlib.Path(folder, "truth.json").read_text())
        read = subprocess.run([twinrun, "profile", "--xplane", folder, "--json"], check=True, capture_output=True, text=True)
        expect(read.stderr == "", read.stderr)
        capture = json.loads(read.stdout)
        expect(capture["device"] == "CPU" and capture["devices"] == 1, f"{capture['devices']} {capture['device']}")
        expect([step["step"] for step in capture["steps"]] == truth["steps"], f"steps {capture['steps']}")

        # Every op that ran is an instruction of the compiled step and ran once a step; all dots of the step ran.
        ops = {op["name"]: op for op in capture["ops"]}
        expect(set(ops) <= set(truth["instructions"]), f"ops {set(ops) - set(truth['instructions'])}")
        for op in ops.values():
            expect(op["count"] == STEPS, f"{op['name']} ran {op['count']} times")
            expect(op["program"] == "jit_step", f"{op['name']} of {op['program']}")
        places = {place for op in ops.values() for place in op["places"]}
        expect({"dense1/dot_general", "dense2/dot_general", "dense2/dot_general.grad"} <= places, f"places {sorted(places)}")
        whole = capture["busy_share"] + capture["input_share"] + capture["idle_share"]
        expect(abs(whole - 1) < 1e-9, f"shares add up to {whole}")
        expect(sum(step["seconds"] for step in capture["steps"]) / STEPS == capture["step_seconds"], "the mean step")

        # XProf leaves out the first and the last of more than five such steps; the others are the same.
        run = subprocess.run([xprof, HERE / "convert.py", folder, "", "input_pipeline_analyzer"], check=True, capture_output=True, text=True)
        table = next(t for t in json.loads(run.stdout)["input_pipeline_analyzer"] if "steptime_ms_average" in t.get("p", {}))
        shown = {row["c"][0]["v"]: row["c"][-1]["v"] for row in table["rows"]}
        ours = {f"train {step['step']}": 1e3 * step["seconds"] for step in capture["steps"][1:-1]}
        expect(set(shown) == set(ours), f"XProf shows {sorted(shown)}")
        for name, milliseconds in ours.items():
            expect(abs(milliseconds - shown.get(name, 0)) < 1e-9, f"{name}: {milliseconds} ms here, {shown.get(name)} in XProf")

        # Beside the model of the same step, every op that ran is found by its place in the source, and each in one match.
        command = [twinrun, "profile", "--xplane", next(pathlib.Path(folder).rglob("*.xplane.pb")), "--program", folder + "/mine.mlir", "--json"]
        read = subprocess.run(command, check=True, capture_output=True, text=True)
        against = json.loads(read.stdout)["comparison"]
        matched = [name for match in against["matches"] for name in match["ops"]]
        expect(sorted(matched) == sorted(ops), f"not matched {set(ops) - set(matched)}")
        expect(against["only_in_capture_seconds"] == 0 and not against["same_kind_of_device"], against)
        units = {unit.partition("@")[0] for match in against["matches"] for unit in match["units"]}
        expect({"dense1/dot_general", "dense2/dot_general", "dense1/tanh"} <= units, f"units {sorted(units)}")
        tanh = [match for match in against["matches"] if any(unit.startswith("dense1/tanh") for unit in match["units"])]
        expect(len(tanh) == 1 and "wrapped_tanh" in tanh[0]["ops"], tanh)
        total = sum(match["seconds"] for match in against["matches"])
        expect(abs(total - sum(op["seconds"] for op in capture["ops"])) < 1e-9 * total, f"{total} s are matched")

        # Text is made of the same; a broken capture is refused in one line.
        shown = subprocess.run([twinrun, "profile", "--xplane", folder], check=True, capture_output=True, text=True).stdout
        expect(f"{STEPS} of them, from step annotations of the host" in " ".join(shown.split()), shown)
        file = next(pathlib.Path(folder).rglob("*.xplane.pb"))
        file.write_bytes(file.read_bytes()[:-7])
        broken = subprocess.run([twinrun, "profile", "--xplane", str(file)], capture_output=True, text=True)
        expect(broken.returncode == 128 and "cut short" in broken.stderr, broken.stderr)
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

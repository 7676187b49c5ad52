#!/usr/bin/env python3
"""XProf opens the profiles of `twinrun profile -o`, modelled and measured, and shows the same figures.

    open_profiles.py TWINRUN

The figures come from XProf's converter, from its pages in a headless Chromium, and from TensorBoard with XProf's plugin. TWINRUN_XPROF
names an interpreter that has the packages xprof and tensorboard; exit status 77 where it or Chromium is missing.
"""
import contextlib
import gzip
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "browser"))
import webdriver  # noqa: E402

PYTHON = os.environ.get("TWINRUN_XPROF", "")
HERE = pathlib.Path(__file__).resolve().parent
SHOWN = ("overview_page", "input_pipeline_analyzer", "hlo_stats", "op_profile", "framework_op_stats", "roofline_model", "memory_viewer",
         "graph_viewer", "trace_viewer@")

# What XProf 2.24.2 logs as a warning or an error of any profile of a TPU, or of any profile at all.
OF_XPROF = ("All log messages before absl::InitializeLog",  # prints its own start-up to stderr
            "Unable to unpack step_breakdown. Expected: generic",  # op_stats_to_input_pipeline_analysis.cc knows only GPUs there
            "registered for tool: trace_viewer@", "not found for tool: trace_viewer@",  # has an older implementation, which it then uses
            "registered for tool: tool_names", "for tool: tool_names",  # the list of tools is none itself
            "No HLO proto found in XSpace",  # of a measured profile, which has no compiled program
            "Remapping device id")  # numbers the sections of a trace for each host

PROFILES = {
    "waits": ("digits_mlp", "--set", "train.batch=4096", "--set", "data.prefetch=0", "--set", "data.cache=none", "--set",
              "tpu.iterations_per_loop=1"),
    "computes": ("digits_cnn", "--set", "train.batch=1024"),
    "measured": ("digits_cnn", "--measured", "--engine", "tpu", "--steps", "20", "--threads", "2", "-q"),
    "measured_waits": ("digits_mlp", "--measured", "--engine", "cpu", "--steps", "20", "--threads", "1", "-q", "--set",
                       "data.prefetch=0", "--set", "data.cache=none"),
}


class Checks:
    failed = 0
    made = 0

    def expect(self, holds, where, what):
        self.made += 1
        if not holds:
            self.failed += 1
            print(f"FAILED: {where}: {what}")

    def same(self, ours, theirs, where, what, unit):
        """Both numbers, to half of the last digit that XProf displays and a picosecond of rounding."""
        self.expect(abs(ours - theirs) <= unit / 2 + 1e-9 * abs(ours), where, f"{what}: {ours} here, {theirs} in XProf")


def rows_of(table):
    """A table of Google's chart format as dictionaries by column."""
    ids = [column["id"] for column in table["cols"]]
    return [dict(zip(ids, (cell["v"] for cell in row["c"]))) for row in table["rows"]]


def hlo_name(op):
    return re.sub(r"[^A-Za-z0-9_.-]", "_", op)


def log_trouble(text):
    lines = [line for line in text.splitlines() if re.match(r"[WEF]\d{4} |WARNING|Traceback|.*Error:", line)]
    return [line for line in lines if not any(known in line for known in OF_XPROF)]


def check_converted(check, where, profile, tools):
    steps, average = profile["steps"], profile["average"]
    measured = profile["source"] == "measured"
    cores = 1 if measured else min(8, profile["cores"])
    written = len(steps) if measured else 2

    overview = tools["overview_page"]
    texts = json.dumps(overview)
    run = next(t["p"] for t in overview if "device_type" in t.get("p", {}))
    check.expect(run["device_type"] == profile["machine"], where, run)
    check.expect(run["device_core_count"] == str(cores), where, run)
    check.expect("warning" not in texts.lower() and "error" not in texts.lower(), where, "XProf's overview reports a problem")

    shown = next(t for t in tools["input_pipeline_analyzer"] if "steptime_ms_average" in t.get("p", {}))
    figures = shown["p"]
    check.same(1e3 * profile["step_seconds"], float(figures["steptime_ms_average"]), where, "step time in ms", 0.01)
    conclusion = figures["input_conclusion"]
    waits = float(re.search(r"([\d.]+)% of the total step time", conclusion).group(1))
    check.same(100 * profile["input"]["share"], waits, where, "percent of waiting for input", 0.1)
    bound = {"not input-bound": "NOT input", "moderately input-bound": "MODERATELY", "highly input-bound": "HIGHLY"}
    check.expect(bound[profile["input"]["bound"]] in conclusion, where, conclusion)
    rows = rows_of(shown)
    check.expect(len(rows) == written, where, f"{len(rows)} steps, not {written}")
    for row, step in zip(rows, steps if measured else [average] * written):
        total = sum(row[part] for part in ("tcComputeTimeMs", "tcInfeedTimeMs", "tcOutfeedTimeMs", "tcIdleTimeMs"))
        check.same(1e3 * step["seconds"], total, where, "a step in ms", 2e-9)
        check.same(1e3 * step["input"], row["tcInfeedTimeMs"], where, "its input in ms", 4e-9)

    # Ops: the converter gives binary64, so all that differs is the rounding of each event to a picosecond.
    busy = average["compute"] + average["all_reduce"]
    scale = busy / sum(op["seconds"] for op in profile["ops"])
    ours = {hlo_name(op["name"]): op["seconds"] * scale for op in profile["ops"]}
    theirs = {row["hlo_op_name"]: row for row in rows_of(tools["hlo_stats"])}
    check.expect(set(ours) == set(theirs) - {"infeed", "IDLE"}, where, f"ops {set(ours) ^ set(theirs)}")
    for name, seconds in ours.items():
        row = theirs[name]
        check.expect(row["occurrences"] == written * cores, where, f"{name} occurs {row['occurrences']} times")
        check.same(1e6 * seconds, row["avg_self_time"], where, f"{name} in us", 4e-6)
    top = [row for row in rows_of(overview[0])]
    fastest = sorted(ours.values(), reverse=True)
    names = {op["name"].replace(":", "_"): op["seconds"] * scale for op in profile["ops"]}
    for row, seconds in zip([r for r in top if r["operation"] != "infeed"], fastest):
        check.same(seconds / (busy + average["input"]), row["selfTimePercent"], where, f"top op {row['operation']}", 1e-3)
        check.same(names[row["operation"]], seconds, where, f"the order of {row['operation']}", 1e-9)
    check.expect(len(top) == min(10, len(ours) + (average["input"] > 0)), where, f"{len(top)} top ops")

    categories = {}
    for op in profile["ops"]:
        categories[op["category"]] = categories.get(op["category"], 0) + op["seconds"] * scale
    program = next(node for node in tools["op_profile"]["byProgram"]["children"] if node["name"] != "IDLE")
    shown = {node["name"]: node["metrics"]["rawTime"] * 1e-12 / (written * cores) for node in program["children"]}
    for name, seconds in categories.items():
        check.same(1e6 * seconds, 1e6 * shown.get(name, 0), where, f"category {name} in us", 1e-3)

    if not measured:
        # The plan of a core's memory, and the step as a graph: each op's operands.
        memory = tools["memory_viewer"]
        check.same(profile["memory_used"] / 2**20, memory["peakHeapMib"], where, "memory in MiB", 1e-6)
        check.expect(memory["moduleName"] == profile["scenario"], where, memory["moduleName"])
        text = tools["graph_viewer"]
        missing = [name for name in ours if f" {name} = " not in text]
        check.expect(not missing, where, f"the graph lacks {missing[:3]}")

    events = tools["trace_viewer@"]["traceEvents"]
    processes = {event["args"]["name"] for event in events if event.get("name") == "process_name"}
    check.expect(any("TPU:0" in name for name in processes) and any("CPU" in name for name in processes), where, processes)
    drawn = {event["name"] for event in events if event.get("ph") == "X"}
    check.expect(set(ours) <= drawn, where, f"the trace lacks {sorted(set(ours) - drawn)[:3]}")


@contextlib.contextmanager
def server(command, log):
    """Runs a server, with PORT in its command replaced, until the block ends; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        other = probe.getsockname()[1]
    words = [word.replace("OTHER", str(other)).replace("PORT", str(port)) for word in command]
    with open(log, "w") as out:
        child = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
        try:
            address = f"http://localhost:{port}"
            deadline = time.monotonic() + 120
            while True:
                try:
                    urllib.request.urlopen(address, timeout=5).read()
                    break
                except (urllib.error.URLError, OSError):
                    if time.monotonic() > deadline or child.poll() is not None:
                        raise RuntimeError(f"{command[0]} does not start: {pathlib.Path(log).read_text()[-2000:]}") from None
                    time.sleep(0.5)
            yield address
        finally:
            child.terminate()
            child.wait(30)


def fetch(url):
    with urllib.request.urlopen(url, timeout=120) as answer:
        data = answer.read()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def text_of(browser, url, wanted):
    """The text of a page once it has what is wanted, or after a minute."""
    browser._call("POST", browser.session + "/url", {"url": url})
    deadline = time.monotonic() + 60
    while True:
        text = browser.run("return document.body.innerText;")
        if wanted in text or time.monotonic() > deadline:
            return text
        time.sleep(0.5)


def check_pages(check, where, profile, address, browser, run):
    def shows(tool, wanted):
        text = text_of(browser, f"{address}/data/plugin/profile/{tool}?run={run}&tag={tool}&host=twinrun", wanted)
        check.expect(wanted in text, where, f"no {wanted!r} on XProf's page {tool}: {text[:600]}")
        check.expect("There was an error" not in text, where, f"XProf's page {tool} has an error: {text[:900]}")
        return text

    text = shows("input_pipeline_analyzer", f"Average: {1e3 * profile['step_seconds']:.2f} ms")
    share = f"{100 * profile['input']['share']:.1f}% of the total step time sampled is waiting for input"
    check.expect(share in text, where, f"no {share!r} on that page: {text[:600]}")
    text = shows("overview_page", f"Device type: {profile['machine']}")
    shows("op_profile", "Overall TPU FLOPS utilization")
    if profile["source"] == "modelled":
        wanted = f"{100 * profile['matrix_utilisation']:.1f}%"
        check.expect(re.search(r"Utilization of TPU Matrix Units\s+" + re.escape(wanted), text), where, f"not {wanted}: {text[:600]}")
        shows("memory_viewer", f"Peak memory allocation: {profile['memory_used'] / 2**20:.2f} MiB")
        shows("graph_viewer", f"{profile['scenario']}(1) - {hlo_name(profile['ops'][0]['name'])}")
    shows("trace_viewer@", "Trace Viewer")
    frames = browser.run("return [...document.querySelectorAll('iframe')].map(f => f.src);")
    check.expect(any("trace_viewer_index" in frame for frame in frames), where, f"no trace viewer: {frames}")


def main():
    if not PYTHON or subprocess.run([PYTHON, "-c", "import xprof, tensorboard"], capture_output=True).returncode != 0:
        print("SKIPPED: TWINRUN_XPROF names no interpreter with the packages xprof and tensorboard")
        return 77
    if webdriver.missing():
        print(f"SKIPPED: {webdriver.missing()}")
        return 77
    check = Checks()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        profiles = {}
        for key, words in PROFILES.items():
            subprocess.run([sys.argv[1], "profile", *words, "-o", key], check=True, cwd=folder, stdout=subprocess.DEVNULL)
            profiles[key] = json.loads((folder / key / "profile.json").read_text())
            of_module = ("memory_viewer", "graph_viewer")
            tools = [tool for tool in SHOWN if profiles[key]["source"] == "modelled" or tool not in of_module]
            command = [PYTHON, HERE / "convert.py", folder / key, f"{profiles[key]['scenario']}(1)", *tools]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                check.expect(False, key, f"XProf's converter: {run.stderr[-2000:]}")
                continue
            check_converted(check, key, profiles[key], json.loads(run.stdout))
            check.expect(not log_trouble(run.stderr), key, f"XProf logs {log_trouble(run.stderr)[:3]}")
        for key in ("waits", "measured"):
            xprof = str(pathlib.Path(PYTHON).parent / "xprof")
            command = [xprof, "--logdir", str(folder / key), "--port", "PORT", "--grpc_port", "OTHER"]
            with server(command, folder / "xprof.log") as address, webdriver.Browser() as browser:
                check_pages(check, key, profiles[key], address, browser, profiles[key]["source"])
        command = [PYTHON, "-m", "tensorboard.main", "--logdir", str(folder / "waits"), "--port", "PORT"]
        with server(command, folder / "tensorboard.log") as address:
            runs = fetch(f"{address}/data/plugin/profile/runs")
            check.expect(runs == ["modelled"], "TensorBoard", f"runs {runs}")
    print(f"{check.made} checks, {check.failed} failed")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the results of every kind of diagnosis can do: a scenario, a script, a trace, two sides, a module, a JAX step, a known step."""
import json
import pathlib
import subprocess
import xml.etree.ElementTree

FORMATS = ("terminal", "markdown", "html", "json", "csv", "junit")
QUESTIONS = ["repeats", "operations", "program", "sharding", "effect"]


def check(case, program, folder, kind, code, bundle=True):
    """Holds one results folder against what all kinds promise.

    case: a unittest.TestCase; program: path of the binary; code: the diagnosis's exit status; bundle: whether its finding can be
    bundled (True), or the text that says what to send instead."""
    folder = pathlib.Path(folder)

    def run(*words):
        return subprocess.run([str(program), *map(str, words)], cwd=folder.parent, capture_output=True, text=True)

    report = json.loads((folder / "report.json").read_text())
    case.assertEqual((report["kind"], list(report["answers"])), (kind, QUESTIONS))
    again = folder.parent / f"{folder.name}-again"
    made = run("report", folder, "--format", ",".join(FORMATS[1:]), "-o", again)
    case.assertEqual(made.returncode, 0, made.stderr)
    case.assertEqual(xml.etree.ElementTree.parse(again / "junit.xml").getroot().attrib["tests"], str(len(QUESTIONS)))
    headline = report["verdict"]["headline"]
    case.assertIn(report["verdict"]["class"], run("report", folder).stdout)
    case.assertIn(" ".join(headline.split())[:40], " ".join((again / "report.md").read_text().replace("`", "").replace("\\", "").split()))
    shown = run("diagnose", folder)
    case.assertEqual(shown.returncode, code, shown.stderr)
    case.assertLess(len(shown.stdout.splitlines()), 45, shown.stdout)
    case.assertEqual(run("diagnose", folder, "--fail-on", "sharding" if report["verdict"]["class"] != "SHARDING" else "engine_bug").returncode, 0)
    told = json.loads(run("diagnose", folder, "--json").stdout)
    case.assertEqual((told["kind"], told["verdict"]["class"], told["verdict"]["exit_code"]), (kind, report["verdict"]["class"], code))
    case.assertEqual(list(told), list(json.loads((again / "report.json").read_text())), "one shape for all kinds")
    packed = run("bundle", folder, "-o", again / "fault.zip", "-q")
    if bundle is not True:
        case.assertEqual((packed.returncode, bundle in packed.stderr), (128, True), packed.stderr)
        return told
    case.assertEqual(packed.returncode, 0, packed.stderr)
    replayed = run("replay", again / "fault.zip", "-q")
    case.assertEqual((replayed.returncode, "reproduced: " in replayed.stdout), (0, True), replayed.stdout + replayed.stderr)
    return told

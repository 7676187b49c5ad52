"""What the crash campaign runs: a command line for each verb, what its result is, and what must hold afterwards.

A scene is a folder with a scenario, in which a command is run; `disturbed` runs it under the library failing_calls, and
`judge` and `judge_again` say what is wrong with how it ended, or None.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAULT = "scale@dense2/kernel.grad,core=1,from=1"
LIMIT_S = 120  # a run takes less than a second
OLD = 3 * 86400  # seconds: older than every age at which leftovers are swept


@dataclass
class Verb:
    name: str
    words: list  # of the command line
    resume: list = field(default_factory=list)  # added where the command is given again
    before: list = field(default_factory=list)  # command lines that make what it starts from


THREAD = ["--threads", "1", "-q"]
VERBS = {v.name: v for v in [
    Verb("train", ["train", "tiny.toml", "--set", "train.checkpoint_every=2", "-o", "run.h5", "--json", *THREAD]),
    Verb("record", ["record", "tiny.toml", "-o", "tiny.golden.h5", "--json", *THREAD]),
    Verb("diagnose", ["diagnose", "tiny.toml", "--fault", FAULT, "-o", "out", "--json", *THREAD]),
    Verb("bundle", ["bundle", "out", "-o", "fault.zip", "--tries", "1", "--json", *THREAD],
         before=[["diagnose", "tiny.toml", "--fault", FAULT, "-o", "out", *THREAD]]),
    Verb("drill", ["drill", "tiny.toml", "--cases", "2", "-o", "drill", "--json", *THREAD], resume=["--resume"]),
    # Nothing is left to be run: what is kept must stay, to the last digit.
    Verb("resume", ["drill", "tiny.toml", "--cases", "1", "-o", "drill", "--resume", "--json", *THREAD],
         before=[["drill", "tiny.toml", "--cases", "1", "-o", "drill", *THREAD]]),
]}

DOCUMENTED = {0, 1, 10, 15, 20, 30, 125, 128, 130}  # exit codes
OF_MACHINE = {125, 128}  # those of an error that the machine has caused
VOLATILE = re.compile(r"seconds|^kept$|^threads$|^reproduce$|^date$|^command$|^bytes$|xxh3|^checksum$|^original/")


def rounded(value):
    """The value without what differs from run to run: times, and the last digits of sums in binary64."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items() if not VOLATILE.search(k)}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, str):  # the number of threads may be another one, and changes no bit
        return re.sub(r"thread count: \d+ and \d+", "", value)
    if isinstance(value, float):
        return float(f"{value:.8g}") if abs(value) > 1e-9 else 0.0
    return value


@dataclass
class Ran:
    code: int  # negative: ended by this signal; None: ran too long
    out: str
    err: str

    def words(self):
        return f"exit {self.code}: {self.err.strip()[-300:]}"


class Scene:
    """A folder with what a verb starts from. `fresh` makes it as it was."""

    def __init__(self, program, shim, verb, folder):
        # Drills are the other program's.
        self.reader, self.program = str(program), str(program) + ("_dev" if verb.words[0] == "drill" else "")
        self.shim, self.verb = str(shim), verb
        self.root = Path(folder)
        self.work = self.root / "work"
        self.template = self.root / "template"
        self.whole_known = {}
        self.template.mkdir(parents=True)
        for name in ("tmp", "cache"):
            (self.template / name).mkdir()
        shutil.copy(HERE / "tiny.toml", self.template)
        self.work = self.template
        for words in verb.before:
            self.run(words)
        shutil.rmtree(self.template / "cache")
        (self.template / "cache").mkdir()
        self.work = self.root / "work"
        self.fresh()
        self.log = self.root / "log"
        first = self.disturbed(FAILING_CALLS_LOG=self.log)
        self.code, self.result = first.code, self.result_of(first)
        self.calls = read_log(self.log)
        self.allocations = next((c.inode for c in self.calls if c.name == "allocations"), 0)
        self.calls = [c for c in self.calls if c.number > 0]
        if self.code not in (0, 1, 20) or self.result is None:
            raise SystemExit(f"{verb.name}: the undisturbed run failed: {first.words()}")

    def fresh(self):
        if self.work.exists():
            os.system(f"chmod -R u+rwx {self.work}")
            shutil.rmtree(self.work)
        shutil.copytree(self.template, self.work)

    def environment(self, work=None):
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("FAILING_CALLS", "TWINRUN"))}
        work = work or self.work
        return {**keep, "TMPDIR": str(work / "tmp"), "TWINRUN_CACHE": str(work / "cache"), "LC_ALL": "C.UTF-8"}

    def start(self, words, environment=None, prepare=None, work=None, **streams):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        program = self.reader if words[0] == "inspect" else self.program
        return subprocess.Popen([program, *words], cwd=work or self.work, preexec_fn=prepare, text=True, errors="replace",
                                env=environment or self.environment(), start_new_session=True, **streams)

    def run(self, words, environment=None, prepare=None, work=None, **streams):
        process = self.start(words, environment, prepare, work, **streams)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Ran(None, "", f"still ran after {LIMIT_S} s")
        return Ran(process.returncode, out or "", err or "")

    def disturbed(self, **settings):
        environment = {**self.environment(), "LD_PRELOAD": self.shim, "FAILING_CALLS_UNDER": str(self.work),
                       **{k: str(v) for k, v in settings.items()}}
        return self.run(self.verb.words, environment)

    def again(self):
        for path in self.work.rglob("*"):  # what was left is found as if days had passed
            if ".twinrun-" in path.name or path.parent.name == "tmp":
                os.utime(path, (time.time() - OLD,) * 2, follow_symlinks=False)
        return self.run(self.verb.words + self.verb.resume)

    # ---- the result, and what is wrong --------------------------------------------------------------------------------

    def result_of(self, ran):
        """What the run computed, as text that is equal for equal results; None without one."""
        try:
            if self.verb.name == "resume":
                return (self.work / "drill/cases.jsonl").read_text()
            if self.verb.name == "drill":
                lines = (self.work / "drill/cases.jsonl").read_text().splitlines()
                records = {r["id"]: r for r in map(json.loads, lines)}
                return json.dumps(rounded([records[k] for k in sorted(records)]), sort_keys=True)
            if self.verb.name == "bundle":
                with zipfile.ZipFile(self.work / "fault.zip") as packed:
                    return json.dumps([(n, hashlib.sha256(packed.read(n)).hexdigest()) for n in packed.namelist()
                                       if n != "manifest.json" and not VOLATILE.search(n)])
            value = json.loads((self.work / "out/report.json").read_text() if self.verb.name == "diagnose" else ran.out)
            return json.dumps(rounded(value), sort_keys=True)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def leftovers(self):
        return [str(p.relative_to(self.work)) for p in self.work.rglob("*")
                if ".twinrun-" in p.name or p.parent == self.work / "tmp"]

    def torn(self):
        """Files under a final name that are not whole."""
        return [str(p.relative_to(self.work)) for p in sorted(self.work.rglob("*"))
                if p.is_file() and ".twinrun-" not in p.name and "tmp" not in p.relative_to(self.work).parts
                and "begun" not in p.parts and not self.whole(p)]

    def whole(self, path):
        content = path.read_bytes()
        key = (path.suffix, content)
        if key not in self.whole_known:
            self.whole_known[key] = self.is_whole(path, content)
        return self.whole_known[key]

    def is_whole(self, path, content):
        try:
            if path.suffix == ".h5":
                return self.run(["inspect", str(path), "--json"]).code == 0
            if path.suffix == ".json":
                return json.loads(content) is not None
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as packed:
                    return packed.testzip() is None
            if path.suffix == ".html":
                return content.rstrip().endswith(b"</html>")
            return path.suffix == ".jsonl" or bool(content)  # the last line of records may be cut short
        except (ValueError, zipfile.BadZipFile):
            return False

    def judge(self, ran, kill=False, may_leave=False):
        """What is wrong with a disturbed run: None, or words. `may_leave`: it was kept from removing files."""
        left = [] if may_leave else self.leftovers()
        torn = self.torn()
        if torn:
            return f"torn: {torn}; {ran.words()}"
        if kill and ran.code == -9:
            return None
        if ran.code == self.code and self.result_of(ran) == self.result:
            return f"leftovers: {left}" if left else None
        if ran.code not in OF_MACHINE:
            return f"not a documented end: {ran.words()}"
        if "twinrun:" not in ran.err or "internal error" in ran.err:
            return f"no clear error: {ran.words()}"
        return f"leftovers: {left}; {ran.words()}" if left else None

    def judge_again(self):
        """The same command once more, undisturbed: what is wrong with it."""
        ran = self.again()
        if ran.code != self.code:
            return f"given again: {ran.words()}"
        if self.result_of(ran) != self.result:
            return f"given again: another result; {ran.words()}"
        if self.leftovers():
            return f"not swept: {self.leftovers()}"
        return None


@dataclass
class Call:
    number: int
    name: str
    inode: int
    offset: int
    flags: str
    path: str
    to: str
    data: bytes


def read_log(path):
    """The calls that failing_calls has written down."""
    content, calls, at = Path(path).read_bytes(), [], 0
    while at < len(content):
        end = content.index(b"\n", at)
        number, name, inode, offset, length, flags, first, second = content[at:end].decode().split("\t")
        at = end + 1 + int(length)
        calls.append(Call(int(number), name, int(inode), int(offset), flags, os.path.normpath(first) if first else "",
                          os.path.normpath(second) if second else "", content[end + 1:at]))
    return calls

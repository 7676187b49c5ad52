"""The mechanisms by which a sharded step means something else than the whole batch's, in words, and what cures them.

sentence, cure = words("clipping", "torch", facts)

The words are those of causes.json, the catalogue that the program itself reads as well.
"""

import functools
import json
import pathlib
import subprocess
import tempfile

from .command import program
from .refused import Refused

_SECONDS = 600  # of one search


# As harness/sharding/ablation.h: no float32 engine can show a relative difference below a
# quarter of its unit roundoff. Where 1 / replicas is no float32 number, four such errors are
# allowed.
def threshold(replicas):
    return 2.0**-26 if replicas & (replicas - 1) == 0 else 2.0**-22


@functools.lru_cache
def catalogue():
    """Returns the rows of causes.json by the names of their causes."""
    rows = json.loads(pathlib.Path(__file__).with_name("causes.json").read_text(encoding="utf-8"))
    return {row["cause"]: row for row in rows}


def words(cause, framework, facts):
    row = catalogue()[cause]
    return row["sentence"].format(**facts), row["cures"][framework].format(**facts)


def between(write):
    """Asks the program for the causes between a sharded step and the same step on one device: a list of {"cause": .., "line": ..}.

    write(folder) writes them there, as sharded.mlir and whole.mlir. Raises Refused if the program does not take them."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        command = [program(), "diagnose", f"{folder}/sharded.mlir", "--whole", f"{folder}/whole.mlir", "--subject", "cpu"]
        command += ["--quick", "--quiet", "--json", "--set", "train.steps=1", "--out", f"{folder}/out"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise Refused(f"the search took more than {_SECONDS} seconds") from None
    if done.returncode == 128:
        raise Refused(done.stderr.strip().splitlines()[-1].strip() if done.stderr.strip() else "the program takes no such step")
    findings = json.loads(done.stdout)["findings"] if done.returncode == 10 else []
    return [{"cause": f["cause"], **f["facts"]} for f in findings if f["facts"]]

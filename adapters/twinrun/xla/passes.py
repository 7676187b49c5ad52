"""Which pass of XLA makes a compiled script wrong: the passes that changed the module, left out one at a time.

found = search("out/repro.py", deadline)      # {"ran": [...], "without": [...], "tried": 9}

What an earlier pass brought into a form that a later one spoils, both are named: the later first.
"""

import os
import re
import subprocess
import sys
import tempfile
import time


def _run(script, flags, timeout):
    """Returns whether the script says that the results are wrong; None if it fails otherwise."""
    environment = dict(os.environ, XLA_FLAGS=(os.environ.get("XLA_FLAGS", "") + " " + flags).strip())
    try:
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, timeout=timeout,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    # A script that raises also ends with 1, but without its own lines.
    said = "elements differ" in done.stdout
    return {0: False, 1: True}.get(done.returncode) if said else None


def _ran(script, timeout):
    """Returns the passes that changed the compiled module of the script, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        _run(script, f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=.*", timeout)
        names = [n for n in sorted(os.listdir(folder)) if "fragment" in n]
    passes = []
    for name in names:
        match = re.search(r".*\.after_([^.]+)(?:\.before_.+)?\.txt$", name)
        if match and match.group(1) not in ("pipeline-start", "pipeline-end"):
            passes.append(match.group(1))
    return list(dict.fromkeys(passes))


def search(script, deadline):
    """Runs the script without each pass that changed its module, until the time is over. Returns None if it is right."""
    start = time.monotonic()
    if _run(script, "", 120) is not True:
        return None
    once = time.monotonic() - start
    ran = _ran(script, 120)
    without, tried = [], 0
    # Fusions, simplifications and the partitioner first: the others rarely change what is computed. Of those, the last.
    likely = re.compile("algsimp|fusion|simpl|reassoc|partition|spmd|all-reduce|dot|rewriter|expander")
    for name in sorted(reversed(ran), key=lambda p: not likely.search(p)):
        if time.monotonic() + once > deadline:
            break
        tried += 1
        if _run(script, f"--xla_disable_hlo_passes={name}", 120) is False:
            without.append(name)
    without.sort(key=ran.index, reverse=True)
    return {"ran": ran, "without": without, "tried": tried}

#!/usr/bin/env python3
"""Trains over several ranks of MPI and compares every digest and loss with those of one process; then what must end all ranks.

ranks_test.py TWINRUN: of a build with MPI. Exit status 77: mpirun is not installed.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = sys.argv[1]
# The first three are Open MPI's: as root, as CI may be, and with more ranks than processors. MPICH needs none.
ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
RANKS = (1, 2, 4)
STEPS = ["--set", "train.steps=12"]
CASES = {
    "digits_mlp": ["digits_mlp"],
    "digits_mlp, sum": ["digits_mlp", "--set", "loss.reduction=sum"],
    "digits_cnn, statistics of each core": ["digits_cnn"],
    "digits_cnn, synced statistics": ["digits_cnn", "--set", "tpu.batchnorm=synced"],
    "digits_cnn, sum": ["digits_cnn", "--set", "loss.reduction=sum"],
    "digits_mlp, a fault on core 5": ["digits_mlp", "--fault", "scale@dense2/*,core=5,magnitude=1.5"],
    "digits_mlp, cores diverge": ["digits_mlp", "--fault", "no_reduce@dense1/kernel.grad.all_reduce,core=6,from=3"],
}
SAME = ("root_digest", "state_digest", "last_loss", "eval_loss", "eval_accuracy", "steps")


def command(ranks, arguments):
    return ["mpirun", "-np", str(ranks), PROGRAM, *arguments] if ranks else [PROGRAM, *arguments]


def run(ranks, arguments, folder):
    return subprocess.run(
        command(ranks, arguments), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )


def train(case, ranks, folder, *more):
    words = ["train", *CASES[case], *STEPS, "--engine", "tpu", "--json", "-q", "--threads", "1", "-o", "run.h5", *more]
    done = run(ranks, words, folder)
    assert done.returncode == 0, f"{case} on {ranks} ranks: {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def same_bits(folder):
    for case in CASES:
        alone = train(case, 0, folder)
        for ranks in RANKS:
            split = train(case, ranks, folder)
            for key in SAME:
                assert split[key] == alone[key], f"{case}: {key} on {ranks} ranks: {split[key]}, alone: {alone[key]}"
            assert split.get("ranks", 1) == ranks, split
            if ranks > 1:
                print(f"{case}: {ranks} ranks, {split['messages']} messages, {split['bytes']} bytes: same bits")
    # What a fault changed on each core is counted by its rank.
    words = ["train", *CASES["digits_mlp, a fault on core 5"], *STEPS, "--engine", "tpu", "-q", "-o", "run.h5"]
    lines = [
        [line for line in run(ranks, words, folder).stdout.splitlines() if "faults changed bits" in line or "digest" in line]
        for ranks in (0, 2, 4)
    ]
    assert len(lines[0]) == 2 and lines[0] == lines[1] == lines[2], lines
    print("digests of one process and of", RANKS, "ranks are equal")


def refused(folder):
    """Errors end all ranks, with the exit code and the message of the first."""
    for ranks, words, code, message in (
        (2, ["train", "digits_mpl"], 128, "digits_mpl"),
        (2, ["diagnose", "digits_mlp"], 128, "'diagnose' does not run on several ranks"),
        (2, ["train", "digits_mlp", "--engine", "cpu"], 128, "2 ranks for 1 core"),
        (2, ["train", "digits_mlp", "--engine", "cpu:f64"], 128, "does not run on several ranks"),
        (2, ["train", "digits_mlp", "--engine", "tpu", "--trace", "t.json"], 128, "--trace"),
        (3, ["train", "digits_mlp", "--engine", "tpu", "--cores", "2"], 128, "3 ranks for 2 cores"),
    ):
        done = run(ranks, words, folder)
        assert done.returncode == code, (words, done.returncode, done.stderr)
        assert done.stderr.count("twinrun: ") == 1 and message in done.stderr, (words, done.stderr)
    words = [PROGRAM, "train", "digits_mlp", "--engine", "tpu"]
    mixed = ["mpirun", "-np", "1", *words, ":", "-np", "1", *words, "--set", "seed=9"]
    done = subprocess.run(
        mixed, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "rank 1 has another scenario" in done.stderr, (done.returncode, done.stderr)
    # An error that one rank finds alone, while the other waits for it.
    mixed = ["mpirun", "-np", "1", *words, ":", "-np", "1", *words, "--set", "tpu.cores=banana"]
    done = subprocess.run(
        mixed, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 128 and "rank 1 of 2: " in done.stderr, (done.returncode, done.stderr)
    print("errors end all ranks")


def ranks_of(launcher):
    """The processes of PROGRAM below a process."""
    found, below = [], [launcher]
    while below:
        parent = below.pop()
        for task in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
            for child in task.read_text().split():
                below.append(int(child))
                if pathlib.Path(f"/proc/{child}/exe").resolve() == pathlib.Path(PROGRAM).resolve():
                    found.append(int(child))
    return found


def started(folder, output):
    """A long run on two ranks, after its first checkpoint."""
    words = ["train", "digits_mlp", "--engine", "tpu", "--threads", "1", "-o", output]
    words += ["--set", "train.steps=100000", "--set", "train.checkpoint_every=20"]
    # A session of its own, so that signals reach what the test means and nothing else.
    process = subprocess.Popen(
        command(2, words), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not (pathlib.Path(folder) / (output + ".checkpoint.h5")).exists():
        assert process.poll() is None and time.monotonic() < until, process.communicate()[0]
        time.sleep(0.05)
    return process, words


def ends(folder):
    """A rank that dies ends the others, and the run goes on from its checkpoint, on another number of ranks."""
    process, words = started(folder, "killed.h5")
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2, ranks
    os.kill(ranks[1], signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0, output
    resumed = words[: words.index("--set")] + ["--set", "train.steps=100000", "--set", "train.checkpoint_every=20"]
    again = subprocess.Popen(
        command(4, resumed), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )
    time.sleep(5)
    for rank in ranks_of(again.pid):
        os.kill(rank, signal.SIGTERM)
    output = again.communicate(timeout=60)[0]
    assert again.returncode == 130, (again.returncode, output)
    assert output.count("of a run that was cut off") == 1, output
    assert output.count("interrupted after step") == 1, output
    assert (pathlib.Path(folder) / "killed.h5").exists()
    print("a rank that dies ends the others, and the run resumes on four ranks")


def interrupted(folder):
    """SIGTERM to one rank stops all after the same step; the resumed run has the bits of a whole one."""
    process, _ = started(folder, "stopped.h5")
    os.kill(ranks_of(process.pid)[1], signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and output.count("interrupted after step") == 1, (process.returncode, output)
    print("a signal to one rank stops all of them")


def main():
    if shutil.which("mpirun") is None:
        print("skipped: mpirun is not installed (./dev packages mpi)")
        return 77
    with tempfile.TemporaryDirectory(prefix="twinrun-mpi-") as folder:
        same_bits(folder)
        refused(folder)
        ends(folder)
        interrupted(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

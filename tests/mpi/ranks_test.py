#!/usr/bin/env python3
"""Trains and diagnoses over several ranks of MPI and compares everything with one process; then what must end all ranks.

ranks_test.py [--quick] TWINRUN MPIEXEC: a build with MPI and the launcher of that MPI. Exit status 77: no launcher.
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

from ring import Step

QUICK = "--quick" in sys.argv
PROGRAM, LAUNCHER = [word for word in sys.argv[1:] if word != "--quick"]
# The first three are Open MPI's: as root, as CI may be, and with more ranks than processors. MPICH needs none.
ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "TWINRUN_CACHE": "",
}
RANKS = (2, 4)


def sized(scenario, cores, batch, steps):
    words = [scenario, "--set", f"tpu.cores={cores}", "--set", f"train.batch={batch}", "--set", f"train.steps={steps}"]
    return f"{scenario}, {cores} cores", words


STEPS = ["--set", "train.steps=12"]
FEW = {
    "digits_mlp": ["digits_mlp", *STEPS],
    "digits_cnn, statistics of each core": ["digits_cnn", *STEPS],
}
CASES = {
    **FEW,
    "digits_mlp, sum": ["digits_mlp", *STEPS, "--set", "loss.reduction=sum"],
    "digits_cnn, synced statistics": ["digits_cnn", *STEPS, "--set", "tpu.batchnorm=synced"],
    "digits_cnn, sum": ["digits_cnn", *STEPS, "--set", "loss.reduction=sum"],
    "digits_mlp, a fault on core 5": ["digits_mlp", *STEPS, "--fault", "scale@dense2/*,core=5,magnitude=1.5"],
    "digits_mlp, cores diverge": ["digits_mlp", *STEPS, "--fault", "no_reduce@dense1/kernel.grad.all_reduce,core=6,from=3"],
    **dict(sized("digits_mlp", cores, 512, 3) for cores in (64, 512)),
    **dict(sized("digits_cnn", cores, 512, 2) for cores in (64, 512)),
    **dict(sized("resnet20", cores, max(64, cores), 2) for cores in (8, 64, 512)),
}
SAME = ("root_digest", "state_digest", "last_loss", "eval_loss", "eval_accuracy", "steps")

# Diagnoses, with the core and the first step that the report must name where a fault is planted.
SHORT = ["--set", "train.steps=7", "--set", "train.batch=32", "--set", "data.train=256", "--set", "data.eval=64", "--quick"]
ONE_FAULT = {
    "a dot product, statistics of each core": (["digits_cnn", "--fault", "drop_k_tail@conv2/kernel.grad,core=5,from=3"], 5, 3),
}
DIAGNOSES = {
    **ONE_FAULT,
    "batch norm of a core": (["digits_cnn", "--fault", "scale@batch_norm1/normalize,core=7,step=4,magnitude=1.5"], 7, 4),
    "a copy of the sum": (["digits_mlp", "--fault", "one_core_wrong@dense1/kernel.grad.all_reduce,core=3,from=2"], 3, 2),
    "a part of the sum": (
        ["digits_mlp", "--set", "loss.reduction=sum", "--fault", "double_core@dense1/kernel.grad.all_reduce,core=6,from=1"],
        None,
        1,
    ),
    "an update": (["digits_mlp", "--fault", "skip_update@dense1/kernel*,core=4,step=5"], 4, 5),
    "one bit": (["digits_mlp", "--fault", "bit_flip@dense2/dot_general,core=2,step=6"], 2, 6),
    "an intermittent bias": (["digits_mlp", "--fault", "ulp_bias@dense2/bias.grad,magnitude=4,rate=0.5"], None, None),
    "no fault, mean": (["digits_mlp"], None, None),
    "no fault, sum": (["digits_cnn", "--set", "loss.reduction=sum"], None, None),
}


def command(ranks, arguments):
    return [LAUNCHER, "-np", str(ranks), PROGRAM, *arguments] if ranks else [PROGRAM, *arguments]


def run(ranks, arguments, folder, timeout=600):
    return subprocess.run(
        command(ranks, arguments), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout, check=False
    )


def train(case, words, ranks, folder):
    threads = "1" if ranks else "2"
    words = ["train", *words, "--engine", "tpu", "--json", "-q", "--threads", threads, "-o", "run.h5"]
    done = run(ranks, words, folder)
    assert done.returncode == 0, f"{case} on {ranks} ranks: {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def same_bits(folder):
    for case, words in (FEW if QUICK else CASES).items():
        began = time.monotonic()
        alone = train(case, words, 0, folder)
        for ranks in RANKS:
            split = train(case, words, ranks, folder)
            for key in SAME:
                assert split[key] == alone[key], f"{case}: {key} on {ranks} ranks: {split[key]}, alone: {alone[key]}"
            assert split["ranks"] == ranks, split
            if "--fault" not in words:
                # Two more exchanges, of 32 and 256 bytes: what the ranks have read, and what faults changed.
                needs = Step(run(0, ["inspect", *words, "--ops"], folder).stdout).needs(ranks)
                pairs = ranks * (ranks - 1)
                expected = [alone["steps"] * needs[0] + 2 * pairs, alone["steps"] * needs[1] + 288 * pairs]
                assert [split["messages"], split["bytes"]] == expected, (case, split, expected)
            print(f"{case}: {ranks} ranks, {split['messages']} messages, {split['bytes']} bytes: same bits")
        print(f"  {time.monotonic() - began:.1f} s", flush=True)
    print("digests of one process and of", RANKS, "ranks are equal")


def faults_counted(folder):
    """What a fault changed on each core is counted by its rank; copies of a sum are made on all of them."""
    for case in ("digits_mlp, a fault on core 5", "digits_mlp, cores diverge"):
        words = ["train", *CASES[case], "--engine", "tpu", "-q", "-o", "run.h5"]
        lines = [
            [line for line in run(ranks, words, folder).stdout.splitlines() if "faults changed bits" in line or "digest" in line]
            for ranks in (0, *RANKS)
        ]
        assert len(lines[0]) == 2 and all(line == lines[0] for line in lines), lines
    print("faults are counted once")


TIMES = ("seconds", "checksum")


def without_times(value):
    """A document without what differs between two runs of one process."""
    if isinstance(value, dict):
        share_of_time = ("share",) if "seconds" in value else ()
        return {k: without_times(v) for k, v in value.items() if k not in (*TIMES, *share_of_time)}
    if isinstance(value, list):
        return [without_times(v) for v in value]
    return value


def diagnose(words, ranks, folder):
    shutil.rmtree(pathlib.Path(folder) / "results", ignore_errors=True)
    done = run(ranks, ["diagnose", *words, *SHORT, "--json", "-q", "--threads", "1", "-o", "results"], folder)
    assert done.stdout.startswith("{"), (words, ranks, done.returncode, done.stderr)
    # The same files, too: runs/T.h5 has the digest of every state.
    digests = {
        file.name: json.loads(run(0, ["inspect", "--json", str(file)], folder).stdout)
        for file in sorted((pathlib.Path(folder) / "results/runs").glob("*.h5"))
    }
    return done.returncode, without_times(json.loads(done.stdout)), without_times(digests)


def first_difference(a, b, where=""):
    if type(a) is not type(b):
        return f"{where}: {a!r} and {b!r}"
    if isinstance(a, dict):
        for key in a.keys() | b.keys():
            found = first_difference(a.get(key), b.get(key), f"{where}.{key}")
            if found:
                return found
        return ""
    if isinstance(a, list) and len(a) == len(b):
        return next(filter(None, (first_difference(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b)))), "")
    return "" if a == b else f"{where}: {a!r} and {b!r}"


def same_diagnoses(folder):
    for case, (words, core, step) in (ONE_FAULT if QUICK else DIAGNOSES).items():
        began = time.monotonic()
        alone = diagnose(words, 0, folder)
        for ranks in RANKS:
            split = diagnose(words, ranks, folder)
            for a, b in zip(alone, split):
                found = first_difference(a, b)
                assert not found, f"{case}, {ranks} ranks: {found}"
        report = alone[1]
        if step is not None:
            place = report["findings"][0]
            assert report["verdict"]["class"] == "ENGINE_BUG" and place["step"] == step, (case, report["verdict"], place)
            assert core is None or place["core"] == core, (case, place)
        print(f"diagnose, {case}: {report['verdict']['class']} for 1, 2 and 4 ranks; {time.monotonic() - began:.1f} s", flush=True)


def refused(folder):
    """Errors end all ranks, with the exit code and the message of the first."""
    for ranks, words, code, message in (
        (2, ["train", "digits_mpl"], 128, "digits_mpl"),
        (2, ["compare", "digits_mlp"], 128, "'compare' does not run on several ranks"),
        (2, ["diagnose", "digits_mlp", "--subject", "honest:3"], 128, "does not run on several ranks"),
        (2, ["diagnose", "digits_mlp", "--set", "tpu.cores=1"], 128, "2 ranks for 1 core"),
        (2, ["train", "digits_mlp", "--engine", "cpu"], 128, "2 ranks for 1 core"),
        (2, ["train", "digits_mlp", "--engine", "cpu:f64"], 128, "does not run on several ranks"),
        (3, ["train", "digits_mlp", "--engine", "tpu", "--cores", "2"], 128, "3 ranks for 2 cores"),
    ):
        done = run(ranks, words, folder)
        assert done.returncode == code, (words, done.returncode, done.stderr)
        assert done.stderr.count("twinrun: ") == 1 and message in done.stderr, (words, done.stderr)
    words = [PROGRAM, "train", "digits_mlp", "--engine", "tpu"]
    mixed = [LAUNCHER, "-np", "1", *words, ":", "-np", "1", *words, "--set", "seed=9"]
    done = subprocess.run(
        mixed, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "rank 1 has another scenario" in done.stderr, (done.returncode, done.stderr)
    # An error that one rank finds alone, while the other waits for it.
    mixed = [LAUNCHER, "-np", "1", *words, ":", "-np", "1", *words, "--set", "tpu.cores=banana"]
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


def start(ranks, words, folder):
    # A session of its own, so that signals reach what the test means and nothing else.
    return subprocess.Popen(
        command(ranks, words), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )


def wait_for(process, path):
    until = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until, process.communicate()[0]
        time.sleep(0.05)


def started(folder, output):
    """A long run on two ranks, after its first checkpoint."""
    words = ["train", "digits_mlp", "--engine", "tpu", "--threads", "1", "-o", output]
    words += ["--set", "train.steps=100000", "--set", "train.checkpoint_every=20"]
    process = start(2, words, folder)
    wait_for(process, pathlib.Path(folder) / (output + ".checkpoint.h5"))
    return process, words


def ends(folder):
    """A rank that dies ends the others, and the run goes on from its checkpoint, on another number of ranks."""
    process, words = started(folder, "killed.h5")
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2, ranks
    os.kill(ranks[1], signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0, output
    again = start(4, words, folder)
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
    """SIGTERM to one rank stops all after the same step."""
    process, _ = started(folder, "stopped.h5")
    os.kill(ranks_of(process.pid)[1], signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and output.count("interrupted after step") == 1, (process.returncode, output)
    process = start(2, ["diagnose", "digits_cnn", "--threads", "1", "-o", "stopped"], folder)
    wait_for(process, pathlib.Path(folder) / "stopped/runs/S.h5")  # so that T is running
    os.kill(ranks_of(process.pid)[1], signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and output.count("the finished runs are in stopped/runs") == 1, (process.returncode, output)
    print("a signal to one rank stops all of them")


def main():
    if shutil.which(LAUNCHER) is None:
        print(f"skipped: {LAUNCHER} is not installed (./dev packages mpi)")
        return 77
    with tempfile.TemporaryDirectory(prefix="twinrun-mpi-") as folder:
        for test in (same_bits, same_diagnoses) if QUICK else (
            same_bits, faults_counted, same_diagnoses, refused, ends, interrupted
        ):
            test(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs `twinrun diagnose` with an engine of a framework as the subject, for the tests of adapters/.

    twinrun()                                        # its path, or None: TWINRUN_BINARY, else the release build's
    interpreter("jax")                               # the Python interpreter that has it, or None
    report = diagnose("digits_mlp", subject("jax"), ["tpu.cores=8"])
    report["verdict"]["class"], report["findings"][0]["sentence"]
"""
import functools
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

from forks import Forks

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADAPTERS = ROOT / "adapters"
# Framework: the module that it needs, and the interpreter if no TWINRUN_PARITY_{TORCH,JAX,TF} names one.
FRAMEWORKS = {"pytorch": ("torch", "TORCH", sys.executable),
              "jax": ("jax", "JAX", str(ROOT / "build/parity/venv-jax/bin/python")),
              "tensorflow": ("tensorflow", "TF", str(ROOT / "build/parity/venv-tf/bin/python"))}


IMPORTED = {"pytorch": ["torch"], "jax": ["jax.numpy", "optax", "flax.linen"], "tensorflow": ["tensorflow", "keras"]}


class Refused(Exception):
    """twinrun ended without a verdict; the text is the end of its output."""


def twinrun():
    path = os.environ.get("TWINRUN_BINARY", str(ROOT / "build/release/twinrun"))
    return path if os.access(path, os.X_OK) else None


def interpreter(framework):
    module, variable, default = FRAMEWORKS[framework]
    python = os.environ.get(f"TWINRUN_PARITY_{variable}") or default
    script = f"import importlib.util as u, sys; sys.exit(0 if all(map(u.find_spec, ('{module}', 'numpy'))) else 1)"
    try:
        return python if subprocess.run([python, "-c", script], capture_output=True, cwd="/").returncode == 0 else None
    except OSError:
        return None


@functools.cache
def forks_of(framework):
    return Forks(interpreter(framework), *IMPORTED[framework], environment={"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"})


def command(framework, *words):
    """Returns the command that runs a script with the framework's interpreter, in a fork of one that has imported the framework."""
    return [forks_of(framework).python, *map(str, words)]


def subject(framework, *options, engine=None):
    """Returns exec:COMMAND of the framework's engine, or of another file that its interpreter runs."""
    return "exec:" + shlex.join(command(framework, engine or ADAPTERS / "engines" / framework / "engine.py", *options))


def diagnose(scenario, engine, settings=(), options=(), out=None, threads=2):
    """Returns the report as a dictionary; its files are kept in `out` if given. Raises Refused if there is no report."""
    with tempfile.TemporaryDirectory(prefix="twinrun-diagnosis-") as folder:
        words = [twinrun(), "diagnose", scenario, "--subject", engine, "--json", "-q", "-o", out or folder, "--threads", str(threads)]
        words += [word for setting in settings for word in ("--set", setting)] + list(options)
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=ROOT)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise Refused(done.stderr.strip()[-2000:] or f"exit status {done.returncode}") from None

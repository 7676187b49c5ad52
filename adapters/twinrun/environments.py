"""Environments of released versions: each is made once, in a cache outside of any tree, and is used
only once it is complete.

    python -m twinrun environment jaxlib==0.4.28 flax==0.8.3 --python 3.11
    python -m twinrun environment --releases jaxlib
    python -m twinrun environment --remove jaxlib==0.4.28

What is not pinned is resolved as on the day on which the pinned versions were released, so that a
version of 2020 does not get a numpy of today. pip asks a small server in this process (index.py),
which leaves out what was uploaded later.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

from . import checksum, cuda_stubs
from .index import Index, Unreachable, normal, uploaded
from .pythons import find_pythons, is_release, version_key

UNAVAILABLE = 75  # EX_TEMPFAIL of sysexits.h
FORM = 1  # of an environment in the cache; counted up when the same words make another one
SLACK = datetime.timedelta(days=7)  # the packages of one release are uploaded over some days
LARGE = 300_000_000  # bytes of a wheel from which on pip shall not keep it in its own cache, too
TOGETHER = {"jaxlib": "jax", "jax": "jaxlib"}
MODULES = {"tensorflow-cpu": "tensorflow", "tensorflow-intel": "tensorflow"}  # where the module has another name

BESIDES = {"torch": ["numpy"]}  # what a script needs and the package does not require

INSTALLED = """
import json
from importlib.metadata import distributions
print(json.dumps({d.metadata["Name"]: d.version for d in distributions()}))
"""


class Unavailable(Exception):
    """The environment cannot be had; the message says why."""


class Unresolved(Unavailable):
    """pip could not install what was asked for with this Python; another one may have wheels of all of it."""


def cache():
    """Returns the folder of all environments."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "twinrun", "environments")


def say(text):
    print(f"twinrun: {text}", file=sys.stderr, flush=True)


def split(requirement):
    """Returns the name and the version of "NAME==VERSION"; the version is None where it is not pinned."""
    found = re.fullmatch(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*==\s*([A-Za-z0-9][A-Za-z0-9.!+_-]*)\s*", requirement)
    if found:
        return normal(found[1]), found[2]
    name = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
    if not name or requirement.strip().startswith("-"):
        raise ValueError(f"'{requirement}' is not a requirement; expected PACKAGE==VERSION, such as jaxlib==0.4.28")
    return normal(name[1]), None


@contextlib.contextmanager
def locked(path):
    """Holds the lock of an environment; another process that holds it is waited for. The system
    frees it when a process ends."""
    import fcntl

    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"another process holds {path}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def folder_of(requirements, python=None):
    """Returns the folder of the environment of these words."""
    name, version = split(requirements[0])
    if version is None:
        raise ValueError(f"'{requirements[0]}' names no version; expected PACKAGE==VERSION, such as jaxlib==0.4.28")
    words = [FORM, f"{name}=={version}", sorted(re.sub(r"\s+", "", r) for r in requirements[1:]), python]
    return os.path.join(cache(), f"{name}-{version}-{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:12]}")


def environment(requirements, python=None):
    """Returns what is known of the environment, which is made if it is not there. Raises Unavailable."""
    folder = folder_of(requirements, python)
    with locked(folder + ".lock"):
        told = _told(folder)
        if told:
            return dict(told, made=False)
        started = time.monotonic()
        try:
            told = _make(folder, requirements, python)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        told.update(requirements=list(requirements), seconds=round(time.monotonic() - started, 1), bytes=_size(folder))
        partial = os.path.join(folder, "environment.json.part")
        with open(partial, "w") as file:
            file.write(checksum.dumps(told))
        os.replace(partial, os.path.join(folder, "environment.json"))  # from here on it is complete
        return dict(told, made=True)


def _told(folder):
    try:
        with open(os.path.join(folder, "environment.json"), "rb") as file:
            told = checksum.loads(file.read())
    except (OSError, ValueError):
        return None
    return told if os.access(told["python"], os.X_OK) else None


def _size(folder):
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total


def _make(folder, requirements, python):
    pythons = find_pythons()
    if not pythons:
        raise Unavailable(
            "no Python from 3.8 on that has venv and ensurepip was found in PATH or among pyenv's versions"
        )
    index = Index(pythons[0])
    name, version = split(requirements[0])
    try:
        release, fitting = _release(index, name, version, pythons, python)
        pinned = [*requirements, *_together(index, requirements)]
        versions = [split(r) for r in pinned]
        for other, its in versions[1:]:
            if its:
                beside = _known(index, other, its)
                binary = any(f["filename"].endswith(".whl") for f in beside["files"])  # else it is built from source
                fitting = [p for p in fitting if index.wheels(beside, p) or not binary]
        if not fitting:
            raise Unavailable(f"no Python of this machine has wheels of all of {', '.join(pinned)}")
        latest = index.released(versions)
        failures = []
        with index.serve(latest + SLACK if latest else None, versions) as address:
            for one in fitting:
                large = any((f.get("size") or 0) > LARGE for f in index.wheels(release, one))
                try:
                    return _install(folder, one, pinned, address, index, large)
                except Unavailable as e:
                    if index.unreachable:
                        raise Unreachable(index.unreachable) from None
                    if not isinstance(e, Unresolved):
                        raise
                    failures.append(f"Python {one['minor']}: {e}")
        raise Unavailable(f"{' '.join(pinned)} could not be installed. " + "; ".join(failures))
    except Unreachable as e:
        raise Unavailable(f"the package index could not be reached ({e})") from None


def _known(index, name, version):
    """Returns a release that the index has and that was not yanked."""
    releases = index.releases(name)
    release = next((r for v, r in releases.items() if version_key(v) == version_key(version)), None)
    if release is None:
        newest = ", ".join(list(releases)[-5:])
        raise Unavailable(
            f"the package index has no {name} {version}" + (f"; its newest releases are {newest}" if newest else "")
        )
    if release["yanked"]:
        why = f": {release['yanked']}" if isinstance(release["yanked"], str) else ""
        raise Unavailable(f"{name} {version} was yanked{why}")
    return release


def _release(index, name, version, pythons, python):
    """Returns the release, and the Pythons that have a wheel of it, the newest first."""
    release = _known(index, name, version)
    fitting = [p for p in pythons if index.wheels(release, p)]
    wanted = [p for p in fitting if python in (None, p["minor"], p["version"])]
    if not wanted:
        here = ", ".join(p["version"] for p in pythons)
        of = f"; it has wheels for {', '.join(p['minor'] for p in fitting)}" if fitting else ""
        raise Unavailable(
            f"{name} {version} has no wheel for "
            + (f"Python {python}" if python else "a Python of this machine")
            + f" (found here: {here}{of})"
        )
    return release, wanted


def _together(index, requirements):
    """Returns what is installed besides: the release of jax that belongs to a jaxlib, or the other
    way round, which is the newest that is not newer; what BESIDES has."""
    versions = dict(split(r) for r in requirements)
    added = []
    for name, version in versions.items():
        other = TOGETHER.get(name)
        added += [r for r in BESIDES.get(name, []) if r not in versions]
        if version and other and other not in versions:
            older = [
                v
                for v, r in index.releases(other).items()
                if is_release(v) and not r["yanked"] and version_key(v) <= version_key(version)
            ]
            added += [f"{other}=={max(older, key=version_key)}"] if older else []
    return added


def _install(folder, python, pinned, address, index, large):
    say(f"making {' '.join(pinned)} with Python {python['version']} in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    _run([python["path"], "-m", "venv", folder], "python -m venv")
    path = os.path.join(folder, "bin", "python")
    names = [split(r)[0] for r in pinned]
    # The version that is asked for must be a wheel: built from source, it would be another build
    # than the one released.
    _run(
        [
            path,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-input",
            "--index-url",
            address,
            "--prefer-binary",
            "--only-binary",
            names[0],
            *(["--no-cache-dir"] if large else []),
            *pinned,
        ],
        "pip install",
        Unresolved,
        PIP_EXTRA_INDEX_URL=address,
    )  # what pip's settings name besides is in the index already
    told = {"python": path, "python_version": python["version"]}
    if index.stood_in and os.path.isdir(cuda_stubs.libraries(path)):
        told["stubs"] = cuda_stubs.write(path)
    told["installed"] = json.loads(_run([path, "-c", INSTALLED], "listing what is installed"))
    told["installed"] = {normal(n): v for n, v in sorted(told["installed"].items())}
    module = MODULES.get(names[0], names[0].replace("-", "_"))
    if names[0] in TOGETHER or module in ("torch", "tensorflow"):
        _run([path, "-c", f"import {module}"], f"import {module}")
    return told


def _run(words, what, error=Unavailable, **variables):
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env={**kept, **variables},
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        errors = (
            [line for line in lines if line.startswith("ERROR")] or lines[-1:] or [f"exit status {done.returncode}"]
        )
        told = re.sub(r" \(from versions: [^)]*\)", "", " ".join(errors[-3:]))
        raise error(f"{what} failed: {told[-600:]}")
    return done.stdout


def releases(package):
    """Returns the releases of a package, the oldest first, with the Pythons of this machine that have a
    wheel of each, and the day."""
    pythons = find_pythons()
    if not pythons:
        raise Unavailable(
            "no Python from 3.8 on that has venv and ensurepip was found in PATH or among pyenv's versions"
        )
    index = Index(pythons[0])
    try:
        found = index.releases(package)
    except Unreachable as e:
        raise Unavailable(f"the package index could not be reached ({e})") from None
    if not found:
        raise Unavailable(f"the package index has no package '{package}'")
    return [
        {
            "version": v,
            "yanked": bool(r["yanked"]),
            "pythons": [p["minor"] for p in reversed(pythons) if index.wheels(r, p)],
            "date": _day(r),
        }
        for v, r in found.items()
    ]


def _day(release):
    times = [t for t in map(uploaded, release["files"]) if t]
    return min(times).date().isoformat() if times else None


def remove(requirements, python=None):
    """Removes the environments whose first requirement this is, or only those of exactly these
    words where there are more."""
    name, version = split(requirements[0])
    removed, freed = [], 0
    for entry in sorted(os.listdir(cache())) if os.path.isdir(cache()) else []:
        folder = os.path.join(cache(), entry)
        if not os.path.isdir(folder) or not entry.startswith(f"{name}-{version}-"):
            continue
        if (len(requirements) > 1 or python) and folder != folder_of(requirements, python):
            continue
        with locked(folder + ".lock"):
            freed += _size(folder)
            shutil.rmtree(folder)
        removed.append(folder)
    return {"removed": removed, "bytes": freed}


def main(words):
    parser = argparse.ArgumentParser(
        prog="python -m twinrun environment", description="Makes an environment of released versions, once."
    )
    parser.add_argument(
        "requirements", nargs="*", metavar="PACKAGE==VERSION", help="the version asked for, then further requirements"
    )
    parser.add_argument(
        "--python", help="the Python to use, such as 3.11 (the newest of this machine that has a wheel)"
    )
    parser.add_argument("--releases", metavar="PACKAGE", help="list the releases of a package instead")
    parser.add_argument("--remove", action="store_true", help="remove the environments of PACKAGE==VERSION instead")
    args = parser.parse_args(words)
    if bool(args.releases) == bool(args.requirements):
        parser.error("expected PACKAGE==VERSION, or --releases PACKAGE")
    try:
        if args.releases:
            answer = {"package": normal(args.releases), "releases": releases(args.releases)}
        elif args.remove:
            answer = remove(args.requirements, args.python)
        else:
            answer = environment(args.requirements, args.python)
    except ValueError as e:
        parser.error(str(e))
    except Unavailable as e:
        print(json.dumps({"unavailable": str(e)}))
        return UNAVAILABLE
    print(json.dumps(answer))
    return 0

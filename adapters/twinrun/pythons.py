"""The Pythons of this machine, and what a version or a wheel's name says to them."""

import glob
import json
import os
import re
import subprocess
import sys

OLDEST = (3, 8)

# What an interpreter says of itself. pip's own copy of `packaging` knows which wheels fit; where pip
# is not installed, the wheel of pip that ensurepip keeps has it. The package index is the one that
# pip is configured for.
PROBE = """
import ensurepip, glob, json, os, sys, sysconfig, venv
try:
    import pip
except ImportError:
    beside = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
    for folder in (beside, getattr(ensurepip, "_WHEEL_PKG_DIR", None)):
        sys.path[:0] = glob.glob(os.path.join(folder or "", "pip-*.whl"))
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
from pip._vendor import certifi
from pip._vendor.packaging.tags import sys_tags
configuration = Configuration(isolated=False)
configuration.load()
def configured(name):
    for where in (":env:.", "install.", "global."):
        try:
            return configuration.get_value(where + name)
        except Exception:
            pass
print(json.dumps({
    "path": getattr(sys, "_base_executable", None) or sys.executable, "version": sys.version.split()[0],
    "threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")), "tags": [str(tag) for tag in sys_tags()],
    "index": configured("index-url") or PyPI.simple_url, "more": (configured("extra-index-url") or "").split(),
    "cert": configured("cert"), "certifi": certifi.where(), "proxy": configured("proxy")}))
"""


def version_key(version):
    """Returns what orders versions as PEP 440 does: 2.0.dev1 < 2.0a1 < 2.0rc1 < 2.0 == 2.0.0 < 2.0.post1 < 2.0.1."""
    found = re.match(
        r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)[._-]?(a|alpha|b|beta|c|rc|pre|preview)?[._-]?(\d*)"
        r"(?:[._-]?(?:post|rev|r)[._-]?(\d*))?(?:[._-]?dev[._-]?(\d*))?(?:\+.*)?$",
        version.strip().lower(),
    )
    if not found:
        return ((-1,), 0, 0, 0, 0)  # a name that is no version comes first
    epoch, release, pre, pre_number, post, dev = found.groups()
    numbers = [int(n) for n in release.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    rank = {None: 3, "a": 0, "alpha": 0, "b": 1, "beta": 1}.get(pre, 2)
    if pre is None and post is None and dev is not None:
        rank = -1
    return (
        (int(epoch or 0), *numbers),
        rank,
        int(pre_number or 0),
        -1 if post is None else int(post or 0),
        float("inf") if dev is None else int(dev or 0),
    )


def is_release(version):
    """Returns whether this is a final release, not a pre-release, a development version or no version at all."""
    return re.fullmatch(r"\d+(\.\d+)*(\.post\d+)?", version) is not None


def allows(specifiers, version):
    """Returns whether a `Requires-Python` such as ">=3.9,!=3.10.*,<3.14" holds for a version."""
    mine = version_key(version)
    for part in filter(None, (s.strip() for s in (specifiers or "").split(","))):
        found = re.match(r"(===|==|!=|<=|>=|~=|<|>)\s*(\S+)$", part)
        if not found:
            continue
        sign, told = found.groups()
        if told.endswith(".*") or sign == "~=":
            numbers = told[:-2] if told.endswith(".*") else told.rsplit(".", 1)[0]
            inside = (version + ".").startswith(numbers + ".")
            holds = {"==": inside, "!=": not inside, "~=": inside and mine >= version_key(told)}.get(sign)
            if holds is None:  # ">=3.9.*", which some old packages say
                holds = allows(sign + numbers, version)
        else:
            other = version_key(told)
            holds = {
                "==": mine == other,
                "===": mine == other,
                "!=": mine != other,
                "<=": mine <= other,
                ">=": mine >= other,
                "<": mine < other,
                ">": mine > other,
            }[sign]
        if not holds:
            return False
    return True


def fits(wheel, tags):
    """Returns whether a wheel's file name fits an interpreter's tags."""
    parts = wheel[: -len(".whl")].split("-")
    if not wheel.endswith(".whl") or len(parts) not in (5, 6):
        return False
    python, abi, platform = (part.split(".") for part in parts[-3:])
    return any(f"{p}-{a}-{f}" in tags for p in python for a in abi for f in platform)


def candidates():
    """Returns the paths of interpreters in PATH and among pyenv's versions."""
    found = [sys.executable]
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if os.path.basename(folder) != "shims":  # pyenv's versions are found below
            found += glob.glob(os.path.join(glob.escape(folder), "python3")) + glob.glob(
                os.path.join(glob.escape(folder), "python3.*")
            )
    root = os.environ.get("PYENV_ROOT") or os.path.join(os.path.expanduser("~"), ".pyenv")
    found += glob.glob(os.path.join(glob.escape(root), "versions", "*", "bin", "python3"))
    seen, kept = set(), []
    for path in found:
        real = os.path.realpath(path)
        if re.fullmatch(r"python3?(\.\d+)?", os.path.basename(path)) and os.access(path, os.X_OK) and real not in seen:
            seen.add(real)
            kept.append(path)
    return kept


def find_pythons():
    """Returns the Pythons from 3.8 on which can make environments: {path, version, minor, tags,
    ..}, the newest first, one a minor version."""
    asked = [
        subprocess.Popen(
            [path, "-c", PROBE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
        )
        for path in candidates()
    ]
    found = {}
    for process in asked:
        said = process.communicate()[0]
        try:
            one = json.loads(said.splitlines()[-1])
        except (IndexError, ValueError):
            continue  # no venv, no ensurepip, or no pip at all
        numbers = version_key(one["version"])[0][1:]
        if numbers[:2] < OLDEST or one["threaded"]:
            continue
        one["minor"] = ".".join(one["version"].split(".")[:2])
        one["tags"] = set(one["tags"])
        if one["minor"] not in found or version_key(found[one["minor"]]["version"]) < version_key(one["version"]):
            found[one["minor"]] = one
    return sorted(found.values(), key=lambda p: version_key(p["version"]), reverse=True)

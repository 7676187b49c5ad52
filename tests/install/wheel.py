"""Tests the wheel of `./dev wheel`: pip installs it into a fresh environment without a network, its program needs only
glibc, and it computes the bits that the build's program computes, also as an engine in a process of its own.

    python3 tests/install/wheel.py DIST_FOLDER TWINRUN

The environment gets the Python that runs this, 3.8 or later. Exit status 77, with the reason, if there is no wheel.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

NOTHING = 77
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def must(*words, **more):
    words = [str(w) for w in words]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, **more)
    if done.returncode != 0:
        sys.exit("%s: exit status %d; expected 0\n%s%s" % (" ".join(words), done.returncode, done.stdout, done.stderr))
    return done.stdout


def digests(node, path=""):
    """Yields (path, value) of everything in a JSON document whose key speaks of a digest."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        if "digest" in str(key):
            yield "%s/%s" % (path, key), value
        else:
            yield from digests(value, "%s/%s" % (path, key))


def results(program, folder, subject):
    """Diagnoses digits_mlp; returns the digests of the report and of the runs."""
    more = ["--subject", subject] if subject else []
    must(program, "diagnose", "digits_mlp", "-q", "-o", folder, *more)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    found = {"verdict": report["verdict"]["class"], "report": list(digests(report))}
    for run in sorted((folder / "runs").glob("*.h5")):
        found[run.name] = list(digests(json.loads(must(program, "inspect", run, "--json"))))
    empty = [name for name, values in found.items() if not values]
    if empty or len(found) < 4:
        sys.exit("%s: no digests of %s, %d files: the comparison would say nothing" % (folder, empty, len(found)))
    return found


def compare(what, built, installed):
    if built != installed:
        differing = [name for name in built if built[name] != installed.get(name)]
        sys.exit("%s: the installed program's digests differ from the build's in %s" % (what, differing))
    print("%s: verdict %s, the build's digests in %s" % (what, built["verdict"], sorted(set(built) - {"verdict"})))


def check_content(wheel):
    """Checks the tag, and that nothing but the packages, the program and the metadata is in the wheel."""
    tag = re.match(r"twinrun-([0-9.]+)-py3-none-manylinux_2_\d+_x86_64", wheel.name)
    if not tag:
        sys.exit("%s: expected twinrun-VERSION-py3-none-manylinux_2_N_x86_64.whl" % wheel.name)
    version = tag.group(1)
    allowed = re.compile(r"(twinrun|twinrun_engine)/\w+\.py|twinrun-{0}\.(data/scripts/twinrun|dist-info/.*|{1})".format(
        re.escape(version), r"data/data/share/(man/man1/twinrun[a-z-]*\.1|[a-z/_.-]*twinrun(\.fish)?)"))
    names = [name for name in zipfile.ZipFile(str(wheel)).namelist() if not name.endswith("/")]
    odd = [name for name in names if not allowed.fullmatch(name)]
    if odd:
        sys.exit("%s: unexpected files %s" % (wheel.name, odd))
    return version


def main(dist, built):
    wheels = sorted(pathlib.Path(dist).glob("twinrun-*.whl"))
    if not wheels:
        print("there is no wheel in %s: ./dev wheel makes one" % dist)
        return NOTHING
    if len(wheels) > 1:
        sys.exit("%s has several wheels: %s" % (dist, [w.name for w in wheels]))
    version = check_content(wheels[0])
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        must(sys.executable, "-m", "venv", folder / "venv")
        python, program = folder / "venv/bin/python", folder / "venv/bin/twinrun"
        must(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", wheels[0])
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", must("readelf", "-d", program)))
        if not needed or not needed <= GLIBC:
            sys.exit("%s needs %s; allowed are only glibc's: %s" % (wheels[0].name, sorted(needed), sorted(GLIBC)))
        alone = {name: value for name, value in os.environ.items() if name not in ("TWINRUN", "PYTHONPATH")}
        for words in ([program], [python, "-m", "twinrun"]):
            said = must(*words, "--version", cwd=str(folder), env=alone)
            if version not in said:
                sys.exit("%s --version printed %r; expected %s" % (" ".join(map(str, words)), said, version))
        must(program, "doctor")
        for words, file in ((["manual", "train"], "man/man1/twinrun-train.1"),
                            (["completion", "bash"], "bash-completion/completions/twinrun"),
                            (["completion", "zsh"], "zsh/site-functions/_twinrun"),
                            (["completion", "fish"], "fish/vendor_completions.d/twinrun.fish")):
            if must("%s_dev" % built, *words) != (folder / "venv/share" / file).read_text(encoding="utf-8"):
                sys.exit("share/%s is not what twinrun_dev %s prints" % (file, " ".join(words)))
        compare("digits_mlp", results(built, folder / "built", None), results(program, folder / "installed", None))
        engine = "exec:%s_dev serve --engine honest:3"
        compare("digits_mlp with an engine", results(built, folder / "built-exec", engine % built),
                results(program, folder / "installed-exec", engine % built))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

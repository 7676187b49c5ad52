"""Tests that a bundle made by the build replays to the same bits from an installed prefix: with an empty environment, in separate
namespaces, with shared libraries only of the declared packages and their dependencies.

    python3 tests/install/replay.py CMAKE BUILD_DIR TWINRUN PACKAGES_FILE

Exit status 77, with the reason, if it cannot be tested here.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NOTHING = 77
FAULT = "scale@dense1/kernel.grad,magnitude=1.01"


def run(*words, **more):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, **more)


def must(*words, status=0, **more):
    done = run(*words, **more)
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, words))}: exit status {done.returncode}; expected {status}\n{done.stdout}{done.stderr}")
    return done


def depends():
    """Returns {package: names that it depends on}, including provided names."""
    fields = must("dpkg-query", "-W", "-f", "${Package}\t${Depends}, ${Pre-Depends}\t${Provides}\n").stdout
    needs, providers = {}, {}
    for line in fields.splitlines():
        name, wanted, provided = line.split("\t")
        needs[name] = set(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]*)", wanted))
        for other in re.findall(r"(?:^|,)\s*([a-z0-9][a-z0-9.+-]*)", provided):
            providers.setdefault(other, set()).add(name)
    return needs, providers


def closure(names):
    needs, providers = depends()
    found, rest = set(), list(names)
    while rest:
        name = rest.pop()
        if name not in found:
            found.add(name)
            rest += [*needs.get(name, ()), *providers.get(name, ())]
    return found


def check_libraries(binary, packages):
    """Checks that every shared library of the binary belongs to a declared package or to a dependency of one."""
    declared, group = [], None
    for line in pathlib.Path(packages).read_text(encoding="utf-8").splitlines():
        line = line.partition("#")[0].strip()
        group = line if line.startswith("[") else group
        if line and not line.startswith("[") and group == "[build]":
            declared.append(line.split()[0])
    allowed, libraries = closure(declared), re.findall(r"=> (/\S+)", must("ldd", binary).stdout)
    if not libraries:
        sys.exit(f"ldd names no library of {binary}")
    for library in libraries:
        owner = ""
        for path in (library, pathlib.Path(library).resolve(), library.removeprefix("/usr"), "/usr" + library):
            owner = owner or run("dpkg-query", "-S", path).stdout.partition(":")[0]
        if owner not in allowed:
            sys.exit(f"{library} is of {owner or 'no package'}, which no declared package needs")
    return len(libraries)


def main():
    cmake, build, twinrun, packages = sys.argv[1:]
    for tool in ("unshare", "ldd", "dpkg-query"):
        if shutil.which(tool) is None:
            print(f"SKIPPED: no {tool}")
            return NOTHING
    alone = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc"]
    if run(*alone, "true").returncode != 0:
        print("SKIPPED: this machine does not allow namespaces")
        return NOTHING
    with tempfile.TemporaryDirectory(prefix="twinrun-replay-") as folder:
        folder = pathlib.Path(folder)
        must(twinrun, "diagnose", "drill_mlp", "--quick", "--fault", FAULT, "-q", "-o", folder / "results", status=20)
        bundle = folder / "fault.zip"
        must(twinrun, "bundle", folder / "results", "-o", bundle, "-q")
        must(cmake, "--install", build, "--prefix", folder / "prefix")
        installed, empty = folder / "prefix/bin/twinrun", folder / "empty"
        libraries = check_libraries(installed, packages)
        empty.mkdir()
        again = must(*alone, "/usr/bin/env", "-i", installed, "replay", bundle, "-q", cwd=empty)
        if "reproduced:" not in again.stdout or "DIFFERENT" in again.stdout:
            sys.exit(again.stdout)
        if list(empty.iterdir()):
            sys.exit(f"replay left {list(empty.iterdir())} in the caller's folder")

        damaged = bytearray(bundle.read_bytes())    # in the middle of the scenario's packed bytes
        at = damaged.index(b"scenario.toml") + len("scenario.toml") + 60
        damaged[at] ^= 4
        (folder / "damaged.zip").write_bytes(damaged)
        refused = must(installed, "replay", folder / "damaged.zip", "-q", status=128)
        if "scenario.toml" not in refused.stderr:
            sys.exit(f"the damaged member is not named: {refused.stderr}")
    print(f"reproduced from the prefix; {libraries} libraries, all of declared packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

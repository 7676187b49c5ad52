"""The peers of peers.toml on this machine: their environments, made where they are missing, and what each says of itself.

    entries, missing = peers.found()      # entries: as twinrun_bench reads them, with "version", "says" and "setting" for the page
    python3 bench/peers.py NAME           # makes the environment of that name alone, and prints its interpreter
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "adapters"))
from twinrun import environments  # noqa: E402

# Cores of OpenBLAS whose kernels have vectors of 512 bits. It takes processors that it does not know for older ones: 0.3.21 takes an
# EPYC of Zen 4 or 5 for Zen, whose kernels are AVX2, or for Prescott, without AVX.
WIDE = ("skylakex", "cooperlake", "sapphirerapids")
AVX2 = ("haswell", "zen", "excavator")

# OpenBLAS and oneDNN say what they are through functions; run in a process of its own, because they read the environment once.
OPENBLAS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
def text(name):
    function = library[sys.argv[2].replace("{}", name)]
    function.restype = ctypes.c_char_p
    return function().decode()
print(text("openblas_get_corename"), text("openblas_get_config"), sep="|")
"""
ONEDNN = """
import ctypes
library = ctypes.CDLL("libdnnl.so.2")
class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int)]
library.dnnl_version.restype = ctypes.POINTER(Version)
v = library.dnnl_version().contents
print(f"{v.major}.{v.minor}.{v.patch}|{library.dnnl_get_effective_cpu_isa():#x}")
"""
# dnnl_cpu_isa_t of oneDNN 2.6 (dnnl_types.h).
ISAS = {0x1: "SSE4.1", 0x3: "AVX", 0x7: "AVX2", 0x407: "AVX2 and VNNI", 0x27: "AVX-512", 0x67: "AVX-512 and VNNI",
        0xE7: "AVX-512 and BF16", 0x3E7: "AVX-512 and AMX"}


def flags():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()


def core_type(cores, has):
    """OPENBLAS_CORETYPE for a processor with these flags, where OpenBLAS chose these cores by itself; None: let it choose."""
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= has
    good = WIDE if wide else (*WIDE, *AVX2)
    if all(core.lower() in good for core in cores):
        return None
    return "SkylakeX" if wide else "Haswell" if "avx2" in has else None


def said(words, **variables):
    """The last line that a command prints; None where it fails."""
    try:
        done = subprocess.run(words, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[-1] if done.returncode == 0 and lines else None


def of_openblas(entry, **variables):
    told = said([sys.executable, "-c", OPENBLAS, entry["library"], entry.get("symbols", "{}")], **variables)
    return told.split("|") if told else None


def resolved(told, where):
    """Fills in {python}, {packages}, {bench} and {cache} of an entry."""
    def filled(value):
        for name, meant in where.items():
            value = value.replace("{" + name + "}", meant)
        return value
    entry = {k: v for k, v in told.items() if k in ("name", "topics", "symbols", "wide", "setting")}
    entry["command"] = [filled(w) for w in told.get("command", [])]
    entry["library"] = filled(told.get("library", ""))
    entry["environment"] = {k: filled(v) for k, v in told.get("variables", {}).items()}
    return entry


def table():
    import tomllib    # of Python 3.11, which not every reader of this module has

    with open(HERE / "peers.toml", "rb") as file:
        return tomllib.load(file)


def interpreter(entry):
    """The Python of an environment of the table, which is made if it is missing. Raises environments.Unavailable."""
    return environments.environment(entry["requirements"], entry.get("python"))["python"]


def found():
    """Returns the peers that are here, and {name: why} of the others. Sets OPENBLAS_CORETYPE for all of them where that is needed."""
    told = table()
    entries, missing, made = [], {}, {}
    for name, wanted in told["environment"].items():
        try:
            made[name] = interpreter(wanted)
        except environments.Unavailable as e:
            made[name] = e
    for peer in told["peer"]:
        python = made[peer["environment"]] if "environment" in peer else peer.get("python", sys.executable)
        if isinstance(python, environments.Unavailable):
            missing[peer["name"]] = str(python)
            continue
        packages = sorted(pathlib.Path(python).parent.parent.glob("lib/python*/site-packages"))
        where = {"python": python, "packages": str(packages[0]) if packages else "", "bench": str(HERE),
                 "cache": os.path.dirname(environments.cache())}
        entries.append(resolved(peer, where))
    libraries = [(e, of_openblas(e)) for e in entries if e["library"]]
    fitting = core_type([told[0] for _, told in libraries if told], flags())
    if fitting and "OPENBLAS_CORETYPE" not in os.environ:
        os.environ["OPENBLAS_CORETYPE"] = fitting
    kept = []
    for entry in entries:
        if entry["library"]:
            answer = of_openblas(entry)
            about = answer and {"version": answer[1].split()[1], "says": answer[0]}
        else:
            line = said([*entry["command"][:2], "about"], **{k: v for k, v in entry["environment"].items() if "{" not in v})
            about = line and json.loads(line)
        if not about:
            missing[entry["name"]] = "not installed"
            continue
        if entry["library"] and "OPENBLAS_CORETYPE" in os.environ:
            entry["setting"] += f", OPENBLAS_CORETYPE={os.environ['OPENBLAS_CORETYPE']}"
        kept.append({**entry, **about})
    return kept, missing


def linked():
    """What the page says of oneDNN, which twinrun_bench is linked to."""
    told = said([sys.executable, "-c", ONEDNN])
    if not told:
        return None
    version, isa = told.split("|")
    return {"name": "oneDNN Debian", "version": version, "says": ISAS.get(int(isa, 16), isa), "setting": "kernels in its own layout"}


if __name__ == "__main__":
    try:
        print(interpreter(table()["environment"][sys.argv[1]]))
    except environments.Unavailable as e:
        sys.exit(f"the environment {sys.argv[1]} cannot be made: {e}")

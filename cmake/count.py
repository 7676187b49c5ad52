"""Counts the lines of the tree, by kind and room: ./dev count [--rooms]."""
import collections
import subprocess
import sys

CODE = (".cc", ".h", ".def", ".py", ".js", ".css", ".cpp", ".cmake", ".sh", ".proto")
PRODUCT = ("adapters", "backends", "checkpoints", "device", "harness", "program", "reports", "scenarios")
GOALS = {"product": 120_000, "tests": 56_000, "docs": 9_500, "fixtures": 45_000}


def kind_of(path):
    room = path.partition("/")[0]
    code = path.endswith(CODE) or "." not in path.rpartition("/")[2]
    if path.endswith(".md") and not path.startswith("tests/"):
        return "docs"
    if room in ("tests", "cases", "bench"):
        return "tests" if code else "fixtures"
    if room in PRODUCT:
        return "product" if code or path.endswith((".toml", ".txt")) else "fixtures"
    return "product" if code else None


def main():
    counts, rooms = collections.Counter(), collections.Counter()
    for path in subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout.decode().split("\0")[:-1]:
        kind = kind_of(path)
        try:
            with open(path, encoding="utf-8") as file:
                lines = sum(1 for _ in file)
        except (OSError, UnicodeDecodeError):    # a picture, a recording
            continue
        if kind:
            counts[kind] += lines
            rooms[kind, "/".join(path.split("/")[:2 if path.count("/") > 1 else 1])] += lines
    for kind, goal in GOALS.items():
        print(f"{kind:10} {counts[kind]:8,} lines, goal {goal:,}")
        if "--rooms" in sys.argv:
            for (_, room), lines in sorted(((k, n) for k, n in rooms.items() if k[0] == kind), key=lambda pair: -pair[1]):
                print(f"{'':10} {lines:8,} {room}")


if __name__ == "__main__":
    main()

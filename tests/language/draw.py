#!/usr/bin/env python3
"""Draws comments and user-visible strings at random, for a reader with fresh eyes.

    tests/language/draw.py --seed 1 --count 40      # prints two numbered lists, each entry with its file and line

A comment is a paragraph of `//` lines outside of tests; a string is a run of adjacent literals of at least four words
and three blanks, outside of #include lines. The same seed draws the same entries from the same tree. docs/results/language.md keeps what
readers said and what was changed.
"""
import argparse
import pathlib
import random
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
LITERALS = re.compile(r'(?:"(?:\\.|[^"\\\n])*"\s*)+')


def sources():
    listed = subprocess.run(["git", "ls-files", "*.cc", "*.h"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in listed if not name.startswith("tests/")]


def comments(text):
    """(line, text) of each paragraph of comment lines."""
    found, begin = [], 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        if bare.startswith("// "):
            if begin == 0:
                begin, words = number, []
            words.append(bare[3:])
        elif begin:
            found.append((begin, " ".join(words)))
            begin = 0
    return [(line, words) for line, words in found if len(words.split()) >= 4]


def strings(text):
    """(line, text) of each run of string literals that has at least four words and three blanks; #include lines are skipped."""
    found = []
    code = re.sub(r"^([ \t]*)(?://|#include)[^\n]*", r"\1", text, flags=re.MULTILINE)
    for match in LITERALS.finditer(code):
        words = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', match.group(0)))
        if len(re.findall(r"[A-Za-z]{2,}", words)) >= 4 and words.count(" ") >= 3:
            found.append((code.count("\n", 0, match.start()) + 1, words))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    for what, of in (("Comments", comments), ("Strings", strings)):
        entries = [(name, *entry) for name in sources() for entry in of((ROOT / name).read_text())]
        drawn = random.Random(options.seed).sample(entries, min(options.count, len(entries)))
        print(f"## {what} ({len(drawn)} of {len(entries)}, seed {options.seed})\n")
        for number, (name, line, words) in enumerate(drawn, 1):
            print(f"{number}. {name}:{line}: {words}")
        print()


if __name__ == "__main__":
    main()

"""Weights that people already have, under the program's names and in its layouts: what the export.py of each framework shares.

    arrays = {"features.0.weight": array, ...}         # of a framework's file
    named, left = rename(arrays, {"features.0": "conv1"}, LEAVES)
    save_for_twinrun(parser options, named, left)

The result is a safetensors file for `twinrun convert FILE init.h5 --scenario SCENARIO` (docs/reference/interchange.md).
"""
import argparse
import re
import sys
import tomllib

import numpy as np

from .safetensors import save


class Wrong(Exception):
    """Something a user can mend: a file, a name, a shape."""


def arguments(description, checkpoint):
    """The command line that all of them have; a framework may add to it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help=checkpoint)
    parser.add_argument("out", nargs="?", help="file to write, .safetensors; none: list what is there")
    parser.add_argument("--name", action="append", default=[], metavar="THEIRS=OURS",
                        help="a layer, or one tensor, and what the scenario calls it (repeatable): features.0=conv1")
    parser.add_argument("--names", metavar="FILE", help='TOML with such lines: "features.0" = "conv1"')
    return parser


def names_of(options):
    """{theirs: ours} of --names and --name; the latter win."""
    names = {}
    if options.names:
        try:
            with open(options.names, "rb") as file:
                names = tomllib.load(file)
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise Wrong(f"{options.names}: {error}") from None
        if wrong := [k for k, v in names.items() if not isinstance(v, str)]:
            raise Wrong(f"{options.names}: '{wrong[0]}' is no line THEIRS = \"OURS\"")
    for word in options.name:
        theirs, sep, ours = word.partition("=")
        if not (theirs and sep and ours):
            raise Wrong(f"--name {word}: due is THEIRS=OURS")
        names[theirs] = ours
    return names


def rename(arrays, names, leaf):
    """({ours: (theirs, array)}, [what nothing was said of]). The longest of `names` that is a tensor's name, or begins it up to a
    '.' or '/', says what it is called; leaf(rest, array) what the rest is: 'weight' is 'kernel', None: it has no counterpart. Without
    `names` all keep theirs."""
    found, left, used = {}, [], set()
    for theirs, array in arrays.items():
        fits = [k for k in names if theirs == k or (theirs.startswith(k) and theirs[len(k)] in "./")]
        if fits:
            best = max(fits, key=len)
            used.add(best)
            rest = theirs[len(best) + 1:]
            ours = names[best] if not rest else (last := leaf(rest, array)) and f"{names[best]}/{last}"
        elif names:
            ours = None
        else:
            layer, _, last = re.sub(r"[.]", "/", theirs).rpartition("/")
            ours = (named := leaf(last, array)) and (f"{layer}/{named}" if layer else named)
        if not ours:
            left.append(theirs)
        elif ours in found:
            raise Wrong(f"'{found[ours][0]}' and '{theirs}' would both be '{ours}'")
        else:
            found[ours] = (theirs, array)
    if unused := set(names) - used:
        raise Wrong(f"the checkpoint has no {', '.join(map(repr, sorted(unused)))}; it has {', '.join(list(arrays)[:40])}")
    return found, left


def finish(options, found, left):
    """Writes the file and says what went where."""
    for ours, (theirs, array) in found.items():
        print(f"{ours:40} {str(list(array.shape)):20} {theirs}")
    if left:
        print(f"left out: {', '.join(left)}", file=sys.stderr)
    if not options.out:
        return
    if not found:
        raise Wrong(f"{options.checkpoint}: nothing to write")
    save(options.out, {ours: np.ascontiguousarray(array) for ours, (_, array) in found.items()})
    print(f"wrote {options.out}: twinrun convert {options.out} init.h5 --scenario SCENARIO")


def run(main):
    """main(), errors of the user's as one line and exit status 1."""
    try:
        main()
    except Wrong as wrong:
        sys.exit(f"error: {wrong}")

"""What the export.py of each framework shares: it writes existing weights under the program's names and in its layouts.

    arrays = {"features.0.weight": array, ...}         # of a framework's file
    named, left = rename(arrays, {"features.0": "conv1"}, LEAVES)
    save_for_twinrun(parser options, named, left)

The result is a safetensors file for `twinrun convert FILE init.h5 --scenario SCENARIO` (docs/reference/data.md).
"""
import argparse
import re
import sys
import tomllib

import numpy as np

from .safetensors import save


class Wrong(Exception):
    """An error that the user can correct: a file, a name, a shape."""


def arguments(description, checkpoint):
    """The command line that all of them share; a framework may add options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help=checkpoint)
    parser.add_argument("out", nargs="?", help="the .safetensors file to write; without it, the checkpoint is listed")
    parser.add_argument("--name", action="append", default=[], metavar="THEIRS=OURS",
                        help="a layer or a tensor of the checkpoint and its name in the scenario, as in features.0=conv1 (repeatable)")
    parser.add_argument("--names", metavar="FILE", help='a TOML file of such names, as in "features.0" = "conv1"')
    return parser


def names_of(options):
    """Returns {theirs: ours} of --names and --name; those of --name take precedence."""
    names = {}
    if options.names:
        try:
            with open(options.names, "rb") as file:
                names = tomllib.load(file)
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise Wrong(f"{options.names}: {error}") from None
        if wrong := [k for k, v in names.items() if not isinstance(v, str)]:
            raise Wrong(f"{options.names}: '{wrong[0]}' is not a line THEIRS = \"OURS\"")
    for word in options.name:
        theirs, sep, ours = word.partition("=")
        if not (theirs and sep and ours):
            raise Wrong(f"--name {word}: expected THEIRS=OURS")
        names[theirs] = ours
    return names


def rename(arrays, names, leaf):
    """Returns ({ours: (theirs, array)}, [theirs without a name of ours]). A tensor is renamed by the longest of `names` that is its
    name, or the beginning of it up to a '.' or '/'; leaf(rest, array) renames the rest, as 'weight' to 'kernel', and returns None if it
    has no counterpart. Without `names` every tensor keeps its name."""
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
    """Prints which tensor got which name, and writes the file."""
    for ours, (theirs, array) in found.items():
        print(f"{ours:40} {str(list(array.shape)):20} {theirs}")
    if left:
        print(f"left out: {', '.join(left)}", file=sys.stderr)
    if not options.out:
        return
    if not found:
        raise Wrong(f"{options.checkpoint}: no tensor to write")
    save(options.out, {ours: np.ascontiguousarray(array) for ours, (_, array) in found.items()})
    print(f"wrote {options.out}: twinrun convert {options.out} init.h5 --scenario SCENARIO")


def run(main):
    """Calls main(); an error of the user becomes one line and exit status 1."""
    try:
        main()
    except Wrong as wrong:
        sys.exit(f"error: {wrong}")

"""Finds which of a script's tensors is which variable of the program, from shapes, from the order of definition and from the names
that frameworks use. What these do not decide is not guessed: Ambiguous carries a dictionary that its reader can correct and paste.

A Unit holds the tensors of one layer, such as the weight and bias of a Linear. The program's units are the names of its variables up to
the last '/'.
"""
import dataclasses
import difflib
import re
import typing

# Names of a layer's tensors in frameworks and scripts -> their possible names in the program.
LEAVES = {
    **dict.fromkeys(("kernel", "w"), ("kernel",)), **dict.fromkeys(("weight", "weights"), ("kernel", "gamma", "embeddings")),
    **dict.fromkeys(("bias", "b", "offset"), ("bias", "beta")), "beta": ("beta",), "gamma": ("gamma",), "scale": ("gamma",),
    **dict.fromkeys(("embedding", "embeddings", "table", "wte", "wpe", "pos_embedding"), ("embeddings",)),
    **dict.fromkeys(("mean", "running_mean", "moving_mean"), ("moving_mean",)),
    **dict.fromkeys(("var", "variance", "running_var", "moving_variance"), ("moving_variance",)),
}
ANY = {1: ("bias", "gamma", "beta", "moving_mean", "moving_variance")}    # for a name without meaning, by rank
PROJECTIONS = {"query": ("query", "q", "q_proj", "wq", "w_q", "to_q"), "key": ("key", "k", "k_proj", "wk", "w_k", "to_k"),
               "value": ("value", "v", "v_proj", "wv", "w_v", "to_v"),
               "output": ("output", "out", "o", "out_proj", "o_proj", "wo", "w_o", "to_out", "proj", "c_proj")}


class Ambiguous(Exception):
    """Shapes and order do not decide; the text holds a dictionary to paste."""


@dataclasses.dataclass
class Form:
    """One way to read a tensor: its possible names in the program, its shape in the program's layout, and how to convert it."""
    leaves: tuple
    shape: tuple
    how: typing.Any = None


@dataclasses.dataclass
class Candidate:
    """A tensor of the script."""
    path: str        # as its author would write it: model.conv1.weight
    handle: typing.Any
    forms: list


@dataclasses.dataclass
class Unit:
    path: str
    tensors: list
    name: str = ""   # the last word of the path, for the projections of an attention


def word_of(label):
    return re.sub(r"[_.]?\d+$", "", label.lower())


def means_something(label):
    """Whether a tensor's name tells its role in the layer."""
    return word_of(label) in LEAVES


def leaves_of(label, rank):
    """Returns the possible names in the program of a tensor that the script calls `label`."""
    return LEAVES.get(word_of(label)) or ANY.get(rank, ("kernel", "embeddings"))


def units_of(variables):
    """{unit: {last part: variable}} of the program's parameters and statistics, in their order."""
    units = {}
    for v in variables:
        unit, _, leaf = v.name.rpartition("/")
        units.setdefault(unit, {})[leaf] = v
    return units


def projection(name):
    word = re.split(r"[/.\[\]]", name.strip("/.]"))[-1].lower()
    return next((kind for kind, words in PROJECTIONS.items() if word in words), None)


def assigned(wanted, unit_name, unit):
    """Returns {last part: (candidate, form)} if the unit's tensors are exactly those expected, else None."""
    if len(wanted) != len(unit.tensors):
        return None
    mine, theirs = projection(unit_name), projection(unit.name)
    if mine and theirs and mine != theirs:
        return None

    def place(leaves, tensors):
        if not leaves:
            return {}
        for candidate in tensors:
            for form in candidate.forms:
                if leaves[0] in form.leaves and form.shape == wanted[leaves[0]].shape:
                    rest = place(leaves[1:], [t for t in tensors if t is not candidate])
                    if rest is not None:
                        return {leaves[0]: (candidate, form), **rest}
        return None

    return place(list(wanted), unit.tensors)


def matched(variables, units):
    """Returns ({the program's name: (candidate, form)}, [lists of the program's units that only the order of definition distinguishes])."""
    due, pairs, close = units_of(variables), {}, []
    fits = {p: [i for i, u in enumerate(units) if assigned(due[p], p, u) is not None] for p in due}
    in_order = len(due) == len(units) and all(i in fits[p] for i, p in enumerate(due))
    if in_order:
        pairs = {p: i for i, p in enumerate(due)}
    left = {p: set(f) for p, f in fits.items()}
    while not in_order:    # n units of the program that fit the same n units of the script take them
        groups = {}
        for p, f in left.items():
            groups.setdefault(frozenset(f), []).append(p)
        settled = [(f, ps) for f, ps in groups.items() if ps and len(f) == len(ps)]
        if not settled:
            break
        for f, ps in settled:
            pairs.update(zip(ps, sorted(f)))
            left = {p: rest - f for p, rest in left.items() if p not in ps}
    for p in pairs:
        alike = [q for q in pairs if pairs[q] in fits[p]]
        if len(alike) > 1 and alike not in close:
            close.append(alike)
    found = {}
    for p, i in pairs.items():
        for leaf, pair in assigned(due[p], p, units[i]).items():
            found[due[p][leaf].name] = pair
    if len(pairs) < len(due):
        raise Ambiguous(unsettled(due, units, pairs, fits, found))
    return found, close


def unsettled(due, units, pairs, fits, found):
    """Returns the text of Ambiguous: what was not decided, and a draft of the whole dictionary to correct and paste."""
    said, used, choice = [], set(pairs.values()), False
    for p in due:
        if p in pairs:
            continue
        free = [i for i in fits[p] if i not in used]
        shapes = ", ".join(f"{leaf} {list(v.shape)}" for leaf, v in due[p].items())
        if free:
            choice = True
            said.append(f"'{p}' ({shapes}) may be {' or '.join(units[i].path for i in free)}")
            used.add(free[0])
            for leaf, pair in assigned(due[p], p, units[free[0]]).items():
                found[due[p][leaf].name] = pair
        else:
            said.append(f"the script has no tensors with the shapes of '{p}' ({shapes})")
    names = [v.name for unit in due.values() for v in unit.values()]
    lines = [f'"{n}": {found[n][0].path if n in found else "..."}' for n in names]
    rest = [f"{c.path} {list(c.forms[0].shape)}" for i, u in enumerate(units) if i not in used for c in u.tensors]
    if not choice:
        more = f"; it has, in the program's layout, {', '.join(rest)}" if rest else ""
        return "; ".join(said) + more + ". Does the scenario describe the script's model?"
    return ("; ".join(said) + ". Name them with a dictionary; this is a draft to correct: {" + ", ".join(lines) + "}"
            + (f". Not used in it, with shapes in the program's layout: {', '.join(rest)}" if rest else ""))


def nearest(name, shape, candidates):
    """Returns what to suggest for a missing name: the names of its shape, else the most similar ones. candidates: {name: shape}."""
    fits = [n for n, s in candidates.items() if tuple(s) == tuple(shape)] or difflib.get_close_matches(name, candidates, 3, 0.4)
    return ", ".join(f"'{n}' {list(candidates[n])}" for n in fits[:4])

"""A sharded program beside the same code on one device: which op is which, and the whole of shards.

    partner = pairs(sharded, whole)            # {index of a sharded op: op of the whole program}
    for whole in assemblies(s, r, axes): ...   # a value of all devices (layout.py), in the shape that it has on one
"""

import difflib
import itertools
import math

import numpy as np

def pairs(sharded, whole):
    a, b = [op.name for op in sharded.ops], [op.name for op in whole.ops]
    if a == b:
        return dict(enumerate(whole.ops))
    found = {}
    for i, j, n in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        for k in range(n):
            found[i + k] = whole.ops[j + k]
    return found


def assemblies(s, r, axes):
    """Yields s in the shape of r: as it is, or its shards put together along any axes that fit."""
    k = len(axes)
    local, wanted = s.shape[k:], r.shape[k:]
    if local == wanted:
        yield s
        return
    if len(local) != len(wanted) or any(a == 0 or b % a for a, b in zip(local, wanted)):
        return
    ratios = [b // a for a, b in zip(local, wanted)]
    free = [p for p in range(k) if axes[p][1] > 1 and r.shape[p] == 1]
    split = [d for d, ratio in enumerate(ratios) if ratio > 1]

    def choices(ratio):
        for count in range(1, len(free) + 1):
            for chosen in itertools.permutations(free, count):
                if math.prod(axes[p][1] for p in chosen) == ratio:
                    yield chosen

    for chosen in itertools.product(*[list(choices(ratios[d])) for d in split]):
        used = [p for group in chosen for p in group]
        if len(set(used)) == len(used):
            yield _put_together(s, dict(zip(split, chosen)), axes)


def _put_together(s, where, axes):
    k = len(axes)
    used = [p for group in where.values() for p in group]
    lead = [axes[p][1] if p in used else s.shape[p] for p in range(k)]
    s = np.broadcast_to(s, (*lead, *s.shape[k:]))
    order, shape = [p for p in range(k) if p not in used], [1 if p in used else s.shape[p] for p in range(k)]
    for d in range(s.ndim - k):
        group = where.get(d, ())
        order += [*group, k + d]
        shape.append(s.shape[k + d] * math.prod(axes[p][1] for p in group))
    return np.transpose(s, order).reshape(shape)


def products(axes):
    """Returns the numbers of devices along any of the axes together, above 1."""
    sizes = [n for _, n in axes if n > 1]
    return sorted({math.prod(some) for count in range(len(sizes)) for some in itertools.combinations(sizes, count + 1)})

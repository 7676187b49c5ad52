"""A sharded program beside the same code on one device: which op is which, and how
shards relate to the whole.

    partner = pairs(sharded, whole)                  # {index of a sharded op: op of the whole program}
    relation(s, r, axes)             # ("same",), ("joined", axes of a mean, axes of a sum), ("factor", 8.0) or None

s has a leading dimension for each axis (layout.py), r the same with axes of size 1. s is the
whole quantity on each device (a statistic, a gradient), or a shard of it, which is then put together first.
"""

import difflib
import itertools
import math

import numpy as np

# What binary64 computes in another order differs by less; no float32 engine can show less.
ROUNDING = 2.0**-26


def pairs(sharded, whole):
    a, b = [op.name for op in sharded.ops], [op.name for op in whole.ops]
    if a == b:
        return dict(enumerate(whole.ops))
    found = {}
    for i, j, n in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        for k in range(n):
            found[i + k] = whole.ops[j + k]
    return found


def number(x):
    """Returns an array of numbers, or None."""
    if x is None or not isinstance(x.dtype, np.dtype):
        return None
    x = np.asarray(x)
    return x if x.dtype == np.float64 or x.dtype.kind in "iu" else None


def equal(a, r, k, summands=0.0):
    """Returns whether every device's a is r, but for rounding. Both have k leading dimensions.

    summands: the size of what a is the sum of; where they cancel, rounding is that of them."""
    if a.shape[k:] != r.shape[k:]:
        return False
    d = np.broadcast_shapes(a.shape, r.shape)
    rest = tuple(range(k, len(d)))
    difference = np.sqrt(np.sum(np.square(np.abs(a - r)), axis=rest))
    size = np.sqrt(np.sum(np.square(np.abs(np.broadcast_to(r, d))), axis=rest))
    rounding = ROUNDING * np.maximum(size, summands)
    return bool(np.all((difference <= rounding) | (np.broadcast_to(difference, d[:k]) == 0)))


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


def subsets(places):
    for count in range(1, len(places) + 1):
        yield from itertools.combinations(places, count)


def sizes_of(axes, places):
    return math.prod(axes[p][1] for p in places)


def products(axes):
    """Returns the numbers of devices along any of the axes together, above 1."""
    places = [p for p in range(len(axes)) if axes[p][1] > 1]
    return sorted({sizes_of(axes, chosen) for chosen in subsets(places)})


def relation(s, r, axes):
    k = len(axes)
    for a in assemblies(s, r, axes):
        if equal(a, r, k):
            return ("same",)
    for a in assemblies(s, r, axes):
        varying = [p for p in range(k) if a.shape[p] > 1 and r.shape[p] == 1]
        # A loss that is the mean of a device's own rows has derivatives as many times as large.
        own = math.prod(axes[p][1] for p in range(k) if a.shape[p] == 1) if a.shape[k:] != s.shape[k:] else 1
        for chosen in subsets(varying):
            mean = np.mean(a, axis=chosen, keepdims=True)
            each = math.sqrt(float(np.sum(np.square(a))) / math.prod(a.shape[:k]))
            for summed in [(), *subsets(chosen)]:
                n = sizes_of(axes, summed)
                value, size = mean * n, each * n
                if equal(value, r, k, size) or (own > 1 and equal(value, own * r, k, size)):
                    averaged = tuple(axes[p][0] for p in chosen if p not in summed)
                    return "joined", averaged, tuple(axes[p][0] for p in summed)
        c = factor(a, r, axes)
        if c is not None:
            return "factor", c
    return None


def factor(a, r, axes):
    """Returns c, a product of axes or one over it, if a is c times r on every device; else None."""
    size = float(np.sum(np.square(r)))
    if not size or not math.isfinite(size):
        return None
    first = a[tuple(slice(0, n) for n in r.shape[: len(axes)])]
    c = float(np.sum(first * r)) / size
    many = {n**power for n in products(axes) for power in (1, 2)}
    for n in many | {n * m for n in many for m in many}:
        for exact in (float(n), 1.0 / n):
            if abs(c - exact) <= ROUNDING * exact and equal(a, exact * r, len(axes)):
                return exact
    return None


def permutation(s, r, grid):
    """Returns the order in which the blocks of s are those of r, or None. grid: {dimension: blocks}."""
    if s.shape != r.shape or any(s.shape[d] % n for d, n in grid.items()):
        return None
    mine, theirs = blocks(s, grid), blocks(r, grid)
    order, taken = [], set()
    for block in theirs:
        size = np.linalg.norm(block)
        for j, other in enumerate(mine):
            if j not in taken and np.linalg.norm(other - block) <= ROUNDING * size:
                order.append(j)
                taken.add(j)
                break
        else:
            return None
    return order if order != list(range(len(order))) else None


def blocks(x, grid):
    shape, outer, inner = [], [], []
    for d, size in enumerate(x.shape):
        n = grid.get(d, 1)
        outer.append(len(shape))
        inner.append(len(shape) + 1)
        shape += [n, size // n]
    y = x.reshape(shape).transpose(*outer, *inner)
    return y.reshape((-1,) + y.shape[x.ndim :])


def unblocks(y, grid, shape):
    n = [grid.get(d, 1) for d in range(len(shape))]
    y = y.reshape(*n, *[size // m for size, m in zip(shape, n)])
    order = [i for d in range(len(shape)) for i in (d, len(shape) + d)]
    return y.transpose(order).reshape(shape)

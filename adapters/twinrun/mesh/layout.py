"""How values of all devices of a mesh are held as one array.

Inside of a shard_map over axes (("data", 4), ("model", 2)) an array has two leading dimensions, of 4 and 2, before its
shape on one device. A leading dimension is 1 where all devices along that axis hold the same.

    parts = split(x, {0: ("data",)}, 0, axes)          # a whole array to its shards, as in_specs says
    x = merge(parts, {0: ("data",)}, 0, axes)          # and back, as out_specs says
"""

import math

import jax.numpy as jnp
import numpy as np


def xp(x):
    """Returns the module whose functions x is for: binary64 is evaluated by NumPy, a trace by JAX."""
    return np if isinstance(x, np.ndarray) else jnp


def names_by_dimension(spec):
    """Returns {dimension: (axis, ...)} of a PartitionSpec, or of in_names and out_names before JAX 0.6."""
    if isinstance(spec, dict):
        return {d: tuple(n) for d, n in spec.items()}
    return {d: n if isinstance(n, tuple) else (n,) for d, n in enumerate(spec) if n is not None}


def lift(x, k):
    """Returns a value that is the same on all devices of k axes."""
    return xp(x).reshape(x, (1,) * k + np.shape(x)) if k else x


def lead(x, k):
    return tuple(np.shape(x)[:k])


def joint(shapes):
    """Returns the leading dimensions that values with these have together."""
    return tuple(max(sizes) for sizes in zip(*shapes))


def spread(x, k, dims):
    """Returns x with the given leading dimensions."""
    return x if lead(x, k) == tuple(dims) else xp(x).broadcast_to(x, tuple(dims) + np.shape(x)[k:])


def split(x, names, k, new):
    """Returns x, which has k leading dimensions already, with one more for each axis of `new`."""
    sizes = dict(new)
    shape, dims, where = np.shape(x), [], {}
    for d, size in enumerate(shape[k:]):
        for name in names.get(d, ()):
            where[name] = k + len(dims)
            dims.append(sizes[name])
        dims.append(size // math.prod(sizes[n] for n in names.get(d, ())))
    x = xp(x).reshape(x, shape[:k] + tuple(dims))
    first = [where[n] for n, _ in new if n in where]
    rest = [i for i in range(k, k + len(dims)) if i not in first]
    x = xp(x).transpose(x, (*range(k), *first, *rest))
    outer = tuple(size if n in where else 1 for n, size in new)
    return xp(x).reshape(x, shape[:k] + outer + tuple(dims[i - k] for i in rest))


def merge(x, names, k, new):
    """Returns the whole array of which x holds the shards; along axes that out_specs leaves out, the first device's."""
    mentioned = {n for group in names.values() for n in group}
    for i, (name, size) in enumerate(new):
        if name in mentioned:
            dims = list(lead(x, k + len(new)))
            dims[k + i] = size
            x = spread(x, k + len(new), dims)
        else:
            x = x[(slice(None),) * (k + i) + (slice(0, 1),)]
    kept = [i for i, (n, _) in enumerate(new) if n in mentioned]
    local = np.shape(x)[k + len(new) :]
    x = xp(x).reshape(x, lead(x, k) + tuple(new[i][1] for i in kept) + local)
    at = {new[i][0]: k + j for j, i in enumerate(kept)}
    order, shape = list(range(k)), list(lead(x, k))
    for d, size in enumerate(local):
        order += [at[n] for n in names.get(d, ())] + [k + len(kept) + d]
        shape.append(size * math.prod(dict(new)[n] for n in names.get(d, ())))
    return xp(x).reshape(xp(x).transpose(x, order), tuple(shape))

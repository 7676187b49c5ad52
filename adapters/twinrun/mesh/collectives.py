"""What JAX's collectives do to values of all devices, held as layout.py says.

outputs = COLLECTIVES["psum"](inputs, params, axes)          # axes: (("data", 4), ("model", 2))
"""

import math

import numpy as np

from ..refused import Refused
from .layout import lead, spread, xp


def _named(params, key="axis_name"):
    names = params[key] if key in params else params["axes"]
    return tuple(names) if isinstance(names, (tuple, list, frozenset, set)) else (names,)


def positions(names, axes):
    """Returns the leading dimensions of axes, in the order given."""
    order = [n for n, _ in axes]
    missing = [n for n in names if n not in order]
    if missing:
        raise Refused(f"a collective over {missing[0]}, which is no axis of the mesh in effect ({order})")
    return [order.index(n) for n in names]


def _full(x, axes, where):
    dims = list(lead(x, len(axes)))
    for p in where:
        dims[p] = axes[p][1]
    return spread(x, len(axes), dims)


def _flat(x, axes, where):
    """Returns x with the dimensions `where` merged into one in front, the leading dimensions there 1."""
    k = len(axes)
    x = _full(x, axes, where)
    n = math.prod(axes[p][1] for p in where)
    rest = [i for i in range(x.ndim) if i not in where]
    shape = tuple(1 if i in where else x.shape[i] for i in range(k)) + x.shape[k:]
    return xp(x).reshape(xp(x).transpose(x, (*where, *rest)), (n,) + shape)


def _unflat(x, axes, where):
    """Undoes _flat: x[i] belongs to the i-th device along `where`."""
    k, shape = len(axes), x.shape[1:]
    sizes = tuple(axes[p][1] for p in where)
    x = xp(x).reshape(x, sizes + tuple(s for i, s in enumerate(shape) if i >= k or i not in where))
    rest = [i for i in range(len(shape)) if i >= k or i not in where]
    now = {p: j for j, p in enumerate(where)}
    now.update({i: len(where) + j for j, i in enumerate(rest)})
    return xp(x).transpose(x, [now[i] for i in range(len(shape))])


def _row(x, i):
    return x[i]


def _take(x, rows):
    return x if rows == list(range(x.shape[0])) else xp(x).stack([_row(x, i) for i in rows])


def _groups(params, n):
    groups = params.get("axis_index_groups")
    return [list(range(n))] if groups is None else [list(g) for g in groups]


def _by_group(x, axes, where, groups, function):
    """Returns function(members) per group, for all devices of the group."""
    flat = _flat(x, axes, where)
    if len(groups) == 1 and len(groups[0]) == flat.shape[0] and groups[0] == list(range(flat.shape[0])):
        return function(flat)
    rows = [None] * flat.shape[0]
    for group in groups:
        value = function(_take(flat, group))
        for i in group:
            rows[i] = value
    return _unflat(xp(rows[0]).stack(rows), axes, where)


def _reduce(function, times):
    def collective(inputs, params, axes):
        names = _named(params, "axes")
        if any(isinstance(n, int) for n in names):
            raise Refused("a collective over a numbered axis")
        where = positions(names, axes)
        groups = _groups(params, math.prod(axes[p][1] for p in where))
        outputs = []
        for x in inputs:
            if all(x.shape[p] == 1 for p in where):
                outputs.append(x * np.asarray(len(groups[0]), x.dtype) if times else x)
            elif params.get("axis_index_groups") is None:
                alone = math.prod(axes[p][1] for p in where if x.shape[p] == 1) if times else 1
                total = function(x, tuple(p for p in where if x.shape[p] > 1))
                outputs.append(total if alone == 1 else total * np.asarray(alone, x.dtype))
            else:
                outputs.append(_by_group(x, axes, where, groups, lambda m: function(m, (0,))[0]))
        return outputs

    return collective


def _sum(x, dims):
    return xp(x).sum(x, axis=dims, keepdims=True, dtype=x.dtype)


def _all_gather(inputs, params, axes):
    where, d, k = positions(_named(params), axes), params["all_gather_dimension"], len(axes)
    groups = _groups(params, math.prod(axes[p][1] for p in where))

    def gather(members):
        y = xp(members).moveaxis(members, 0, k + d)
        if params["tiled"]:
            y = xp(y).reshape(y, y.shape[: k + d] + (y.shape[k + d] * y.shape[k + d + 1],) + y.shape[k + d + 2 :])
        return y

    return [_by_group(x, axes, where, groups, gather) for x in inputs]


def _pieces(x, d, n, tiled):
    """Returns the n pieces of dimension d, in a new first dimension."""
    if tiled:
        x = xp(x).reshape(x, x.shape[:d] + (n, x.shape[d] // n) + x.shape[d + 1 :])
    return xp(x).moveaxis(x, d, 0)


def _reduce_scatter(inputs, params, axes):
    where, k = positions(_named(params), axes), len(axes)
    d, tiled = params["scatter_dimension"], params["tiled"]
    groups = _groups(params, math.prod(axes[p][1] for p in where))
    outputs = []
    for x in inputs:
        flat = _flat(x, axes, where)
        rows = [None] * flat.shape[0]
        for group in groups:
            total = xp(flat).sum(_take(flat, group), axis=0, dtype=x.dtype)
            for i, piece in zip(group, _pieces(total, k + d, len(group), tiled)):
                rows[i] = piece
        outputs.append(_unflat(xp(rows[0]).stack(rows), axes, where))
    return outputs


def _all_to_all(inputs, params, axes):
    where, k = positions(_named(params), axes), len(axes)
    s, c, tiled = params["split_axis"], params["concat_axis"], params.get("tiled", False)
    groups = _groups(params, math.prod(axes[p][1] for p in where))
    outputs = []
    for x in inputs:
        flat = _flat(x, axes, where)
        rows = [None] * flat.shape[0]
        for group in groups:
            members = _take(flat, group)
            pieces = _pieces(members, 1 + k + s, len(group), tiled)  # [to, from, ...]
            for i, received in zip(group, pieces):
                y = xp(received).moveaxis(received, 0, k + c)
                if tiled:
                    y = xp(y).reshape(
                        y, y.shape[: k + c] + (y.shape[k + c] * y.shape[k + c + 1],) + y.shape[k + c + 2 :]
                    )
                rows[i] = y
        outputs.append(_unflat(xp(rows[0]).stack(rows), axes, where))
    return outputs


def _ppermute(inputs, params, axes):
    where = positions(_named(params), axes)
    n = math.prod(axes[p][1] for p in where)
    if n == 1:  # a ring of one device
        return list(inputs)
    source = {to: origin for origin, to in params["perm"]}
    outputs = []
    for x in inputs:
        flat = _flat(x, axes, where)
        zero = xp(flat).zeros_like(_row(flat, 0))
        outputs.append(
            _unflat(xp(flat).stack([_row(flat, source[i]) if i in source else zero for i in range(n)]), axes, where)
        )
    return outputs


def _axis_index(inputs, params, axes):
    where = positions(_named(params), axes)
    n = math.prod(axes[p][1] for p in where)
    return [_unflat(np.arange(n, dtype=np.int32).reshape((n,) + (1,) * len(axes)), axes, where)]


def _pbroadcast(inputs, params, axes):
    if "source" not in params:  # before JAX 0.6 the name of what is pvary now
        return list(inputs)
    where = positions(_named(params), axes)
    return [_row(_flat(x, axes, where), params["source"]) for x in inputs]


def _same(inputs, params, axes):
    return list(inputs)


_psum, _gather = _reduce(_sum, True), _all_gather
SUMS = {"psum", "psum2", "psum_invariant"}
COLLECTIVES = {
    **{name: _psum for name in SUMS},
    "pmax": _reduce(lambda x, dims: xp(x).max(x, axis=dims, keepdims=True), False),
    "pmin": _reduce(lambda x, dims: xp(x).min(x, axis=dims, keepdims=True), False),
    "all_gather": _gather,
    "all_gather_invariant": _gather,
    "reduce_scatter": _reduce_scatter,
    "psum_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "axis_index": _axis_index,
    "pbroadcast": _pbroadcast,
    "pvary": _same,
    "pcast": _same,
}
REDUCTIONS = SUMS | {"reduce_scatter", "psum_scatter"}
UNKNOWN = {
    "psend", "precv", "ragged_all_to_all", "unreduced_psum", "unreduced_reduce_scatter", "all_gather_reduced",
    "preduced",     "vary_unreduced_cast_p", "pgather",
}  # fmt: skip


def axes_of(params):
    """Returns the names of the axes that a collective goes over."""
    return _named(params, "axes" if "axes" in params else "axis_name")

"""The rules of rows, gathers and scatters by indices."""
import math

import torch

from .refused import Refused
from .stablehlo_ops import mlir_type, rule
from .stablehlo_rules import _as



def _wrapped(t, ids, size):
    """Negative indices count from the end."""
    ids = t.convert(ids, torch.int32)
    negative = t.compare("LT", ids, t.scalar(0, ids[2]))
    return t.select(negative, t.binary("add", ids, t.scalar(size, ids[2])), ids)


def _rows(t, table, ids):
    """table[ids] of rows: [n, ...] by ids of any shape."""
    index = t.reshape(ids, ids[1] + (1,))
    offsets = list(range(len(ids[1]), len(ids[1]) + len(table[1]) - 1))
    shape = ids[1] + table[1][1:]
    return t.op(
        f'"stablehlo.gather"({table[0]}, {index[0]}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {offsets}, '
        f"collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {len(ids[1])}>, indices_are_sorted = "
        f"false, "
        f"slice_sizes = array<i64: {', '.join(map(str, (1,) + table[1][1:]))}>}}> : ({mlir_type(table[1], table[2])}, "
        f"{mlir_type(index[1], index[2])}) -> {mlir_type(shape, table[2])}",
        shape,
        table[2],
    )


def _add_rows(t, table, ids, rows):
    """table with rows added at ids."""
    index = t.reshape(ids, ids[1] + (1,))
    window = list(range(len(ids[1]), len(rows[1])))
    return t.region(
        '"stablehlo.scatter"({}, {}, {}) <{{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<'
        f"update_window_dims = {window}, inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
        f"index_vector_dim = {len(ids[1])}>, unique_indices = false}}}}>",
        [table, index, rows],
        table[1],
        table[2],
        ["      {n} = stablehlo.add {p}, {q} : {t}\n      stablehlo.return {n} : {t}"],
    )


@rule("embedding")
def _embedding(t, out, table, ids, *_):
    return _rows(t, table, t.convert(ids, torch.int32))


@rule("embedding_dense_backward")
def _embedding_backward(t, out, grad, ids, count, padding_idx=-1, by_frequency=False):
    if by_frequency:
        raise Refused("scale_grad_by_freq is not supported")
    ids = t.convert(ids, torch.int32)
    if padding_idx >= 0:
        real = t.compare("NE", ids, t.scalar(padding_idx, ids[2]))
        grad = t.select(t.reshape(real, ids[1] + (1,)), grad, t.splat(0, grad[1], grad[2]))
    return _add_rows(t, t.splat(0, out.shape, grad[2]), ids, grad)


def _flat_index(t, x, indices):
    """Indices of x's leading dimensions, as one index into them flattened."""
    shape = torch.broadcast_shapes(*(i[1] for i in indices))
    flat = None
    for size, i in zip(x[1], indices):
        i = t.broadcast(_wrapped(t, i, size), shape)
        flat = i if flat is None else t.binary("add", t.binary("multiply", flat, t.scalar(size, i[2])), i)
    return flat


def _front(t, x, indices):
    """x with its indexed dimensions in front, those dimensions, and the order back."""
    at = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d][2] == torch.bool for d in at):
        raise Refused("an index of booleans gives a result whose size depends on data; use torch.where")
    if at != list(range(at[0], at[0] + len(at))):
        raise Refused("indices of dimensions that are not neighbours are not supported")
    order = at + [d for d in range(len(x[1])) if d not in at]
    return at, order, [indices[d] for d in at]


@rule("index", "_unsafe_index")
def _index(t, out, x, indices):
    at, order, ids = _front(t, x, indices)
    moved = t.transpose(x, order)
    flat = _flat_index(t, moved, ids)
    k = len(at)
    rows = _rows(t, t.reshape(moved, (math.prod(moved[1][:k]),) + moved[1][k:]), flat)
    n = len(flat[1])
    back = [n + d for d in range(at[0])] + list(range(n)) + [n + d for d in range(at[0], len(x[1]) - k)]
    return t.transpose(rows, back)


@rule("index_put", "_unsafe_index_put")
def _index_put(t, out, x, indices, values, accumulate=False, *_):
    if not accumulate:
        raise Refused("assignment to indexed elements is not supported; use torch.where or scatter_add")
    at, order, ids = _front(t, x, indices)
    moved = t.transpose(x, order)
    flat = _flat_index(t, moved, ids)
    k, n = len(at), len(flat[1])
    full = x[1][: at[0]] + flat[1] + x[1][at[0] + k :]
    values = t.broadcast(t.convert(values, x[2]), full)
    values = t.transpose(values, list(range(at[0], at[0] + n)) + list(range(at[0])) + list(range(at[0] + n, len(full))))
    table = t.reshape(moved, (math.prod(moved[1][:k]),) + moved[1][k:])
    done = t.reshape(_add_rows(t, table, flat, values), moved[1])
    back = [order.index(d) for d in range(len(order))]
    return t.transpose(done, back)


def _along(t, x, dim, ids):
    """Index into x flattened of the elements that gather(x, dim, ids) reads."""
    flat = None
    for d, size in enumerate(x[1]):
        i = t.convert(ids, torch.int32) if d == dim else t.iota(ids[1], d)
        flat = i if flat is None else t.binary("add", t.binary("multiply", flat, t.scalar(size, i[2])), i)
    return flat


@rule("gather")
def _gather(t, out, x, dim, ids, **_):
    flat = _along(t, x, dim % len(x[1]), ids)
    return t.reshape(_rows(t, t.reshape(x, (math.prod(x[1]),)), t.reshape(flat, (math.prod(flat[1]),))), out.shape)


@rule("scatter_add")
def _scatter_add(t, out, x, dim, ids, source):
    flat = _along(t, x, dim % len(x[1]), ids)
    source = t.slice(source, [(0, n, 1) for n in ids[1]])
    n = math.prod(ids[1])
    return t.reshape(
        _add_rows(t, t.reshape(x, (math.prod(x[1]),)), t.reshape(flat, (n,)), t.reshape(source, (n,))), x[1]
    )


@rule("scatter")
def _scatter(t, out, x, dim, ids, source, **_):
    dim %= len(x[1])
    if ids[1][dim] != 1 or any(a != b for d, (a, b) in enumerate(zip(ids[1], x[1])) if d != dim):
        raise Refused("scatter of more than one element along a dimension is not supported; use scatter_add")
    here = t.compare("EQ", t.iota(x[1], dim), t.broadcast(t.convert(ids, torch.int32), x[1]))
    return t.select(here, _as(t, source, x[2]), x)


@rule("index_select")
def _index_select(t, out, x, dim, ids):
    return _index(t, out, x, [None] * (dim % len(x[1])) + [ids])

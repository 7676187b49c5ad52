"""Ordinary primitives by NumPy, on values with k leading dimensions: binary64 without compiling each op.

outputs = PLAIN["add"](inputs, params, k)          # None where NumPy would need more: JAX evaluates it then
"""

import math

import numpy as np


def _ranked(x, k):
    """Gives scalars the rank of the other operands."""
    rank = max(a.ndim for a in x)
    return [a if a.ndim == rank else a.reshape(a.shape[:k] + (1,) * (rank - a.ndim) + a.shape[k:]) for a in x]


def _binary(function):
    def op(x, params, k):
        a, b = _ranked(x, k)
        return [function(a, b)]

    return op


def _unary(function):
    def op(x, params, k):
        return [function(x[0])]

    return op


def _axes(dims, k):
    return tuple(d + k for d in dims)


def _reduce(function):
    def op(x, params, k):
        return [function(x[0], axis=_axes(params["axes"], k))]

    return op


def _sum(x, axis):
    return np.sum(x, axis=axis, dtype=x.dtype)


def _divide(a, b):
    if a.dtype.kind == "f":
        return a / b
    quotient = np.trunc(np.divide(a, np.where(b == 0, 1, b), dtype=np.float64)).astype(a.dtype)
    return np.where(b == 0, np.asarray(-1).astype(a.dtype), quotient)


def _integer_pow(x, params, k):
    y = params["y"]
    return [x[0] ** y if y >= 0 or x[0].dtype.kind != "f" else 1 / x[0] ** -y]


def _broadcast_in_dim(x, params, k):
    if len(x) != 1:
        return None
    a, shape, dims = x[0], params["shape"], params["broadcast_dimensions"]
    full = [1] * len(shape)
    for d, size in zip(dims, a.shape[k:]):
        full[d] = size
    return [np.broadcast_to(a.reshape(a.shape[:k] + tuple(full)), a.shape[:k] + tuple(shape))]


def _reshape(x, params, k):
    if len(x) != 1 or params.get("dimensions") is not None:
        return None
    return [x[0].reshape(x[0].shape[:k] + tuple(params["new_sizes"]))]


def _squeeze(x, params, k):
    return [np.squeeze(x[0], axis=_axes(params["dimensions"], k))]


def _expand_dims(x, params, k):
    return [np.expand_dims(x[0], _axes(params["dimensions"], k))]


def _transpose(x, params, k):
    return [np.transpose(x[0], (*range(k), *_axes(params["permutation"], k)))]


def _slice(x, params, k):
    steps = params["strides"] or (1,) * len(params["start_indices"])
    cut = tuple(slice(a, b, c) for a, b, c in zip(params["start_indices"], params["limit_indices"], steps))
    return [x[0][(slice(None),) * k + cut]]


def _joint(x, k):
    dims = np.broadcast_shapes(*[a.shape[:k] for a in x])
    return [np.broadcast_to(a, dims + a.shape[k:]) for a in x]


def _concatenate(x, params, k):
    return [np.concatenate(_joint(x, k), axis=params["dimension"] + k)]


def _rev(x, params, k):
    return [np.flip(x[0], _axes(params["dimensions"], k))]


def _select(x, params, k):
    if len(x) != 3:
        return None
    which, *cases = x
    if which.ndim != cases[0].ndim:  # one choice for the whole array
        which = which.reshape(which.shape + (1,) * (cases[0].ndim - which.ndim))
    return [np.where(which.astype(bool), cases[1], cases[0])]


def _convert(x, params, k):
    to = np.dtype(params["new_dtype"])
    wide = np.dtype("float64") if _float_like(to) else to
    a = x[0]
    if a.dtype.kind == "f" and wide.kind in "iu":
        low, high = np.iinfo(wide).min, np.iinfo(wide).max
        a = np.clip(np.nan_to_num(np.trunc(a), nan=0.0), float(low), float(high))
    return [a.astype(wide)]


def _float_like(dtype):
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def _iota(x, params, k):
    if x:
        return None
    shape, d = params["shape"], params["dimension"]
    to = np.dtype(params["dtype"])
    row = np.arange(shape[d], dtype=np.float64 if _float_like(to) else to)
    full = [1] * len(shape)
    full[d] = shape[d]
    return [np.broadcast_to(row.reshape(full), shape).reshape((1,) * k + tuple(shape))]


def _dot_general(x, params, k):
    a, b = x
    (ca, cb), (ba, bb) = params["dimension_numbers"]
    fa = [d for d in range(a.ndim - k) if d not in ca and d not in ba]
    fb = [d for d in range(b.ndim - k) if d not in cb and d not in bb]
    outer = list(range(k))

    def arranged(v, batch, free, contracted, last):
        sizes = v.shape[k:]
        order = [*batch, *free, *contracted] if last else [*batch, *contracted, *free]
        y = np.transpose(v, (*outer, *_axes(order, k)))
        f, c = math.prod(sizes[d] for d in free), math.prod(sizes[d] for d in contracted)
        return y.reshape(v.shape[:k] + tuple(sizes[d] for d in batch) + ((f, c) if last else (c, f)))

    if a.dtype.kind != "f":
        wide = np.int64 if a.dtype.kind in "iu" else a.dtype
        y = np.matmul(arranged(a, ba, fa, ca, True).astype(wide), arranged(b, bb, fb, cb, False).astype(wide))
        y = y.astype(params.get("preferred_element_type") or a.dtype)
    else:
        y = np.matmul(arranged(a, ba, fa, ca, True), arranged(b, bb, fb, cb, False))
    tail = [a.shape[k + d] for d in ba] + [a.shape[k + d] for d in fa] + [b.shape[k + d] for d in fb]
    return [y.reshape(y.shape[:k] + tuple(tail))]


def _argument(function):
    def op(x, params, k):
        return [function(x[0], axis=params["axes"][0] + k).astype(params["index_dtype"])]

    return op


def _cumulative(function):
    def op(x, params, k):
        axis, a = params["axis"] + k, x[0]
        if params["reverse"]:
            return [np.flip(function(np.flip(a, axis), axis=axis, dtype=a.dtype), axis)]
        return [function(a, axis=axis, dtype=a.dtype)]

    return op


def _dynamic_slice(x, params, k):
    a, *starts = x
    if any(math.prod(s.shape) != 1 for s in starts):
        return None
    cut = []
    for s, size, full in zip(starts, params["slice_sizes"], a.shape[k:]):
        at = min(max(int(s.reshape(())), 0), full - size)
        cut.append(slice(at, at + size))
    return [a[(slice(None),) * k + tuple(cut)]]


def _pad(x, params, k):
    a, value = x
    if any(min(c) < 0 for c in params["padding_config"]) or math.prod(value.shape[:k]) != 1:
        return None
    shape = tuple(lo + hi + n + max(n - 1, 0) * inner
                  for n, (lo, hi, inner) in zip(a.shape[k:], params["padding_config"]))  # fmt: skip
    y = np.full(a.shape[:k] + shape, value.reshape(()), a.dtype)
    cut = tuple(slice(lo, lo + n + max(n - 1, 0) * inner, inner + 1)
                for n, (lo, _, inner) in zip(a.shape[k:], params["padding_config"]))  # fmt: skip
    y[(slice(None),) * k + cut] = a
    return [y]


def _clamp(x, params, k):
    low, a, high = x
    if low.ndim != a.ndim or high.ndim != a.ndim:
        low, high = (v.reshape(v.shape + (1,) * (a.ndim - v.ndim)) for v in (low, high))
    return [np.minimum(np.maximum(a, low), high)]


def _shift_right(a, b):
    bits = a.dtype.itemsize * 8
    return np.where(b < bits, a >> np.minimum(b, bits - 1).astype(a.dtype), 0).astype(a.dtype)


def _shift_left(a, b):
    bits = a.dtype.itemsize * 8
    return np.where(b < bits, a << np.minimum(b, bits - 1).astype(a.dtype), 0).astype(a.dtype)


def _not(a):
    return ~a if a.dtype.kind in "iu" else np.logical_not(a)


def _unsigned_only(function):
    def op(x, params, k):
        return [function(*_ranked(x, k))] if x[0].dtype.kind == "u" else None

    return op


def _pow(a, b):
    return np.power(a, b.astype(a.dtype) if a.dtype.kind == "f" else b)


PLAIN = {
    "add": _binary(np.add), "add_any": _binary(np.add), "sub": _binary(np.subtract), "mul": _binary(np.multiply),
    "div": _binary(_divide), "max": _binary(np.maximum), "min": _binary(np.minimum), "pow": _binary(_pow),
    "atan2": _binary(np.arctan2), "and": _binary(np.bitwise_and), "or": _binary(np.bitwise_or),
    "xor": _binary(np.bitwise_xor), "eq": _binary(np.equal), "ne": _binary(np.not_equal), "lt": _binary(np.less),
    "le": _binary(np.less_equal), "gt": _binary(np.greater), "ge": _binary(np.greater_equal),
    "shift_right_logical": _unsigned_only(_shift_right), "shift_left": _unsigned_only(_shift_left),
    "neg": _unary(np.negative), "exp": _unary(np.exp), "exp2": _unary(np.exp2), "log": _unary(np.log),
    "expm1": _unary(np.expm1), "log1p": _unary(np.log1p), "tanh": _unary(np.tanh), "sin": _unary(np.sin),
    "cos": _unary(np.cos), "tan": _unary(np.tan), "sqrt": _unary(np.sqrt), "rsqrt": _unary(lambda a: 1 / np.sqrt(a)),
    "cbrt": _unary(np.cbrt), "abs": _unary(np.abs), "sign": _unary(np.sign), "floor": _unary(np.floor),
    "ceil": _unary(np.ceil), "square": _unary(np.square), "is_finite": _unary(np.isfinite), "not": _unary(_not),
    "logistic": _unary(lambda a: 0.5 * (1 + np.tanh(0.5 * a))), "stop_gradient": _unary(lambda a: a),
    "copy": _unary(lambda a: a), "reduce_sum": _reduce(_sum), "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),     "reduce_prod": _reduce(np.prod), "reduce_and": _reduce(np.logical_and.reduce),
    "reduce_or": _reduce(np.logical_or.reduce),
    "argmax": _argument(np.argmax), "argmin": _argument(np.argmin), "cumsum": _cumulative(np.cumsum),
    "cumprod": _cumulative(np.cumprod), "integer_pow": _integer_pow, "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape, "squeeze": _squeeze, "expand_dims": _expand_dims, "transpose": _transpose, "slice": _slice,
    "concatenate": _concatenate, "rev": _rev, "select_n": _select, "convert_element_type": _convert, "iota": _iota,
    "dot_general": _dot_general, "dynamic_slice": _dynamic_slice, "pad": _pad, "clamp": _clamp,
}  # fmt: skip

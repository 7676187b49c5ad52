"""The rule of each core aten op: f(text, result, *args, **kwargs) -> value, or a tuple of values."""

import math

import torch

from .refused import Refused
from .stablehlo_ops import RULES, _is_float, rule


def _value(x):
    return isinstance(x, tuple) and len(x) == 3 and isinstance(x[0], str)


def _dtype(out):
    return torch.float32 if out.dtype == torch.float64 else out.dtype


def _as(t, x, dtype):
    """x, a value or a Python number, as a value of this dtype."""
    return t.convert(x, dtype) if _value(x) else t.scalar(x, dtype)


def _both(t, a, b):
    dtypes = [x[2] for x in (a, b) if _value(x)]
    dtype = dtypes[0] if len(dtypes) == 1 else torch.promote_types(*dtypes)
    if len(dtypes) == 1 and isinstance(b if _value(a) else a, float) and not dtype.is_floating_point:
        dtype = torch.float32
    dtype = torch.float32 if dtype == torch.float64 else dtype
    return _as(t, a, dtype), _as(t, b, dtype)


def _elementwise(hlo):
    def f(t, out, a, b, alpha=1, rounding_mode=None):
        if rounding_mode is not None:
            raise Refused("division with rounding_mode is not supported")
        a, b = _as(t, a, _dtype(out)), _as(t, b, _dtype(out))
        if alpha != 1:
            b = t.binary("multiply", b, t.splat(alpha, b[1], b[2]))
        if hlo == "multiply" and a[2] == torch.bool:
            return t.binary("and", a, b)
        if hlo == "add" and a[2] == torch.bool:
            return t.binary("or", a, b)
        return t.broadcast(t.binary(hlo, a, b), out.shape)

    return f


for _aten, _hlo in (
    ("add", "add"),
    ("sub", "subtract"),
    ("mul", "multiply"),
    ("div", "divide"),
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("bitwise_and", "and"),
    ("bitwise_or", "or"),
    ("logical_and", "and"),
    ("logical_or", "or"),
    ("bitwise_xor", "xor"),
    ("logical_xor", "xor"),
):
    RULES[_aten] = _elementwise(_hlo)
for _aten, _hlo in (
    ("neg", "negate"),
    ("abs", "abs"),
    ("exp", "exponential"),
    ("log", "log"),
    ("sqrt", "sqrt"),
    ("rsqrt", "rsqrt"),
    ("tanh", "tanh"),
    ("sigmoid", "logistic"),
    ("log1p", "log_plus_one"),
    ("expm1", "exponential_minus_one"),
    ("sign", "sign"),
    ("erf", "chlo.erf"),
    ("cos", "cosine"),
    ("sin", "sine"),
    ("floor", "floor"),
    ("ceil", "ceil"),
):
    RULES[_aten] = lambda t, out, x, _hlo=_hlo: t.unary(_hlo, t.convert(x, _dtype(out)))
for _aten, _how in (("eq", "EQ"), ("ne", "NE"), ("lt", "LT"), ("le", "LE"), ("gt", "GT"), ("ge", "GE")):
    RULES[_aten] = lambda t, out, a, b, _how=_how: t.compare(_how, *_both(t, a, b))


@rule("rsub")
def _rsub(t, out, a, b, alpha=1):
    return RULES["sub"](t, out, b, a, alpha)


@rule("reciprocal")
def _reciprocal(t, out, x):
    return t.binary("divide", t.splat(1, x[1], x[2]), x)


@rule("clone", "alias", "detach", "detach_copy", "alias_copy", "lift_fresh_copy", "contiguous", "lift_fresh")
def _same(t, out, x, **_):
    return x


@rule("_to_copy", "convert_element_type")
def _to_copy(t, out, x, *_, **__):
    if x[2].is_floating_point and not out.dtype.is_floating_point and out.dtype != torch.bool:
        raise Refused("conversion of float to integer is not supported")
    return (
        t.compare("NE", x, t.scalar(0, x[2]))
        if out.dtype == torch.bool and x[2] != torch.bool
        else t.convert(x, _dtype(out))
    )


@rule("copy", "copy_")
def _copy(t, out, target, source, *_):
    return t.broadcast(t.convert(source, _dtype(out)), out.shape)


@rule(
    "view",
    "_unsafe_view",
    "view_copy",
    "reshape",
    "unsqueeze",
    "unsqueeze_copy",
    "squeeze",
    "squeeze_copy",
    "_reshape_alias_copy",
)
def _view(t, out, x, *_, **__):
    return t.reshape(x, out.shape)


@rule("expand", "expand_copy")
def _expand(t, out, x, *_, **__):
    return t.broadcast(x, out.shape)


@rule("permute", "permute_copy")
def _permute(t, out, x, order):
    return t.transpose(x, [d % len(x[1]) for d in order])


@rule("transpose", "transpose_copy")
def _transpose(t, out, x, a, b):
    order = list(range(len(x[1])))
    order[a], order[b] = order[b], order[a]
    return t.transpose(x, order)


@rule("t", "t_copy")
def _t(t, out, x):
    return t.transpose(x, list(range(len(x[1])))[::-1])


@rule(
    "full",
    "full_like",
    "scalar_tensor",
    "zeros",
    "ones",
    "zeros_like",
    "ones_like",
    "new_zeros",
    "new_full",
    "new_ones",
)
def _full(t, out, first, *rest, **_):
    value = rest[0] if rest and not _value(rest[0]) and not isinstance(rest[0], (list, tuple)) else first
    if _value(value) or isinstance(value, (list, tuple)):
        value = 0
    return t.splat(value, out.shape, _dtype(out))


@rule("empty", "empty_like", "new_empty", "new_empty_strided", "empty_permuted", "empty_strided")
def _empty(t, out, *_, **__):
    return t.splat(0, out.shape, _dtype(out))


@rule("arange")
def _arange(t, out, *args, **_):
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    x = t.convert(t.iota(out.shape, 0), _dtype(out))
    if step != 1:
        x = t.binary("multiply", x, t.scalar(step, x[2]))
    return t.binary("add", x, t.scalar(start, x[2])) if start else x


@rule("where")
def _where(t, out, p, a, b):
    return t.broadcast(t.select(p, _as(t, a, _dtype(out)), _as(t, b, _dtype(out))), out.shape)


@rule("masked_fill")
def _masked_fill(t, out, x, mask, value):
    return t.select(mask, _as(t, value, x[2]), x)


@rule("logical_not", "bitwise_not")
def _not(t, out, x):
    return t.unary("not", x if x[2] == torch.bool else t.compare("NE", x, t.scalar(0, x[2])))


@rule("relu")
def _relu(t, out, x):
    return t.binary("maximum", x, t.scalar(0, x[2]))


@rule("clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(t, out, x, low=None, high=None, **kw):
    low, high = kw.get("min", low), kw.get("max", high)
    x = t.convert(x, _dtype(out))
    if low is not None:
        x = t.binary("maximum", x, _as(t, low, x[2]))
    return x if high is None else t.binary("minimum", x, _as(t, high, x[2]))


@rule("clamp_max")
def _clamp_max(t, out, x, high):
    return t.binary("minimum", x, _as(t, high, x[2]))


@rule("pow")
def _pow(t, out, x, y):
    if _value(x) and not _value(y) and y == 2:
        return t.binary("multiply", x, x)
    if _value(x) and not _value(y) and y == 0.5:
        return t.unary("sqrt", x)
    return t.broadcast(t.binary("power", _as(t, x, _dtype(out)), _as(t, y, _dtype(out))), out.shape)


@rule("gelu")
def _gelu(t, out, x, approximate="none"):
    if approximate != "none":
        c = math.sqrt(2 / math.pi)
        cube = t.binary("multiply", t.binary("multiply", x, x), x)
        inner = t.binary("add", x, t.binary("multiply", cube, t.scalar(0.044715, x[2])))
        g = t.unary("tanh", t.binary("multiply", inner, t.scalar(c, x[2])))
    else:
        g = t.unary("chlo.erf", t.binary("multiply", x, t.scalar(math.sqrt(0.5), x[2])))
    return t.binary("multiply", t.binary("multiply", x, t.scalar(0.5, x[2])), t.binary("add", g, t.scalar(1, x[2])))


@rule("sum")
def _sum(t, out, x, dims=None, keep=False, **_):
    return t.reduce("add", t.convert(x, _dtype(out)), dims, keep)


@rule("mean")
def _mean(t, out, x, dims=None, keep=False, **_):
    s = _sum(t, out, x, dims, keep)
    return t.binary("multiply", s, t.scalar(math.prod(s[1]) / math.prod(x[1]), s[2]))


@rule("amax", "amin")
def _amax(t, out, x, dims=(), keep=False):
    return t.reduce("maximum", x, list(dims), keep)


RULES["amin"] = lambda t, out, x, dims=(), keep=False: t.reduce("minimum", x, list(dims), keep)
RULES["any"] = lambda t, out, x, dim=None, keep=False: t.reduce(
    "or", x, None if dim is None else [dim] if isinstance(dim, int) else dim, keep
)
RULES["all"] = lambda t, out, x, dim=None, keep=False: t.reduce(
    "and", x, None if dim is None else [dim] if isinstance(dim, int) else dim, keep
)


def _first(t, how, x, dim, keep):
    """The largest or smallest along a dimension (of all elements for None), and the index of the first such element."""
    if dim is None:
        x, dim = t.reshape(x, (math.prod(x[1]),)), 0
    x = x if x[1] else t.reshape(x, (1,))
    dim %= len(x[1])
    best = t.reduce(how, x, [dim], True)
    here = t.compare("EQ", x, best)
    if _is_float(x[2]):  # a NaN is the largest and the smallest
        here = t.binary("or", here, t.compare("NE", x, x))
    size = x[1][dim]
    index = t.reduce("minimum", t.select(here, t.iota(x[1], dim), t.splat(size - 1, x[1], torch.int32)), [dim], True)
    shape = [1 if d == dim else n for d, n in enumerate(x[1]) if keep or d != dim]
    return t.reshape(best, shape), t.reshape(index, shape)


def _extreme(how):
    def f(t, out, x, dim=None, keep=False, **kw):
        if not isinstance(out, (tuple, list)):
            return t.reduce(how, x, None)
        value, index = _first(t, how, x, dim, keep or kw.get("keepdim", False))
        return t.reshape(value, out[0].shape), t.reshape(t.convert(index, torch.int64), out[1].shape)

    return f


def _index_of(how):
    def f(t, out, x, dim=None, keep=False, **kw):
        return t.reshape(t.convert(_first(t, how, x, dim, False)[1], torch.int64), out.shape)

    return f


for _name, _how in (("max", "maximum"), ("min", "minimum")):
    RULES[_name], RULES["arg" + _name] = _extreme(_how), _index_of(_how)


@rule("var_mean", "var")
def _var_mean(t, out, x, dims=None, correction=1, keepdim=False, **_):
    single = not isinstance(out, (tuple, list))
    dims = list(dims) if dims else list(range(len(x[1])))
    count = math.prod(x[1][d] for d in dims)
    mean = t.binary("multiply", t.reduce("add", x, dims, True), t.scalar(1 / count, x[2]))
    off = t.binary("subtract", x, mean)
    square = t.reduce("add", t.binary("multiply", off, off), dims, True)
    var = t.binary("divide", square, t.scalar(max(0, count - (1 if correction is None else correction)), x[2]))
    first = t.reshape(var, (out if single else out[0]).shape)
    return first if single else (first, t.reshape(mean, out[1].shape))


@rule("linalg_vector_norm")
def _norm(t, out, x, order=2, dims=None, keep=False, **_):
    if order == math.inf:
        return t.reduce("maximum", t.unary("abs", x), dims, keep)
    if order == 1:
        return t.reduce("add", t.unary("abs", x), dims, keep)
    if order != 2:
        raise Refused(f"a norm of order {order} is not supported; allowed: 1, 2, inf")
    return t.unary("sqrt", t.reduce("add", t.binary("multiply", x, x), dims, keep))


@rule("mm", "bmm", "dot", "mv")
def _matmul(t, out, a, b, *_):
    k = len(a[1]) - 1
    batch = [(0, 0)] if len(a[1]) == 3 else []
    return t.dot(a, b, batch, [(k, 1 if len(b[1]) > 2 else 0)])


@rule("addmm")
def _addmm(t, out, c, a, b, beta=1, alpha=1):
    y = _matmul(t, out, a, b)
    y = y if alpha == 1 else t.binary("multiply", y, t.scalar(alpha, y[2]))
    c = c if beta == 1 else t.binary("multiply", c, t.scalar(beta, c[2]))
    return t.binary("add", y, c)


@rule("cat")
def _cat(t, out, xs, dim=0):
    return t.concatenate([t.convert(x, _dtype(out)) for x in xs if math.prod(x[1])], dim % len(out.shape))


@rule("stack")
def _stack(t, out, xs, dim=0):
    dim %= len(out.shape)
    return t.concatenate([t.reshape(x, x[1][:dim] + (1,) + x[1][dim:]) for x in xs], dim)


@rule("slice", "slice_copy")
def _slice(t, out, x, dim=0, start=None, end=None, step=1):
    n = x[1][dim]
    b, e, s = slice(start, None if end is None or end > n else end, step).indices(n)
    cuts = [(0, k, 1) for k in x[1]]
    cuts[dim] = (b, max(b, e), s)
    return t.slice(x, cuts)


@rule("select", "select_copy")
def _select(t, out, x, dim, index):
    index %= x[1][dim]
    cuts = [(0, k, 1) for k in x[1]]
    cuts[dim] = (index, index + 1, 1)
    return t.reshape(t.slice(x, cuts), out.shape)


@rule("split", "split_copy", "split_with_sizes", "split_with_sizes_copy", "unbind", "unbind_copy")
def _split(t, out, x, sizes=None, dim=0):
    if isinstance(sizes, int) and len(out[0].shape) < len(x[1]) or sizes is None:  # unbind(x, dim)
        return tuple(_select(t, o, x, sizes or 0, i) for i, o in enumerate(out))
    at, parts = 0, []
    for o in out:
        n = o.shape[dim]
        parts.append(_slice(t, o, x, dim % len(x[1]), at, at + n))
        at += n
    return tuple(parts)


@rule("slice_scatter", "select_scatter")
def _slice_scatter(t, out, x, part, dim=0, start=None, end=None, step=1):
    n = x[1][dim]
    b, e, s = slice(start, None if end is None or end > n else end, step).indices(n)
    count = part[1][dim]
    low, high, interior = ([0] * len(x[1]) for _ in range(3))
    low[dim], interior[dim] = b, s - 1
    high[dim] = n - b - (count + (count - 1) * (s - 1))
    mask = t.pad(t.splat(True, part[1], torch.bool), low, high, False, interior)
    return t.select(mask, t.pad(part, low, high, 0, interior), x)


@rule("select_scatter")
def _select_scatter(t, out, x, part, dim, index):
    dim %= len(x[1])
    index %= x[1][dim]
    return _slice_scatter(t, out, x, t.reshape(part, x[1][:dim] + (1,) + x[1][dim + 1 :]), dim, index, index + 1)


@rule("constant_pad_nd")
def _pad(t, out, x, pads, value=0):
    low, high = [0] * len(x[1]), [0] * len(x[1])
    for i in range(len(pads) // 2):
        low[-1 - i], high[-1 - i] = pads[2 * i], pads[2 * i + 1]
    return t.pad(x, low, high, value)


@rule("flip")
def _flip(t, out, x, dims):
    return t.reverse(x, [d % len(x[1]) for d in dims])


# Indices. Rows are gathered by one index; several are combined over flattened dimensions.


@rule("cumsum")
def _cumsum(t, out, x, dim, **_):
    dim %= len(x[1])
    n = x[1][dim]
    x = t.convert(x, _dtype(out))
    at, to = t.iota((n, n), 0), t.iota((n, n), 1)
    mask = t.convert(t.compare("LE", at, to), x[2])
    order = [d for d in range(len(x[1])) if d != dim] + [dim]
    y = t.dot(t.transpose(x, order), mask, [], [(len(x[1]) - 1, 0)])
    return t.transpose(y, [order.index(d) for d in range(len(order))])


@rule("leaky_relu")
def _leaky_relu(t, out, x, slope=0.01):
    return t.select(t.compare("GT", x, t.scalar(0, x[2])), x, t.binary("multiply", x, t.scalar(slope, x[2])))


@rule("elu")
def _elu(t, out, x, alpha=1, scale=1, input_scale=1):
    inner = x if input_scale == 1 else t.binary("multiply", x, t.scalar(input_scale, x[2]))
    low = t.binary("multiply", t.unary("exponential_minus_one", inner), t.scalar(alpha * scale, x[2]))
    high = x if scale == 1 else t.binary("multiply", x, t.scalar(scale, x[2]))
    return t.select(t.compare("GT", x, t.scalar(0, x[2])), high, low)


@rule("prod")
def _prod(t, out, x, dim=None, keep=False, **_):
    return t.reduce("multiply", t.convert(x, _dtype(out)), None if dim is None else [dim], keep)


@rule("repeat")
def _repeat(t, out, x, repeats):
    x = t.reshape(x, (1,) * (len(repeats) - len(x[1])) + x[1])
    for d, n in enumerate(repeats):
        x = t.concatenate([x] * n, d)
    return x


@rule("square")
def _square(t, out, x):
    return t.binary("multiply", x, x)


@rule("isnan")
def _isnan(t, out, x):
    return t.compare("NE", x, x)


@rule("isinf")
def _isinf(t, out, x):
    return t.compare("EQ", t.unary("abs", x), t.scalar(math.inf, x[2]))

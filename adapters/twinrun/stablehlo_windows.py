"""The rules of convolutions and pooling over one or two spatial dimensions, in front of which are batch and
channels."""

import math

from .refused import Refused
from .stablehlo_ops import mlir_type, rule


def _convolve(t, a, b, labels, shape, stride, low, high, dilate_a, dilate_b, groups=1):
    """labels: of a, b and the result, e.g. ("bf", "oi", "bf"), followed by the spatial dimensions."""
    n = len(stride)
    spell = lambda s: "[" + ", ".join(list(s) + [str(i) for i in range(n)]) + "]"  # noqa: E731
    pads = [[lo, hi] for lo, hi in zip(low, high)]
    return t.op(
        f"stablehlo.convolution({a[0]}, {b[0]}) dim_numbers = "
        f"{spell(labels[0])}x{spell(labels[1])}->{spell(labels[2])}, window = "
        f"{{stride = {list(stride)}, pad = {pads}, lhs_dilate = {list(dilate_a)}, "
        f"rhs_dilate = {list(dilate_b)}, reverse = "
        f"[{', '.join(['false'] * n)}]}} {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64, "
        f"precision_config = "
        f"[#stablehlo<precision DEFAULT>, #stablehlo<precision "
        f"DEFAULT>]}} : ({mlir_type(a[1], a[2])}, {mlir_type(b[1], b[2])}) -> "
        f"{mlir_type(shape, a[2])}",
        shape,
        a[2],
    )


def _forward(t, x, w, shape, stride, padding, dilation, groups):
    return _convolve(t, x, w, ("bf", "oi", "bf"), shape, stride, padding, padding, [1] * len(stride), dilation, groups)


def _parts(t, x, dim, groups):
    n = x[1][dim] // groups
    return [
        t.slice(x, [(g * n, (g + 1) * n, 1) if d == dim else (0, s, 1) for d, s in enumerate(x[1])])
        for g in range(groups)
    ]


def _input_gradient(t, grad, w, shape, stride, padding, dilation, groups):
    """The gradient of a convolution's input, and a transposed convolution. w: [channels of grad, channels of shape /
    groups, ...]."""
    if groups > 1:
        if groups > 64:
            raise Refused(f"the gradient of a convolution of {groups} groups is not supported; allowed: up to 64")
        part = (shape[0], shape[1] // groups) + tuple(shape[2:])
        return t.concatenate(
            [
                _input_gradient(t, g, v, part, stride, padding, dilation, 1)
                for g, v in zip(_parts(t, grad, 1, groups), _parts(t, w, 0, groups))
            ],
            1,
        )
    low = [d * (k - 1) - p for d, k, p in zip(dilation, w[1][2:], padding)]
    high = [
        size - ((g - 1) * s + 1) - lo + d * (k - 1)
        for size, g, s, lo, d, k in zip(shape[2:], grad[1][2:], stride, low, dilation, w[1][2:])
    ]
    mirrored = t.reverse(w, range(2, len(w[1])))
    return _convolve(t, grad, mirrored, ("bf", "io", "bf"), shape, [1] * len(stride), low, high, stride, dilation)


def _weight_gradient(t, x, grad, shape, stride, padding, dilation, groups):
    """The gradient of a convolution's kernel [out, in / groups, ...]."""
    if groups > 1:
        if groups > 64:
            raise Refused(f"the gradient of a convolution of {groups} groups is not supported; allowed: up to 64")
        part = (shape[0] // groups,) + tuple(shape[1:])
        return t.concatenate(
            [
                _weight_gradient(t, a, g, part, stride, padding, dilation, 1)
                for a, g in zip(_parts(t, x, 1, groups), _parts(t, grad, 1, groups))
            ],
            0,
        )
    high = [
        d * (k - 1) + s * (g - 1) + 1 - n - p
        for d, k, s, g, n, p in zip(dilation, shape[2:], stride, grad[1][2:], x[1][2:], padding)
    ]
    return _convolve(t, x, grad, ("fb", "io", "fb"), shape, dilation, padding, high, [1] * len(stride), stride)


@rule("convolution")
def _convolution(t, out, x, w, bias, stride, padding, dilation, transposed, output_padding, groups):
    n = len(x[1]) - 2
    if n > 2:
        raise Refused("a convolution over three dimensions is not supported; allowed: one or two")
    stride, padding, dilation = (list(v) * n if len(v) == 1 else list(v) for v in (stride, padding, dilation))
    f = _input_gradient if transposed else _forward
    y = f(t, x, w, tuple(out.shape), stride, padding, dilation, groups)
    return y if bias is None else t.binary("add", y, t.reshape(bias, (1, -1 if not bias[1] else bias[1][0]) + (1,) * n))


@rule("convolution_backward")
def _convolution_backward(
    t, out, grad, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask
):
    n = len(x[1]) - 2
    stride, padding, dilation = (list(v) * n if len(v) == 1 else list(v) for v in (stride, padding, dilation))
    gx = gw = gb = None
    if mask[0]:
        f = _forward if transposed else _input_gradient
        gx = f(t, grad, w, x[1], stride, padding, dilation, groups)
    if mask[1]:
        a, g = (grad, x) if transposed else (x, grad)
        gw = _weight_gradient(t, a, g, w[1], stride, padding, dilation, groups)
    if mask[2]:
        gb = t.reduce("add", grad, [0] + list(range(2, n + 2)))
    return gx, gw, gb


def _window(size, stride, pads, high, rank):
    front = rank - len(size)
    text = lambda v, one: "array<i64: " + ", ".join(map(str, [one] * front + list(v))) + ">"  # noqa: E731
    pad = ", ".join(f"[{a}, {b}]" for a, b in [(0, 0)] * front + list(zip(pads, high)))
    return (
        f"padding = dense<[{pad}]> : tensor<{rank}x2xi64>",
        f"window_dimensions = {text(size, 1)}",
        f"window_strides = {text(stride, 1)}",
    )


def _pool(t, x, how, start, size, stride, pads, high, shape):
    padding, dims, strides = _window(size, stride, pads, high, len(x[1]))
    ones = "array<i64: " + ", ".join(["1"] * len(x[1])) + ">"
    return t.region(
        f'"stablehlo.reduce_window"({{}}, {{}}) '
        f"<{{{{base_dilations = {ones}, {padding}, window_dilations = {ones}, {dims}, "
        f"{strides}}}}}>",
        [x, t.scalar(start, x[2])],
        shape,
        x[2],
        ["      {n} = stablehlo." + how + " {p}, {q} : {t}\n      stablehlo.return {n} : {t}"],
    )


def _pair(v, n=2):
    v = list(v) if isinstance(v, (list, tuple)) else [v]
    return v * n if len(v) == 1 else v


def _pooling(x, out_shape, size, stride, padding):
    n = len(size)
    stride = _pair(stride, n) if stride else list(size)
    padding = _pair(padding, n)
    high = [max(0, (o - 1) * s + k - i - p) for o, s, k, i, p in zip(out_shape[-n:], stride, size, x[1][-n:], padding)]
    return stride, padding, high


@rule("max_pool2d_with_indices")
def _max_pool(t, out, x, size, stride=(), padding=0, dilation=1, ceil_mode=False):
    if any(d != 1 for d in _pair(dilation)):
        raise Refused("max pooling with dilation is not supported")
    size = _pair(size)
    stride, padding, high = _pooling(x, out[0].shape, size, stride, padding)
    return _pool(t, x, "maximum", -math.inf, size, stride, padding, high, tuple(out[0].shape)), None


@rule("max_pool2d_with_indices_backward")
def _max_pool_backward(t, out, grad, x, size, stride, padding, dilation, ceil_mode, indices):
    size = _pair(size)
    stride, low, high = _pooling(x, grad[1], size, stride, padding)
    padding, dims, strides = _window(size, stride, low, high, len(x[1]))
    return t.region(
        f'"stablehlo.select_and_scatter"({{}}, {{}}, {{}}) <{{{{{padding}, {dims}, {strides}}}}}>',
        [x, grad, t.scalar(0, x[2])],
        x[1],
        x[2],
        [
            "      {n} = stablehlo.compare GE, {p}, {q}, FLOAT : ({t}, {t}) -> tensor<i1>\n      stablehlo.return {n} "
            ": tensor<i1>",
            "      {n} = stablehlo.add {p}, {q} : {t}\n      stablehlo.return {n} : {t}",
        ],
    )


def _average_scale(size, padding, count_include_pad, divisor):
    if any(padding) and not count_include_pad:
        raise Refused("average pooling that does not count its padding is not supported; set count_include_pad=True")
    return 1 / (divisor or math.prod(size))


@rule("avg_pool2d", "avg_pool1d")
def _avg_pool(t, out, x, size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor=None):
    size = _pair(size, len(x[1]) - 2)
    stride, padding, high = _pooling(x, out.shape, size, stride, padding)
    y = _pool(t, x, "add", 0, size, stride, padding, high, tuple(out.shape))
    return t.binary("multiply", y, t.scalar(_average_scale(size, padding, count_include_pad, divisor), y[2]))


@rule("avg_pool2d_backward")
def _avg_pool_backward(t, out, grad, x, size, stride, padding, ceil_mode, count_include_pad, divisor):
    size = _pair(size)
    stride, padding, _ = _pooling(x, grad[1], size, stride, padding)
    grad = t.binary("multiply", grad, t.scalar(_average_scale(size, padding, count_include_pad, divisor), grad[2]))
    low = [k - 1 - p for k, p in zip(size, padding)]
    high = [n + k - 1 - lo - ((g - 1) * s + 1) for n, k, lo, g, s in zip(x[1][2:], size, low, grad[1][2:], stride)]
    spread = t.pad(grad, [0, 0] + low, [0, 0] + high, 0, [0, 0] + [s - 1 for s in stride])
    return _pool(t, spread, "add", 0, size, [1, 1], [0, 0], [0, 0], x[1])


@rule("_adaptive_avg_pool2d")
def _adaptive(t, out, x, size):
    n, m = x[1][2:], out.shape[2:]
    if any(a % b for a, b in zip(n, m)):
        raise Refused(f"adaptive pooling of {n} to {tuple(m)} has windows of unequal sizes; choose a size that divides")
    k = [a // b for a, b in zip(n, m)]
    return _avg_pool(t, out, x, k, k)


@rule("_adaptive_avg_pool2d_backward")
def _adaptive_backward(t, out, grad, x):
    k = [a // b for a, b in zip(x[1][2:], grad[1][2:])]
    return _avg_pool_backward(t, out, grad, x, k, k, 0, False, True, None)

"""Core aten ops as StableHLO text. A value is (name, shape, dtype)."""

import math
import operator
import struct

import torch

from .refused import Refused

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i32", torch.int32: "i32", torch.bool: "i1"}
RULES = {}


def mlir_type(shape, dtype):
    if dtype not in _DTYPES:
        raise Refused(f"{dtype} is not supported; allowed: float32, bfloat16, int64 and int32 of 32 bits, bool")
    return "tensor<" + "".join(f"{d}x" for d in shape) + _DTYPES[dtype] + ">"


def rule(*names):
    def add(f):
        for n in names:
            RULES[n] = f
        return f

    return add


def _is_float(dtype):
    return dtype.is_floating_point


class Text:
    def __init__(self):
        self.lines, self.count, self.location = [], 0, ""

    def set_location(self, node, replica):
        path, source, gradient = (node.stack_trace or "||0").split("|")[-3:] if node.stack_trace else ("", "", "0")
        path = "/".join(filter(None, [path, str(getattr(node.target, "__name__", node.target)).split(".")[0]]))
        if replica is not None:
            path = f"replica{replica}/{path}"
        if gradient.strip() == "1":
            path = f"transpose(jvp({path.rpartition('/')[0]}))/{path.rpartition('/')[2]}"
        file, _, line = source.rpartition(":")
        at = f'"{file}":{line}:0' if line.isdigit() else "unknown"
        self.location = f' loc("{path}"({at}))' if at != "unknown" else f' loc("{path}")'

    def op(self, text, shape, dtype):
        self.count += 1
        name = f"%{self.count}"
        self.lines.append(f"    {name} = {text}{self.location}")
        return (name, tuple(shape), dtype)

    # Building blocks.
    def scalar(self, value, dtype):
        if dtype == torch.bool:
            text = "true" if value else "false"
        elif _is_float(dtype):
            value = float(value)
            if math.isfinite(value):
                single = struct.unpack(
                    "<f", struct.pack("<f", max(-3.4028234663852886e38, min(3.4028234663852886e38, value)))
                )[0]
                text = repr(single)
                text = text if "." in text or "e" in text else text + ".0"
                if "e" in text and "." not in text:
                    text = text.replace("e", ".0e")
            else:
                bits = "7F80" if value > 0 else "FF80" if value < 0 else "7FC0"
                text = "0x" + bits + ("0000" if dtype == torch.float32 else "")
        else:
            text = str(max(-(2**31), min(2**31 - 1, int(value))))
        return self.op(f"stablehlo.constant dense<{text}> : {mlir_type((), dtype)}", (), dtype)

    def splat(self, value, shape, dtype):
        return self.broadcast(self.scalar(value, dtype), shape)

    def literal(self, t):
        dtype = torch.float32 if t.dtype == torch.float64 else t.dtype
        if t.numel() and bool((t == t.reshape(-1)[0]).all()):
            return self.splat(t.reshape(-1)[0].item(), t.shape, dtype)
        t = t.detach().cpu()

        def text(x):
            if isinstance(x, list):
                return "[" + ", ".join(map(text, x)) + "]"
            if isinstance(x, bool):
                return "true" if x else "false"
            if isinstance(x, float):
                if not math.isfinite(x):
                    return "0x7F800000" if x > 0 else "0xFF800000" if x < 0 else "0x7FC00000"
                return f"{x:.9e}"
            return str(x)

        return self.op(f"stablehlo.constant dense<{text(t.tolist())}> : {mlir_type(t.shape, dtype)}", t.shape, dtype)

    def broadcast(self, x, shape, dims=None):
        shape = tuple(shape)
        if dims is None:
            dims = list(range(len(shape) - len(x[1]), len(shape)))
        if x[1] == shape:
            return x
        kept = [d for d, s in zip(dims, x[1]) if s == shape[d]]
        sizes = [s for d, s in zip(dims, x[1]) if s == shape[d]]
        x = self.reshape(x, sizes)  # drops dimensions of size 1 that are repeated
        return self.op(
            f"stablehlo.broadcast_in_dim {x[0]}, dims = {kept} : ({mlir_type(x[1], x[2])}) -> {mlir_type(shape, x[2])}",
            shape,
            x[2],
        )

    def reshape(self, x, shape):
        shape = tuple(shape)
        if x[1] == shape:
            return x
        return self.op(f"stablehlo.reshape {x[0]} : ({mlir_type(x[1], x[2])}) -> {mlir_type(shape, x[2])}", shape, x[2])

    def transpose(self, x, order):
        shape = tuple(x[1][d] for d in order)
        if list(order) == list(range(len(order))):
            return x
        return self.op(
            f"stablehlo.transpose {x[0]}, dims = {list(order)} : ({mlir_type(x[1], x[2])}) -> {mlir_type(shape, x[2])}",
            shape,
            x[2],
        )

    def convert(self, x, dtype):
        if _DTYPES.get(x[2]) == _DTYPES.get(dtype) and dtype in _DTYPES:
            return (x[0], x[1], dtype)
        return self.op(f"stablehlo.convert {x[0]} : ({mlir_type(x[1], x[2])}) -> {mlir_type(x[1], dtype)}", x[1], dtype)

    def unary(self, name, x):
        return self.op(
            (
                f"{name if '.' in name else 'stablehlo.' + name} {x[0]} : {mlir_type(x[1], x[2])}"
                if "." not in name
                else f"{name} {x[0]} : {mlir_type(x[1], x[2])} -> {mlir_type(x[1], x[2])}"
            ),
            x[1],
            x[2],
        )

    def binary(self, name, a, b):
        shape = torch.broadcast_shapes(a[1], b[1])
        a, b = self.broadcast(a, shape), self.broadcast(b, shape)
        return self.op(f"stablehlo.{name} {a[0]}, {b[0]} : {mlir_type(shape, a[2])}", shape, a[2])

    def all_reduce(self, x, cores):
        """The sum over the cores of a program that has several."""
        number = mlir_type((), x[2])
        return self.op(
            f'"stablehlo.all_reduce"({x[0]}) <{{replica_groups = dense<{[list(range(cores))]}> : tensor<1x{cores}xi64>}}> '
            f"({{\n    ^bb0(%a: {number}, %b: {number}):\n      %s = stablehlo.add %a, %b : {number}\n"
            f"      stablehlo.return %s : {number}\n    }}) : ({mlir_type(x[1], x[2])}) -> {mlir_type(x[1], x[2])}",
            x[1],
            x[2],
        )

    def compare(self, how, a, b):
        shape = torch.broadcast_shapes(a[1], b[1])
        a, b = self.broadcast(a, shape), self.broadcast(b, shape)
        kind = ", FLOAT" if _is_float(a[2]) else ", SIGNED" if a[2] != torch.bool else ", UNSIGNED"
        t = mlir_type(shape, a[2])
        return self.op(
            f"stablehlo.compare {how}, {a[0]}, {b[0]}{kind} : ({t}, {t}) -> {mlir_type(shape, torch.bool)}",
            shape,
            torch.bool,
        )

    def select(self, p, a, b):
        shape = torch.broadcast_shapes(p[1], a[1], b[1])
        p, a, b = (self.broadcast(x, shape) for x in (p, a, b))
        return self.op(
            f"stablehlo.select {p[0]}, {a[0]}, {b[0]} : {mlir_type(shape, torch.bool)}, {mlir_type(shape, a[2])}",
            shape,
            a[2],
        )

    def reduce(self, how, x, dims, keep=False):
        dims = sorted(d % max(1, len(x[1])) for d in (dims if dims else range(len(x[1]))))
        if not x[1]:
            return x
        start = {"add": 0, "multiply": 1, "maximum": -math.inf, "minimum": math.inf, "or": False, "and": True}[how]
        if not _is_float(x[2]) and isinstance(start, float):
            start = int(math.copysign(2**31, start))
        init = self.scalar(start, x[2])
        shape = tuple(s for d, s in enumerate(x[1]) if d not in dims)
        y = self.op(
            f"stablehlo.reduce({x[0]} init: {init[0]}) applies stablehlo.{how} across dimensions = {dims} : "
            f"({mlir_type(x[1], x[2])}, {mlir_type((), x[2])}) -> {mlir_type(shape, x[2])}",
            shape,
            x[2],
        )
        return self.reshape(y, [1 if d in dims else s for d, s in enumerate(x[1])]) if keep else y

    def slice(self, x, cuts):
        shape = tuple(-(-(e - b) // s) for b, e, s in cuts)
        if shape == x[1]:
            return x
        text = ", ".join(f"{b}:{e}" + (f":{s}" if s != 1 else "") for b, e, s in cuts)
        return self.op(
            f"stablehlo.slice {x[0]} [{text}] : ({mlir_type(x[1], x[2])}) -> {mlir_type(shape, x[2])}", shape, x[2]
        )

    def pad(self, x, low, high, value=0, interior=None):
        interior = interior or [0] * len(low)
        shape = tuple(a + h + s + max(0, s - 1) * i for a, h, s, i in zip(low, high, x[1], interior))
        v = self.scalar(value, x[2])
        return self.op(
            f"stablehlo.pad {x[0]}, {v[0]}, low = {list(low)}, high = {list(high)}, interior = {list(interior)} : "
            f"({mlir_type(x[1], x[2])}, {mlir_type((), x[2])}) -> {mlir_type(shape, x[2])}",
            shape,
            x[2],
        )

    def concatenate(self, xs, dim):
        if len(xs) == 1:
            return xs[0]
        shape = list(xs[0][1])
        shape[dim] = sum(x[1][dim] for x in xs)
        types = ", ".join(mlir_type(x[1], x[2]) for x in xs)
        return self.op(
            f"stablehlo.concatenate {', '.join(x[0] for x in xs)}, dim = {dim} : ({types}) -> "
            f"{mlir_type(shape, xs[0][2])}",
            shape,
            xs[0][2],
        )

    def iota(self, shape, dim, dtype=torch.int32):
        return self.op(f"stablehlo.iota dim = {dim} : {mlir_type(shape, dtype)}", shape, dtype)

    def reverse(self, x, dims):
        return self.op(f"stablehlo.reverse {x[0]}, dims = {list(dims)} : {mlir_type(x[1], x[2])}", x[1], x[2])

    def dot(self, a, b, batch, contract):
        """batch, contract: pairs of dimensions of a and b."""
        rest = lambda x, side: [
            s for d, s in enumerate(x[1]) if d not in [p[side] for p in batch + contract]
        ]  # noqa: E731
        shape = [a[1][p[0]] for p in batch] + rest(a, 0) + rest(b, 1)
        batches = f"batching_dims = {[p[0] for p in batch]} x {[p[1] for p in batch]}, " if batch else ""
        return self.op(
            f"stablehlo.dot_general {a[0]}, {b[0]}, {batches}contracting_dims = {[p[0] for p in contract]} x "
            f"{[p[1] for p in contract]} : ({mlir_type(a[1], a[2])}, {mlir_type(b[1], b[2])}) -> "
            f"{mlir_type(shape, a[2])}",
            shape,
            a[2],
        )

    def as_strided(self, x, layout, shape, stride, offset=None):
        """A view that shows all elements once, in another order of memory."""

        def order(sizes, strides):
            return sorted(range(len(sizes)), key=lambda d: (-strides[d], -sizes[d], d))

        def dense(sizes, strides):
            expected = 1
            for d in reversed(order(sizes, strides)):
                if sizes[d] != 1 and strides[d] != expected:
                    return False
                expected *= sizes[d]
            return True

        if (
            offset
            or math.prod(shape) != math.prod(x[1])
            or not dense(shape, stride)
            or not dense(layout.shape, layout.stride())
        ):
            raise Refused(
                "a view that repeats or leaves out elements is not supported; use expand, slice or unfold by indexing"
            )
        flat = self.reshape(self.transpose(x, order(x[1], layout.stride())), (math.prod(shape),))
        to = order(shape, stride)
        return self.transpose(self.reshape(flat, [shape[d] for d in to]), [to.index(d) for d in range(len(to))])

    def region(self, text, operands, shape, dtype, bodies):
        """A generic op with regions. bodies: of each, the lines with {t} for the scalar type."""
        t = mlir_type((), dtype)
        self.count += 1
        name = f"%{self.count}"
        inner = []
        for body in bodies:
            p, q = f"%p{self.count}{len(inner)}", f"%q{self.count}{len(inner)}"
            inner.append(
                "{\n    ^bb0("
                + f"{p}: {t}, {q}: {t}):\n"
                + body.format(p=p, q=q, t=t, n=f"%r{self.count}{len(inner)}")
                + "\n    }"
            )
        types = ", ".join(mlir_type(x[1], x[2]) for x in operands)
        self.lines.append(
            f"    {name} = {text.format(*(x[0] for x in operands))} ({', '.join(inner)}) : ({types}) -> "
            f"{mlir_type(shape, dtype)}{self.location}"
        )
        return (name, tuple(shape), dtype)

    @staticmethod
    def has_rule(node):
        return node.target is operator.getitem or getattr(node.target, "__name__", "").split(".")[0] in RULES

    def lower(self, node, env, meta):
        if node.target is operator.getitem:
            return env[node.args[0]][node.args[1]]
        if node.target is torch.ops.aten.as_strided.default or str(node.target).startswith("aten.as_strided_copy"):
            return self.as_strided(env[node.args[0]], meta[node.args[0]], *node.args[1:])
        name = node.target.__name__.split(".")[0] if hasattr(node.target, "__name__") else str(node.target)
        f = RULES.get(name)
        if f is None:
            raise Refused("this op is not supported")
        args = torch.fx.node.map_arg(node.args, lambda n: env[n])
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: env[n])
        return f(self, meta[node], *args, **kwargs)

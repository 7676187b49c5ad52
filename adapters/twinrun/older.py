"""Recording on PyTorch before 1.13, which has no dispatch mode. While a step is watched, functions and methods of Python that one
operation stands behind are replaced by ones that record it; the nodes of autograd that a call made get a hook, which records what the
backward pass computed there. docs/method/calls.md says what is not seen."""
import functools
import re
import threading
import types

import torch
import torch.nn.functional as F

from . import functions
from .encode import OPTIMIZER, Skip

# Functions and methods that are recorded as the operation of the same name, with the overload that fits the arguments; those that write
# in place (add_) too.
SAME = """add sub rsub mul div true_divide pow neg abs exp log log1p sqrt rsqrt reciprocal square sigmoid tanh erf sin cos clamp clamp_min
clamp_max addcmul addcdiv lerp maximum minimum where masked_fill relu gelu silu leaky_relu elu hardtanh hardswish softplus mm bmm mv dot addmm
baddbmm addmv matmul linear sum mean var std norm frobenius_norm max min amax amin prod cumsum logsumexp softmax log_softmax cat stack
zero fill copy avg_pool2d embedding embedding_bag dropout feature_dropout alpha_dropout lstm gru rnn_tanh rnn_relu mse_loss smooth_l1_loss huber_loss
binary_cross_entropy binary_cross_entropy_with_logits upsample_nearest2d upsample_bilinear2d conv3d einsum bilinear prelu""".split()
OPERATORS = {"__add__": "add", "__radd__": "add", "__iadd__": "add_", "__sub__": "sub", "__rsub__": "rsub", "__isub__": "sub_",
             "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul_", "__truediv__": "div", "__itruediv__": "div_", "__pow__": "pow",
             "__neg__": "neg", "__abs__": "abs", "__matmul__": "matmul"}
RENAMED = {"input": "self", "axis": "dim", "keepdims": "keepdim"}    # keywords of Python that the schemas do not have
DY, MASK, SHAPE = object(), object(), object()    # in a backward call: the gradient of the result, which gradients there are, their shape


def _convolution(f):
    n = f.weight.dim() - 2
    each = [v if isinstance(v, str) else [v] * n if isinstance(v, int) else list(v) * (n if len(v) == 1 else 1)
            for v in (f.stride, f.padding, f.dilation, f.get("output_padding", 0))]
    return [f.input, f.weight, f.bias, *each[:3], "output_padding" in f, each[3], f.groups]


# Recorded as another operation, with these arguments; None: not recorded itself, as the function of functions.py around it is.
OTHER = {
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"), ("aten.convolution.default", _convolution)),
    "max_pool2d": ("aten.max_pool2d_with_indices.default", None), "adaptive_avg_pool2d": ("aten._adaptive_avg_pool2d.default", None),
    "nll_loss": ("aten.nll_loss_forward.default", None), "nll_loss2d": ("aten.nll_loss2d_forward.default", None),
    **dict.fromkeys(("nll_loss_nd", "layer_norm", "group_norm", "batch_norm", "cross_entropy_loss", "l1_loss", "kl_div"), (None, None))}


def _factors(f):
    """Returns the matrices that a node multiplied."""
    if "mat1" in f:
        return f.mat1, f.mat2
    if "mat2" in f:
        return f.self, f.mat2
    left, right = (f.input, f.weight.t()) if "weight" in f else (f.self, f.other)
    if right.dim() != 2 or left.dim() < 2:
        raise ValueError("another product")
    return left.reshape(-1, left.shape[-1]), right


def _stacks(f):
    left, right = (f.self, f.mat2) if "mat2" in f else (f.self, f.other)
    if left.dim() < 3 or left.shape[:-2] != right.shape[:-2]:
        raise ValueError("another product")
    return left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:])


def _products(f, op, factors, at):
    left, right = factors(f)
    return [((at,), op, [DY, right.transpose(-2, -1)], [left]), ((at + 1,), op, [left.transpose(-2, -1), DY], [right])]


def _convolved(f):
    args = _convolution(f)
    return [((0, 1, 2), "aten.convolution_backward.default",
             [DY, *args[:2], None if f.bias is None else [f.bias.shape[0]], *args[3:], MASK], [f.input, f.weight, f.bias])]


def _likelihood(f):
    weight = f.get("weight")
    total = f.saved("total_weight")
    if total is None and weight is None:    # what the kernel counted, exactly
        total = (f.target != f.ignore_index).sum().to(f.self.dtype)
    own = f.saved("self")
    own = f.self if own is None else own
    target = f.saved("target")
    return [((0,), f"aten.nll_loss{'2d' if own.dim() == 4 else ''}_backward.default",
             [DY, own, f.target if target is None else target, weight, f.reduction, f.ignore_index, total], [own])]


def _softmax(op):
    def parts(f):
        out, dim = f.saved("result"), f.saved("dim")
        out, dim = f.out if out is None else out, f.dim if dim is None else dim
        return [((0,), op, [DY, out, dim - (1 << 64) if dim >= 1 << 63 else dim, out.dtype], [out])]
    return parts


def _one(op, *names):
    """The gradient of the first argument, from the gradient of the result and these arguments."""
    return lambda f: [((0,), op, [DY, *(f[n] if isinstance(n, str) else n for n in names)], [f[f.first]])]


def _loss(op, *more):
    return _one(op, "self", "target", "reduction", *more)


def _view(f):
    return [((0,), "aten.reshape.default", [DY, SHAPE], None)]


# Node of autograd, without "Backward" and digits: [(which of its results, operation, arguments, tensors whose shapes the results must have)]
BACKWARD = {
    **dict.fromkeys(("MkldnnConvolution", "Convolution", "CudnnConvolution", "ThnnConv2D", "SlowConvDilated2D", "SlowConvTranspose2D",
                     "ThnnConvDepthwise2D", "ConvDepthwise2D", "NnpackSpatialConvolution", "CudnnConvolutionTranspose"), _convolved),
    "Mm": lambda f: _products(f, "aten.mm.default", _factors, 0), "Bmm": lambda f: _products(f, "aten.bmm.default", _stacks, 0),
    "Addmm": lambda f: _products(f, "aten.mm.default", _factors, 1) if f.get("beta", 1) == 1 and f.get("alpha", 1) == 1 else [],
    "T": lambda f: [((0,), "aten.t.default", [DY], None)],
    **dict.fromkeys(("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"), _view),
    "Relu": _one("aten.threshold_backward.default", "out", 0), "Sigmoid": _one("aten.sigmoid_backward.default", "out"),
    "Tanh": _one("aten.tanh_backward.default", "out"), "Silu": _one("aten.silu_backward.default", "self"),
    "Gelu": lambda f: [((0,), "aten.gelu_backward.default", [DY, f.self], [f.self])] if f.get("approximate", "none") == "none" else [],
    "Exp": _one("aten.mul.Tensor", "out"), "Neg": _one("aten.neg.default"), "Div": _one("aten.div.Tensor", "other"),
    "Mul": lambda f: [((0,), "aten.mul.Tensor", [DY, f.other], [f.self]), ((1,), "aten.mul.Tensor", [DY, f.self], [f.other])],
    "Softmax": _softmax("aten._softmax_backward_data.default"), "LogSoftmax": _softmax("aten._log_softmax_backward_data.default"),
    "NllLoss": _likelihood, "NllLoss2D": _likelihood, "MseLoss": _loss("aten.mse_loss_backward.default"),
    "SmoothL1Loss": _loss("aten.smooth_l1_loss_backward.default", "beta"), "HuberLoss": _loss("aten.huber_loss_backward.default", "delta"),
    "BinaryCrossEntropy": _one("aten.binary_cross_entropy_backward.default", "self", "target", "weight", "reduction"),
    "NativeLayerNorm": lambda f: [((0, 1, 2), "aten.native_layer_norm_backward.default", [
        DY, f.input, f.normalized_shape, f.saved("result1"), f.saved("result2"), f.weight, f.bias, MASK], [f.input, f.weight, f.bias])],
    "NativeBatchNorm": lambda f: [((0, 1, 2), "aten.native_batch_norm_backward.default", [
        DY, f.input, f.weight, f.running_mean, f.running_var, f.saved("result1"), f.saved("result2"), f.training, f.eps, MASK],
        [f.input, f.weight, f.bias])],
    "NativeGroupNorm": lambda f: [((0, 1, 2), "aten.native_group_norm_backward.default", [
        DY, f.input, f.saved("result1"), f.saved("result2"), f.weight, f.input.shape[0], f.input.shape[1],
        f.input[0, 0].numel(), f.num_groups, MASK], [f.input, f.weight, f.bias])],
    "MaxPool2DWithIndices": lambda f: [((0,), "aten.max_pool2d_with_indices_backward.default", [
        DY, f.self, f.kernel_size, f.stride, f.padding, f.dilation, f.ceil_mode, f.saved("result1")], [f.self])],
    "AvgPool2D": _one("aten.avg_pool2d_backward.default", "self", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad",
                      "divisor_override"),
    "AdaptiveAvgPool2D": _one("aten._adaptive_avg_pool2d_backward.default", "self"),
    "Embedding": lambda f: [((0,), "aten.embedding_dense_backward.default", [
        DY, f.indices, f.weight.shape[0], f.padding_idx, f.scale_grad_by_freq], [f.weight])]}
# A node of these passes the gradient through, summed over what was broadcast: also the first result of addmm.
THROUGH = ("Add", "Sub", "Addmm")
MAX_NODES = 32    # of one call; recurrent layers have thousands
BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def needed():
    return not hasattr(getattr(__import__("torch.utils._python_dispatch", fromlist=["x"]), "TorchDispatchMode", None), "__enter__") \
        if hasattr(torch.utils, "_python_dispatch") or int(torch.__version__.split(".")[1]) >= 11 or torch.__version__[0] != "1" else True


class Forward(dict):
    """A call's arguments by name, without their history, and its result as `out`."""
    first, node = None, None

    def __getattr__(self, name):
        return self[name]

    def saved(self, name):
        """Returns what the node keeps for its backward pass; None before 1.9."""
        return _bare(getattr(self.node, "_saved_" + name, None))


def _bare(v):
    if isinstance(v, torch.Tensor):
        return v.detach()    # a reference to its node would be a circle
    return [_bare(x) for x in v] if isinstance(v, (list, tuple)) else v


class Overload:
    """A schema, as encode.py reads those of newer versions."""

    def __init__(self, name, schema=None):
        self.name, self.schema, self.arguments = name, schema, ()
        if schema is not None:
            text = str(schema).split(" -> ")[0]
            written = set(re.findall(r"\(\w!\)(?:\[\])? (\w+)", text))
            names = re.findall(r"(\w+)(?:=|,|\)$)", text.partition(", *, ")[2] or text.partition("(*, ")[2])
            self.arguments = [types.SimpleNamespace(
                name=a.name, kind=str(a.type), kwarg_only=a.name in names, missing=not a.has_default_value(), default=a.default_value,
                alias_info=types.SimpleNamespace(is_write=True) if a.name in written else None) for a in schema.arguments]
        self._schema = self

    def __str__(self):
        return self.name

    def bind(self, args, kwargs):
        """Returns (all arguments by name, those given by position, those given by name), or None if they do not fit."""
        rows = self.arguments
        names = {a.name for a in rows}
        given = {}
        for key, v in kwargs.items():
            key = key if key in names else rows[0].name if key == "input" else RENAMED.get(key, key)
            if key not in names:
                return None
            given[key] = v
        places = [a for a in rows if not a.kwarg_only]
        if len(args) > len(places):
            return None
        for a, v in zip(places, args):
            if a.name in given:
                return None
            given[a.name] = v
        for a in rows:
            if a.name not in given and a.missing or a.name in given and not _fits(a.kind, given[a.name]):
                return None
        bound = Forward((a.name, given.get(a.name, a.default)) for a in rows)
        bound.first = rows[0].name
        last = max((i for i, a in enumerate(places) if a.name in given), default=-1)
        return bound, [bound[a.name] for a in places[:last + 1]], {a.name: given[a.name] for a in rows if a.kwarg_only and a.name in given}


def _fits(kind, v):
    if kind.startswith("Optional["):
        return v is None or _fits(kind[9:-1], v)
    if kind.startswith("List["):
        return all(_fits(kind[5:-1], x) for x in v) if isinstance(v, (list, tuple)) else kind == "List[int]" and type(v) is int
    plain = {"Tensor": torch.Tensor, "number": (int, float, complex), "float": (int, float), "bool": bool, "str": str,
             "int": (int, torch.dtype, torch.layout, torch.memory_format), "Device": (str, torch.device)}.get(kind)
    return plain is not None and isinstance(v, plain) and not (kind == "int" and isinstance(v, bool))


@functools.lru_cache(maxsize=None)
def _overloads(name):
    found = [Overload("", s) for s in torch._C._jit_get_schemas_for_operator("aten::" + name)]
    for each in found:
        each.name = f"aten.{name}.{each.schema.overload_name or 'default'}"
    return found


@functools.lru_cache(maxsize=None)
def _overload(name):
    return Overload(name)


def _autocast():
    return any(getattr(torch, name, bool)() for name in ("is_autocast_enabled", "is_autocast_cpu_enabled"))


class Patches:
    """In the place of the modes of newer versions."""

    def __init__(self, owner):
        self.owner, self.thread, self.local = owner, threading.get_ident(), threading.local()
        self.patched = []    # (owner, name, the function, whether the owner itself had it)

    def __enter__(self):
        nn = torch._C._nn
        for owner in (torch, torch.Tensor, nn, torch._VF, F):
            for name in [*SAME, *(n + "_" for n in SAME), *OTHER]:
                found = getattr(owner, name, None)
                if isinstance(found, BUILTIN):
                    self._patch(owner, name, found, functools.partial(self._call, name))
        for name, meant in OPERATORS.items():
            found = getattr(torch.Tensor, name, None)
            if found is not None:
                self._patch(torch.Tensor, name, found, functools.partial(self._call, meant))
        for name in functions.NAMES:
            found = getattr(F, name, None)
            if isinstance(found, types.FunctionType) and not getattr(found, "twinrun", False):
                self._patch(F, name, found, functools.partial(self.owner.function, functions.Function(name, found)))
        self._patch(torch.jit, "script", torch.jit.script, self._script)    # a compiler of what the functions really are
        return self

    def __exit__(self, *error):
        for owner, name, found, own in reversed(self.patched):
            if vars(owner).get(name, None) is found.twinrun_patch:
                setattr(owner, name, found.original) if own else delattr(owner, name)
        self.patched = []

    def _patch(self, owner, name, original, record):
        def call(*args, **kwargs):
            # Only the thread that watches is recorded, as with modes, and not what recording itself calls.
            if not self.owner.on or getattr(self.local, "inside", False) or threading.get_ident() != self.thread:
                return original(*args, **kwargs)
            return record(original, args, kwargs)

        call = functools.wraps(original, [a for a in functools.WRAPPER_ASSIGNMENTS if hasattr(original, a)])(call)
        call.twinrun = True
        self.patched.append((owner, name, types.SimpleNamespace(original=original, twinrun_patch=call), name in vars(owner)))
        setattr(owner, name, call)

    def _script(self, original, args, kwargs):
        self.__exit__()
        try:
            return original(*args, **kwargs)
        finally:
            self.__enter__()

    def _call(self, name, func, args, kwargs):
        owner, before, stops = self.owner, None, ()
        with owner.lock:
            self.local.inside = True
            try:
                r = owner.recorder
                bound, op, given, named = self._meant(name, args, kwargs)
                info = r.file.string(owner.places.here()), r.file.string(owner.modules.path)
                if op is not None:
                    before = r.begin(r.schema_of(op), given, named)
                    before.place, before.module, before.node, before.forward, before.link = *info, 0, -1, None
                stops = [t.grad_fn for t in r.tensors([*args, *kwargs.values()], [])]
            except Skip:
                return func(*args, **kwargs)
            except Exception as e:
                owner._failed(e)
                return func(*args, **kwargs)
            finally:
                self.local.inside = False
        raised, out, number = True, None, -1
        try:
            out = func(*args, **kwargs)
            raised = False
        finally:
            if owner.on:
                with owner.lock:
                    self.local.inside = True
                    try:
                        if before is not None and out is not NotImplemented:
                            number = owner._after(before, given, named, out, raised)
                        self._hook(out, stops, bound, info, -1 if number is None else number)
                    except Exception as e:
                        owner._failed(e)
                    finally:
                        self.local.inside = False
        return out

    def _meant(self, name, args, kwargs):
        """Returns the arguments by name (None: not understood), the operation, and its arguments."""
        for over in _overloads(name):
            found = over.bind(args, kwargs) or over.bind((args[0], args[1:]), kwargs) if args else over.bind(args, kwargs)
            if found is not None:
                bound, given, named = found
                if _autocast():    # it may compute with other inputs than it was given
                    return None, _overload(f"autocast.{name}"), list(args), kwargs
                op, arguments = OTHER.get(name, (over, None))
                if isinstance(op, str):
                    op = _overload(op)
                return bound, op, arguments(bound) if arguments else given, {} if arguments else named
        return None, _overload(f"torch.{name}"), list(args), kwargs

    # The backward pass

    def _hook(self, out, stops, bound, info, number):
        """Puts hooks on the nodes that a call made."""
        outs = self.owner.recorder.tensors([out], [])
        todo, seen = [t.grad_fn for t in outs], 0
        while todo and seen < MAX_NODES:
            node = todo.pop(0)
            if node is None or node in stops or "Accumulate" in node.name() or "twinrun" in node.metadata:
                continue
            seen += 1
            node.metadata["twinrun"] = True
            todo += [n for n, _ in node.next_functions]
            kind = re.sub(r"Backward\d*$", "", node.name())
            parts = []
            try:
                if bound is not None and kind in BACKWARD:
                    forward = Forward((k, _bare(v)) for k, v in bound.items())
                    forward.first, forward.node = bound.first, node
                    forward["out"] = _bare(outs[0])
                    parts = _bare(BACKWARD[kind](forward))
            except Exception:    # a call of another form: it is listed
                pass
            node.register_hook(functools.partial(self._backward, kind, node.name(), parts, info, number))

    def _backward(self, kind, node, parts, info, number, grads, dys):
        owner = self.owner
        if not owner.on or dys[0] is None:
            return
        with owner.lock:
            self.local.inside = True
            try:
                left = {i for i, g in enumerate(grads) if isinstance(g, torch.Tensor)}
                for which, op, args, likes in parts:
                    mine = [i for i in which if i < len(grads) and i in left]
                    if not mine or likes and any(not isinstance(likes[i - which[0]], torch.Tensor) or
                                                 likes[i - which[0]].shape != grads[i].shape for i in mine):
                        continue
                    values = {DY: dys[0], MASK: [i in mine for i in which], SHAPE: list(grads[mine[0]].shape)}
                    args = [values.get(a, a) if type(a) is object else a for a in args]
                    result = grads[which[0]] if len(which) == 1 else [grads[i] if i < len(grads) else None for i in which]
                    self._write(op, args, result, info, node, number)
                    left -= set(mine)
                if kind in THROUGH and kind != "Sub":
                    for i in sorted(left):
                        lead = dys[0].dim() - grads[i].dim()
                        if lead > 0 and dys[0].shape[lead:] == grads[i].shape:
                            self._write("aten.sum.dim_IntList", [dys[0], list(range(lead))], grads[i], info, node, number)
                            left.discard(i)
                if left:
                    self._write(f"autograd.{node}", list(dys), [grads[i] for i in sorted(left)], info, node, number)
            except Skip:
                pass
            except Exception as e:
                owner._failed(e)
            finally:
                self.local.inside = False

    def _write(self, op, args, result, info, node, number):
        r = self.owner.recorder
        before = r.begin(r.schema_of(_overload(op)), args, {})
        r.end(before, args, {}, result, (*info, r.file.string(node), number, OPTIMIZER if self.owner.counter.stepping else 0))

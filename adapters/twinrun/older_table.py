"""What older.py records on PyTorch before 1.13: which functions of Python, as which operations, and from what the nodes of autograd
compute their gradients, as the operations that newer versions record."""
import torch


class Forward(dict):
    """A call's arguments by name, without their history, and its result as `out`."""
    node = None       # of autograd
    like = None       # a tensor of the shape of the first argument
    written = ()      # the arguments that the call wrote

    def __getattr__(self, name):
        if name in self:
            return self[name]
        raise AttributeError(name)

    def saved(self, name):
        """Returns what the node keeps for its backward pass; None on versions that do not show it."""
        return bare(getattr(self.node, "_saved_" + name, None))


def bare(v):
    if isinstance(v, torch.Tensor):
        return v.detach()    # a reference to its node would be a circle
    return [bare(x) for x in v] if isinstance(v, (list, tuple)) else v


# Functions and methods that are recorded as the operation of the same name, with the overload that fits the arguments; those that write
# in place (add_) too.
SAME = """add sub rsub mul div true_divide pow neg abs exp log log1p sqrt rsqrt reciprocal square sigmoid tanh erf sin cos clamp clamp_min
clamp_max addcmul addcdiv lerp maximum minimum where masked_fill relu gelu silu leaky_relu elu hardtanh hardswish softplus mm bmm mv dot
addmm baddbmm addmv matmul linear sum mean var std norm frobenius_norm max min amax amin prod cumsum logsumexp softmax log_softmax cat stack
zero fill copy zeros_like ones_like full_like clone sign eq ne lt le gt ge avg_pool2d embedding
dropout feature_dropout alpha_dropout lstm gru rnn_tanh rnn_relu
mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits upsample_nearest2d
upsample_bilinear2d conv3d einsum bilinear prelu""".split()
OPERATORS = {"__add__": "add", "__radd__": "add", "__iadd__": "add_", "__sub__": "sub", "__rsub__": "rsub", "__isub__": "sub_",
             "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul_", "__truediv__": "div", "__itruediv__": "div_", "__pow__": "pow",
             "__neg__": "neg", "__abs__": "abs", "__matmul__": "matmul"}
RENAMED = {"input": "self", "axis": "dim", "keepdims": "keepdim"}    # keywords of Python that the schemas do not have
# In a backward call: the gradient of the result, which gradients there are, their shape.
DY, MASK, SHAPE = object(), object(), object()
THROUGH = "through"


def _convolution(f):
    n = f.weight.dim() - 2
    each = [v if isinstance(v, str) else [v] * n if isinstance(v, int) else list(v) * (n if len(v) == 1 else 1)
            for v in (f.stride, f.padding, f.dilation, f.get("output_padding", 0))]
    return [f.input, f.weight, f.bias, *each[:3], "output_padding" in f, each[3], f.groups]


def _bag(f):
    padding = f.get("padding_idx")
    return [f.weight, f.indices, f.offsets, f.scale_grad_by_freq, f.mode, f.sparse, f.per_sample_weights, f.include_last_offset,
            -1 if padding is None else padding]


# Recorded as another operation, with these arguments; None: not recorded itself, as the function of functions.py around it is.
OTHER = {
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"), ("aten.convolution.default", _convolution)),
    "max_pool2d": ("aten.max_pool2d_with_indices.default", None), "adaptive_avg_pool2d": ("aten._adaptive_avg_pool2d.default", None),
    "embedding_bag": ("aten._embedding_bag.default", _bag), "nll_loss": ("aten.nll_loss_forward.default", None),
    "nll_loss2d": ("aten.nll_loss2d_forward.default", None),
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


def _bag_backward(f):
    kept = [f.saved(name) for name in ("indices", "offsets", "result1", "result2", "result3", "weight_argsize_0", "scale_grad_by_freq",
                                       "mode", "sparse", "per_sample_weights")]
    return [((0,), "aten._embedding_bag_backward.default", [DY, *kept, _signed(f.saved("padding_idx"))], None)]


def _signed(number):
    return number - (1 << 64) if number >= 1 << 63 else number


def _softmax(op):
    def parts(f):
        out, dim = f.saved("result"), f.saved("dim")
        out, dim = f.out if out is None else out, f.dim if dim is None else dim
        return [((0,), op, [DY, out, _signed(dim), out.dtype], [out])]
    return parts


def _one(op, *names):
    """The gradient of the first argument, from the gradient of the result and these arguments."""
    return lambda f: [((0,), op, [DY, *(f[n] if isinstance(n, str) else n for n in names)], [f.like])]


def _loss(op, *more):
    return _one(op, "self", "target", "reduction", *more)


def _view(f):
    return [((0,), "aten.reshape.default", [DY, SHAPE], None)]


def _through(f):
    """The gradient itself, summed over what was broadcast."""
    alpha = f.saved("alpha")
    scaled = (f.get("alpha", 1) if alpha is None else alpha) != 1
    return [((0,), THROUGH, [DY], None)] + ([] if scaled else [((1,), THROUGH, [DY], None)])


# Node of autograd, without "Backward" and digits: [(which of its results, operation, arguments, tensors whose shapes those results
# must have)].
BACKWARD = {
    **dict.fromkeys(("MkldnnConvolution", "Convolution", "CudnnConvolution", "ThnnConv2D", "SlowConvDilated2D", "SlowConvTranspose2D",
                     "ThnnConvDepthwise2D", "ConvDepthwise2D", "NnpackSpatialConvolution", "CudnnConvolutionTranspose"), _convolved),
    "Mm": lambda f: _products(f, "aten.mm.default", _factors, 0), "Bmm": lambda f: _products(f, "aten.bmm.default", _stacks, 0),
    "Addmm": lambda f: [((0,), THROUGH, [DY], None), *_products(f, "aten.mm.default", _factors, 1)]
    if f.get("beta", 1) == 1 and f.get("alpha", 1) == 1 else [],
    "T": lambda f: [((0,), "aten.t.default", [DY], None)],
    **dict.fromkeys(("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone"), _view),
    "Relu": _one("aten.threshold_backward.default", "out", 0), "Sigmoid": _one("aten.sigmoid_backward.default", "out"),
    "Tanh": _one("aten.tanh_backward.default", "out"), "Silu": _one("aten.silu_backward.default", "self"),
    "Gelu": lambda f: [((0,), "aten.gelu_backward.default", [DY, f.self], [f.self])] if f.get("approximate", "none") == "none" else [],
    "LeakyRelu": lambda f: [((0,), "aten.leaky_relu_backward.default", [DY, f.out, f.negative_slope, True], [f.like])]
    if f.negative_slope > 0 else [],
    "Exp": _one("aten.mul.Tensor", "out"), "Neg": _one("aten.neg.default"), "Add": _through,
    "Expand": lambda f: [((0,), THROUGH, [DY], None)], "Sub": lambda f: _through(f)[:1],
    "Div": lambda f: [((0,), "aten.div.Tensor", [DY, f.other], [DY])],
    "Mul": lambda f: [((i,), "aten.mul.Tensor", [DY, f[name]], [DY]) for i, name in enumerate(("other", "self")) if name in f],
    "Softmax": _softmax("aten._softmax_backward_data.default"), "LogSoftmax": _softmax("aten._log_softmax_backward_data.default"),
    "NllLoss": _likelihood, "NllLoss2D": _likelihood, "MseLoss": _loss("aten.mse_loss_backward.default"),
    "SmoothL1Loss": _loss("aten.smooth_l1_loss_backward.default", "beta"),
    "HuberLoss": _loss("aten.huber_loss_backward.default", "delta"),
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
        DY, f.indices, f.weight.shape[0], f.padding_idx, f.scale_grad_by_freq], [f.weight])],
    "EmbeddingBag": _bag_backward}
# Nodes that other calls are composed of, too, with other arguments: there only what the node itself keeps is known.
COMMON = ("Relu", "Sigmoid", "Tanh", "Silu", "Gelu", "LeakyRelu", "Exp", "Neg", "Add", "Sub", "Div", "Mul", "Softmax", "LogSoftmax",
          "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy")

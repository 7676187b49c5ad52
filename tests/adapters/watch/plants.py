"""Wrong kernels of PyTorch, and what must be found of each: the operation, the step and the line. See planted.py.

The first argument of a wrong kernel is the right one; it may use any other operation too. `at` is a piece of the line
that the finding must name. For a call of the backward pass, `of` is a piece of the line of its forward call. The kernel
is wrong in every step without `step`, and in every call of a step without `call`."""
import math

import torch
import torch.nn.functional as F

PLANTS = []


class Plant:
    def __init__(self, kernel, operation, overload="default", at=None, of=None, network="words", optimizer="adam",
                 autocast=False, step=None, call=None, first=None, outside=None, since=1):
        self.name, self.kernel, self.operation, self.overload = kernel.__name__, kernel, operation, overload
        self.at, self.of = at, of
        self.network, self.optimizer, self.autocast = network, optimizer, autocast
        self.step, self.call = step, call    # which of the steps, and of the step's calls of this operation
        self.first = step or 0 if first is None else first    # the step of the first finding
        self.outside = outside               # how many elements are wrong, where the plant knows
        self.since = since                   # the first major version of PyTorch that has the operation

    def is_in(self, version):
        return int(version.split(".")[0]) >= self.since


def plant(operation, overload="default", **rest):
    def keep(kernel):
        PLANTS.append(Plant(kernel, operation, overload, **rest))
        return kernel

    return keep


# What several kernels do.

def rounded(x, dtype):
    return x.to(dtype).to(x.dtype)


def product_rounding(a, b, dtype, block):
    """a b, with the partial sum rounded after each block of terms."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], block):
        total = rounded(total + a[:, k:k + block] @ b[k:k + block], dtype)
    return total


def patches(x, weight, padding):
    """The columns of a convolution, [image, channel and offset, place]."""
    return F.unfold(x, weight.shape[2:], padding=padding)


# Products

@plant("mm", of="self.last(x)")
def mm_in_bfloat16(right, a, b):
    return right(rounded(a, torch.bfloat16), rounded(b, torch.bfloat16))


@plant("mm", of="self.last(x)")
def mm_without_last_term(right, a, b):
    return right(a[:, :-1].contiguous(), b[:-1].contiguous())


@plant("mm", of="self.last(x)")
def mm_twice(right, a, b):
    return right(a, b) * 2


@plant("mm", of="self.second(x)", step=1, call=3, outside=1)
def mm_one_element_of_one_call(right, a, b):
    y = right(a, b)
    y[3, 7] -= a[3, -1] * b[-1, 7]
    return y


@plant("mm", of="self.second(x)", step=0, call=2)
def mm_adds_in_bfloat16(right, a, b):
    return product_rounding(a, b, torch.bfloat16, 1)


@plant("mm", of="self.first(x)", call=4)
def mm_adds_blocks_in_float16(right, a, b):
    return product_rounding(a, b, torch.float16, 8)


@plant("addmm", at="self.second(x)", call=1)
def addmm_adds_blocks_in_bfloat16(right, bias, a, b, beta=1, alpha=1):
    return product_rounding(a, b, torch.bfloat16, 16) + bias


@plant("addmm", at="self.first(x)", autocast=True, since=2)
def addmm_of_bfloat16_adds_in_bfloat16(right, bias, a, b, beta=1, alpha=1):
    return (product_rounding(a.float(), b.float(), torch.bfloat16, 1) + bias.float()).bfloat16()


@plant("addmm", at="self.first(x)")
def addmm_without_bias(right, bias, a, b, beta=1, alpha=1):
    return right(torch.zeros_like(bias), a, b)


@plant("addmm", at="self.second(x)", call=1, step=1)
def addmm_bias_of_the_row(right, bias, a, b, beta=1, alpha=1):
    return right(bias[:a.shape[0]].unsqueeze(1).expand(a.shape[0], b.shape[1]), a, b)


@plant("addmm", at="self.second(x)", call=1, step=0, outside=16 * 16)
def addmm_tile_without_last_block(right, bias, a, b, beta=1, alpha=1):
    y = right(bias, a, b)
    y[:16, 16:] -= a[:16, -16:] @ b[-16:, 16:]
    return y


@plant("addmm", at="self.last(x)", call=2, step=1, outside=10)
def addmm_row_of_its_neighbour(right, bias, a, b, beta=1, alpha=1):
    y = right(bias, a, b)
    y[7] = y[6]
    return y


@plant("addmm", at="self.second(x)", call=1, first=1, outside=24 * 32)
def addmm_result_of_the_step_before(right, bias, a, b, beta=1, alpha=1, kept={}):
    return kept.setdefault(a.shape, right(bias, a, b)).clone()


@plant("bmm", at="torch.bmm(weights, x)", network="images", optimizer="sgd", call=1)
def bmm_batch_twice(right, a, b):
    y = right(a, b)
    y[5] = a[5] @ b[4]
    return y


# Convolutions, pooling, normalisation

@plant("convolution", at="self.conv(x)", network="images", optimizer="sgd", call=0)
def convolution_adds_in_bfloat16(right, x, weight, bias, stride, padding, *rest):
    columns, rows = patches(x, weight, padding), weight.flatten(1)
    total = torch.zeros(x.shape[0], weight.shape[0], columns.shape[2])
    for k in range(rows.shape[1]):
        total = rounded(total + rows[:, k].view(1, -1, 1) * columns[:, k:k + 1], torch.bfloat16)
    return total.view(x.shape[0], weight.shape[0], *x.shape[2:]) + bias.view(1, -1, 1, 1)


@plant("convolution", at="self.deeper(x)", network="images", optimizer="sgd", step=1, call=1)
def convolution_border_repeated(right, x, weight, bias, stride, padding, *rest):
    return right(F.pad(x, (1, 1, 1, 1), mode="replicate"), weight, bias, stride, [0, 0], *rest)


@plant("convolution_backward", of="self.deeper(x)", network="images", optimizer="sgd", call=0)
def convolution_weight_gradient_without_last_image(right, dy, x, *rest):
    _, weight, _ = right(dy[:-1].contiguous(), x[:-1].contiguous(), *rest)
    inputs, _, bias = right(dy, x, *rest)
    return inputs, weight, bias


@plant("convolution_backward", of="self.deeper(x)", network="images", optimizer="sgd", call=0, outside=16)
def convolution_bias_gradient_is_the_mean(right, dy, x, *rest):
    inputs, weight, bias = right(dy, x, *rest)
    return inputs, weight, bias / dy.shape[0]


@plant("convolution_backward", of="self.deeper(x)", network="images", optimizer="sgd", call=0)
def convolution_input_gradient_of_flipped_kernel(right, dy, x, weight, *rest):
    inputs, _, _ = right(dy, x, weight.flip(2, 3).contiguous(), *rest)
    _, weights, bias = right(dy, x, weight, *rest)
    return inputs, weights, bias


@plant("native_batch_norm", at="self.norm(x)", network="images", optimizer="sgd", step=1)
def batch_norm_statistics_stale(right, x, weight, bias, mean, variance, *rest):
    return right(x, weight, bias, mean.clone(), variance.clone(), *rest)


@plant("native_batch_norm", at="self.norm(x)", network="images", optimizer="sgd", outside=8)
def batch_norm_running_variance_biased(right, x, weight, bias, mean, variance, training, momentum, eps):
    before = variance.clone()
    out = right(x, weight, bias, mean, variance, training, momentum, eps)
    n = x.numel() / x.shape[1]
    variance.copy_(before * (1 - momentum) + (variance - before * (1 - momentum)) * ((n - 1) / n))
    return out


@plant("native_batch_norm_backward", of="self.norm(x)", network="images", optimizer="sgd")
def batch_norm_gradient_as_if_constant(right, dy, x, weight, running_mean, running_var, mean, invstd, *rest):
    _, weights, bias = right(dy, x, weight, running_mean, running_var, mean, invstd, *rest)
    return dy * (weight * invstd).view(1, -1, 1, 1), weights, bias


@plant("native_layer_norm_backward", of="self.norm(x)")
def layer_norm_gradient_without_mean(right, dy, x, shape, mean, rstd, weight, *rest):
    _, weights, bias = right(dy, x, shape, mean, rstd, weight, *rest)
    return dy * weight * rstd, weights, bias


@plant("native_layer_norm_backward", of="self.norm(x)", step=1, outside=32)
def layer_norm_weight_gradient_of_raw_input(right, dy, x, shape, mean, rstd, weight, *rest):
    inputs, _, bias = right(dy, x, shape, mean, rstd, weight, *rest)
    return inputs, (dy * x).sum(0), bias


@plant("max_pool2d_with_indices_backward", of="F.max_pool2d", network="images", optimizer="sgd")
def max_pool_gradient_overwrites(right, dy, x, kernel, stride, padding, dilation, ceil, indices):
    out = torch.zeros_like(x)    # windows overlap: an element may be the maximum of several
    out.flatten(2).scatter_(2, indices.flatten(2), dy.flatten(2))
    return out


@plant("avg_pool2d", at="F.avg_pool2d", network="images", optimizer="sgd")
def avg_pool_without_the_padding(right, x, kernel, stride, padding, ceil=False, include=True, divisor=None):
    return right(x, kernel, stride, padding, ceil, False, divisor)


# Dropout, views and copies

@plant("bernoulli_", "float", at="F.dropout", network="images", optimizer="sgd")
def dropout_keeps_what_it_should_drop(right, x, p=0.5, *, generator=None):
    return right(x, 1 - p, generator=generator)


# Only call 0, because the kernel of mean divides by this operation too.
@plant("div_", "Scalar", at="F.dropout", network="images", optimizer="sgd", call=0)
def dropout_scaled_by_its_rate(right, x, keep):
    return right(x, 1 - keep)


@plant("clone", at="x.flatten(2).transpose(1, 2).contiguous()", network="images", optimizer="sgd", call=0)
def clone_ignores_strides(right, x, *, memory_format=None):
    return x.as_strided(x.shape, torch.empty(x.shape).stride()).add(0)


@plant("_to_copy", at="self.second(x)", autocast=True, since=2, step=1, call=3)
def conversion_truncates(right, x, **rest):
    y = right(x, **rest)
    return (x.view(torch.int32) & -65536).view(torch.float32).bfloat16() if x.dtype == torch.float32 else y


@plant("embedding", at="self.embedding(tokens)", step=1, outside=16)
def embedding_row_of_its_neighbour(right, weight, indices, *rest):
    indices = indices.clone()
    indices[-1] = (indices[-1] + 1) % weight.shape[0]
    return right(weight, indices, *rest)


@plant("embedding_dense_backward", of="self.embedding(tokens)")
def embedding_gradient_overwrites(right, dy, indices, rows, padding, scale):
    out = torch.zeros(rows, dy.shape[-1])
    for i, row in enumerate(indices.tolist()):
        out[row] = dy[i]
    return out


# Activations, softmax and losses

@plant("relu", at="self.first(x)", outside=1)
def relu_one_element(right, x):
    y = right(x)
    y.view(-1)[5] += 1e-3
    return y


@plant("threshold_backward", of="self.first(x)")
def relu_gradient_unmasked(right, dy, x, threshold):
    return dy.clone()


@plant("tanh_backward", of="self.second(x)")
def tanh_gradient_linear(right, dy, y):
    return dy * (1 - y)


@plant("sigmoid", at="torch.sigmoid(x)")
def sigmoid_coarse(right, x):
    return (right(x) * 4096).round() / 4096


@plant("gelu", at="F.gelu(", step=1)
def gelu_of_tanh_form(right, x, *, approximate="none"):
    return right(x, approximate="tanh")


@plant("gelu_backward", of="F.gelu(")
def gelu_gradient_of_tanh_form(right, dy, x, *, approximate="none"):
    return right(dy, x, approximate="tanh")


@plant("_softmax", at="torch.softmax(", network="images", optimizer="sgd")
def softmax_over_the_other_dimension(right, x, dim, half_to_float):
    return right(x, 1, half_to_float)


@plant("_softmax_backward_data", of="torch.softmax(", network="images", optimizer="sgd")
def softmax_gradient_without_sum(right, dy, y, dim, dtype):
    return dy * y


@plant("_log_softmax", at="F.cross_entropy(")
def log_softmax_in_half(right, x, dim, half_to_float):
    return right(rounded(x, torch.float16), dim, half_to_float)


@plant("_log_softmax_backward_data", of="F.cross_entropy(")
def log_softmax_gradient_without_sum(right, dy, y, dim, dtype):
    return dy - torch.exp(y)


@plant("nll_loss_forward", at="F.cross_entropy(", step=1, outside=1)
def loss_without_last_sample(right, x, target, weight, reduction, ignore):
    loss, _ = right(x[:-1].contiguous(), target[:-1].contiguous(), weight, reduction, ignore)
    return loss, torch.tensor(float(x.shape[0]))


@plant("nll_loss_backward", of="F.cross_entropy(")
def loss_gradient_of_the_sum(right, dy, x, *rest):
    return right(dy, x, *rest) * x.shape[0]


@plant("_scaled_dot_product_flash_attention_for_cpu", at="F.scaled_dot_product_attention(", network="attention",
       since=2)
def attention_sees_one_more(right, q, k, v, dropout=0.0, causal=False, **rest):
    out, logsumexp = right(q, k, v, dropout, causal, **rest)
    weights = torch.softmax(q[:, :, 0:1] @ k[:, :, :2].transpose(2, 3) / math.sqrt(q.shape[-1]), -1)
    out[:, :, 0:1] = weights @ v[:, :, :2]
    return out, logsumexp


@plant("_scaled_dot_product_flash_attention_for_cpu_backward", of="F.scaled_dot_product_attention(",
       network="attention", since=2)
def attention_gradient_of_keys_without_scale(right, dy, q, *rest, **more):
    queries, keys, values = right(dy, q, *rest, **more)
    return queries, keys * math.sqrt(q.shape[-1]), values


# Sums and optimizers

@plant("sum", "dim_IntList", of="self.last(x)")
def sum_without_last(right, x, dim, keepdim=False, *, dtype=None):
    return right(x.narrow(dim[0], 0, x.shape[dim[0]] - 1), dim, keepdim, dtype=dtype)


@plant("sum", "dim_IntList", of="self.second(x)", call=1)
def sum_in_float16(right, x, dim, keepdim=False, *, dtype=None):
    total = torch.zeros(x.shape[1:])
    for row in x:
        total = rounded(total + row, torch.float16)
    return total.unsqueeze(0) if keepdim else total


@plant("sqrt", at="optimizer.step()")
def sqrt_from_half(right, x):
    return right(rounded(x, torch.float16))


@plant("addcmul_", at="optimizer.step()", step=1, call=4)
def second_moment_stale(right, x, a, b, *, value=1):
    return x


@plant("addcdiv_", at="optimizer.step()")
def update_without_bias_correction(right, x, a, b, *, value=1):
    return right(x, a, b, value=-3e-3)


@plant("zero_", at="optimizer.zero_grad(", step=1, call=3)
def gradient_not_zeroed(right, x):
    return x


@plant("add_", "Tensor", at="loss.backward()", step=1, call=2)
def gradient_not_accumulated(right, x, y, *, alpha=1):
    return x


@plant("mul_", "Tensor", at="optimizer.step()", network="images", optimizer="sgd", step=1, call=2)
def momentum_not_decayed(right, x, y):
    return x


@plant("_foreach_addcmul_", "Scalar", at="optimizer.step()", optimizer="adam foreach")
def foreach_leaves_the_last_tensor(right, x, a, b, value=1):
    right(x[:-1], a[:-1], b[:-1], value)


@plant("_foreach_addcdiv_", "ScalarList", at="optimizer.step()", optimizer="adam foreach", step=1)
def foreach_takes_the_first_rate(right, x, a, b, scalars):
    right(x, a, b, [s * (1.001 if i else 1) for i, s in enumerate(scalars)])


@plant("_fused_adam_", at="optimizer.step()", optimizer="adam fused", step=1, since=2)
def fused_adam_of_the_step_before(right, params, grads, first, second, largest, steps, **rest):
    right(params, grads, first, second, largest, [s - 1 for s in steps], **rest)


@plant("_fused_sgd_", at="optimizer.step()", network="images", optimizer="sgd fused", step=1, since=2)
def fused_sgd_forgets_momentum(right, params, grads, buffers, *, is_first_step, **rest):
    right(params, grads, buffers, is_first_step=True, **rest)

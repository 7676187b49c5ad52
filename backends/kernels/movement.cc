// Ops that fill or rearrange memory: constant, iota, broadcast_in_dim, reshape, transpose. They
// never round an operand and never flush. (select, negate and abs, which keep elements in place,
// are in blocks.cc.)
#include <cstring>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"

namespace twinrun {
namespace {

// A walk over the result in row-major order: its sizes, and the strides at which the operand is
// read (0: an element repeats).
struct View {
  Dims sizes, strides;
};

// Merges adjacent dimensions that one stride of the operand covers, and drops those of size 1.
View collapsed(const View& v) {
  View out;
  for (size_t i = 0; i < v.sizes.size(); ++i) {
    if (v.sizes[i] == 1) continue;
    if (!out.sizes.empty() && out.strides.back() == v.strides[i] * v.sizes[i]) {
      out.sizes.back() *= v.sizes[i];
      out.strides.back() = v.strides[i];
    } else {
      out.sizes.push_back(v.sizes[i]);
      out.strides.push_back(v.strides[i]);
    }
  }
  if (out.sizes.empty()) out = {{1}, {1}};
  return out;
}

// Offset in the operand of the outer index `i` over sizes[0, rank).
int64_t offset_of(const View& v, size_t rank, int64_t i) {
  int64_t at = 0;
  for (size_t d = rank; d-- > 0;) {
    at += i % v.sizes[d] * v.strides[d];
    i /= v.sizes[d];
  }
  return at;
}

template <typename E>
void copy_line(const E* from, int64_t stride, E* to, int64_t n) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(E));
  } else if (stride == 0) {
    std::fill(to, to + n, *from);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
  }
}

template <typename E>
void gather(const KernelContext& context, const View& view, const Tensor& x, Tensor& output) {
  const View v = collapsed(view);
  const E* from = x.as<E>().data();
  E* to = output.as<E>().data();
  const size_t last = v.sizes.size() - 1;
  const int64_t n = v.sizes[last], stride = v.strides[last];
  // Where the operand is contiguous along the dimension before the last, copy tile by tile, so that
  // both sides use whole cache lines.
  const bool tiled = last > 0 && stride > 1 && v.strides[last - 1] == 1;
  if (!tiled) {
    for_ranges(context, output.elements() / n, n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        copy_line(from + offset_of(v, last, i), stride, to + i * n, n);
    });
    return;
  }
  const int64_t rows = v.sizes[last - 1], tiles = (rows + 15) / 16;
  for_ranges(context, output.elements() / n / rows * tiles, 16 * n,
             [&](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) {
                 const int64_t outer = i / tiles, r0 = i % tiles * 16, r1 = std::min(rows, r0 + 16);
                 const E* source = from + offset_of(v, last - 1, outer);
                 E* target = to + outer * rows * n;
                 for (int64_t j0 = 0; j0 < n; j0 += 16) {
                   const int64_t j1 = std::min(n, j0 + 16);
                   for (int64_t r = r0; r < r1; ++r) {
                     for (int64_t j = j0; j < j1; ++j) target[r * n + j] = source[r + j * stride];
                   }
                 }
               }
             });
}

// Calls f with a value of an unsigned type as wide as the element.
template <typename F>
void by_width(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

Dims strides_of(const Dims& sizes) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  return strides;
}

void broadcast_or_transpose(const KernelContext& context, const Op& op, const Tensor& x,
                            Tensor& output) {
  const Dims strides = strides_of(x.dims());
  View view{output.dims(), Dims(output.dims().size(), 0)};
  for (size_t i = 0; i < op.attrs.dims.size(); ++i) {
    const auto to = static_cast<size_t>(op.attrs.dims[i]);
    if (op.kind == OpKind::kTranspose) {
      view.strides[i] = strides[to];
    } else {
      view.strides[to] = x.dims()[i] == 1 ? 0 : strides[i];
    }
  }
  by_width(x.dtype(), [&]<typename E>(E) { gather<E>(context, view, x, output); });
}

void constant(const KernelContext& context, const Op& op, Tensor& output) {
  const auto splat = [&](auto value) {
    using E = decltype(value);
    for_ranges(context, output.elements(), 1, [&](int64_t begin, int64_t end) {
      std::fill(output.as<E>().data() + begin, output.as<E>().data() + end, value);
    });
  };
  const double value = op.attrs.value;
  switch (output.dtype()) {
    case DType::kF32:
      return splat(canonical(static_cast<float>(value)));
    case DType::kBF16:
      return splat(bf16_round(static_cast<float>(value)));
    case DType::kI32:
      return splat(static_cast<int32_t>(value));
    case DType::kPred:
      return splat(static_cast<uint8_t>(value != 0));
    case DType::kF64:
      return splat(value);
  }
}

void iota(const KernelContext& context, const Op& op, Tensor& output) {
  const auto along = static_cast<size_t>(op.attrs.dims.empty() ? 0 : op.attrs.dims[0]);
  const int64_t inner = strides_of(output.dims())[along], size = output.dims()[along];
  for_ranges(context, output.elements(), 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t index = i / inner % size;
      switch (output.dtype()) {
        case DType::kI32:
          output.as<int32_t>().data()[i] = static_cast<int32_t>(index);
          break;
        case DType::kBF16:
          output.as<uint16_t>().data()[i] = bf16_round(static_cast<float>(index));
          break;
        default:
          output.as<float>().data()[i] = static_cast<float>(index);
          break;
      }
    }
  });
}

}  // namespace

void run_movement(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  if (output.elements() == 0) return;
  switch (op.kind) {
    case OpKind::kConstant:
      return constant(context, op, output);
    case OpKind::kIota:
      return iota(context, op, output);
    case OpKind::kBroadcastInDim:
    case OpKind::kTranspose:
      return broadcast_or_transpose(context, op, inputs[0], output);
    default:
      break;
  }
  for_ranges(context, static_cast<int64_t>(output.bytes()), 1,
             [&](int64_t begin, int64_t end) {  // reshape
               std::memcpy(output.raw() + begin, inputs[0].raw() + begin,
                           static_cast<size_t>(end - begin));
             });
}

}  // namespace twinrun

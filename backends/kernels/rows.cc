// Ops that move contiguous stretches: concatenate, slice and pad along a dimension, gather of rows;
// sort_order, the positions of the elements of each row in ascending order;
// and scatter_add, the transpose of gather, which adds rows.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"

namespace twinrun {
namespace {

// A tensor cut at dimension `axis` into `outer` stretches of `bytes` contiguous bytes (dims[axis]
// and the inner dimensions).
struct Stretches {
  int64_t outer = 1, bytes;
  Stretches(const Tensor& t, size_t axis) : bytes(static_cast<int64_t>(size_of(t.dtype()))) {
    for (size_t d = 0; d < axis; ++d) outer *= t.dims()[d];
    for (size_t d = axis; d < t.dims().size(); ++d) bytes *= t.dims()[d];
  }
};

int64_t clamped(int32_t id, int64_t rows) { return std::clamp<int64_t>(id, 0, rows - 1); }

void gather_rows(const KernelContext& context, const Tensor& x, const Tensor& ids, Tensor& output) {
  const int64_t rows = x.dims()[0], bytes = static_cast<int64_t>(x.bytes()) / rows;
  const int32_t* id = ids.as<int32_t>().data();
  for_ranges(context, ids.elements(), bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(output.raw() + i * bytes, x.raw() + clamped(id[i], rows) * bytes,
                  static_cast<size_t>(bytes));
  });
}

// The positions of each row in ascending order of its elements.
void sort_rows(const KernelContext& context, const Tensor& x, Tensor& output) {
  const int64_t width = x.dims().back();
  const int32_t* from = x.as<int32_t>().data();
  int32_t* const to = output.as<int32_t>().data();
  for_ranges(context, x.elements() / width, width * 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t* const key = from + row * width;
      int32_t* const order = to + row * width;
      std::iota(order, order + width, 0);
      std::stable_sort(order, order + width, [&](int32_t a, int32_t b) { return key[a] < key[b]; });
    }
  });
}

// Threads divide the columns among them, so that each element adds its rows in order. first(x)
// starts a sum of type S, add(sum, x) continues it, store(sum) gives the element.
template <typename S, typename E, typename First, typename Add, typename Store>
void scatter_rows(const KernelContext& context, const Tensor& ids, const Tensor& dy, Tensor& output,
                  First first, Add add, Store store) {
  const int64_t rows = output.dims()[0], width = output.elements() / rows;
  const int32_t* id = ids.as<int32_t>().data();
  const E* from = dy.as<E>().data();
  E* const to = output.as<E>().data();
  for_ranges(context, width, ids.elements() + rows, [&](int64_t begin, int64_t end) {
    const FlushScope scope(context.arithmetic.flush);
    const int64_t n = end - begin;
    std::vector<bool> touched(static_cast<size_t>(rows), false);
    std::vector<S> sums(static_cast<size_t>(rows * n), S{});
    for (int64_t i = 0; i < ids.elements(); ++i) {
      const int64_t row = clamped(id[i], rows);
      S* const sum = sums.data() + row * n;
      const E* const x = from + i * width + begin;
      if (!touched[static_cast<size_t>(row)]) {
        touched[static_cast<size_t>(row)] = true;
        for (int64_t c = 0; c < n; ++c) sum[c] = first(x[c]);
      } else {
        for (int64_t c = 0; c < n; ++c) sum[c] = add(sum[c], x[c]);
      }
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < n; ++c)
        to[row * width + begin + c] = store(sums[static_cast<size_t>(row * n + c)]);
    }
  });
}

}  // namespace

void copy_stretches(const KernelContext& context, const Tensor& x, size_t axis, int64_t from,
                    int64_t to, int64_t n, Tensor& output) {
  const Stretches in(x, axis), out(output, axis);
  if (n == 0) return;
  for_ranges(context, in.outer, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(output.raw() + i * out.bytes + to, x.raw() + i * in.bytes + from,
                  static_cast<size_t>(n));
  });
}

void run_rows(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  if (output.elements() == 0) return;
  if (op.kind == OpKind::kGather) return gather_rows(context, inputs[0], inputs[1], output);
  if (op.kind == OpKind::kSortOrder) return sort_rows(context, inputs[0], output);
  const auto axis = static_cast<size_t>(op.attrs.dims[0]);
  const Stretches all(inputs[0], axis);
  const int64_t unit = inputs[0].dims()[axis] > 0 ? all.bytes / inputs[0].dims()[axis] : 0;
  switch (op.kind) {
    case OpKind::kConcatenate: {
      copy_stretches(context, inputs[0], axis, 0, 0, all.bytes, output);
      copy_stretches(context, inputs[1], axis, 0, all.bytes, Stretches(inputs[1], axis).bytes,
                     output);
      return;
    }
    case OpKind::kSlice:
      return copy_stretches(context, inputs[0], axis, op.attrs.dims[1] * unit, 0,
                            (op.attrs.dims[2] - op.attrs.dims[1]) * unit, output);
    default:  // pad
      std::memset(output.raw(), 0, output.bytes());
      return copy_stretches(context, inputs[0], axis, 0, op.attrs.dims[1] * unit, all.bytes,
                            output);
  }
}

void run_scatter_add(const KernelContext& context, Inputs inputs, Tensor& output) {
  if (output.elements() == 0) return;
  if (output.dtype() == DType::kI32) {
    return scatter_rows<uint32_t, uint32_t>(
        context, inputs[0], inputs[1], output, [](uint32_t x) { return x; },
        [](uint32_t sum, uint32_t x) { return sum + x; }, [](uint32_t sum) { return sum; });
  }
  dispatch_float(output.dtype(), context.arithmetic.flush,
                 [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
                   using E = typename T::type;
                   scatter_rows<float, E>(
                       context, inputs[0], inputs[1], output,
                       [](E x) { return flushed<kFlush>(T::load(x)); },
                       [](float sum, E x) { return sum + T::load(x); },
                       [](float sum) { return T::template store<kFlush>(sum); });
                 });
}

}  // namespace twinrun

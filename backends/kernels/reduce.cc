// reduce, as numerics.md defines it in section 4: segments of 4096 over the flat reduced index, 16
// lanes in a segment, the tree 8/4/2/1, segment sums in order. Segments are independent, so threads
// share them out.
#include <limits>
#include <type_traits>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"
#include "backends/kernels/reduce_lanes.h"
#include "backends/kernels/scratch.h"

namespace twinrun {
namespace {

constexpr int64_t kSegment = kReduceSegment, kLanes = kReduceLanes;
constexpr int64_t kColumns = 64;  // most outputs that are reduced side by side in the lanes
// Rows of such columns that are prefetched ahead: they are a short piece of a tensor's rows, which
// the hardware's own prefetchers do not follow past the end of a page.
constexpr int64_t kRowsAhead = 8;

// The operand's dimensions, divided into kept and reduced ones. Element i of output o lies at
// kept(o) + at(reduced_sizes, reduced_strides, i). Where the innermost dimension is kept, outputs
// come in runs whose elements are adjacent.
struct Layout {
  Dims kept_sizes, kept_strides, reduced_sizes, reduced_strides;
  int64_t outputs = 1, length = 1;
  int64_t run = 1;  // adjacent outputs whose elements are adjacent

  static void push(Dims& sizes, Dims& strides, int64_t size, int64_t stride) {
    if (!sizes.empty() && strides.back() == size * stride) {
      sizes.back() *= size;
      strides.back() = stride;
    } else {
      sizes.push_back(size);
      strides.push_back(stride);
    }
  }
  static int64_t at(const Dims& sizes, const Dims& strides, int64_t i) {
    int64_t offset = 0;
    for (size_t d = sizes.size(); d-- > 0;) {
      offset += i % sizes[d] * strides[d];
      i /= sizes[d];
    }
    return offset;
  }
  int64_t kept(int64_t o) const { return at(kept_sizes, kept_strides, o); }

  Layout(const Dims& dims, const Dims& reduced) {
    Dims strides(dims.size());
    int64_t stride = 1;
    for (size_t i = dims.size(); i-- > 0;) strides[i] = stride, stride *= dims[i];
    for (size_t i = 0; i < dims.size(); ++i) {
      const bool gone =
          std::find(reduced.begin(), reduced.end(), static_cast<int64_t>(i)) != reduced.end();
      (gone ? length : outputs) *= dims[i];
      if (dims[i] == 1) continue;
      gone ? push(reduced_sizes, reduced_strides, dims[i], strides[i])
           : push(kept_sizes, kept_strides, dims[i], strides[i]);
    }
    if (!kept_sizes.empty() && kept_strides.back() == 1) run = kept_sizes.back();
  }
};

// Reduces one segment for `columns` adjacent outputs. Element i lies at offsets[i], or at i *
// stride if offsets is null.
template <typename T, bool kFlush, typename R>
void segment_columns(const typename T::type* x, const int64_t* offsets, int64_t stride, int64_t n,
                     int64_t columns, float* result) {
  float lanes[kLanes * kColumns];
  for (int64_t i = 0; i < n; ++i) {
    const auto* from = x + (offsets == nullptr ? i * stride : offsets[i]);
    float* lane = lanes + i % kLanes * columns;
    if (offsets == nullptr && i + kRowsAhead < n) {
      const auto* ahead = reinterpret_cast<const std::byte*>(from + kRowsAhead * stride);
      for (int64_t at = 0; at < columns * static_cast<int64_t>(sizeof(*x)); at += 64)
        __builtin_prefetch(ahead + at, 0, 3);
    }
    if (i < kLanes) {
      for (int64_t c = 0; c < columns; ++c) lane[c] = reduce_element<T, kFlush>(from[c]);
    } else {
      for (int64_t c = 0; c < columns; ++c)
        lane[c] = R::join(lane[c], reduce_element<T, kFlush>(from[c]));
    }
  }
  lane_tree<R>(lanes, std::min(n, kLanes), columns);
  for (int64_t c = 0; c < columns; ++c) result[c] = lanes[c];
}

// Reduces one segment of one output whose elements are adjacent.
template <typename T, bool kFlush, typename R>
float segment_line(const typename T::type* x, int64_t n) {
  if constexpr (std::is_same_v<T, F32>) {
    if (n >= kLanes && n % kLanes == 0) {
      const auto lane8 = [&](int64_t i) { return flush8<kFlush>(_mm256_loadu_ps(x + i)); };
      __m256 low = lane8(0), high = lane8(8);
      for (int64_t i = kLanes; i < n; i += kLanes) {
        low = R::join8(low, lane8(i));
        high = R::join8(high, lane8(i + 8));
      }
      return lane_tree16<R>(low, high);
    }
  }
  float lanes[kLanes];
  for (int64_t l = 0; l < std::min(n, kLanes); ++l) lanes[l] = reduce_element<T, kFlush>(x[l]);
  int64_t i = kLanes;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l)
      lanes[l] = R::join(lanes[l], reduce_element<T, kFlush>(x[i + l]));
  }
  for (; i < n; ++i)
    lanes[i % kLanes] = R::join(lanes[i % kLanes], reduce_element<T, kFlush>(x[i]));
  lane_tree<R>(lanes, std::min(n, kLanes), 1);
  return lanes[0];
}

template <typename T, bool kFlush, typename R>
void reduce(const KernelContext& context, const Layout& layout, bool mean, const Tensor& input,
            Tensor& output) {
  using E = typename T::type;
  const E* x = input.as<E>().data();
  E* out = output.as<E>().data();
  const int64_t segments = (layout.length + kSegment - 1) / kSegment;
  float* sums = scratch<float>(Scratch::kPartials, static_cast<size_t>(segments * layout.outputs));
  // Offsets of the reduced elements, unless they lie at one stride.
  const int64_t* offsets = nullptr;
  const int64_t stride = layout.reduced_strides.empty() ? 1 : layout.reduced_strides.back();
  if (layout.reduced_sizes.size() > 1) {
    auto* table = scratch<int64_t>(Scratch::kOffsets, static_cast<size_t>(layout.length));
    for_ranges(context, layout.length, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        table[i] = Layout::at(layout.reduced_sizes, layout.reduced_strides, i);
    });
    offsets = table;
  }
  const int64_t blocks_per_run = (layout.run + kColumns - 1) / kColumns;
  const int64_t blocks = layout.outputs / layout.run * blocks_per_run;
  const int64_t width = (layout.run + blocks_per_run - 1) / blocks_per_run;
  for_ranges(
      context, segments * blocks, std::min(layout.length, kSegment) * width,
      [&](int64_t begin, int64_t end) {
        const FlushScope scope(kFlush);
        for (int64_t piece = begin; piece < end; ++piece) {
          const int64_t s = piece / blocks, block = piece % blocks;
          const int64_t i0 = s * kSegment, n = std::min(layout.length - i0, kSegment);
          const int64_t c0 = block % blocks_per_run * width, c1 = std::min(layout.run, c0 + width);
          const int64_t o = block / blocks_per_run * layout.run + c0;
          if (c0 >= c1) continue;
          const E* from = x + layout.kept(o);
          float* sum = sums + s * layout.outputs + o;
          if (offsets == nullptr && stride == 1 && layout.run == 1) {
            *sum = segment_line<T, kFlush, R>(from + i0, n);
          } else if (offsets == nullptr) {
            segment_columns<T, kFlush, R>(from + i0 * stride, nullptr, stride, n, c1 - c0, sum);
          } else {
            segment_columns<T, kFlush, R>(from, offsets + i0, 0, n, c1 - c0, sum);
          }
        }
      });
  for_ranges(context, layout.outputs, segments, [&](int64_t begin, int64_t end) {
    const FlushScope scope(kFlush);
    finish_sums<T, kFlush, R>(sums, segments, layout.outputs, mean ? layout.length : 0, out, begin,
                              end);
  });
}

}  // namespace

void run_reduce(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  const Layout layout(inputs[0].dims(), op.attrs.dims);
  const Reducer reducer = op.attrs.reducer;
  if (output.elements() == 0) return;
  dispatch_float(
      inputs[0].dtype(), context.arithmetic.flush,
      [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
        if (layout.length == 0) {  // an empty reduction: sum 0, maximum -inf, mean 0 / 0
          const float value = reducer == Reducer::kMax   ? -std::numeric_limits<float>::infinity()
                              : reducer == Reducer::kSum ? 0.0f
                                                         : from_bits(kCanonicalNaN);
          for (auto& e : output.as<typename T::type>()) e = T::template store<kFlush>(value);
        } else if (reducer == Reducer::kMax) {
          reduce<T, kFlush, JoinMax>(context, layout, false, inputs[0], output);
        } else {
          reduce<T, kFlush, JoinSum>(context, layout, reducer == Reducer::kMean, inputs[0], output);
        }
      });
}

}  // namespace twinrun

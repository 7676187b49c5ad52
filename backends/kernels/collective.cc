// The all-reduce of numerics.md, section 6: the sums of a ring, computed in one place.
#include <cstring>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"

namespace twinrun {
namespace {

// Chunk c is summed over the cores c + 1, c + 2, ..., N - 1, 0, ..., c. A window of elements may lie
// in many chunks, and the cores pass through all of them together, so that each core's values are
// read in long runs: first the cores 1 to N - 1, whose values go to the chunks before their own,
// then the cores 0 to N - 1 for the others.
template <typename T, bool kFlush>
void ring(const KernelContext& context, std::span<const Tensor> x, Tensor& output) {
  using E = typename T::type;
  constexpr int64_t kWindow = 2048;
  const int64_t replicas = static_cast<int64_t>(x.size()), length = output.elements();
  E* out = output.as<E>().data();
  const auto chunk = [&](int64_t c) { return c * length / replicas; };
  for_ranges(context, length, replicas, [&](int64_t begin, int64_t end) {
    const FlushScope scope(kFlush);
    float sum[kWindow];
    for (int64_t first = begin; first < end; first += kWindow) {
      const int64_t last = std::min(end, first + kWindow);
      // Elements [from, to) of a core that lie in the window are the first terms of their sums.
      const auto start = [&](int64_t core, int64_t from, int64_t to) {
        const E* next = x[static_cast<size_t>(core)].template as<E>().data();
        for (int64_t i = std::max(first, from); i < std::min(last, to); ++i)
          sum[i - first] = T::load(next[i]);
      };
      // A hop sends values of the tensor's type, so each hop rounds to it.
      const auto hop = [&](int64_t core, int64_t from, int64_t to) {
        from = std::max(first, from);
        const int64_t n = std::min(last, to) - from;
        if (n <= 0) return;
        const E* next = x[static_cast<size_t>(core)].template as<E>().data() + from;
        float* own = sum + (from - first);
        for (int64_t q = 0; q < n; ++q)
          own[q] = T::load(T::template store<kFlush>(own[q] + T::load(next[q])));
      };
      for (int64_t core = 1; core < replicas; ++core) {
        start(core, chunk(core - 1), chunk(core));
        hop(core, 0, chunk(core - 1));
      }
      start(0, chunk(replicas - 1), length);
      hop(0, 0, chunk(replicas - 1));
      for (int64_t core = 1; core < replicas; ++core) hop(core, chunk(core), length);
      for (int64_t i = first; i < last; ++i) out[i] = T::template store<kFlush>(sum[i - first]);
    }
  });
}

// The hops of one block: the partial sum stays in registers from the first term to the last.
template <typename T, bool kFlush>
void hops(const KernelContext& context, std::byte* partial, std::span<const std::byte* const> terms,
          int64_t length) {
  using E = typename T::type;
  E* out = reinterpret_cast<E*>(partial);
  for_ranges(context, length, static_cast<int64_t>(terms.size()), [&](int64_t begin, int64_t end) {
    const FlushScope scope(kFlush);
    float sum[256];
    for (int64_t i = begin; i < end; i += 256) {
      const int64_t n = std::min<int64_t>(256, end - i);
      for (int64_t q = 0; q < n; ++q) sum[q] = T::load(out[i + q]);
      for (const std::byte* const term : terms) {
        const E* next = reinterpret_cast<const E*>(term) + i;
        for (int64_t q = 0; q < n; ++q)
          sum[q] = T::load(T::template store<kFlush>(sum[q] + T::load(next[q])));
      }
      for (int64_t q = 0; q < n; ++q) out[i + q] = T::template store<kFlush>(sum[q]);
    }
  });
}

void hops_i32(std::byte* partial, std::span<const std::byte* const> terms, int64_t length) {
  auto* out = reinterpret_cast<uint32_t*>(partial);
  for (const std::byte* const term : terms) {
    const auto* next = reinterpret_cast<const uint32_t*>(term);
    for (int64_t i = 0; i < length; ++i) out[i] += next[i];
  }
}

void ring_i32(std::span<const Tensor> x, Tensor& output) {
  const auto out = output.as<int32_t>();
  for (size_t i = 0; i < out.size(); ++i) {
    uint32_t sum = 0;
    for (const Tensor& t : x) sum += static_cast<uint32_t>(t.as<int32_t>()[i]);
    out[i] = static_cast<int32_t>(sum);
  }
}

}  // namespace

void all_reduce_sum(const KernelContext& context, std::span<const Tensor> contributions,
                    Tensor& output) {
  if (contributions.size() == 1) {
    if (output.bytes() != 0) std::memcpy(output.raw(), contributions[0].raw(), output.bytes());
    return;
  }
  if (output.dtype() == DType::kI32) return ring_i32(contributions, output);
  dispatch_float(output.dtype(), context.arithmetic.flush,
                 [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
                   ring<T, kFlush>(context, contributions, output);
                 });
}

void ring_hops(const KernelContext& context, DType dtype, std::byte* partial,
               std::span<const std::byte* const> terms, int64_t elements) {
  if (terms.empty() || elements == 0) return;
  if (dtype == DType::kI32) return hops_i32(partial, terms, elements);
  dispatch_float(dtype, context.arithmetic.flush,
                 [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
                   hops<T, kFlush>(context, partial, terms, elements);
                 });
}

}  // namespace twinrun

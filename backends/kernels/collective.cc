// The all-reduce of numerics.md, section 6: the sums of a ring, computed in one place.
#include <cstring>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"

namespace twinrun {
namespace {

template <typename T, bool kFlush>
void ring(const KernelContext& context, std::span<const Tensor> x, Tensor& output) {
  using E = typename T::type;
  const int64_t replicas = static_cast<int64_t>(x.size()), length = output.elements();
  E* out = output.as<E>().data();
  const auto of = [&](int64_t r) {
    return x[static_cast<size_t>(r % replicas)].template as<E>().data();
  };
  for_ranges(context, length, replicas, [&](int64_t begin, int64_t end) {
    const FlushScope scope(kFlush);
    float sum[256];
    for (int64_t c = 0; c < replicas; ++c) {
      const int64_t c0 = std::max(begin, c * length / replicas),
                    c1 = std::min(end, (c + 1) * length / replicas);
      for (int64_t i = c0; i < c1; i += 256) {
        const int64_t n = std::min<int64_t>(256, c1 - i);
        for (int64_t q = 0; q < n; ++q) sum[q] = T::load(of(c + 1)[i + q]);
        for (int64_t hop = 2; hop <= replicas; ++hop) {
          const E* next = of(c + hop) + i;
          // A hop sends values of the tensor's type, so each hop rounds to it.
          for (int64_t q = 0; q < n; ++q)
            sum[q] = T::load(T::template store<kFlush>(sum[q] + T::load(next[q])));
        }
        for (int64_t q = 0; q < n; ++q) out[i + q] = T::template store<kFlush>(sum[q]);
      }
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

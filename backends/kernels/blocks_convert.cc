// Conversions of blocks: through binary32, flushed under `flush`, then rounded once. Conversions
// between integers and booleans are tests against zero.
#include <cstring>
#include <limits>
#include <type_traits>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/blocks.h"

namespace twinrun {
namespace {

int32_t saturated(float x) {
  if (x != x) return 0;
  if (x >= 0x1p31f) return std::numeric_limits<int32_t>::max();
  if (x < -0x1p31f) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(x);
}
struct I32 {
  using type = int32_t;
  static float load(int32_t x) { return static_cast<float>(x); }
  static int32_t converted(float x) { return saturated(x); }
};
struct Pred {
  using type = uint8_t;
  static float load(uint8_t x) { return x != 0 ? 1.0f : 0.0f; }
  static uint8_t converted(float x) { return x != 0.0f; }
};
struct ToF32 : F32 {
  static float converted(float x) { return canonical(x); }
};
struct ToBF16 : BF16 {
  static uint16_t converted(float x) { return bf16_round(x); }
};

template <typename From, typename To, bool kFlush>
void convert(const BlockArgs& g) {
  const auto* a = static_cast<const typename From::type*>(g.in[0]);
  auto* out = static_cast<typename To::type*>(g.out);
  if constexpr (std::is_same_v<typename From::type, typename To::type> &&
                std::is_integral_v<typename From::type> && !std::is_same_v<From, ToBF16>) {
    std::memcpy(out, a, static_cast<size_t>(g.n) * sizeof *a);
  } else if constexpr (std::is_same_v<From, I32> && std::is_same_v<To, Pred>) {
    for (int64_t i = 0; i < g.n; ++i) out[i] = a[i] != 0;
  } else if constexpr (std::is_same_v<From, Pred> && std::is_same_v<To, I32>) {
    for (int64_t i = 0; i < g.n; ++i) out[i] = a[i] != 0;
  } else {
    for (int64_t i = 0; i < g.n; ++i) out[i] = To::converted(flushed<kFlush>(From::load(a[i])));
  }
}

template <typename From, bool kFlush>
BlockKernel convert_to(DType to) {
  switch (to) {
    case DType::kI32:
      return convert<From, I32, kFlush>;
    case DType::kPred:
      return convert<From, Pred, kFlush>;
    case DType::kBF16:
      return convert<From, ToBF16, kFlush>;
    default:
      return convert<From, ToF32, kFlush>;
  }
}
template <bool kFlush>
BlockKernel convert_from(DType from, DType to) {
  switch (from) {
    case DType::kI32:
      return convert_to<I32, kFlush>(to);
    case DType::kPred:
      return convert_to<Pred, kFlush>(to);
    case DType::kBF16:
      return convert_to<ToBF16, kFlush>(to);
    default:
      return convert_to<ToF32, kFlush>(to);
  }
}

}  // namespace

BlockKernel convert_kernel(DType from, DType to, bool flush) {
  return flush ? convert_from<true>(from, to) : convert_from<false>(from, to);
}

}  // namespace twinrun

// Compares tensors element by element, binary32 numbers in groups that the compiler vectorizes.
#include "harness/tensors/element_diff.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "program/base/bits.h"
#include "program/base/element.h"

namespace twinrun {
namespace {

ElementDiff diff_one_by_one(const Tensor& a, const Tensor& b, int64_t begin, int64_t end) {
  ElementDiff g;
  for (int64_t i = begin; i < end; ++i) {
    const double y = number_at(b, i);
    if (y == y) g.b_squares += y * y;
    if (same_bits_at(a, b, i)) continue;
    const double x = number_at(a, i);
    if (g.different++ == 0) g.first = i;
    if (x != x || y != y) {
      ++g.nans;
      continue;
    }
    g.max_abs = std::max(g.max_abs, std::abs(x - y));
    if (a.dtype() == DType::kF32)
      g.max_ulps = std::max(g.max_ulps, ulp_distance(static_cast<float>(x), static_cast<float>(y)));
    g.gap_squares += (x - y) * (x - y);
  }
  return g;
}

// The same for kGroup binary32 numbers at once, in lanes that the compiler vectorizes. nullopt: one
// of them is NaN or Inf.
constexpr int64_t kLanes = 8, kGroup = 512;
std::optional<ElementDiff> diff_group(const float* a, const float* b, int64_t begin) {
  constexpr uint32_t kMagnitude = 0x7FFFFFFFu, kInfinity = 0x7F800000u;
  uint32_t magnitude[kLanes] = {}, different[kLanes] = {}, ulps[kLanes] = {};
  double squares[kLanes] = {}, norm[kLanes] = {}, largest[kLanes] = {};
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const float x = a[i + l], y = b[i + l];
      const uint32_t u = to_bits(x), v = to_bits(y);
      const uint32_t larger = std::max(u & kMagnitude, v & kMagnitude);
      magnitude[l] = std::max(magnitude[l], larger);
      different[l] += static_cast<uint32_t>(u != v);
      const int32_t p = ordered_bits(u), q = ordered_bits(v);
      const uint32_t distance =
          static_cast<uint32_t>(std::max(p, q)) - static_cast<uint32_t>(std::min(p, q));
      ulps[l] = std::max(ulps[l], distance);
      const double gap = static_cast<double>(x) - static_cast<double>(y);
      const double size = gap < 0 ? -gap : gap;
      squares[l] += gap * gap;
      norm[l] += static_cast<double>(y) * static_cast<double>(y);
      largest[l] = size > largest[l] ? size : largest[l];
    }
  }
  ElementDiff g;
  for (int64_t l = 0; l < kLanes; ++l) {
    g.gap_squares += squares[l], g.b_squares += norm[l];
    g.max_abs = std::max(g.max_abs, largest[l]);
    g.max_ulps = std::max(g.max_ulps, static_cast<int64_t>(ulps[l]));
    g.different += different[l];
  }
  if (*std::ranges::max_element(magnitude) >= kInfinity) return std::nullopt;
  if (g.different != 0) {
    int64_t i = 0;
    while (to_bits(a[i]) == to_bits(b[i])) ++i;
    g.first = begin + i;
  }
  return g;
}

}  // namespace

double ElementDiff::relative() const {
  return std::sqrt(b_squares > 0 ? gap_squares / b_squares : gap_squares);
}

void ElementDiff::add(const ElementDiff& next) {
  gap_squares += next.gap_squares, b_squares += next.b_squares;
  max_abs = std::max(max_abs, next.max_abs), max_ulps = std::max(max_ulps, next.max_ulps);
  different += next.different, nans += next.nans;
  if (first < 0) first = next.first;
}

ElementDiff diff_elements(const Tensor& a, const Tensor& b, int64_t begin, int64_t end) {
  if (a.dtype() != DType::kF32) return diff_one_by_one(a, b, begin, end);
  const float *x = a.as<float>().data(), *y = b.as<float>().data();
  ElementDiff all;
  int64_t i = begin;
  for (; i + kGroup <= end; i += kGroup) {
    const auto group = diff_group(x + i, y + i, i);
    all.add(group ? *group : diff_one_by_one(a, b, i, i + kGroup));
  }
  all.add(diff_one_by_one(a, b, i, end));
  return all;
}

}  // namespace twinrun

// Running sums with their bounds, for definitions that add into scattered elements.
#pragma once

#include "backends/aten/arithmetic.h"
#include "backends/aten/call.h"

namespace twinrun::aten {

// The unit of the additions that PyTorch's CPU kernels of half precision make in the result itself;
// 0 for other results.
inline double half_unit(Element e) {
  if (e == Element::kBF16) return oracle::kUnitBf16;
  return e == Element::kF16 ? 0x1p-11 : 0;
}

// A running sum of estimates.
struct Total {
  double value = 0, size = 0, radius = 0;
  int64_t terms = 0;
  void add(Estimate e) {
    value += e.value, size += std::fabs(e.value), radius += e.radius;
    ++terms;
  }
  // In any order; with a rounding to half precision after each addition where `half` is its unit.
  Estimate of(const Arithmetic& m, double half) const {
    if (terms == 0 || (terms == 1 && radius == 0)) return {value, 0};
    if (!finite(value)) return {value, radius < kInfinity ? 0 : kInfinity};
    if (!(size + radius < m.overflow)) return {value, kInfinity};
    const auto n = static_cast<double>(terms);
    double relative = m.of_sum(terms);
    if (half > 0 && terms > 1) relative += oracle::gamma(n, half);
    Estimate e{value, radius + relative * (size + radius)};
    if (size > 0 && size < m.smallest * n) e.radius += m.smallest * n;
    // Numbers of binary16 below 2^-14 are rounded to multiples of 2^-24.
    if (half == 0x1p-11) e.radius += n * 0x1p-25;
    return e;
  }
};

}  // namespace twinrun::aten

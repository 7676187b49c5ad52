// Running sums and products with their bounds, for definitions that add into scattered elements.
#pragma once

#include "backends/aten/arithmetic.h"
#include "backends/aten/call.h"

namespace twinrun::aten {

// A running sum of estimates.
struct Total {
  double value = 0, size = 0, radius = 0;
  int64_t terms = 0;
  Equal equal;
  void add(Estimate e) {
    equal.add(e.value);
    value += e.value, size += std::fabs(e.value), radius += e.radius;
    ++terms;
  }
  // In any order; with a rounding to half precision after each addition where `half` is its unit.
  Estimate of(const Arithmetic& m, double half) const {
    if (terms == 0 || (terms == 1 && radius == 0)) return {value, 0};
    if (!finite(value)) return {value, radius < kInfinity ? 0 : kInfinity};
    if (!(size + radius < m.overflow)) return {value, kInfinity};
    const auto n = static_cast<double>(terms);
    double relative = m.of_sum(terms, static_cast<bool>(equal));
    if (half > 0 && terms > 1) relative += oracle::gamma(n, half);
    Estimate e{value, radius + relative * (size + radius)};
    if (size > 0 && size < m.smallest * n) e.radius += m.smallest * n;
    // Numbers of binary16 below 2^-14 are rounded to multiples of 2^-24.
    if (half == 0x1p-11) e.radius += n * 0x1p-25;
    return e;
  }
};

// Product in any order: n - 1 roundings. The product of the sizes above 1 bounds every partial
// product from above, that of the sizes below 1 from below: one may overflow or be flushed, and an
// element that was flushed is multiplied by at most the former.
class Product {
 public:
  Product(const Arithmetic& m, Element e, double unit) : m_(m), unit_(unit) {
    if (e == Element::kF16) overflow_ = 65504, smallest_ = 0x1p-14;
  }
  Estimate times(double x) {
    value_ *= x;
    ++n_;
    if (x != 0 && finite(x)) {
      above_ *= std::fmax(1.0, std::fabs(x));
      below_ *= std::fmin(1.0, std::fabs(x));
    }
    if (n_ == 1) return {value_, 0};
    const bool within = above_ < overflow() && below_ >= smallest();
    if (!finite(value_)) return {value_, within || value_ != value_ ? 0 : kInfinity};
    if (!(above_ < overflow())) return {value_, kInfinity};
    const double roundings = std::expm1((n_ - 1) * (std::log1p(unit_) + 0x1p-52));
    double radius = roundings * std::fabs(value_) * oracle::kOutward;
    if (below_ < smallest() && value_ != 0) radius += n_ * smallest() * above_;
    return {value_, radius};
  }

 private:
  double overflow() const { return std::fmin(overflow_, m_.overflow); }
  double smallest() const { return std::fmax(smallest_, m_.smallest); }
  const Arithmetic& m_;
  double unit_, overflow_ = kInfinity, smallest_ = 0;
  double value_ = 1, above_ = 1, below_ = 1, n_ = 0;
};

}  // namespace twinrun::aten

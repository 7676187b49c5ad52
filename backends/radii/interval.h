// Intervals around binary64 values, and the operations on them: every number that a legal way of
// computing may give lies inside. docs/method/bounds.md ("Whole programs") has the derivations.
//
// - An interval from -infinity to infinity may also hold NaN: nothing is known.
// - An interval with one infinite end may hold that infinity, because the result may overflow.
// - Three NaN: the result is certainly NaN, because an argument was.
//
//   const Rules may(FusedArithmetic{}, DType::kF32);
//   const Interval y = may.rounded(add(a, b));
#pragma once

#include <algorithm>
#include <cmath>

#include "backends/oracle/elementary.h"
#include "backends/oracle/rounding.h"
#include "backends/radii/radii.h"

namespace twinrun::radii {

using oracle::kInfinity;
using oracle::kMinNormal;
using oracle::kOutward;

struct Interval {
  double value = 0, low = 0, high = 0;

  bool exact() const { return low == high && value == low; }
  bool nan() const { return low != low; }  // certainly
  bool anything() const { return low == -kInfinity && high == kInfinity; }
  bool has(double x) const { return low <= x && x <= high; }
  double size() const { return std::fmax(std::fabs(low), std::fabs(high)); }
};

inline Interval exactly(double x) { return {x, x, x}; }
inline Interval anything(double value) { return {value, -kInfinity, kInfinity}; }

// The interval of an operation whose ends were computed with IEEE 754 arithmetic: infinity minus
// infinity, or zero times infinity, gave NaN.
inline Interval settled(Interval e, bool operands_certain) {
  if (e.low == e.low && e.high == e.high) return e;
  if (operands_certain && e.value != e.value) return {e.value, e.value, e.value};
  return anything(e.value);
}
inline bool certain(Interval a) { return a.nan() || a.exact(); }

// Exact operations: no rounding yet.
inline Interval add(Interval a, Interval b) {
  return settled({a.value + b.value, a.low + b.low, a.high + b.high}, certain(a) && certain(b));
}
inline Interval negated(Interval a) { return {-a.value, -a.high, -a.low}; }
inline Interval subtract(Interval a, Interval b) { return add(a, negated(b)); }
inline Interval multiply(Interval a, Interval b) {
  const double v = a.value * b.value;
  if (certain(a) && certain(b)) return {v, v, v};
  const double p = a.low * b.low, q = a.low * b.high, r = a.high * b.low, s = a.high * b.high;
  if (p != p || q != q || r != r || s != s) return anything(v);
  return {v, std::min(std::min(p, q), std::min(r, s)), std::max(std::max(p, q), std::max(r, s))};
}
// One number with itself.
inline Interval square(Interval a) {
  if (certain(a)) return exactly(a.value * a.value);
  const double p = a.low * a.low, q = a.high * a.high;
  return {a.value * a.value, a.has(0) ? 0 : std::min(p, q), std::max(p, q)};
}
inline Interval divide(Interval a, Interval b, double smallest) {
  const double v = a.value / b.value;
  if (a.nan() || b.nan()) return exactly(std::nan(""));
  // The sign of a zero is not known, and a denormal may be taken as zero.
  if (b.low < smallest && b.high > -smallest) return anything(v);
  const double p = a.low / b.low, q = a.low / b.high, r = a.high / b.low, s = a.high / b.high;
  if (p != p || q != q || r != r || s != s) return anything(v);
  return {v, std::min(std::min(p, q), std::min(r, s)), std::max(std::max(p, q), std::max(r, s))};
}
// What is either of two.
inline Interval either(Interval chosen, Interval other) {
  if (chosen.nan() && other.nan()) return chosen;
  if (chosen.nan() || other.nan()) return anything(chosen.value);
  return {chosen.value, std::min(chosen.low, other.low), std::max(chosen.high, other.high)};
}
inline Interval larger(Interval a, Interval b) {
  if (a.nan()) return a;
  if (b.nan()) return b;
  const double v =
      a.value != a.value || b.value != b.value ? std::nan("") : std::max(a.value, b.value);
  if (a.anything() || b.anything()) return anything(v);
  return {v, std::max(a.low, b.low), std::max(a.high, b.high)};
}
// A function that grows, with a relative error; outside of [from, infinity) it has no value.
template <typename F>
Interval growing(Interval a, F f, double relative, double from = -kInfinity) {
  if (a.nan()) return a;
  const double v = f(a.value);
  if (a.anything() || a.low < from) return anything(v);
  const double low = a.exact() ? v : f(a.low), high = a.exact() ? v : f(a.high);
  return settled({v, low - relative * std::fabs(low), high + relative * std::fabs(high)}, false);
}

// What storing a result of some type adds.
class Rules {
 public:
  Rules(const FusedArithmetic& may, DType dtype)
      : bf16_(dtype == DType::kBF16),
        flush_(may.flush),
        independent_(may.independent),
        unit_((bf16_ ? oracle::kBfloat16.unit() : 0) + oracle::kUnit * (1 + 0x1p-20)),
        largest_(bf16_ ? oracle::kBfloat16.overflow : oracle::kBinary32.overflow),
        least_(bf16_ ? 0x1p-133 : (1 + may.elementary_ulps) * 0x1p-149),
        elementary_(2 * may.elementary_ulps * oracle::kUnit + oracle::kElementaryError) {}

  double unit() const { return unit_; }
  double elementary() const { return elementary_; }
  double smallest() const { return flush_ ? kMinNormal * (1 + 0x1p-10) : 0; }
  double largest() const { return largest_; }
  // What one operation may lose below the normal range.
  double lost() const { return flush_ ? kMinNormal : least_; }

  // The error of a sum through which terms pass `depth` roundings, relative to their sizes.
  double of_sum(double depth) const {
    const double worst = oracle::gamma(depth, unit_);
    return independent_ ? std::fmin(worst, 2 * std::sqrt(depth) * unit_) : worst;
  }
  bool holds(double x) const {
    if (x == 0 || !oracle::finite(x)) return true;
    if (std::fabs(x) < kMinNormal || std::fabs(x) >= largest_) return false;
    const auto f = static_cast<float>(x);
    return static_cast<double>(f) == x && (!bf16_ || bf16_to_f32(bf16_round(f)) == f);
  }
  // Rounded to the type, or kept as it is.
  Interval rounded(Interval e) const { return e.exact() && holds(e.value) ? e : widened(e, unit_); }
  // With a relative error, which stands for one or several roundings.
  Interval widened(Interval e, double relative) const {
    if (e.nan() || e.anything()) return e;
    e.low -= std::fabs(e.low) * relative;
    e.high += std::fabs(e.high) * relative;
    return stored(e);
  }
  // The range of the type: overflow and flush, or gradual underflow.
  Interval stored(Interval e) const {
    if (e.nan()) return e;
    if (e.high >= largest_ * (1 - 0x1p-20)) e.high = kInfinity;
    if (e.low <= -largest_ * (1 - 0x1p-20)) e.low = -kInfinity;
    if (e.low >= kMinNormal * 2 || e.high <= -kMinNormal * 2) return e;
    if (e.low == 0 && e.high == 0) return e;
    // Gradual underflow; roundings keep the sign.
    e.low = e.low >= 0 ? std::max(0.0, e.low - least_) : e.low - least_;
    e.high = e.high <= 0 ? std::min(0.0, e.high + least_) : e.high + least_;
    return flush_ ? near_zero(e) : e;
  }
  // A number that is read, which nothing has rounded.
  Interval read(double x) const {
    return flush_ && x != 0 && std::fabs(x) < kMinNormal ? near_zero(exactly(x)) : exactly(x);
  }

 private:
  Interval near_zero(Interval e) const {
    if (e.low < smallest() && e.high > 0) e.low = std::min(e.low, 0.0);
    if (e.high > -smallest() && e.low < 0) e.high = std::max(e.high, 0.0);
    return e;
  }

  bool bf16_, flush_, independent_;
  double unit_, largest_;
  double least_;  // what gradual underflow may lose
  double elementary_;
};

}  // namespace twinrun::radii

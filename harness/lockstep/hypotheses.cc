// Hypotheses that need no recomputation: values taken from memory, and patterns in the numbers.
#include "harness/lockstep/hypotheses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace twinrun {
namespace {

// Whether an engine may store `x` for a number `value` that is known to within `radius`.
bool within(double x, double value, double radius) {
  return x == value || (x != x && value != value) || std::fabs(x - value) <= radius;
}

std::string number(double x) { return fmt::format("{:.4g}", x); }

// got = factor * expected, with one factor that fits all wrong elements. A factor close to a whole
// number, or to one over a whole number, is rounded to it.
void factor(const Suspect& s, std::vector<OpSignature>& out) {
  double sx = 0, xx = 0;
  for (const int64_t i : s.wrong) {
    if (!std::isfinite(s.got(i)) || !std::isfinite(s.expected(i))) continue;
    sx += s.got(i) * s.expected(i);
    xx += s.expected(i) * s.expected(i);
  }
  if (!(xx > 0) || sx == 0) return;
  double f = sx / xx;
  const double whole = std::round(f), part = std::round(1 / f);
  if (whole != 0 && std::fabs(f / whole - 1) < 1e-4) f = whole;
  if (part != 0 && std::fabs(f * part - 1) < 1e-4) f = 1 / part;
  if (f == 1) return;
  // Beside the bound, allow for the error of the fit, small against the effect of the factor.
  const double share = s.share([&](int64_t i) {
    const double off = std::fabs(f) * s.radius(i) + 1e-3 * std::fabs((f - 1) * s.expected(i));
    return within(s.got(i), f * s.expected(i), off);
  });
  const int cores = s.past.cores;
  const std::string which = cores > 1 && f == cores         ? " (the number of cores)"
                            : cores > 1 && f == 1.0 / cores ? " (one over the number of cores)"
                                                            : "";
  out.push_back({number(f) + " times the expected value" + which, share});
}

// A single flipped bit that explains the element.
std::string flipped_bit(const Suspect& s, int64_t i) {
  if (s.subject.dtype() != DType::kF32) return "";
  const uint32_t bits = to_bits(s.subject.as<const float>()[static_cast<size_t>(i)]);
  for (int bit = 31; bit >= 0; --bit) {
    const double x = from_bits(bits ^ (1u << bit));
    if (within(x, s.expected(i), s.radius(i))) return fmt::format(" (bit {} flipped)", bit);
  }
  return "";
}

// Errors of a few units in the last place, and their direction.
void roundings(const Suspect& s, std::vector<OpSignature>& out) {
  int64_t most = 0;
  bool toward_zero = true, away = true, up = true, down = true;
  for (const int64_t i : s.wrong) {
    const double got = s.got(i), expected = s.expected(i);
    if (!std::isfinite(got) || !std::isfinite(expected)) return;
    most = std::max(most, ulp_distance(static_cast<float>(got), static_cast<float>(expected)));
    toward_zero = toward_zero && std::fabs(got) <= std::fabs(expected);
    away = away && std::fabs(got) >= std::fabs(expected);
    up = up && got >= expected;
    down = down && got <= expected;
  }
  if (most > 1024) return;
  const std::string_view way = toward_zero ? "toward zero"
                               : away      ? "away from zero"
                               : up        ? "upward"
                               : down      ? "downward"
                                           : "";
  if (most <= 1 && !way.empty() && s.wrong.size() > 2)
    return out.push_back({fmt::format("results rounded {} instead of to nearest", way), 1});
  out.push_back({fmt::format("errors of up to {} ulp{}, {}", most, most == 1 ? "" : "s",
                             way.empty() ? "either way" : fmt::format("always {}", way)),
                 1});
}

void narrowed(const Suspect& s, std::vector<OpSignature>& out) {
  const auto as_bf16 = [&](auto convert) {
    return s.share([&](int64_t i) {
      const auto expected = static_cast<float>(s.expected(i));
      return s.got(i) == static_cast<double>(bf16_to_f32(convert(expected)));
    });
  };
  out.push_back({"the result cut toward zero to bfloat16", as_bf16(bf16_truncate)});
  out.push_back({"the result rounded to bfloat16", as_bf16(bf16_round)});
  // A few numbers may be bfloat16 numbers by chance.
  if (s.wrong.size() >= 4) {
    out.push_back({"bfloat16 numbers only: summed in bfloat16", s.share([&](int64_t i) {
                     return (to_bits(static_cast<float>(s.got(i))) & 0xFFFFu) == 0;
                   })});
  }
  constexpr double kMinNormal = 0x1p-126;
  out.push_back({"denormals flushed to zero, which is not declared", s.share([&](int64_t i) {
                   return s.got(i) == 0 && std::fabs(s.expected(i)) < kMinNormal;
                 })});
  out.push_back({"denormals kept, where flushing them is declared", s.share([&](int64_t i) {
                   return s.got(i) != 0 && std::fabs(s.got(i)) < kMinNormal;
                 })});
}

// The expected numbers in the wrong place: shifted by one along a dimension.
void shifted(const Suspect& s, std::vector<OpSignature>& out) {
  const Dims& dims = s.op.type.dims;
  const int64_t all = s.op.type.elements();
  if (dims.empty() || s.wrong.size() < 4) return;
  const auto by = [&](int64_t offset) {
    return s.share([&](int64_t i) {
      const int64_t from = i + offset;
      return from >= 0 && from < all && s.expected(from) != s.expected(i) &&
             within(s.got(i), s.expected(from), s.radius(from));
    });
  };
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] < 2) continue;
    int64_t stride = 1;
    for (size_t k = d + 1; k < dims.size(); ++k) stride *= dims[k];
    for (const int64_t sign : {-1, 1}) {
      out.push_back({fmt::format("the expected values shifted by one along dimension {}", d),
                     by(sign * stride)});
    }
  }
}

}  // namespace

std::vector<OpSignature> from_memory(const Suspect& s) {
  std::vector<OpSignature> out;
  const auto equals = [&](const Tensor& t) {
    return t.valid() && t.type() == s.subject.type()
               ? s.share([&](int64_t i) { return same_bits_at(t, s.subject, i); })
               : 0;
  };
  const bool update = s.op.phase == Phase::kUpdate;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const double share = equals(s.inputs[i]);
    if (s.op.kind == OpKind::kAllReduce) {
      // Of two cores, one contribution alone is the sum without the other core.
      if (s.inputs.size() == 2) continue;
      out.push_back({fmt::format("core {}'s own contribution: not reduced", i), share});
    } else if (update && i == 0) {
      out.push_back({"an update of exactly zero: the old value was kept", share});
    } else {
      out.push_back({fmt::format("a copy of its operand {}", i), share});
    }
  }
  out.push_back({"the value of the step before (stale)", equals(s.past.result)});
  return out;
}

std::vector<OpSignature> from_values(const Suspect& s) {
  std::vector<OpSignature> out;
  if (s.wrong.empty()) return out;
  const auto count = static_cast<int64_t>(s.wrong.size());
  const bool whole = count == s.op.type.elements();
  const double non_finite =
      s.share([&](int64_t i) { return !std::isfinite(s.got(i)) && std::isfinite(s.expected(i)); });
  if (non_finite > 0) {
    const auto n = static_cast<int64_t>(std::llround(non_finite * static_cast<double>(count)));
    return {{n == 1 ? std::string("an element that is NaN or Inf where a number was expected")
                    : fmt::format("{} elements that are NaN or Inf where a number was expected", n),
             1}};
  }
  if (count == 1 && !whole) {
    const int64_t i = s.wrong[0];
    return {{fmt::format("one element only: {:.9g} where {:.9g} was expected{}", s.got(i),
                         s.expected(i), flipped_bit(s, i)),
             1}};
  }
  const double zeros = s.share([&](int64_t i) { return s.got(i) == 0; });
  out.push_back({whole ? "all zeros" : "zeros where numbers were expected", zeros});
  if (s.subject.dtype() != DType::kF32) return out;
  if (zeros < 1) {
    factor(s, out);
    const double first = s.got(s.wrong[0]), offset = first - s.expected(s.wrong[0]);
    if (count > 2) {
      out.push_back({fmt::format("the constant {:.9g}", first),
                     s.share([&](int64_t i) { return s.got(i) == first; })});
      out.push_back({fmt::format("the expected value {} {}", offset < 0 ? "minus" : "plus",
                                 number(std::fabs(offset))),
                     s.share([&](int64_t i) {
                       const double off =
                           s.radius(i) + s.radius(s.wrong[0]) + 1e-3 * std::fabs(offset);
                       return within(s.got(i), s.expected(i) + offset, off) &&
                              std::fabs(offset) > 8 * s.radius(i);
                     })});
    }
  }
  narrowed(s, out);
  shifted(s, out);
  if (std::ranges::none_of(out, [](const OpSignature& e) { return e.share == 1; }))
    roundings(s, out);
  return out;
}

}  // namespace twinrun

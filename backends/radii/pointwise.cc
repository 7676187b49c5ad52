// Elementwise ops, selections and conversions of intervals.
#include <bit>

#include "backends/oracle/walks.h"
#include "backends/radii/internal.h"

namespace twinrun::radii {
namespace {

template <typename F>
Known map(const Site& site, F f) {
  Known out = fresh(site.op);
  const Planes to = planes_of(out);
  oracle::for_each_element(site.pool, out.value.elements(), [&](int64_t i) { to.set(i, f(i)); });
  return out;
}
template <typename F>
Known unary(const Site& site, F f) {
  const Known& a = *site.x[0];
  return map(site, [&, f](int64_t i) { return f(at(a, i)); });
}
template <typename F>
Known binary(const Site& site, F f) {
  const Known &a = *site.x[0], &b = *site.x[1];
  return map(site, [&, f](int64_t i) { return f(at(a, i), at(b, i)); });
}

bool same_operands(const Site& site) { return site.op.operands[0] == site.op.operands[1]; }

bool whole(double x) { return x == std::trunc(x); }

// Sums of sums: a compiler may change the order of what was added one by one, such as two constants,
// or the shifted parts of which the importer makes a sum of windows. So the error is that of a sum
// in any order, and what the operands already carry of it is not counted twice.
Known sum(const Site& site) {
  const Known &a = *site.x[0], &b = *site.x[1];
  const bool minus = site.op.kind == OpKind::kSubtract;
  const Rules rules = site.rules();
  // Two terms have no order: the result's own rounding is all.
  const auto error_of = [&](double terms) { return terms > 2 ? rules.of_sum(terms - 1) : 0; };
  const bool sum_a = a.mass.valid() && (!a.reduced || a.one_sum_with(site.op)),
             sum_b = b.mass.valid() && (!b.reduced || b.one_sum_with(site.op));
  const double terms = (sum_a ? a.terms : 1) + (sum_b ? b.terms : 1), after = error_of(terms),
               of_a = sum_a && !a.reduced ? error_of(a.terms) : 0,
               of_b = sum_b && !b.reduced ? error_of(b.terms) : 0;
  const auto size_of = [](const Known& k, bool sum, Interval e, int64_t i) {
    return sum ? k.mass.as<const double>()[static_cast<size_t>(i)] : e.size();
  };
  // A reduction may begin with the number that is added to its result.
  const auto first = [&](size_t i) {
    const Op& op = site.operand(i);
    if (op.kind != OpKind::kReduce) return 0.0;
    const double all = static_cast<double>(site.graph.type(op.operands[0]).elements());
    return rules.of_sum(all / static_cast<double>(std::max<int64_t>(1, op.type.elements())));
  };
  const double as_first_a = first(1), as_first_b = first(0);
  Known out = fresh(site.op);
  out.terms = terms;
  out.stem = stem_of(site.op);
  out.mass = Tensor::empty({DType::kF64, site.op.type.dims});
  const Planes to = planes_of(out);
  double* const mass = out.mass.as<double>().data();
  oracle::for_each_element(site.pool, out.value.elements(), [&](int64_t i) {
    const Interval x = at(a, i), y = at(b, i);
    Interval e = minus ? subtract(x, y) : add(x, y);
    const double of_x = size_of(a, sum_a, x, i), of_y = size_of(b, sum_b, y, i);
    mass[i] = of_x + of_y;
    const bool plain = terms <= 2 || (whole(x.value) && whole(y.value) && mass[i] < 0x1p24);
    if (e.exact() && rules.holds(e.value) && plain) return to.set(i, e);
    if (e.nan() || e.anything()) return to.set(i, e);
    const double error = after * mass[i] - of_a * of_x - of_b * of_y + as_first_a * x.size() +
                         as_first_b * y.size() + (terms > 2 ? terms * rules.lost() : 0);
    if (error > 0) e.low -= error * kOutward, e.high += error * kOutward;
    to.set(i, settled(rules.rounded(e), false));
  });
  return out;
}

Known product(const Site& site) {
  const Rules rules = site.rules();
  if (same_operands(site)) return unary(site, [&](Interval a) { return rules.rounded(square(a)); });
  // exp(a) exp(b) may become exp(a + b), whose argument has been rounded.
  const bool powers =
      site.operand(0).kind == OpKind::kExponential && site.operand(1).kind == OpKind::kExponential;
  return binary(site, [&](Interval a, Interval b) {
    const Interval e = multiply(a, b);
    if (!powers || !oracle::finite(e.value)) return rules.rounded(e);
    const double argument =
        e.low > 0 && e.high < kInfinity
            ? std::fmax(std::fabs(oracle::logarithm(e.low)), std::fabs(oracle::logarithm(e.high)))
            : 104;
    return rules.widened(e, rules.unit() * (1 + 1.01 * argument));
  });
}

bool power_of_two(double x) {
  int exponent = 0;
  return std::fabs(std::frexp(x, &exponent)) == 0.5;
}
// Also by a product with the rounded reciprocal, which may be a denormal.
Known quotient(const Site& site) {
  const Rules rules = site.rules();
  return binary(site, [&](Interval a, Interval b) {
    Interval e = divide(a, b, rules.smallest());
    if (b.exact() && power_of_two(b.value)) return rules.rounded(e);
    if (a.exact() && a.value == 0 && e.exact()) return e;
    if (!e.nan() && b.size() > 0x1p125) e.low = std::fmin(e.low, 0), e.high = std::fmax(e.high, 0);
    return rules.widened(e, rules.unit() + 1.5 * oracle::kUnit);
  });
}

// exp, whose argument some engines bound from below: it gives the smallest normal number instead of
// 0. What overflows here is still finite to a compiler that makes log(exp(x)) an x.
Interval least_normal(Interval e) {
  if (e.low < 0x1p-125) e.low = std::fmin(e.low, 0), e.high = std::fmax(e.high, 0x1p-125);
  e.low = std::fmin(e.low, 0x1p900);
  return e;
}

// Sine or cosine, whose slope is at most 1. Near a zero the error is that of the argument's reduction,
// an ulp of numbers near 1.
Interval waving(Interval a, double (*f)(double), double relative) {
  if (a.nan()) return a;
  const double v = f(a.value), most = 1 + relative;
  if (a.exact() && !oracle::finite(a.value)) return exactly(v);
  if (v != v || !oracle::finite(a.low) || !oracle::finite(a.high)) return {v, -most, most};
  const double error = a.exact() && v == 0 ? 0 : relative;
  return {v, std::fmax(v - (a.value - a.low) - (a.high - a.value) - error, -most),
          std::fmin(v + (a.value - a.low) + (a.high - a.value) + error, most)};
}

Known elementary(const Site& site) {
  const Rules rules = site.rules();
  const double error = rules.elementary(), least = rules.smallest();
  const bool bf16 = site.op.type.dtype == DType::kBF16;
  // Elementary functions compute in binary32 and round once more.
  const auto stored = [&](Interval e) {
    return bf16 ? rules.rounded(e) : e.anything() ? e : rules.stored(e);
  };
  switch (site.op.kind) {
    case OpKind::kSqrt:
      return unary(site, [&](Interval a) {
        if (a.exact() && a.value == 0) return a;
        return stored(growing(
            a, [](double x) { return std::sqrt(x); }, error, 0));
      });
    case OpKind::kRsqrt:
      return unary(site, [&](Interval a) {
        if (a.nan()) return a;
        const double v = 1 / std::sqrt(a.value);
        if (a.low <= least) return anything(v);
        return stored({v, 1 / std::sqrt(a.high) * (1 - error), 1 / std::sqrt(a.low) * (1 + error)});
      });
    case OpKind::kExponential:
      return unary(site, [&](Interval a) {
        return stored(least_normal(growing(a, oracle::exponential, error)));
      });
    case OpKind::kLog:
      return unary(site, [&](Interval a) {
        Interval e = growing(a, oracle::logarithm, error, 0);
        if (a.low < least) e.low = -kInfinity;  // a denormal may be taken as zero
        return stored(e);
      });
    case OpKind::kLog1p:
      return unary(site, [&](Interval a) {
        return stored(growing(a, oracle::logarithm_of_1_plus, error, -1));
      });
    case OpKind::kTanh:
      return unary(
          site, [&](Interval a) { return stored(growing(a, oracle::hyperbolic_tangent, error)); });
    case OpKind::kSine:
      return unary(site, [&](Interval a) { return stored(waving(a, oracle::sine, error)); });
    case OpKind::kCosine:
      return unary(site, [&](Interval a) { return stored(waving(a, oracle::cosine, error)); });
    case OpKind::kErf:
      return unary(site,
                   [&](Interval a) { return stored(growing(a, oracle::error_function, error)); });
    default:  // 1 / (1 + exp(-x)), whose exponential may overflow
      return unary(site, [&](Interval a) {
        const auto f = [](double x) { return 1 / (1 + oracle::exponential(-x)); };
        return stored(least_normal(growing(a, f, error + 4 * oracle::kUnit)));
      });
  }
}

Interval truth(bool value, bool certain) {
  const double v = value ? 1 : 0;
  return certain ? exactly(v) : Interval{v, 0, 1};
}
// Whether a < b, or a <= b.
Interval below(Interval a, Interval b, bool or_equal) {
  if (a.nan() || b.nan()) return exactly(0);
  const bool value = or_equal ? a.value <= b.value : a.value < b.value;
  if (a.anything() || b.anything()) return truth(value, false);
  if (or_equal ? a.high <= b.low : a.high < b.low) return exactly(1);
  if (or_equal ? a.low > b.high : a.low >= b.high) return exactly(0);
  return truth(value, false);
}
Interval equal(Interval a, Interval b) {
  if (a.nan() || b.nan()) return exactly(0);
  if (a.exact() && b.exact()) return exactly(a.value == b.value ? 1 : 0);
  const bool apart = a.high < b.low || b.high < a.low;
  return truth(a.value == b.value, apart && !a.anything() && !b.anything());
}
Interval opposite(Interval p) { return {1 - p.value, 1 - p.high, 1 - p.low}; }

Known compare(const Site& site) {
  const CompareKind kind = site.op.attrs.compare;
  if (same_operands(site)) {  // tells NaN from numbers
    const bool yes =
        kind == CompareKind::kEq || kind == CompareKind::kLe || kind == CompareKind::kGe;
    return unary(site, [&](Interval a) {
      if (kind == CompareKind::kNe) return a.nan() ? exactly(1) : truth(false, !a.anything());
      if (a.nan() || !yes) return exactly(0);
      return truth(true, !a.anything());
    });
  }
  switch (kind) {
    case CompareKind::kEq:
      return binary(site, equal);
    case CompareKind::kNe:
      return binary(site, [](Interval a, Interval b) { return opposite(equal(a, b)); });
    case CompareKind::kLt:
      return binary(site, [](Interval a, Interval b) { return below(a, b, false); });
    case CompareKind::kLe:
      return binary(site, [](Interval a, Interval b) { return below(a, b, true); });
    case CompareKind::kGt:
      return binary(site, [](Interval a, Interval b) { return below(b, a, false); });
    default:
      return binary(site, [](Interval a, Interval b) { return below(b, a, true); });
  }
}

// x == max(x) along some dimensions, as JAX asks for the place of the largest: certainly true where
// no other element can be as large.
bool asks_for_largest(const Site& site, const Op** reduction) {
  if (site.op.kind != OpKind::kCompare || site.op.attrs.compare != CompareKind::kEq) return false;
  const Op& spread = site.operand(1);
  if (spread.kind != OpKind::kBroadcastInDim) return false;
  // The reduced dimensions are left out, or kept with size 1 by a reshape.
  const Op& from = site.graph.op(spread.operands[0]);
  const bool kept = from.kind == OpKind::kReshape;
  const Op& most = kept ? site.graph.op(from.operands[0]) : from;
  if (most.kind != OpKind::kReduce || most.attrs.reducer != Reducer::kMax ||
      most.operands[0] != site.op.operands[0])
    return false;
  Dims dims = site.operand(0).type.dims;
  const auto rank = static_cast<int64_t>(dims.size());
  if (spread.attrs.dims != (kept ? other_dims(rank) : other_dims(rank, most.attrs.dims)))
    return false;
  for (const int64_t d : most.attrs.dims) dims[static_cast<size_t>(d)] = 1;
  *reduction = &most;
  return !kept || from.type.dims == dims;
}
Known is_largest(const Site& site, const Op& reduction) {
  Known out = compare(site);
  const Known &x = *site.x[0], &most = *site.x[1];
  const oracle::RunTargets targets(site.op.type.dims, reduction.attrs.dims);
  const int64_t run = targets.run();
  std::vector<int32_t> candidates(static_cast<size_t>(reduction.type.elements()));
  const auto visit = [&](auto f) {
    for (int64_t i = 0; i < x.value.elements(); ++i)
      f(i, static_cast<size_t>(targets.of_run(i / run) + i % run * targets.step()));
  };
  const auto may_be = [&](int64_t i) {
    const Interval a = at(x, i), m = at(most, i);
    return a.nan() || m.nan() || m.anything() || a.high >= m.low;
  };
  visit([&](int64_t i, size_t row) { candidates[row] += may_be(i) ? 1 : 0; });
  visit([&](int64_t i, size_t row) {
    const Interval a = at(x, i);
    if (candidates[row] == 1 && may_be(i) && !a.nan() && !a.anything())
      planes_of(out).set(i, exactly(1));
  });
  return out;
}

// The y of x == maximum(x, y), as JAX asks which of two was taken; kNoValue for other comparisons.
ValueId other_of_maximum(const Graph& graph, const Op& op) {
  if (op.kind != OpKind::kCompare || op.attrs.compare != CompareKind::kEq) return kNoValue;
  for (const size_t side : {1, 0}) {
    const Op& most = graph.op(op.operands[side]);
    if (most.kind != OpKind::kMaximum && most.kind != OpKind::kMinimum) continue;
    for (const size_t i : {0, 1}) {
      if (most.operands[i] == op.operands[1 - side]) return most.operands[1 - i];
    }
  }
  return kNoValue;
}
Known is_taken(const Site& site) {
  const bool second =
      site.operand(1).kind == OpKind::kMaximum || site.operand(1).kind == OpKind::kMinimum;
  const bool least = site.operand(second ? 1 : 0).kind == OpKind::kMinimum;
  const Known &x = *site.x[second ? 0 : 1], &y = *site.x[2];
  return map(site, [&](int64_t i) {
    return least ? below(at(x, i), at(y, i), true) : below(at(y, i), at(x, i), true);
  });
}

Known select(const Site& site) {
  const Known &p = *site.x[0], &a = *site.x[1], &b = *site.x[2];
  return map(site, [&](int64_t i) {
    const Interval which = at(p, i);
    const Interval chosen = at(which.value != 0 ? a : b, i);
    return which.exact() ? chosen : either(chosen, at(which.value != 0 ? b : a, i));
  });
}

Interval truncated(Interval a) {
  constexpr double kLeast = -0x1p31, kMost = 0x1p31 - 1;
  if (a.nan() || a.anything()) return {0, kLeast, kMost};
  const auto cut = [&](double x) { return std::trunc(std::clamp(x, kLeast, kMost)); };
  return {a.value == a.value ? cut(a.value) : 0, cut(a.low), cut(a.high)};
}
Known convert(const Site& site) {
  const DType to = site.op.type.dtype;
  const Rules rules = site.rules();
  if (to == DType::kPred) {
    return unary(site, [](Interval a) {
      if (a.nan()) return exactly(1);
      if (a.anything() || (a.has(0) && !a.exact())) return truth(a.value != 0, false);
      return exactly(a.value != 0 ? 1 : 0);
    });
  }
  if (!is_floating(to)) return unary(site, truncated);
  if (to == DType::kF32 && is_floating(site.operand(0).type.dtype))
    return unary(site, [](Interval a) { return a; });
  // An engine may keep the wider number.
  return unary(site, [&](Interval a) { return rules.rounded(a); });
}

// Integers and predicates that are not known; sums that may wrap are unknown.
Known whole_numbers(const Site& site) {
  switch (site.op.kind) {
    case OpKind::kAdd:
      return binary(site, add);
    case OpKind::kSubtract:
      return binary(site, subtract);
    case OpKind::kMultiply:
      return binary(site, multiply);
    case OpKind::kMaximum:
      return binary(site, larger);
    case OpKind::kMinimum:
      return binary(site,
                    [](Interval a, Interval b) { return negated(larger(negated(a), negated(b))); });
    case OpKind::kNegate:
      return unary(site, negated);
    default:
      return {};
  }
}

// Bits of binary32 as an integer, or the reverse, of numbers that are known.
Known bits(const Site& site) {
  const bool to_floats = site.floats();
  return unary(site, [&](Interval a) {
    if (!to_floats) {
      const double v = static_cast<double>(std::bit_cast<int32_t>(static_cast<float>(a.value)));
      return a.exact() ? exactly(v) : Interval{v, -0x1p31, 0x1p31 - 1};
    }
    const double v = std::bit_cast<float>(static_cast<int32_t>(a.value));
    return a.exact() ? exactly(v) : anything(v);
  });
}

Interval absolute(Interval a) {
  if (a.nan() || a.anything()) return a;
  const double v = std::fabs(a.value);
  const double p = std::fabs(a.low), q = std::fabs(a.high);
  return {v, a.has(0) ? 0 : std::min(p, q), std::max(p, q)};
}

}  // namespace

std::vector<ValueId> also_read(const Graph& graph, const Op& op) {
  const ValueId other = other_of_maximum(graph, op);
  return other == kNoValue ? std::vector<ValueId>{} : std::vector<ValueId>{other};
}

Known eval_pointwise(const Site& site) {
  const Op& op = site.op;
  const bool of_floats = is_floating(site.operand(0).type.dtype);
  if (op.kind == OpKind::kSelect) return select(site);
  if (!site.floats() && !of_floats && site.all_exact()) return by_oracle(site);
  if (other_of_maximum(site.graph, op) != kNoValue) return is_taken(site);
  const Op* reduction = nullptr;
  if (asks_for_largest(site, &reduction)) return is_largest(site, *reduction);
  if (op.kind == OpKind::kCompare) return compare(site);
  if (op.kind == OpKind::kConvert) return convert(site);
  if (op.kind == OpKind::kAbs) return unary(site, absolute);
  if (op.kind == OpKind::kBitcastConvert) return bits(site);
  if (!site.floats()) return whole_numbers(site);
  switch (op.kind) {
    case OpKind::kNegate:
      return unary(site, negated);
    case OpKind::kAdd:
    case OpKind::kSubtract:
      return sum(site);
    case OpKind::kMultiply:
      return product(site);
    case OpKind::kDivide:
      return quotient(site);
    case OpKind::kMaximum:
      return binary(site, [&](Interval a, Interval b) { return larger(a, b); });
    case OpKind::kMinimum:
      return binary(
          site, [&](Interval a, Interval b) { return negated(larger(negated(a), negated(b))); });
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kExponential:
    case OpKind::kLog:
    case OpKind::kTanh:
    case OpKind::kLogistic:
    case OpKind::kErf:
    case OpKind::kLog1p:
    case OpKind::kSine:
    case OpKind::kCosine:
      return elementary(site);
    default:
      return {};
  }
}

}  // namespace twinrun::radii

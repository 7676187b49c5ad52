// Arithmetic faults: wrong rounding, approximation, accumulation, constants and divisors.
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "backends/faults/kind.h"
#include "backends/faults/terms.h"
#include "device/machine.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

using Unit = FaultMagnitude::Unit;

float cut_to_bf16(float v) { return bf16_to_f32(bf16_truncate(v)); }

bool elementary(const Program& p, ValueId id) {
  return is_elementary(op_at(p, id).kind) && is_f32(op_at(p, id));
}
bool quotient(const Program& p, ValueId id) {
  const OpKind k = op_at(p, id).kind;
  return (k == OpKind::kDivide || k == OpKind::kRsqrt) && computed_f32(p, id);
}
// Every op that can round: not sources, moves and random ops.
bool rounds(const Program& p, ValueId id) {
  const OpClass c = class_of(op_at(p, id).kind);
  return c != OpClass::kSource && c != OpClass::kMove && c != OpClass::kRandom &&
         computed_f32(p, id);
}
bool four_operations(const Program& p, ValueId id) {
  const OpKind k = op_at(p, id).kind;
  return (k == OpKind::kAdd || k == OpKind::kSubtract || k == OpKind::kMultiply ||
          k == OpKind::kDivide) &&
         computed_f32(p, id);
}
bool is_constant(const Program& p, ValueId id) {
  return op_at(p, id).kind == OpKind::kConstant && is_f32(op_at(p, id));
}
bool f32_mean(const Program& p, ValueId id) {
  return is_mean(op_at(p, id)) && is_f32(op_at(p, id));
}
// A maximum that a later op subtracts, directly or after a broadcast or reshape.
bool is_shift(const Program& p, ValueId id) {
  const Op& op = op_at(p, id);
  if (op.kind != OpKind::kReduce || op.attrs.reducer != Reducer::kMax || !is_f32(op)) return false;
  std::vector<bool> holds(static_cast<size_t>(p.graph.size()), false);
  holds[static_cast<size_t>(id)] = true;
  for (ValueId later = id + 1; later < p.graph.size(); ++later) {
    const Op& reader = op_at(p, later);
    for (size_t i = 0; i < reader.operands.size(); ++i) {
      if (!holds[static_cast<size_t>(reader.operands[i])]) continue;
      if (reader.kind == OpKind::kSubtract && i == 1) return true;
      if (reader.kind == OpKind::kBroadcastInDim || reader.kind == OpKind::kReshape)
        holds[static_cast<size_t>(later)] = true;
    }
  }
  return false;
}

// ---- rounding

void truncate_bf16(Strike& s) {
  if (!is_dot(s.op())) {
    for (float& v : s.own_output()) v = cut_to_bf16(v);
    return;
  }
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    if (s.inputs[i].dtype() != DType::kF32) continue;
    for (float& v : s.own_input(i)) v = cut_to_bf16(v);
  }
  s.recompute();
}

void one_pass(Strike& s) {
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    for (float& v : s.own_input(i)) v = bf16_to_f32(bf16_round(v));
  }
  s.recompute();
}

float toward_zero(double exact) {
  const auto nearest = static_cast<float>(exact);
  return std::fabs(nearest) > std::fabs(exact) ? std::nextafter(nearest, 0.0f) : nearest;
}

// Recomputes the sums with another rounding of the accumulator. The declared rounding of operands
// and treatment of denormals are kept.
void accumulate(Strike& s, float (*round)(double)) {
  const bool flushes = s.where.declared.flush;
  std::vector<Tensor> inputs = s.inputs;
  for (Tensor& t : inputs) {
    if (!flushes || t.dtype() != DType::kF32) continue;
    t = t.clone();
    for (float& v : t.as<float>()) v = flush(v);
  }
  s.output = add_up(s.op(), inputs, {.precision = s.where.declared.precision},
                    [=](float sum, double term) {
                      const float v = round(static_cast<double>(sum) + term);
                      return flushes ? flush(v) : v;
                    });
}
void bf16_accumulator(Strike& s) {
  accumulate(s, [](double v) { return bf16_to_f32(bf16_round(static_cast<float>(v))); });
}
void truncate_accumulator(Strike& s) { accumulate(s, toward_zero); }

void round_toward_zero(Strike& s) {
  const auto a = s.inputs[0].as<float>(), b = s.inputs[1].as<float>();
  const bool flushes = s.where.declared.flush;
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) {
    const double x = flushes ? flush(a[i]) : a[i], y = flushes ? flush(b[i]) : b[i];
    const OpKind kind = s.op().kind;
    const float v = toward_zero(kind == OpKind::kAdd        ? x + y
                                : kind == OpKind::kSubtract ? x - y
                                : kind == OpKind::kMultiply ? x * y
                                                            : x / y);
    if (std::isfinite(v)) out[i] = flushes ? flush(v) : v;
  }
}

float moved(float x, int64_t ulps) {
  if (x == 0 || !std::isfinite(x)) return x;  // a zero is exact
  const int64_t to = ordered(x) + ulps;
  return from_bits(to < 0 ? 0x80000000u | static_cast<uint32_t>(-to) : static_cast<uint32_t>(to));
}

// By how many ulps to move element i: the whole part of the magnitude for all elements, and one
// more for a random share of them, the fractional part, drawn anew each step.
int64_t ulps_of(const Strike& s, size_t i) {
  const double whole = std::floor(s.magnitude());
  const double u = s.random(i + 1) * 0x1p-32;
  return static_cast<int64_t>(whole) + (u < s.magnitude() - whole ? 1 : 0);
}
void ulp_bias(Strike& s) {
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) out[i] = moved(out[i], ulps_of(s, i));
}
void ulp_toward_zero(Strike& s) {
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = moved(out[i], out[i] > 0 ? -ulps_of(s, i) : ulps_of(s, i));
}

// Treats denormals the other way than declared, in elements where a denormal occurs.
void denormals(Strike& s) {
  const OpKind kind = s.op().kind;
  const bool keep = s.where.declared.flush;
  const auto a = s.inputs[0].as<float>(), b = s.inputs[1].as<float>();
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) {
    const float x = keep ? a[i] : flush(a[i]), y = keep ? b[i] : flush(b[i]);
    const float v = kind == OpKind::kAdd        ? x + y
                    : kind == OpKind::kSubtract ? x - y
                    : kind == OpKind::kMultiply ? x * y
                                                : x / y;
    const bool concerned = x != a[i] || y != b[i] || std::fpclassify(a[i]) == FP_SUBNORMAL ||
                           std::fpclassify(b[i]) == FP_SUBNORMAL ||
                           std::fpclassify(v) == FP_SUBNORMAL;
    if (concerned) out[i] = canonical(keep ? v : flush(v));
  }
}

// ---- approximations

// An error larger than declared. Its sign depends on the bits of the result only, so that the
// function stays a function of its argument.
void elementary_ulps(Strike& s) {
  const auto ulps =
      static_cast<int64_t>(std::ceil(s.where.declared.elementary_ulps + s.magnitude()));
  for (float& v : s.own_output()) v = moved(v, std::popcount(to_bits(v)) % 2 == 0 ? ulps : -ulps);
}

// Keeps only `bits` bits after the leading one of an operand: what a table without interpolation
// does.
void coarse_argument(Strike& s, size_t operand) {
  const auto bits = std::min(23u, static_cast<unsigned>(s.magnitude()));
  const uint32_t mask = ~((1u << (23 - bits)) - 1);
  for (float& v : s.own_input(operand)) {
    if (std::isfinite(v)) v = from_bits(to_bits(v) & mask);
  }
  s.recompute();
}
void table_lookup(Strike& s) { coarse_argument(s, 0); }
void approximate_division(Strike& s) { coarse_argument(s, s.inputs.size() - 1); }

// ---- constants

void wrong_constant(Strike& s) {
  for (float& v : s.own_output()) v = static_cast<float>(v * (1 + s.magnitude()));
}

// Divides by the padded count: the count rounded up to a multiple of 8, or of 128 where 8 divides
// it, or of `magnitude`. For a window without a magnitude: all its taps.
void padded_mean(Strike& s) {
  const auto padded = [&](int64_t n) {
    if (s.op().kind == OpKind::kReduceWindow && !s.fault.magnitude)
      return s.op().attrs.window.size[0] * s.op().attrs.window.size[1];
    const auto tile = s.fault.magnitude ? std::max<int64_t>(1, static_cast<int64_t>(s.magnitude()))
                      : n % tpu::kSublanes != 0 ? tpu::kSublanes
                                                : tpu::kLanes;
    return (n + tile - 1) / tile * tile;
  };
  std::vector<int64_t> count(static_cast<size_t>(s.output.elements()), 0);
  for_each_term(s.op(), s.inputs,
                [&](const SumTerm& t) { ++count[static_cast<size_t>(t.result)]; });
  const auto out = s.own_output();
  for (size_t i = 0; i < out.size(); ++i) {
    if (const int64_t n = padded(count[i]); n != count[i])
      out[i] *= static_cast<float>(count[i]) / static_cast<float>(n);
  }
}

void unstable_softmax(Strike& s) { s.output = Tensor::zeros(s.output.type()); }

void scale(Strike& s) {
  for (float& v : s.own_output()) v *= static_cast<float>(s.magnitude());
}

constexpr auto kVaries = std::numeric_limits<double>::quiet_NaN();

}  // namespace

std::vector<FaultKind> arithmetic_faults() {
  // truncate_bf16 cuts the operands of a dot, but the result of any other op. Both count as the
  // computation.
  return {
      computes("truncate_bf16", "any f32 op",
               "a dot's operands, any other op's result, cut to bf16 toward zero", computed_f32,
               truncate_bf16),
      computes("one_pass", "dots", "operands rounded to bf16 where more is declared", dot_f32,
               one_pass),
      computes("bf16_accumulator", "dots, sums", "every partial sum rounded to bf16", has_terms,
               bf16_accumulator),
      computes("truncate_accumulator", "dots, sums",
               "every addition rounded toward zero in f32 instead of to nearest", has_terms,
               truncate_accumulator),
      computes("round_toward_zero", "add, subtract, multiply, divide",
               "results rounded toward zero in f32 instead of to nearest", four_operations,
               round_toward_zero),
      results("ulp_bias", "any f32 op that rounds",
              "results too large by some ulps, always upward; below 1: that part of the elements "
              "by one",
              rounds, ulp_bias, {Unit::kNumber, 1, "ulps", {0.0625, 0.25, 1, 2, 4, 16}}),
      results("ulp_toward_zero", "any f32 op that rounds",
              "results off by some ulps, always toward zero", rounds, ulp_toward_zero,
              {Unit::kNumber, 1, "ulps", {0.0625, 0.25, 1, 2, 4, 16}}),
      results("elementary_ulps", "exp, log, tanh, logistic, erf, log1p, sin, cos",
              "off by more ulps than declared, up or down by the bits of the result", elementary,
              elementary_ulps,
              {Unit::kNumber, 4, "ulps beyond the declared", {1, 2, 4, 16, 64, 1024}}),
      computes("table_lookup", "exp, log, tanh, logistic, erf, log1p, sin, cos",
               "a coarse approximation: the argument cut to a few bits", elementary, table_lookup,
               {Unit::kCount, 12, "number of bits kept", {20, 18, 16, 14, 12, 10, 8}}),
      computes("approximate_division", "divide, rsqrt",
               "a reciprocal without its Newton step: the divisor cut to a few bits", quotient,
               approximate_division,
               {Unit::kCount, 12, "number of bits kept", {20, 18, 16, 14, 12, 10, 8}}),
      results(
          "wrong_constant", "constants", "an epsilon, a beta or a 1/N is wrong", is_constant,
          wrong_constant,
          {Unit::kNumber, 0.01, "relative error", {1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1}}),
      results("padded_mean", "means",
              "divided by the padded count: tiles of 8, or of 128 where 8 divides it; a pooling "
              "window's "
              "full size",
              f32_mean, padded_mean, {Unit::kCount, kVaries, "number of elements of a tile"}),
      results("unstable_softmax", "a maximum that is subtracted",
              "0 instead of the maximum: no shift before the exponentials", is_shift,
              unstable_softmax),
      computes("denormals", "add, subtract, multiply, divide",
               "denormals kept where flushing is declared, flushed where it is not",
               four_operations, denormals),
      results("scale", "any f32 op", "the result times a factor", computed_f32, scale,
              {Unit::kNumber,
               8,
               "factor",
               {1 + 0x1p-20, 1 + 0x1p-16, 1 + 0x1p-12, 1 + 0x1p-8, 1.5, 8}}),
  };
}

}  // namespace twinrun

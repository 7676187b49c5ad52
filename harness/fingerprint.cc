#include "harness/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "program/base/bits.h"
#include "program/ops/k_tail.h"

namespace twinrun {
namespace {

struct Case {
  const Capabilities& declared;
  const Op& op;
  const Tensor& subject;
  const OracleResult& oracle;
  const std::vector<Tensor>& inputs;
  ThreadPool* pool;

  bool agrees(const Capabilities& with, const std::vector<Tensor>& operands) const {
    return replay(with, op, operands, subject, pool).outside == 0;
  }
};

// Dots: wrong operand rounding, or a part of k left out.
std::string of_dot(const Case& c) {
  if (c.op.type.dtype != DType::kF32) return "";
  std::vector<Tensor> cut = c.inputs;
  for (Tensor& t : cut) {
    t = t.clone();
    for (float& v : t.as<float>()) v = bf16_to_f32(bf16_truncate(v));
  }
  if (c.agrees(c.declared, cut))
    return "operands cut toward zero to bfloat16 instead of rounded to nearest";
  for (DotPrecision precision :
       {DotPrecision::kBf16, DotPrecision::kBf16x3, DotPrecision::kBf16x6, DotPrecision::kF32}) {
    if (precision == c.declared.precision) continue;
    Capabilities other = c.declared;
    other.precision = precision;
    if (c.agrees(other, c.inputs)) {
      return fmt::format("computed at precision '{}' where '{}' is declared", to_string(precision),
                         to_string(c.declared.precision));
    }
  }
  const int64_t k = k_size(c.op, c.inputs);
  for (int64_t tile : {128, 64, 32, 16, 8, 1}) {
    const int64_t tail = k % tile != 0 ? k % tile : std::min(k, tile);
    if (c.agrees(c.declared, without_k_tail(c.op, c.inputs, tail))) {
      return fmt::format("the last {} of {} terms of the sum are missing", tail, k);
    }
  }
  return "";
}

// All-reduce: a core's part missing or doubled.
std::string of_all_reduce(const Case& c) {
  for (size_t core = 0; core < c.inputs.size(); ++core) {
    std::vector<Tensor> parts = c.inputs;
    parts[core] = Tensor::zeros(parts[core].type());
    if (c.agrees(c.declared, parts)) return fmt::format("the sum without core {}", core);
  }
  for (size_t core = 0; core < c.inputs.size(); ++core) {
    std::vector<Tensor> parts = c.inputs;
    parts.push_back(parts[core]);
    if (c.agrees(c.declared, parts)) return fmt::format("the sum with core {} counted twice", core);
  }
  return "";
}

// From the numbers alone.
std::string of_values(const Case& c) {
  const auto s = c.subject.as<const float>();
  double sx = 0, ss = 0, xx = 0;
  int64_t born = 0, wrong = 0, first = -1, last = -1;
  for (size_t i = 0; i < s.size(); ++i) {
    const double x = c.oracle.value[i];
    if (!std::isfinite(s[i]) || !std::isfinite(x)) {
      born += std::isfinite(x) ? 1 : 0;
      continue;
    }
    sx += static_cast<double>(s[i]) * x;
    ss += static_cast<double>(s[i]) * s[i];
    xx += x * x;
    if (std::abs(s[i] - x) > c.oracle.radius[i]) {
      ++wrong;
      if (first < 0) first = static_cast<int64_t>(i);
      last = static_cast<int64_t>(i);
    }
  }
  if (born > 0) return fmt::format("{} elements that are NaN or Inf where a number was due", born);
  if (wrong == 1) {
    const auto i = static_cast<size_t>(first);
    return fmt::format("one element only: {:.9g} where {:.9g} was due", s[i], c.oracle.value[i]);
  }
  if (ss == 0 && xx > 0) return "all zeros";
  const double factor = xx > 0 ? sx / xx : 0,
               correlation = xx > 0 && ss > 0 ? sx / std::sqrt(ss * xx) : 0;
  if (std::abs(correlation) > 0.999999 && std::abs(factor - 1) > 1e-3)
    return fmt::format("{:.4g} times the expected value", factor);
  if (first < 0) return "";
  return fmt::format("{} elements between {} and {}, {:.4f} correlated with what was due", wrong,
                     index_text(c.op.type.dims, first), index_text(c.op.type.dims, last),
                     correlation);
}

}  // namespace

std::string index_text(const Dims& dims, int64_t flat) {
  Dims index(dims.size());
  for (size_t i = dims.size(); i-- > 0;) {
    index[i] = flat % dims[i];
    flat /= dims[i];
  }
  return to_string(index);
}

std::string fingerprint(const Capabilities& declared, const Op& op, const Tensor& subject,
                        const OracleResult& oracle, const std::vector<Tensor>& inputs,
                        ThreadPool* pool, const Tensor* previous) {
  if (op.phase == Phase::kUpdate) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].same_bits(subject))
        return i == 0 ? "an update of exactly zero: the old value was kept"
                      : "a copy of its operand";
    }
  }
  if (previous != nullptr && previous->same_bits(subject))
    return "the value of the step before (stale)";
  if (subject.dtype() != DType::kF32) return "";
  const Case c{declared, op, subject, oracle, inputs, pool};
  std::string special;
  if (class_of(op.kind) == OpClass::kDot) special = of_dot(c);
  if (op.kind == OpKind::kAllReduce) special = of_all_reduce(c);
  return special.empty() ? of_values(c) : special;
}

}  // namespace twinrun

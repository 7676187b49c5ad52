// Hypotheses that need no recomputation: values taken from memory, and patterns in the numbers.
#include "harness/lockstep/hypotheses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace twinrun {
namespace {

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
  out = {{"denormals flushed to zero, which is not declared", s.share([&](int64_t i) {
            return s.got(i) == 0 && std::fabs(s.expected(i)) < oracle::kMinNormal;
          })},
         {"denormals kept, where flushing them is declared", s.share([&](int64_t i) {
            return s.got(i) != 0 && std::fabs(s.got(i)) < oracle::kMinNormal &&
                   std::fabs(s.expected(i)) < oracle::kMinNormal;
          })}};
  std::vector<double> got;
  for (int64_t i = 0; i < s.op.type.elements(); ++i) got.push_back(s.got(i));
  const bool binary32 = s.subject.dtype() == DType::kF32;
  const Signature found = signature_of({.dims = s.op.type.dims,
                                        .got = got,
                                        .expected = s.oracle.value,
                                        .wrong = s.wrong,
                                        .allowed = s.oracle.radius,
                                        .slack = kSlack,
                                        .cores = s.past.cores,
                                        .binary32 = binary32});
  if (!found.signature.empty()) out.push_back({found.signature, 1});
  // A few numbers may be bfloat16 numbers by chance.
  if (binary32 && found.signature.empty() && s.wrong.size() >= 4) {
    out.push_back({"bfloat16 numbers only: summed in bfloat16", s.share([&](int64_t i) {
                     return (to_bits(static_cast<float>(s.got(i))) & 0xFFFFu) == 0;
                   })});
  }
  if (binary32 && std::ranges::none_of(out, [](const OpSignature& e) { return e.share == 1; }))
    roundings(s, out);
  return out;
}

}  // namespace twinrun

// Tries the families of hypotheses on a wrong result and keeps those that explain most of it.
#include "harness/lockstep/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/lockstep/hypotheses.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

// The share of the wrong elements from which a hypothesis is reported.
constexpr double kNearlyAll = 0.9;

std::string describe(const Suspect& s) {
  double sx = 0, ss = 0, xx = 0;
  for (const int64_t i : s.wrong) {
    const double got = s.got(i), expected = s.expected(i);
    if (!std::isfinite(got) || !std::isfinite(expected)) continue;
    sx += got * expected;
    ss += got * got;
    xx += expected * expected;
  }
  const double correlation = xx > 0 && ss > 0 ? sx / std::sqrt(ss * xx) : 0;
  return fmt::format("{} elements between {} and {}, {:.4f} correlated with the expected values",
                     s.wrong.size(), index_text(s.op.type.dims, s.wrong.front()),
                     index_text(s.op.type.dims, s.wrong.back()), correlation);
}

}  // namespace

std::vector<int64_t> wrong_elements(const OracleResult& oracle, const Tensor& subject) {
  std::vector<int64_t> wrong;
  const auto n = static_cast<int64_t>(oracle.value.size());
  for (int64_t i = 0; i < n; ++i) {
    const auto u = static_cast<size_t>(i);
    if (oracle::ratio(number_at(subject, i), {oracle.value[u], oracle.radius[u]}) > 1)
      wrong.push_back(i);
  }
  return wrong;
}

std::vector<OpSignature> op_signatures(const Capabilities& declared, const Op& op,
                                       const Tensor& subject, const OracleResult& oracle,
                                       const std::vector<Tensor>& inputs, ThreadPool* pool,
                                       const Past& past) {
  const Suspect s{declared, op,   subject, oracle,
                  inputs,   pool, past,    wrong_elements(oracle, subject)};
  std::vector<OpSignature> all;
  for (const auto& family : {from_memory, from_operands, from_values}) {
    for (OpSignature& e : family(s)) {
      if (e.share >= kNearlyAll) all.push_back(std::move(e));
    }
    // Stop at a family that explains everything: earlier families name a mechanism, later ones only
    // describe.
    if (std::ranges::any_of(all, [](const OpSignature& e) { return e.share == 1; })) break;
  }
  std::ranges::stable_sort(all, std::greater<>(), &OpSignature::share);
  for (OpSignature& e : all) {
    if (e.share < 1) e.text += fmt::format(" (explains {:.4g} % of what is wrong)", 100 * e.share);
  }
  if (all.empty() && !s.wrong.empty() && subject.dtype() == DType::kF32)
    all.push_back({describe(s), 0});
  return all;
}

std::string fingerprint(const Capabilities& declared, const Op& op, const Tensor& subject,
                        const OracleResult& oracle, const std::vector<Tensor>& inputs,
                        ThreadPool* pool, const Tensor* previous) {
  Past past;
  if (previous != nullptr) past.result = *previous;
  const auto all = op_signatures(declared, op, subject, oracle, inputs, pool, past);
  return all.empty() ? "" : all[0].text;
}

}  // namespace twinrun

// Compares ops and steps with those of 32 conforming engines.
#include "harness/drill/judges.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "backends/exec/messages.h"
#include "program/base/philox.h"

namespace twinrun::drill {
namespace {

constexpr uint64_t kFirstConforming =
    0x400000;                        // seeds of the judges, which no case's subject uses
constexpr int64_t kElements = 4096;  // compared at most, of one result
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ulp(double x) {
  const auto f = static_cast<float>(std::fabs(x));
  return std::nextafter(f, std::numeric_limits<float>::infinity()) - static_cast<double>(f);
}

std::vector<int64_t> every(size_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The elements to compare of a large result: those farthest from one conforming engine's, and
// random ones.
std::vector<int64_t> chosen(std::span<const float> conforming, std::span<const float> subject) {
  const auto n = static_cast<int64_t>(subject.size());
  std::vector<int64_t> all = every(subject.size());
  const auto far = [&](int64_t i) {
    const auto e = static_cast<size_t>(i);
    const double d =
        std::fabs(static_cast<double>(subject[e]) - static_cast<double>(conforming[e]));
    return std::isnan(d) ? kInfinity : d / ulp(conforming[e]);
  };
  std::ranges::partial_sort(all, all.begin() + kElements / 2, std::greater<>(), far);
  all.resize(kElements / 2);
  for (uint64_t i = 0; i < kElements / 2; ++i)
    all.push_back(bounded(draw({kFirstConforming, 0}, 0, 0, i), static_cast<uint32_t>(n)));
  return all;
}

// theirs[judge][element]. rounds: one ulp is allowed even where the judges all agree. slack:
// additional allowance of an element.
Comparison against(const std::vector<std::vector<float>>& theirs, const std::vector<float>& own,
                   bool rounds, const std::function<double(size_t)>& slack = {}) {
  std::vector<double> middle, half;
  for (size_t e = 0; e < own.size(); ++e) {
    double low = kInfinity, high = -low;
    for (const auto& v : theirs) {
      low = std::min<double>(low, v[e]);
      high = std::max<double>(high, v[e]);
    }
    middle.push_back(low / 2 + high / 2);
    half.push_back(high / 2 - low / 2);
    rounds = rounds || half.back() > 0;
  }
  // Where the judges happen to agree on one element, its neighbours still show how far apart they
  // can be.
  std::vector<double> apart;
  std::ranges::copy_if(half, std::back_inserter(apart), [](double h) { return h > 0; });
  std::ranges::sort(apart);
  const double typical = apart.empty() ? 0 : apart[apart.size() / 2];

  Comparison c;
  double lean = 0;
  std::vector<double> leans(theirs.size(), 0);
  for (size_t e = 0; e < own.size(); ++e) {
    const double x = own[e];
    // Conforming engines overflow here.
    if (!std::isfinite(middle[e]) || !std::isfinite(half[e])) continue;
    const double need =
        rounds ? std::max({half[e], typical, ulp(middle[e])}) + (slack ? slack(e) : 0) : 0;
    const double gap = std::fabs(x - middle[e]);
    if (!std::isfinite(gap)) {
      c.distance = kInfinity;
    } else if (gap > 0) {
      c.distance = std::max(c.distance, need > 0 ? gap / (kFactor * need) : kInfinity);
    }
    if (need == 0 || !std::isfinite(gap)) continue;
    const double sign = middle[e] < 0 ? -1 : 1;
    lean += std::clamp(sign * (x - middle[e]) / need, -1.0, 1.0);
    for (size_t v = 0; v < theirs.size(); ++v) leans[v] += sign * (theirs[v][e] - middle[e]) / need;
  }
  const double n = static_cast<double>(leans.size());
  const double mean = std::accumulate(leans.begin(), leans.end(), 0.0) / n;
  double square = 0;
  for (const double l : leans) square += (l - mean) * (l - mean);
  const double deviation = std::sqrt(square / (n - 1));
  c.lean = deviation > 0 ? (lean - mean) / deviation : 0;
  return c;
}

std::vector<float> picked(std::span<const float> values, std::span<const int64_t> elements) {
  std::vector<float> out;
  for (const int64_t e : elements) out.push_back(values[static_cast<size_t>(e)]);
  return out;
}

// Distance of one tensor's whole result.
double distance_of(const std::vector<Tensor>& theirs, const Tensor& own) {
  if (own.dtype() != DType::kF32) {
    return std::ranges::all_of(theirs, [&](const Tensor& t) { return t.same_bits(own); })
               ? 0
               : kInfinity;
  }
  std::vector<int64_t> elements = every(static_cast<size_t>(own.elements()));
  if (own.elements() > kElements) elements = chosen(theirs[0].as<float>(), own.as<float>());
  std::vector<std::vector<float>> values;
  for (const Tensor& t : theirs) values.push_back(picked(t.as<float>(), elements));
  // The values of a step are sums of sums: even where 32 engines agree to the bit, another
  // conforming engine may be one ulp away.
  return against(values, picked(own.as<float>(), elements), /*rounds=*/true).distance;
}

}  // namespace

std::vector<Variant> conforming_judges(const Capabilities& declared) {
  std::vector<Variant> conforming;
  for (uint64_t i = 0; i < kConforming; ++i)
    conforming.push_back(variant_within(kFirstConforming + i, declared));
  return conforming;
}

Comparison compare(const std::vector<Variant>& conforming, const Op& op,
                   const std::vector<Tensor>& inputs, const Tensor& output) {
  // Integers and predicates have exactly one right value, and this one differs from it.
  if (output.dtype() != DType::kF32) return {kInfinity, 0};
  const std::span<const float> subject = output.as<float>();
  std::vector<int64_t> elements = every(subject.size());
  if (output.elements() > kElements)
    elements = chosen(variant_elements(conforming[0], op, inputs, elements), subject);
  const auto theirs = variants_elements(conforming, op, inputs, elements);

  // An engine that declares it may fuse a product into the sum that reads it, without rounding the
  // product. The judges recompute only this op and read the rounded product, so allow half an ulp
  // of each operand.
  std::function<double(size_t)> unrounded;
  if (conforming[0].declared.contracts &&
      (op.kind == OpKind::kAdd || op.kind == OpKind::kSubtract)) {
    unrounded = [&](size_t e) {
      double sum = 0;
      for (const Tensor& operand : inputs)
        sum += ulp(operand.as<float>()[static_cast<size_t>(elements[e])]) / 2;
      return sum;
    };
  }
  return against(theirs, picked(subject, elements), static_cast<bool>(unrounded), unrounded);
}

Result<StepJudges> StepJudges::make(const std::vector<Variant>& conforming,
                                    const Program& program) {
  StepJudges judges;
  for (const Variant& variant : conforming) {
    judges.backends_.push_back(make_variant_backend(variant, {}));
    TWINRUN_ASSIGN(auto engine, judges.backends_.back()->prepare(program));
    judges.engines_.push_back(std::move(engine));
  }
  return judges;
}

Result<double> StepJudges::distance(int64_t step, const States& before, const StepInputs& inputs,
                                    const States& after, const StepOutputs& outputs) {
  std::vector<States> states;
  std::vector<StepOutputs> results(engines_.size());
  for (size_t j = 0; j < engines_.size(); ++j) {
    states.push_back(before);
    TWINRUN_RETURN_IF_ERROR(
        engines_[j]->step(step, states[j], inputs, results[j], nullptr, nullptr));
  }
  const Program& program = engines_.front()->program();
  double worst = 0;
  // of(judge, r) and own(r): one tensor on replica r. A replica that equals replica 0, for the
  // subject and for each judge, needs no second comparison.
  const auto judge = [&](const auto& of, const auto& own) {
    for (size_t r = 0; r < after.size(); ++r) {
      std::vector<Tensor> theirs;
      bool known = r > 0 && own(r).same_bits(own(0));
      for (size_t j = 0; j < engines_.size(); ++j) {
        theirs.push_back(of(j, r));
        known = known && theirs.back().same_bits(of(j, 0));
      }
      if (!known) worst = std::max(worst, distance_of(theirs, own(r)));
    }
  };
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    if (!exec::is_asked_for(program.outputs[o])) continue;
    judge([&](size_t j, size_t r) -> const Tensor& { return results[j][r][o]; },
          [&](size_t r) -> const Tensor& { return outputs[r][o]; });
  }
  for (size_t i = 0; i < program.state.size(); ++i) {
    judge([&](size_t j, size_t r) -> const Tensor& { return states[j][r].vars[i]; },
          [&](size_t r) -> const Tensor& { return after[r].vars[i]; });
  }
  return worst;
}

}  // namespace twinrun::drill

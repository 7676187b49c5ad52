#include "harness/bias.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "program/base/digest.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

constexpr int64_t kFewest = 8;  // different residuals that a direction needs
constexpr double kScatter =
    1.25;  // rms over mean size of a normal number: a direction's deviation is this over sqrt(n)
constexpr double kAsk = 2.5;  // deviations from which on honest engines are asked
constexpr int64_t kBudget = int64_t{1}
                            << 22;  // terms that honest engines may add up for one comparison

// Terms of one element's sum, as far as the cost of a comparison goes.
int64_t terms_of(const Op& op, std::span<const Tensor> inputs) {
  const int64_t n = std::max<int64_t>(1, op.type.elements());
  const auto size = [&](size_t i) { return inputs[i].elements(); };
  switch (op.kind) {
    case OpKind::kDotGeneral:
      return inputs[0].dims()[static_cast<size_t>(op.attrs.batch_dims + op.attrs.lhs_contract)];
    case OpKind::kConvolution:
      return size(1) / std::max<int64_t>(1, op.type.dims.back());
    case OpKind::kConvolutionInputGrad:
      return size(1) / std::max<int64_t>(1, op.type.dims.back());
    case OpKind::kConvolutionKernelGrad:
      return size(1) / std::max<int64_t>(1, op.type.dims.back());
    case OpKind::kAllReduce:
      return static_cast<int64_t>(inputs.size());
    default:
      return std::max<int64_t>(1, inputs.back().elements() / n);
  }
}

// Residuals in units of the radius: a large element has no more say than a small one.
struct Directions {
  double toward = 0, up = 0;  // in [-1, 1]: + away from zero, + upward
  double rms = 0, largest = 0;
  int64_t largest_at = -1;
  double effective = 0;  // how many independent residuals there are at most: (sum |x|)^2 / sum x^2
};

template <typename At>  // at(i) -> element of the result; residual[i] / radius there
Directions directions(std::span<const double> residual, const OracleResult& oracle, At at) {
  Directions d;
  double sum = 0, squares = 0, toward = 0, up = 0;
  int64_t counted = 0;
  for (size_t i = 0; i < residual.size(); ++i) {
    const auto e = static_cast<size_t>(at(i));
    const double radius = oracle.radius[e];
    if (!(radius > 0) || !std::isfinite(radius) || !std::isfinite(residual[i])) continue;
    const double x = residual[i] / radius, size = std::fabs(x);
    ++counted;
    sum += size;
    squares += x * x;
    toward += oracle.value[e] < 0 ? -x : x;
    up += x;
    if (size > d.largest) {
      d.largest = size;
      d.largest_at = static_cast<int64_t>(e);
    }
  }
  if (sum > 0) {
    d.toward = toward / sum;
    d.up = up / sum;
    d.effective = sum * sum / squares;
  }
  if (counted > 0) d.rms = std::sqrt(squares / static_cast<double>(counted));
  return d;
}

// Different sizes among the residuals, as many as are of interest: rows that repeat each other are one row.
int64_t different(std::span<const double> residual) {
  std::vector<double> sizes;
  const size_t step = std::max<size_t>(1, residual.size() / 1024);
  for (size_t i = 0; i < residual.size(); i += step) {
    if (residual[i] != 0) sizes.push_back(std::fabs(residual[i]));
  }
  std::ranges::sort(sizes);
  const auto end = std::ranges::unique(sizes).begin();
  return end - sizes.begin();
}

double half_ulp(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent - 25, -150));
}

// n of `all` elements, one from each stretch, where Philox says.
std::vector<int64_t> choose(int64_t all, int64_t n, uint64_t seed, const BiasSample& sample) {
  std::vector<int64_t> chosen;
  if (n >= all) {
    chosen.resize(static_cast<size_t>(all));
    for (int64_t i = 0; i < all; ++i) chosen[static_cast<size_t>(i)] = i;
    return chosen;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = all * i / n, end = all * (i + 1) / n;
    const uint32_t u =
        draw({seed, static_cast<uint32_t>(sample.id)}, static_cast<uint32_t>(sample.step),
             static_cast<uint32_t>(sample.replica), static_cast<uint64_t>(i));
    chosen.push_back(begin + static_cast<int64_t>(bounded(u, static_cast<uint32_t>(end - begin))));
  }
  return chosen;
}

constexpr std::string_view kNames[] = {"toward zero", "away from zero", "upward",
                                       "downward",    "size",           "one element"};

}  // namespace

std::string BiasFinding::text() const {
  const std::string rests = fmt::format(
      "{} results on {} steps agree, from step {} on; {} honest engines of the declared "
      "arithmetic on the same inputs",
      observations, steps, first_step, members);
  if (score.name == "size") {
    return fmt::format("its rounding errors are {:.3g} times the largest of honest engines ({})",
                       score.value, rests);
  }
  if (score.name == "one element") {
    return fmt::format("one element's error is {:.3g} times the largest of honest engines ({})",
                       score.value, rests);
  }
  return fmt::format(
      "its rounding errors point {}: score {:+.2f} of -1..1, honest engines within [{:+.2f}, "
      "{:+.2f}] ({})",
      score.name, score.value, score.low, score.high, rests);
}

bool BiasWatch::scored(const Op& op) {
  if (op.type.dtype != DType::kF32 || op.type.elements() == 0) return false;
  switch (op.kind) {
    case OpKind::kDotGeneral:
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
    case OpKind::kConvolutionKernelGrad:
    case OpKind::kScatterAdd:
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
    case OpKind::kAllReduce:
      return true;
    case OpKind::kReduce:
    case OpKind::kReduceWindow:
      return op.attrs.reducer != Reducer::kMax;
    default:
      return false;
  }
}

bool BiasWatch::suspects(ValueId id) const {
  if (settled_.contains(id)) return false;
  for (auto it = runs_.lower_bound({id, -1}); it != runs_.end() && it->first.first == id; ++it) {
    if (std::ranges::any_of(it->second, [](const Run& run) { return run.level > 0; })) return true;
  }
  return false;
}

// The scores of honest engines on a sample of the elements, and whether the subject's are beyond.
void BiasWatch::compare(const BiasSample& sample, Scores& seen, std::span<const double> residual) {
  const OracleResult& oracle = *sample.oracle;
  const int64_t all = sample.op->type.elements();
  const int64_t terms = terms_of(*sample.op, sample.inputs);
  const int64_t n = std::clamp<int64_t>(kBudget / (terms * kMembers), 16, kElements);
  std::vector<int64_t> elements = choose(all, n, seed_, sample);
  // The worst element is looked at, too.
  const Directions whole = directions(residual, oracle, [](size_t i) { return i; });
  if (whole.largest_at >= 0) elements.push_back(whole.largest_at);
  const uint64_t which = (static_cast<uint64_t>(sample.step) << 32) ^
                         (static_cast<uint64_t>(sample.id) << 12) ^
                         static_cast<uint64_t>(sample.replica + 1);
  const auto members = honest_(which, kMembers, *sample.op, sample.inputs, elements);
  ++counts_.asked;
  if (members.empty()) return;

  const size_t chosen = elements.size() - (whole.largest_at >= 0 ? 1 : 0);
  const auto at = [&](size_t i) { return elements[i]; };
  std::vector<double> mine(chosen), theirs(chosen);
  double floor = 0;  // half an ulp of the result: what a single rounding may be off by
  for (size_t i = 0; i < chosen; ++i) {
    const auto e = static_cast<size_t>(elements[i]);
    mine[i] = residual[e];
    if (oracle.radius[e] > 0 && std::isfinite(oracle.radius[e])) {
      const double x = half_ulp(oracle.value[e]) / oracle.radius[e];
      floor += x * x;
    }
  }
  floor = std::sqrt(floor / static_cast<double>(std::max<size_t>(chosen, 1)) / 3);
  const Directions subject = directions(mine, oracle, at);
  struct Range {
    double low = 0, high = 0, squares = 0;
    void add(double x) {
      low = std::min(low, x), high = std::max(high, x);
      squares += x * x;
    }
  } toward, up;
  double size = floor, one = 0;
  for (const auto& member : members) {
    for (size_t i = 0; i < chosen; ++i)
      theirs[i] = static_cast<double>(member[i]) - oracle.value[static_cast<size_t>(elements[i])];
    const Directions d = directions(theirs, oracle, at);
    toward.add(d.toward);
    up.add(d.up);
    size = std::max(size, d.rms);
    if (whole.largest_at >= 0) {
      one = std::max(one, std::fabs(static_cast<double>(member[chosen]) -
                                    oracle.value[static_cast<size_t>(whole.largest_at)]));
    }
  }
  honest_size_[sample.id] = size;

  // Directions: beyond the honest ones of either sign, on enough different residuals. A deviation is what honest engines
  // show, and at least that of independent errors.
  if (subject.effective >= kFewest && different(mine) >= kFewest) {
    const auto direction = [&](double score, const Range& range, Kind positive, Kind negative) {
      const double deviation =
          std::max(std::sqrt(range.squares / static_cast<double>(members.size())),
                   kScatter / std::sqrt(subject.effective));
      const double beyond =
          (std::fabs(score) - std::max(range.high, -range.low)) / deviation - kMargin;
      const Kind kind = score > 0 ? positive : negative;
      seen[kind] = {beyond > 0 ? 1 + std::min(beyond, 1.0) : 0, score, range.low, range.high};
    };
    direction(subject.toward, toward, kAwayFromZero, kTowardZero);
    direction(subject.up, up, kUpward, kDownward);
  }
  // Sizes: few elements leave the largest honest error to chance.
  const double larger = kLarger * (1 + 8 / std::sqrt(static_cast<double>(chosen)));
  if (size > 0) {
    const double ratio = subject.rms / size;
    seen[kSize] = {ratio > larger ? 1.5 : 0, ratio, 0, 1};
  }
  if (whole.largest_at >= 0) {
    const auto e = static_cast<size_t>(whole.largest_at);
    const double ratio = std::fabs(residual[e]) / (one + half_ulp(oracle.value[e]));
    seen[kOne] = {ratio > kOneElement ? 1.5 : 0, ratio, 0, 1};
  }
}

std::optional<BiasWatch::Scores> BiasWatch::scores(const BiasSample& sample) {
  const auto subject = sample.subject->as<const float>();
  const OracleResult& oracle = *sample.oracle;
  std::vector<double> residual(subject.size());
  for (size_t i = 0; i < subject.size(); ++i)
    residual[i] = static_cast<double>(subject[i]) - oracle.value[i];
  // What is fed again gives the same residuals again: no new evidence.
  const Digest bits = digest_bytes(residual.data(), residual.size() * sizeof(double));
  uint64_t& last = last_[{sample.id, sample.replica}];
  if (last == bits.low) return std::nullopt;
  last = bits.low;
  ++counts_.results;

  Scores seen;
  const Directions d = directions(residual, oracle, [](size_t i) { return i; });
  const auto known = honest_size_.find(sample.id);
  // Honest engines are asked when a score calls for it, and once to know what size their errors have.
  const bool leans =
      d.effective >= kFewest &&
      std::max(std::fabs(d.toward), std::fabs(d.up)) * std::sqrt(d.effective) > kAsk * kScatter;
  const bool large =
      known == honest_size_.end() || d.rms > 2 * known->second || d.largest > 8 * known->second;
  if (d.rms > 0 && (leans || large)) compare(sample, seen, residual);
  return seen;
}

std::optional<BiasFinding> BiasWatch::agree(const BiasSample& sample, int replica, double weight,
                                            const Scores& seen) {
  auto& runs = runs_[{sample.id, replica}];
  std::optional<BiasFinding> finding;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    Run& run = runs[kind];
    const Seen& s = seen[kind];
    if (s.gain <= 0) {
      run.level -= kFalls * weight;
      if (run.level <= 0) run = {};
      continue;
    }
    if (run.level == 0) run.first_step = sample.step;
    run.level += s.gain * weight;
    ++run.observations;
    run.steps.insert(sample.step);
    run.value += s.value;
    run.low = std::min(run.low, s.low);
    run.high = std::max(run.high, s.high);
    if (run.level > counts_.highest) {
      counts_.highest = run.level;
      counts_.highest_at = fmt::format("{}, {}", sample.op->name, kNames[kind]);
    }
    if (run.level < kEnough || run.observations < kResults ||
        static_cast<int64_t>(run.steps.size()) < kSteps) {
      continue;
    }
    // Of several, the direction that says most; sizes only where no direction does.
    const double value = run.value / static_cast<double>(run.observations);
    if (finding && (kind >= kSize || std::fabs(value) <= std::fabs(finding->score.value))) continue;
    BiasFinding f;
    f.score = {std::string(kNames[kind]), value, run.low, run.high};
    f.first_step = run.first_step;
    f.steps = static_cast<int64_t>(run.steps.size());
    f.observations = run.observations;
    f.members = kMembers;
    finding = f;
  }
  return finding;
}

std::optional<BiasFinding> BiasWatch::observe(const BiasSample& sample) {
  if (!honest_ || settled_.contains(sample.id)) return std::nullopt;
  const std::optional<Scores> seen = scores(sample);
  if (!seen) return std::nullopt;
  counts_.beyond += std::ranges::any_of(*seen, [](const Seen& s) { return s.gain > 0; }) ? 1 : 0;
  // Together with the other cores, and on its own: a core may be wrong alone.
  std::optional<BiasFinding> finding =
      agree(sample, -1, sample.replica < 0 ? 1 : 1.0 / sample.cores, *seen);
  std::optional<BiasFinding> alone =
      sample.replica >= 0 ? agree(sample, sample.replica, 1, *seen) : std::nullopt;
  if (!finding) finding = std::move(alone);
  if (!finding) return std::nullopt;
  settled_.insert(sample.id);
  ++counts_.findings;
  // How the result relates to what was due, in one number.
  double sx = 0, xx = 0;
  const auto subject = sample.subject->as<const float>();
  for (size_t i = 0; i < subject.size(); ++i) {
    const double x = sample.oracle->value[i];
    if (!std::isfinite(subject[i]) || !std::isfinite(x)) continue;
    sx += (static_cast<double>(subject[i]) - x) * x;
    xx += x * x;
  }
  finding->factor = xx > 0 ? 1 + sx / xx : 1;
  return finding;
}

}  // namespace twinrun

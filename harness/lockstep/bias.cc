// Scores the rounding errors of results against those of conforming engines, and decides when
// enough results agree for a finding.
#include "harness/lockstep/bias.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "program/base/digest.h"
#include "program/base/philox.h"
#include "program/ops/contraction.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr int64_t kFewest = 8;  // distinct residuals that a direction needs
// Root mean square over mean magnitude of a normal number: n independent errors give a direction
// with a standard deviation of kScatter / sqrt(n).
constexpr double kScatter = 1.25;
// The standard deviations beyond which a direction is compared with conforming engines.
constexpr double kAsk = 2.5;
// Terms that the conforming engines may add up in one comparison.
constexpr int64_t kBudget = int64_t{1} << 22;

// The number of terms in the sum of one element, as an estimate of the cost of a comparison.
int64_t terms_of(const Op& op, std::span<const Tensor> inputs) {
  if (class_of(op.kind) == OpClass::kDot) return std::max<int64_t>(1, k_size(op, inputs));
  if (op.kind == OpKind::kAllReduce) return static_cast<int64_t>(inputs.size());
  return std::max<int64_t>(1, inputs.back().elements() / std::max<int64_t>(1, op.type.elements()));
}

// at(i) is the element of the result that residual[i] belongs to.
template <typename At>
ResidualSums sums_of(std::span<const double> residual, const OracleResult& oracle, At at) {
  ResidualSums s;
  for (size_t i = 0; i < residual.size(); ++i) {
    const auto e = static_cast<size_t>(at(i));
    const double radius = oracle.radius[e];
    if (!(radius > 0) || !std::isfinite(radius) || !std::isfinite(residual[i])) continue;
    const double x = residual[i] / radius;
    ++s.counted;
    s.sizes += std::fabs(x);
    s.squares += x * x;
    s.away += oracle.value[e] < 0 ? -x : x;
    s.up += x;
  }
  return s;
}

struct Largest {
  double size = 0;
  int64_t at = -1;
};
Largest largest_of(std::span<const double> residual, const OracleResult& oracle) {
  Largest l;
  for (size_t e = 0; e < residual.size(); ++e) {
    const double radius = oracle.radius[e];
    if (!(radius > 0) || !std::isfinite(radius) || !std::isfinite(residual[e])) continue;
    if (const double size = std::fabs(residual[e]) / radius; size > l.size)
      l = {size, static_cast<int64_t>(e)};
  }
  return l;
}

// The distinct magnitudes of at most 2047 of the residuals: elements that repeat each other count
// once.
template <typename At>
std::vector<float> sizes_of(std::span<const double> residual, const OracleResult& oracle, At at) {
  std::vector<float> sizes;
  const size_t step = std::max<size_t>(1, residual.size() / 1024);
  for (size_t i = 0; i < residual.size(); i += step) {
    const double x = std::fabs(residual[i]) / oracle.radius[static_cast<size_t>(at(i))];
    if (x > 0 && std::isfinite(x)) sizes.push_back(static_cast<float>(x));
  }
  std::ranges::sort(sizes);
  const auto repeated = std::unique(sizes.begin(), sizes.end());
  sizes.erase(repeated, sizes.end());
  return sizes;
}

double half_ulp(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent - 25, -150));
}

// n of `all` elements: one from each of n equal stretches, drawn by Philox.
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

double largest_rms(const std::vector<ResidualSums>& members) {
  double rms = 0;
  for (const ResidualSums& member : members) rms = std::max(rms, member.rms());
  return rms;
}

constexpr std::string_view kNames[] = {"toward zero", "away from zero", "upward",
                                       "downward",    "size",           "one element"};

}  // namespace

double ResidualSums::direction(double total) const { return sizes > 0 ? total / sizes : 0; }
double ResidualSums::rms() const {
  return counted > 0 ? std::sqrt(squares / static_cast<double>(counted)) : 0;
}
double ResidualSums::effective() const { return squares > 0 ? sizes * sizes / squares : 0; }
void ResidualSums::add(const ResidualSums& o) {
  away += o.away, up += o.up, sizes += o.sizes, squares += o.squares;
  counted += o.counted;
}

std::string BiasFinding::text() const {
  const std::string rests = fmt::format(
      "seen {}, on {}, from step {} on; against {} conforming engines on the same inputs",
      observations == 1 ? "once" : fmt::format("{} times", observations),
      text::plural(steps, "step"), first_step, members);
  if (score.name == "size") {
    return fmt::format("its rounding errors are {} the largest of conforming engines ({})",
                       text::times(score.value), rests);
  }
  if (score.name == "one element") {
    return fmt::format("one element's error is {} the largest of conforming engines ({})",
                       text::times(score.value), rests);
  }
  return fmt::format(
      "its rounding errors point {}: score {} of -1 to 1, conforming engines within {} ({})",
      score.name, text::signed_number(score.value), text::interval(score.low, score.high), rests);
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

bool BiasWatch::suspects_any() const {
  return std::ranges::any_of(runs_, [&](const auto& runs) { return suspects(runs.first.first); });
}

void BiasWatch::Against::add(const Against& o) {
  subject.add(o.subject);
  if (members.empty()) members.resize(o.members.size());
  for (size_t m = 0; m < members.size(); ++m) members[m].add(o.members[m]);
  floor += o.floor;
  std::vector<float> both;
  std::ranges::set_union(different, o.different, std::back_inserter(both));
  different = std::move(both);
  results += o.results;
}

// Compares the directions and the size of the subject's residuals with the members'. A direction is
// outside if its magnitude exceeds that of every member in either sign. Its standard deviation is
// what the members show, and at least that of independent errors.
BiasWatch::Judged BiasWatch::judge(const Against& against) {
  Judged out;
  const ResidualSums& subject = against.subject;
  const double size = std::max(
      largest_rms(against.members),
      std::sqrt(against.floor / static_cast<double>(std::max<int64_t>(1, subject.counted))));
  out.conforming_size = size;
  const double effective =
      std::min(subject.effective(), static_cast<double>(against.different.size()));
  if (effective >= kFewest) {
    const auto direction = [&](double ResidualSums::*total, Kind positive, Kind negative) {
      double low = 0, high = 0, squares = 0;
      for (const ResidualSums& member : against.members) {
        const double x = member.direction(member.*total);
        low = std::min(low, x), high = std::max(high, x);
        squares += x * x;
      }
      const double score = subject.direction(subject.*total);
      const double deviation =
          std::max(std::sqrt(squares / static_cast<double>(against.members.size())),
                   kScatter / std::sqrt(effective));
      out.scores[score > 0 ? positive : negative] = {
          (std::fabs(score) - std::max(high, -low)) / deviation - kMargin, score, low, high};
    };
    direction(&ResidualSums::away, kAwayFromZero, kTowardZero);
    direction(&ResidualSums::up, kUpward, kDownward);
  }
  // With few elements, the largest conforming error is subject to chance.
  const double larger =
      kLarger * (1 + 8 / std::sqrt(static_cast<double>(std::max<int64_t>(1, subject.counted))));
  if (size > 0) out.scores[kSize] = {subject.rms() / size - larger, subject.rms() / size, 0, 1};
  return out;
}

// The residuals of conforming engines and of the subject on a sample of the elements.
std::optional<BiasWatch::Against> BiasWatch::ask(const BiasSample& sample,
                                                 std::span<const double> residual, uint64_t which,
                                                 Scores* seen) {
  const OracleResult& oracle = *sample.oracle;
  const int64_t all = sample.op->type.elements();
  const int64_t terms = terms_of(*sample.op, sample.inputs);
  const int64_t n = std::clamp<int64_t>(kBudget / (terms * kMembers), 16, kElements);
  std::vector<int64_t> elements = choose(all, n, seed_, sample);
  // Compare the worst element as well; it does not enter the sums.
  const Largest worst = largest_of(residual, oracle);
  const size_t chosen = elements.size();
  if (worst.at >= 0) elements.push_back(worst.at);
  const auto members = conforming_(which, kMembers, *sample.op, sample.inputs, elements);
  ++counts_.asked;
  if (members.empty()) return std::nullopt;

  const auto at = [&](size_t i) { return elements[i]; };
  std::vector<double> mine(chosen), theirs(chosen);
  Against against;
  against.results = 1;
  for (size_t i = 0; i < chosen; ++i) {
    const auto e = static_cast<size_t>(elements[i]);
    mine[i] = residual[e];
    if (oracle.radius[e] > 0 && std::isfinite(oracle.radius[e])) {
      const double x = half_ulp(oracle.value[e]) / oracle.radius[e];
      against.floor += x * x / 3;  // the variance of a single rounding, uniform within half an ulp
    }
  }
  against.subject = sums_of(mine, oracle, at);
  against.different = sizes_of(mine, oracle, at);
  double one = 0;
  for (const auto& member : members) {
    for (size_t i = 0; i < chosen; ++i)
      theirs[i] = static_cast<double>(member[i]) - oracle.value[static_cast<size_t>(elements[i])];
    against.members.push_back(sums_of(theirs, oracle, at));
    if (worst.at >= 0) {
      one = std::max(one, std::fabs(static_cast<double>(member[chosen]) -
                                    oracle.value[static_cast<size_t>(worst.at)]));
    }
  }
  if (seen == nullptr) return against;
  const Judged judged = judge(against);
  conforming_size_[sample.id] = judged.conforming_size;
  for (size_t kind = 0; kind < kOne; ++kind) {
    const Judgement& j = judged.scores[kind];
    const double gain = kind == kSize ? 1.5 : 1 + std::min(j.beyond, 1.0);
    (*seen)[kind] = {j.beyond > 0 ? gain : 0, j.value, j.low, j.high};
  }
  if (worst.at >= 0) {
    const auto e = static_cast<size_t>(worst.at);
    // In sums of few terms, all conforming engines may happen to be exact at this element; their
    // errors at the other elements then give the expected size.
    const double expected =
        std::max(one + half_ulp(oracle.value[e]), judged.conforming_size * oracle.radius[e]);
    const double ratio = std::fabs(residual[e]) / expected;
    (*seen)[kOne] = {ratio > kOneElement ? 1.5 : 0, ratio, 0, 1};
  }
  return against;
}

// The score of the residuals of one step, which may be too few to compare with the members.
double BiasWatch::alone(const Against& of, Kind kind) {
  const ResidualSums& s = of.subject;
  if (kind != kSize)
    return s.direction(kind == kTowardZero || kind == kAwayFromZero ? s.away : s.up);
  const double size = largest_rms(of.members);
  return size > 0 ? s.rms() / size : 0;
}

// Pools results that are too small to decide alone: the results after a suspicious one are added up
// until they decide, or until nothing suspicious is left.
std::optional<BiasFinding> BiasWatch::pool(const BiasSample& sample, int replica, bool suspicious,
                                           const std::optional<Against>& against) {
  Pool& pool = pools_[{sample.id, replica}];
  if (!pool.open) {
    // The result that raised the suspicion is left out: it was selected for its score.
    if (suspicious) {
      pool = {true, sample.step, {}};
      ++counts_.opened;
    }
    return std::nullopt;
  }
  if (!against) return std::nullopt;
  pool.steps[sample.step].add(*against);
  if (pool.steps.size() > kPooledSteps) pool.steps.erase(pool.steps.begin());

  // Sum from the last step backwards, because the fault may begin at any of the steps.
  std::optional<BiasFinding> finding;
  double most = 0;
  bool calm = true;
  Against since;
  int64_t steps = 0;
  for (auto step = pool.steps.rbegin(); step != pool.steps.rend(); ++step) {
    since.add(step->second);
    ++steps;
    const Judged judged = judge(since);
    for (size_t kind = 0; kind < kOne; ++kind) {
      const Judgement& j = judged.scores[kind];
      calm = calm && (kind == kSize ? j.value < 2 : j.beyond < 0);
      const double beyond =
          kind == kSize ? j.beyond : std::min(j.beyond - kPooled, std::fabs(j.value) - kClear);
      if (since.results < kResults || steps < kSteps) continue;
      counts_.pooled = std::max(
          counts_.pooled, kind == kSize ? j.value / (j.value - j.beyond) : j.beyond / kPooled);
      if (beyond <= 0) continue;
      // The finding begins at this step only if the step alone shows half of the score.
      if (alone(step->second, static_cast<Kind>(kind)) / j.value < 0.5) continue;
      // Of several scores take the direction farthest outside; take a size only if there is no
      // direction.
      const bool size = kind == kSize, had_size = finding && finding->score.name == kNames[kSize];
      if (finding && (size != had_size ? size : beyond <= most)) continue;
      most = beyond;
      // The result that opened the pool precedes those in it and is equally suspicious.
      const bool since_opened = steps + 1 >= static_cast<int64_t>(pool.steps.size());
      finding = BiasFinding{{std::string(kNames[kind]), j.value, j.low, j.high},
                            since_opened ? pool.first_step : step->first,
                            steps,
                            since.results,
                            kMembers};
    }
  }
  if (calm && steps >= 2 * kSteps) pool = {};
  return finding;
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
    // Of several scores take the largest direction; take a size only where there is no direction.
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
  if (!conforming_ || settled_.contains(sample.id)) return std::nullopt;
  const auto subject = sample.subject->as<const float>();
  const OracleResult& oracle = *sample.oracle;
  std::vector<double> residual(subject.size());
  for (size_t i = 0; i < subject.size(); ++i)
    residual[i] = static_cast<double>(subject[i]) - oracle.value[i];
  // The same operands again give the same residuals, which are no new evidence.
  const Digest bits = digest_bytes(residual.data(), residual.size() * sizeof(double));
  uint64_t& last = last_[{sample.id, sample.replica}];
  if (last == bits.low) return std::nullopt;
  last = bits.low;
  // Whether core 0 has the same residuals.
  const bool repeats = sample.replica > 0 && last_[{sample.id, 0}] == bits.low;
  ++counts_.results;

  const ResidualSums whole = sums_of(residual, oracle, [](size_t i) { return i; });
  const double rms = whole.rms(), effective = whole.effective();
  const auto known = conforming_size_.find(sample.id);
  // Compare with conforming engines if a score is suspicious, once to learn the size of their
  // errors, and while a pool is open.
  const bool leans = effective >= kFewest && std::max(std::fabs(whole.direction(whole.away)),
                                                      std::fabs(whole.direction(whole.up))) *
                                                     std::sqrt(effective) >
                                                 kAsk * kScatter;
  const bool large = known == conforming_size_.end() || rms > 2 * known->second ||
                     largest_of(residual, oracle).size > 8 * known->second;
  const bool pooling = pools_[{sample.id, -1}].open || pools_[{sample.id, sample.replica}].open;
  Scores seen;
  std::optional<Against> against;
  const auto op = static_cast<uint64_t>(sample.id) << 12;
  const bool asks = rms > 0 && (leans || large);
  if (asks) {
    ask(sample, residual,
        static_cast<uint64_t>(sample.step) << 32 ^ op ^ static_cast<uint64_t>(sample.replica + 1),
        &seen);
  }
  // A pool uses the same engines throughout: an order of summation that errs to one side on sums of
  // equal terms does so in every result.
  if (rms > 0 && pooling) against = ask(sample, residual, op, nullptr);
  counts_.beyond += std::ranges::any_of(seen, [](const Seen& s) { return s.gain > 0; }) ? 1 : 0;

  // Judge the core together with the others, and alone: one core may be the only wrong one.
  const double weight = sample.replica < 0 ? 1 : 1.0 / sample.cores;
  const bool suspicious = asks && (leans || rms > 2 * conforming_size_[sample.id]);
  std::optional<BiasFinding> finding = agree(sample, -1, weight, seen);
  std::optional<BiasFinding> added;
  if (!repeats) added = pool(sample, -1, suspicious, against);
  if (!finding) finding = std::move(added);
  if (sample.replica >= 0) {
    std::optional<BiasFinding> alone = agree(sample, sample.replica, 1, seen);
    added = pool(sample, sample.replica, suspicious, against);
    if (!alone) alone = std::move(added);
    if (!finding) finding = std::move(alone);
  }
  if (!finding) return std::nullopt;
  settled_.insert(sample.id);
  ++counts_.findings;
  // The least-squares factor of the result against the expected values.
  double sx = 0, xx = 0;
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

// Intervals and outcomes over paired seeds, and whether the reference has learnt.
#include "harness/effect/effect.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "harness/effect/moments.h"
#include "program/base/distributions.h"

namespace twinrun {
namespace {

constexpr double kAlpha = 0.05;  // two-sided error of all looks at all metrics together
constexpr double kPower = 0.8;
// "None detected" needs enough seeds to show the effect of another seed of the reference: two
// standard deviations between seeds, taken at their lower 95 % bound.
constexpr double kHarmful = 2;
constexpr double kGrowth = 1.6;  // factor of the number of seeds from look to look

double quantile(double n, double p) { return student_quantile(n - 1, p); }

// The lower 95 % bound of the true standard deviation, as a factor of that of `n` numbers.
double lower_bound_of_deviation(double n) {
  return std::sqrt((n - 1) / chi_squared_quantile(n - 1, 0.95));
}

}  // namespace

std::vector<double> values_of(const std::vector<Evaluation>& runs, double Evaluation::*value) {
  std::vector<double> out;
  for (const Evaluation& run : runs) out.push_back(run.*value);
  return out;
}

std::vector<int> looks_of(int first, int most) {
  std::vector<int> looks = {first};
  while (looks.back() < most) {
    const double next = std::round(kGrowth * looks.back());
    looks.push_back(next > 0.75 * most ? most : static_cast<int>(next));
  }
  return looks;
}

SeedTrials::SeedTrials(const DiagnoseSpec& asked, bool labels_are_classes, int64_t labels)
    : first_(asked.seeds),
      looks_(looks_of(asked.seeds, asked.seeds > 1 ? std::max(asked.seeds, asked.max_seeds) : 1)) {
  const Metric loss = {kLossMetric, &Evaluation::loss, asked.margin, "diagnose.margin", 0};
  const Metric accuracy = {kAccuracyMetric, &Evaluation::accuracy, asked.accuracy_margin,
                           "diagnose.accuracy_margin",
                           1 / static_cast<double>(std::max<int64_t>(1, labels))};
  const bool only_loss = asked.margin > 0 && asked.accuracy_margin == 0,
             only_accuracy = asked.accuracy_margin > 0 && asked.margin == 0;
  const bool chosen = asked.metric != "auto";
  const bool take_accuracy = labels_are_classes && (chosen ? asked.metric != "loss" : !only_loss);
  if (!take_accuracy || (chosen ? asked.metric != "accuracy" : !only_accuracy))
    metrics_.push_back(loss);
  if (take_accuracy) metrics_.push_back(accuracy);
}

double SeedTrials::alpha(size_t looks) const {
  return kAlpha / static_cast<double>(looks * metrics_.size());
}

TrajectoryRow SeedTrials::row_of(const Metric& metric, std::vector<double> differences,
                                 const std::vector<double>& reference, bool broken,
                                 bool stops_early) const {
  TrajectoryRow row;
  row.metric = metric.name;
  row.margin = metric.margin;
  row.margin_source = metric.margin > 0 ? metric.margin_key : "";
  row.differences = std::move(differences);
  row.mean = row.low = row.high = mean_of(row.differences);
  row.seed_spread = deviation_of(reference);
  row.outcome = PairedOutcome::kUndecided;
  if (broken) {  // a run of `a` diverged; the mean of its loss is no number
    row.outcome = PairedOutcome::kHarmful;
    return row;
  }
  const auto n = static_cast<double>(row.differences.size());
  if (n < 2) return row;
  if (std::ranges::all_of(row.differences, [](double d) { return d == 0; })) {
    row.outcome = PairedOutcome::kIdentical;
    return row;
  }
  if (!std::isfinite(row.mean)) return row;  // a reference run of another seed diverged
  // Values that are multiples of a resolution (one sample of accuracy, one unit in the last place
  // of a binary32 loss) have a rounding error that a few equal differences would hide, so its
  // variance is added.
  const double resolution =
      metric.resolution > 0 ? metric.resolution : std::ldexp(std::fabs(mean_of(reference)), -23);
  const double s = std::hypot(deviation_of(row.differences), resolution / std::sqrt(12));
  const double tail = alpha(looks_.size()) / 2;
  row.level = 1 - 2 * tail;
  const double half = quantile(n, 1 - tail) * s / std::sqrt(n);
  row.detectable = half + quantile(n, kPower) * s / std::sqrt(n);
  row.low = row.mean - half;
  row.high = row.mean + half;
  row.must_see =
      metric.margin > 0
          ? metric.margin
          : std::max(resolution, kHarmful * row.seed_spread * lower_bound_of_deviation(n));
  const bool significant = row.low > 0 || row.high < 0;
  const bool worse = is_worse(row);
  const bool last = row.differences.size() >= static_cast<size_t>(looks_.back());
  if (metric.margin > 0) {
    const bool inside = -metric.margin < row.low && row.high < metric.margin;
    const bool beyond = row.low > metric.margin || row.high < -metric.margin;
    if (inside && (significant || last || stops_early)) {
      row.outcome = significant ? PairedOutcome::kWithinMargin : PairedOutcome::kNoneDetected;
    } else if (beyond || (significant && last)) {
      row.outcome = worse ? PairedOutcome::kHarmful : PairedOutcome::kBeneficial;
    }
  } else if (significant) {
    row.outcome = worse ? PairedOutcome::kHarmful : PairedOutcome::kBeneficial;
  } else if (row.detectable <= row.must_see && (last || stops_early)) {
    row.outcome = PairedOutcome::kNoneDetected;
  }
  if (row.outcome != PairedOutcome::kUndecided) return row;
  constexpr int kMax = 1000;
  for (int more = static_cast<int>(n) + 1; more <= kMax; ++more) {
    const double at = alpha(looks_of(first_, more).size()) / 2, root = std::sqrt(more);
    const double t = quantile(more, 1 - at), reach = t * s / root;
    const double room = metric.margin > 0 ? metric.margin - std::fabs(row.mean) : 0;
    if ((metric.margin > 0 ? reach < std::fabs(room) : reach < std::fabs(row.mean)) ||
        (metric.margin == 0 && reach + quantile(more, kPower) * s / root <=
                                   kHarmful * row.seed_spread * lower_bound_of_deviation(more))) {
      row.would_decide = more;
      break;
    }
  }
  return row;
}

std::vector<TrajectoryRow> SeedTrials::compare(const std::string& pair, const std::string& meaning,
                                               const std::vector<Evaluation>& a,
                                               const std::vector<Evaluation>& b,
                                               const std::vector<Evaluation>& reference,
                                               bool stops_early) const {
  std::vector<TrajectoryRow> rows;
  for (const Metric& metric : metrics_) {
    const std::vector<double> x = values_of(a, metric.value), y = values_of(b, metric.value);
    std::vector<double> differences;
    bool broken = false;
    for (size_t i = 0; i < x.size(); ++i) {
      differences.push_back(x[i] - y[i]);
      broken = broken || (!std::isfinite(a[i].loss) && std::isfinite(b[i].loss));
    }
    TrajectoryRow row = row_of(metric, std::move(differences), values_of(reference, metric.value),
                               broken, stops_early);
    row.pair = pair;
    row.meaning = meaning;
    rows.push_back(std::move(row));
  }
  return rows;
}

bool is_worse(const TrajectoryRow& row) {
  if (!std::isfinite(row.mean)) return true;
  return row.metric == kAccuracyMetric ? row.mean < 0 : row.mean > 0;
}

Effect effect_of(const TrajectoryRow& row) {
  switch (row.outcome) {
    case PairedOutcome::kIdentical:
    case PairedOutcome::kNoneDetected:
      return Effect::kNoneDetected;
    case PairedOutcome::kWithinMargin:
      return Effect::kWithinMargin;
    case PairedOutcome::kHarmful:
      return Effect::kHarmful;
    case PairedOutcome::kBeneficial:
      return Effect::kBeneficial;
    default:
      return Effect::kUndecided;
  }
}

bool is_significant(const TrajectoryRow* row) {
  if (row == nullptr) return false;
  const Effect effect = effect_of(*row);
  return effect == Effect::kHarmful || effect == Effect::kBeneficial ||
         effect == Effect::kWithinMargin;
}

const TrajectoryRow* speaking(const std::vector<TrajectoryRow>& rows, const std::string& pair) {
  static constexpr Effect kOrder[] = {Effect::kHarmful, Effect::kBeneficial, Effect::kUndecided,
                                      Effect::kWithinMargin, Effect::kNoneDetected};
  for (const Effect effect : kOrder) {
    for (const TrajectoryRow& row : rows) {
      if (row.pair == pair && effect_of(row) == effect) return &row;
    }
  }
  return nullptr;
}

int64_t counted_labels(const Samples& held_out) {
  if (!held_out.labels.valid()) return 0;
  if (!held_out.weights.valid() || held_out.weights.dims() != held_out.labels.dims())
    return held_out.labels.elements();
  return std::ranges::count_if(held_out.weights.as<const float>(), [](float w) { return w != 0; });
}

bool labels_are_classes(const Experiment& e) {
  const std::string& kind = e.scenario.loss.kind;
  return !e.imported && e.data != nullptr && e.data->classes > 1 &&
         (kind == "softmax_cross_entropy" || kind == "sigmoid_cross_entropy" ||
          kind == "mean_squared_error");
}

namespace {

// The frequency of each class among the held-out labels that count.
std::vector<double> frequencies(const Experiment& e) {
  const Samples& samples = e.data->eval;
  const auto labels = samples.labels.as<const int32_t>();
  const bool weighted = samples.weights.valid() && samples.weights.dims() == samples.labels.dims();
  std::map<int32_t, int64_t> counts;
  int64_t total = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (weighted && samples.weights.as<const float>()[i] == 0.0f) continue;
    if (labels[i] == e.scenario.loss.ignored) continue;
    ++counts[labels[i]];
    ++total;
  }
  std::vector<double> out;
  for (const auto& [label, count] : counts)
    out.push_back(static_cast<double>(count) / static_cast<double>(total));
  return out;
}

// The least cross-entropy of a prediction that does not use the sample. With smoothed labels, it is
// that of their mixture with the uniform distribution.
std::optional<double> loss_of_prior(const Experiment& e, const std::vector<double>& frequencies) {
  const LossSpec& loss = e.scenario.loss;
  if (loss.kind != "softmax_cross_entropy" || loss.reduction != LossReduction::kMean ||
      frequencies.empty())
    return std::nullopt;
  const auto classes = static_cast<double>(e.data->classes);
  double entropy = 0, named = 0;
  for (const double f : frequencies) {
    const double p = (1 - loss.smoothing) * f + loss.smoothing / classes;
    entropy -= p * std::log(p);
    ++named;
  }
  const double rest = loss.smoothing / classes;
  if (rest > 0 && classes > named) entropy -= (classes - named) * rest * std::log(rest);
  return entropy * loss.scale;
}

}  // namespace

Learning judge_learning(const Experiment& e, const Evaluation& initial,
                        const std::vector<Evaluation>& reference) {
  Learning out;
  const std::vector<double> losses = values_of(reference, &Evaluation::loss);
  out.reference = mean_of(losses);
  out.spread = deviation_of(losses);
  out.initial = initial.loss;
  const bool classes = labels_are_classes(e);
  const std::vector<double> shares = classes ? frequencies(e) : std::vector<double>();
  if (classes) out.prior = loss_of_prior(e, shares);
  const double chance = std::min(out.initial, out.prior.value_or(out.initial));
  const double aim = chance - 2 * out.spread;
  out.learnt = out.reference < aim;
  if (!out.learnt && !shares.empty()) {
    const std::vector<double> hits = values_of(reference, &Evaluation::accuracy);
    const double most = *std::ranges::max_element(shares);
    const auto labels = static_cast<double>(std::max<int64_t>(1, counted_labels(e.data->eval)));
    const double sampled = std::sqrt(most * (1 - most) / labels);
    out.learnt = mean_of(hits) > most + 2 * std::hypot(deviation_of(hits), sampled);
  }
  if (out.learnt || !std::isfinite(out.reference)) return out;
  // The steps in which the loss, at its rate so far, would fall to `aim` and half as far again; ten
  // times as many steps if it did not fall.
  const double fallen = out.initial - out.reference, expected = out.initial - aim;
  const double factor = fallen > 0 ? std::clamp(1.5 * expected / fallen, 2.0, 100.0) : 10;
  const double steps = factor * static_cast<double>(e.scenario.train.steps);
  const double digit = std::pow(10, std::max(0.0, std::floor(std::log10(steps)) - 1));
  out.steps_to_try = static_cast<int64_t>(std::ceil(steps / digit) * digit);
  return out;
}

}  // namespace twinrun

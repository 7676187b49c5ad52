// Rows for one core, a board of 8, 64, a v2 pod of 512 and the cores of the diagnosis, and a sentence
// for each effect.
#include "harness/diagnose/many_cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "device/machine.h"
#include "program/graph/core_groups.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr double kUnit = 0x1p-24;  // the largest relative error of one binary32 addition

// The reduced gradient as a multiple of the whole batch's. Cores have equal numbers of samples.
std::optional<double> gradient_factor(const Sharding& s, bool mean_loss) {
  if (s.cores == 1) return 1;
  if (!s.reduce_gradients) return std::nullopt;
  const double cores = s.cores;
  const double terms = s.reduction_groups.size > 0 ? s.reduction_groups.size : cores;
  double factor = mean_loss ? terms : terms / cores;
  if (s.reduction == Reduction::kMean && s.scaling != Scaling::kNever) factor /= scaled_by(s);
  return s.scaling == Scaling::kOnceMore ? factor / cores : factor;
}

int64_t normalised_samples(const Sharding& s, int64_t samples) {
  if (s.batchnorm != BatchNormSync::kSynced || s.cores == 1) return samples;
  return samples * (s.batchnorm_group > 0 ? s.batchnorm_group : s.cores);
}

ManyCoresRow row_of(const Experiment& e, int cores) {
  Sharding s = e.sharding;
  s.cores = cores;
  ManyCoresRow row;
  row.cores = cores;
  row.asked = cores == e.sharding.cores;
  row.samples = e.scenario.train.batch / cores;
  row.gradient = gradient_factor(s, e.scenario.loss.reduction == LossReduction::kMean);
  if (std::ranges::find(e.forward.couplings, "batch_norm", &Coupling::cause) !=
      e.forward.couplings.end()) {
    row.normalised = normalised_samples(s, row.samples);
    row.statistic_noise = 1 / std::sqrt(static_cast<double>(row.normalised));
  }
  if (row.gradient) row.additions = cores - 1;
  const auto additions = static_cast<double>(row.additions);
  row.rounding_bound = additions * kUnit;
  row.rounding_typical = std::sqrt(additions) * kUnit;
  return row;
}

// The gradient norm of S at the first step, over that of R.
std::optional<double> measured_ratio(const DiagnosisState& diagnosis) {
  const auto norm = [&](const char* run) {
    const auto it = diagnosis.runs.find(run);
    if (it == diagnosis.runs.end() || it->second.file.steps.empty()) return std::nan("");
    return static_cast<double>(it->second.file.steps.front().gradient_norm);
  };
  const double ratio = norm("S") / norm("R");
  return std::isfinite(ratio) ? std::optional(ratio) : std::nullopt;
}

std::string about_gradient(const DiagnosisState& diagnosis, const ManyCoresRow& own) {
  std::string out;
  if (!own.gradient) {
    return fmt::format(
        "Gradients are not reduced: each core follows those of its own {}, whose noise is {}× that "
        "of the whole batch's, the square root of the number of cores.",
        text::plural(own.samples, "sample"), text::number(std::sqrt(own.cores)));
  }
  if (*own.gradient == 1) {
    out = "Reduced gradients are those of the whole batch on any number of cores";
  } else {
    out = fmt::format(
        "Reduced gradients are {}× those of the whole batch, as if the learning rate were: a "
        "factor that {} the number of cores. Update rules that divide by the size of the gradient "
        "(Adam, LARS) hide it",
        text::number(*own.gradient), *own.gradient > 1 ? "grows with" : "falls with");
  }
  if (const auto ratio = measured_ratio(diagnosis))
    out += fmt::format("; measured at the first step: its norm is {} of the whole batch's",
                       text::number(*ratio, 4));
  return out + ".";
}

std::string about_batch_norm(const ManyCoresRow& own, const ManyCoresRow& one) {
  if (own.normalised == one.normalised)
    return "Batch norm has the statistics of the whole batch on any number of cores.";
  std::string out = fmt::format(
      "Batch norm's statistics are of {} instead of {}: their mean moves by {} standard deviations "
      "of a sample, {}× as much as that of the whole batch. (Positions of an image count as "
      "further samples where they are independent.)",
      text::plural(own.normalised, "sample"), one.normalised, text::number(own.statistic_noise),
      text::number(own.statistic_noise / one.statistic_noise));
  if (own.normalised == 1)
    out +=
        " A single sample is its own mean: behind a dense layer, batch norm gives its offset "
        "whatever the input.";
  return out;
}

std::string about_rounding(const Report& report, const ManyCoresRow& own) {
  std::string out = fmt::format(
      "The ring adds {} gradients one after the other, and each of the {} additions rounds by "
      "2^-24 of the sum at most. Independent errors grow with the square root of their number",
      own.cores, own.additions);
  const ProbeRow* worst = nullptr;
  for (const EngineProbe& probe : report.probes) {
    for (const ProbeRow& row : probe.rows) {
      if (row.kind == "all_reduce" && (worst == nullptr || row.worst_ratio > worst->worst_ratio))
        worst = &row;
    }
  }
  if (worst != nullptr)
    out += fmt::format("; the largest error measured is {} of the bound ({})",
                       text::number(worst->worst_ratio), worst->op);
  return out + ".";
}

}  // namespace

ManyCores many_cores(const DiagnosisState& diagnosis, const Report& report) {
  const Experiment& e = diagnosis.experiment;
  ManyCores out;
  if (e.sharding.cores <= tpu::kCoresV2x8 || e.imported) return out;
  for (const int cores : std::set{1, tpu::kCoresV2x8, 64, 512, e.sharding.cores}) {
    const CoreGroups& groups = e.sharding.reduction_groups;
    const bool grouped =
        (groups.size == 0 || cores % groups.size == 0) &&
        (e.sharding.batchnorm_group == 0 || cores % e.sharding.batchnorm_group == 0);
    if (e.scenario.train.batch % cores == 0 && (cores == 1 || grouped))
      out.rows.push_back(row_of(e, cores));
  }
  const ManyCoresRow &one = out.rows.front(),
                     &own = *std::ranges::find(out.rows, true, &ManyCoresRow::asked);
  out.sentences.push_back(about_gradient(diagnosis, own));
  if (own.normalised > 0) out.sentences.push_back(about_batch_norm(own, one));
  if (own.additions > 0) out.sentences.push_back(about_rounding(report, own));
  return out;
}

}  // namespace twinrun

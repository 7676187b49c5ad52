// Whether a drift matters: its effect on what is learnt, measured by held-out loss and accuracy
// over paired seeds. Seeds are added until the effect is decided (docs/method/diagnosis.md, "Does
// it matter?"). On the data's path: Evaluations of runs R, S and T -> TrajectoryRow, Effect.
//
//   const SeedTrials trials(scenario.diagnose, labels_are_classes(experiment), labels);
//   for (int seeds : trials.looks()) {
//     ... train R, S and T up to so many seeds ...
//     rows = trials.compare("S - R", "what sharding alone does, on cpu", s, r, r);
//     if (speaking(rows, "S - R")->outcome != PairedOutcome::kUndecided) break;
//   }
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/run.h"
#include "harness/experiment/experiment.h"
#include "reports/report.h"

namespace twinrun {

// The metrics that are compared, and the numbers of seeds at which they are judged. The two-sided
// error over all looks at all metrics together is at most 5 %, whatever their correlation: each has
// an equal part of it (Bonferroni's bound), so that adding seeds does not inflate it.
class SeedTrials {
 public:
  // `labels_are_classes`: whether accuracy is a metric (see the function below). `labels`: number
  // of held-out labels that count; accuracy is a multiple of 1 / labels.
  SeedTrials(const DiagnoseSpec& asked, bool labels_are_classes, int64_t labels);

  // The numbers of seeds at which the effect is judged: diagnose.seeds, then 1.6 times as many,
  // ..., diagnose.max_seeds.
  const std::vector<int>& looks() const { return looks_; }

  // One row for each metric, with the differences a[i] - b[i] over paired seeds. `reference`: the
  // runs whose spread between seeds is the unit of comparison, usually b. After a change of
  // meaning, only all seeds together can show "none detected"; with `stops_early`, where nothing
  // but the effect is in question, any look can.
  std::vector<TrajectoryRow> compare(const std::string& pair, const std::string& meaning,
                                     const std::vector<Evaluation>& a,
                                     const std::vector<Evaluation>& b,
                                     const std::vector<Evaluation>& reference,
                                     bool stops_early = false) const;

 private:
  struct Metric {
    std::string_view name;
    double Evaluation::*value;
    double margin;  // declared by the user; 0: none
    const char* margin_key;
    // The values are multiples of this; 0: they are binary32 numbers.
    double resolution;
  };
  TrajectoryRow row_of(const Metric& metric, std::vector<double> differences,
                       const std::vector<double>& reference, bool broken, bool stops_early) const;
  // The error of the interval of one look at one metric, where there are `looks` looks.
  double alpha(size_t looks) const;

  int first_;
  std::vector<int> looks_;
  std::vector<Metric> metrics_;
};

std::vector<int> looks_of(int first, int most);
std::vector<double> values_of(const std::vector<Evaluation>& runs, double Evaluation::*value);

// Of the rows of `pair`, returns the one that decides the effect: a harmful one if there is one,
// else a beneficial one, else an undecided one, else one within the margin, else any. nullptr if
// the pair has no row.
const TrajectoryRow* speaking(const std::vector<TrajectoryRow>& rows, const std::string& pair);
// Whether the row decides that there is an effect: a significant difference from 0, even if it lies
// within a declared margin, or a run that diverged. False for nullptr.
bool is_significant(const TrajectoryRow* row);
Effect effect_of(const TrajectoryRow& row);
bool is_worse(const TrajectoryRow& row);  // whether the mean is worse than 0

// Whether the reference has learnt anything. Its held-out loss is compared with that of the initial
// weights and of predicting the classes' held-out frequencies; or its accuracy with that of always
// predicting the most frequent class. It must be better by two standard deviations between seeds,
// since a smaller gain is within what another seed gives.
struct Learning {
  double reference = 0, spread = 0;  // held-out loss: mean and standard deviation over the seeds
  double initial = 0;                // held-out loss of the initial weights
  // Held-out loss of predicting the class frequencies, where the kind of loss has one.
  std::optional<double> prior;
  bool learnt = true;
  // Steps after which it may have learnt, from how fast the loss fell; 0: it has learnt, or the
  // loss is not finite.
  int64_t steps_to_try = 0;
};
Learning judge_learning(const Experiment& experiment, const Evaluation& initial,
                        const std::vector<Evaluation>& reference);
// The number of labels of the held-out samples that count; those of padding do not.
int64_t counted_labels(const Samples& held_out);
// Whether accuracy counts labels that the model is trained to predict, rather than pairs of samples
// or the decisions of a discriminator.
bool labels_are_classes(const Experiment& experiment);

}  // namespace twinrun

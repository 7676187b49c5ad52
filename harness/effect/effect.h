// Does it matter: the effect of a drift on what is learnt. Held-out loss and accuracy of paired seeds, which are added until the
// effect is decided (docs/diagnosis.md, Instrument 3).
//
//   const SeedTrials trials(scenario.diagnose, *experiment.data, ...);
//   for (int seeds : trials.looks()) {
//     ... train R, S and T up to so many seeds ...
//     rows = trials.compare("S - R", "what sharding alone does, on cpu", s, r, r);
//     if (speaking(rows, "S - R")->outcome != "undecided") break;
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

// What is compared, and how often. The two-sided error of all looks at all metrics together is 5 %, whatever they have in common:
// each has an equal part of it (Bonferroni's bound), so adding seeds does not inflate it.
class SeedTrials {
 public:
  // `labels`: held-out labels that count, of `classes` classes; classes of 0 or 1: accuracy is not asked.
  SeedTrials(const DiagnoseSpec& asked, bool labels_are_classes, int64_t labels);

  // Numbers of seeds at which the effect is judged: diagnose.seeds, then 1.6 times as many, ..., diagnose.max_seeds.
  const std::vector<int>& looks() const { return looks_; }

  // A row for each metric: a[i] - b[i] over paired seeds. `reference`: runs whose spread between seeds is the measure, most often b.
  // A change of meaning is acquitted by all seeds alone; where nothing but the effect is at stake, `stops_early` lets "none detected"
  // be said at any look.
  std::vector<TrajectoryRow> compare(const std::string& pair, const std::string& meaning,
                                     const std::vector<Evaluation>& a,
                                     const std::vector<Evaluation>& b,
                                     const std::vector<Evaluation>& reference,
                                     bool stops_early = false) const;

 private:
  struct Metric {
    std::string_view name;
    double Evaluation::*value;
    double margin;  // declared; 0: none
    const char* margin_key;
    double resolution;  // its values are multiples of this; 0: a binary32 number
  };
  TrajectoryRow row_of(const Metric& metric, std::vector<double> differences,
                       const std::vector<double>& reference, bool broken, bool stops_early) const;
  // Of the interval of one look at one metric, where there are so many looks.
  double alpha(size_t looks) const;

  int first_;
  std::vector<int> looks_;
  std::vector<Metric> metrics_;
};

std::vector<int> looks_of(int first, int most);
std::vector<double> values_of(const std::vector<Evaluation>& runs, double Evaluation::*value);

// Of the rows of a pair the one that says most: harmful before beneficial before undecided before all others; nullptr where there is
// none.
const TrajectoryRow* speaking(const std::vector<TrajectoryRow>& rows, const std::string& pair);
bool is_significant(const TrajectoryRow* row);  // other than 0, be it within a declared margin
Effect effect_of(const TrajectoryRow& row);
bool is_worse(const TrajectoryRow& row);  // by its mean

// Has the reference learnt anything? Its held-out loss against that of the initial weights and of predicting the classes' held-out
// frequencies; or its accuracy against that of always predicting the most frequent class. It must be better by two standard
// deviations between seeds: else what is learnt is within what another seed does.
struct Learning {
  double reference = 0, spread = 0;  // held-out loss, mean over the seeds
  double initial = 0;                // of the initial weights
  std::optional<double> prior;       // of the class frequencies, where the loss is one that has it
  bool learnt = true;
  int64_t steps_to_try = 0;  // if the loss goes on falling as it did; 0: learnt
};
Learning judge_learning(const Experiment& experiment, const Evaluation& initial,
                        const std::vector<Evaluation>& reference);
// Labels of the held-out samples that count; padding does not.
int64_t counted_labels(const Samples& held_out);
// Whether accuracy counts labels that the model is trained to predict: neither of pairs of samples, nor of a discriminator.
bool labels_are_classes(const Experiment& experiment);

}  // namespace twinrun

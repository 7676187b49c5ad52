// Instrument 2: the ablation of every cause by which sharding can change a program's meaning, on
// the reference: each cause is undone in run S, and introduced alone. Meaning is compared in
// binary64, one step from the same state, where rounding is 2^-29 of f32's, so that a difference
// there is not rounding. The gradient, the update, the running statistics and the held-out loss are
// judged separately.
//
//   auto m = probe_meaning(experiment, {{0, w0}, {150, w1}}, threads);
//   m->kinds;            // drift of S from R, per kind; m->drift: of the first that differs
//   m->rows;             // per cause: undone in S, introduced alone; share of squared drift
//   auto c = catalogue(experiment, {{0, w0}}, threads);
//   c->classes;          // causes that these states cannot distinguish, and what would
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/experiment/experiment.h"
#include "harness/run/one_step.h"
#include "harness/sharding/causes.h"
#include "reports/report.h"

namespace twinrun {

// No f32 engine can show a relative difference of a gradient below a quarter of binary32's unit
// roundoff.
inline constexpr double kMeaningThreshold = 0x1p-26;
// kMeaningThreshold where 1/cores is a float32 number. Otherwise 1/cores is off by up to 2^-24 of
// itself, in the loss and in every mean over cores. The threshold then allows for four such errors
// in one gradient, by which a sharded program may differ without another meaning.
double meaning_threshold(int cores);

// Root mean square over the probed states, relative to the size of run R's values.
struct KindDrift {
  StepKind kind = StepKind::kGradient;
  double drift = 0, residual = 0;  // of run S; of S with every cause undone
};

// The effect of one cause on one kind.
struct CauseEffect {
  std::string cause;
  StepKind kind = StepKind::kGradient;
  double restored = 0;  // drift of S with this cause undone
  double alone = 0;     // drift with this cause only
  double share = 0;     // Shapley value of the squared drift, as a share of it
};

// Two causes together, as a share of the squared drift: the Shapley interaction index. Positive:
// each makes the other worse. Negative: they cancel in part, or have the same effect.
struct Interaction {
  std::string a, b;
  StepKind kind = StepKind::kGradient;
  double index = 0;
  double both_restored = 0, both_alone = 0;  // drift with both undone; with only these two
};

struct MeaningResult {
  StepKind kind = StepKind::kGradient;  // the first that differs; `drift` and `residual` are of it
  double drift = 0;
  double residual = 0;                   // with every cause undone
  double threshold = kMeaningThreshold;  // differences up to this mean the same
  std::vector<AblationRow> rows;         // two per cause: undone in S, introduced alone
  std::vector<ShardingCause> causes;
  std::vector<int64_t> steps;  // the probed steps
  std::vector<KindDrift> kinds;
  std::vector<CauseEffect> effects;  // of every cause on every kind
  std::vector<Interaction> interactions;
  // Tensors whose value is rounding alone: "dense1/bias (update)".
  std::vector<std::string> unjudged;

  bool differs() const;
  bool explained() const;  // whether the causes explain all drift: no kind has a residual
};

// A state of the sharded or the whole program, of replica 0 by tensor name, and the step that
// starts from it.
using ProbeState = std::pair<int64_t, Checkpoint>;

Result<MeaningResult> probe_meaning(const Experiment& experiment,
                                    const std::vector<ProbeState>& states, int threads);

// Causes that have the same effect when each is introduced by itself into the program that means
// what the whole batch does.
struct CauseClass {
  std::vector<std::string> causes;
  bool inert = false;      // no effect at these states: the class of "no cause"
  std::string divergence;  // what would distinguish them, or make them show
};
// Two causes that agree in some kinds and differ in others.
struct Divergence {
  std::string a, b;
  std::vector<StepKind> agree, differ;
};
struct Catalogue {
  std::vector<CauseEffect> effects;  // of every cause alone, on every kind
  std::vector<CauseClass> classes;   // members agree within the threshold, in all kinds and states
  std::vector<Divergence> divergences;
  // The class that contains a cause.
  const CauseClass& class_of(const std::string& cause) const;
};
Result<Catalogue> catalogue(const Experiment& experiment, const std::vector<ProbeState>& states,
                            int threads);

}  // namespace twinrun

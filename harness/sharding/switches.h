// Instrument 2: every cause by which sharding can change a program's meaning is a switch on the reference. Meaning is compared in
// binary64, one step from the same state, where rounding is 2^-29 of f32's: what differs there is not rounding. Judged are the
// gradient, the update, the running statistics and the held-out loss, each by itself.
//
//   auto m = probe_meaning(experiment, {{0, w0}, {150, w1}}, threads);
//   m->kinds;                 // drift of S from R, per kind; m->drift is that of the first kind that differs
//   m->rows;                  // per cause: restored in S, introduced alone; Shapley share of the squared drift
//   auto c = catalogue(experiment, {{0, w0}}, threads);
//   c->classes;               // causes of the catalogue that these states cannot tell apart, and what would
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

// No f32 engine could show a relative difference of a gradient below a quarter of binary32's unit roundoff.
inline constexpr double kMeaningThreshold = 0x1p-26;
// ... where 1/cores is a float32 number. Else it is off by up to 2^-24 of itself, in the loss and in every mean over cores: of so
// many that four of them meet in a gradient, the sharded program may differ without meaning anything else.
double meaning_threshold(int cores);

// Root mean square over the probed states; relative to R's.
struct KindDrift {
  StepKind kind = StepKind::kGradient;
  double drift = 0, residual = 0;  // of S; of S with every cause restored
};

// What one cause does to one kind.
struct CauseEffect {
  std::string cause;
  StepKind kind = StepKind::kGradient;
  double restored = 0;  // drift of S without this cause
  double alone = 0;     // drift with this cause only
  double share = 0;     // Shapley value of the squared drift, as a share of it
};

// Two causes together, as a share of the squared drift: the Shapley interaction index. Positive: each makes the other worse;
// negative: they cancel in part, or say the same.
struct Interaction {
  std::string a, b;
  StepKind kind = StepKind::kGradient;
  double index = 0;
  double both_restored = 0, both_alone = 0;  // drift without the two; with the two only
};

struct MeaningResult {
  StepKind kind = StepKind::kGradient;  // the first that differs: what the next three are about
  double drift = 0;
  double residual = 0;                   // with every cause restored
  double threshold = kMeaningThreshold;  // what differs by less means the same
  std::vector<SwitchRow> rows;           // two per cause: restored, introduced alone
  std::vector<ShardingCause> causes;
  std::vector<int64_t> steps;  // where it was probed
  std::vector<KindDrift> kinds;
  std::vector<CauseEffect> effects;  // of every cause on every kind
  std::vector<Interaction> interactions;
  std::vector<std::string>
      unjudged;  // tensors whose value is rounding alone: "dense1/bias (update)"

  bool differs() const;
  bool explained() const;  // by the causes: no kind has a residual
};

// A state of the sharded or the whole program by tensor name, replica 0, and the step that it starts.
using ProbeState = std::pair<int64_t, Checkpoint>;

Result<MeaningResult> probe_meaning(const Experiment& experiment,
                                    const std::vector<ProbeState>& states, int threads);

// Every possible cause by itself, introduced into the program that means what the whole batch does.
struct CauseClass {
  std::vector<std::string> causes;
  bool inert = false;   // nothing differs at these states; the class of "no cause"
  std::string parting;  // what would part them, or show them
};
// Two causes that agree in some kinds and differ in others.
struct Parting {
  std::string a, b;
  std::vector<StepKind> agree, differ;
};
struct Catalogue {
  std::vector<CauseEffect> effects;  // `alone` on every kind
  std::vector<CauseClass> classes;   // by all kinds: agree within the threshold on every state
  std::vector<Parting> partings;
  // The class that a cause is in.
  const CauseClass& class_of(const std::string& cause) const;
};
Result<Catalogue> catalogue(const Experiment& experiment, const std::vector<ProbeState>& states,
                            int threads);

}  // namespace twinrun

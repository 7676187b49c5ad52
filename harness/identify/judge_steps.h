// Judges the steps that harness/envelope/screen_steps.h has kept: against the ensemble of
// conforming engines, against themselves when the subject is given its own state again, and the
// replicas against each other. For an engine that shows tensors only (level C).
//
//   StepsJudge judge(experiment, asked, *engine, options);
//   auto match = judge.match(states, screened);  // removes states that a decision explains
//   judge.other_start(*match, states);
//   judge.reload(*match, states, sampled, repeats);
//   judge.split_replicas(states);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/identify/identify.h"

namespace twinrun {

// Resuming from the subject's own state before a step gives another step than its run had: part of
// the state is hidden.
struct HiddenState {
  int64_t step = 0;
  std::string tensor;  // the first that differs, in the order of computation
  int replica = 0;
  double relative = 0;  // the difference as a share of the tensor's size
  // true: only the engine's promise of equal bits is broken; false: the difference is beyond that
  // of conforming engines.
  bool promised = true;
  int64_t probed = 0;  // steps that were run again
};

// A step that is outside when started from the state that the engine reported before it, and inside
// when started from another one, which is solved for from the step's results.
struct OtherStart {
  int64_t step = 0;
  std::string variable;  // the one that differs most
  int replica = 0;
  std::string elements;  // "1 of 640 elements, [12,3]: 0.73 in use where 0.0498 was reported"
};

// A variable that the program updates in the same way on several cores, but whose replicas diverge
// in one step by more than rounding explains.
struct ReplicaSplit {
  std::string variable;
  int64_t step = 0;
  int replica = 0;  // the odd one
  // The largest distance between the changes of two replicas, as a share of the expected change.
  double relative = 0;
  double distance = 0, allowed = 0;
  bool for_good = false;  // the replicas still differ at the last kept step
};

// Whether so many steps outside may each depend on a decision (relu, max) that falls the other way.
// In binary32 at most half of the steps may. Where operands are rounded more coarsely, an operand
// near a midpoint changes such decisions far more often: of a healthy engine in TF32 (attention,
// two cores) 4 steps of 16 were seen outside. For all such engines one step in three is assumed. So
// a few steps cannot distinguish a decision from a fault, while of 16 or 24 steps nearly all that
// are outside show a fault.
bool may_hang_on_decisions(int64_t outside, int64_t steps, bool rounds_operands,
                           double false_alarm);

// Where in the model a step went wrong, for an engine that shows the outputs of its layers: the
// first value that is outside, in the order of computation.
struct LayerFault {
  int64_t step = 0;
  int replica = 0;
  // "conv2", "conv2.grad" where `of_layer`; else "loss", "conv2/kernel.grad".
  std::string value;
  bool of_layer = false;            // it is a layer's output, or the gradient of one
  bool backward = false;            // it is a gradient
  std::vector<std::string> layers;  // those that compute it from values inside, or "loss"
  std::vector<std::string> from;    // the nearest values inside; none: the step's inputs
  double ratio = 0, threshold = 0;  // in units of the spread of conforming engines
  double relative = 0;              // as a share of the expected value
  std::string pattern;              // "1.01 times what was expected", "zero", "NaN or Inf", ""
  int64_t shown = 0;                // how many values of layers were shown, gradients included
};

// Withdraws a finding of an undeclared precision: the mismatch has another cause.
void take_as_declared(Identification& match);

class StepsJudge {
 public:
  StepsJudge(const Experiment& experiment, const Program& asked, Backend& engine,
             IdentifyOptions options);

  // Compares all kept steps with the ensemble. Causes are tried on three: the first that is
  // outside, the first and the last. `screened`: the number of steps that these were chosen from;
  // all of them count in the probability of a false alarm. A step that is outside by itself, and
  // where conforming engines fall either way from weights that are moved further, depends on a
  // decision (a relu, a maximum): it is set aside. `left_out`: some of the steps whose update the
  // script skipped. Where results are rounded, a loss scaler may do that, and they are ignored;
  // elsewhere they are judged like any other step, and join `states`.
  Result<Identification> match(std::vector<ProbedState>& states, int64_t screened,
                               const std::vector<ProbedState>& left_out = {});
  int64_t set_aside() const { return set_aside_; }
  // Steps, of all that were judged.
  const std::vector<int64_t>& outside() const { return outside_; }

  Result<std::optional<OtherStart>> other_start(const Identification& match,
                                                const std::vector<ProbedState>& states);
  // Runs the first step that is outside again on the subject, from the state that it reported, and
  // says whether it is inside then. nullopt where no single step is outside.
  Result<std::optional<bool>> inside_again(const Identification& match,
                                           const std::vector<ProbedState>& states);
  // Runs sampled steps again from the subject's own state. `repeats`: the engine promises its bits,
  // and has kept that promise.
  Result<std::optional<HiddenState>> reload(const Identification& match,
                                            const std::vector<ProbedState>& states,
                                            const std::vector<int64_t>& sampled, bool repeats);
  // Repeats the first step that is outside, and has the outputs of the model's layers shown.
  // nullopt where the step is then inside, or only the update was wrong. Where match.undeclared is
  // not empty: nullopt, unless the loss alone is outside and all layers before it are as declared,
  // which is the case with no other precision.
  Result<std::optional<LayerFault>> layer_fault(const Identification& match,
                                                const std::vector<ProbedState>& states);
  Result<std::optional<ReplicaSplit>> split_replicas(const std::vector<ProbedState>& states);

 private:
  Result<std::vector<Observed>> members(const std::vector<ProbedState>& states,
                                        const std::vector<Compared>& tensors, int count,
                                        const PrecisionClass& of) const;
  Result<Identification> identify_made(std::vector<ProbedState>& states, int64_t screened);
  // A class that draws its roundings contains the subject: is it exactly what another formula gives
  // in a tight class? nullopt: no.
  Result<std::optional<Identification>> by_formula(const std::vector<ProbedState>& states) const;
  bool has_loss_scale(const Identification& match) const;
  Status keep_what_holds(Identification& tried, const std::vector<ProbedState>& states,
                         size_t were_outside, const IdentifyOptions& options) const;
  Result<std::optional<size_t>> makes_the_difference(Engine& reference, const ProbedState& at,
                                                     const States& other) const;
  Status keep_undeclared(Identification& tried, const std::vector<ProbedState>& states,
                         const IdentifyOptions& options) const;
  Result<std::vector<int64_t>> decided(const std::vector<TensorMismatch>& outside,
                                       const PrecisionClass& held,
                                       const std::vector<ProbedState>& states,
                                       const std::vector<Explanation::Part>& parts,
                                       const IdentifyOptions& options) const;

  const Experiment& e_;
  const Program& asked_;
  Backend& engine_;
  IdentifyOptions o_;
  Capabilities declared_;
  SettingsSlack slack_;
  int64_t set_aside_ = 0;
  std::vector<int64_t> outside_;
};

}  // namespace twinrun

// The steps that harness/envelope/screen_steps.h has kept, judged: against the ensemble of honest engines, against themselves when the subject
// is handed its own state again, and the replicas against each other. For an engine that shows tensors only (level C).
//
//   StepsJudge judge(experiment, asked, *engine, options);
//   auto match = judge.match(states, screened);            // takes those out of `states` that a decision explains
//   judge.other_start(*match, states);  judge.reload(*match, states, sampled, repeats);  judge.split_replicas(states);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/identify/matching.h"

namespace twinrun {

// Resuming from the subject's own state before a step gives another step than its run did.
struct HiddenState {
  int64_t step = 0;
  std::string tensor;  // the first that differs, in the order of computation
  int replica = 0;
  double relative = 0;  // by so much of itself
  bool promised =
      true;  // the engine promises equal bits; else it is beyond what honest engines differ by
  int64_t probed = 0;  // steps that were asked for again
};

// A step that is outside from the state that the engine reported before it, and inside from another one, which its results give.
struct OtherStart {
  int64_t step = 0;
  std::string variable;  // that differs most
  int replica = 0;
  std::string elements;  // "1 of 640 elements, [12,3]: 0.73 in use where 0.0498 was reported"
};

// Replicas of what the program computes alike, which part in one step by more than rounding.
struct ReplicaSplit {
  std::string variable;
  int64_t step = 0;
  int replica = 0;      // the odd one
  double relative = 0;  // how far its change is from another replica's, as a share of what is due
  double distance = 0, allowed = 0;
  bool for_good = false;  // the replicas still differ at the last step that was kept
};

// So many of the steps are outside: may each of them hang on a decision that falls the other way? In binary32 at most half of them.
// Where operands are rounded more coarsely, one that lies near a midpoint moves what a relu or a maximum decides on far more often: of
// a healthy engine in TF32 (attention, two cores) 4 steps of 16 were seen outside. One step in three is taken for all such engines, so
// that few steps cannot tell a decision from a fault, and of 16 or 24 those that are nearly all outside show one.
bool may_hang_on_decisions(int64_t outside, int64_t steps, bool rounds_operands,
                           double false_alarm);

// Where in the model a step went wrong, of an engine that shows what its layers give: the first value that is outside, in the order
// of computation.
struct LayerFault {
  int64_t step = 0;
  int replica = 0;
  std::string value;                // "conv2", "conv2.grad"; else "loss", "conv2/kernel.grad"
  bool of_layer = false;            // one of the former
  bool backward = false;            // a gradient
  std::vector<std::string> layers;  // that compute it from what is inside; "loss" is one, too
  std::vector<std::string> from;    // the nearest values that are inside; none: the step's inputs
  double ratio = 0, threshold = 0;  // in units of what honest engines spread
  double relative = 0;              // as a share of what was due
  std::string pattern;              // "1.01 times what was due", "zero", "NaN or Inf", ""
  int64_t shown = 0;                // how many values of layers, gradients too
};

// What is outside is no undeclared precision's doing after all.
void take_as_declared(MatchResult& match);

class StepsJudge {
 public:
  StepsJudge(const Experiment& experiment, const Program& asked, Backend& engine,
             MatchOptions options);

  // The ensemble on all kept steps; causes are tried on three: the first that is outside, the first and the last. `screened`: of how
  // many steps these were chosen, which all count in the probability of a false alarm. A step that is outside alone, and where honest
  // engines fall either way from weights that are moved further, hangs on a decision (a relu, a maximum): it is set aside.
  // `left_out`: some of the steps whose update the script left out. Where numbers have float16's range that is a loss scaler's business;
  // elsewhere they are judged like any other, and join `states`.
  Result<MatchResult> match(std::vector<MatchState>& states, int64_t screened,
                            const std::vector<MatchState>& left_out = {});
  int64_t set_aside() const { return set_aside_; }
  const std::vector<int64_t>& outside() const {
    return outside_;
  }  // steps, of all that were judged

  Result<std::optional<OtherStart>> other_start(const MatchResult& match,
                                                const std::vector<MatchState>& states);
  // The first step that is outside, run again on the subject from the state that it reported: is it inside then? Nothing where no
  // single step is outside.
  Result<std::optional<bool>> inside_again(const MatchResult& match,
                                           const std::vector<MatchState>& states);
  // `repeats`: the engine promises its bits, and has kept to that.
  Result<std::optional<HiddenState>> reload(const MatchResult& match,
                                            const std::vector<MatchState>& states,
                                            const std::vector<int64_t>& sampled, bool repeats);
  // The first step that is outside, asked for again together with what the layers of the model give. Nothing where the step is then
  // inside, or the update alone was wrong. Where match.undeclared is not empty: nothing, unless the loss alone is outside and all layers
  // before it are as declared, which no other precision would leave them.
  Result<std::optional<LayerFault>> layer_fault(const MatchResult& match,
                                                const std::vector<MatchState>& states);
  Result<std::optional<ReplicaSplit>> split_replicas(const std::vector<MatchState>& states);

 private:
  Result<std::vector<Observed>> members(const std::vector<MatchState>& states,
                                        const std::vector<Compared>& tensors, int count,
                                        const PrecisionClass& of) const;
  Result<MatchResult> match_made(std::vector<MatchState>& states, int64_t screened);
  // What a class that draws its roundings holds: is it exactly what another formula gives in a tight class? Nothing: no.
  Result<std::optional<MatchResult>> by_formula(const std::vector<MatchState>& states) const;
  bool has_loss_scale(const MatchResult& match) const;
  Status keep_what_holds(MatchResult& tried, const std::vector<MatchState>& states,
                         size_t were_outside, const MatchOptions& options) const;
  Result<std::optional<size_t>> makes_the_difference(Engine& reference, const MatchState& at,
                                                     const States& other) const;
  Status keep_undeclared(MatchResult& tried, const std::vector<MatchState>& states,
                         const MatchOptions& options) const;
  Result<std::vector<int64_t>> decided(const std::vector<TensorMismatch>& outside,
                                       const PrecisionClass& held,
                                       const std::vector<MatchState>& states,
                                       const std::vector<Explanation::Part>& parts,
                                       const MatchOptions& options) const;

  const Experiment& e_;
  const Program& asked_;
  Backend& engine_;
  MatchOptions o_;
  Capabilities declared_;
  SettingsSlack slack_;
  int64_t set_aside_ = 0;
  std::vector<int64_t> outside_;
};

}  // namespace twinrun

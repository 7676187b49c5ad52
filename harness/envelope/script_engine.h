// An engine of a changed program that takes and gives the state of the program asked for. What the changed program keeps beside that
// (AMSGrad's maximum, a velocity where the scenario has none) is a script's own: it is replayed from the run's first step. What it
// has not stays as it is, and is not compared.
//
//   std::optional<StateMap> map = map_states(asked, changed, e);              // nullopt: they do not go together
//   ScriptEngine engine(backend->prepare(changed), asked, *map);
//   engine.replay(changed_experiment, history, {0, 7, 11});                   // if map->hides(); then step() as of any engine
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "harness/envelope/envelope.h"

namespace twinrun {

// How the state and the outputs of a changed program go together with those of the program asked for.
struct StateMap {
  std::vector<int>
      asked_of_own;  // of each own variable, its place in the asked state; -1: the script's own
  std::vector<int> own_of_asked;       // -1: the changed program has no such variable
  std::vector<int> own_of_output;      // by asked output; -1: the changed program has none
  std::vector<Tensor> initial;         // of each own variable, where any is needed
  std::vector<bool> starts_otherwise;  // own: at step 0 from `initial`, whatever is given
  std::vector<std::pair<double, double>>
      powers;  // own: of decay `first`, taken anew as of `second`; {0, 0}: as given
  bool hides() const;
  bool is_same() const;  // nothing to do: the two have one layout, and start alike
};
// With `powers_anew`, powers of a decay that the changed program has otherwise are those of its own at the same number of updates.
std::optional<StateMap> map_states(const Program& asked, const Program& own, uint64_t seed,
                                   bool powers_anew);

class ScriptEngine : public Engine {
 public:
  ScriptEngine(std::unique_ptr<Engine> inner, const Program& asked, const StateMap& map)
      : inner_(std::move(inner)), asked_(asked), map_(map) {}
  const Program& program() const override { return inner_->program(); }
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override;
  // What the script holds of its own before each of these steps: the run once more from its first step, by this engine, and from the
  // subject's reported state at each step that `history` has.
  Status replay(const Experiment& own, const std::vector<MatchState>& history,
                const std::vector<MatchState>& wanted);

 private:
  using Hidden = std::vector<std::vector<Tensor>>;  // [replica][own variable]
  States own_states(int64_t step, const States& asked, const Hidden* hidden) const;
  void give_back(const States& own, States& asked) const;

  std::unique_ptr<Engine> inner_;
  const Program& asked_;
  StateMap map_;
  std::map<int64_t, Hidden> hidden_;
};

}  // namespace twinrun

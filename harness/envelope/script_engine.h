// Runs a changed program on the state of the requested one: it takes and returns the requested
// program's state. State that only the changed program has (AMSGrad's maximum, a velocity where the
// scenario has none) is private to the script: it is replayed from the run's first step. State that
// the changed program lacks stays as it is, and is not compared.
//
//   std::optional<StateMap> map = map_states(asked, changed, seed, true);  // nullopt: no match
//   ScriptEngine engine(backend->prepare(changed), asked, *map);
//   engine.replay(changed_experiment, history, wanted);  // if map->hides(); then step() as usual
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "backends/core/wrapped.h"
#include "harness/envelope/envelope.h"

namespace twinrun {

// How the state and the outputs of a changed program ("own") correspond to those of the requested
// one ("asked").
struct StateMap {
  // For each own variable, its index in the requested state; -1: private to the script.
  std::vector<int> asked_of_own;
  std::vector<int> own_of_asked;   // -1: the changed program has no such variable
  std::vector<int> own_of_output;  // by requested output; -1: the changed program has none
  std::vector<Tensor> initial;     // of each own variable; empty where none is needed
  // By own variable: at step 0 it starts from `initial`, whatever state is given.
  std::vector<bool> starts_otherwise;
  // By own variable: a power of the decay `first` is replaced by that of the decay `second`; {0,
  // 0}: it stays as given.
  std::vector<std::pair<double, double>> powers;
  bool hides() const;    // the changed program has state that is private to the script
  bool is_same() const;  // both programs have one layout and start alike: nothing to map
};
// nullopt: the programs differ in their parameters, their statistics, a variable's type or the
// loss. With `powers_anew`, powers of a decay that differs between the programs are computed from
// the changed program's decay, for the same number of updates.
std::optional<StateMap> map_states(const Program& asked, const Program& own, uint64_t seed,
                                   bool powers_anew);

class ScriptEngine : public WrappedEngine {
 public:
  ScriptEngine(std::unique_ptr<Engine> inner, const Program& asked, const StateMap& map)
      : WrappedEngine(std::move(inner)), asked_(asked), map_(map) {}
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override;
  // Computes the private state before each of the `wanted` steps: repeats the run from its first
  // step on this engine, from the subject's reported state at each step that `history` has.
  Status replay(const Experiment& own, const std::vector<ProbedState>& history,
                const std::vector<ProbedState>& wanted);

 private:
  using Hidden = std::vector<std::vector<Tensor>>;  // [replica][own variable]
  States own_states(int64_t step, const States& asked, const Hidden* hidden) const;
  void give_back(const States& own, States& asked) const;

  const Program& asked_;
  StateMap map_;
  std::map<int64_t, Hidden> hidden_;
};

}  // namespace twinrun

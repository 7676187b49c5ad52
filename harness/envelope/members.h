// One conforming engine of a precision class, run on some steps of a subject so that the subject
// can be compared with it.
//
// In classes whose results are rounded by functions drawn at random
// (harness/envelope/precision_class.h), conforming engines disagree on gradients, so what they make
// of their own gradients says little about a constant of the optimizer. But every precision updates
// in binary32. In these classes the state after a step is therefore what a binary32 update makes of
// the gradients that the subject itself reports.
//
//   // `steps` has what the subject made of them.
//   const ConformingMembers honest{experiment, asked, declared, tensors, steps, threads};
//   Observed o = *honest.member(of, number, {&program, states});
#pragma once

#include <memory>
#include <vector>

#include "harness/envelope/envelope.h"
#include "harness/envelope/precision_class.h"
#include "harness/envelope/script_engine.h"

namespace twinrun {

// Which state variables of a program a step computes from the state, the learning rate and the
// gradients that it reports. Running statistics are not among them, nor what accumulates gradients
// before they are reported.
std::vector<bool> follows_from_gradients(const Program& program);

// Wraps one of our engines so that it runs only the update, on the gradients that the subject
// reported at the step of the same number. Its program may differ from the subject's (`asked`), in
// whose output order `steps` has the gradients: they are matched by name. Other results of such a
// step mean nothing.
std::unique_ptr<Engine> update_alone(std::unique_ptr<Engine> engine, const Program& asked,
                                     const std::vector<ProbedState>& steps);

struct ConformingMembers {
  const Experiment& experiment;
  const Program& asked;  // the subject's program
  const Capabilities& declared;
  const std::vector<Compared>& tensors;
  const std::vector<ProbedState>& steps;  // with what the subject made of them
  int threads = 1;

  // What a member runs, and from which states.
  struct Run {
    const Program& program;
    const std::vector<ProbedState>& states;
    // Supplies the feed that the program reads; nullptr: the requested experiment.
    const Experiment* experiment = nullptr;
    double further = 1;  // factor by which weights of odd members are moved more than usual
    // false: in every class the state follows from the member's own gradients.
    bool own_update = true;
    // How the program's state corresponds to that of `asked`; nullptr: they are the same.
    const StateMap* map = nullptr;
    // The run over which private state of the program is replayed.
    const std::vector<ProbedState>* history = nullptr;
  };
  Result<Observed> member(const PrecisionClass& of, uint64_t number, const Run& run) const;
  // The same in binary64, from the states as they are; an update of the subject's own gradients
  // stays in binary32.
  Result<Observed> exact(const PrecisionClass& of, const Run& run) const;
  // The same by the reference in binary32, from the states as they are.
  Result<Observed> reference(const Run& run) const;

 private:
  Result<Observed> observed(const PrecisionClass& of, Backend& passes, Backend& update,
                            uint64_t number, const Run& run) const;
};

}  // namespace twinrun

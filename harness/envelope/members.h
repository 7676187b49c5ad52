// One honest engine of a class of precision on some steps of a subject, as the subject is held against it.
//
// Where results are rounded by functions drawn at random (harness/envelope/precision_class.h), honest engines do not agree on gradients, and
// what they make of theirs says little about a constant of the optimizer. But every precision updates in binary32. So in these classes
// the state that a step leaves is what an exact update makes of the gradients that the subject itself shows.
//
//   const HonestMembers honest{experiment, asked, declared, tensors, steps, threads};  // steps: what the subject made of them
//   Observed o = *honest.member(of, number, {&program, states});
#pragma once

#include <memory>
#include <vector>

#include "harness/envelope/envelope.h"
#include "harness/envelope/precision_class.h"
#include "harness/envelope/script_engine.h"

namespace twinrun {

// Of the state variables of a program, those that a step computes from the state, the learning rate and the gradients that it shows:
// not running statistics, nor what accumulates gradients before they are shown.
std::vector<bool> follows_from_gradients(const Program& program);

// An engine of ours that runs only the update, on the gradients of the subject's step of the same number. Its program may be another than
// the subject's, `asked`, in the order of whose outputs `steps` has them: the names tell. Other results of a step mean nothing.
std::unique_ptr<Engine> update_alone(std::unique_ptr<Engine> engine, const Program& asked,
                                     const std::vector<MatchState>& steps);

struct HonestMembers {
  const Experiment& experiment;
  const Program& asked;  // of the subject
  const Capabilities& declared;
  const std::vector<Compared>& tensors;
  const std::vector<MatchState>& steps;  // with what the subject made of them
  int threads = 1;

  // What a member runs, and from where.
  struct Run {
    const Program& program;
    const std::vector<MatchState>& states;
    const Experiment* experiment =
        nullptr;         // whose feed the program reads; nullptr: the one asked for
    double further = 1;  // weights of odd members are moved by so many times what is usual
    bool own_update =
        true;  // false: in every class the state follows from the member's own gradients
    const StateMap* map =
        nullptr;  // how the program's state goes together with that of `asked`; nullptr: they are one
    const std::vector<MatchState>* history =
        nullptr;  // over which what the program keeps beside that is replayed
  };
  Result<Observed> member(const PrecisionClass& of, uint64_t number, const Run& run) const;
  // The same in binary64, but for an update of the subject's own gradients, from the states as they are.
  Result<Observed> exact(const PrecisionClass& of, const Run& run) const;
  // By the reference in binary32, from the states as they are.
  Result<Observed> reference(const Run& run) const;

 private:
  Result<Observed> observed(const PrecisionClass& of, Backend& passes, Backend& update,
                            uint64_t number, const Run& run) const;
};

}  // namespace twinrun

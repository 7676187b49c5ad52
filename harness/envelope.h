// One step of honest engines from a subject's own state: the envelope that the subject's step must lie in. Tensors only.
//
//   Observed t = *observe(experiment, *subject_engine, program, states);
//   Envelope around = envelope_of(members);                    // Observed of honest engines, another one each
//   for (const Distance& d : distances(t, around)) d.ratio;    // of the root mean square that an honest engine has
//
// An honest member is a draw from the family that a declaration allows, run from slightly moved weights where its number is odd:
// decisions that hang on a rounding (relu, max, to which of two bf16 an operand is rounded) then fall either way among the
// members, as between two honest engines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/experiment.h"

namespace twinrun {

// A state of the subject, per replica, and the step that it starts.
struct MatchState {
  int64_t step = 0;
  States states;
  // What the subject made of it in its run; if not known, it is run again from here.
  States after = {};
  StepOutputs outputs = {};
};

// What is compared of a step: loss, gradients, change of state.
struct Compared {
  std::string tensor;
  bool is_state = false;
  size_t index = 0;  // of the output or the state variable
  ValueId id = kNoValue;
};
std::vector<Compared> compared_tensors(const Program& program);

// Values of one tensor on one replica at one step; replicas that agree bit by bit share them.
struct Value {
  std::shared_ptr<const std::vector<float>> data;
  double size = 0;  // 2-norm of what was rounded to f32: the gradient, or the state after the step
};
struct Observed {
  size_t replicas = 1;
  std::vector<Value> values;  // [state][tensor][replica]
};

// By how much of itself, at most, a member's weight is moved: four ulps of binary32. Where operands are rounded to bf16 once,
// that changes hardly any of them, and yet two engines may round one apart: there, by what rounds about eight weights of all
// otherwise. (A weight moved by u d, u uniform in (-1, 1), crosses a midpoint of bf16, 2^-8 to 2^-7 of it apart, with
// probability d / 2 / 2^-7.4 = 85 d.)
double weight_move(const Program& program, DotPrecision precision);

// member 0: from the states as they are; odd ones: from weights moved by up to `move`.
// Without an engine: what the states' run made of them.
Result<Observed> observe(const Experiment& experiment, Engine* engine, const Program& asked,
                         const std::vector<MatchState>& states, uint64_t member = 0,
                         double move = 0);

struct Envelope {
  size_t members = 0;
  // Per value: mean of the members, root mean square distance of another honest engine from it, largest distance of a member.
  std::vector<std::shared_ptr<const std::vector<float>>> mean;
  std::vector<double> spread, largest;
  std::vector<bool> finite;
};
Envelope envelope_of(const std::vector<Observed>& members);

struct Distance {
  size_t value = 0;       // which
  double distance = 0;    // 2-norm of (subject - mean)
  double ratio = 0;       // distance / spread
  double of_largest = 0;  // distance / largest distance of a member
};
// Once where all replicas share a value. Values that are not finite in the members are left out; in the subject: infinite.
std::vector<Distance> distances(const Observed& subject, const Envelope& around);

double norm2(const std::vector<float>& a);
double gap2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace twinrun

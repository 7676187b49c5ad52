// One step of honest engines from a subject's own state: the envelope that the subject's step must lie in. Tensors only.
//
//   Observed t = *observe(experiment, subject_engine, program, compared_tensors(program), states);
//   Envelope around = envelope_of(members);                    // Observed of honest engines, another one each
//   for (const Distance& d : distances(t, around)) d.ratio;    // of the root mean square that an honest engine has
//
// An honest member is a draw from the family that a declaration allows, run from slightly moved weights where its number is odd:
// decisions that hang on a rounding (relu, max, to which of two bf16 an operand is rounded) then fall either way among the
// members, as between two honest engines.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun {

// Of rounding to binary32: half the distance of 1 to the next larger number.
inline constexpr double kRoundingUnit = 0x1p-24;

// A state of the subject, per replica, and the step that it starts.
struct MatchState {
  int64_t step = 0;
  States states;
  // What the subject made of it in its run; if not known, it is run again from here.
  States after = {};
  StepOutputs outputs = {};
};

// What is compared of a step: loss, gradients, change of state. Of a large model a sample of their elements, another one at each
// step: the tensor is cut into `kept` stretches of one size, and each gives one element, drawn by the scenario's seed.
struct Compared {
  std::string tensor;
  bool is_state = false;
  size_t index = 0;  // of the output or the state variable
  ValueId id = kNoValue;
  int64_t elements = 0, kept = 0;
};
// At most `most` elements of all tensors on one replica; small tensors are kept whole, the largest give the same number each.
inline constexpr int64_t kAllElements = std::numeric_limits<int64_t>::max();
std::vector<Compared> compared_tensors(const Program& program, int64_t most = kAllElements);
// Says of each how many of its elements are kept.
void share_elements(std::vector<Compared>& tensors, int64_t most);

// Values of one tensor on one replica at one step; replicas that agree bit by bit share them.
struct Value {
  std::shared_ptr<const std::vector<float>> data;
  std::shared_ptr<const std::vector<float>>
      stored;       // of a state: what the step leaves there; only of the subject and of member 1
  double size = 0;  // 2-norm of what was rounded to f32: the gradient, or the state after the step
};
struct Observed {
  size_t states = 1, replicas = 1;
  std::vector<Value> values;  // [state][tensor][replica]
};

// By how much of itself, at most, a member's weight is moved: four ulps of binary32. Where operands are rounded to so many bits
// of significand, that changes hardly any of them, and yet two engines may round one apart: there, by what rounds about eight
// weights of all otherwise. (A weight moved by u d, u uniform in (-1, 1), crosses a midpoint of bf16, 2^-8 to 2^-7 of it
// apart, with probability d / 2 / 2^-7.4 = 85 d; of a format of one more bit, with twice that.)
double weight_move(const Program& program, int operand_bits);

// member 0: from the states as they are; odd ones: from weights moved by up to `move`.
// Without an engine: what the states' run made of them.
Result<Observed> observe(const Experiment& experiment, Engine* engine, const Program& asked,
                         const std::vector<Compared>& tensors,
                         const std::vector<MatchState>& states, uint64_t member = 0,
                         double move = 0);

// How a value is compared with the members' mean. Errors that go every way add up in a norm; those that go one way, each far below
// the others' noise, add up along a direction.
enum class Look : uint8_t {
  kDistance,  // 2-norm of the difference
  kSize,      // the difference along what was due, as a share of it: a factor
  kStored,    // the difference along what the state holds, as a share of that: rounding to one side
  kSizes,     // kSize of all states together, each in units of its spread
  kStoreds,   // kStored of all states together
};
inline constexpr size_t kLookCount = 5;

// What an engine may be off by that keeps settings in binary32: 1 - beta of the rounded beta is 1.3e-5 of itself less where beta is
// 0.999. As shares of a state's change and of what the state holds.
struct SettingsSlack {
  double change = 0, held = 0;
};
SettingsSlack settings_slack(const Experiment& experiment);

struct Envelope {
  struct Range {
    double spread = 0;   // root mean square of what another honest engine shows
    double largest = 0;  // of any member
  };
  struct Around {
    std::shared_ptr<const std::vector<float>> mean,
        stored;                                        // stored: null where kStored has no meaning
    std::array<Range, kLookCount> looks;               // by Look; over all states: of the first
    std::array<std::vector<double>, kLookCount> seen;  // what each member shows
    bool finite = true;
    double allowed = 0;  // of a state: what settings may be off by, a 2-norm
    // Honest engines agree on what is due to this share of its size.
    bool known(double share) const;
  };
  size_t members = 0, states = 1;
  std::vector<Around> values;
};
Envelope envelope_of(const std::vector<Observed>& members, const SettingsSlack& slack = {});

struct Distance {
  size_t value = 0;  // which; of all states: the first one's
  Look look = Look::kDistance;
  double distance =
      0;  // of the subject from the mean; signed along a direction; over all states: their average
  double spread = 0;
  double ratio = 0;       // |distance| / spread
  double of_largest = 0;  // |distance| / largest of a member
  bool known = true;      // false: honest engines do not agree on what is due, it is rounding alone
};
// Once where all replicas share a value. Values that are not finite in the members are left out; in the subject: infinite.
std::vector<Distance> distances(const Observed& subject, const Envelope& around);

double norm2(const std::vector<float>& a);
double gap2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace twinrun

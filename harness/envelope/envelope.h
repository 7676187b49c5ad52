// The envelope of a step: what conforming engines compute in one step from the subject's own state.
// The subject's step must lie within it. Only tensors are needed, no trace of ops.
//
//   Observed t = *observe(experiment, subject_engine, program, compared_tensors(program), states);
//   Envelope around = envelope_of(members);                  // Observed of conforming engines
//   for (const Distance& d : distances(t, around)) d.ratio;  // 1: as far as a member typically is
//
// A member is drawn from the family of engines that a declaration allows. Members with odd numbers
// run from slightly moved weights: decisions that depend on rounding (relu, max, to which of two
// bf16 numbers an operand is rounded) then fall either way among the members, as they do between
// two conforming engines.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun {

// A state of the subject on all replicas, and the step that starts from it.
struct ProbedState {
  int64_t step = 0;
  States states;
  // What the subject computed from it in its run; where that is not known, the step is run again.
  States after = {};
  StepOutputs outputs = {};
};

// A tensor of a step that is compared: the loss, a gradient, or the change of a state variable. Of
// a large model a sample of the elements is compared, a different one at each step: the tensor is
// cut into `kept` stretches of nearly equal size, and the scenario's seed draws one element from
// each.
struct Compared {
  std::string tensor;
  bool is_state = false;
  size_t index = 0;  // index of the output or of the state variable
  ValueId id = kNoValue;
  int64_t elements = 0, kept = 0;
};
// Keeps at most `most` elements of all tensors on one replica. Small tensors are kept whole; the
// largest keep the same number of elements each.
inline constexpr int64_t kAllElements = std::numeric_limits<int64_t>::max();
std::vector<Compared> compared_tensors(const Program& program, int64_t most = kAllElements);
// Sets how many elements of each tensor are kept.
void share_elements(std::vector<Compared>& tensors, int64_t most);

// Values of one tensor on one replica at one step. Replicas that agree bit for bit share them.
struct Value {
  std::shared_ptr<const std::vector<float>> data;
  // For a state variable: its values after the step. Only members 0 (the subject) and 1 have them.
  std::shared_ptr<const std::vector<float>> stored;
  // 2-norm of what was rounded to f32: of the gradient, or of the state after the step.
  double size = 0;
};
struct Observed {
  size_t states = 1, replicas = 1;
  std::vector<Value> values;  // [state][tensor][replica]
};

// The largest relative amount by which a member's weight is moved: four ulps of binary32. Where
// operands of products are rounded to `operand_bits` bits of significand, so small a move changes
// hardly any rounded operand, yet two engines may round one differently. There the move is so large
// that about eight of all weights round differently. (Midpoints of bf16 are 2^-8 to 2^-7 of a
// weight apart. A weight moved by u d, u uniform in (-1, 1), crosses one with probability d / 2 /
// 2^-7.4 = 85 d; in a format of one more bit, with twice that.)
double weight_move(const Program& program, int operand_bits);

// Runs the step of each state on `engine` and collects the compared tensors. Member 0 and all even
// members start from the states as they are, odd ones from weights moved by up to `move`. Without
// an engine: what the subject's run computed from the states.
Result<Observed> observe(const Experiment& experiment, Engine* engine, const Program& asked,
                         const std::vector<Compared>& tensors,
                         const std::vector<ProbedState>& states, uint64_t member = 0,
                         double move = 0);

// How a value is compared with the members' mean. Errors of either sign add up in a norm. Errors
// that all go one way, each far below the noise of the members, add up along a direction.
enum class Look : uint8_t {
  kDistance,  // 2-norm of the difference
  kSize,      // the difference along the expected value, as a share of it: a factor
  kStored,    // the difference along what the state holds, as a share of that: rounding to one side
  kSizes,     // kSize over all states together, each in units of its spread
  kStoreds,   // kStored over all states together
};
inline constexpr size_t kLookCount = 5;

// How far an engine may be off because it keeps its settings in binary32: with a beta of 0.999, the
// complement of the rounded beta is too small by 1.3e-5 of itself. Given as shares of a state's
// change and of what the state holds.
struct SettingsSlack {
  double change = 0, held = 0;
};
SettingsSlack settings_slack(const Experiment& experiment);

struct Envelope {
  struct Range {
    double spread = 0;   // root mean square of what another conforming engine shows
    double largest = 0;  // the largest that any member shows
  };
  struct Around {
    // `stored` is null where kStored has no meaning.
    std::shared_ptr<const std::vector<float>> mean, stored;
    // By Look. The ranges over all states are kept with the first state.
    std::array<Range, kLookCount> looks;
    std::array<std::vector<double>, kLookCount> seen;  // what each member shows, by Look
    bool finite = true;                                // all members are
    double allowed = 0;  // for a state: how far settings may be off, as a 2-norm
    // Whether conforming engines agree on the expected value to within this share of its size.
    bool known(double share) const;
  };
  size_t members = 0, states = 1;
  std::vector<Around> values;
};
Envelope envelope_of(const std::vector<Observed>& members, const SettingsSlack& slack = {});

struct Distance {
  size_t value = 0;  // index into Observed::values; for looks over all states, that of the first
  Look look = Look::kDistance;
  // Of the subject from the mean; signed along a direction; over all states, the average.
  double distance = 0;
  double spread = 0;
  double ratio = 0;       // |distance| / spread, less what settings may be off by
  double of_largest = 0;  // the same in units of the largest of a member
  bool known = true;  // false: conforming engines disagree on the value, which is rounding alone
};
// The subject's distances from the envelope, one per look; values that all replicas share count
// once. Values that are not finite in the members are left out; values that are not finite in the
// subject have an infinite distance.
std::vector<Distance> distances(const Observed& subject, const Envelope& around);

double norm2(const std::vector<float>& a);
double gap2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace twinrun

// Which program did the subject run? The instrument for an engine that shows tensors only, and for one whose executed program is
// not the one that was asked for. From the subject's own states ONE step is run again on the subject; its gradients, loss and
// change of state are compared with what honest engines of the declared arithmetic make of the same step: first of the program
// asked for, then of that program with each cause of harness/sharding/causes.h (then pairs of them) introduced or undone.
//
//   auto m = match_subject(experiment, program, *subject, {{0, s0}, {7, s7}}, {.threads = 2});
//   m->outcome;               // kInside, kExplained (by any of m->classes.front().causes), kUnexplained
//   m->outside.front();       // the tensor computed first among those outside: name, core, ratio, pattern
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/envelope/envelope.h"
#include "harness/envelope/precision_class.h"
#include "harness/identify/bracket.h"
#include "harness/identify/formulas.h"
#include "harness/sharding/assignment.h"

namespace twinrun {

struct MatchOptions {
  int threads = 1;
  int few = 8, many = 24;     // members: to see that all is well; to say that it is not
  double false_alarm = 1e-6;  // of one call, all its tensors together, where rounding is Gaussian
  bool explain = true;        // false: only whether it is inside
  // Elements that are kept of one engine, of all states and replicas: 256 MiB where no two replicas agree, times `many` at worst. Of
  // larger models a sample is compared (harness/envelope/envelope.h).
  int64_t most_elements = int64_t{1} << 26;
  bool pairs = true;     // try two causes at once where no single one explains
  bool formulas = true;  // try the catalogue of formulas (harness/identify/formulas.h), too
  // Steps of the run from its first on, which need not be all: what a script keeps to itself is replayed over them, and
  // what is outside is compared with the step before it.
  const std::vector<MatchState>* history = nullptr;
  // Held against this class of precision alone, whatever is declared; nullopt: against those that the declaration allows.
  std::optional<PrecisionClass> only = std::nullopt;
};

// One tensor of one replica at one step, outside the envelope of honest engines.
struct TensorMismatch {
  std::string tensor;  // "dense1/kernel.grad", "dense1/kernel", "loss"
  bool is_state = false;
  int replica = 0;
  int64_t step = 0;
  double distance =
      0;  // from the mean of the honest engines, by the look (harness/envelope/envelope.h) that shows it best
  double spread = 0;  // what that is for an honest engine, root mean square
  double ratio = 0;   // distance / spread
  double relative =
      0;  // distance as a share of what was due; infinite: zero was due, or nothing but rounding
  double due = 0;     // the size of what was due
  bool known = true;  // false: honest engines do not agree on what is due, it is rounding alone
  bool all_steps =
      false;  // all states together show it, and none by itself; `step` is then the first
  std::vector<int> cores;  // that have this very value; `replica` is the first
  std::string elements;    // which are wrong: "column 7 of 32"; "": all, or only all together
  std::string
      pattern;  // "1.5 times what was due", "unchanged: an update of zero", "without core 3's part", ""
  // Of a state at the first step that is outside: the update is what follows from the gradient that was reported; it is not, though
  // that gradient is outside as well.
  bool follows = false, wrong_besides = false;
  Bracket bracket = {};  // of the first one: where between the tensors of its step the fault lies
};

// What explains the subject: one or two causes of sharding, each introduced or undone, or formulas in their place.
struct Explanation {
  struct Part {
    std::string cause;
    bool introduced = true;  // false: the program asked for has it, the subject's has not
    std::optional<FormulaChange> formula = {};  // then `cause` is its setting
    std::optional<ShardingChange> sharding =
        {};  // then `cause` is its name, and no catalogue has it
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;
  double ratio = 0;  // the subject's largest, in this program's own envelope
  bool has_formula() const;
  bool harmless() const;  // all it changes leaves the meaning of the batch as it is
};
// The experiment and the sharding whose program the parts describe.
struct ChangedProgram {
  std::shared_ptr<const Experiment> experiment;
  Sharding sharding;
};
Result<ChangedProgram> changed_by(const Experiment& experiment, const Sharding& sharding,
                                  const std::vector<Explanation::Part>& parts);

// The training step of an experiment under a sharding.
Program step_of(const Experiment& experiment, const Sharding& sharding);

struct MatchResult {
  enum class Outcome : uint8_t {
    kInside,
    kExplained,
    kUnexplained,
    kUnrepeatable,  // outside, and as far from itself when run again: nothing can be held against it
    kUntestable
  } outcome = Outcome::kInside;
  bool read =
      false;  // told from what the ops read (harness/sharding/feeding.h), bit by bit: no tensor was compared
  double ratio = 0;      // the largest, against the program asked for
  double threshold = 0;  // what an honest engine exceeds with probability `false_alarm`
  double false_alarm = 0;
  int64_t comparisons = 0;
  int64_t elements = 0,
          elements_kept = 0;  // of one replica's step; fewer kept: a sample was compared
  std::vector<TensorMismatch>
      outside;  // in the order of computation, first the one nearest its cause
  std::vector<Explanation> explanations;  // those that the evidence cannot tell apart, best first
  // Unexplained: the cause that leaves half of the tensors outside at most, if there is one; `outside` are then those that it
  // leaves. A cause and a fault together.
  std::optional<Explanation> beside;
  // Inside: what the subject does otherwise than the program asked for, without any change of what the batch means.
  std::optional<Explanation> harmless;
  // Unexplained, and nothing is beside: the formula that brings the subject nearest, if the tensors outside are clearly fewer with it;
  // of how many. It explains nothing.
  struct Likeness {
    Explanation explanation;
    int64_t outside = 0, of = 0;
  };
  std::optional<Likeness> likeness;
  // The class of precision (harness/envelope/precision_class.h) that it was held against: its word and what that rounds. Inside: the one
  // that holds it, the declared one if that does, else the finest.
  std::string computes_as, computes;
  PrecisionClass held;
  // What is outside is explained by a precision that the declaration does not allow: what that rounds, "operands of products rounded
  // to bfloat16".
  std::string undeclared;
  bool in_its_numbers = false;  // ... and its gradients are numbers of that format, bit by bit
  // Unrepeatable: a step run twice from the same state, the distance between the runs as a share of what was due.
  double apart = 0;
  int64_t states = 0;              // steps looked at
  bool draws = false;              // the program has random ops
  std::vector<std::string> twins;  // engine faults that predict the same tensors as an explanation
  std::string why;                 // untestable: what is missing
  int64_t subject_steps = 0, member_steps = 0, exact_steps = 0;  // what it cost
};

Explanation::Part part_of(ShardingChange change);
// Of what explains a subject alike: what sharding explains by itself needs no other formula; what does no harm comes first; then what
// leaves each core's loss to be compared.
void keep_preferred(std::vector<Explanation>& explanations);
// Engine faults that predict the same tensors.
std::vector<std::string> twins_of(const Experiment& experiment,
                                  const std::vector<Explanation>& explanations);
bool exclude_each_other(const Explanation::Part& a, const Explanation::Part& b);
// Is the mean of the cores' losses compared, not each?
bool losses_together(const std::vector<Explanation::Part>& parts);
// Are learning rates read from each step by itself? They fit much of what one step shows, whatever it comes from.
bool has_free_rates(const std::vector<Explanation::Part>& parts);
// Are those, or how samples were dealt, read from the tensors of single steps? Then they make no whole run.
bool is_read_from_steps(const std::vector<Explanation::Part>& parts);

// The tensors that are outside what honest engines of one class make of `asked` with these changes; none: the explanation holds on
// `states`.
Result<std::vector<TensorMismatch>> outside_of(const Experiment& experiment, const Program& asked,
                                               Backend& subject,
                                               const std::vector<MatchState>& states,
                                               const std::vector<Explanation::Part>& parts,
                                               const PrecisionClass& of,
                                               const MatchOptions& options);

// Honest engines of one class, as many as decide whether a step hangs on a decision within the subject's own rounding (a relu, a
// maximum): from weights that are moved kFurther times as far as the ensemble's, each falls its way in about half of all cases.
inline constexpr double kFurther = 16;
inline constexpr int kDeciders = 16;  // none of so many falls so with probability 2^-16
// Of these `states`, the steps at which one of the tensors `outside` is beyond all of those engines, too. `parts`: changes of the
// program that they run.
Result<std::set<int64_t>> steps_that_stand(const Experiment& experiment, const Program& asked,
                                           Backend& subject, const std::vector<MatchState>& states,
                                           const std::vector<Explanation::Part>& parts,
                                           const std::vector<TensorMismatch>& outside,
                                           const PrecisionClass& of, const MatchOptions& options);

// What a step of all cores costs the search for another program: its floating-point operations, and the overhead of its ops in the
// same unit; and what trying many programs may cost (of our reference, half a minute of one core).
double search_cost(const Program& program);
inline constexpr double kSearchBudget = 5e11;

// `asked` is a sharded or whole program of the experiment.
Result<MatchResult> match_subject(const Experiment& experiment, const Program& asked,
                                  Backend& subject, const std::vector<MatchState>& states,
                                  const MatchOptions& options);

}  // namespace twinrun

// Program identification: finds which program a subject executed. For an engine that shows tensors
// only, and for one whose executed program is not the requested one. One step from each of the
// subject's own states is taken from its run, or run again. Its gradients, loss and change of state
// are compared with what conforming engines of the declared arithmetic compute in the same step:
// first with the requested program, then with that program changed by each cause of
// harness/sharding/causes.h, introduced or undone, and by each formula (then by pairs of them).
//
//   auto m = identify_program(experiment, program, *subject, {{0, s0}, {7, s7}}, {.threads = 2});
//   m->outcome;               // kInside, kExplained (by each of m->explanations), kUnexplained
//   m->outside.front();       // the tensor computed first of those outside: name, core, pattern
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/envelope/envelope.h"
#include "harness/envelope/precision_class.h"
#include "harness/identify/formulas.h"
#include "harness/sharding/assignment.h"

namespace twinrun {

struct IdentifyOptions {
  int threads = 1;
  // Members: `few` show that the subject is inside, `many` are needed to say that it is not.
  int few = 8, many = 24;
  // Probability for one call, over all its tensors, where rounding is Gaussian.
  double false_alarm = 1e-6;
  bool explain = true;  // false: only find out whether it is inside
  // Elements that are kept of one engine over all states and replicas: 256 MiB where no two
  // replicas agree, times `many` at worst. Of larger models a sample is compared
  // (harness/envelope/envelope.h).
  int64_t max_elements = int64_t{1} << 26;
  bool pairs = true;     // try two changes of the catalogues at once where no single one explains
  bool formulas = true;  // try the catalogue of formulas (harness/identify/formulas.h), too
  // Steps of the run from its first step on, not necessarily all. State that is private to a script
  // is replayed over them, and what is outside is compared with the step before it.
  const std::vector<ProbedState>* history = nullptr;
  // Compare with this precision class only, whatever is declared; nullopt: with those that the
  // declaration allows.
  std::optional<PrecisionClass> only = std::nullopt;
};

// One tensor of one replica at one step that is outside the envelope of conforming engines.
struct TensorMismatch {
  std::string tensor;  // "dense1/kernel.grad", "dense1/kernel", "loss"
  bool is_state = false;
  int replica = 0;
  int64_t step = 0;
  // From the mean of the conforming engines, by the look (harness/envelope/envelope.h) that shows
  // it best.
  double distance = 0;
  double spread = 0;  // the root mean square of that distance for a conforming engine
  double ratio = 0;   // distance / spread
  // The distance as a share of the expected value; infinite where zero was expected.
  double relative = 0;
  double expected = 0;  // the size of the expected value
  bool known = true;    // false: conforming engines disagree on the value, which is rounding alone
  // All states together show it, and none by itself; `step` is then the first.
  bool all_steps = false;
  std::vector<int> cores;  // those with this very value; `replica` is the first
  std::string elements;    // which are wrong: "column 7 of 32"; "": all, or only all together
  // "1.5 times what was expected", "unchanged: an update of zero", "without core 3's part", "".
  std::string pattern;
  // For a state at the first step that is outside. `follows`: the update follows from the reported
  // gradient. `wrong_besides`: it does not, and that gradient is outside as well.
  bool follows = false, wrong_besides = false;
};

// Explains the subject: one or two causes of sharding, each introduced or undone, or formulas in
// their place.
struct Explanation {
  struct Part {
    std::string cause;
    bool introduced = true;  // false: the requested program has it, the subject's does not
    std::optional<FormulaChange> formula = {};  // if set, `cause` is its setting
    // If set, `cause` is its name, and the catalogue has no such cause.
    std::optional<ShardingChange> sharding = {};
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;
  double ratio = 0;  // the subject's largest, in the envelope of the explaining program
  bool has_formula() const;
  bool harmless() const;  // none of its changes alters what the batch means
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

struct Identification {
  enum class Outcome : uint8_t {
    kInside,
    kExplained,
    kUnexplained,
    kUnrepeatable,  // outside, but a step run twice differs as much: it proves nothing
    kUntestable
  } outcome = Outcome::kInside;
  // Found from what the ops read (harness/sharding/feeding.h), bit by bit: no tensor was compared.
  bool read = false;
  double ratio = 0;      // the largest, against the requested program
  double threshold = 0;  // a conforming engine exceeds it with probability `false_alarm`
  double false_alarm = 0;
  int64_t comparisons = 0;
  // Number of elements of all compared tensors in one step of one replica, and how many of them
  // were compared. If fewer were, the comparison used a sample.
  int64_t elements = 0, elements_kept = 0;
  // In the order of computation: the first is nearest to the cause.
  std::vector<TensorMismatch> outside;
  std::vector<Explanation> explanations;  // those that the evidence cannot tell apart, best first
  // Unexplained: a single change that leaves at most half of what was outside, or that the updates
  // show by themselves, if there is one; `outside` has what it leaves. A cause and a fault
  // together.
  std::optional<Explanation> beside;
  // Inside: what the subject does differently from the requested program without changing what the
  // batch means.
  std::optional<Explanation> harmless;
  // Unexplained, and `beside` is empty: the change that brings the subject nearest, if clearly
  // fewer tensors are outside with it; how many, of how many. It explains nothing.
  struct Signature {
    Explanation explanation;
    int64_t outside = 0, of = 0;
  };
  std::optional<Signature> signature;
  // The precision class (harness/envelope/precision_class.h) that the subject was compared with:
  // its word, and what it rounds. If inside: the class that contains it, the declared one if that
  // does, else the finest.
  std::string computes_as, computes;
  PrecisionClass held;
  // What is outside is explained by a precision that the declaration does not allow: what it
  // rounds, "operands of products rounded to bfloat16".
  std::string undeclared;
  bool in_its_numbers = false;  // ... and its gradients are numbers of that format, bit for bit
  // Unrepeatable: the distance between two runs of a step from the same state, as a share of the
  // expected value.
  double apart = 0;
  int64_t states = 0;              // steps that were compared
  bool draws = false;              // the program has random ops
  std::vector<std::string> twins;  // engine faults that predict the same tensors as an explanation
  std::string why;                 // untestable: what is missing
  // Cost of the match: steps of the subject, of members, and in binary64.
  int64_t subject_steps = 0, member_steps = 0, exact_steps = 0;
};

Explanation::Part part_of(ShardingChange change);
// Selects among explanations that fit equally well. A cause of sharding that explains by itself
// needs no other formula; next, harmless ones are preferred; then those that let each core's loss
// be compared.
void keep_preferred(std::vector<Explanation>& explanations);
// Engine faults that predict the same tensors as these explanations.
std::vector<std::string> twins_of(const Experiment& experiment,
                                  const std::vector<Explanation>& explanations);
// Whether two changes of the catalogues set the same thing.
bool exclude_each_other(const Explanation::Part& a, const Explanation::Part& b);
// Whether the mean of the cores' losses is compared, not each loss.
bool losses_together(const std::vector<Explanation::Part>& parts);
// Whether learning rates are taken from each step by itself. They fit much of what one step shows,
// whatever its cause.
bool has_free_rates(const std::vector<Explanation::Part>& parts);
// Whether those, or how samples were dealt to cores, are known of single steps only. They then do
// not describe a whole run.
bool is_read_from_steps(const std::vector<Explanation::Part>& parts);

// The tensors that are outside what conforming engines of one class compute with `asked` changed by
// `parts`. None: the explanation holds on `states`.
Result<std::vector<TensorMismatch>> outside_of(const Experiment& experiment, const Program& asked,
                                               Backend& subject,
                                               const std::vector<ProbedState>& states,
                                               const std::vector<Explanation::Part>& parts,
                                               const PrecisionClass& of,
                                               const IdentifyOptions& options);

// Conforming engines of one class, as many as decide whether a step depends on a decision (a relu,
// a maximum) within the subject's own rounding. They start from weights that are moved kFurther
// times as far as the ensemble's, so that each decision falls either way in about half of them.
inline constexpr double kFurther = 16;
inline constexpr int kDeciders = 16;  // none of so many falls one way with probability 2^-16
// Of these `states`, the steps at which one of the tensors `outside` lies beyond all of those
// engines, too. `parts`: changes of the program that they run.
Result<std::set<int64_t>> steps_that_stand(const Experiment& experiment, const Program& asked,
                                           Backend& subject, const std::vector<ProbedState>& states,
                                           const std::vector<Explanation::Part>& parts,
                                           const std::vector<TensorMismatch>& outside,
                                           const PrecisionClass& of,
                                           const IdentifyOptions& options);

// The cost of a step on all cores in the search for another program: its floating-point operations,
// and the overhead of its ops in the same unit. kSearchBudget limits the cost of trying many
// programs (of our reference, half a minute of one core).
double search_cost(const Program& program);
inline constexpr double kSearchBudget = 5e11;

// `asked` is a sharded or whole program of the experiment.
Result<Identification> identify_program(const Experiment& experiment, const Program& asked,
                                        Backend& subject, const std::vector<ProbedState>& states,
                                        const IdentifyOptions& options);

}  // namespace twinrun

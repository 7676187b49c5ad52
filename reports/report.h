// What every answer of twinrun is, whatever was diagnosed: a scenario, a recorded step, two sides, a
// compiled module, a known step. The harness fills the structs and the formats below render them;
// nothing here computes. Last stage of the pipeline: verdict -> Report -> report.json, report.md,
// report.html, terminal.
//
//   std::string json = to_json(report);         // schema: docs/reference/report-schema.md
//   std::string text = to_terminal(report, {.width = 80, .color = true});
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "program/base/result.h"
#include "program/base/run_end.h"

namespace twinrun {

inline constexpr int kReportSchema = 3;

enum class VerdictClass : uint8_t {
  kIdentical,
  kNoise,
  kSharding,
  kProgram,
  kEngineBug,
  kNondeterministic,
  kInconclusive
};
// "IDENTICAL" "NOISE" "SHARDING" "PROGRAM" "ENGINE_BUG" "NONDETERMINISTIC" "INCONCLUSIVE"
std::string_view to_string(VerdictClass verdict);
// What the drift does to what the model learns: the second answer of a report. The class says what
// causes the drift.
enum class Effect : uint8_t {
  kNoneDetected,
  kSeedNoise,  // of rounding, and smaller than what another seed does
  kWithinMargin,
  kHarmful,
  kBeneficial,
  kUndecided
};
std::string_view to_string(Effect effect);  // "none detected" "inside seed noise" ...
// 0 0 10 15 20 30 125, in the order of the classes; 0 also for kSharding whose effect lies inside a
// margin that the user has declared.
int exit_code(VerdictClass verdict, Effect effect = Effect::kUndecided);

// One of the five questions about a training step, and what came out of it.
struct Answer {
  // kPartly: yes, as far as it was asked; `what` says both.
  enum class Outcome : uint8_t { kYes, kNo, kOpen, kPartly, kNotAsked, kNotApplicable };
  Outcome outcome = Outcome::kNotAsked;
  std::string what;  // what shows it, or why it was not asked; without a full stop
};
std::string_view to_string(Answer::Outcome outcome);  // "yes" "no" "open" "in part" ..

// Whoever diagnoses fills what it can.
struct Answers {
  Answer repeats;     // Does it repeat?
  Answer operations;  // Is every operation right?
  Answer program;     // Is it the program that it claims to be?
  Answer sharding;    // Does sharding mean the same?
  Answer effect;      // Does it matter?
};
struct Question {
  std::string_view key, words;  // "repeats", "does it repeat?"
  Answer Answers::*answer;
  VerdictClass if_no;  // kNoise: "no" is nothing wrong
};
std::span<const Question> questions();  // in this order
// The verdict that the answers give: the gravest "no"; without one, kInconclusive if a question is
// open or no operation was asked about.
VerdictClass classify(const Answers& answers);

// Something that the answer depends on and that was not examined. Any makes the verdict
// INCONCLUSIVE.
struct OpenQuestion {
  std::string what;   // a sentence without a full stop
  std::string how;    // what to do so that it is examined: the same
  std::string place;  // the first line of the user's source that is concerned; "" if none is
  int64_t times = 1;
  bool of_program =
      false;  // it belongs to the question of the program, not to that of the operations
};

// What paired seeds show of a difference. A diagnosis gives kIdentical or one of the words of
// Effect; `compare` gives kIdentical or one of the last three.
enum class PairedOutcome : uint8_t {
  kIdentical,
  kNoneDetected,
  kWithinMargin,
  kHarmful,
  kBeneficial,
  kUndecided,
  kEquivalent,
  kOutside,
  kUndetermined
};
std::string_view to_string(PairedOutcome outcome);
// How near a cure brings the subject to the reference, measured by what another seed does.
enum class CureOutcome : uint8_t { kWithinNoise, kOutsideNoise, kUndecided };
std::string_view to_string(CureOutcome outcome);  // "within the seed noise" ...
enum class EnsembleOutcome : uint8_t { kInside, kOutside };
std::string_view to_string(EnsembleOutcome outcome);  // "inside" "outside"

// A tensor that came out wrong, reduced to at most 64 x 64 cells: elements in row-major order, the
// trailing dimensions across. A cell is the worst |error| / bound of its elements, as one
// character: "." at most 1 (inside), "1" up to 10, "2" up to 100, ... "9" above 10^8, "!" NaN, Inf,
// or other bits where bits had to be equal.
struct TensorPicture {
  std::vector<int64_t> dims;       // of the tensor, on one core
  int64_t across = 0;              // how many trailing dimensions run from left to right
  std::vector<std::string> cells;  // one string per row, from the top; all of equal length
};

// One claim, with its number, the source of its bound, and the command that reproduces it.
struct Finding {
  VerdictClass verdict = VerdictClass::kNoise;
  // "reduction", "batch_norm", "precision", "rounding", "seed", "engine:conv1/kernel.grad", ...
  std::string cause;
  std::string sentence;         // one sentence for an engineer who has never seen the tool
  std::optional<int64_t> step;  // from 0
  std::string phase;            // forward | gradient | collective | update | ""
  std::string op;               // "conv1/kernel.grad"
  std::string op_kind;          // "convolution_kernel_grad"
  std::optional<int> core;
  std::string elements;         // "12 of 4608 elements, first [0,3,1,7]"
  std::string fingerprint;      // "x8 of the expected value", "stale by one step", ...
  std::optional<double> share;  // of the squared drift, 0..1
  // Evidence level: A op trace and declared contract, B op trace, C tensors only.
  char level = 'A';
  double number = 0;         // the statistic
  double bound = 0;          // the most that a conforming engine may reach
  std::string number_text;   // both in words, where "number; allowed bound" would not be clear
  std::string bound_source;  // "gamma_17 of f32 accumulation, docs/method/bounds.md#dots"
  std::string hex;           // "engine 1.01 (0x3f8147ae), expected 1.00999999 (0x3f8147ad)"
  std::vector<std::string> evidence;
  // Of a cause of sharding: what its sentence is filled in with (harness/sharding/catalogue.h).
  std::map<std::string, std::string> facts = {};
  std::string reproduce;  // command line
  // Of the first wrong result, on the core where it was seen.
  std::optional<TensorPicture> picture;
  // Of a recorded call: its number in the trace, the lines of the source that made it, innermost
  // first, and the module of the model.
  std::optional<int64_t> call;
  std::string place, module;
  std::optional<int64_t> outside;  // elements outside of their bounds
  bool composed = false;           // a function made of several calls
};

// A table that only this kind of report has, such as the operations of a trace.
using DetailValue = std::variant<std::string, int64_t, double>;
struct DetailTable {
  struct Column {
    std::string key, title;  // "worst", "largest error / bound"
  };
  std::string id, title;  // "operations", "Operations"
  std::string note;       // a paragraph before the rows; ""
  std::vector<Column> columns;
  std::vector<std::vector<DetailValue>> rows;  // a value for each column
};

// Dots on a line of powers of ten for each row, and a line at 1.
struct DotFigure {
  struct Row {
    std::string name;
    std::vector<double> values;
  };
  std::string title, description, x_label;
  std::vector<Row> rows;
};

struct RunSummary {
  std::string name;      // R R2 R1 E1 S T
  std::string engine;    // "cpu"
  std::string settings;  // "batch 256", "8 cores x 32, reduction mean, batch norm per core"
  std::string meaning;   // "reference, whole batch"
  std::string root_digest;
  int64_t steps = 0;
  double train_loss = 0;  // of the last step
  double eval_loss = 0, eval_accuracy = 0;
  double seconds = 0;
  RunEnd ended;
  std::vector<float> losses;  // per step
  bool kept = false;          // a reference run of an earlier diagnosis, read back
  bool evaluated = true;  // on held-out samples; if false, eval_loss and eval_accuracy mean nothing
  bool scored = true;     // whether there is an accuracy; an imported step has none
  std::vector<std::string> core_digests;  // of each core's state after the last step
};

// The step after which the states of two runs differ in their bits.
struct StateDivergence {
  std::string pair;                   // "T - S"
  int64_t steps = 0;                  // number of steps compared
  std::optional<int64_t> first_step;  // first step after which they differ; nullopt: never
};

// How far the weights of two runs are apart, variable by variable, after some of the steps.
struct WeightDrift {
  std::string pair;  // "T - R"
  std::vector<int64_t> steps;
  struct Row {
    std::string variable;  // "dense1/kernel"
    // One per step: |T - R| / |R|, on the core that is farthest away; 0: equal.
    std::vector<double> distance;
  };
  std::vector<Row> rows;  // in the order of the program
};

// The range of the reference's loss at each step over seeds, which no engine difference causes.
// Empty: not measured.
struct LossBand {
  std::string source;            // "least and largest of 4 seeds of R"
  std::vector<float> low, high;  // per step
};

// For a subject that shows tensors only: how many of its steps were examined, and which parts of
// the scenario no step exercised. steps == 0: its ops were seen.
struct StepCoverage {
  int64_t steps = 0, screened = 0, judged = 0;
  // Judged steps where a decision that depends on rounding explains the difference.
  int64_t set_aside = 0;
  std::vector<int64_t> outside;            // judged steps with a tensor outside the bound
  std::vector<int64_t> left_out;           // steps without an update: a loss scaler skipped them
  std::vector<std::string> not_exercised;  // parts of the scenario, in words
};

// Which control of the experiment it is. Not part of report.json.
enum class ControlKind : uint8_t { kOther, kReferenceRepeats, kSubjectRepeats, kEmulator };

struct Control {
  std::string name;  // "R = R' (2 threads, poisoned memory)"
  bool passed = true;
  bool run = true;
  std::string detail;
  std::string failure;  // consequence if this control fails; "": nothing below is certain
  ControlKind kind = ControlKind::kOther;
};

// Worst ratio |subject - oracle| / bound of one op over all probed steps and cores.
struct ProbeRow {
  std::string op, kind, phase;
  double worst_ratio = 0;
  int64_t elements = 0, outside = 0, untestable = 0;
  double operand_residual = -1;  // dots: relative to unrounded f64; < 0: not measured
};

struct EngineProbe {
  std::string pair;  // "T" or "E1"
  std::string engine;
  int64_t steps_probed = 0, steps = 0, ops = 0, elements = 0, untestable = 0;
  std::string policy;             // "every step", "steps 0-2 and every 10th"
  std::vector<ProbeRow> rows;     // worst first
  double dot_residual = -1;       // median over dots of operand_residual
  std::string dot_residual_text;  // "2^-9.2 (one bf16 pass predicts about 2^-9)"
  double seconds = 0, share = 0;  // of the probe; share of the run's own time
};

// One cause of sharding introduced or undone on the reference, judged on one step from the same
// state.
struct AblationRow {
  std::string cause;      // "reduction"
  std::string direction;  // "restored in S" | "introduced alone"
  // Relative one-step drift of the update: |dS - dR| / |dR|.
  double drift_before = 0, drift_after = 0;
  double envelope = 0;  // drift that rounding explains
  bool explains = false;
  double share = 0;  // Shapley share of the squared drift
  std::string note;
};

// What the program says of a step on so many cores, with the batch of the scenario.
struct ManyCoresRow {
  int cores = 1;
  bool asked = false;   // the cores of this diagnosis
  int64_t samples = 0;  // of the batch, on each core
  // The reduced gradient, as a multiple of the whole batch's; nullopt: nothing is reduced.
  std::optional<double> gradient;
  int64_t normalised = 0;      // samples behind a variance of batch norm; 0: there is no batch norm
  double statistic_noise = 0;  // of their mean, in standard deviations of a sample
  int64_t additions = 0;       // of the all-reduce, for one element
  double rounding_bound = 0, rounding_typical = 0;  // of these, relative
};

// How the effects of sharding grow with the number of cores. Empty for few cores.
struct ManyCores {
  std::vector<ManyCoresRow> rows;
  std::vector<std::string> sentences;  // what the rows mean, and what the runs measured
};

// A comparison of the sharded program and the whole-batch program as functions: both are evaluated
// over the prime field of 2^61 - 1 elements at random points.
struct ProofRow {
  std::string program;  // "sharded", "without batch_norm", "without any cause"
  // Equal at every point, on every core.
  bool gradient = false, update = false, statistics = false;
  int points = 0;
  double degree = 0;      // upper bound on the degree of the compared polynomials
  double log2_error = 0;  // log2 of the probability that different functions agree at all points
  // The first value that differs from the whole batch's; "" where there is none.
  std::string diverges_at;
  std::string
      diverging_operand;  // the operand of that value of which each core has only its own part
  // Why the program has no value over the field; then the other members mean nothing.
  std::string unproven;
};

inline constexpr std::string_view kLossMetric = "held-out loss";
inline constexpr std::string_view kAccuracyMetric = "held-out accuracy";  // a fraction

// A comparison of two kinds of runs over paired seeds.
struct TrajectoryRow {
  std::string pair;                    // "T - R"
  std::string meaning;                 // "what the user sees"
  std::string metric;                  // kLossMetric, kAccuracyMetric
  std::vector<double> differences;     // per seed
  double mean = 0, low = 0, high = 0;  // confidence interval at the level below
  double level = 0.95;  // of one interval, so that all looks and metrics together hold with 95 %
  double margin = 0;    // declared by the user; 0: none
  std::string margin_source;  // "diagnose.margin"
  PairedOutcome outcome = PairedOutcome::kUndecided;
  // The smallest mean that these seeds would show to differ from 0, with 80 % power; 0: one seed.
  double detectable = 0;
  // The seeds suffice for "none detected" where `detectable` is at most this.
  double must_see = 0;
  double seed_spread = 0;  // standard deviation of the metric between seeds of the reference
  // Seeds that would decide if mean and spread stay; 0: decided, or more than 1000.
  int would_decide = 0;
  // From `compare`: the 90 % interval that two one-sided tests at 5 % compare with the margin.
  double tost_low = 0, tost_high = 0;
};

// A cure that was applied: the subject trained again with the causes undone, against the reference.
struct CureRow {
  std::string run;        // "U", "L"
  std::string reference;  // "R"; "RL" where the cure also changes the whole batch's training
  std::string cure;       // "tpu.batchnorm = synced"
  std::string command;    // command of the whole diagnosis with the cure; "" where there is none
  int seeds = 0;          // number of paired seeds
  // Held-out, means over the seeds.
  double loss_before = 0, loss = 0, loss_reference = 0;
  // NaN if the labels are not classes.
  double accuracy_before = 0, accuracy = 0, accuracy_reference = 0;
  std::vector<TrajectoryRow> left;  // "U - R" for each metric
  CureOutcome outcome = CureOutcome::kUndecided;
};

// Whether the subject behaves like a conforming engine: a statistic of its first steps, ranked
// among those of engines that conform to its declaration. All start from initial weights moved by
// one ulp.
struct EnsembleRow {
  std::string run;     // "T"
  std::string metric;  // "loss curve", "weights"
  int64_t steps = 0;
  int members = 0;  // number of conforming engines
  // Median distance from the others: the subject's, and the least and largest of the members'.
  double subject = 0, low = 0, high = 0;
  double p = 1;  // share of all, subject included, that are at least as far away
  EnsembleOutcome outcome = EnsembleOutcome::kInside;
};

struct Series {
  std::string name;
  std::vector<double> x, y;
};

// How the diagnosis was started, so that it can be started again. Empty for a
// subject without an engine name (a drill's).
struct AskedOf {
  std::string baseline, subject;
  std::vector<std::string> faults;  // each in the syntax of --fault
  bool quick = false;
  // Of an imported program: where its files lay (harness/experiment/imported.h).
  std::map<std::string, std::string> files = {};
};

// A point of the list of what to try before a bug is filed (the Cloud TPU guide "Debugging drops in
// model accuracy"), and whether this diagnosis did it.
struct ChecklistRow {
  std::string point;  // "one core"
  bool done = false;
  std::string what;     // what was run, with its result; or why the point stays open
  std::string command;  // what to run, where it is open
};

struct Report {
  std::string kind = "scenario";  // or "recorded step", "two sides", "module", "known step"
  Answers answers;
  std::vector<OpenQuestion> open;
  std::string scenario_name, scenario_description, scenario_digest, scenario_toml;
  std::string subject;  // "tpu, 8 cores, precision default"
  std::string command;  // as typed
  AskedOf asked;
  // Faults injected into the subject on purpose, and whether they changed a bit.
  std::string injected;
  VerdictClass verdict = VerdictClass::kInconclusive;
  std::string side;  // of two sides, the one that the verdict is about: "A", "B", "A and B"; ""
  Effect effect = Effect::kUndecided;
  // Metric that the effect rests on: "held-out loss"; "" where there is none.
  std::string effect_metric;
  std::string effect_text;  // the measured effect with its interval, or why it is undecided
  std::string verdict_row;  // of the table of verdicts: "violation" (docs/method/diagnosis.md)
  std::string headline;     // one sentence
  std::string confidence;   // "certain: ..." | "95 %: ..." | ...
  std::vector<Finding> findings;
  std::vector<RunSummary> runs;
  LossBand loss_band;
  std::vector<StateDivergence> state_divergences;
  WeightDrift weight_drift;
  StepCoverage step_coverage;
  std::vector<Control> controls;
  std::vector<EngineProbe> probes;
  std::vector<AblationRow> ablations;
  std::vector<ProofRow> proofs;
  ManyCores many_cores;
  std::vector<TrajectoryRow> trajectories;
  std::vector<CureRow> cures;
  std::vector<EnsembleRow> ensembles;
  // Held-out loss: (T - S) - (E1 - R1), what the engine adds on many cores but not on one.
  double unexplained = 0;
  std::string smallest_effect;  // the smallest effect that this diagnosis could have detected
  std::vector<std::string> next_steps;  // what to run next
  std::vector<std::string> ruled_out;   // causes, each with the reason
  std::vector<ChecklistRow> checklist;  // before filing; empty in reports of older versions
  // What the step does that may be meant or a mistake, and changes no verdict; without a full stop.
  std::vector<std::string> remarks;
  std::vector<std::string> notes;
  std::string program_excerpt;  // text form of the ops that matter
  // Of a kind without runs: "calls", "judged", ...; "undecided", "update", ...
  std::map<std::string, int64_t> counts;
  std::map<std::string, double> numbers;
  std::vector<DetailTable> details;
  std::optional<DotFigure> figure;
  std::map<std::string, std::string> environment;
  std::string directory;  // results folder
};

struct TerminalOptions {
  int width = 80;       // columns; below 40 counts as 40
  bool color = false;   // no escape sequence without it
  bool unicode = true;  // false: ASCII only, for terminals and logs without UTF-8
  bool whole = true;    // false: the answer alone, in about 25 lines
  std::string exit;     // what the last line says of the exit code; "": the verdict's
};

std::string to_json(const Report& report);  // one document, schema versioned
// Reads what to_json wrote; every format renders both alike. Unknown keys are ignored. Errors, also
// for hostile input, name file and key, what was found and what is allowed; a schema version higher
// than ours is an error.
Result<Report> report_from_json(std::string_view text, const std::string& file);
std::string to_markdown(const Report& report);  // under 60 KB, to paste into a bug report
// One page that loads nothing from elsewhere; readable without script, in print and on a phone.
std::string to_html(const Report& report);
std::string to_terminal(const Report& report, const TerminalOptions& options);
// Which answers fail where a report is a gate (--fail-on).
struct FailOn {
  std::vector<VerdictClass> classes;
  bool open = true;      // a question that stays open
  bool remarks = false;  // anything in Report::remarks
  bool has(VerdictClass verdict) const;
};
// A test case for each question; all that is wrong or open fails without `fail_on`.
std::string to_junit(const Report& report, const FailOn& fail_on);
std::string to_junit(const Report& report);

// A new format is a file in this folder and a line in the table of report.cc.
struct ReportFormat {
  std::string_view name;  // as in `twinrun report DIR --format NAME`
  std::string_view file;  // its name in the results folder
  std::string (*render)(const Report&);
};
std::span<const ReportFormat> report_formats();

}  // namespace twinrun

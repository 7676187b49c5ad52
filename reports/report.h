// What a diagnosis has to say, as plain structs. The harness fills it, the formats below render it; nothing here computes.
// Last stage of the pipeline: verdict -> Report -> report.json, report.md, report.html, terminal.
//
//   std::string json = to_json(report);         // schema documented in docs/report-schema.md
//   std::string text = to_terminal(report, {.width = 80, .color = true});
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

inline constexpr int kReportSchema = 2;

enum class VerdictClass : uint8_t {
  kIdentical,
  kNoise,
  kSharding,
  kProgram,
  kEngineBug,
  kNondeterministic,
  kInconclusive
};
std::string_view to_string(
    VerdictClass
        verdict);  // "IDENTICAL" "NOISE" "SHARDING" "PROGRAM" "ENGINE_BUG" "NONDETERMINISTIC" "INCONCLUSIVE"
// What the drift does to what is learnt: the second answer of a report. The class says what causes the drift.
enum class Effect : uint8_t { kNoneDetected, kWithinMargin, kHarmful, kBeneficial, kUndecided };
std::string_view to_string(Effect effect);  // "none detected" "within the margin" "harmful" ...
// 0 0 10 15 20 30 125, in the order of the classes; 0 for a change of meaning whose effect lies inside a margin that the user has
// declared.
int exit_code(VerdictClass verdict, Effect effect = Effect::kUndecided);

// A tensor that came out wrong, folded into at most 64 x 64 cells: elements in row-major order, the trailing dimensions across.
// A cell is the worst |error| / bound of its elements, as one character: "." at most 1 (inside), "1" up to 10, "2" up to 100,
// ... "9" above 10^8, "!" NaN, Inf, or other bits where bits had to be equal.
struct TensorPicture {
  std::vector<int64_t> dims;       // of the tensor, on one core
  int64_t across = 0;              // how many trailing dimensions run from left to right
  std::vector<std::string> cells;  // a row each, from the top; all of one length
};

// One claim. Every finding quotes its number, where the bound comes from, and the command that shows it again.
struct Finding {
  VerdictClass verdict = VerdictClass::kNoise;
  std::string
      cause;  // "reduction", "batch_norm", "precision", "rounding", "seed", "engine:conv1/kernel.grad", ...
  std::string sentence;         // one sentence for an engineer who has never seen the tool
  std::optional<int64_t> step;  // from 0
  std::string phase;            // forward | gradient | collective | update | ""
  std::string op;               // "conv1/kernel.grad"
  std::string op_kind;          // "convolution_kernel_grad"
  std::optional<int> core;
  std::string elements;         // "12 of 4608 elements, first [0,3,1,7]"
  std::string fingerprint;      // "x8 of the expected value", "stale by one step", ...
  std::optional<double> share;  // of the squared drift, 0..1
  char level = 'A';  // evidence level: A op trace and declared contract, B op trace, C tensors only
  double number = 0;         // the statistic
  double bound = 0;          // what an honest engine stays within
  std::string number_text;   // both in words, where "number; allowed bound" would not say it
  std::string bound_source;  // "gamma_17 of f32 accumulation, docs/bounds.md#dots"
  std::string hex;           // "engine 1.01 (0x3f8147ae), expected 1.00999999 (0x3f8147ad)"
  std::vector<std::string> evidence;
  std::string reproduce;  // command line
  std::optional<TensorPicture>
      picture;  // of the first wrong result, on the core that it was seen on
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
  std::string ended = "completed";
  std::vector<float> losses;  // per step
  bool kept = false;          // a reference run of an earlier diagnosis, read back
  bool evaluated = true;      // on held-out samples; else eval_loss and eval_accuracy say nothing
  std::vector<std::string> core_digests;  // of each core's state after the last step
};

// From which step on the states of two runs differ in their bits.
struct StateParting {
  std::string pair;                   // "T - S"
  int64_t steps = 0;                  // compared
  std::optional<int64_t> first_step;  // after which they differ; none: never
};

// How far the weights are apart, variable by variable, after some of the steps.
struct WeightDrift {
  std::string pair;  // "T - R"
  std::vector<int64_t> steps;
  struct Row {
    std::string variable;  // "dense1/kernel"
    std::vector<double>
        distance;  // one a step: |T - R| / |R|, of the core that is farthest away; 0: equal
  };
  std::vector<Row> rows;  // in the order of the program
};

// Where the loss of a step may lie without any engine at work. No steps: not measured.
struct LossBand {
  std::string source;            // "least and largest of 4 seeds of R"
  std::vector<float> low, high;  // per step
};

// Of a subject that shows tensors only: how many of its steps were looked at, and what no step has shown. No steps: its ops were seen.
struct StepCoverage {
  int64_t steps = 0, screened = 0, judged = 0;
  int64_t set_aside = 0;  // of those judged: a decision that hangs on a rounding explains them
  std::vector<int64_t> outside;            // of those judged, the steps with a tensor outside
  std::vector<int64_t> left_out;           // steps without an update: a loss scaler skipped them
  std::vector<std::string> not_exercised;  // parts of the scenario, in words
};

struct Control {
  std::string name;  // "R = R' (2 threads, poisoned memory)"
  bool passed = true;
  bool run = true;
  std::string detail;
  std::string failure;  // what it means that this one failed; "": nothing below is certain
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
  double seconds = 0, share = 0;  // spent on the probe; of the run's own time
};

// One cause switched on the reference, judged on one step from the same state.
struct SwitchRow {
  std::string cause;      // "reduction"
  std::string direction;  // "restored in S" | "introduced alone"
  double drift_before = 0,
         drift_after = 0;  // relative one-step drift of the update: |dS - dR| / |dR|
  double envelope = 0;     // of rounding
  bool explains = false;
  double share = 0;  // Shapley share of the squared drift
  std::string note;
};

// A sharded program and the whole batch's as functions: both evaluated over the prime field of 2^61 - 1 elements at random points.
struct ProofRow {
  std::string program;  // "sharded", "without batch_norm", "without any cause"
  bool gradient = false, update = false, statistics = false;  // equal at every point, on every core
  int points = 0;
  double degree = 0;        // at most, of what is compared
  double log2_error = 0;    // of the chance that other functions are equal there
  std::string parts_at;     // the first value that is not the whole batch's; "" where there is none
  std::string parts_reads;  // what it reads of which each core has a part of its own
  std::string unproven;  // why the program has no value over the field; then the others say nothing
};

inline constexpr std::string_view kLossMetric = "held-out loss";
inline constexpr std::string_view kAccuracyMetric = "held-out accuracy";  // a fraction

// A comparison of two kinds of runs over paired seeds.
struct TrajectoryRow {
  std::string pair;                    // "T - R"
  std::string meaning;                 // "what the user sees"
  std::string metric;                  // kLossMetric, kAccuracyMetric
  std::vector<double> differences;     // per seed
  double mean = 0, low = 0, high = 0;  // confidence interval, of the level below
  double level = 0.95;        // that all intervals, of every look and metric, hold with 95 %
  double margin = 0;          // declared by the user; 0: none
  std::string margin_source;  // "diagnose.margin"
  // Of a diagnosis: "identical", or as an Effect. Of `compare`: "identical" | "equivalent" | "outside" | "undetermined".
  std::string outcome;
  double detectable =
      0;  // the smallest mean that these seeds show as other than 0, with 80 % power; 0: one seed
  double must_see =
      0;  // the seeds are enough for "none detected" where `detectable` is at most this
  double seed_spread = 0;  // standard deviation of the metric between seeds of the reference
  int would_decide = 0;    // seeds, if mean and spread stay; 0: decided, or more than 1000
  // Of `compare`, 90 %: what two one-sided tests at 5 % hold against the margin.
  double tost_low = 0, tost_high = 0;
};

// A cure that was applied: the subject trained again with the causes undone, against the reference.
struct CureRow {
  std::string run;        // "C", "B"
  std::string reference;  // "R"; "RB" where the cure changes the whole batch's training, too
  std::string cure;       // "tpu.batchnorm = synced"
  std::string command;    // the whole diagnosis with it; "" where none can be typed
  int seeds = 0;          // paired
  double loss_before = 0, loss = 0, loss_reference = 0;  // held-out, mean over the seeds
  double accuracy_before = 0, accuracy = 0, accuracy_reference = 0;  // NaN: labels are no classes
  std::vector<TrajectoryRow> left;                                   // "C - R" by each metric
  std::string outcome;  // "within the seed noise" | "outside the seed noise" | "undecided"
};

// Is the subject one of the honest? A statistic of its first steps among those of engines that are honest within its
// declaration, all from initial weights moved by one ulp.
struct EnsembleRow {
  std::string run;     // "T"
  std::string metric;  // "loss curve", "weights"
  int64_t steps = 0;
  int members = 0;  // honest engines
  double subject = 0, low = 0,
         high = 0;      // median distance from the others: its own, theirs from least to most
  double p = 1;         // share of all, the subject too, that are as far away or farther
  std::string outcome;  // "inside" | "outside"
};

struct Series {
  std::string name;
  std::vector<double> x, y;
};

// How the diagnosis was asked, for those who ask it again; an imported program has no subject here.
struct AskedOf {
  std::string baseline, subject;
  std::vector<std::string> faults;  // each as --fault takes it
  bool quick = false;
};

struct Report {
  std::string scenario_name, scenario_description, scenario_digest, scenario_toml;
  std::string subject;  // "tpu, 8 cores, precision default"
  std::string command;  // as typed
  AskedOf asked;
  std::string
      injected;  // faults that were put into the subject on purpose, and whether they changed a bit
  VerdictClass verdict = VerdictClass::kInconclusive;
  Effect effect = Effect::kUndecided;
  std::string effect_metric;  // that the effect was told from: "held-out loss"; "" where none was
  std::string effect_text;    // the measured effect with its interval, or why it is undecided
  std::string headline;       // one sentence
  std::string confidence;     // "certain: ..." | "95 %: ..." | ...
  std::vector<Finding> findings;
  std::vector<RunSummary> runs;
  LossBand loss_band;
  std::vector<StateParting> state_partings;
  WeightDrift weight_drift;
  StepCoverage step_coverage;
  std::vector<Control> controls;
  std::vector<EngineProbe> probes;
  std::vector<SwitchRow> switches;
  std::vector<ProofRow> proofs;
  std::vector<TrajectoryRow> trajectories;
  std::vector<CureRow> cures;
  std::vector<EnsembleRow> ensembles;
  double unexplained =
      0;  // held-out loss: (T - S) - (E1 - R1), what the engine adds on many cores but not on one
  std::string smallest_effect;          // what this diagnosis could have seen
  std::vector<std::string> next_steps;  // what to run next
  std::vector<std::string> ruled_out;   // causes with the reason
  std::vector<std::string> notes;
  std::string program_excerpt;  // text form of the ops that matter
  std::map<std::string, std::string> environment;
  std::string directory;  // where the files lie
};

struct TerminalOptions {
  int width = 80;       // columns; below 40 counts as 40
  bool color = false;   // no escape sequence without it
  bool unicode = true;  // false: ASCII alone, for terminals and logs that cannot do better
};

std::string to_json(const Report& report);  // one document, schema versioned
// Back from what to_json made; every format renders both alike. Errors, hostile input too: file and key, found, allowed; a schema
// that is higher than ours. Unknown keys are ignored.
Result<Report> report_from_json(std::string_view text, const std::string& file);
std::string to_markdown(const Report& report);  // under 60 KB, made to paste into a bug filing
// One page that loads nothing from elsewhere; readable without script, in print and on a telephone.
std::string to_html(const Report& report);
std::string to_terminal(const Report& report, const TerminalOptions& options);

// A new format is a file here and a line in the table of report.cc.
struct ReportFormat {
  std::string_view name;  // as in `twinrun report DIR --format NAME`
  std::string_view file;  // its name in the results folder
  std::string (*render)(const Report&);
};
std::span<const ReportFormat> report_formats();

}  // namespace twinrun

// One training run on one engine, recorded. On the data's path: Experiment, Program, Backend ->
// RunResult, which comparisons and the report read.
//
//   auto r = train(experiment, experiment.whole(), *backend, {.name = "R", .threads = 2});
//   r->file          // losses, state digests, evaluations, checkpoints: what runs/R.h5 keeps
//   r->states        // after the last step
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "checkpoints/run.h"
#include "harness/experiment/experiment.h"
#include "harness/host/progress.h"
#include "harness/run/evaluate.h"

namespace twinrun {

// The first non-finite value: where NaN or Inf first came out of an op whose operands were all
// finite.
struct FirstNonFinite {
  int64_t step = 0;
  int replica = 0;
  std::string op, phase;  // empty for an engine that does not show its ops
  std::string what;       // "NaN" or "Inf"
};

// Whether the engine skipped the update of this step because its loss or a gradient is not finite,
// as a loss scaler does when its scale was too large for float16. Parameters, slots and counters
// are then unchanged; running statistics may have changed.
bool update_left_out(const Program& program, const States& before, const States& after,
                     const StepOutputs& outputs);
// A run ends after more than this many skipped updates in a row: a scale that is halved each time
// has then passed through all 40 binades of float16.
inline constexpr int64_t kMaxLeftOut = 40;

// Sees every step and may watch its ops. `before` is the state from which the step started, or
// empty where needs_before returns false and the run does not need it either.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Return false where `before` is not used: a state that is held cannot be updated in place, so
  // the engine copies it in that step.
  virtual bool needs_before(int64_t /*step*/) const { return true; }
  virtual TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) = 0;
  virtual void end_step(int64_t /*step*/, const States& /*after*/, const StepOutputs& /*outputs*/) {
  }
};

// `count` steps of a run of `steps`, evenly spaced and including the first and the last; all steps
// where there are fewer.
std::vector<int64_t> spread_steps(int64_t steps, int64_t count);

struct RunOptions {
  std::string name;  // name of the run, for progress
  // The run ends before this step; 0: train.steps of the scenario.
  int64_t steps = 0;
  int threads = 1;              // threads of the evaluation
  std::optional<States> start;  // default: the seeded initial state
  int64_t first_step = 0;
  StepObserver* observer = nullptr;
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
  // Periodic checkpoints are kept in an unnamed file in this folder instead of in memory.
  std::optional<std::string> spill_folder;
  bool evaluate = true;
  bool digest_states = true;
  // The ranks that compute this run together. All ranks but the first leave out what only goes into
  // the record (evaluations, digests of states and periodic checkpoints), unless `all_record`.
  Communicator* ranks = nullptr;
  bool all_record = false;
  // Called with each periodic checkpoint and the run before it is added.
  std::function<void(const RunFile&, const Checkpoint&)> on_checkpoint;
};

struct RunResult {
  RunFile file;
  States states;
  std::optional<FirstNonFinite> first_non_finite;  // set if the run ended in NaN or Inf
  int64_t left_out = 0;  // skipped updates; counted for engines that show no ops
  double seconds = 0;
  PipelineCounters pipeline;  // counters of the input pipeline
  // Read from an earlier diagnosis (harness/run/reference_cache.h): no time was spent.
  bool kept = false;
};

// "held-out loss 0.1507, accuracy 99.51 %"; or how the run ended where it was interrupted or
// nothing was evaluated. `last`: the step at which the run was to end.
std::string outcome(const RunFile& file, int64_t last);

// RunFile::engine_settings: "cores=8 batch=64 precision=default ...".
std::string settings_of(const Program& program, const Capabilities& capabilities);
// The digest of the parameters and statistics, which depends neither on the optimizer nor on the
// number of cores: RunFile::environment[kInitialState] of a run that begins with `state`.
Digest digest_of_weights(const Program& program, const ReplicaState& state);

// Trains `program` on the engine of `backend`. A run that diverges or is interrupted is a result;
// RunFile::ended says how it ended. Errors: the program cannot be prepared, the input cannot be
// read, the engine or the evaluation fails, or the ranks do not have the same run before them.
Result<RunResult> train(const Experiment& experiment, const Program& program, Backend& backend,
                        const RunOptions& options);

// The first non-finite value of one step, found by watching every op; nullopt if none is seen.
std::optional<FirstNonFinite> find_first_non_finite(Engine& engine, int64_t step, States states,
                                                    const StepInputs& inputs);

// The first step after which the states of two runs differ, counted from the start of the runs.
std::optional<int64_t> first_difference(const RunFile& a, const RunFile& b);
const Evaluation& final_evaluation(const RunResult& run);

}  // namespace twinrun

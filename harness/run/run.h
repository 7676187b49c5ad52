// One training run on one engine, recorded.
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

// Where a NaN or infinity first came out of an op whose operands were all finite.
struct Birth {
  int64_t step = 0;
  int replica = 0;
  std::string op, phase;  // empty: of an engine that does not show its ops
  std::string what;       // "NaN" or "Inf"
};

// Did the script leave the update of this step out because its loss or a gradient is not finite? So does a loss scaler, whose scale was too
// large for float16. Parameters, slots and counters are then as they were; running statistics may have changed.
bool update_left_out(const Program& program, const States& before, const States& after,
                     const StepOutputs& outputs);
// A run goes on after so many such steps in a row: a scale that is halved each time has then gone through all of float16's 40 binades.
inline constexpr int64_t kMostLeftOut = 40;

// Sees every step; may watch its ops. `before` is what the step started from, or empty where it is not needed.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Who holds a state keeps the engine from updating it in place: a copy of it for that step.
  virtual bool needs_before(int64_t /*step*/) const { return true; }
  virtual TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) = 0;
  virtual void end_step(int64_t /*step*/, const States& /*after*/, const StepOutputs& /*outputs*/) {
  }
};

// `count` steps of a run of so many, evenly, the first and the last among them; all of them where there are fewer.
std::vector<int64_t> spread_steps(int64_t steps, int64_t count);

struct RunOptions {
  std::string name;             // for progress
  int64_t steps = 0;            // first step not to run; 0: the scenario's
  int threads = 1;              // of evaluation
  std::optional<States> start;  // default: the seeded initial state
  int64_t first_step = 0;
  StepObserver* observer = nullptr;
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
  bool evaluate = true;
  bool digest_states = true;
  std::function<Status(const Checkpoint&)> on_checkpoint;  // periodic ones, as they are made
};

struct RunResult {
  RunFile file;
  States states;
  std::optional<Birth> birth;  // set if the run ended in NaN or Inf
  int64_t left_out = 0;        // updates, of an engine that shows no ops
  double seconds = 0;
  PipelineCounters pipeline;  // of its input
  bool kept =
      false;  // from an earlier diagnosis (harness/run/reference_cache.h): no time was spent
};

// "held-out loss 0.1507, accuracy 99.51 %", or how it ended where nothing was evaluated or it was interrupted. `last`: the step that
// the run was to end at.
std::string outcome(const RunFile& file, int64_t last);

Result<RunResult> train(const Experiment& experiment, const Program& program, Backend& backend,
                        const RunOptions& options);

// The first non-finite value of one step, found by watching every op.
std::optional<Birth> find_birth(Engine& engine, int64_t step, States states,
                                const StepInputs& inputs);

// The first step after which two runs' states differ.
std::optional<int64_t> first_difference(const RunFile& a, const RunFile& b);
const Evaluation& final_evaluation(const RunResult& run);

}  // namespace twinrun

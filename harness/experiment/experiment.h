// What all stages of the pipeline work on: the programs, initial state, batches and options of a
// scenario. On the data's path: Scenario -> Experiment -> runs.
//
//   auto e = make_experiment(scenario);          // opens the data, builds the programs
//   Program r = e->whole();                      // R's program
//   Program t = e->sharded(e->sharding);         // S's and T's
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "checkpoints/checkpoint.h"
#include "program/base/result.h"
#include "program/graph/layers.h"
#include "program/graph/program.h"
#include "program/import/core_part.h"
#include "program/import/exchange.h"
#include "scenarios/data/feed.h"
#include "scenarios/scenario.h"

namespace twinrun {

// A training step imported from the user (harness/experiment/imported.h) in place of a model. It
// has no forward pass to shard.
struct ImportedRun {
  Program step;
  std::vector<Tensor> state;                 // initial, in the order of Program::state
  std::vector<std::vector<Tensor>> batches;  // each in the order of Program::inputs; used in turn
  std::vector<std::vector<Tensor>> held_out = {};  // batches for the evaluation; none: not given
  std::vector<std::string> notes;                  // for the report
  std::set<std::string> literals = {};             // inputs whose values are in the text
  // State variables and inputs that are given as one array of which each core has its own part.
  std::map<std::string, CorePart> parts = {};
  std::vector<MeshAxis> mesh_axes = {};  // of a sharded text
  std::vector<Exchange> exchanges = {};
};

struct Experiment {
  Scenario scenario;
  std::shared_ptr<const Dataset> data;
  Program forward;    // the whole batch on one core, with its loss
  Program inference;  // logits and loss of min(256, eval samples) held-out samples
  Sharding sharding;  // as the scenario says
  std::shared_ptr<const ImportedRun> imported = nullptr;  // if set, forward and inference are empty
  // The imported step as it is on one device, which says what its sharding should mean.
  std::shared_ptr<const ImportedRun> unsharded = nullptr;
  // Learning rates of single steps, in place of the schedule's, as inferred from a subject.
  std::map<int64_t, double> rates = {};
  // Rows of the batch that the cores had at single steps, as inferred from a subject.
  std::map<int64_t, Deal> deals = {};

  // The stack whose update algebra a program has under optimizer.algebra = "auto"
  // (docs/reference/formulas.md). A sharded program has the TPU's.
  enum class Stack : uint8_t { kCpu, kTpu };
  Program whole(Stack stack = Stack::kCpu) const {
    return imported ? imported->step : training_step(forward_of(stack));
  }
  Program per_core(Stack stack = Stack::kCpu) const {
    return training_step(rebatch(forward_of(stack), scenario.train.batch / sharding.cores));
  }
  Program sharded(const Sharding& how) const {
    return training_step(shard(forward_of(Stack::kTpu), how));
  }
  // Whether the updates of the two stacks are different formulas of the same meaning.
  bool two_algebras() const;
  // Whether held-out loss can be computed.
  bool has_held_out() const { return !imported || !imported->held_out.empty(); }
  FeedOptions feed_options(int64_t batch) const;

 private:
  Program forward_of(Stack stack) const;
};

// Whether the step normalises by the statistics of a batch.
bool has_batch_norm(const Program& step);
// The same training step with another formula for batch norm's variance; the step itself if it has
// no batch norm or cannot be rebuilt.
Program with_variance(const Program& step, Sharding::Variance formula);
// The same training step with the formulas that an engine declares (batch norm's variance in one
// pass): another text with the same meaning. The engine runs it in place of the reference's
// program.
Program as_computed_by(const Capabilities& declared, const Program& step);

// Of a scenario with an imported program: from its program_files (reopen_imported). Errors: the
// data cannot be opened, or the model or the batch does not fit it.
Result<Experiment> make_experiment(const Scenario& scenario);
// What a user asks to work on: a scenario, by name or path, or an imported program.
struct ExperimentSource {
  std::string scenario;
  ProgramFiles program = {};  // program.program: "" for a scenario
};
Result<Experiment> open_experiment(const ExperimentSource& source, const Overrides& overrides);
// The type of a sample according to the scenario alone. Errors: only the data determine it. For a
// text of characters, the vocabulary is the size of the last layer, which predicts one of them.
Result<SampleType> sample_on_paper(const Scenario& scenario);
// The programs alone, without opening any data: `data` is null and `inference` empty. For commands
// that read programs and run nothing.
Result<Experiment> experiment_on_paper(const Scenario& scenario);
// The same data with a scenario that differs in formulas only: in what is computed from the
// samples, not in where they come from.
Result<Experiment> with_scenario(const Experiment& experiment, const Scenario& scenario);
// The same data and model with another seed for initial weights, order of samples and random ops.
// Of an imported program the seed changes the order of its batches, and nothing else.
Result<Experiment> with_seed(const Experiment& experiment, uint64_t seed);

// Errors: the samples end before the steps do; the error names data.repeat.
Status check_data_lasts(const Experiment& experiment);

// Errors: what is left of the machine's memory, or of a limit on it, does not hold what our own
// engines need at least for a training of `program` (program/analysis/host_memory.h) and so many
// periodic checkpoints. The error names the keys to change.
Status check_memory(const Experiment& experiment, const Program& program, int64_t checkpoints);

// Errors: a layer cannot work with a core's part of the batch, because its samples or the cores do
// not form the groups that the layer needs. The error names the nearest batches that fit, or
// tpu.batchnorm_group if it is the number of cores that does not fit. `alone`: the batch of one
// core must also run by itself (run R1).
Status check_shares(const Experiment& experiment, const Sharding& sharding, bool alone);

// The initial state on every replica of `program`, in shared storage: drawn from the seed, or
// imported.
States initial_states(const Program& program, uint64_t seed);
States initial_states(const Experiment& experiment, const Program& program);

// [core][input]: each core's rows of a batch, and the scalars, in the order of Program::inputs.
// Errors: the batch has another size than the program, or an input is unknown.
Result<StepInputs> step_inputs(const Program& program, const Scenario& scenario, const Batch& batch,
                               int64_t step);

// What each core of an imported step is fed of one batch: its own part of arrays that have one for
// each core, and its number.
StepInputs inputs_of_cores(const ImportedRun& run, const Program& program,
                           const std::vector<Tensor>& fed);

// The inputs of every step of `program`: rows of the feed, or the batches of an imported step. With
// seed 0 these come in the order of their file; another seed shuffles every pass through them.
// Inputs of one number (a learning rate, a count of steps) keep their place. Keeps references to
// both arguments.
class StepFeed {
 public:
  StepFeed(const Experiment& experiment, const Program& program);
  Result<StepInputs> inputs(int64_t step);
  // The counters of every input stage; all zero for an imported step, whose batches are in memory.
  PipelineCounters counters() const;

 private:
  const std::vector<size_t>& order_of_pass(uint64_t pass);

  const Experiment& experiment_;
  const Program& program_;
  std::optional<Feed> feed_;
  std::vector<size_t> order_;  // of the batches, in pass_
  uint64_t pass_ = 0;
  StageCounters enqueue_;
};

// States <-> checkpoints. A tensor has a replica axis where replicas differ.
Checkpoint to_checkpoint(const Program& program, const States& states, const Scenario& scenario,
                         int64_t step);
Result<States> from_checkpoint(const Checkpoint& checkpoint, const Program& program);

// The elements of a tensor as doubles.
std::vector<double> as_doubles(const Tensor& tensor);

}  // namespace twinrun

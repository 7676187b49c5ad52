// The pipeline's unit: program, state, batches, options, made from a scenario.
//
//   auto e = make_experiment(scenario);          // opens the data, builds the programs
//   Program r = e->whole();                      // R's program
//   Program t = e->sharded(e->sharding);         // S's and T's
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "checkpoints/checkpoint.h"
#include "program/base/result.h"
#include "program/graph/layers.h"
#include "program/graph/program.h"
#include "scenarios/data/feed.h"
#include "scenarios/scenario.h"

namespace twinrun {

// A training step of the user's own (harness/experiment/imported.h) in the place of a model: no forward pass to shard, no held-out samples.
struct ImportedRun {
  Program step;
  std::vector<Tensor> state;                 // initial, in the order of Program::state
  std::vector<std::vector<Tensor>> batches;  // each in the order of Program::inputs; used in turn
  std::vector<std::string> notes;            // for the report
};

struct Experiment {
  Scenario scenario;
  std::shared_ptr<const Dataset> data;
  Program forward;    // whole batch, one core, with its loss
  Program inference;  // logits and loss of min(256, eval samples) held-out samples
  Sharding sharding;  // what the scenario asks for
  std::shared_ptr<const ImportedRun> imported = nullptr;  // then forward and inference are empty
  // Learning rates of single steps in the place of the schedule's: what a subject was seen to take.
  std::map<int64_t, double> rates = {};
  // Rows of the batch that cores had at single steps: the same.
  std::map<int64_t, Deal> deals = {};

  // Whose update algebra a program has under optimizer.algebra = "auto" (docs/optimizers.md). A sharded program is the TPU's.
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
  // The two stacks' updates are different formulas of one meaning.
  bool two_algebras() const;
  FeedOptions feed_options(int64_t batch) const;

 private:
  Program forward_of(Stack stack) const;
};

// Does the step normalise by the statistics of a batch?
bool has_batch_norm(const Program& step);
// The same training step with batch norm's variance by another formula; where there is none, the step itself.
Program with_variance(const Program& step, Sharding::Variance formula);
// The same training step by the formulas that an engine declares: batch norm's variance in one pass. Another text, the same
// meaning; what the engine runs in the place of the reference's program.
Program as_computed_by(const Capabilities& declared, const Program& step);

Result<Experiment> make_experiment(const Scenario& scenario);
// What the scenario says of a sample. An error where only the data tell what it is. The vocabulary of a text's characters is what the
// last layer predicts.
Result<SampleType> sample_on_paper(const Scenario& scenario);
// The programs alone, without opening any data: `data` is null, `inference` empty. For what reads programs and runs nothing.
Result<Experiment> experiment_on_paper(const Scenario& scenario);
// The same data, and a scenario that differs in formulas only: what is computed of the samples, not where they come from.
Result<Experiment> with_scenario(const Experiment& experiment, const Scenario& scenario);
// The same data and model from another seed: initial weights, order of samples, random ops.
Result<Experiment> with_seed(const Experiment& experiment, uint64_t seed);

// An error that names data.repeat where the samples end before the steps do.
Status check_data_lasts(const Experiment& experiment);

// A user's error where the layers refuse what a core gets of the batch: samples that make no groups, cores that make none. It names
// the batches next to the scenario's that they take. `alone`: one core's batch is to run by itself, too (R1).
Status check_shares(const Experiment& experiment, const Sharding& sharding, bool alone);

// The initial state on every replica of `program`, sharing storage: seeded, or the imported one.
States initial_states(const Program& program, uint64_t seed);
States initial_states(const Experiment& experiment, const Program& program);

// One replica's rows of a batch, and the scalars, in the order of Program::inputs.
Result<StepInputs> step_inputs(const Program& program, const Scenario& scenario, const Batch& batch,
                               int64_t step);

// What every step of `program` is fed: rows of the feed, or an imported step's own batches.
class StepFeed {
 public:
  StepFeed(const Experiment& experiment, const Program& program);
  Result<StepInputs> inputs(int64_t step);
  // Of every stage; all zero for an imported step, whose batches are there.
  PipelineCounters counters() const;

 private:
  const Experiment& experiment_;
  const Program& program_;
  std::optional<Feed> feed_;
  StageCounters enqueue_;
};

// States <-> checkpoints. A replica axis appears where replicas differ.
Checkpoint to_checkpoint(const Program& program, const States& states, const Scenario& scenario,
                         int64_t step);
Result<States> from_checkpoint(const Checkpoint& checkpoint, const Program& program);

// The numbers of a tensor.
std::vector<double> as_doubles(const Tensor& tensor);

}  // namespace twinrun

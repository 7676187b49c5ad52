// Builds experiments from scenarios, feeds their steps, and converts states to and from
// checkpoints.
#include "harness/experiment/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "backends/core/share_equal.h"
#include "harness/experiment/imported.h"
#include "program/base/bits.h"
#include "program/base/philox.h"
#include "program/graph/initial_state.h"
#include "program/graph/optimizer.h"
#include "program/graph/shard_plan.h"
#include "scenarios/data/source.h"
#include "scenarios/model.h"
#include "scenarios/schedule.h"

namespace twinrun {
namespace {

Dims of_one(const Tensor& t) { return {t.dims().begin() + 1, t.dims().end()}; }

SampleType sample_type(const Dataset& data) {
  return {of_one(data.train.features), data.train.dtype(), of_one(data.train.labels),
          data.train.weights.valid(),  data.vocabulary,    data.classes};
}

// Without drop_remainder, TensorFlow's last batch of an epoch is shorter; a program has one batch
// size and cannot take it.
Status check_no_remainder(const Scenario& s, int64_t samples) {
  const int64_t batch = s.train.batch, cores = s.tpu.cores;
  if (s.data.drop_remainder || samples % batch == 0) return Ok{};
  int64_t nearest = 0;
  for (int64_t b = cores; b <= samples; b += cores) {
    if (samples % b != 0) continue;
    if (nearest == 0 || std::abs(b - batch) < std::abs(nearest - batch)) nearest = b;
  }
  return Error{
      fmt::format("drop_remainder is false, but batches of {} leave {} of the {} training samples "
                  "for a short last batch, and a program has one batch size; allowed: true, or "
                  "false with a train.batch that divides the samples",
                  batch, samples % batch, samples),
      s.file + ": data.drop_remainder",
      fmt::format("drop_remainder = true{}",
                  nearest > 0 ? fmt::format(", or train.batch = {}", nearest) : "")};
}

Result<Experiment> assemble(const Scenario& scenario, std::shared_ptr<const Dataset> data) {
  Experiment e;
  e.scenario = scenario;
  e.data = std::move(data);
  TWINRUN_RETURN_IF_ERROR(check_no_remainder(scenario, e.data->train.count()));
  const SampleType sample = sample_type(*e.data);
  TWINRUN_ASSIGN(e.forward, build_training(scenario, sample));
  const int64_t eval = std::min<int64_t>(256, e.data->eval.count());
  TWINRUN_ASSIGN(e.inference, build_inference(scenario, sample, eval));
  e.sharding = sharding_of(scenario);
  return e;
}

}  // namespace

bool Experiment::two_algebras() const {
  return scenario.optimizer.algebra == "auto" && has_two_algebras(forward.optimizer);
}

Program Experiment::forward_of(Stack stack) const {
  Program program = forward;
  if (stack == Stack::kTpu && two_algebras())
    program.optimizer.algebra = OptimizerSpec::Algebra::kXla;
  return program;
}

bool has_batch_norm(const Program& step) {
  return std::ranges::find(step.couplings, "batch_norm", &Coupling::cause) != step.couplings.end();
}

Program with_variance(const Program& step, Sharding::Variance formula) {
  if (!has_batch_norm(step) || step.recipe == nullptr) return step;
  Sharding sharding = step.sharding;
  sharding.variance = formula;
  return reshard(step, sharding);
}

Program as_computed_by(const Capabilities& declared, const Program& step) {
  return declared.one_pass_variance ? with_variance(step, Sharding::Variance::kOnePass) : step;
}

FeedOptions Experiment::feed_options(int64_t batch) const {
  FeedOptions o;
  o.batch = batch;
  o.seed = scenario.seed;
  o.shuffle = scenario.data.shuffle;
  o.repeat = scenario.data.repeat;
  o.prefetch = scenario.data.prefetch;
  o.parallel_calls = scenario.data.parallel_calls;
  return o;
}

Result<Experiment> make_experiment(const Scenario& s) {
  if (!s.imported.empty()) return reopen_imported(s);
  DataRequest request;
  request.source = s.data.source;
  request.dir = s.data.dir;
  request.files = s.data.files;
  request.eval_files = s.data.eval_files;
  request.feature = s.data.feature;
  request.label = s.data.label;
  request.weight = s.data.weight;
  request.eval_feature = s.data.eval_feature;
  request.eval_label = s.data.eval_label;
  request.eval_weight = s.data.eval_weight;
  request.tokens = s.data.tokens;
  request.window = s.data.window;
  request.vocabulary = s.data.vocabulary;
  request.shape = s.data.shape;
  request.classes = s.data.classes;
  request.train = s.data.train;
  request.eval = s.data.eval;
  request.seed = s.seed;
  request.cycle_length = s.data.cycle_length;
  request.cache = s.data.cache;
  request.where = s.file + ": [data]";
  TWINRUN_ASSIGN(Dataset data, open_dataset(request));
  return assemble(s, std::make_shared<const Dataset>(std::move(data)));
}

Result<Experiment> open_experiment(const ExperimentSource& source, const Overrides& overrides) {
  if (!source.program.program.empty()) return import_experiment(source.program, overrides);
  TWINRUN_ASSIGN(const Scenario scenario, load_scenario(source.scenario, overrides));
  return make_experiment(scenario);
}

Result<SampleType> sample_on_paper(const Scenario& s) {
  const DataSpec& d = s.data;
  SampleType sample;
  sample.classes = d.classes;
  sample.vocabulary = d.vocabulary;
  if (d.source == "text" || d.source == "text_synthetic") {
    // The last layer predicts one character, so its size is the number of characters.
    const bool counted = d.source == "text" && d.tokens == "characters" && !s.model.layers.empty();
    sample.classes = sample.vocabulary = counted              ? s.model.layers.back().units
                                         : d.source == "text" ? 256
                                                              : data::letters_of_synthetic_text();
    sample.labels = {d.window};
  }
  if (sample.vocabulary == 0 && d.shape.empty()) {
    return Error{"the shape of a sample can be known only from the data", s.file + ": data.shape",
                 "set data.shape"};
  }
  sample.dtype = sample.vocabulary > 0 ? DType::kI32 : DType::kF32;
  sample.features = sample.vocabulary > 0 && d.window > 0 ? Dims{d.window} : d.shape;
  sample.weighted = s.loss.weights == "tokens" || d.source == "phrases";
  return sample;
}

Result<Experiment> experiment_on_paper(const Scenario& scenario) {
  Experiment e;
  e.scenario = scenario;
  TWINRUN_ASSIGN(const SampleType sample, sample_on_paper(scenario));
  TWINRUN_ASSIGN(e.forward, build_training(scenario, sample));
  e.sharding = sharding_of(scenario);
  return e;
}

Result<Experiment> with_scenario(const Experiment& experiment, const Scenario& scenario) {
  if (experiment.imported) {
    Experiment same = experiment;
    same.scenario = scenario;
    return same;
  }
  return assemble(scenario, experiment.data);
}

Result<Experiment> with_seed(const Experiment& experiment, uint64_t seed) {
  Scenario s = experiment.scenario;
  s.seed = seed;
  return with_scenario(experiment, s);
}

States initial_states(const Program& program, uint64_t seed) {
  return States(static_cast<size_t>(program.sharding.cores),
                ReplicaState{initial_state(program, seed)});
}

States initial_states(const Experiment& e, const Program& program) {
  if (!e.imported) return initial_states(program, e.scenario.seed);
  const ImportedRun& run = *e.imported;
  States states(static_cast<size_t>(program.sharding.cores), ReplicaState{run.state});
  for (size_t i = 0; i < program.state.size(); ++i) {
    const StateVar& var = program.state[i];
    const auto part = run.parts.find(var.name);
    if (part == run.parts.end()) continue;
    for (size_t core = 0; core < states.size(); ++core)
      states[core].vars[i] = part_of(run.state[i], part->second, var.type.dims, core);
  }
  return states;
}

StepFeed::StepFeed(const Experiment& experiment, const Program& program)
    : experiment_(experiment), program_(program) {
  if (!experiment.imported)
    feed_.emplace(experiment.data->train,
                  experiment.feed_options(program.batch * program.sharding.cores));
}

Result<StepInputs> StepFeed::inputs(int64_t step) {
  if (feed_) {
    TWINRUN_ASSIGN(const Batch batch, feed_->batch(step + experiment_.scenario.data.batch_offset));
    const double begin = steady_seconds();
    auto inputs = step_inputs(program_, experiment_.scenario, batch, step);
    enqueue_ += {1, static_cast<int64_t>(batch.bytes()), steady_seconds() - begin, 0};
    if (const auto deal = experiment_.deals.find(step); inputs && deal != experiment_.deals.end())
      deal_rows(program_, deal->second, *inputs);
    if (const auto rate = experiment_.rates.find(step); inputs && rate != experiment_.rates.end()) {
      for (size_t i = 0; i < program_.inputs.size(); ++i) {
        if (program_.inputs[i].name != "learning_rate") continue;
        for (auto& replica : *inputs) replica[i] = Tensor::scalar(static_cast<float>(rate->second));
      }
    }
    return inputs;
  }
  const ImportedRun& run = *experiment_.imported;
  const size_t at = static_cast<size_t>(step) % run.batches.size();
  std::vector<Tensor> fed = run.batches[at];
  if (experiment_.scenario.seed != 0) {
    const auto& other =
        run.batches[order_of_pass(static_cast<size_t>(step) / run.batches.size())[at]];
    for (size_t i = 0; i < fed.size(); ++i) {
      if (!fed[i].dims().empty()) fed[i] = other[i];
    }
  }
  return inputs_of_cores(run, program_, fed);
}

StepInputs inputs_of_cores(const ImportedRun& run, const Program& program,
                           const std::vector<Tensor>& fed) {
  StepInputs inputs(static_cast<size_t>(program.sharding.cores), fed);
  for (size_t i = 0; i < program.inputs.size() && inputs.size() > 1; ++i) {
    const Input& input = program.inputs[i];
    const auto part = run.parts.find(input.name);
    for (size_t core = 0; core < inputs.size(); ++core) {
      Tensor& t = inputs[core][i];
      if (input.name == "replica_id") t = Tensor::scalar_i32(static_cast<int32_t>(core));
      if (part != run.parts.end())
        t = part_of(t, part->second, program.graph.type(input.id).dims, core);
    }
  }
  return inputs;
}

const std::vector<size_t>& StepFeed::order_of_pass(uint64_t pass) {
  if (!order_.empty() && pass == pass_) return order_;
  pass_ = pass;
  order_.resize(experiment_.imported->batches.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  const RandomKey key{experiment_.scenario.seed, kStreamShuffle};
  for (size_t i = order_.size(); i > 1; --i)
    std::swap(
        order_[i - 1],
        order_[bounded(draw(key, 0, static_cast<uint32_t>(pass), i), static_cast<uint32_t>(i))]);
  return order_;
}

PipelineCounters StepFeed::counters() const {
  if (!feed_) return {};
  PipelineCounters all = feed_->counters();
  all.read = experiment_.data->opening.read;
  all.cache = experiment_.data->opening.cache;
  all.enqueue = enqueue_;
  return all;
}

Result<StepInputs> step_inputs(const Program& program, const Scenario& scenario, const Batch& batch,
                               int64_t step) {
  const int64_t rows = batch.labels.dims()[0];
  const ShardPlan plan{program.sharding.cores, rows};
  if (plan.per_core() * plan.cores != rows || plan.per_core() != program.batch) {
    return Error{"a batch of " + std::to_string(rows) + " samples for " +
                     std::to_string(plan.cores) + " cores x " + std::to_string(program.batch),
                 "step " + std::to_string(step), ""};
  }
  StepInputs inputs(static_cast<size_t>(plan.cores));
  const Tensor step_scalar = Tensor::scalar_i32(static_cast<int32_t>(step));
  const Tensor rate = Tensor::scalar(learning_rate(scenario.optimizer, step));
  for (int core = 0; core < plan.cores; ++core) {
    const auto [begin, end] = plan.rows(core);
    for (const Input& input : program.inputs) {
      Tensor t;
      if (input.name == "images" || input.name == "tokens") t = batch.features.rows(begin, end);
      if (input.name == "labels") t = batch.labels.rows(begin, end);
      if (input.name == "weights" && batch.weights.valid()) t = batch.weights.rows(begin, end);
      if (input.name == "sample_ids") t = batch.sample_ids.rows(begin, end);
      if (input.name == "step") t = step_scalar;
      if (input.name == "learning_rate") t = rate;
      if (input.name == "replica_id") t = Tensor::scalar_i32(core);
      if (!t.valid()) return Error{"nothing feeds the input '" + input.name + "'", "program", ""};
      inputs[static_cast<size_t>(core)].push_back(std::move(t));
    }
  }
  misfeed(program, inputs);
  return inputs;
}

Checkpoint to_checkpoint(const Program& program, const States& states, const Scenario& scenario,
                         int64_t step) {
  Checkpoint c;
  c.step = step;
  c.seed = scenario.seed;
  c.cores = static_cast<int>(states.size());
  for (size_t i = 0; i < program.state.size(); ++i) {
    CheckpointTensor t;
    t.role = to_string(program.state[i].role);
    const Tensor& first = states[0].vars[i];
    t.replica_axis = std::ranges::any_of(states, [&](const ReplicaState& r) {
      return r.vars[i].raw() != first.raw() && !r.vars[i].same_bits(first);
    });
    if (t.replica_axis) {
      Dims dims = first.dims();
      dims.insert(dims.begin(), static_cast<int64_t>(states.size()));
      t.value = Tensor::empty({first.dtype(), dims});
      for (size_t r = 0; r < states.size(); ++r) {
        std::copy_n(states[r].vars[i].raw(), first.bytes(), t.value.raw() + r * first.bytes());
      }
    } else {
      t.value = first;
    }
    c.tensors[program.state[i].name] = std::move(t);
  }
  return c;
}

Result<States> from_checkpoint(const Checkpoint& checkpoint, const Program& program) {
  States states(static_cast<size_t>(program.sharding.cores));
  for (const StateVar& var : program.state) {
    const auto it = checkpoint.tensors.find(var.name);
    if (it == checkpoint.tensors.end()) {
      return Error{"the checkpoint has no tensor '" + var.name + "'", "checkpoint",
                   "it belongs to another model or optimizer"};
    }
    const CheckpointTensor& t = it->second;
    TensorType type = t.value.type();
    if (t.replica_axis && !type.dims.empty()) {
      if (type.dims[0] != program.sharding.cores) {
        return Error{"the checkpoint holds " + std::to_string(type.dims[0]) +
                         " replicas of it; the program has " +
                         std::to_string(program.sharding.cores),
                     var.name, "resume with --cores " + std::to_string(type.dims[0])};
      }
      type.dims.erase(type.dims.begin());
    }
    if (type != var.type && !(type.dims == var.type.dims && type.dtype == DType::kF64)) {
      return Error{"the checkpoint has " + to_string(type) + "; the model " + to_string(var.type),
                   var.name, "it belongs to another model"};
    }
    for (size_t r = 0; r < states.size(); ++r) {
      states[r].vars.push_back(
          t.replica_axis ? t.value.rows(static_cast<int64_t>(r), static_cast<int64_t>(r) + 1)
                               .reshaped(type.dims)
                         : t.value);
    }
  }
  if (checkpoint.tensors.size() != program.state.size()) {
    for (const auto& [name, tensor] : checkpoint.tensors) {
      if (program.state_index(name) < 0) {
        return Error{"the checkpoint has a tensor '" + name + "' that the model lacks",
                     "checkpoint", "it belongs to another model or optimizer"};
      }
    }
  }
  share_equal(states);
  return states;
}

std::vector<double> as_doubles(const Tensor& t) {
  std::vector<double> out(static_cast<size_t>(t.elements()));
  switch (t.dtype()) {
    case DType::kF64:
      std::ranges::copy(t.as<double>(), out.begin());
      break;
    case DType::kF32:
      std::ranges::copy(t.as<float>(), out.begin());
      break;
    case DType::kBF16:
      std::ranges::transform(t.as<uint16_t>(), out.begin(), bf16_to_f32);
      break;
    case DType::kI32:
      std::ranges::copy(t.as<int32_t>(), out.begin());
      break;
    case DType::kPred:
      std::ranges::copy(t.as<uint8_t>(), out.begin());
      break;
  }
  return out;
}

}  // namespace twinrun

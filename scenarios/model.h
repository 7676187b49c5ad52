// Scenario -> Program: the layers of a scenario as graphs, one for training, one for evaluation.
//
//   auto train = build_training(scenario, sample_shape);       // whole batch, one core
//   auto eval = build_inference(scenario, sample_shape, 256);  // logits from the same state variables
#pragma once

#include "program/base/result.h"
#include "program/graph/layers.h"
#include "scenarios/scenario.h"

namespace twinrun {

// Forward pass with its loss, at the total batch. Errors name file, line and layer.
Result<Program> build_training(const Scenario& scenario, const SampleType& sample);
// The same model with running statistics and without dropout; its first state variables are those of build_training.
Result<Program> build_inference(const Scenario& scenario, const SampleType& sample, int64_t batch);

Sharding sharding_of(const Scenario& scenario);

// The optimizer as graph code takes it. `algebra` is that of the cpu reference unless the scenario names one (optimizer_spec.cc).
OptimizerSpec optimizer_of(const Scenario& scenario);
// Numbers whose default depends on the kind and that nobody has given.
void fill_optimizer_defaults(OptimizerConfig& config);

}  // namespace twinrun

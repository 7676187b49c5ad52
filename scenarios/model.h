// Scenario -> Program: builds the layers of a scenario as graphs, one for training and one for
// evaluation. Engines run these programs.
//
//   auto train = build_training(scenario, sample_shape);       // whole batch, one core
//   auto eval = build_inference(scenario, sample_shape, 256);  // logits, same state variables
#pragma once

#include "program/base/result.h"
#include "program/graph/layers.h"
#include "scenarios/scenario.h"

namespace twinrun {

// The forward pass with its loss, at the total batch size. Errors name file, line and layer.
Result<Program> build_training(const Scenario& scenario, const SampleType& sample);
// The same model with running statistics and without dropout. Its first state variables are those
// of build_training.
Result<Program> build_inference(const Scenario& scenario, const SampleType& sample, int64_t batch);

Sharding sharding_of(const Scenario& scenario);

// The optimizer in the form that program/graph uses. `algebra` is that of the cpu reference unless
// the scenario names one (optimizer_spec.cc).
OptimizerSpec optimizer_of(const Scenario& scenario);
// Replaces every kByKind with the default of the optimizer's kind.
void fill_optimizer_defaults(OptimizerConfig& config);

}  // namespace twinrun

// Training steps that are timed: prepared engines with random samples. Shared by the rows of steps,
// of growth and of memory traffic.
//
//   Result<OurStep> step = prepare_step(models()[0], "cpu", 1, 2);   // one core, two threads
//   step->run();
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/experiment/experiment.h"
#include "program/base/result.h"
#include "scenarios/scenario.h"

namespace twinrun {

struct Model {
  std::string name;      // also in torch_peer.py and jax_peer.py
  std::string scenario;  // a library name or a file
  int64_t batch;
  std::string text() const;  // "mlp_bn b128"
};
// The six models of the table.
std::vector<Model> models();

// A prepared engine with its state and the inputs of a step.
struct OurStep {
  Scenario scenario;
  Program program;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Engine> engine;
  States states;
  StepInputs inputs;
  StepOutputs outputs;
  int64_t step = 0;

  void run(TraceSink* sink = nullptr);
};

// With `cores` > 1, the sharded program.
Result<OurStep> prepare_step(const Model& model, const std::string& engine, int cores, int threads);
Result<OurStep> prepare_step(Scenario scenario, const std::string& engine, int threads);

// Bytes that the units of a program's plan read and write: each operand of a unit once, each stored
// result once. What stays in a cache between two units is counted as if it did not.
double planned_bytes(const Program& program);

}  // namespace twinrun

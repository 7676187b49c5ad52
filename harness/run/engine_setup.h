// An engine as the command line specifies it, with the program that it runs; shared by train,
// record, verify and compare. On the data's path: Experiment -> backend and program -> train
// (run.h).
//
//   auto s = set_up(experiment, {.engine = "tpu", .cores = 8, .threads = 2}, &progress);
//   train(experiment, s->program, *s->backend, {...});
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/faults/faulty_backend.h"
#include "harness/experiment/experiment.h"
#include "harness/host/progress.h"

namespace twinrun {

struct EngineSpec {
  std::string engine = "cpu";
  std::optional<int> cores;  // 1: the whole batch; default: tpu.cores for the engine tpu, else 1
  // The stack whose update algebra the program has. Default: the CPU's for our engine cpu, else the
  // TPU's (docs/reference/formulas.md).
  std::optional<Experiment::Stack> stack = std::nullopt;
  int threads = 1;
  std::vector<FaultSpec> faults;  // faults to inject
  bool poison_memory = false;     // results start as NaN patterns
  Communicator* ranks = nullptr;  // as in BackendOptions
};

int cores_of(const EngineSpec& spec, const Scenario& scenario);
Experiment::Stack stack_of(const EngineSpec& spec);

struct EngineSetup {
  std::unique_ptr<Backend> backend;
  Program program;  // with the formulas that the engine declares
  std::shared_ptr<FaultLog> faults = std::make_shared<FaultLog>();
};

// Errors: the engine does not exist or cannot be started, the cores do not divide the batch, or a
// fault does not fit the program.
Result<EngineSetup> set_up(const Experiment& experiment, const EngineSpec& spec,
                           Progress* progress = nullptr);

// Errors: `cores` is below 1 or does not divide train.batch; more than one for an imported program.
Status check_cores(const Scenario& scenario, int cores);

}  // namespace twinrun

// An engine as the command line asks for it, with the program that it is to run: what train, record, verify and compare share.
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
#include "harness/run/op_times.h"

namespace twinrun {

struct EngineSpec {
  std::string engine = "cpu";
  std::optional<int> cores;  // 1: the whole batch on one core; default: tpu.cores on tpu, else 1
  // By whose update algebra; default: the CPU's for our cpu, else the TPU's (docs/optimizers.md).
  std::optional<Experiment::Stack> stack = std::nullopt;
  int threads = 1;
  std::vector<FaultSpec> faults;  // the engine is wrong on purpose
  bool poison_memory = false;     // results start as NaN patterns
  OpTimes* times = nullptr;       // takes the times of some steps; outlives the engine
};

int cores_of(const EngineSpec& spec, const Scenario& scenario);
Experiment::Stack stack_of(const EngineSpec& spec);

struct EngineSetup {
  std::unique_ptr<Backend> backend;
  Program program;  // by the formulas that the engine declares
  std::shared_ptr<FaultLog> faults = std::make_shared<FaultLog>();
};

// Errors: no such engine, it cannot be started, cores that do not divide the batch, a fault that has no place in the program.
Result<EngineSetup> set_up(const Experiment& experiment, const EngineSpec& spec,
                           Progress* progress = nullptr);

// The batch divides over so many cores.
Status check_cores(const Scenario& scenario, int cores);

}  // namespace twinrun

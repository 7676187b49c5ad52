// The record of one training run on one engine: per-step scalars and digests, evaluations,
// checkpoints, environment. harness/run fills it; FORMAT.md describes the file.
//
//   RunFile run = ...;  write_run("run.h5", run);   auto back = read_run("run.h5");
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/checkpoint.h"
#include "program/base/run_end.h"

namespace twinrun {

inline constexpr int kRunSchema = 1;

struct StepScalars {        // one row per step, steps from 0
  float loss = 0;           // mean over replicas of the replica losses, in replica order
  float loss_replica0 = 0;  // of replica 0, which is what a real TPU job reports
  float learning_rate = 0;
  float gradient_norm = 0;  // L2 norm of all gradients after the all-reduce, on replica 0
};

struct Evaluation {  // recomputed by the cpu reference on the held-out split
  int64_t step = 0;  // steps done before it
  double loss = 0;
  double accuracy = 0;
};

// One executed op; recorded only if a trace is requested.
struct OpTraceRow {
  int64_t step = 0;
  int32_t replica = 0;
  std::string op;
  Digest digest;  // of the output
  double minimum = 0, maximum = 0, mean = 0;
  int64_t nans = 0, infs = 0;
};

// Key in RunFile::environment: the digest of the parameters and statistics at the run's first step.
inline constexpr std::string_view kInitialState = "initial_state";

struct RunFile {
  std::string engine;           // "cpu", "tpu", ...
  std::string engine_settings;  // "cores=8 precision=default batchnorm=per_core reduction=mean"
  std::string scenario;         // resolved TOML
  std::string scenario_digest;
  int contract = kContractVersion;
  int cores = 1;
  int64_t first_step = 0;                          // > 0 when resumed
  int64_t batch = 0;                               // total
  std::map<std::string, std::string> environment;  // cpu, isa, threads, build, os, data digest, ...
  std::vector<StepScalars> steps;
  // Root digest of the checkpoint that the state after each step would make.
  std::vector<Digest> state_digests;
  std::vector<Evaluation> evaluations;
  std::vector<OpTraceRow> trace;
  std::vector<Checkpoint> checkpoints;  // periodic ones and the last one, in step order
  RunEnd ended;
  Digest root_digest() const;  // over everything above but the environment and the scenario text
};

Status write_run(const std::string& path, const RunFile& run);
Result<RunFile> read_run(const std::string& path);

// "checkpoint" or "run", from the attribute `format`; nothing else in the file is checked.
Result<std::string> file_kind(const std::string& path);

}  // namespace twinrun

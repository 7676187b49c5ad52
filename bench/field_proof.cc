// The cost of the proof over the prime field that a sharded program computes the same function,
// compared to a binary64 step of that program. The project promises at most ten such steps.
//
//   ./dev bench --filter '^field proof'
#include "harness/sharding/field_proof.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "backends/oracle/f64_engine.h"
#include "bench/bench.h"
#include "harness/experiment/experiment.h"
#include "harness/run/one_step.h"
#include "harness/sharding/causes.h"
#include "scenarios/library.h"
#include "scenarios/model.h"

namespace twinrun {
namespace {

constexpr double kLongStep = 6;  // seconds

Status measure(Suite& suite, const std::string& scenario) {
  TWINRUN_ASSIGN(const Scenario loaded, load_scenario(scenario, {}));
  TWINRUN_ASSIGN(const Experiment e, make_experiment(loaded));
  const Sharding same = faithful(e);
  const Program program = e.sharded(same);
  TWINRUN_ASSIGN(const auto engine, make_f64_backend({.threads = 1})->prepare(program));
  const States start = initial_states(program, e.scenario.seed);
  const auto proof = [&] {
    const auto proofs = prove_meaning(e, {same}, 1);
    if (!proofs || !proofs->front().equal()) std::abort();
  };
  const auto step = [&] {
    if (!one_step(e, *engine, 0, start)) std::abort();
  };
  const auto begin = std::chrono::steady_clock::now();
  step();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (taken.count() > kLongStep)
    return Error{
        fmt::format("a binary64 step takes {:.0f} s, so samples of proofs would take hours",
                    taken.count()),
        "", ""};
  suite.measure(proof, {timed("binary64 step", step)});
  return Ok{};
}

}  // namespace

void bench_field_proof(Suite& suite) {
  suite.section("field proof of a sharding that means the same; peer: a binary64 step of it");
  for (const LibraryFile& entry : library_files()) {
    const std::string scenario(entry.name), name = "field proof " + scenario;
    if (!suite.begin({.name = name, .threads = 1, .unit = "1/s", .target = 0.1, .scale = 1}))
      continue;
    if (const Status done = measure(suite, scenario); !done)
      suite.skip(name, done.error().what + " " + done.error().where);
  }
}

}  // namespace twinrun

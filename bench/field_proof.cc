// The cost of the proof over the prime field that a sharded program computes the same function,
// compared to a binary64 step of that program. The project promises at most ten such steps.
//
//   twinrun_bench --filter '^field proof'
#include "harness/sharding/field_proof.h"

#include <fmt/format.h>

#include "backends/oracle/f64_engine.h"
#include "bench/bench.h"
#include "checkpoints/checkpoint.h"
#include "harness/experiment/experiment.h"
#include "harness/sharding/causes.h"
#include "scenarios/library.h"
#include "scenarios/model.h"

namespace twinrun {

void bench_field_proof(Suite& suite) {
  suite.section("field proof of a sharding that means the same; peer: a binary64 step of it");
  for (const LibraryFile& entry : library_files()) {
    const std::string scenario(entry.name);
    const BenchCase what{
        .name = "field proof " + scenario, .threads = 1, .unit = "1/s", .target = 0.1, .scale = 1};
    if (!suite.begin(what)) continue;
    const Result<Scenario> loaded = load_scenario(scenario, {});
    const Result<Experiment> made =
        loaded ? make_experiment(*loaded) : Result<Experiment>(loaded.error());
    if (!made) {
      suite.skip(what.name, made.error().what);
      continue;
    }
    const Experiment& e = *made;
    const Sharding same = faithful(e);
    const Program program = e.sharded(same);
    const auto backend = make_f64_backend({.threads = 1});
    const auto engine = backend->prepare(program);
    if (!engine) {
      suite.skip(what.name, engine.error().what);
      continue;
    }
    StepFeed feed(e, program);
    const Result<StepInputs> inputs = feed.inputs(0);
    if (!inputs) {
      suite.skip(what.name, inputs.error().what);
      continue;
    }
    const auto proof = [&] {
      const auto proofs = prove_meaning(e, {same}, 1);
      if (!proofs || !proofs->front().equal()) std::abort();
    };
    const auto step = [&] {
      States states = initial_states(program, e.scenario.seed);
      StepOutputs outputs;
      if (!(*engine)->step(0, states, *inputs, outputs, nullptr).ok()) std::abort();
    };
    suite.measure(proof, step);
  }
}

}  // namespace twinrun

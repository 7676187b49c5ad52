// Whole training steps: against frameworks in f32 and in mixed precision, against our own engines
// (tpu against cpu, eight cores against one, with digests against without), XLA's against ours, and
// their memory. Samples are random; the models are scenarios. A framework is a child process
// (torch_peer.py, jax_peer.py) that makes a step when it is told to, so that its samples alternate
// with ours.
//
//   ./dev bench --filter '^step'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "bench/bench.h"
#include "bench/child.h"
#include "bench/models.h"
#include "checkpoints/checkpoint.h"
#include "program/analysis/host_memory.h"
#include "program/base/digest.h"

namespace twinrun {
namespace {

std::string case_of(const Model& model, const std::string& precision) {
  return fmt::format("case step {} {} {}", model.name, model.batch, precision);
}

void against_frameworks(Suite& suite, const std::string& engine, const std::string& precision,
                        double target) {
  suite.section(fmt::format("step, engine {}, against frameworks in {}", engine,
                            precision == "f32" ? "f32" : "mixed precision (bf16)"));
  for (const Model& model : models()) {
    for (const int threads : suite.threads()) {
      const BenchCase what{.name = fmt::format("step {} {}", engine, model.text()),
                           .threads = threads,
                           .unit = "step/s",
                           .target = target,
                           .scale = 1};
      if (!suite.begin(what)) continue;
      Result<OurStep> ours = prepare_step(model, engine, 1, threads);
      if (!ours.ok()) {
        suite.skip(what.name, ours.error().what);
        continue;
      }
      // Started anew for each row, because they keep the memory of the largest model.
      PeerProcesses frameworks(suite, "step " + precision, threads);
      const std::vector<Side> peers =
          frameworks.prepare(what.name, case_of(model, precision).substr(5));
      suite.counted_bytes(planned_bytes(ours->program));
      suite.measure([&] { ours->run(); }, peers);
    }
  }
}

// An engine and its number of cores.
struct Setup {
  std::string engine;
  int cores = 1;
  std::string called = {};  // as a peer
};

// Measures a row per model and thread count: `run` on the engine `ours` against a plain step of
// `peer`.
void rows(Suite& suite, const std::string& name, const std::vector<Model>& models,
          const std::function<std::optional<double>(const Model&)>& target, const Setup& ours,
          const Setup& peer, const std::function<void(OurStep&)>& run) {
  for (const Model& model : models) {
    for (const int threads : suite.threads()) {
      const BenchCase what{.name = fmt::format("step {} {}", name, model.text()),
                           .threads = threads,
                           .unit = "step/s",
                           .target = target(model),
                           .scale = 1};
      if (!suite.begin(what)) continue;
      Result<OurStep> a = prepare_step(model, ours.engine, ours.cores, threads);
      Result<OurStep> b = prepare_step(model, peer.engine, peer.cores, threads);
      if (a.ok() && b.ok()) {
        suite.counted_bytes(planned_bytes(a->program));
        suite.measure([&] { run(*a); }, {timed(peer.called, [&] { b->run(); })});
      } else {
        suite.skip(what.name, (a.ok() ? b : a).error().what);
      }
    }
  }
}

// Digests every op's result, to measure the cost of recording them.
class DigestSink : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    const std::byte* last = nullptr;
    for (const Tensor& t : event.outputs) {
      if (t.raw() != last)
        benchmark::DoNotOptimize(digest(t).low);  // replicas that share storage count once
      last = t.raw();
    }
  }
};

void against_ourselves(Suite& suite) {
  const std::vector<Model> all = models();
  const auto plain = [](OurStep& step) { step.run(); };
  const auto target = [](double value) {
    return [value](const Model&) { return std::optional(value); };
  };

  suite.section("step, engine tpu x1; peer: our own cpu");
  const auto tiles = [](const Model& model) -> std::optional<double> {
    if (!machine_has_amx()) return std::nullopt;
    return model.name == "use_tpus" ? 3.0 : 1.5;
  };
  rows(suite, "tpu/cpu", {all[0], all[1]}, tiles, {"tpu"}, {"cpu", 1, "own cpu"}, plain);

  suite.section("step, engine tpu x8; peer: tpu x1 at the same total batch");
  std::vector<Model> large = {all[0], all[3]};
  for (Model& model : large) model.batch = 1024;
  rows(suite, "tpu8/tpu1", large, target(1 / 1.15), {"tpu", 8}, {"tpu", 1, "own tpu"}, plain);

  suite.section("step with the digests of all states, engine cpu; peer: the step alone");
  rows(suite, "digests", all, target(0.98), {"cpu"}, {"cpu", 1, "plain step"}, [](OurStep& step) {
    step.run();
    to_checkpoint(step.program, step.states, step.scenario, step.step).root_digest();
  });

  suite.section(
      "step with the digests of all ops' results, engine cpu, op by op; peer: the step alone");
  rows(suite, "op digests", {all[0], all[3]}, target(1 / 1.1), {"cpu"}, {"cpu", 1, "plain step"},
       [](OurStep& step) {
         DigestSink sink;
         step.run(&sink);
       });
}

int64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib;
  }
  return 0;
}

// The increase of the peak resident size of a fresh process by five steps, in MiB.
std::optional<double> added_mib(PeerProcess& child, const std::string& prepare) {
  const auto kib = [&] { return child.ask("memory"); };
  const std::optional<std::string> before = kib();
  if (!before || child.ask(prepare) != "ready" || !child.ask("run 5")) return std::nullopt;
  const std::optional<std::string> after = kib();
  if (!after) return std::nullopt;
  return (std::atof(after->c_str()) - std::atof(before->c_str())) / 1024;
}

// What our engine holds while it makes a step that takes `peak` MiB.
std::map<std::string, double> held_by(const Program& program, double peak) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const HostPlan plan = plan_host(program);
  return {{"weights and the optimizer's state", mib(plan.states)},
          {"activations and gradients", mib(plan.arena)},
          {"batch, outputs and constants", mib(plan.inputs + plan.outputs + plan.constants)},
          {"packed operands and everything else", peak - mib(plan.total())}};
}

void memory(Suite& suite) {
  suite.section("memory: peak of five training steps, less what the process used before");
  const int threads = suite.threads().back();
  for (const Model& model : models()) {
    const BenchCase what{
        .name = "memory cpu " + model.text(), .threads = threads, .unit = "MiB", .target = 1 / 0.7};
    if (!suite.begin(what)) continue;
    PeerProcess own({"/proc/self/exe", "--steps", model.name, std::to_string(model.batch),
                     std::to_string(threads)},
                    {});
    const std::optional<double> ours = added_mib(own, "case");
    if (suite.profiling()) {
      const Result<OurStep> step = prepare_step(model, "cpu", 1, threads);
      if (ours && step.ok()) suite.record_held(held_by(step->program, *ours));
      continue;
    }
    std::map<std::string, std::vector<double>> peers;
    for (const PeerEntry& entry : suite.peers_of("memory")) {
      const auto process = start(entry, threads);
      const auto mib = added_mib(*process, case_of(model, "f32"));
      if (mib) {
        peers[entry.name] = {*mib};
      } else {
        suite.skip(what.name, "it could not be started", entry.name);
      }
    }
    if (ours) {
      suite.record({*ours}, peers);
    } else {
      suite.skip(what.name, "our own process failed");
    }
  }
}

}  // namespace

int bench_steps_on_request(const std::string& name, int64_t batch, int threads) {
  std::optional<OurStep> step;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "memory") {
      fmt::print("{}\n", peak_kib());
    } else if (line == "case") {
      for (const Model& model : models()) {
        if (model.name != name || model.batch != batch) continue;
        Result<OurStep> ours = prepare_step(model, "cpu", 1, threads);
        if (ours.ok()) step.emplace(std::move(*ours));
      }
      fmt::print("{}\n", step ? "ready" : "failed");
    } else if (step) {  // "run N"
      const int times = std::atoi(line.substr(line.find(' ') + 1).c_str());
      for (int i = 0; i < times; ++i) step->run();
      fmt::print("{}\n", times);
    }
    std::fflush(stdout);
  }
  return 0;
}

void bench_step(Suite& suite) {
  against_frameworks(suite, "cpu", "f32", 1.2);
  against_frameworks(suite, "tpu", "bf16", 1.2);
  against_ourselves(suite);
  memory(suite);
}

}  // namespace twinrun

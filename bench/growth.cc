// How the cost of a step grows with the batch, the width and the depth of the model and the number
// of emulated cores: seconds against counted FLOP, from which bench/run.py fits a slope. And the
// bytes that a step moves, as planned, against the least that any plan has to move.
//
//   ./dev bench --filter '^(growth|traffic)'
#include <fmt/format.h>

#include "bench/bench.h"
#include "bench/models.h"
#include "program/analysis/fusion.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

// A perceptron whose sizes are given, on random digits.
struct Sizes {
  int batch = 128, width = 512, depth = 4, cores = 1;
};

std::string perceptron(const Sizes& s) {
  std::string text =
      "description = \"growth\"\nseed = 1\n[data]\nsource = \"digits\"\n"
      "[optimizer]\nkind = \"momentum\"\nlr = 0.1\n";
  text += fmt::format("[train]\nbatch = {}\nsteps = 10\n[tpu]\ncores = {}\n[model]\nlayers = [\n",
                      s.batch, s.cores);
  text += "{ kind = \"flatten\" },\n";
  for (int i = 0; i < s.depth; ++i)
    text += fmt::format("{{ kind = \"dense\", units = {} }},\n{{ kind = \"relu\" }},\n", s.width);
  return text + "{ kind = \"dense\", units = 10 },\n]\n";
}

struct Growth {
  const char* name;
  const char* engine;
  int Sizes::*varied;
  std::vector<int> values;
  int per_core = 0;  // samples per core; 0: the batch stays
  Sizes others = {};
};

// From the least value on, a step takes some hundred microseconds: long against its bookkeeping.
const std::vector<Growth>& growths() {
  static const std::vector<Growth> all = {
      {"growth batch", "cpu", &Sizes::batch, {128, 256, 512, 1024, 2048}},
      {"growth width", "cpu", &Sizes::width, {256, 512, 1024, 2048}},
      {"growth depth", "cpu", &Sizes::depth, {2, 4, 8, 16, 32}},
      {"growth cores", "tpu", &Sizes::cores, {1, 2, 4, 8, 16}, 64},
  };
  return all;
}

Result<OurStep> step_of(const Growth& growth, int value, int threads) {
  Sizes sizes = growth.others;
  sizes.*growth.varied = value;
  if (growth.per_core > 0) sizes.batch = growth.per_core * sizes.cores;
  TWINRUN_ASSIGN(Scenario scenario, parse_scenario(perceptron(sizes), "growth"));
  return prepare_step(std::move(scenario), growth.engine, threads);
}

Result<std::pair<double, double>> point(const Growth& growth, int value, int threads, int samples) {
  TWINRUN_ASSIGN(OurStep step, step_of(growth, value, threads));
  const double work = step_flops(step.program) * step.program.sharding.cores;
  return std::pair(work, median_seconds([&] { step.run(); }, samples));
}

// The step of the greatest value, where the row has fallen behind.
void profile_greatest(Suite& suite, const Growth& growth, int threads) {
  Result<OurStep> step = step_of(growth, growth.values.back(), threads);
  if (!step.ok()) return suite.skip(growth.name, step.error().what);
  suite.counted_bytes(planned_bytes(step->program) * step->program.sharding.cores);
  suite.measure([&] { step->run(); }, {});
}

// With a cache that holds everything else: inputs and states are read once, new states written.
double least_bytes(const Program& program) {
  double bytes = 0;
  for (const Input& input : program.inputs)
    bytes += static_cast<double>(program.graph.type(input.id).bytes());
  for (const StateVar& state : program.state)
    bytes += static_cast<double>(state.type.bytes()) * (state.next == kNoValue ? 1 : 2);
  return bytes;
}

}  // namespace

void bench_growth(Suite& suite) {
  suite.section("growth: seconds of a step against its counted FLOP, slope of the logarithms");
  const int threads = suite.threads().back();
  for (const Growth& growth : growths()) {
    if (!suite.begin({.name = growth.name, .threads = threads})) continue;
    if (suite.profiling()) {
      profile_greatest(suite, growth, threads);
      continue;
    }
    std::vector<std::pair<double, double>> points;
    std::string failed;
    for (const int value : growth.values) {
      const auto measured = point(growth, value, threads, 3 * suite.samples());
      if (measured.ok()) {
        points.push_back(*measured);
      } else {
        failed = measured.error().what;
      }
    }
    if (failed.empty()) {
      suite.record_growth(points);
    } else {
      suite.skip(growth.name, failed);
    }
  }
}

void bench_traffic(Suite& suite) {
  suite.section("traffic: bytes that the plan of a step reads and writes (counted, not timed)");
  for (const Model& model : models()) {
    const std::string name = "traffic cpu " + model.text();
    if (!suite.begin({.name = name, .unit = "MB"})) continue;
    const Result<OurStep> step = prepare_step(model, "cpu", 1, 1);
    if (step.ok()) {
      suite.record({planned_bytes(step->program) * 1e-6},
                   {{"states and inputs once", {least_bytes(step->program) * 1e-6}}});
    } else {
      suite.skip(name, step.error().what);
    }
  }
}

}  // namespace twinrun

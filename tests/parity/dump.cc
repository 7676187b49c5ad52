// Writes the HDF5 file that the framework programs of this folder read: scenario, initial state,
// batches, random numbers, learning rates, and our results for them. Not shipped; run by ./dev
// parity.
//
//   parity_dump digits_mlp out.h5 [--steps 20] [--members 16] [--threads 2] [--whole-only]
//               [--set KEY=VALUE]..
//
// With --kinks nothing is written: it prints at which steps relu units are on another side of 0
// than in the exact run (docs/method/numerics.md, "Parity").
//
// The file has /initial/NAME, /inputs/NAME [step, ...], /random/OP [step, ...]; and for each run R
// and S (CORNER): /CORNER/ours and /CORNER/truth with losses [step, core], first/NAME, last/NAME
// (gradients), state/NAME, norms/NAME [step]; /CORNER/bound with losses [step], first/NAME,
// last/NAME, state/NAME (scalars). '/' in a name is written '|'.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "backends/registry.h"
#include "checkpoints/container/hdf5_file.h"
#include "harness/diagnose/stages.h"
#include "scenarios/keys.h"
#include "tests/parity/corners.h"

namespace twinrun::parity {
namespace {

struct Options {
  std::string scenario, out;
  int64_t steps = 20;
  uint32_t members = 16;
  int threads = 2;
  bool whole_only = false;
  bool kinks = false;
  Overrides overrides;
};

Result<Options> parse(int argc, char** argv) {
  Options o;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--whole-only") {
      o.whole_only = true;
    } else if (arg == "--kinks") {
      o.kinks = true;
    } else if (!arg.starts_with("--")) {
      names.push_back(arg);
    } else if (i + 1 == argc) {
      return Error{arg + " needs a value", "parity_dump", ""};
    } else if (const std::string value = argv[++i]; arg == "--set") {
      const size_t equals = value.find('=');
      if (equals == std::string::npos) return Error{"--set takes KEY=VALUE", value, ""};
      o.overrides.emplace_back(value.substr(0, equals), value.substr(equals + 1));
    } else if (arg == "--steps") {
      o.steps = std::max(1, std::atoi(value.c_str()));
    } else if (arg == "--members") {
      o.members = static_cast<uint32_t>(std::clamp(std::atoi(value.c_str()), 2, 1000));
    } else if (arg == "--threads") {
      o.threads = std::clamp(std::atoi(value.c_str()), 1, 64);
    } else {
      return Error{"unknown option", arg, ""};
    }
  }
  if (o.kinks) names.resize(2);
  if (names.size() != 2 || names[0].empty())
    return Error{"expected SCENARIO OUT.h5", "parity_dump", ""};
  o.scenario = names[0];
  o.out = names[1];
  return o;
}

std::string flat(std::string name) {
  std::ranges::replace(name, '/', '|');
  return name;
}

Tensor tensor_of(const std::vector<double>& values, Dims dims) {
  Tensor t = Tensor::empty({DType::kF64, std::move(dims)});
  std::ranges::copy(values, t.as<double>().begin());
  return t;
}

// Collects the tensors of each name, one per step, and writes them as one tensor [step, ...].
class Stacks {
 public:
  void add(const std::string& name, const Tensor& t) { parts_[name].push_back(t); }
  Status write(Hdf5Group& group) const {
    for (const auto& [name, parts] : parts_) {
      TensorType type = parts[0].type();
      type.dims.insert(type.dims.begin(), static_cast<int64_t>(parts.size()));
      Tensor all = Tensor::empty(type);
      std::byte* to = all.raw();
      for (const Tensor& part : parts) to = std::copy_n(part.raw(), part.bytes(), to);
      TWINRUN_ASSIGN(auto written, group.write_tensor(flat(name), all));
    }
    return Ok{};
  }

 private:
  std::map<std::string, std::vector<Tensor>> parts_;
};

class RandomSink : public TraceSink {
 public:
  explicit RandomSink(Stacks& to) : to_(to) {}
  void on_op(const OpEvent& event) override {
    if (class_of(event.op().kind) == OpClass::kRandom) to_.add(event.op().name, event.outputs[0]);
  }

 private:
  Stacks& to_;
};

// Writes the tensors of `values` with the shapes that the program's state has.
Status write_values(Hdf5Group& parent, const std::string& name, const Values& values,
                    const Program& program) {
  TWINRUN_ASSIGN(Hdf5Group group, parent.create_group(name));
  for (const auto& [key, value] : values) {
    TWINRUN_ASSIGN(
        auto written,
        group.write_tensor(flat(key), tensor_of(value, program.find_state(key)->type.dims)));
  }
  return Ok{};
}

Status write_trace(Hdf5Group& corner, const std::string& name, const Trace& t,
                   const Program& program) {
  TWINRUN_ASSIGN(Hdf5Group group, corner.create_group(name));
  std::vector<double> losses;
  for (const auto& step : t.losses) losses.insert(losses.end(), step.begin(), step.end());
  const auto steps = static_cast<int64_t>(t.losses.size());
  TWINRUN_ASSIGN(auto written,
                 group.write_tensor("losses", tensor_of(losses, {steps, program.sharding.cores})));
  TWINRUN_ASSIGN(Hdf5Group norms, group.create_group("norms"));
  for (const auto& [key, value] : t.norms) {
    TWINRUN_ASSIGN(auto one, norms.write_tensor(flat(key), tensor_of(value, {steps})));
  }
  TWINRUN_RETURN_IF_ERROR(write_values(group, "first", t.first, program));
  TWINRUN_RETURN_IF_ERROR(write_values(group, "last", t.last, program));
  return write_values(group, "state", t.state, program);
}

Status write_bounds(Hdf5Group& corner, const Spread& spread) {
  TWINRUN_ASSIGN(Hdf5Group group, corner.create_group("bound"));
  std::vector<double> losses;
  for (const auto& members : spread.losses) losses.push_back(bound_of(members));
  TWINRUN_ASSIGN(
      auto written,
      group.write_tensor("losses", tensor_of(losses, {static_cast<int64_t>(losses.size())})));
  for (const auto& [name, values] :
       {std::pair{"first", &spread.first}, {"last", &spread.last}, {"state", &spread.state}}) {
    TWINRUN_ASSIGN(Hdf5Group bounds, group.create_group(name));
    for (const auto& [key, members] : *values) {
      TWINRUN_ASSIGN(auto one, bounds.write_tensor(flat(key), tensor_of({bound_of(members)}, {})));
    }
  }
  return Ok{};
}

Status write_corner(Hdf5Group& root, const std::string& name, const Experiment& e,
                    const Options& o) {
  const bool sharded = name == "S";
  const Program program = sharded ? e.sharded(e.sharding) : e.whole();
  TWINRUN_ASSIGN(Hdf5Group corner, root.create_group(name));
  TWINRUN_ASSIGN(const auto cpu, make_backend("cpu", {.threads = o.threads}));
  TWINRUN_ASSIGN(const auto f64, make_backend("cpu:f64", {.threads = o.threads}));
  Stacks random;
  RandomSink sink(random);
  TWINRUN_ASSIGN(const Trace ours,
                 trace(e, program, *cpu, {.steps = o.steps, .sink = sharded ? nullptr : &sink}));
  TWINRUN_ASSIGN(const Trace truth, trace(e, program, *f64, {.steps = o.steps}));
  TWINRUN_ASSIGN(const Spread spread, ensemble(e, sharded, truth, o.steps, o.members, o.threads));
  TWINRUN_RETURN_IF_ERROR(write_trace(corner, "ours", ours, program));
  TWINRUN_RETURN_IF_ERROR(write_trace(corner, "truth", truth, program));
  TWINRUN_RETURN_IF_ERROR(write_bounds(corner, spread));
  if (sharded) return Ok{};
  TWINRUN_ASSIGN(Hdf5Group group, root.create_group("random"));
  return random.write(group);
}

Status write_inputs(Hdf5Group& root, const Experiment& e, const Options& o) {
  const Program program = e.whole();
  Feed feed(e.data->train, e.feed_options(program.batch));
  Stacks inputs;
  for (int64_t step = 0; step < o.steps; ++step) {
    TWINRUN_ASSIGN(const Batch batch, feed.batch(step));
    TWINRUN_ASSIGN(const StepInputs fed, step_inputs(program, e.scenario, batch, step));
    for (size_t i = 0; i < program.inputs.size(); ++i)
      inputs.add(program.inputs[i].name, fed[0][i]);
  }
  TWINRUN_ASSIGN(Hdf5Group group, root.create_group("inputs"));
  TWINRUN_RETURN_IF_ERROR(inputs.write(group));
  TWINRUN_ASSIGN(Hdf5Group initial, root.create_group("initial"));
  const States states = initial_states(program, e.scenario.seed);
  for (size_t i = 0; i < program.state.size(); ++i) {
    TWINRUN_ASSIGN(auto dataset,
                   initial.write_tensor(flat(program.state[i].name), states[0].vars[i]));
    TWINRUN_RETURN_IF_ERROR(dataset.set_text("role", to_string(program.state[i].role)));
  }
  return Ok{};
}

// Records at each step which results of `maximum` (relu) are above zero.
class KinkSink : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    if (event.op().kind != OpKind::kMaximum || event.op().phase != Phase::kForward) return;
    sides.resize(static_cast<size_t>(event.step) + 1);
    for (const double v : as_doubles(event.outputs[0])) sides.back().push_back(v > 0);
  }
  std::vector<std::vector<bool>> sides;
};

// Evidence for docs/method/numerics.md, "Parity": where the loss of the f32 run jumps away from the
// exact one, a unit of relu is on the other side of 0.
Status print_kinks(const Experiment& e, const Options& o) {
  TWINRUN_ASSIGN(const auto cpu, make_backend("cpu", {.threads = o.threads}));
  TWINRUN_ASSIGN(const auto f64, make_backend("cpu:f64", {.threads = o.threads}));
  KinkSink own, exact;
  TWINRUN_ASSIGN(const Trace ours, trace(e, e.whole(), *cpu, {.steps = o.steps, .sink = &own}));
  TWINRUN_ASSIGN(const Trace truth, trace(e, e.whole(), *f64, {.steps = o.steps, .sink = &exact}));
  std::printf("step  loss distance  units on the other side\n");
  for (size_t s = 0; s < own.sides.size(); ++s) {
    int fallen = 0;
    for (size_t i = 0; i < own.sides[s].size(); ++i) fallen += own.sides[s][i] != exact.sides[s][i];
    std::printf("%4zu  %13.1e  %d of %zu\n", s, std::fabs(ours.losses[s][0] - truth.losses[s][0]),
                fallen, own.sides[s].size());
  }
  return Ok{};
}

Status run(int argc, char** argv) {
  TWINRUN_ASSIGN(const Options o, parse(argc, argv));
  TWINRUN_ASSIGN(const Scenario scenario, load_scenario(o.scenario, o.overrides));
  TWINRUN_ASSIGN(const Experiment e, make_experiment(scenario));
  if (o.kinks) return print_kinks(e, o);
  TWINRUN_ASSIGN(Hdf5File file, Hdf5File::create(o.out));
  TWINRUN_ASSIGN(Hdf5Group root, file.root());
  TWINRUN_RETURN_IF_ERROR(root.set_text("scenario", resolved_toml(scenario)));
  std::string overrides;
  for (const auto& [key, value] : o.overrides)
    overrides += fmt::format("{}{}={}", overrides.empty() ? "" : "\n", key, value);
  if (!overrides.empty()) TWINRUN_RETURN_IF_ERROR(root.set_text("overrides", overrides));
  TWINRUN_RETURN_IF_ERROR(root.set_int("members", o.members));
  TWINRUN_RETURN_IF_ERROR(write_inputs(root, e, o));
  TWINRUN_RETURN_IF_ERROR(write_corner(root, "R", e, o));
  if (!o.whole_only && e.sharding.cores > 1) TWINRUN_RETURN_IF_ERROR(write_corner(root, "S", e, o));
  return std::move(file).save();
}

}  // namespace
}  // namespace twinrun::parity

int main(int argc, char** argv) {
  const twinrun::Status status = twinrun::parity::run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.error().message().c_str());
  return 1;
}

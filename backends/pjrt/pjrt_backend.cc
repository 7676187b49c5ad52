// The `xla` engine: compiles a program for a PJRT plugin and runs its steps.
#include "backends/pjrt/pjrt_backend.h"

#include <algorithm>
#include <filesystem>

#include "backends/pjrt/plugin.h"
#include "backends/random_feed.h"
#include "program/text/stablehlo.h"

namespace twinrun {
namespace {

using Arrays = std::vector<std::vector<Tensor>>;  // [replica][i]

// A StableHLO module and its compiled form.
struct Compiled {
  StableHlo module;
  std::unique_ptr<pjrt::Executable> executable;
};

class PjrtEngine : public Engine {
 public:
  PjrtEngine(std::shared_ptr<const pjrt::Client> client, const Program& program,
             DotPrecision precision)
      : client_(std::move(client)), program_(program), precision_(precision) {}

  Status prepare(int threads) {
    TWINRUN_ASSIGN(step_, compiled(false).with_kind(Error::Kind::kForeignEngine));
    return random_.prepare(program_, threads);
  }

  const Program& program() const override { return program_; }

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    if (hooks != nullptr)
      return Error{"does not support faults: its ops are XLA's", "--fault",
                   "use the built-in engine cpu or tpu"};
    TWINRUN_ASSIGN(const auto drawn, random_.draw(step, states, inputs));
    Arrays arguments;
    for (size_t r = 0; r < states.size(); ++r) {
      arguments.push_back(states[r].vars);
      arguments[r].insert(arguments[r].end(), inputs[r].begin(), inputs[r].end());
      for (const auto& of_op : drawn) arguments[r].push_back(of_op[r]);
    }
    if (sink != nullptr && !traced_.executable) {
      TWINRUN_ASSIGN(traced_, compiled(true).with_kind(Error::Kind::kForeignEngine));
    }
    const Compiled& program = sink == nullptr ? step_ : traced_;
    Arrays results;
    for (size_t r = 0; r < states.size(); ++r) {
      results.emplace_back();
      for (const StableHlo::Value& v : program.module.results)
        results[r].push_back(Tensor::empty(v.type));
    }
    TWINRUN_RETURN_IF_ERROR(
        program.executable->run(arguments, results).with_kind(Error::Kind::kForeignEngine));
    if (sink != nullptr) show(step, arguments, results, *sink);
    size_t next = 0;
    outputs.assign(states.size(), {});
    for (size_t i = 0; i < program_.state.size(); ++i) {
      if (program_.state[i].next == kNoValue) continue;
      for (size_t r = 0; r < states.size(); ++r) states[r].vars[i] = results[r][next];
      ++next;
    }
    for (size_t o = 0; o < program_.outputs.size(); ++o, ++next) {
      for (size_t r = 0; r < states.size(); ++r) outputs[r].push_back(results[r][next]);
    }
    return Ok{};
  }

 private:
  Result<Compiled> compiled(bool values) const {
    Compiled c;
    c.module = to_stablehlo(
        program_, {.precision = stablehlo_precision(to_string(precision_)), .values = values});
    TWINRUN_ASSIGN(c.executable,
                   pjrt::Executable::compile(client_, c.module.text,
                                             static_cast<size_t>(program_.sharding.cores)));
    return c;
  }

  // Reports each op to the sink, from the arguments and results of the traced module.
  void show(int64_t step, const Arrays& arguments, const Arrays& results, TraceSink& sink) const {
    const size_t replicas = arguments.size(), ops = static_cast<size_t>(program_.graph.size());
    Arrays values(replicas, std::vector<Tensor>(ops));
    for (size_t r = 0; r < replicas; ++r) {
      const auto take = [&](const std::vector<StableHlo::Value>& list, const auto& tensors) {
        for (size_t i = 0; i < list.size(); ++i)
          values[r][static_cast<size_t>(list[i].id)] = tensors[r][i];
      };
      take(traced_.module.arguments, arguments);
      take(traced_.module.results, results);
    }
    for (ValueId id = 0; id < program_.graph.size(); ++id) {
      const Op& op = program_.graph.op(id);
      if (op.kind == OpKind::kParameter) continue;
      Arrays read(replicas);
      std::vector<Tensor> wrote;
      for (size_t r = 0; r < replicas; ++r) {
        for (const ValueId operand : op.operands)
          read[r].push_back(values[r][static_cast<size_t>(operand)]);
        wrote.push_back(values[r][static_cast<size_t>(id)]);
      }
      sink.on_op({step, &program_, id, read, wrote});
    }
  }

  std::shared_ptr<const pjrt::Client> client_;
  Program program_;
  DotPrecision precision_;
  Compiled step_, traced_;
  RandomFeed random_;
};

class PjrtBackend : public Backend {
 public:
  PjrtBackend(std::shared_ptr<const pjrt::Plugin> plugin,
              std::shared_ptr<const pjrt::Client> client, const PjrtOptions& options)
      : plugin_(std::move(plugin)), client_(std::move(client)), options_(options) {}

  Capabilities capabilities() const override {
    Capabilities c;
    c.name = "xla";
    c.settings = client_->platform() + " (" + client_->kind() + "), PJRT 0." +
                 std::to_string(plugin_->minor()) + " of " +
                 std::filesystem::path(plugin_->path()).filename().string();
    c.ours = false;
    c.contracts = true;
    c.max_cores = on_cpu() ? 256 : static_cast<int>(client_->devices().size());
    // Measured on the CPU (docs/guides/import.md, "What the engine declares"); other devices were
    // not measured.
    c.declares_arithmetic = on_cpu();
    c.precision = on_cpu() ? DotPrecision::kF32 : options_.precision;
    c.flush = on_cpu();
    c.elementary_ulps = 8;    // the largest seen: erf 3.9
    c.deterministic = false;  // a traced step is another compilation
    return c;
  }

  std::vector<DeviceFacts> devices() override { return pjrt::facts_of_devices(*client_); }

  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    const int cores = program.sharding.cores;
    if (on_cpu() && cores > static_cast<int>(client_->devices().size())) {
      TWINRUN_ASSIGN(client_,
                     pjrt::Client::open(plugin_, cores).with_kind(Error::Kind::kForeignEngine));
    }
    auto engine = std::make_unique<PjrtEngine>(client_, program, options_.precision);
    TWINRUN_RETURN_IF_ERROR(engine->prepare(options_.threads));
    return std::unique_ptr<Engine>(std::move(engine));
  }

 private:
  bool on_cpu() const { return client_->platform() == "cpu"; }
  std::shared_ptr<const pjrt::Plugin> plugin_;
  std::shared_ptr<const pjrt::Client> client_;
  PjrtOptions options_;
};

Result<std::unique_ptr<Backend>> opened(const PjrtOptions& options) {
  std::string path = options.plugin;
  if (path.empty()) {
    TWINRUN_ASSIGN(path, found_plugin());
  }
  TWINRUN_ASSIGN(auto plugin, pjrt::Plugin::load(path));
  TWINRUN_ASSIGN(auto client, pjrt::Client::open(plugin, options.devices));
  return std::unique_ptr<Backend>(
      std::make_unique<PjrtBackend>(std::move(plugin), std::move(client), options));
}

}  // namespace

Result<std::unique_ptr<Backend>> make_pjrt_backend(const PjrtOptions& options) {
  return opened(options).with_kind(Error::Kind::kForeignEngine);
}

}  // namespace twinrun

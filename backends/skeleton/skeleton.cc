// The template of an engine: interprets a program op by op on one thread, without hooks.
#include "backends/skeleton/skeleton.h"

#include <string>
#include <utility>
#include <vector>

#include "backends/kernels/kernels.h"

namespace twinrun {
namespace {

class SkeletonEngine : public Engine {
 public:
  explicit SkeletonEngine(Program program) : program_(std::move(program)) {}

  const Program& program() const override { return program_; }

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    // Without support for hooks, report an error: --fault and `diagnose` need hooks.
    if (hooks != nullptr) return Error{"this engine does not support hooks", "skeleton", ""};
    const auto cores = static_cast<size_t>(program_.sharding.cores);
    if (states.size() != cores || inputs.size() != cores) {
      return Error{"the program has " + std::to_string(cores) + " replicas", "skeleton", ""};
    }

    // values[replica][id] is the result of op `id`. State and inputs are parameter ops, whose
    // values come from the caller.
    Values values(cores, std::vector<Tensor>(static_cast<size_t>(program_.graph.size())));
    for (size_t r = 0; r < cores; ++r) {
      for (size_t i = 0; i < program_.state.size(); ++i) {
        values[r][static_cast<size_t>(program_.state[i].id)] = states[r].vars[i];
      }
      for (size_t i = 0; i < program_.inputs.size(); ++i) {
        values[r][static_cast<size_t>(program_.inputs[i].id)] = inputs[r][i];
      }
    }

    // Every operand precedes its reader, so ops can run in program order. All replicas finish an op
    // before the next one begins, so collectives need no synchronisation.
    for (ValueId id = 0; id < program_.graph.size(); ++id) run_op(step, id, values, sink);

    outputs.assign(cores, {});
    for (size_t r = 0; r < cores; ++r) {
      for (const Output& output : program_.outputs) {
        outputs[r].push_back(values[r][static_cast<size_t>(output.id)]);
      }
      for (size_t i = 0; i < program_.state.size(); ++i) {
        const ValueId next = program_.state[i].next;
        if (next != kNoValue) states[r].vars[i] = values[r][static_cast<size_t>(next)];
      }
    }
    return Ok{};
  }

 private:
  using Values = std::vector<std::vector<Tensor>>;

  void run_op(int64_t step, ValueId id, Values& values, TraceSink* sink) {
    const Op& op = program_.graph.op(id);
    if (op.kind == OpKind::kParameter) return;
    const size_t cores = values.size();
    std::vector<std::vector<Tensor>> read(cores);
    std::vector<Tensor> contributions, wrote(cores);
    for (size_t r = 0; r < cores; ++r) {
      for (ValueId operand : op.operands) {
        read[r].push_back(values[r][static_cast<size_t>(operand)]);
      }
      if (op.kind == OpKind::kAllReduce) contributions.push_back(read[r][0]);
    }

    // Replace this part with the arithmetic of your engine. This template uses the kernels of
    // `cpu`. Compute each result into a fresh Tensor of op.type; program/ops/op.h defines the ops.
    const KernelContext context{nullptr, Arithmetic{}};  // no thread pool
    if (op.kind == OpKind::kAllReduce) {
      Tensor sum = Tensor::empty(op.type);
      all_reduce_sum(context, contributions, sum);
      wrote.assign(cores, sum);  // all replicas share one tensor; it is not written again
    } else {
      for (size_t r = 0; r < cores; ++r) {
        wrote[r] = Tensor::empty(op.type);
        run_kernel(context, op, read[r], wrote[r]);
      }
    }

    // Report what the op really read and wrote: the oracle recomputes the op from these tensors.
    if (sink != nullptr) sink->on_op({step, &program_, id, read, wrote});
    for (size_t r = 0; r < cores; ++r) values[r][static_cast<size_t>(id)] = std::move(wrote[r]);
  }

  Program program_;
};

class SkeletonBackend : public Backend {
 public:
  explicit SkeletonBackend(BackendOptions options) : options_(std::move(options)) {}

  // Declare only what you are sure of; docs/guides/own-engine.md has a table of the fields.
  Capabilities capabilities() const override {
    Capabilities c;
    c.name = "skeleton";
    c.settings = "one thread";
    c.max_cores = 8;
    c.ours = true;  // for a foreign engine: false, and a large enough elementary_ulps
    return c;
  }

  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    // Collect everything that is missing, to report it in one error.
    std::string missing;
    if (program.sharding.cores > capabilities().max_cores) {
      missing += " " + std::to_string(program.sharding.cores) + " cores;";
    }
    for (const Op& op : program.graph.ops()) {
      if (op.type.dtype == DType::kBF16) missing += " bf16 (" + op.name + ");";
    }
    if (!missing.empty()) return Error{"this engine lacks:" + missing, "skeleton", ""};
    return std::unique_ptr<Engine>(std::make_unique<SkeletonEngine>(program));
  }

 private:
  // threads and poison_memory; add a struct of your own to BackendOptions if you need one.
  BackendOptions options_;
};

}  // namespace

std::unique_ptr<Backend> make_skeleton_backend(const BackendOptions& options) {
  return std::make_unique<SkeletonBackend>(options);
}

}  // namespace twinrun

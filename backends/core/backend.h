// The engine interface: prepare a program once, run its step many times, let others watch or interfere.
//
//   auto backend = make_backend("tpu", {.threads = 2, .tpu = {...}});
//   auto engine = (*backend)->prepare(program);                        // shapes, ops and dtypes are checked here
//   States s = initial_states(...);
//   engine->step(s, inputs, outputs, &sink, &hooks);                    // s is replaced by the state after the step
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/core/precision.h"
#include "program/base/result.h"
#include "program/base/tensor.h"
#include "program/base/thread_pool.h"
#include "program/graph/program.h"

namespace twinrun {

// Operand handling of dots and convolutions (numerics.md).
enum class DotPrecision : uint8_t { kF32, kBf16, kBf16x3, kBf16x6 };
std::string_view to_string(DotPrecision precision);  // "f32", "default", "high", "highest"

// How bf16x3 and bf16x6 cut an operand into bf16 parts, x = h + l or h + m + l: all but the last part nearest even, or
// toward zero; the last is nearest even.
enum class DotSplit : uint8_t { kNearest, kTruncated };

// What an engine declares of its arithmetic: all that a judge may assume of it.
struct Capabilities {
  std::string name;      // "cpu", "tpu", ...
  std::string settings;  // "precision=default threads=2", for reports
  DotPrecision precision = DotPrecision::kF32;
  // Of a foreign engine, its word (backends/core/precision.h); `precision` is then the coarsest handling of operands that the word
  // allows. Without: `precision` says all.
  std::optional<Precision> vocabulary;
  int reduced_bits = kF32Bits;  // significand of what an all-reduce of gradients may send
  bool stochastic = false;      // a rounding may go to either neighbour
  DotSplit split = DotSplit::kNearest;
  bool block32_order = false;    // dots accumulate in the AMX order: depth 17 + K/32 instead of K
  bool flush = false;            // denormals are zero, in and out, in arithmetic
  double elementary_ulps = 0.5;  // exp, log, tanh, erf, log1p: largest error in ulps of the result
  bool contracts =
      false;  // a multiply may be fused into the add or subtract that takes it: it is not rounded there
  bool one_pass_variance = false;  // batch norm's variance is E[x^2] - E[x]^2, not E[(x - E[x])^2]
  int max_cores = 1;
  bool deterministic = true;  // promises the same bits on a rerun
  bool op_trace = true;       // offers values op by op
  bool activations = false;   // a foreign engine: shows what layers give, where it is asked to
  bool ours = true;           // false: a foreign engine
  std::string
      conventions;  // whose formulas a foreign engine's script has, "pytorch"; "": not declared
  bool declares_arithmetic =
      true;  // false: nothing is known of precision, order, flush, ulps (evidence level B)
};

// Which operands of an add or subtract such an engine may take as unrounded products (bit i: operand i): it contracts, and
// a multiply of the same graph wrote them. 0 for all other ops.
unsigned unrounded_operands(const Capabilities& declared, const Graph& graph, ValueId id);

struct TpuOptions {
  DotPrecision precision = DotPrecision::kBf16;
  bool poison = false;  // padding cells of tiles hold NaN
};

struct BackendOptions {
  int threads = 1;
  bool poison_memory = false;  // results start as NaN patterns, so that unwritten elements show
  TpuOptions tpu;
};

// One replica's state, in the order of Program::state. Tensors may be shared by replicas. A step may write into those that
// nobody but the States it is given holds; whoever keeps a copy of a Tensor keeps its bits.
struct ReplicaState {
  std::vector<Tensor> vars;
};
using States = std::vector<ReplicaState>;  // one per replica

// What a step is fed, in the order of Program::inputs, per replica.
using StepInputs = std::vector<std::vector<Tensor>>;
// Program::outputs, per replica.
using StepOutputs = std::vector<std::vector<Tensor>>;

// One executed op on all replicas. inputs[r][i] is what the engine says that it read (before any fault),
// outputs[r] what it says that it wrote.
struct OpEvent {
  int64_t step = 0;
  const Program* program = nullptr;
  ValueId id = kNoValue;
  std::span<const std::vector<Tensor>> inputs;
  std::span<const Tensor> outputs;
  const Op& op() const { return program->graph.op(id); }
};

// Called in program order from one thread. The tensors stay valid (they are shared, not copied).
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void on_op(const OpEvent& event) = 0;
};

// How the engine at work computes the op of a site, on inputs of the hook's choosing; `output` comes with the op's type.
using OpCompute = std::function<void(const std::vector<Tensor>& inputs, Tensor& output)>;

// Where a hook stands. replica is -1 for a collective, whose inputs are the contributions of all replicas.
struct OpSite {
  int64_t step = 0;
  int replica = 0;
  const Program* program = nullptr;
  ValueId id = kNoValue;
  const OpCompute* compute = nullptr;
  const Op& op() const { return program->graph.op(id); }
};

// Interference for tests, drills and --fault. Hooks see private copies of the input list; the trace shows the originals.
// A collective calls the first three once, for the result that replicas share, then `after_copy` with each replica's number and
// copy of it, so that cores can be made to differ. An engine that computes ops in a way of its own and lets others hook it passes
// on sites whose `compute` is its way.
class OpHooks {
 public:
  virtual ~OpHooks() = default;
  virtual bool watches(const Program& program, ValueId id, int64_t step) = 0;
  virtual void before(const OpSite&, std::vector<Tensor>& /*inputs*/) {}
  virtual bool replace(const OpSite&, const std::vector<Tensor>& /*inputs*/, Tensor& /*output*/) {
    return false;
  }
  virtual void after(const OpSite&, const std::vector<Tensor>& /*inputs*/, Tensor& /*output*/) {}
  virtual void after_copy(const OpSite&, const std::vector<Tensor>& /*inputs*/, Tensor& /*copy*/) {}
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const Program& program() const = 0;
  // Runs one step on all replicas (states.size() == program().sharding.cores).
  virtual Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                      TraceSink* sink = nullptr, OpHooks* hooks = nullptr) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Capabilities capabilities() const = 0;
  // Errors: an op or dtype that the engine lacks, more cores than it has; all of them listed at once.
  virtual Result<std::unique_ptr<Engine>> prepare(const Program& program) = 0;
};

}  // namespace twinrun

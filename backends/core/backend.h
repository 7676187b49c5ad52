// The engine interface: prepare a program once, run its step many times, and let callers trace or
// modify ops. On the data's path it stands between the program and the run; every engine implements
// it.
//
//   auto backend = make_backend("tpu", {.threads = 2, .tpu = {...}});
//   auto engine = (*backend)->prepare(program);       // checks what this engine supports
//   States s = initial_states(...);
//   engine->step(s, inputs, outputs, &sink, &hooks);  // replaces s by the state after the step
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

// How bf16x3 and bf16x6 split an operand x into bf16 terms, x = h + l or x = h + m + l. The last
// term is rounded to nearest even; the others to nearest even (kNearest) or toward zero
// (kTruncated).
enum class DotSplit : uint8_t { kNearest, kTruncated };

// What an engine declares about its arithmetic: all that the oracle and the comparison may assume.
struct Capabilities {
  std::string name;      // "cpu", "tpu", ...
  std::string settings;  // "precision=default threads=2", for reports
  DotPrecision precision = DotPrecision::kF32;
  // The precision that a foreign engine declares (backends/core/precision.h); `precision` is then
  // the coarsest operand handling that it allows. Without it, `precision` is the whole declaration.
  std::optional<Precision> vocabulary;
  int reduced_bits = kF32Bits;  // significand bits of what an all-reduce of gradients may send
  bool stochastic = false;      // a rounding may go to either neighbour
  DotSplit split = DotSplit::kNearest;
  bool block32_order =
      false;           // dots accumulate in the AMX order, of a depth of about K/32 instead of K
  bool flush = false;  // arithmetic treats denormal operands and results as zero
  double elementary_ulps = 0.5;  // exp, log, tanh, erf, log1p: largest error in ulps of the result
  // A multiply may be fused into the add or subtract that reads it, without rounding the product.
  bool contracts = false;
  bool one_pass_variance = false;  // batch norm's variance is E[x^2] - E[x]^2, not E[(x - E[x])^2]
  int max_cores = 1;
  bool deterministic = true;  // promises the same bits on a rerun
  bool op_trace = true;       // can pass the values of every op to a TraceSink
  bool activations = false;   // a foreign engine that returns the outputs of layers on request
  bool programs = true;       // runs imported programs, not only models of scenarios
  bool ours = true;           // false: a foreign engine
  // The framework whose formulas a foreign engine uses, such as "pytorch"; "": not declared.
  std::string conventions;
  // false: precision, order, flushing and ulps are unknown (evidence level B).
  bool declares_arithmetic = true;
};

// Which operands of an add or subtract the engine may use as unrounded products (bit i: operand i):
// those that a multiply computes, moved or selected since or not, if `declared.contracts`. Else 0.
unsigned unrounded_operands(const Capabilities& declared, const Graph& graph, ValueId id);

struct TpuOptions {
  DotPrecision precision = DotPrecision::kBf16;
  bool poison = false;  // fill the padding cells of tiles with NaN
};

class Communicator;  // backends/core/communicator.h

struct BackendOptions {
  int threads = 1;
  // The threads of our engines; must outlive the engine, whose steps run where nothing else uses
  // them. nullptr: `threads` of its own. Whoever judges an engine's results as they come does so on
  // the same threads: waking others costs more than many an op.
  ThreadPool* pool = nullptr;
  // The ranks over which `cpu` and `tpu` split the cores of a program that has several; must
  // outlive the engine. nullptr: all cores are computed here. Every rank passes the states and
  // inputs of all cores to a step and gets those of all cores back.
  Communicator* ranks = nullptr;
  // Fill results with NaN patterns first, so that unwritten elements show.
  bool poison_memory = false;
  TpuOptions tpu;
};

// One replica's state, in the order of Program::state. Replicas may share tensors. A step may write
// into a tensor whose storage is held only by the States passed to it; a caller that keeps a copy
// of a Tensor keeps its bits.
struct ReplicaState {
  std::vector<Tensor> vars;
};
using States = std::vector<ReplicaState>;  // one per replica

// The inputs of a step, in the order of Program::inputs, per replica.
using StepInputs = std::vector<std::vector<Tensor>>;
// Program::outputs, per replica.
using StepOutputs = std::vector<std::vector<Tensor>>;

// One executed op on all replicas. inputs[r][i] is the operand that the engine reports to have read
// (before any fault), outputs[r] the result that it reports to have written.
struct OpEvent {
  int64_t step = 0;
  const Program* program = nullptr;
  ValueId id = kNoValue;
  std::span<const std::vector<Tensor>> inputs;
  std::span<const Tensor> outputs;
  const Op& op() const { return program->graph.op(id); }
};

struct FusionGroup;  // program/analysis/fusion.h

// One pass of an engine over a group of ops. inputs[r][i] is what it read of group->sources[i],
// outputs[r][i] what it wrote of group->stored[i]. Where all replicas share the result, only
// replica 0 is given.
struct GroupEvent {
  int64_t step = 0;
  const Program* program = nullptr;
  const FusionGroup* group = nullptr;
  std::span<const std::vector<Tensor>> inputs;
  std::span<const std::vector<Tensor>> outputs;
};

// Receives a step that the engine runs fused: groups, and between them single ops, in the order of
// execution and from one thread.
class GroupSink {
 public:
  virtual ~GroupSink() = default;
  virtual void on_op(const OpEvent& event) = 0;
  virtual void on_group(const GroupEvent& event) = 0;
  // No later unit of the step reads these values.
  virtual void on_release(std::span<const ValueId> ids) = 0;
  // After the last unit: whether the step stands. If not, the engine runs it again from the same
  // state, op by op, for TraceSink::on_op.
  virtual bool holds() = 0;
};

// Receives executed ops, in program order and from one thread. The tensors stay valid after the
// call (they are shared, not copied).
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void on_op(const OpEvent& event) = 0;
  // Asked before a step by an engine that could run it in these groups. nullptr: op by op.
  virtual GroupSink* groups(const Program& /*program*/, std::span<const FusionGroup> /*groups*/) {
    return nullptr;
  }
};

// Computes the op of a site as the running engine does, on inputs that the hook chooses. The caller
// allocates `output` with the op's type.
using OpCompute = std::function<void(const std::vector<Tensor>& inputs, Tensor& output)>;

// The op execution that a hook is called for. replica is -1 for a collective, whose inputs are the
// contributions of all replicas.
struct OpSite {
  int64_t step = 0;
  int replica = 0;
  const Program* program = nullptr;
  ValueId id = kNoValue;
  const OpCompute* compute = nullptr;
  const Op& op() const { return program->graph.op(id); }
};

// Hooks that change what ops read or write, for tests, drills and --fault. They see private copies
// of the input list; the trace shows the originals. For a collective, `before`, `replace` and
// `after` are called once, for the result that replicas share, and then `after_copy` for each
// replica's copy of it, so that cores can be made to differ. An engine that computes ops in its own
// way and still accepts hooks of a caller must pass on sites whose `compute` is its own.
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

// A device that an engine sees, for people.
struct DeviceFacts {
  std::string name;             // "TPU_0(process=0,(0,0,0,0))"
  std::string kind;             // "TPU v2", "cpu"
  std::optional<int64_t> used;  // bytes of its memory; nullopt: it does not tell
  std::optional<int64_t> memory;
  std::string trouble;  // why it cannot be used; "": it can
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Capabilities capabilities() const = 0;
  // In the order of the replicas that run on them; empty for engines that run on the host alone or
  // do not tell.
  virtual std::vector<DeviceFacts> devices() { return {}; }
  // Errors: ops or dtypes that the engine lacks, more cores than it has; all of them listed at
  // once.
  virtual Result<std::unique_ptr<Engine>> prepare(const Program& program) = 0;
};

}  // namespace twinrun

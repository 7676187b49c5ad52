// The engine of a variant: the interpreter, with hooks that compute the ops where the variant has a
// choice. The caller's hooks (faults) are called from these: before(), then replace() first by the
// caller and else by the variant, then after().
#include <atomic>
#include <cstring>

#include "backends/core/interpreter.h"
#include "backends/core/wrapped.h"
#include "backends/kernels/arithmetic.h"
#include "backends/variants/variant.h"

namespace twinrun {
namespace {

class VariantHooks : public OpHooks {
 public:
  VariantHooks(Variant variant, const Program& program) : variant_(std::move(variant)) {
    const Graph& graph = program.graph;
    const auto n = static_cast<size_t>(graph.size());
    replaced_.resize(n);
    fused_.assign(n, -1);
    feeds_.resize(n);
    for (ValueId id = 0; id < graph.size(); ++id) {
      const Op& op = graph.op(id);
      replaced_[static_cast<size_t>(id)] = variants::replaces(variant_, op);
      if (!variant_.fuses) continue;
      // Only a product that the add reads itself is fused.
      unsigned products = unrounded_operands(variant_.declared, graph, id);
      for (size_t i = 0; products != 0 && i < 2; ++i) {
        if (graph.op(op.operands[i]).kind != OpKind::kMultiply) products &= ~(1u << i);
      }
      if (products == 0) continue;
      const int which = (products & 2u) != 0 ? 1 : 0;  // of two products, the second
      fused_[static_cast<size_t>(id)] = static_cast<int8_t>(which);
      feeds_[static_cast<size_t>(op.operands[static_cast<size_t>(which)])] = true;
    }
    factors_.assign(static_cast<size_t>(program.sharding.cores), std::vector<Factors>(n));
  }

  // Sets the caller's hooks for this step; nullptr if there are none.
  void begin_step(OpHooks* others) {
    others_ = others;
    for (auto& replica : factors_) std::fill(replica.begin(), replica.end(), Factors{});
    theirs_.assign(replaced_.size(), false);
  }

  bool watches(const Program& program, ValueId id, int64_t step) override {
    const auto i = static_cast<size_t>(id);
    theirs_[i] = others_ != nullptr && others_->watches(program, id, step);
    return theirs_[i] || replaced_[i] || fused_[i] >= 0 || feeds_[i];
  }
  void before(const OpSite& site, std::vector<Tensor>& inputs) override {
    for_others(site, [&](const OpSite& s) { others_->before(s, inputs); });
  }
  bool replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override {
    const auto i = static_cast<size_t>(site.id);
    if (feeds_[i]) factors_[static_cast<size_t>(site.replica)][i] = {inputs[0], inputs[1]};
    bool done = false;
    for_others(site, [&](const OpSite& s) { done = others_->replace(s, inputs, output); });
    if (done) return true;
    return compute(site, inputs, output);
  }
  void after(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override {
    for_others(site, [&](const OpSite& s) { others_->after(s, inputs, output); });
  }
  void after_copy(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& copy) override {
    for_others(site, [&](const OpSite& s) { others_->after_copy(s, inputs, copy); });
  }

 private:
  // If the caller's hooks watch this op, calls f with the site as they see it: its `compute` is the
  // variant's way.
  template <typename F>
  void for_others(const OpSite& site, F f) {
    if (!theirs_[static_cast<size_t>(site.id)]) return;
    const OpCompute ours = [&](const std::vector<Tensor>& inputs, Tensor& output) {
      if (!compute(site, inputs, output)) (*site.compute)(inputs, output);
    };
    OpSite theirs = site;
    theirs.compute = &ours;
    f(theirs);
  }
  // Returns false if the contract's kernel is to compute the op.
  bool compute(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) const {
    const auto i = static_cast<size_t>(site.id);
    if (fused_[i] >= 0) return fuse(site, inputs, output);
    if (!replaced_[i]) return false;
    variants::run_op(variant_, site.op(), inputs, output);
    return true;
  }

  struct Factors {
    Tensor a, b;
  };

  // Computes a + x y with a fused multiply-add. Where the add's operand is not the product x y (a
  // fault changed it in between), it adds that operand instead.
  bool fuse(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) const {
    const Op& op = site.op();
    const auto which = static_cast<size_t>(fused_[static_cast<size_t>(site.id)]);
    const Factors& f =
        factors_[static_cast<size_t>(site.replica)][static_cast<size_t>(op.operands[which])];
    if (!f.a.valid()) return false;
    const bool subtract = op.kind == OpKind::kSubtract;
    const float *x = f.a.as<float>().data(), *y = f.b.as<float>().data();
    const float *product = inputs[which].as<float>().data(),
                *other = inputs[1 - which].as<float>().data();
    float* out = output.as<float>().data();
    const FlushScope scope(variant_.declared.flush);
    for (int64_t i = 0; i < output.elements(); ++i) {
      const bool seen = to_bits(canonical(multiplied(x[i], y[i]))) == to_bits(product[i]);
      // Compute p - q as p + (-q): negate a factor of the product, or the other operand.
      const float c = subtract && which == 0 ? -other[i] : other[i];
      const float factor = subtract && which == 1 ? -x[i] : x[i];
      const float p = subtract && which == 1 ? -product[i] : product[i];
      out[i] = canonical(seen ? fused(factor, y[i], c) : p + c);
    }
    return true;
  }

  Variant variant_;
  std::vector<bool> replaced_;
  // For each add or subtract: which operand it takes as an unrounded product; -1: none.
  std::vector<int8_t> fused_;
  std::vector<bool> feeds_;                    // multiplies whose factors such an op needs
  std::vector<std::vector<Factors>> factors_;  // [replica][op]: those factors, in this step
  OpHooks* others_ = nullptr;                  // the caller's hooks
  std::vector<bool> theirs_;                   // ops that the caller's hooks watch in this step
};

class VariantEngine : public WrappedEngine {
 public:
  VariantEngine(const Variant& variant, const Program& program, Arithmetic arithmetic,
                const BackendOptions& options)
      : WrappedEngine(std::make_unique<Interpreter>(program, arithmetic, options)),
        hooks_(variant, program) {}
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    hooks_.begin_step(hooks);
    return inner_->step(step, states, inputs, outputs, sink, &hooks_);
  }

 private:
  VariantHooks hooks_;
};

class VariantBackend : public Backend {
 public:
  VariantBackend(const Variant& variant, const BackendOptions& options)
      : variant_(variant), options_(options) {}
  Capabilities capabilities() const override { return variant_.declared; }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    if (program.sharding.cores > variant_.declared.max_cores) {
      return Error{"the program needs " + std::to_string(program.sharding.cores) +
                       " cores; the engine has " + std::to_string(variant_.declared.max_cores),
                   "tpu.cores", ""};
    }
    Arithmetic arithmetic;
    arithmetic.dot = static_cast<DotArithmetic>(variant_.declared.precision);
    arithmetic.flush = variant_.declared.flush;
    return std::unique_ptr<Engine>(std::make_unique<VariantEngine>(
        variant_of_run(variant_, runs_++), program, arithmetic, options_));
  }

 private:
  Variant variant_;
  BackendOptions options_;
  std::atomic<uint64_t> runs_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_variant_backend(const Variant& variant,
                                              const BackendOptions& options) {
  return std::make_unique<VariantBackend>(variant, options);
}

}  // namespace twinrun

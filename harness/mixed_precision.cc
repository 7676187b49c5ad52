#include "harness/mixed_precision.h"

#include "program/base/bits.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

constexpr double kTwiceBf16 = 0x1p-8;  // twice the largest relative error of rounding to it
constexpr uint64_t kFewest = 3;
constexpr uint64_t kKey = 0x6d69786564;

class Rounding : public OpHooks {
 public:
  explicit Rounding(uint64_t member) : key_{kKey + member, kStreamVariant} {}
  bool watches(const Program& program, ValueId id, int64_t) override {
    const Op& op = program.graph.op(id);
    if (op.type.dtype != DType::kF32 ||
        (op.phase != Phase::kForward && op.phase != Phase::kGradient))
      return false;
    switch (class_of(op.kind)) {
      case OpClass::kElementwise:
      case OpClass::kDot:
      case OpClass::kReduce:
      case OpClass::kWindow:
        return true;
      default:
        return false;
    }
  }
  void after(const OpSite& site, const std::vector<Tensor>&, Tensor& output) override {
    // Replicas that compute the same must go on doing so: none of them enters the draw.
    const auto step = static_cast<uint32_t>(site.step), op = static_cast<uint32_t>(site.id);
    float* x = output.as<float>().data();
    for (int64_t i = 0; i < output.elements(); ++i) {
      const double u =
          2 * static_cast<double>(uniform(draw(key_, step, op, static_cast<uint64_t>(i)))) - 1;
      x[i] = static_cast<float>(static_cast<double>(x[i]) * (1 + kTwiceBf16 * u));
    }
  }

 private:
  RandomKey key_;
};

class MixedEngine : public Engine {
 public:
  MixedEngine(std::unique_ptr<Engine> engine, uint64_t member)
      : engine_(std::move(engine)), rounding_(member) {}
  const Program& program() const override { return engine_->program(); }
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks*) override {
    return engine_->step(step, states, inputs, outputs, sink, &rounding_);
  }

 private:
  std::unique_ptr<Engine> engine_;
  Rounding rounding_;
};

class MixedBackend : public Backend {
 public:
  MixedBackend(std::unique_ptr<Backend> backend, uint64_t member)
      : backend_(std::move(backend)), member_(member) {}
  Capabilities capabilities() const override { return backend_->capabilities(); }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    TWINRUN_ASSIGN(auto engine, backend_->prepare(program));
    return std::unique_ptr<Engine>(std::make_unique<MixedEngine>(std::move(engine), member_));
  }

 private:
  std::unique_ptr<Backend> backend_;
  uint64_t member_;
};

}  // namespace

bool results_in_bf16(const Observed& subject, const std::vector<Compared>& tensors) {
  uint64_t looked_at = 0, rounded = 0;
  const size_t stride = tensors.size() * subject.replicas;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].is_state) continue;
    uint64_t numbers = 0;
    bool all = true;
    for (size_t v = t * subject.replicas; all && v < subject.values.size(); v += stride) {
      for (const float x : *subject.values[v].data) {
        if (x == 0) continue;
        ++numbers;
        all = all && (to_bits(x) & 0xffffu) == 0;
      }
    }
    if (all && numbers < kFewest) continue;
    ++looked_at;
    rounded += all ? 1 : 0;
  }
  return looked_at > 0 && 2 * rounded >= looked_at;
}

std::unique_ptr<Backend> rounding_results(std::unique_ptr<Backend> backend, uint64_t member) {
  return std::make_unique<MixedBackend>(std::move(backend), member);
}

}  // namespace twinrun

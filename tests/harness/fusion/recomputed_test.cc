// Tests of results that a fusion explains by computing an operand again, on a trace with a sum whose
// operand was not the one that is shown.
#include "harness/fusion/recomputed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backends/core/wrapped.h"
#include "backends/registry.h"

namespace twinrun {
namespace {

constexpr int64_t kElements = 400;

// sum = (a * b + c) + d, in two adds.
Program sums() {
  Program p;
  GraphBuilder b(p.graph);
  const TensorType type{DType::kF32, {kElements}};
  std::vector<ValueId> x;
  for (const char* name : {"a", "b", "c", "d"}) {
    x.push_back(b.parameter(name, type));
    p.inputs.push_back({name, x.back(), false});
  }
  const ValueId inner = b.add(b.mul(x[0], x[1], "product"), x[2], "inner");
  const ValueId sum = b.add(inner, x[3], "sum");
  p.outputs = {{"sum", sum}, {"other", b.mul(sum, sum, "other")}};
  return p;
}

// Shows `sum` as `computed` has it.
class Shown : public WrappedEngine {
 public:
  using Sum = float (*)(float a, float b, float c, float d);
  Shown(std::unique_ptr<Engine> inner, Sum computed)
      : WrappedEngine(std::move(inner)), computed_(computed) {}
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    class Other : public TraceSink {
     public:
      Other(TraceSink& to, Tensor sum) : to_(to), sum_(std::move(sum)) {}
      void on_op(const OpEvent& event) override {
        OpEvent shown = event;
        const std::vector<Tensor> sum = {sum_};
        if (event.op().name == "sum") shown.outputs = sum;
        to_.on_op(shown);
      }

     private:
      TraceSink& to_;
      Tensor sum_;
    };
    Tensor sum = Tensor::empty({DType::kF32, {kElements}});
    for (size_t i = 0; i < kElements; ++i) {
      const auto at = [&](size_t input) { return inputs[0][input].as<const float>()[i]; };
      sum.as<float>()[i] = computed_(at(0), at(1), at(2), at(3));
    }
    Other other(*sink, std::move(sum));
    return inner_->step(step, states, inputs, outputs, &other, hooks);
  }

 private:
  Sum computed_;
};

bool explained(Shown::Sum computed) {
  const Program p = sums();
  const auto backend = make_backend("cpu", {});
  EXPECT_TRUE(backend);
  auto inner = (*backend)->prepare(p);
  EXPECT_TRUE(inner);
  Shown engine(*std::move(inner), computed);
  KeptStep kept{0, {{}}, {{}}, std::nullopt};
  for (int input = 0; input < 4; ++input) {
    Tensor t = Tensor::empty({DType::kF32, {kElements}});
    for (size_t i = 0; i < kElements; ++i)
      t.as<float>()[i] = std::sin(static_cast<float>(i * 7 + static_cast<size_t>(input) * 13));
    kept.inputs[0].push_back(t);
  }
  const auto traced = TracedStep::of(engine, kept);
  EXPECT_TRUE(traced) << traced.error().message();
  Capabilities declared = (*backend)->capabilities();
  declared.contracts = true;
  const auto legal = traced->explains(p, declared, p.graph.find("sum"), 0, nullptr);
  EXPECT_TRUE(legal) << legal.error().message();
  return *legal;
}

TEST(Recomputed, AnOperandMayBeContractedOnceMore) {
  EXPECT_TRUE(explained([](float a, float b, float c, float d) { return (a * b + c) + d; }));
  EXPECT_TRUE(explained([](float a, float b, float c, float d) { return std::fma(a, b, c) + d; }));
  EXPECT_TRUE(explained([](float a, float b, float c, float d) { return a * b + (c + d); }))
      << "sums may be added in any order";
}

TEST(Recomputed, AWrongSumIsNot) {
  EXPECT_FALSE(explained([](float a, float b, float c, float d) { return (a * b + c) - d; }));
  EXPECT_FALSE(
      explained([](float a, float b, float c, float d) { return (a * b + c) + d * 1.00001f; }));
  EXPECT_FALSE(explained([](float, float, float, float) { return std::nanf(""); }));
}

}  // namespace
}  // namespace twinrun

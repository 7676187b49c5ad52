// Tests traces of a compiled program: the traced module is another compilation, so its bits are
// compared with those of the untraced one. Also tests that XLA's elementary functions keep the
// bounds that the engine declares. Skipped without a plugin.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "backends/oracle/oracle.h"
#include "backends/pjrt/pjrt_backend.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

Tensor numbers(Dims dims, float from, float step) {
  Tensor t = Tensor::empty({DType::kF32, std::move(dims)});
  float x = from;
  for (float& e : t.as<float>()) {
    e = x;
    x += step;
    if (x > 2) x = -2;
  }
  return t;
}

class Keep : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    names.push_back(event.op().name);
    for (size_t r = 0; r < event.outputs.size(); ++r) written[event.id].push_back(event.outputs[r]);
    for (size_t i = 0; i < event.op().operands.size(); ++i) {
      const auto from = written.find(event.op().operands[i]);
      if (from == written.end()) continue;  // the operand is an argument
      for (size_t r = 0; r < event.outputs.size(); ++r)
        linked = linked && event.inputs[r][i].same_bits(from->second[r]);
    }
  }
  std::vector<std::string> names;
  std::map<ValueId, std::vector<Tensor>> written;
  bool linked = true;
};

// w <- w - 0.5 all_reduce(x^T tanh(x w)) on `cores` replicas.
Program small_step(int cores) {
  Program p;
  p.sharding.cores = cores;
  p.batch = 8;
  GraphBuilder b(p.graph);
  const ValueId x = b.parameter("images", {DType::kF32, {8, 16}});
  const ValueId w = b.parameter("w", {DType::kF32, {16, 5}});
  p.inputs = {{"images", x, true}};
  const ValueId y = b.unary(OpKind::kTanh, b.dot(x, w));
  const ValueId g = b.all_reduce(b.dot(x, y, 0, 0, "grad"));
  StateVar var;
  var.name = "w";
  var.type = p.graph.type(w);
  var.id = w;
  var.next = b.sub(w, b.binary_scalar(OpKind::kMultiply, g, 0.5), "next");
  p.state = {var};
  p.outputs = {{"w.grad", g}};
  return p;
}

class XlaTrace : public testing::Test {
 protected:
  void SetUp() override {
    const char* plugin = std::getenv("TWINRUN_PJRT_PLUGIN");
    if (plugin == nullptr) GTEST_SKIP() << "TWINRUN_PJRT_PLUGIN names no plugin";
    auto made = make_pjrt_backend({.plugin = plugin, .precision = DotPrecision::kF32});
    ASSERT_TRUE(made.ok()) << made.error().message();
    backend_ = *std::move(made);
  }
  std::unique_ptr<Backend> backend_;
};

TEST_F(XlaTrace, ShowsEveryOpOnceAndGivesTheBitsOfTheUntracedStep) {
  for (const int cores : {1, 8}) {
    const Program program = small_step(cores);
    auto engine = backend_->prepare(program);
    ASSERT_TRUE(engine.ok()) << engine.error().message();
    States plain, traced;
    StepInputs inputs;
    for (int r = 0; r < cores; ++r) {
      plain.push_back({{numbers({16, 5}, -1, 0.037f)}});
      inputs.push_back({numbers({8, 16}, -1.5f + 0.1f * static_cast<float>(r), 0.013f)});
    }
    traced = plain;
    StepOutputs outputs, shown;
    Keep keep;
    ASSERT_TRUE((*engine)->step(0, plain, inputs, outputs).ok());
    ASSERT_TRUE((*engine)->step(0, traced, inputs, shown, &keep).ok());
    EXPECT_EQ(static_cast<ValueId>(keep.names.size()), program.graph.size() - 2);
    EXPECT_TRUE(keep.linked);
    for (size_t r = 0; r < plain.size(); ++r) {
      EXPECT_TRUE(plain[r].vars[0].same_bits(traced[r].vars[0])) << cores;
      EXPECT_TRUE(outputs[r][0].same_bits(shown[r][0])) << cores;
      EXPECT_TRUE(plain[r].vars[0].same_bits(plain[0].vars[0])) << "all-reduced alike";
    }
  }
}

TEST_F(XlaTrace, TakesNoFaults) {
  auto engine = backend_->prepare(small_step(1));
  ASSERT_TRUE(engine.ok());
  class None : public OpHooks {
    bool watches(const Program&, ValueId, int64_t) override { return false; }
  } hooks;
  States states{{{numbers({16, 5}, 0, 0.1f)}}};
  StepOutputs outputs;
  const Status status =
      (*engine)->step(0, states, {{numbers({8, 16}, 0, 0.1f)}}, outputs, nullptr, &hooks);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message().find("does not support faults"), std::string::npos);
}

// Arguments are a sample of all normal numbers, spaced evenly by their bits. The largest error is
// printed and must be within the declared bound.
TEST_F(XlaTrace, ElementaryFunctionsAreWithinWhatIsDeclared) {
  constexpr int64_t kCount = 1 << 17;
  Program p;
  p.batch = kCount;
  GraphBuilder b(p.graph);
  const ValueId x = b.parameter("x", {DType::kF32, {kCount}});
  p.inputs = {{"x", x, true}};
  const OpKind kinds[] = {OpKind::kExponential, OpKind::kLog,  OpKind::kTanh,  OpKind::kErf,
                          OpKind::kLog1p,       OpKind::kSqrt, OpKind::kRsqrt, OpKind::kLogistic};
  for (const OpKind kind : kinds)
    p.outputs.push_back({std::string(name_of(kind)), b.unary(kind, x)});
  auto engine = backend_->prepare(p);
  ASSERT_TRUE(engine.ok()) << engine.error().message();
  Tensor all = Tensor::empty({DType::kF32, {kCount}});
  for (int64_t i = 0; i < kCount; ++i) {
    const auto bits = static_cast<uint32_t>(i) << 15 | 0x2A5Bu;
    const float value = from_bits(bits);
    all.as<float>()[static_cast<size_t>(i)] = std::isnormal(value) ? value : 1.0f;
  }
  States states(1);
  StepOutputs outputs;
  ASSERT_TRUE((*engine)->step(0, states, {{all}}, outputs).ok());
  Capabilities declared = backend_->capabilities();
  for (size_t o = 0; o < p.outputs.size(); ++o) {
    const Op& op = p.graph.op(p.outputs[o].id);
    const std::vector<Tensor> in = {all};
    const OracleResult expected = eval_op(declared, op, in, nullptr);
    const OracleVerdict v = judge(expected, outputs[0][o]);
    double worst = 0;
    float at = 0;
    for (size_t i = 0; i < expected.value.size(); ++i) {
      const auto rounded = static_cast<float>(expected.value[i]);
      if (!std::isnormal(rounded)) continue;
      const double ulp = std::ldexp(1.0, std::ilogb(rounded) - 23);
      const double error = std::abs(outputs[0][o].as<float>()[i] - expected.value[i]) / ulp;
      if (error > worst) {
        worst = error;
        at = all.as<float>()[i];
      }
    }
    RecordProperty(p.outputs[o].name, std::to_string(worst));
    std::printf("  %-12s %.2f ulp at %a\n", p.outputs[o].name.c_str(), worst,
                static_cast<double>(at));
    EXPECT_EQ(v.outside, 0) << p.outputs[o].name << " of "
                            << all.as<float>()[static_cast<size_t>(v.worst_element)] << " is "
                            << v.subject << "; expected " << v.value << " within " << v.radius;
  }
}

}  // namespace
}  // namespace twinrun

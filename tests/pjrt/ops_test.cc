// Tests every op of the table as StableHLO: a real plugin runs it, and the result must be within
// the bound of the oracle for what the engine declares. Skipped if TWINRUN_PJRT_PLUGIN names no
// plugin.
#include <gtest/gtest.h>

#include <cstdlib>

#include "backends/oracle/oracle.h"
#include "backends/pjrt/pjrt_backend.h"
#include "tests/reference/op_cases.h"

namespace twinrun {
namespace {

// The cases of all op kinds that run on one core, as one program: operands are its inputs, results
// its outputs.
struct Together {
  Program program;
  std::vector<OpCase> cases;
  std::vector<Tensor> inputs;
};

Together together(DataClass data) {
  Together t;
  for (int kind = 0; kind < kOpKinds; ++kind) {
    const auto k = static_cast<OpKind>(kind);
    const OpClass of = class_of(k);
    if (k == OpKind::kParameter || of == OpClass::kRandom || of == OpClass::kCollective) continue;
    for (const OpCase& c : op_cases(k, data, 5)) {
      // XLA may keep bf16 intermediates in higher precision, by design
      // (xla_allow_excess_precision).
      bool narrow = c.op.type.dtype == DType::kBF16;
      bool empty = c.op.type.elements() == 0;
      for (const Tensor& x : c.inputs) {
        narrow = narrow || x.dtype() == DType::kBF16;
        empty = empty || x.elements() == 0;
      }
      if (narrow || empty) continue;
      const std::string number = std::to_string(t.cases.size());
      Op op = c.op;
      op.name = "case" + number;
      op.operands.clear();
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        Op parameter;
        parameter.kind = OpKind::kParameter;
        parameter.type = c.inputs[i].type();
        parameter.name = "x" + number + "_" + std::to_string(i);
        const ValueId id = t.program.graph.add(parameter);
        t.program.inputs.push_back({parameter.name, id, true});
        t.inputs.push_back(c.inputs[i]);
        op.operands.push_back(id);
      }
      t.program.outputs.push_back({op.name, t.program.graph.add(op)});
      t.cases.push_back(c);
    }
  }
  return t;
}

class XlaOpsSlow : public testing::TestWithParam<DataClass> {};

TEST_P(XlaOpsSlow, AreWhatTheOracleAllows) {
  const char* plugin = std::getenv("TWINRUN_PJRT_PLUGIN");
  if (plugin == nullptr) GTEST_SKIP() << "TWINRUN_PJRT_PLUGIN names no plugin";
  const auto backend = make_pjrt_backend({.plugin = plugin, .precision = DotPrecision::kF32});
  ASSERT_TRUE(backend.ok()) << backend.error().message();
  const Together t = together(GetParam());
  const auto engine = (*backend)->prepare(t.program);
  ASSERT_TRUE(engine.ok()) << engine.error().message();
  States states(1);
  StepOutputs outputs;
  const Status ran = (*engine)->step(0, states, {t.inputs}, outputs);
  ASSERT_TRUE(ran.ok()) << ran.error().message();
  const Capabilities declared = (*backend)->capabilities();
  for (size_t i = 0; i < t.cases.size(); ++i) {
    const OracleVerdict v =
        judge(eval_op(declared, t.cases[i].op, t.cases[i].inputs, nullptr), outputs[0][i]);
    EXPECT_EQ(v.outside, 0) << t.cases[i].name << ": [" << v.worst_element << "] is " << v.subject
                            << "; expected " << v.value << " within " << v.radius;
  }
}

INSTANTIATE_TEST_SUITE_P(Data, XlaOpsSlow,
                         testing::Values(DataClass::kNormal, DataClass::kPositive, DataClass::kWide,
                                         DataClass::kTies),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace twinrun

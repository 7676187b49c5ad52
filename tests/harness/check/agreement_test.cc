// Tests that `check --program` and `diagnose --program` give the same answer: for every opcode of
// HLO with every element type, and for the programs that were held against their users.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "harness/check/check.h"
#include "harness/check/opcodes.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

constexpr const char* kTypes[] = {"pred", "s4",  "s8",   "s16", "s32", "s64",    "u8",  "u16",
                                  "u32",  "u64", "bf16", "f16", "f32", "f8e5m2", "f64", "c64"};

std::string step_with(const std::string& type, const std::string& body) {
  return "HloModule jit_step\n\nsum {\n  a = " + type + "[] parameter(0)\n  b = " + type +
         "[] parameter(1)\n  ROOT c = " + type +
         "[] add(a, b)\n}\n\nENTRY main {\n  w = f32[4] parameter(0)\n  x = " + type +
         "[4] parameter(1)\n  " + body +
         "\n  loss = f32[] constant(1)\n  w2 = f32[4] add(w, w)\n"
         "  ROOT out = (f32[4], f32[]) tuple(w2, loss)\n}\n";
}

class Agreement : public ::testing::Test {
 protected:
  // What both say of a step; they must agree.
  Checked agreed(const std::string& text) {
    const std::string file = folder_ / "step.hlo";
    std::ofstream(file) << text;
    const auto checked = check_program({.program = file});
    const auto imported = import_program({.program = file});
    if (!checked) {  // the text cannot be read at all
      EXPECT_FALSE(imported) << text;
      return {};
    }
    const bool refused = std::ranges::any_of(checked->findings, [](const RuleFinding& f) {
      return f.severity == Severity::kError || f.id == "not-replayed";
    });
    EXPECT_EQ(refused, !imported.ok())
        << text << (imported.ok() ? "imported" : imported.error().message());
    return *checked;
  }
  Folder folder_;
};

TEST_F(Agreement, OnEveryOpcodeWithEveryType) {
  int taken = 0, refused = 0;
  for (const std::string_view opcode : check::known_opcodes()) {
    if (opcode == "parameter" || opcode == "tuple") continue;
    for (const char* type : kTypes) {
      for (const char* operands : {"(x)", "(x, x)"}) {
        std::string in = "h = " + std::string(type) + "[4] " + std::string(opcode) + operands;
        if (opcode == "constant")
          in = "h = " + std::string(type) + "[] constant(" +
               (std::string_view(type) == "pred" ? "true" : "1") + ")";
        if (opcode == "convert") in = "h = f32[4] convert(x)";
        if (opcode == "compare") in += ", direction=LT";
        if (opcode == "iota") in = "h = " + std::string(type) + "[4] iota(), iota_dimension=0";
        if (opcode == "broadcast" || opcode == "reverse" || opcode == "transpose" ||
            opcode == "sort" || opcode == "reduce")
          in += ", dimensions={0}";
        if (opcode == "sort" || opcode == "reduce") in += ", to_apply=sum";
        const Checked c = agreed(step_with(type, in));
        (c.step ? taken : refused) += 1;
      }
    }
  }
  EXPECT_GT(taken, 400);
  EXPECT_GT(refused, 1000);
}

// A u8 input is copied to a core by JAX and PyTorch/XLA; TensorFlow's infeed does not take it.
TEST_F(Agreement, AnInputOfU8IsAWarningAndIsDiagnosed) {
  const Checked c = agreed(step_with("u8", "h = f32[4] convert(x)"));
  EXPECT_TRUE(c.step);
  ASSERT_EQ(c.findings.size(), 1U);
  EXPECT_EQ(c.findings[0].id, "infeed-type");
  EXPECT_EQ(c.findings[0].severity, Severity::kWarning);
}

// A loop whose length depends on the data, and a sort that the importer does not have.
TEST_F(Agreement, WhatIsNotReplayedIsFound) {
  const Checked sort = agreed(step_with("c64", "h = c64[4] sort(x), dimensions={0}, to_apply=sum"));
  EXPECT_FALSE(sort.step);
  ASSERT_FALSE(sort.findings.empty());
  EXPECT_EQ(sort.findings[0].id, "not-replayed");
  EXPECT_FALSE(sort.findings[0].ops.empty());
  const std::string loop =
      "HloModule jit_step\n\nbody {\n  s = (f32[4]) parameter(0)\n  v = f32[4] "
      "get-tuple-element(s), index=0\n  d = f32[4] add(v, v)\n  ROOT t = (f32[4]) tuple(d)\n}\n\n"
      "until {\n  s = (f32[4]) parameter(0)\n  v = f32[4] get-tuple-element(s), index=0\n"
      "  e = f32[1] slice(v), slice={[0:1]}\n  f = f32[] reshape(e)\n  m = f32[] constant(9)\n"
      "  ROOT l = pred[] compare(f, m), direction=LT\n}\n\nENTRY main {\n"
      "  w = f32[4] parameter(0)\n  x = f32[4] parameter(1)\n  i = (f32[4]) tuple(x)\n"
      "  o = (f32[4]) while(i), condition=until, body=body\n  w2 = f32[4] get-tuple-element(o), "
      "index=0\n  loss = f32[] constant(1)\n  ROOT out = (f32[4], f32[]) tuple(w2, loss)\n}\n";
  const Checked c = agreed(loop);
  EXPECT_FALSE(c.step);
  ASSERT_EQ(c.findings.size(), 1U) << c.no_step;
  EXPECT_EQ(c.findings[0].id, "not-replayed");
  EXPECT_NE(c.findings[0].where.find(": o"), std::string::npos) << c.findings[0].where;
}

// What JAX writes for its own random numbers is no finding; the same ops of a user are.
TEST_F(Agreement, JaxsOwnWideIntegersAreNotHeldAgainstTheUser) {
  for (const bool jax : {true, false}) {
    const std::string meta =
        jax ? ", metadata={op_name=\"jit(step)/threefry/iota_2x32_shape\"}" : "";
    const Checked c = agreed(step_with(
        "f32", "i = u64[4] iota(), iota_dimension=0" + meta +
                   "\n  k = u64[] constant(32)\n  b = u64[4] broadcast(k), dimensions={}\n"
                   "  s = u64[4] shift-right-logical(i, b)" +
                   meta + "\n  n = u32[4] convert(s)" + meta));
    EXPECT_TRUE(c.step) << c.no_step;
    EXPECT_EQ(c.findings.size(), jax ? 0U : 1U);
    if (!jax) {
      EXPECT_EQ(c.findings.at(0).id, "wide-integer");
    }
  }
}

TEST_F(Agreement, ConstantsOfF64ThatBecomeNarrowerAreRight) {
  EXPECT_TRUE(
      agreed(step_with("f32", "k = f64[] constant(2)\n  n = f32[] convert(k)")).findings.empty());
  const Checked wide = agreed(step_with("f32", "k = f64[] constant(2)\n  n = f64[] add(k, k)"));
  ASSERT_FALSE(wide.findings.empty());
  EXPECT_EQ(wide.findings[0].id, "wide-dtype");
}

}  // namespace
}  // namespace twinrun

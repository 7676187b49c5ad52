// Tests how the values of two diagnoses are held against each other: programs that differ, inputs
// that differ, roundings that differ, and bounds that decide nothing.
#include "harness/module/compare_reports.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoints/container/safetensors.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

using Numbers = std::vector<float>;

// w - 0.5 * x, or whatever `body` makes of %w and %x.
std::string module_of(const std::string& body) {
  return fmt::format(
      "module @jit_step {{\n  func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> "
      "(tensor<4xf32>) {{\n"
      "    %half = stablehlo.constant dense<5.0e-01> : tensor<4xf32>\n"
      "    %four = stablehlo.constant dense<4.0e+00> : tensor<4xf32>\n"
      "    %far = stablehlo.constant dense<1.0e+09> : tensor<4xf32>\n"
      "{}    %new = stablehlo.subtract %w, %u : tensor<4xf32>\n"
      "    return %new : tensor<4xf32>\n  }}\n}}\n",
      body);
}
const std::string kHalf = "    %u = stablehlo.multiply %half, %x : tensor<4xf32>\n";
const std::string kFour = "    %u = stablehlo.multiply %four, %x : tensor<4xf32>\n";
// x + 1e9 - 1e9: no digit of x is left.
const std::string kFar =
    "    %s = stablehlo.add %x, %far : tensor<4xf32>\n"
    "    %u = stablehlo.subtract %s, %far : tensor<4xf32>\n";

// exp, which may err by 8 ulps.
const std::string kExp = "    %u = stablehlo.exponential %x : tensor<4xf32>\n";

const Numbers kW = {1, 2, 3, 4}, kX = {0.1f, -0.3f, 0.7f, 0.9f};

class TwoSteps : public testing::Test {
 protected:
  // A side of one step.
  StepFiles side(const std::string& name, const std::string& body, const Numbers& x,
                 const Numbers& result) {
    StepFiles files;
    files.module = folder_ / (name + ".mlir");
    std::ofstream(files.module) << module_of(body);
    files.values = {folder_ / (name + ".safetensors")};
    ArrayFile arrays;
    for (const auto& [array, numbers] : {std::pair{"argument/0", &kW}, std::pair{"argument/1", &x},
                                         std::pair{"result/0", &result}}) {
      Tensor t = Tensor::empty({DType::kF32, {static_cast<int64_t>(numbers->size())}});
      std::copy(numbers->begin(), numbers->end(), t.as<float>().begin());
      arrays.arrays.push_back(to_array(array, t));
    }
    const auto bytes = to_safetensors(arrays, files.values[0]);
    EXPECT_TRUE(bytes);
    std::ofstream(files.values[0], std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes->data()),
               static_cast<std::streamsize>(bytes->size()));
    files.arguments = {"w", "x"};
    files.results = {"new w"};
    files.next = {0};
    files.precision = "f32";
    return files;
  }
  ValuesApart compared(const StepFiles& a, const StepFiles& b) {
    auto v = compare_reports(a, b, nullptr);
    EXPECT_TRUE(v) << v.error().message();
    return v ? *v : ValuesApart{};
  }
  static Numbers updated(float rate, const Numbers& x = kX) {
    Numbers out;
    for (size_t i = 0; i < x.size(); ++i) out.push_back(kW[i] - rate * x[i]);
    return out;
  }
  const Folder folder_;
};

TEST_F(TwoSteps, OtherProgramsAreNamedWithTheirFactor) {
  const auto v = compared(side("a", kHalf, kX, updated(0.5f)), side("b", kFour, kX, updated(4)));
  EXPECT_EQ(v.verdict, VerdictClass::kProgram) << v.headline;
  ASSERT_EQ(v.results.size(), 2u);  // each side by the other's program
  EXPECT_EQ(v.results[0].outside, 4);
  EXPECT_NEAR(v.results[0].factor, 8, 1e-4);
  EXPECT_NEAR(v.results[0].relative, 0.875, 1e-4);
  EXPECT_GT(v.results[0].ratio, 1e4);
  EXPECT_NE(v.headline.find("4 of 4 elements of new w of step 0"), std::string::npos) << v.headline;
  EXPECT_NE(v.headline.find("side B's is 8 times side A's"), std::string::npos) << v.headline;
}

TEST_F(TwoSteps, AnotherRoundingIsNoise) {
  Numbers one;
  for (size_t i = 0; i < kX.size(); ++i) one.push_back(kW[i] - std::exp(kX[i]));
  Numbers other = one;
  other[1] = std::nextafter(other[1], 9.f);
  const auto v = compared(side("a", kExp, kX, one), side("b", kExp, kX, other));
  EXPECT_EQ(v.verdict, VerdictClass::kNoise) << v.headline;
  EXPECT_GT(v.update, 0);
  EXPECT_TRUE(v.results.empty());
}

TEST_F(TwoSteps, OtherInputsAreNamed) {
  Numbers other = kX;
  other[3] = 2;
  const auto v =
      compared(side("a", kHalf, kX, updated(0.5f)), side("b", kHalf, other, updated(0.5f, other)));
  EXPECT_EQ(v.verdict, VerdictClass::kProgram);
  ASSERT_EQ(v.inputs.size(), 1u);
  EXPECT_NE(v.headline.find("x of step 0"), std::string::npos) << v.headline;
}

TEST_F(TwoSteps, InputsThatAreRoundedOtherwiseAreHeldByThemselves) {
  Numbers other = kX;
  other[3] = std::nextafter(other[3], 9.f);
  const auto v =
      compared(side("a", kHalf, kX, updated(0.5f)), side("b", kFour, other, updated(4, other)));
  EXPECT_EQ(v.verdict, VerdictClass::kProgram);
  EXPECT_TRUE(v.inputs.empty());
  EXPECT_FALSE(v.notes.empty());
}

TEST_F(TwoSteps, BoundsThatHoldAnythingDecideNothing) {
  const auto v = compared(side("a", kFar, kX, updated(1)), side("b", kFar, kX, kW));
  EXPECT_EQ(v.verdict, VerdictClass::kInconclusive) << v.headline;
  EXPECT_GT(v.undecided, 0.9);
}

// Without rounding two programs are far apart whose bounds hold anything.
TEST_F(TwoSteps, WhatIsMeantNeedsNoBounds) {
  const std::string half =
      "    %s = stablehlo.add %x, %far : tensor<4xf32>\n"
      "    %t = stablehlo.subtract %s, %far : tensor<4xf32>\n"
      "    %u = stablehlo.multiply %half, %t : tensor<4xf32>\n";
  const auto v = compared(side("a", kFar, kX, updated(0)), side("b", half, kX, kX));
  EXPECT_EQ(v.verdict, VerdictClass::kProgram) << v.headline;
  ASSERT_TRUE(v.meant);
  EXPECT_NEAR(v.meant->relative, 0.5, 1e-12);
  EXPECT_NE(v.headline.find("side B's is 0.5 times side A's"), std::string::npos) << v.headline;
}

TEST_F(TwoSteps, AConstantThatDiffersALittleIsOpen) {
  const std::string other =
      "    %near = stablehlo.constant dense<5.00005e-01> : tensor<4xf32>\n"
      "    %u = stablehlo.multiply %near, %x : tensor<4xf32>\n";
  TwoReports both{
      {"a", VerdictClass::kNoise, "", "", "", true, {}},
      {"b", VerdictClass::kNoise, "", "", "", true, {}},
      compared(side("a", kHalf, kX, updated(0.5f)), side("b", other, kX, updated(0.500005f)))};
  EXPECT_NEAR(both.values->meant->relative, 1e-5, 1e-6);
  const Report report = report_of(both);
  EXPECT_EQ(report.verdict, VerdictClass::kInconclusive) << report.headline;
  ASSERT_EQ(report.next_steps.size(), 1u);
  EXPECT_NE(report.next_steps[0].find("a constant, a setting"), std::string::npos);
}

TEST_F(TwoSteps, ResultsArePairedByTheirNames) {
  const auto a = side("a", kHalf, kX, updated(0.5f));
  auto b = side("b", kHalf, kX, updated(0.5f));
  EXPECT_EQ(compared(a, b).verdict, VerdictClass::kNoise);
  b.arguments = {"w", "y"};
  const auto v = compared(a, b);
  EXPECT_EQ(v.verdict, VerdictClass::kInconclusive);
  EXPECT_NE(v.headline.find("only side A has x, only side B has y"), std::string::npos);
}

TEST_F(TwoSteps, TheGravestVerdictLeads) {
  TwoReports both{{"a", VerdictClass::kNoise, "", "", "", true, {}},
                  {"b", VerdictClass::kNoise, "", "", "", true, {}},
                  compared(side("a", kHalf, kX, updated(0.5f)), side("b", kFour, kX, updated(4)))};
  EXPECT_EQ(both.verdict(), VerdictClass::kProgram);
  const Report report = report_of(both);
  EXPECT_EQ(report.verdict, VerdictClass::kProgram);
  EXPECT_NE(report.headline.find("the two sides do not compute the same"), std::string::npos);
  EXPECT_EQ(report.answers.program.outcome, Answer::Outcome::kNo);
  both.b.verdict = VerdictClass::kEngineBug;
  EXPECT_EQ(both.side(), "B");
}

TEST_F(TwoSteps, ReportsNameOnlyFilesOfTheirFolder) {
  const auto read = [&](const std::string& step) {
    const std::string path = folder_ / "report.json";
    std::ofstream(path) << R"({"verdict": {"class": "NOISE", "headline": ""}, "step": )" << step
                        << "}";
    return read_side_report(path, "a");
  };
  const std::string right =
      R"({"module": "whole.mlir", "values": ["step.0.safetensors"], "arguments": ["w"], "results": ["new w"],
          "next": [0], "loss": -1, "precision": "f32"})";
  ASSERT_TRUE(read(right)) << read(right).error().message();
  EXPECT_EQ(read(right)->step->module, folder_ / "whole.mlir");
  for (const auto& [from, to] :
       {std::pair{"whole.mlir", "../whole.mlir"}, std::pair{"[0]", "[1]"},
        std::pair{"[0]", "[0, -1, 0]"}, std::pair{"\"loss\": -1", "\"loss\": 1e300"},
        std::pair{"\"f32\"", "7"}}) {
    std::string wrong = right;
    wrong.replace(wrong.find(from), std::string(from).size(), to);
    EXPECT_FALSE(read(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace twinrun

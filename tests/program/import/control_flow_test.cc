// Tests of loops, conditionals and windows of imported steps: what is unrolled, how its ops are
// named, what is refused, and that hostile loops end soon.
#include <fmt/format.h>

#include <chrono>

#include "tests/program/import/texts.h"

namespace twinrun::import_tests {
namespace {

int64_t count(const Program& p, OpKind kind) {
  return std::ranges::count(p.graph.ops(), kind, &Op::kind);
}

// A step whose state w is the value %next, which the loop of HLO text `body` over (s32, f32[4])
// makes from w. `condition` reads %i.
std::string hlo_loop(const std::string& body, const std::string& condition) {
  return "HloModule m\nbody {\n  p = (s32[], f32[4]) parameter(0)\n  i = s32[] "
         "get-tuple-element(p), "
         "index=0\n  h = f32[4] get-tuple-element(p), index=1\n  one = s32[] constant(1)\n  j = "
         "s32[] add(i, one)\n" +
         body +
         "\n  ROOT t = (s32[], f32[4]) tuple(j, g)\n}\ncond {\n  p = (s32[], f32[4]) "
         "parameter(0)\n  "
         "i = s32[] get-tuple-element(p), index=0\n  h = f32[4] get-tuple-element(p), index=1\n" +
         condition +
         "\n}\nENTRY main {\n  w = f32[4] parameter(0)\n  x = f32[4] parameter(1)\n  zero = s32[] "
         "constant(0)\n  start = (s32[], f32[4]) tuple(zero, w)\n  end = (s32[], f32[4]) "
         "while(start), condition=cond, body=body, metadata={op_name=\"jit(step)/layers/while\"}\n "
         " "
         "next = f32[4] get-tuple-element(end), index=1\n  loss = f32[] constant(0.5)\n  ROOT t = "
         "(f32[4], f32[]) tuple(next, loss)\n}\n";
}
std::string counted(const std::string& body, int64_t times) {
  return hlo_loop(body, fmt::format("  n = s32[] constant({})\n  ROOT go = pred[] compare(i, n), "
                                    "direction=LT",
                                    times));
}

TEST(Loops, AreUnrolledWithTheirIterationInTheNames) {
  const auto step = import_text(counted(
      "  g = f32[4] add(h, h), metadata={op_name=\"jit(step)/layers/while/body/closed_call/add\" "
      "source_file=\"/home/u/model.py\" source_line=20}",
      4));
  ASSERT_TRUE(step) << step.error().message();
  const auto names = names_of(step->program);
  for (const char* name : {"layers/add[0]@model.py:20", "layers/add[3]@model.py:20"})
    EXPECT_TRUE(has(names, name)) << name;
  EXPECT_FALSE(has(names, "layers/add[4]@model.py:20"));
  EXPECT_EQ(count(step->program, OpKind::kAdd), 4) << "the counter must be gone";
}

TEST(Loops, FromJaxHaveTheNamesOfTheirPlaces) {
  for (const char* file : {"forms_loops.hlo", "forms_loops.mlir"}) {
    TWINRUN_NEEDS_JAX_STEP(file);
    const auto step = import_text(fixture(file));
    ASSERT_TRUE(step) << step.error().message();
    const auto names = names_of(step->program);
    const auto some = [&](const std::string& begin) {
      return std::ranges::any_of(names, [&](const auto& n) { return n.starts_with(begin); });
    };
    for (const char* name :
         {"forwards/dot_general[0]@forms.py:", "forwards/dot_general[3]@forms.py:",
          "differentiated/dot_general.grad[3]@forms.py:", "outer/dot_general[2][1]@forms.py:"})
      EXPECT_TRUE(some(name)) << file << " " << name;
    EXPECT_FALSE(some("forwards/dot_general[4]"));
    for (const std::string& name : names) {
      EXPECT_EQ(name.find("while/body"), std::string::npos) << name;
      EXPECT_EQ(name.find("closed_call"), std::string::npos) << name;
    }
  }
}

// Four rows are written one after the other and read again: nothing is left but the four values.
TEST(Loops, RowsThatWereWrittenArePassedOn) {
  const auto step =
      import_text(counted("  row = f32[1] dynamic-slice(h, i), dynamic_slice_sizes={1}\n  twice = "
                          "f32[1] add(row, row)\n"
                          "  g = f32[4] dynamic-update-slice(h, twice, i)",
                          4));
  ASSERT_TRUE(step) << step.error().message();
  const Program& p = step->program;
  EXPECT_EQ(count(p, OpKind::kSlice), 4);
  EXPECT_EQ(count(p, OpKind::kAdd), 4);
  EXPECT_EQ(count(p, OpKind::kConcatenate), 3);
  EXPECT_EQ(count(p, OpKind::kGather), 0);
}

TEST(Loops, ThatCannotBeUnrolledAreRefused) {
  const std::string body = "  g = f32[4] add(h, h)";
  const std::string data = error_of(hlo_loop(
      body,
      "  first = f32[1] slice(h), slice={[0:1]}\n  scalar = f32[] reshape(first)\n  limit = "
      "f32[] constant(9)\n  ROOT go = pred[] compare(scalar, limit), direction=LT"));
  EXPECT_NE(data.find("while whose condition (line 18) depends on data; allowed: a number of"),
            std::string::npos)
      << data;
  EXPECT_NE(error_of(hlo_loop("  g = f32[4] add(h, h)\n  k = s32[] subtract(j, one)",
                              "  ROOT go = pred[] constant(true)"))
                .find("more than 200000 ops once calls are inlined and loops are unrolled"),
            std::string::npos);
  std::string still = hlo_loop("  g = f32[4] copy(h)", "  ROOT go = pred[] constant(true)");
  still.replace(still.find("tuple(j, g)"), 11, "tuple(i, g)");
  EXPECT_NE(error_of(still).find("while that never ends"), std::string::npos);
  EXPECT_NE(error_of(counted(body, 2'000'000'000)).find("reached in iteration ["),
            std::string::npos);
  // An op without a rule is listed once and not in every iteration.
  const std::string fft =
      error_of(counted("  g = f32[4] fft(h), fft_type=RFFT, fft_length={4}", 9));
  EXPECT_NE(fft.find("1 instruction cannot be imported"), std::string::npos) << fft;
}

// Loops in loops, 1000^30 iterations: the limit of ops is reached and nothing else.
TEST(Loops, NestedWithoutEndStopAtTheLimit) {
  std::string text = "  %a0 = stablehlo.constant dense<0> : tensor<i32>\n";
  for (int i = 0; i < 30; ++i) {
    text += fmt::format(
        "  %r{0}:2 = stablehlo.while(%i{0} = %a0, %h{0} = {1}) : tensor<i32>, tensor<4xf32>\n  "
        "cond "
        "{{\n    %n{0} = stablehlo.constant dense<1000> : tensor<i32>\n    %p{0} = "
        "stablehlo.compare LT, %i{0}, %n{0}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\n   "
        " "
        "stablehlo.return %p{0} : tensor<i1>\n  }} do {{\n    %one{0} = stablehlo.constant "
        "dense<1> "
        ": tensor<i32>\n    %j{0} = stablehlo.add %i{0}, %one{0} : tensor<i32>\n",
        i, i == 0 ? "%w" : fmt::format("%h{}", i - 1));
    const std::string inner =
        i == 29 ? fmt::format("    %s = stablehlo.add %h{}, %x : tensor<4xf32>\n", i) : "";
    text += inner;
  }
  // Regions close from the inside out.
  std::string closing;
  for (int i = 29; i >= 0; --i)
    closing += fmt::format("    stablehlo.return %j{0}, {1} : tensor<i32>, tensor<4xf32>\n  }}\n",
                           i, i == 29 ? "%s" : fmt::format("%r{}#1", i + 1));
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of(
      "module @step {\n  func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> "
      "(tensor<4xf32>, tensor<f32>) {\n" +
      text + closing +
      "    %loss = stablehlo.constant dense<5.000000e-01> : tensor<f32>\n    return %r0#1, %loss : "
      "tensor<4xf32>, tensor<f32>\n  }\n}\n");
  EXPECT_NE(error.find("more than 200000 ops"), std::string::npos) << error;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 60) << "1000^30 iterations would not end";
}

TEST(Conditionals, OnKnownNumbersAreTheBranchThatIsTaken) {
  for (const auto& [index, adds] : {std::pair{0, 1}, {1, 0}, {7, 0}}) {
    const auto step = import_text(fmt::format(
        "module @step {{\n  func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> "
        "(tensor<4xf32>, tensor<f32>) {{\n  %i = stablehlo.constant dense<{}> : tensor<i32>\n"
        "  %next = \"stablehlo.case\"(%i) ({{\n    %s = stablehlo.add %w, %x : tensor<4xf32>\n    "
        "stablehlo.return %s : tensor<4xf32>\n  }}, {{\n    %m = stablehlo.multiply %w, %x : "
        "tensor<4xf32>\n    stablehlo.return %m : tensor<4xf32>\n  }}) : (tensor<i32>) -> "
        "tensor<4xf32>\n    %loss = stablehlo.constant dense<5.000000e-01> : tensor<f32>\n    "
        "return "
        "%next, %loss : tensor<4xf32>, tensor<f32>\n  }}\n}}\n",
        index));
    ASSERT_TRUE(step) << step.error().message();
    EXPECT_EQ(count(step->program, OpKind::kAdd), adds);
    EXPECT_EQ(count(step->program, OpKind::kMultiply), 1 - adds);
    EXPECT_EQ(count(step->program, OpKind::kSelect), 0);
    EXPECT_TRUE(step->notes.empty());
  }
}

TEST(Windows, OfAConstantStartAreConcatenations) {
  const auto step = import_text(
      "HloModule m\nset {\n  a = f32[] parameter(0)\n  ROOT b = f32[] parameter(1)\n}\nENTRY main "
      "{\n "
      " w = f32[4] parameter(0)\n  x = f32[4] parameter(1)\n  one = s32[1] constant({1})\n  part = "
      "f32[3] slice(w), slice={[0:3]}\n  next = f32[4] scatter(w, one, part), "
      "update_window_dims={0}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, "
      "index_vector_dim=0, unique_indices=true, to_apply=set\n  loss = f32[] constant(0.5)\n  ROOT "
      "t "
      "= (f32[4], f32[]) tuple(next, loss)\n}\n");
  ASSERT_TRUE(step) << step.error().message();
  EXPECT_EQ(count(step->program, OpKind::kConcatenate), 1);
  EXPECT_EQ(count(step->program, OpKind::kScatterAdd), 0);
  EXPECT_EQ(count(step->program, OpKind::kSelect), 0);
}

TEST(Loops, DamagedTextsFromJaxAreAnswered) {
  for (const char* file : {"forms_loops.hlo", "forms_windows.hlo", "forms_loops.mlir"})
    TWINRUN_NEEDS_JAX_STEP(file);
  const std::vector<std::string> words = {
      "while", "condition=", "body=", "region 1", "get-tuple-element", "index=9",     "-1", "{",
      "}",     "(",          ")",     "s32[]",    "constant(7)",       "parameter(0)"};
  break_text(fixture("forms_loops.hlo"), words, 60);
  break_text(fixture("forms_windows.hlo"), words, 60);
  break_text(fixture("forms_loops.mlir"),
             {"stablehlo.while(", "cond {", "do {", "%iterArg", "%iterArg = %0", "tensor<i32>", "}",
              "({", "})", "stablehlo.return", "call @", "#1", ":2", "-1", "9"},
             60);
}

}  // namespace
}  // namespace twinrun::import_tests

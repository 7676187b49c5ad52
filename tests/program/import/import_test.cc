// Tests of the import of HLO text: what the parser accepts and refuses, where errors point, how ops
// are named, and what it does with damaged text.
#include "program/import/import.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "program/import/names.h"
#include "tests/program/import/texts.h"

namespace twinrun::import_tests {
namespace {

// A step with one state variable w and one input x. `body` must define "next", the next value of w.
std::string step_of(const std::string& body, const std::string& before = "") {
  return "HloModule m\n" + before +
         "\nENTRY main {\n  w = f32[4]{0} parameter(0)\n  x = f32[4]{0} parameter(1)\n" + body +
         "\n  loss = f32[] constant(0.5)\n  ROOT t = (f32[4]{0}, f32[]) tuple(next, loss)\n}\n";
}

TEST(HloParser, TakesBothWaysOfPrinting) {
  for (const char* add : {"next = f32[4]{0} add(w, x)",
                          "%next = f32[4]{0} add(f32[4]{0} %w, /*index=1*/f32[4]{0} %x)"}) {
    const auto step = import_text(step_of(add));
    ASSERT_TRUE(step) << step.error().message();
    EXPECT_EQ(step->program.state.size(), 1u);
    EXPECT_EQ(step->program.inputs.size(), 1u);
    EXPECT_EQ(step->program.graph.op(step->program.state[0].next).kind, OpKind::kAdd);
  }
}

TEST(HloParser, ErrorsNameTheLineAndWhatIsAllowed) {
  EXPECT_NE(error_of("{\"state\": []}").find("step:1: '{\"state\": []}'; allowed: HLO text"),
            std::string::npos);
  EXPECT_NE(error_of(step_of("  next = f32[4] add(w, y)"))
                .find("step:6: 'y' is not an earlier instruction"),
            std::string::npos);
  EXPECT_NE(
      error_of(step_of("  next = f32[<=4] add(w, x)")).find("step:6: a shape with a dimension of"),
      std::string::npos);
  EXPECT_NE(error_of(step_of("  next = f32[4] add(w, x")).find("step:"), std::string::npos);
  EXPECT_NE(error_of("HloModule m\nENTRY main {\n").find("is not closed"), std::string::npos);
  EXPECT_NE(
      error_of("HloModule m\nENTRY main {\n a = f32[99999999999] parameter(0)\n}").find("at most"),
      std::string::npos);
}

TEST(Import, ListsAllThatItLacksAtOnce) {
  const std::string error =
      error_of(step_of("  a = f32[4]{0} acosh(w)\n  k = u32[2]{0} constant({1, 2})\n  r = "
                       "(u32[2]{0}, u32[4]{0}) rng-bit-generator(k), "
                       "algorithm=rng_default\n  b = f32[4]{0} acosh(x)\n  s = f32[4]{0} "
                       "custom-call(w), custom_call_target=\"TopK\"\n"
                       "  next = f32[4]{0} add(a, b)"));
  EXPECT_NE(error.find("4 instructions cannot be imported"), std::string::npos) << error;
  EXPECT_NE(error.find("step:6: acosh (f32[4]); docs/guides/import.md lists the opcodes"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("(2 times)"), std::string::npos) << error;
  EXPECT_NE(error.find("custom-call of \"TopK\""), std::string::npos) << error;
  EXPECT_EQ(error.find("add"), std::string::npos)
      << "what follows from a refused op is no error of its own\n"
      << error;
}

TEST(Import, DeclaredShapesAreHeldAgainstWhatOperandsGive) {
  EXPECT_NE(error_of(step_of("  b = f32[5]{0} add(w, x)\n  next = f32[4]{0} add(w, x)"))
                .find("declares f32[5], but its operands give f32[4]"),
            std::string::npos);
  EXPECT_NE(error_of(step_of("  next = f32[4]{0} reshape(w), dimensions={}\n  c = f32[2,4] "
                             "broadcast(w), dimensions={7}"))
                .find("dimensions=[7]"),
            std::string::npos);
  EXPECT_NE(error_of(step_of("  c = f32[4]{0} constant({...})\n  next = f32[4] add(w, c)"))
                .find("elided literal"),
            std::string::npos);
}

TEST(Import, CallsThatNeverEndAreRefused) {
  const std::string itself =
      "f {\n  a = f32[4] parameter(0)\n  ROOT b = f32[4] call(a), to_apply=f\n}\n";
  EXPECT_NE(
      error_of(step_of("  next = f32[4] call(w), to_apply=f", itself)).find("is defined later"),
      std::string::npos);
  // Each function calls the one before it twice: 2^40 instructions once they are inlined.
  std::string doubling = "f0 {\n  a = f32[4] parameter(0)\n  ROOT b = f32[4] add(a, a)\n}\n";
  for (int i = 1; i <= 40; ++i) {
    const std::string f = "f" + std::to_string(i), g = "f" + std::to_string(i - 1);
    doubling += f + " {\n  a = f32[4] parameter(0)\n  b = f32[4] call(a), to_apply=" + g +
                "\n  ROOT c = f32[4] call(b), to_apply=" + g + "\n}\n";
  }
  EXPECT_NE(error_of(step_of("  next = f32[4] call(w), to_apply=f40", doubling))
                .find("once calls are inlined"),
            std::string::npos);
}

TEST(Import, LiteralsBecomeConstantsOrInputs) {
  const auto step = import_text(step_of(
      "  c = f32[4]{0} constant({1, 2.5, -inf, nan})\n  d = f32[4]{0} constant({3, 3, 3, 3})\n"
      "  e = f32[4]{0} add(c, d)\n  next = f32[4]{0} add(w, e)"));
  ASSERT_TRUE(step) << step.error().message();
  ASSERT_EQ(step->literals.size(), 1u);
  EXPECT_EQ(step->literals.begin()->second.as<float>()[1], 2.5f);
  EXPECT_EQ(step->program.inputs.size(), 2u);
}

TEST(Import, NamesAreTheUsersPlaces) {
  const SourcePath p = source_path("jit(step)/transpose(jvp(dense1))/dot_general");
  EXPECT_EQ(p.path, "dense1/dot_general");
  EXPECT_TRUE(p.gradient);
  EXPECT_EQ(source_path("jit(step)/jvp(jit(log_softmax))/reduce_max").path,
            "log_softmax/reduce_max");
  EXPECT_EQ(source_path("jit(step)/jvp()/bqhd,bkhd->bhqk/dot_general").path,
            "bqhd_bkhd->bhqk/dot_general");
  const auto step = import_text(fixture("mlp_momentum.hlo"));
  ASSERT_TRUE(step) << step.error().message();
  const auto names = names_of(step->program);
  for (const char* name :
       {"dense1/dot_general@make_fixtures.py:38", "dense1/add@make_fixtures.py:38",
        "dense2/dot_general.grad@make_fixtures.py:38", "dense1/relu/max@make_fixtures.py:120",
        "sub@make_fixtures.py:58"})
    EXPECT_TRUE(has(names, name)) << name;
}

TEST(Import, GradientsOfConvolutionsAreOurs) {
  const auto step = import_text(fixture("cnn_strided.hlo"));
  ASSERT_TRUE(step) << step.error().message();
  const auto two = import_text(fixture("cnn_max_pool.hlo"));
  ASSERT_TRUE(two) << two.error().message();
  const auto count = [](const Program& p, OpKind kind) {
    return std::ranges::count(p.graph.ops(), kind, &Op::kind);
  };
  EXPECT_EQ(count(two->program, OpKind::kConvolutionInputGrad), 1);
  EXPECT_EQ(count(two->program, OpKind::kConvolutionKernelGrad), 2);
  EXPECT_EQ(count(two->program, OpKind::kSelectAndScatter), 2);
  EXPECT_EQ(count(step->program, OpKind::kConvolutionKernelGrad), 2);  // one of them in groups
}

const auto underlined = [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace(name, '.', '_');
  return name;
};

class TextOf : public testing::TestWithParam<const char*> {};

TEST_P(TextOf, AStepStaysTheSame) {
  const std::string file = std::string(GetParam()) + ".hlo";
  TWINRUN_NEEDS_JAX_STEP(file);
  const auto once = import_text(fixture(file)), again = import_text(fixture(file));
  ASSERT_TRUE(once) << once.error().message();
  EXPECT_EQ(to_text(once->program), to_text(again->program));
}

INSTANTIATE_TEST_SUITE_P(, TextOf, testing::Values("mlp_sgd", "mlp_adam", "transformer", "forms"),
                         underlined);
INSTANTIATE_TEST_SUITE_P(FromJax, TextOf, testing::Values("forms_random", "forms_integers"),
                         underlined);

// What JAX adds for donated and sharded arguments has no meaning on one core.
TEST(Import, AliasesDonorsAndShardingsAreIgnored) {
  const auto step = import_text(
      "HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: "
      "(1, {}, must-alias) }, buffer_donor={ (0, {}), (2, {}) }, "
      "allow_spmd_sharding_propagation_to_parameters={false,true}, "
      "frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<[\"x\"=1]>}}\n\nENTRY main {\n  w = "
      "f32[4]{0} parameter(0), sharding={replicated}, "
      "frontend_attributes={xla.sdy.sharding=\"#sdy.sharding<@mesh, [{}]>\"}\n  q = f32[] "
      "parameter(1), sharding={maximal device=0}, metadata={op_name=\"opt_state[0].mu['a/b']\"}\n "
      " b = f32[4]{0} broadcast(q), dimensions={}\n  s = f32[4]{0} add(w, b), "
      "sharding={devices=[1]<=[1]}\n  ROOT t = (f32[4]{0}, f32[], f32[]) tuple(s, q, q)\n}\n");
  ASSERT_TRUE(step) << step.error().message();
  ASSERT_EQ(step->program.state.size(), 2u);
  EXPECT_EQ(step->program.state[1].name, "opt_state/0/mu/a/b");
}

std::string integer_step(const std::string& body) {
  return "HloModule m\n\nENTRY main {\n  w = f32[4]{0} parameter(0)\n  u = u32[4]{0} "
         "parameter(1)\n" +
         body +
         "\n  next = f32[4]{0} add(w, w)\n  loss = f32[] constant(0.5)\n  ROOT t = (f32[4]{0}, "
         "f32[], f32[4]{0}) tuple(next, loss, r)\n}\n";
}

// 64-bit integers are taken where ranges show that 32 bits hold them: the counters of jax.random.
TEST(Import, WideIntegersMustFit) {
  const std::string counted =
      "  i = u64[4]{0} iota(), iota_dimension=0\n  c = u64[] constant(1000000000)\n  cs = "
      "u64[4]{0} "
      "broadcast(c), dimensions={}\n  p = u64[4]{0} multiply(i, cs)\n";
  const std::string result = "  r = f32[4]{0} convert(p)";
  EXPECT_EQ(error_of(integer_step(counted + result)), "");
  EXPECT_NE(error_of(integer_step(counted + "  q = u64[4]{0} add(p, p)\n" + result))
                .find("add of u64, whose numbers may not fit in 32 bits"),
            std::string::npos);
  EXPECT_NE(error_of(integer_step("  x = s64[4]{0} convert(u)\n  r = f32[4]{0} convert(x)"))
                .find("convert of s64, whose numbers may not fit"),
            std::string::npos);
  EXPECT_NE(error_of(integer_step("  c = s64[] constant(3000000000)\n  x = s64[4]{0} broadcast(c), "
                                  "dimensions={}\n  r = f32[4]{0} convert(x)"))
                .find("the literal '3000000000'"),
            std::string::npos);
  EXPECT_EQ(error_of(integer_step("  c = f64[] constant(0.1)\n  f = f32[] convert(c)\n  r = "
                                  "f32[4]{0} broadcast(f), dimensions={}")),
            "");
  EXPECT_NE(error_of(integer_step("  c = f64[] constant(0.1)\n  d = f64[] add(c, c)\n  f = f32[] "
                                  "convert(d)\n  r = f32[4]{0} broadcast(f), dimensions={}"))
                .find("add of f64"),
            std::string::npos);
}

TEST(Import, SortsByComparisonsOfOneElementWithTheOther) {
  const auto sorted = [](const std::string& root) {
    std::string text = integer_step(
        "  r = f32[4]{0} sort(w), dimensions={0}, is_stable=true, "
        "to_apply=less");
    text.insert(text.find("ENTRY"),
                "less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  "
                "m = f32[] maximum(a, b)\n  ROOT c = pred[] " +
                    root + "\n}\n\n");
    return error_of(text);
  };
  EXPECT_EQ(sorted("compare(a, b), direction=LT"), "");
  EXPECT_EQ(sorted("compare(b, a), direction=GT, type=TOTALORDER"), "");
  for (const char* root : {"compare(a, a), direction=LT", "compare(a, b), direction=EQ",
                           "compare(m, b), direction=LT"})
    EXPECT_NE(sorted(root).find("sort by another comparison"), std::string::npos) << root;
}

class BrokenText : public testing::TestWithParam<const char*> {};

TEST_P(BrokenText, IsAnsweredNotObeyed) {
  TWINRUN_NEEDS_JAX_STEP(GetParam());
  const std::vector<std::string> words = {"f32",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          "(",
                                          ")",
                                          ",",
                                          "=",
                                          "-1",
                                          "0",
                                          "99999999999999999999",
                                          "2147483648",
                                          "ROOT",
                                          "ENTRY main",
                                          "to_apply=",
                                          "dimensions={0,1,2,3}",
                                          "window={size=0x0}",
                                          "s32",
                                          "pred",
                                          "\"",
                                          "/*",
                                          "u8",
                                          "u64",
                                          "sort",
                                          "shift-left"};
  break_text(fixture(GetParam()), words, 300);
}

INSTANTIATE_TEST_SUITE_P(, BrokenText, testing::Values("mlp_sgd.hlo", "cnn_max_pool.hlo"),
                         underlined);
INSTANTIATE_TEST_SUITE_P(FromJax, BrokenText, testing::Values("forms_integers.hlo"), underlined);

}  // namespace
}  // namespace twinrun::import_tests

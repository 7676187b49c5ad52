// Tests of optimization barriers in a text: wherever one is inserted, the text still means the
// same, and excerpts of it are steps of their own.
#include "program/import/barriers.h"

#include <numeric>

#include "tests/program/import/texts.h"

namespace twinrun::import_tests {
namespace {

std::vector<int> all_of(const BarrierText& text) {
  std::vector<int> out(text.definitions().size());
  std::iota(out.begin(), out.end(), 0);
  return out;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// A call, a loop, values that are defined together, a reduction with a region, and an op in its
// generic form.
const std::string kForms = R"(module @step attributes {mhlo.num_replicas = 1 : i32} {
  func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> (tensor<4xf32>, tensor<f32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = call @twice(%w) : (tensor<4xf32>) -> tensor<4xf32> loc("call")
    %1:2 = stablehlo.while(%i = %c, %a = %0) : tensor<i32>, tensor<4xf32>
     cond {
      %5 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %5 : tensor<i1>
    } do {
      %5 = stablehlo.add %i, %one : tensor<i32>
      %6 = stablehlo.multiply %a, %x : tensor<4xf32>
      stablehlo.return %5, %6 : tensor<i32>, tensor<4xf32>
    }
    %2 = stablehlo.reduce(%1#1 init: %zero) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
     reducer(%p: tensor<f32>, %q: tensor<f32>)  {
      %5 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    } loc("sum"("train.py":7:3))
    %3, %4 = stablehlo.optimization_barrier %1#1, %w : tensor<4xf32>, tensor<4xf32>
    %5 = "stablehlo.add"(%3, %4) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %5, %2 : tensor<4xf32>, tensor<f32>
  }
  func.func private @twice(%v: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %v, %v : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
)";

class Barriers : public testing::TestWithParam<const char*> {};

TEST_P(Barriers, LeaveTheMeaningAfterEveryLine) {
  const std::string name = GetParam(), text = fixture(name);
  const auto parsed = BarrierText::parse(text, name);
  ASSERT_TRUE(parsed) << parsed.error().message();
  const auto original = import_text(text);
  ASSERT_TRUE(original) << original.error().message();
  const Digest meaning = digest(original->program);
  ASSERT_GT(parsed->definitions().size(), 20u);
  EXPECT_EQ(parsed->with_barriers({}), text);
  const std::vector<int> all = all_of(*parsed);
  std::vector<std::vector<int>> sets = {all};
  // Each line of a small text; of a large one a sample, so that the test stays fast.
  const int each = std::max(1, static_cast<int>(all.size()) / 40);
  for (int i = 0; i < static_cast<int>(all.size()); i += each) sets.push_back({i});
  for (const std::vector<int>& set : sets) {
    const std::string edited = parsed->with_barriers(set);
    EXPECT_EQ(count_of(edited, "stablehlo.optimization_barrier"),
              set.size() + count_of(text, "stablehlo.optimization_barrier"));
    const auto again = import_text(edited);
    ASSERT_TRUE(again) << again.error().message() << "\n"
                       << parsed->definitions()[static_cast<size_t>(set[0])].value;
    EXPECT_EQ(digest(again->program), meaning)
        << parsed->definitions()[static_cast<size_t>(set[0])].value;
  }
}

TEST_P(Barriers, LetEveryOpOfMainBeAModule) {
  const auto parsed = BarrierText::parse(fixture(GetParam()), GetParam());
  ASSERT_TRUE(parsed);
  const int each = std::max(1, static_cast<int>(parsed->definitions().size()) / 40);
  for (int i = 0; i < static_cast<int>(parsed->definitions().size()); i += each) {
    const DefinedOp& d = parsed->definitions()[static_cast<size_t>(i)];
    if (!d.in_main) continue;
    const Excerpt excerpt = parsed->excerpt({i});
    StepBinding binding;
    for (const auto& a : excerpt.arguments) binding.inputs.push_back(a.name);
    binding.loss = static_cast<int64_t>(excerpt.results.size());
    const auto module = parse_program(excerpt.text, "excerpt");
    ASSERT_TRUE(module) << module.error().message() << "\n" << excerpt.text.substr(0, 2000);
    const auto step = import_step(*module, binding);
    ASSERT_TRUE(step) << step.error().message() << "\n" << d.opcode;
    EXPECT_EQ(step->program.outputs.size(), excerpt.results.size() + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(, Barriers,
                         testing::Values("mlp_sgd.mlir", "mlp_momentum.mlir", "mlp_adam.mlir",
                                         "cnn_max_pool.mlir", "cnn_batch_norm.mlir",
                                         "cnn_strided.mlir", "layer_norm_mlp.mlir",
                                         "transformer.mlir", "embedding_bag.mlir", "recurrent.mlir",
                                         "forms.mlir"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(BarrierText, StandsAfterCallsAndLoopsAndInThem) {
  const auto text = BarrierText::parse(kForms, "forms.mlir");
  ASSERT_TRUE(text) << text.error().message();
  std::vector<std::string> values, labels;
  for (const DefinedOp& d : text->definitions()) {
    values.push_back(d.value);
    labels.push_back(d.label);
  }
  EXPECT_EQ(values, (std::vector<std::string>{"0", "1", "5", "6", "2", "3", "5", "0"}))
      << "no constant, no condition of a loop, no region of a reduction";
  EXPECT_EQ(labels[4], "sum@train.py:7");
  EXPECT_EQ(labels[3], "multiply") << "without a location, the name of the op";
  const std::string edited = text->with_barriers(all_of(*text));
  const auto contains = [&](const std::string& line) {
    EXPECT_NE(edited.find(line), std::string::npos) << line << "\n" << edited;
  };
  contains("    %barred_1:2 = stablehlo.while(%i = %c, %a = %0)");
  contains(
      "    %1:2 = stablehlo.optimization_barrier %barred_1#0, %barred_1#1 : tensor<i32>, "
      "tensor<4xf32>\n    %barred_2 = stablehlo.reduce(%1#1");
  contains("    %barred_3, %barred_4 = stablehlo.optimization_barrier %1#1, %w");
  contains("    %3, %4 = stablehlo.optimization_barrier %barred_3, %barred_4");
  contains("      %barred_6 = stablehlo.multiply %a, %x : tensor<4xf32>\n    %6 = ");
  contains("      %5 = stablehlo.compare LT");
  EXPECT_TRUE(parse_mlir(edited, "edited"));
}

TEST(BarrierText, ReturnsFurtherValues) {
  const auto text = BarrierText::parse(kForms, "forms.mlir");
  ASSERT_TRUE(text);
  std::vector<Excerpt::Array> added;
  const std::string edited = text->with_results({0, 1}, added);
  ASSERT_EQ(added.size(), 3u);
  EXPECT_EQ(added[2].name, "1#1");
  EXPECT_NE(
      edited.find("-> (tensor<4xf32>, tensor<f32>, tensor<4xf32>, tensor<i32>, tensor<4xf32>)"),
      std::string::npos)
      << edited;
  EXPECT_NE(
      edited.find("return %5, %2 , %0, %1#0, %1#1 : tensor<4xf32>, tensor<f32>, tensor<4xf32>, "
                  "tensor<i32>, tensor<4xf32>"),
      std::string::npos)
      << edited;
  EXPECT_TRUE(parse_mlir(edited, "edited"));
  // A function with one result has no list of types.
  const auto one = BarrierText::parse(
      "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n  %0 = stablehlo.negate %a : "
      "tensor<2xf32>\n  %1 = stablehlo.negate %0 : tensor<2xf32>\n  return %1 : tensor<2xf32> "
      "loc(\"here\")\n}\n",
      "one.mlir");
  ASSERT_TRUE(one) << one.error().message();
  added.clear();
  const std::string wider = one->with_results({0}, added);
  EXPECT_NE(wider.find("-> (tensor<2xf32>, tensor<2xf32>) {"), std::string::npos) << wider;
  EXPECT_NE(wider.find("return %1 , %0 : tensor<2xf32>, tensor<2xf32> loc(\"here\")"),
            std::string::npos)
      << wider;
}

TEST(BarrierText, AnExcerptReadsWhatItDoesNotCompute) {
  const auto text = BarrierText::parse(kForms, "forms.mlir");
  ASSERT_TRUE(text);
  const Excerpt excerpt = text->excerpt({1, 4});  // the loop and the sum
  ASSERT_EQ(excerpt.arguments.size(), 2u) << excerpt.text;
  EXPECT_EQ(excerpt.arguments[0].name, "0");
  EXPECT_EQ(excerpt.arguments[1].name, "x");
  ASSERT_EQ(excerpt.results.size(), 3u) << "the loop's are read by %3, the sum is returned";
  EXPECT_EQ(excerpt.results[2].name, "2");
  EXPECT_NE(excerpt.text.find("%c = stablehlo.constant"), std::string::npos);
  EXPECT_TRUE(parse_mlir(excerpt.text, "excerpt")) << excerpt.text;
  EXPECT_EQ(text->producers(4), std::vector<int>{1});
  EXPECT_EQ(text->readers(0), std::vector<int>{1});
}

TEST(BarrierText, RefusesNamesThatItWouldUse) {
  const auto text = BarrierText::parse(
      "func.func @main(%barred_0: tensor<f32>) -> tensor<f32> {\n  return %barred_0 : "
      "tensor<f32>\n}\n",
      "taken.mlir");
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().message().find("barred_"), std::string::npos);
}

}  // namespace
}  // namespace twinrun::import_tests

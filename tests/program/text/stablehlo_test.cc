// Tests the StableHLO text where it is more than the name of an op: arguments, results, replicas,
// and ops that are expanded into several.
#include "program/text/stablehlo.h"

#include <gtest/gtest.h>

namespace twinrun {
namespace {

bool has(const StableHlo& module, const std::string& part) {
  return module.text.find(part) != std::string::npos;
}

TEST(StableHlo, IsOneModuleOfReplicasWithStateInputsAndRandomNumbers) {
  Program p;
  p.sharding.cores = 4;
  GraphBuilder b(p.graph);
  const ValueId x = b.parameter("images", {DType::kF32, {2, 3}});
  const ValueId w = b.parameter("w", {DType::kF32, {2, 3}});
  const ValueId step = b.parameter("step", {DType::kI32, {}});
  const ValueId ids = b.parameter("sample_ids", {DType::kI32, {2}});
  p.inputs = {{"images", x, true}, {"step", step, false}, {"sample_ids", ids, true}};
  const ValueId u = b.scope("dropout1").rng_uniform(step, ids, {2, 3}, 1, 0);
  const ValueId g = b.all_reduce(b.mul(x, u));
  StateVar var;
  var.name = "w";
  var.type = p.graph.type(w);
  var.id = w;
  var.next = b.sub(w, g);
  p.state = {var};
  p.outputs = {{"w.grad", g}};
  const StableHlo m = to_stablehlo(p, {});
  std::vector<std::string> arguments, results;
  for (const auto& a : m.arguments) arguments.push_back(a.name);
  for (const auto& r : m.results) results.push_back(r.name);
  EXPECT_EQ(arguments,
            (std::vector<std::string>{"state/w", "input/images", "input/step", "input/sample_ids",
                                      "random/dropout1/rng_uniform"}));
  EXPECT_EQ(results, (std::vector<std::string>{"state/w", "output/w.grad"}));
  EXPECT_TRUE(has(m, "mhlo.num_replicas = 4 : i32"));
  EXPECT_TRUE(has(m, "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"));
  EXPECT_TRUE(has(m, "loc(\"random/dropout1/rng_uniform\")"));
  EXPECT_FALSE(has(m, "rng_uniform(")) << "an argument, not an op";
  // With `values`, the value of every op except parameters is a result, too.
  const StableHlo values = to_stablehlo(p, {.values = true});
  EXPECT_EQ(values.results.size(), 2u + static_cast<size_t>(p.graph.size()) - 4u);
}

TEST(StableHlo, DivisorsThatAreNumbersAreKeptFromBecomingReciprocals) {
  Program p;
  GraphBuilder b(p.graph);
  const ValueId x = b.parameter("x", {DType::kF32, {6, 5}});
  p.inputs = {{"x", x, true}};
  p.outputs = {{"mean", b.reduce(x, {0}, Reducer::kMean)},
               {"third", b.binary_scalar(OpKind::kDivide, x, 3)},
               {"ratio", b.div(x, x)}};
  const StableHlo m = to_stablehlo(p, {});
  size_t barriers = 0;
  for (size_t at = 0; (at = m.text.find("optimization_barrier", at)) != std::string::npos; ++at)
    ++barriers;
  EXPECT_EQ(barriers, 2u);
  EXPECT_TRUE(has(m, "dense<0x40C00000>")) << "6, by its bits";
}

// Sizes computed by hand. n = 7, k = 3, stride 2, padding 0 before and 1 after give m = 3. The
// gradient of the input dilates 3 rows to 5 and needs padding 2 - 0 before, and 7 - 5 - 2 + 2 = 2
// after. That of the kernel needs 5 + 2 - 7 - 0 = 0 after.
TEST(StableHlo, GradientsOfConvolutionsAreConvolutions) {
  Program p;
  GraphBuilder b(p.graph);
  Window w;
  for (int i = 0; i < 2; ++i) {
    w.size[i] = 3;
    w.stride[i] = 2;
    w.pad_high[i] = 1;
  }
  const ValueId dy = b.parameter("dy", {DType::kF32, {2, 3, 3, 4}});
  const ValueId k = b.parameter("k", {DType::kF32, {3, 3, 5, 4}});
  const ValueId x = b.parameter("x", {DType::kF32, {2, 7, 7, 5}});
  p.inputs = {{"dy", dy, true}, {"k", k, true}, {"x", x, true}};
  p.outputs = {{"dx", b.convolution_input_grad(dy, k, {2, 7, 7, 5}, w, "dx")},
               {"dk", b.convolution_kernel_grad(x, dy, {3, 3, 5, 4}, w, "dk")}};
  const StableHlo m = to_stablehlo(p, {.precision = "DEFAULT"});
  EXPECT_TRUE(has(m, "stablehlo.reverse %v1, dims = [0, 1]"));
  EXPECT_TRUE(has(m,
                  "[b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f], window = {stride = [1, 1], pad = "
                  "[[2, 2], [2, 2]], lhs_dilate = [2, 2], rhs_dilate = [1, 1]}"))
      << m.text;
  EXPECT_TRUE(has(m,
                  "[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {stride = [1, 1], pad = "
                  "[[0, 0], [0, 0]], lhs_dilate = [1, 1], rhs_dilate = [2, 2]}"))
      << m.text;
  EXPECT_TRUE(has(m, "#stablehlo<precision DEFAULT>"));
}

TEST(StableHlo, HasNoBinary64) {
  Program p;
  GraphBuilder b(p.graph);
  p.inputs = {{"x", b.parameter("x", {DType::kF64, {2}}), true}};
  EXPECT_THROW((void)to_stablehlo(p, {}), GraphError);
}

}  // namespace
}  // namespace twinrun

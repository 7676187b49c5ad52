// Tests layer outputs that a program requests: an engine may leave out each one, and none is
// trusted.
#include <cmath>
#include <nlohmann/json.hpp>

#include "backends/exec/messages.h"
#include "tests/exec/script.h"

namespace twinrun {
namespace {

using exec_tests::expect_says;
using exec_tests::f32;
using exec_tests::good_result;
using exec_tests::layered;
using exec_tests::Script;
using exec_tests::small;

class LayersShown : public Script {
 protected:
  // The outcome of a step whose result has these additional arrays.
  Outcome answer(const std::vector<NamedArray>& more, const Program& program = layered()) {
    ArrayFile file = good_result();
    file.arrays.insert(file.arrays.end(), more.begin(), more.end());
    return run(answers_with(keep("answer", file), "result-0.safetensors"), program);
  }
};

TEST_F(LayersShown, AreAskedForByTheProgramThatWantsThem) {
  const auto asked = nlohmann::json::parse(exec::program_json(layered(), ""));
  ASSERT_EQ(asked["activations"].size(), 2U);
  EXPECT_EQ(asked["activations"][0],
            nlohmann::json({{"name", "double"}, {"dtype", "F32"}, {"shape", {3}}}));
  EXPECT_EQ(asked["outputs"].size(), 1U);
  EXPECT_TRUE(nlohmann::json::parse(exec::program_json(small(), ""))["activations"].empty());
}

TEST_F(LayersShown, EachMayBeLeftOut) {
  const Outcome none = answer({});
  EXPECT_EQ(none.error, "");
  EXPECT_FALSE(none.outputs[0][1].valid());
  const Outcome one = answer({f32("output/double.grad", {3}, {2, NAN, INFINITY})});
  EXPECT_EQ(one.error, "");
  EXPECT_FALSE(one.outputs[0][1].valid());
  EXPECT_TRUE(std::isnan(one.outputs[0][2].as<float>()[1]));
  const Outcome each = answer(
      {f32("output/double@0", {3}, {2, 4, 6}), f32("output/double@1", {3}, {1, 1, 1})}, layered(2));
  EXPECT_EQ(each.error, "");
  EXPECT_EQ(each.outputs[0][1].as<float>()[2], 6);
  EXPECT_EQ(each.outputs[1][1].as<float>()[2], 1);
}

TEST_F(LayersShown, AnotherNameShapeOrTypeIsAnError) {
  expect_says(answer({f32("output/duoble", {3}, {2, 4, 6})}).error,
              {"the program has no 'output/duoble'", "the nearest is 'output/double'"});
  expect_says(answer({f32("output/double\x1b[2J", {3}, {2, 4, 6})}).error,
              {"the program has no 'output/double [2J'"});
  expect_says(answer({f32("output/double", {1, 3}, {2, 4, 6})}).error,
              {"output/double", "expected f32[3]"});
  NamedArray whole{"output/double", ElementType::kI32, {3}, std::vector<std::byte>(12)};
  expect_says(answer({whole}).error, {"output/double", "expected f32[3]"});
  expect_says(answer({f32("output/double@1", {3}, {2, 4, 6})}, layered(2)).error,
              {"the array 'output/double' is missing"});
  // small() requests no layer outputs; unknown arrays are then ignored, as before.
  EXPECT_EQ(answer({f32("output/duoble", {3}, {2, 4, 6})}, small()).error, "");
}

}  // namespace
}  // namespace twinrun

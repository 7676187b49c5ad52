// Tests the data sources npy and npz on files that NumPy wrote (fixtures/make_fixtures.py): what
// the arrays mean. Damage to the format itself is tested with its reader in tests/checkpoints.
#include "checkpoints/container/npy.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/scenarios/source_test.h"

namespace twinrun {
namespace {

template <typename T>
NamedArray array(ElementType type, Dims dims, const std::vector<T>& values) {
  NamedArray out{"", type, std::move(dims), std::vector<std::byte>(values.size() * sizeof(T))};
  if (!values.empty()) std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
  return out;
}

class NpyTest : public SourceTest {
 protected:
  static DataRequest fixtures(std::vector<std::string> files) {
    return {.source = "npy", .dir = kFixtures, .files = std::move(files), .classes = 3};
  }
  void save(const std::string& name, const NamedArray& array) const {
    const auto bytes = to_npy(array, name);
    ASSERT_TRUE(bytes.ok()) << bytes.error().message();
    write(name, {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  }
  // A request for features in x.npy and labels in y.npy of the folder.
  DataRequest saved(int64_t classes = 3, int64_t vocabulary = 0) const {
    return {
        .source = "npy", .files = {"x.npy", "y.npy"}, .vocabulary = vocabulary, .classes = classes};
  }
};

TEST_F(NpyTest, ArraysOfNumPy) {
  const Dataset data = opened(fixtures({"pixels_u8.npy", "labels_i64.npy"}));
  EXPECT_EQ(data.description, "npy (pixels_u8.npy split 9:1): 18 + 2 of f32[2,2,3], 3 classes");
  expect_samples(data.train, 0, {2, 2, 3});
  expect_samples(data.eval, 18, {2, 2, 3});
  EXPECT_EQ(opened(fixtures({"pixels_u8.npy", "labels_u8.npy"})).digest, data.digest)
      << "labels [n, 1] of u8 are labels";
  const Dataset numbers = opened(fixtures({"numbers_f64_fortran.npy", "labels_i64.npy"}));
  expect_samples(numbers.train, 0, {3}, fixture_number);
  EXPECT_EQ(opened(fixtures({"numbers_f32.npy", "labels_i64.npy"})).digest, numbers.digest);
}

TEST_F(NpyTest, TokensWithWeightsAndHeldOutFiles) {
  DataRequest request = fixtures({"tokens_i64.npy", "labels_i64.npy", "weights_bool.npy"});
  request.vocabulary = 10;
  request.eval_files = request.files;
  const Dataset data = opened(request);
  EXPECT_EQ(data.description, "npy (tokens_i64.npy): 20 + 20 of i32[5], 3 classes, vocabulary 10");
  expect_tokens(data.train, 0, false);
  expect_tokens(data.eval, 0, false);
  request.eval_files.pop_back();
  EXPECT_EQ(
      error(request),
      "DIR/tokens_i64.npy: the held-out and the training samples have different kinds of weights");
}

TEST_F(NpyTest, NpzByNames) {
  DataRequest request = {.source = "npz", .dir = kFixtures, .files = {"pixels.npz"}};
  request.feature = "x_train", request.label = "y_train", request.classes = 3;
  EXPECT_EQ(opened(request).description,
            "npz (pixels.npz split 9:1): 13 + 2 of f32[2,2,3], 3 classes");
  request.eval_feature = "x_test", request.eval_label = "y_test";
  const Dataset data = opened(request);
  EXPECT_EQ(data.description, "npz (pixels.npz): 15 + 5 of f32[2,2,3], 3 classes");
  expect_samples(data.train, 0, {2, 2, 3});
  expect_samples(data.eval, 15, {2, 2, 3});

  request = {.source = "npz", .dir = kFixtures, .files = {"tokens.npz"}};
  request.weight = "weights", request.vocabulary = 10, request.classes = 3;
  expect_tokens(opened(request).train, 0, true);
  request.weight = "";
  EXPECT_FALSE(opened(request).train.weights.valid());
  request.feature = "feature";
  EXPECT_NE(error(request).find("features"), std::string::npos) << error(request);
}

TEST_F(NpyTest, WrongShapes) {
  const std::vector<float> six(6);
  save("x.npy", array(ElementType::kF32, {3, 2}, six));
  save("y.npy", array(ElementType::kI64, {4}, std::vector<int64_t>(4)));
  EXPECT_EQ(error(saved()), "DIR/y.npy: labels are int64[4]; allowed: [3], one for each sample");
  save("y.npy", array(ElementType::kI64, {3, 2}, std::vector<int64_t>(6)));
  EXPECT_EQ(error(saved()), "DIR/y.npy: labels are int64[3,2]; allowed: [3], one for each sample");
  save("y.npy", array(ElementType::kF32, {3}, std::vector<float>(3)));
  EXPECT_EQ(error(saved()), "DIR/y.npy: labels are float32; allowed: integers");
  save("y.npy", array(ElementType::kI64, {3}, std::vector<int64_t>(3)));
  EXPECT_EQ(error(saved(3, 5)),
            "DIR/x.npy: features are float32[3,2]; expected token ids, integers [n, T], because "
            "data.vocabulary is set");
  DataRequest request = saved();
  request.shape = {3};
  EXPECT_EQ(error(request), "DIR/x.npy: a sample is [2], but data.shape is [3]");
  request = saved();
  request.files.push_back("y.npy");
  EXPECT_EQ(error(request),
            "DIR/y.npy: weights are int64[3]; allowed: none without data.vocabulary");
  save("x.npy", array(ElementType::kF32, {6}, six));
  EXPECT_EQ(error(saved()), "DIR/x.npy: features are float32[6]; allowed: [n, ...], n at least 1");
  save("x.npy", array(ElementType::kF32, {0, 6}, std::vector<float>{}));
  EXPECT_EQ(error(saved()),
            "DIR/x.npy: features are float32[0,6]; allowed: [n, ...], n at least 1");
  request.files = {"x.npy"};
  EXPECT_EQ(error(request), "data.files names 1 files; allowed: 2 to 3");
}

TEST_F(NpyTest, WrongValues) {
  save("y.npy", array(ElementType::kI64, {3}, std::vector<int64_t>{0, 1, 2}));
  save("x.npy", array(ElementType::kF64, {3, 2}, std::vector<double>{0, 1, 2, 3, std::nan(""), 5}));
  EXPECT_EQ(error(saved()), "DIR/x.npy: record 2, element 0: nan is not a finite number");
  save("x.npy", array(ElementType::kF32, {3, 2},
                      std::vector<float>{0, 1, -std::numeric_limits<float>::infinity(), 3, 4, 5}));
  EXPECT_EQ(error(saved()), "DIR/x.npy: record 1, element 0: -inf is not a finite number");
  save("x.npy",
       array(ElementType::kI64, {3, 2}, std::vector<int64_t>{0, 1, 2, 3, int64_t{1} << 40, 5}));
  EXPECT_EQ(error(saved()),
            "DIR/x.npy: 1099511627776 is not exactly representable in float32; allowed: -16777216 "
            "to 16777216");
  save("x.npy", array(ElementType::kU64, {3, 2},
                      std::vector<uint64_t>{0, 1, 2, 3, std::numeric_limits<uint64_t>::max(), 5}));
  EXPECT_EQ(error(saved()),
            "DIR/x.npy: 9223372036854775807 is not exactly representable in float32; allowed: "
            "-16777216 to 16777216");
  save("x.npy", array(ElementType::kI32, {3, 2}, std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(error(saved(2)), "DIR/y.npy: record 2: label 2; allowed: 0 to 1 (data.classes is 2)");
  EXPECT_EQ(error(saved(3, 5)),
            "DIR/x.npy: record 2, element 1: token 5; allowed: 0 to 4 (data.vocabulary is 5)");
  EXPECT_EQ(opened(saved(3, 6)).vocabulary, 6);
  EXPECT_EQ(opened(saved()).train.features.as<float>()[3], 3.0f);
}

TEST_F(NpyTest, WrongWeights) {
  save("x.npy", array(ElementType::kI32, {3, 2}, std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  save("y.npy", array(ElementType::kI64, {3}, std::vector<int64_t>{0, 1, 2}));
  DataRequest request = saved(3, 6);
  request.files.push_back("w.npy");
  const auto with = [&](const std::vector<float>& weights) {
    save("w.npy", array(ElementType::kF32, {3, 2}, weights));
    return error(request);
  };
  EXPECT_EQ(with({1, 1, 1, 0.5, 1, 0}),
            "DIR/w.npy: record 1, element 1: weight 0.5; allowed: 1 (a token), 0 (padding)");
  EXPECT_EQ(with({1, 1, 0, 0, 1, 0}),
            "DIR/w.npy: record 1: the sample has no token: all its weights are 0");
  EXPECT_EQ(with({1, 1, 1, 0, 1, 0}), "accepted");
}

TEST_F(NpyTest, DamagedFilesAreNamed) {
  save("y.npy", array(ElementType::kI64, {3}, std::vector<int64_t>{0, 1, 2}));
  for (const std::string& bytes :
       {std::string(), fixture("pixels_u8.npy").substr(0, 200),
        std::string("\x93NUMPY\x01\x00v", 9), std::string("PK\x03\x04")}) {
    write("x.npy", bytes);
    EXPECT_TRUE(error(saved()).starts_with("DIR/x.npy: ")) << error(saved());
    write("x.npz", bytes);
    EXPECT_TRUE(error({.source = "npz", .files = {"x.npz"}}).starts_with("DIR/x.npz: "));
  }
}

}  // namespace
}  // namespace twinrun

// Tests the data source hdf5 on a file that h5py wrote (fixtures/make_fixtures.py).
#include "tests/scenarios/source_test.h"

namespace twinrun {
namespace {

class Hdf5SourceTest : public SourceTest {
 protected:
  DataRequest request_{.source = "hdf5",
                       .dir = kFixtures,
                       .files = {"arrays.h5"},
                       .feature = "x_train",
                       .label = "y_train",
                       .classes = 3};
};

TEST_F(Hdf5SourceTest, ArraysOfH5py) {
  EXPECT_EQ(opened(request_).description,
            "hdf5 (arrays.h5 split 9:1): 13 + 2 of f32[2,2,3], 3 classes");
  request_.eval_feature = "held/x", request_.eval_label = "/held/y";
  const Dataset data = opened(request_);
  EXPECT_EQ(data.description, "hdf5 (arrays.h5): 15 + 5 of f32[2,2,3], 3 classes");
  expect_samples(data.train, 0, {2, 2, 3});
  expect_samples(data.eval, 15, {2, 2, 3});
}

TEST_F(Hdf5SourceTest, NumbersAndTokens) {
  request_.feature = "numbers", request_.label = "labels";
  expect_samples(opened(request_).train, 0, {3}, fixture_number);
  request_.feature = "tokens", request_.weight = "weights", request_.vocabulary = 10;
  const Dataset data = opened(request_);
  EXPECT_EQ(data.vocabulary, 10);
  expect_tokens(data.train, 0, false);
}

TEST_F(Hdf5SourceTest, WrongNames) {
  request_.label = "y_trian";
  EXPECT_EQ(error(request_),
            "DIR/arrays.h5: no data set \"y_trian\" (data.label); the file has: held/x, held/y, "
            "labels, numbers, packed, tokens, weights, x_train, y_train");
  EXPECT_EQ(open(request_).error().fix, "set data.label = \"y_train\"");
  request_.label = "held";
  EXPECT_EQ(error(request_), "DIR/arrays.h5:/held: is a group; expected a dataset");
  request_.label = "x_train/y";
  EXPECT_EQ(error(request_), "DIR/arrays.h5:/x_train: is a dataset; expected a group");
  request_.label = "x_train";
  EXPECT_EQ(error(request_),
            "DIR/arrays.h5: \"x_train\" is named twice, the second time by data.label");
  request_.label = "y_train", request_.feature = "packed";
  EXPECT_EQ(error(request_),
            "DIR/arrays.h5:/packed: is stored chunked or virtually; expected contiguous storage");
  request_.feature = "x_train", request_.classes = 2;
  EXPECT_EQ(error(request_),
            "DIR/arrays.h5: y_train: record 2: label 2; allowed: 0 to 1 (data.classes is 2)");
}

// A damaged file gives a data set or an error that names the file.
TEST_F(Hdf5SourceTest, DamagedFiles) {
  const std::string good = fixture("arrays.h5");
  ASSERT_GT(good.size(), 10'000u);
  request_.dir = "";
  request_.files = {"a.h5"};
  const auto try_with = [&](const std::string& bytes) {
    write("a.h5", bytes);
    const std::string message = error(request_);
    EXPECT_TRUE(message == "accepted" || message.starts_with("DIR/a.h5")) << message;
    return message;
  };
  EXPECT_EQ(try_with(good), "accepted");
  EXPECT_NE(try_with(""), "accepted");
  EXPECT_NE(try_with("\x89PNG"), "accepted");
  EXPECT_NE(try_with(good.substr(0, 1000)), "accepted");
  EXPECT_NE(try_with(good.substr(0, good.size() - 5000)), "accepted");
  std::filesystem::remove(dir_ / "a.h5");
  EXPECT_NE(error(request_).find("cannot open"), std::string::npos);
}

}  // namespace
}  // namespace twinrun

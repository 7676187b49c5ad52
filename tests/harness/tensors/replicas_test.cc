// Tests the comparison of a checkpoint's cores by hand, and files that no program has written.
#include "harness/tensors/replicas.h"

#include <gtest/gtest.h>

#include "harness/foreign/export_state.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

Tensor numbers(Dims dims, const std::vector<float>& values) {
  Tensor t = Tensor::zeros({DType::kF32, std::move(dims)});
  for (size_t i = 0; i < values.size(); ++i) t.as<float>()[i] = values[i];
  return t;
}

TEST(Replicas, DistancesByHand) {
  Checkpoint c;
  c.cores = 3;
  c.tensors["w"] = {numbers({3, 2}, {3, 4, 3, 4, 3, 9}), "parameter", true};
  c.tensors["zero"] = {numbers({3, 1}, {0, 2, 0}), "slot", true};
  c.tensors["same"] = {numbers({2}, {1, 2}), "parameter", false};
  const std::vector<ReplicaRow> rows = replicas_of(c);
  ASSERT_EQ(rows.size(), 3U);
  for (const ReplicaRow& row : rows) ASSERT_EQ(row.tensors.size(), 2U) << "those that differ";
  EXPECT_EQ(rows[0].distance, 0);
  EXPECT_EQ(rows[1].tensors[0].distance, 0);  // w: the same numbers as core 0's
  EXPECT_EQ(rows[1].tensors[0].digest, rows[0].tensors[0].digest);
  EXPECT_EQ(rows[1].tensors[1].distance, 2);  // core 0 has zero: the size itself
  EXPECT_DOUBLE_EQ(rows[1].distance, 2.0 / 5);
  EXPECT_DOUBLE_EQ(rows[2].tensors[0].distance, 5.0 / 5);
  EXPECT_DOUBLE_EQ(rows[2].distance, 1);
  EXPECT_NE(rows[1].digest, rows[0].digest);
  EXPECT_TRUE(value_of_replica(c.tensors["w"], 2).same_bits(numbers({2}, {3, 9})));
  c.tensors.erase("w");
  c.tensors.erase("zero");
  EXPECT_TRUE(replicas_of(c).empty());
}

TEST(Replicas, AFileOfTooManyCoresIsBounded) {
  const Folder folder;
  Checkpoint c;
  c.tensors["w"] = {Tensor::zeros({DType::kF32, {1 << 20, 1}}), "parameter", true};
  c.tensors["none"] = {Tensor::zeros({DType::kF32, {0, 4}}), "parameter", true};
  EXPECT_EQ(std::ssize(replicas_of(c)), kMaxReplicas);
  const std::string file = folder / "c.h5";
  c.tensors.erase("none");
  ASSERT_TRUE(write_checkpoint(file, c).ok());
  const auto refused = export_state(file, folder / "out");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("'w' has values of 1048576 cores; allowed: up to 4096"),
            std::string::npos)
      << refused.error().message();
}

}  // namespace
}  // namespace twinrun

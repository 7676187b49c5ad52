// Tests checkpoint files: round trips, digests, rejected content, and the check that a checkpoint
// fits a model.
#include "checkpoints/checkpoint.h"

#include "tests/checkpoints/samples.h"

namespace twinrun {
namespace {

using samples::expect_same;
using samples::read_bytes;

TEST(Checkpoint, RoundTripsEveryTypeAndTheReplicaAxis) {
  const Folder folder;
  const Checkpoint before = samples::checkpoint();
  ASSERT_TRUE(write_checkpoint(folder / "c.h5", before).ok());
  const auto after = read_checkpoint(folder / "c.h5");
  ASSERT_TRUE(after.ok()) << after.error().message();
  expect_same(before, *after);
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Checkpoint, RoundTripsTheEmptyOne) {
  const Folder folder;
  ASSERT_TRUE(write_checkpoint(folder / "c.h5", {}).ok());
  const auto after = read_checkpoint(folder / "c.h5");
  ASSERT_TRUE(after.ok()) << after.error().message();
  expect_same({}, *after);
}

TEST(Checkpoint, ManyTensorsAndALongScenario) {
  const Folder folder;
  Checkpoint before = samples::checkpoint();
  before.scenario = std::string(300000, '#') + "\n";
  for (int i = 0; i < 400; ++i) {
    const std::string name = "block" + std::to_string(i % 20) + "/layer" + std::to_string(i) + "/w";
    before.tensors[name] = {samples::pattern({DType::kF32, {i % 7, 3}}), "parameter", false};
  }
  ASSERT_TRUE(write_checkpoint(folder / "c.h5", before).ok());
  const auto after = read_checkpoint(folder / "c.h5");
  ASSERT_TRUE(after.ok()) << after.error().message();
  expect_same(before, *after);
}

TEST(Checkpoint, EqualContentMakesEqualBytes) {
  const Folder folder;
  ASSERT_TRUE(write_checkpoint(folder / "a.h5", samples::checkpoint()).ok());
  ASSERT_TRUE(write_checkpoint(folder / "longer-name.h5", samples::checkpoint()).ok());
  const auto back = read_checkpoint(folder / "a.h5");
  ASSERT_TRUE(back.ok());
  ASSERT_TRUE(write_checkpoint(folder / "again.h5", *back).ok());
  const std::string bytes = read_bytes(folder / "a.h5");
  EXPECT_TRUE(bytes == read_bytes(folder / "longer-name.h5"));
  EXPECT_TRUE(bytes == read_bytes(folder / "again.h5"));
}

TEST(Checkpoint, RootDigestIsTheStateAndNothingElse) {
  const Digest digest = samples::checkpoint().root_digest();
  Checkpoint c = samples::checkpoint();
  c.engine = "cpu";
  c.cores = 1;
  c.scenario += "# a comment";
  c.tensors["embed"].role = "slot";
  EXPECT_EQ(c.root_digest(), digest);

  c = samples::checkpoint();
  c.step += 1;
  EXPECT_NE(c.root_digest(), digest);
  c = samples::checkpoint();
  c.seed += 1;
  EXPECT_NE(c.root_digest(), digest);
  c = samples::checkpoint();
  c.tensors["conv1/norm/mean"].replica_axis = false;
  EXPECT_NE(c.root_digest(), digest);
  c = samples::checkpoint();
  c.tensors["conv1/kernel"].value.as<float>()[0] += 1;
  EXPECT_NE(c.root_digest(), digest);
  c = samples::checkpoint();
  c.tensors["renamed"] = c.tensors["mask"];
  c.tensors.erase("mask");
  EXPECT_NE(c.root_digest(), digest);
  c = samples::checkpoint();
  auto& kernel = c.tensors["conv1/kernel"].value;
  kernel = kernel.reshaped({9, 8});
  EXPECT_NE(c.root_digest(), digest);
}

// The digest must not change, because existing files contain it. A change here needs a new schema.
TEST(Checkpoint, RootDigestIsFrozen) {
  EXPECT_EQ(Checkpoint{}.root_digest().hex(), "e5189a9599e3f86205ea23ef06e28b2d");
  Checkpoint c;
  c.step = 3;
  c.seed = 42;
  c.tensors["a/b"] = {Tensor::scalar(1.5f), "parameter", false};
  EXPECT_EQ(c.root_digest().hex(), "2fdef55bd58f9da569271f69876bcc16");
}

TEST(Checkpoint, RefusesNamesThatCollideOrCannotBeStored) {
  const Folder folder;
  Checkpoint c = samples::checkpoint();
  c.tensors["conv1/kernel/adam_m"] = c.tensors["conv1/kernel"];
  const Status status = write_checkpoint(folder / "c.h5", c);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().what.find("'conv1/kernel' is a tensor"), std::string::npos);
  EXPECT_NE(status.error().fix.find("conv1/kernel.adam_m"), std::string::npos);
  for (const std::string name : {"", "/a", "a/", "a//b", "a/../b", "."}) {
    c = samples::checkpoint();
    c.tensors[name] = c.tensors["mask"];
    EXPECT_FALSE(write_checkpoint(folder / "c.h5", c).ok()) << name;
  }
  c = samples::checkpoint();
  c.tensors["no value"] = {};
  EXPECT_FALSE(write_checkpoint(folder / "c.h5", c).ok());
  c = samples::checkpoint();
  c.tensors["step"].replica_axis = true;
  EXPECT_FALSE(write_checkpoint(folder / "c.h5", c).ok());
  c = samples::checkpoint();
  c.engine = std::string("a\0b", 3);
  EXPECT_FALSE(write_checkpoint(folder / "c.h5", c).ok());
  EXPECT_EQ(folder.files(), 0u);
}

TEST(Checkpoint, RefusesAnotherContract) {
  const Folder folder;
  Checkpoint c = samples::checkpoint();
  c.contract = kContractVersion + 3;
  ASSERT_TRUE(write_checkpoint(folder / "c.h5", c).ok());
  const auto back = read_checkpoint(folder / "c.h5");
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.error().what.find("found numeric contract " + std::to_string(c.contract)),
            std::string::npos);
  EXPECT_NE(back.error().what.find("expected contract " + std::to_string(kContractVersion)),
            std::string::npos);
}

TEST(Checkpoint, ARunIsNoCheckpoint) {
  const Folder folder;
  ASSERT_TRUE(write_run(folder / "r.h5", samples::run()).ok());
  const auto back = read_checkpoint(folder / "r.h5");
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.error().what.find("'twinrun run'"), std::string::npos);
}

TEST(Checkpoint, FailedWriteKeepsTheOldFile) {
  const Folder folder;
  const std::string path = folder / "c.h5";
  ASSERT_TRUE(write_checkpoint(path, samples::checkpoint()).ok());
  const std::string bytes = read_bytes(path);
  Checkpoint c = samples::checkpoint();
  c.tensors["no value"] = {};
  EXPECT_FALSE(write_checkpoint(path, c).ok());
  EXPECT_TRUE(read_bytes(path) == bytes);
  EXPECT_FALSE(write_checkpoint(folder / "none/c.h5", samples::checkpoint()).ok());
  EXPECT_EQ(folder.files(), 1u);
}

std::map<std::string, TensorType> types_of(const Checkpoint& checkpoint) {
  std::map<std::string, TensorType> types;
  for (const auto& [name, tensor] : checkpoint.tensors) types[name] = tensor.value.type();
  return types;
}

TEST(CheckSameModel, NamesWhatDiffers) {
  const Checkpoint c = samples::checkpoint();
  auto types = types_of(c);
  EXPECT_TRUE(check_same_model(c, types).ok());
  types["conv1/norm/mean"] = {DType::kF32, {4}};  // one replica's share
  EXPECT_TRUE(check_same_model(c, types).ok());
  types["conv1/norm/mean"] = {DType::kF32, {5}};
  Status status = check_same_model(c, types);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().where, "conv1/norm/mean");
  EXPECT_NE(status.error().what.find("f32[8,4]"), std::string::npos);
  EXPECT_NE(status.error().what.find("f32[5]"), std::string::npos);

  types = types_of(c);
  types["embed"].dtype = DType::kF32;
  status = check_same_model(c, types);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().where, "embed");

  types = types_of(c);
  types["dense9/bias"] = {DType::kF32, {10}};
  status = check_same_model(c, types);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().where, "dense9/bias");
  EXPECT_NE(status.error().what.find("lacks"), std::string::npos);

  types = types_of(c);
  types.erase("mask");
  status = check_same_model(c, types);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().where, "mask");
  EXPECT_NE(status.error().fix.find(c.scenario_digest), std::string::npos);
}

}  // namespace
}  // namespace twinrun

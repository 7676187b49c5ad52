// Tests run files: round trips, digests, rejected content, and telling runs from checkpoints.
#include "checkpoints/run.h"

#include "tests/checkpoints/samples.h"

namespace twinrun {
namespace {

using samples::read_bytes;

void expect_same_run(const RunFile& a, const RunFile& b) {
  EXPECT_EQ(a.root_digest(), b.root_digest());  // covers its fields bit for bit
  EXPECT_EQ(a.scenario, b.scenario);
  EXPECT_EQ(a.environment, b.environment);
  EXPECT_EQ(a.ended, b.ended);
  EXPECT_EQ(a.first_step, b.first_step);
  EXPECT_EQ(a.batch, b.batch);
  ASSERT_EQ(a.steps.size(), b.steps.size());
  EXPECT_EQ(a.state_digests, b.state_digests);
  ASSERT_EQ(a.trace.size(), b.trace.size());
  ASSERT_EQ(a.evaluations.size(), b.evaluations.size());
  for (size_t i = 0; i < a.trace.size(); ++i) {
    EXPECT_EQ(a.trace[i].op, b.trace[i].op);
    EXPECT_EQ(a.trace[i].digest, b.trace[i].digest);
  }
  ASSERT_EQ(a.checkpoints.size(), b.checkpoints.size());
  for (size_t i = 0; i < a.checkpoints.size(); ++i) {
    samples::expect_same(a.checkpoints[i], b.checkpoints[i]);
  }
}

TEST(Run, RoundTrips) {
  const Folder folder;
  ASSERT_TRUE(write_run(folder / "r.h5", samples::run()).ok());
  const auto back = read_run(folder / "r.h5");
  ASSERT_TRUE(back.ok()) << back.error().message();
  expect_same_run(samples::run(), *back);
}

TEST(Run, RoundTripsTheEmptyOne) {
  const Folder folder;
  ASSERT_TRUE(write_run(folder / "r.h5", {}).ok());
  const auto back = read_run(folder / "r.h5");
  ASSERT_TRUE(back.ok()) << back.error().message();
  expect_same_run({}, *back);
}

TEST(Run, NaNsKeepTheirBits) {
  const Folder folder;
  RunFile run = samples::run();
  run.steps[3].loss = from_bits(0xFFC12345u);
  run.evaluations[0].loss = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(write_run(folder / "r.h5", run).ok());
  const auto back = read_run(folder / "r.h5");
  ASSERT_TRUE(back.ok()) << back.error().message();
  EXPECT_EQ(to_bits(back->steps[3].loss), 0xFFC12345u);
}

TEST(Run, EqualContentMakesEqualBytes) {
  const Folder folder;
  ASSERT_TRUE(write_run(folder / "a.h5", samples::run()).ok());
  ASSERT_TRUE(write_run(folder / "b.h5", samples::run()).ok());
  EXPECT_TRUE(read_bytes(folder / "a.h5") == read_bytes(folder / "b.h5"));
}

TEST(Run, RootDigestLeavesOutTextAndEnvironment) {
  const Digest digest = samples::run().root_digest();
  RunFile run = samples::run();
  run.environment["cpu"] = "another";
  run.scenario += "# comment";
  EXPECT_EQ(run.root_digest(), digest);
  run.steps[0].gradient_norm += 1;
  EXPECT_NE(run.root_digest(), digest);
}

TEST(Run, RefusesCheckpointsOutOfOrder) {
  const Folder folder;
  RunFile run = samples::run();
  std::swap(run.checkpoints[0], run.checkpoints[1]);
  EXPECT_FALSE(write_run(folder / "r.h5", run).ok());
  run.checkpoints[1] = run.checkpoints[0];
  EXPECT_FALSE(write_run(folder / "r.h5", run).ok());
  EXPECT_EQ(folder.files(), 0u);
}

TEST(Run, RefusesAnotherContract) {
  const Folder folder;
  RunFile run = samples::run();
  run.contract = kContractVersion + 1;
  ASSERT_TRUE(write_run(folder / "r.h5", run).ok());
  const auto back = read_run(folder / "r.h5");
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.error().what.find("contract"), std::string::npos);
}

TEST(FileKind, TellsThemApart) {
  const Folder folder;
  ASSERT_TRUE(write_run(folder / "r.h5", samples::run()).ok());
  ASSERT_TRUE(write_checkpoint(folder / "c.h5", samples::checkpoint()).ok());
  samples::write_bytes(folder / "t.h5", "text");
  EXPECT_EQ(*file_kind(folder / "r.h5"), "run");
  EXPECT_EQ(*file_kind(folder / "c.h5"), "checkpoint");
  EXPECT_FALSE(file_kind(folder / "t.h5").ok());
  EXPECT_FALSE(file_kind(folder / "none.h5").ok());
}

}  // namespace
}  // namespace twinrun

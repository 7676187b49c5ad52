// Tests where two files diverge: the same, differing, missing, resumed, NaN.
#include "harness/diff/diff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

#include "program/base/bits.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

Tensor vector_of(const std::vector<float>& values) {
  Tensor t = Tensor::empty({DType::kF32, {static_cast<int64_t>(values.size())}});
  std::copy(values.begin(), values.end(), t.as<float>().begin());
  return t;
}

Checkpoint checkpoint_of(const std::map<std::string, std::vector<float>>& tensors) {
  Checkpoint c;
  c.step = 5;
  for (const auto& [name, values] : tensors) c.tensors[name] = {vector_of(values), "parameter"};
  return c;
}

RunResult trained(const Overrides& overrides, RunOptions options = {}) {
  const Experiment e = tiny::experiment(tiny::kDense, overrides);
  return tiny::must(train(e, e.whole(), *tiny::backend("cpu"), options));
}

bool has_note(const Diff& d, const std::string& part) {
  for (const auto& note : d.notes) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(DiffCheckpoints, Same) {
  const Checkpoint a = checkpoint_of({{"k", {1, 2, 3}}, {"b", {0}}});
  const Diff d = diff_checkpoints(a, a);
  EXPECT_TRUE(d.same);
  EXPECT_EQ(d.kind, "checkpoint");
  EXPECT_EQ(d.tensors_compared, 2);
  EXPECT_TRUE(d.tensors.empty());
  EXPECT_TRUE(d.notes.empty());
}

TEST(DiffCheckpoints, OneElementByOneUlp) {
  const float next = std::nextafter(2.0f, 3.0f);
  const Diff d = diff_checkpoints(checkpoint_of({{"k", {1, 2, 3}}, {"b", {7}}}),
                                  checkpoint_of({{"k", {1, next, 3}}, {"b", {7}}}));
  EXPECT_FALSE(d.same);
  ASSERT_EQ(d.tensors.size(), 1u);
  const TensorDiff& t = d.tensors[0];
  EXPECT_EQ(t.name, "k");
  EXPECT_EQ(t.elements, 3);
  EXPECT_EQ(t.different, 1);
  EXPECT_EQ(t.max_ulps, 1);
  EXPECT_FLOAT_EQ(static_cast<float>(t.max_abs), next - 2.0f);
  EXPECT_NEAR(t.relative, (next - 2.0) / std::sqrt(1 + double{next} * next + 9), 1e-12);
  EXPECT_EQ(t.first, "[1] 2 against 2.00000024");
  EXPECT_EQ(d.tensors_compared, 2);
}

// A name that only one of them has counts once, and its elements are not compared.
TEST(DiffCheckpoints, NamesOfOneSideOnly) {
  const Diff d = diff_checkpoints(checkpoint_of({{"both", {1}}, {"a", {1, 2}}}),
                                  checkpoint_of({{"both", {1}}, {"b", {0}}, {"c", {0}}}));
  EXPECT_EQ(d.tensors_compared, 4);
  ASSERT_EQ(d.tensors.size(), 3u);
  for (const TensorDiff& t : d.tensors) EXPECT_FALSE(t.paired) << t.name;
}

// -0 and 0 are equal numbers with different bits.
TEST(DiffCheckpoints, ZerosOfTwoSignsDiffer) {
  const Diff d = diff_checkpoints(checkpoint_of({{"k", {0.0f}}}), checkpoint_of({{"k", {-0.0f}}}));
  EXPECT_FALSE(d.same);
  EXPECT_EQ(d.tensors.at(0).different, 1);
  EXPECT_EQ(d.tensors.at(0).max_abs, 0);
}

// A large tensor is compared in groups and pieces by several threads, with a remainder. The figures
// are those of a comparison element by element.
TEST(DiffCheckpoints, LargeTensorsThreads) {
  constexpr size_t kSize = (1 << 18) * 2 + 1234;
  std::mt19937 random(5);
  std::vector<float> a(kSize);
  for (float& x : a) x = static_cast<float>(random()) * 0x1p-31f - 1.0f;
  a[300000] = std::numeric_limits<float>::infinity();
  std::vector<float> b = a;
  for (size_t i = 777; i < kSize; i += 1 + random() % 5000)
    b[i] = i % 10 == 0 ? -b[i] : std::nextafter(b[i], 2.0f);
  a[400001] = 1, b[400001] = std::numeric_limits<float>::quiet_NaN();
  int64_t different = 0, ulps = 0;
  double largest = 0;
  for (size_t i = 0; i < kSize; ++i) {
    if (to_bits(a[i]) == to_bits(b[i])) continue;
    ++different;
    if (b[i] != b[i]) continue;
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
    ulps = std::max(ulps, ulp_distance(a[i], b[i]));
  }
  const Diff d = diff_checkpoints(checkpoint_of({{"k", a}}), checkpoint_of({{"k", b}}));
  ASSERT_EQ(d.tensors.size(), 1u);
  EXPECT_EQ(d.tensors[0].different, different);
  EXPECT_EQ(d.tensors[0].nans, 1);
  EXPECT_EQ(d.tensors[0].max_ulps, ulps);
  EXPECT_EQ(d.tensors[0].max_abs, largest);
  EXPECT_EQ(d.tensors[0].first.substr(0, 5), "[777]");
}

// Of files, the same is found as in memory, where the tensors are cut into other ranges.
TEST(DiffCheckpoints, FilesAsInMemory) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  const auto numbers = [&](size_t count) {
    std::vector<float> out(count);
    for (float& x : out) x = normal(generator);
    return out;
  };
  // Shorter and longer than a piece, a whole number of pieces, and nothing.
  Checkpoint a = checkpoint_of({{"layer/a", numbers(1000)},
                                {"layer/b", numbers(100'001)},
                                {"c", numbers(size_t{1} << 19)},
                                {"d", {}},
                                {"e", {1}}});
  Checkpoint b = a;
  std::vector<float> changed = numbers(100'001);
  std::copy_n(a.tensors["layer/b"].value.as<float>().begin(), 70'000, changed.begin());
  b.tensors["layer/b"].value = vector_of(changed);
  std::vector<float> last(size_t{1} << 19);
  std::ranges::copy(a.tensors["c"].value.as<float>(), last.begin());
  last.back() = std::numeric_limits<float>::quiet_NaN();
  b.tensors["c"].value = vector_of(last);
  b.tensors["e"].value = vector_of({1, 2});
  const Folder folder;
  const std::string x = folder / "a.h5", y = folder / "b.h5";
  tiny::must(write_checkpoint(x, a));
  tiny::must(write_checkpoint(y, b));

  const Diff memory = diff_checkpoints(a, b);
  for (const bool verify : {false, true}) {
    const Diff files = tiny::must(diff_files(x, y, verify));
    EXPECT_EQ(files.tensors_unread, verify ? 0 : 2);
    ASSERT_EQ(files.tensors.size(), 3u);
    EXPECT_EQ(files.tensors[0].types, "f32[1] against f32[2]");
    for (size_t i = 0; i < 3; ++i) {
      const TensorDiff &m = memory.tensors[i], &f = files.tensors[i];
      EXPECT_EQ(f.name, m.name);
      EXPECT_EQ(f.different, m.different);
      EXPECT_EQ(f.nans, m.nans);
      EXPECT_EQ(f.max_ulps, m.max_ulps);
      EXPECT_EQ(f.max_abs, m.max_abs);
      EXPECT_EQ(f.first, m.first);
      // The sums of at most 2^19 squares are cut into other ranges.
      if (f.paired) {
        EXPECT_NEAR(f.relative, m.relative, m.relative * 0x1p19 * 0x1p-53);
      }
    }
  }
  EXPECT_EQ(memory.tensors[1].first.substr(0, 8), "[70000] ");

  // A changed byte of any tensor is found, whatever the digests in the headers say.
  std::ifstream in(y, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  const auto* raw = reinterpret_cast<const char*>(changed.data());
  const size_t at = bytes.find(std::string(raw + 400'000, 4));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(y, std::ios::binary) << bytes;
  const auto damaged = diff_files(x, y);
  ASSERT_FALSE(damaged.ok());
  EXPECT_NE(damaged.error().message().find("layer/b"), std::string::npos)
      << damaged.error().message();
  EXPECT_NE(damaged.error().message().find("digest"), std::string::npos);
}

TEST(DiffCheckpoints, LargestRelativeDistanceFirst) {
  const Diff d = diff_checkpoints(checkpoint_of({{"a", {100}}, {"b", {1}}, {"c", {10}}}),
                                  checkpoint_of({{"a", {101}}, {"b", {2}}, {"c", {11}}}));
  ASSERT_EQ(d.tensors.size(), 3u);
  EXPECT_EQ(d.tensors[0].name, "b");
  EXPECT_EQ(d.tensors[1].name, "c");
  EXPECT_EQ(d.tensors[2].name, "a");
}

TEST(DiffCheckpoints, MissingTensorsOnEitherSide) {
  const Diff d = diff_checkpoints(checkpoint_of({{"k", {1}}, {"old", {1, 2}}}),
                                  checkpoint_of({{"k", {1}}, {"new", {1}}}));
  EXPECT_FALSE(d.same);
  ASSERT_EQ(d.tensors.size(), 2u);
  EXPECT_EQ(d.tensors[0].name, "old");
  EXPECT_EQ(d.tensors[0].types, "only in A");
  EXPECT_EQ(d.tensors[1].name, "new");
  EXPECT_EQ(d.tensors[1].types, "only in B");
}

TEST(DiffCheckpoints, AnotherShape) {
  const Diff d =
      diff_checkpoints(checkpoint_of({{"k", {1, 2}}}), checkpoint_of({{"k", {1, 2, 3}}}));
  EXPECT_FALSE(d.same);
  EXPECT_EQ(d.tensors.at(0).types, "f32[2] against f32[3]");
}

TEST(DiffCheckpoints, NaNOnOneSideAndOnBoth) {
  const float nan = from_bits(kCanonicalNaN);
  const Diff both = diff_checkpoints(checkpoint_of({{"k", {nan}}}), checkpoint_of({{"k", {nan}}}));
  EXPECT_TRUE(both.same);
  const Diff one =
      diff_checkpoints(checkpoint_of({{"k", {1, nan, 3}}}), checkpoint_of({{"k", {1, 2, 3}}}));
  EXPECT_FALSE(one.same);
  EXPECT_EQ(one.tensors.at(0).nans, 1);
  EXPECT_EQ(one.tensors.at(0).different, 1);
  EXPECT_TRUE(std::isfinite(one.tensors.at(0).max_abs));
}

TEST(DiffCheckpoints, NotesWhatElseIsOtherwise) {
  Checkpoint a = checkpoint_of({{"k", {1}}}), b = a;
  b.step = 9;
  b.contract = a.contract + 1;
  b.scenario_digest = "else";
  const Diff d = diff_checkpoints(a, b);
  EXPECT_TRUE(has_note(d, "after 5 steps against 9"));
  EXPECT_TRUE(has_note(d, "contract"));
  EXPECT_TRUE(has_note(d, "different scenarios"));
}

TEST(DiffRuns, SameRunTwice) {
  const Diff d = diff_runs(trained({}).file, trained({}).file);
  EXPECT_TRUE(d.same);
  EXPECT_EQ(d.kind, "run");
  EXPECT_FALSE(d.first_step);
  EXPECT_FALSE(d.first_loss);
  EXPECT_EQ(d.steps_a, 20);
  EXPECT_EQ(d.steps_b, 20);
  ASSERT_TRUE(d.eval_loss_a && d.eval_loss_b);
  EXPECT_EQ(*d.eval_loss_a, *d.eval_loss_b);
  EXPECT_GT(d.tensors_compared, 0);
}

// A fault in the update of one step: losses diverge one step after the states do.
TEST(DiffRuns, FirstStateAndFirstLoss) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program program = e.whole();
  RunOptions options;
  const RunResult clean = tiny::must(train(e, program, *tiny::backend("cpu"), options));
  const auto broken = tiny::faulty(tiny::backend("cpu"), "scale@dense1/kernel.update_step,step=6");
  const RunResult faulty = tiny::must(train(e, program, *broken, options));
  const Diff d = diff_runs(faulty.file, clean.file);
  EXPECT_FALSE(d.same);
  EXPECT_EQ(d.first_step, 6);
  EXPECT_EQ(d.first_loss, 7);
  EXPECT_GT(d.max_loss_gap, 0);
  ASSERT_FALSE(d.tensors.empty());
}

TEST(DiffRuns, ResumedRunAgainstItsWhole) {
  const RunResult whole = trained({});
  RunOptions first;
  first.steps = 8;
  const RunResult half = trained({}, first);
  RunOptions second;
  second.first_step = 8;
  second.start = half.states;
  const RunResult rest = trained({}, second);
  const Diff d = diff_runs(whole.file, rest.file);
  EXPECT_TRUE(d.same);
  EXPECT_FALSE(d.first_step);
  EXPECT_TRUE(has_note(d, "B at step 8"));

  const Diff unfinished = diff_runs(whole.file, half.file);
  EXPECT_FALSE(unfinished.same);
  EXPECT_FALSE(unfinished.first_step);
  EXPECT_TRUE(has_note(unfinished, "B after step 8"));
}

// The step at which a faulty resumed run diverges is counted from the beginning of training.
TEST(DiffRuns, ResumedRunThatWentAstray) {
  const RunResult whole = trained({});
  RunOptions first;
  first.steps = 8;
  const RunResult half = trained({}, first);
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program program = e.whole();
  const auto broken = tiny::faulty(tiny::backend("cpu"), "scale@dense1/kernel.update_step,step=11");
  RunOptions second;
  second.first_step = 8;
  second.start = half.states;
  const RunResult rest = tiny::must(train(e, program, *broken, second));
  EXPECT_EQ(diff_runs(rest.file, whole.file).first_step, 11);
  EXPECT_EQ(diff_runs(whole.file, rest.file).first_step, 11);
}

TEST(DiffRuns, NaNLossIsAnInfiniteGap) {
  RunFile a = trained({}).file, b = a;
  b.steps[4].loss = std::numeric_limits<float>::quiet_NaN();
  const Diff d = diff_runs(a, b);
  EXPECT_FALSE(d.same);
  EXPECT_EQ(d.first_loss, 4);
  EXPECT_TRUE(std::isinf(d.max_loss_gap));
}

TEST(DiffRuns, OtherScenarioIsNoted) {
  const Diff d = diff_runs(trained({{"optimizer.lr", "0.1"}}).file, trained({}).file);
  EXPECT_TRUE(has_note(d, "different scenarios"));
  EXPECT_EQ(d.first_step, 0);
}

// The third check of the guide "Debugging drops in model accuracy": unless the initial checkpoints
// are the same, nothing else is comparable.
TEST(DiffRuns, OtherInitialCheckpointIsSaidFirst) {
  const Experiment e = tiny::experiment(tiny::kDense);
  RunOptions other;
  other.start = initial_states(e.whole(), 77);
  const Diff d = diff_runs(trained({}, other).file, trained({}).file);
  EXPECT_EQ(d.same_start, false);
  ASSERT_FALSE(d.notes.empty());
  EXPECT_NE(d.notes.front().find("begin from different initial checkpoints"), std::string::npos)
      << d.notes.front();
  // Another seed gives other weights. Another learning rate, or one slot more, does not.
  const Diff seeds = diff_runs(trained({{"seed", "4"}}).file, trained({}).file);
  EXPECT_NE(seeds.notes.front().find("initial checkpoints"), std::string::npos);
  const Diff rates = diff_runs(
      trained({{"optimizer.kind", "momentum"}, {"optimizer.lr", "0.1"}}).file, trained({}).file);
  EXPECT_EQ(rates.same_start, true);
  EXPECT_FALSE(has_note(rates, "initial checkpoints"));
  RunFile old = trained({}).file;
  old.environment.clear();
  EXPECT_FALSE(diff_runs(old, trained({}).file).same_start) << "nothing is known of it";
}

TEST(DiffFiles, RunsCheckpointsAndMixtures) {
  const Folder folder;
  const RunFile run = trained({}).file;
  tiny::must(write_run(folder / "run.h5", run));
  tiny::must(write_checkpoint(folder / "c.h5", run.checkpoints.back()));
  EXPECT_TRUE(tiny::must(diff_files(folder / "run.h5", folder / "run.h5")).same);
  EXPECT_EQ(tiny::must(diff_files(folder / "c.h5", folder / "c.h5")).kind, "checkpoint");
  const auto mixed = diff_files(folder / "run.h5", folder / "c.h5");
  ASSERT_FALSE(mixed.ok());
  EXPECT_NE(mixed.error().what.find("a run and a checkpoint"), std::string::npos);
  EXPECT_FALSE(mixed.error().fix.empty());
  EXPECT_FALSE(diff_files(folder / "run.h5", folder / "none.h5").ok());
}

}  // namespace
}  // namespace twinrun

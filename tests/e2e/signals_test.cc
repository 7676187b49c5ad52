// Tests stopping and resuming. SIGINT and SIGTERM end training after the current loop of steps and
// leave a resumable run; a second signal ends at once; SIGKILL leaves the last periodic checkpoint.
// Resuming always gives the bits of an uninterrupted run.
#include <fstream>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

// Takes about 50 ms per step, with per-core statistics and optimizer slots. A checkpoint every 3
// steps and a loop of 5 steps mean that a checkpoint falls in the middle of a loop.
const Words kLongTrain = {"train",     "digits_cnn",
                          "--engine",  "tpu",
                          "--cores",   "4",
                          "--threads", "1",
                          "--set",     "data.train=256",
                          "--set",     "data.eval=32",
                          "--set",     "train.batch=64",
                          "--set",     "train.steps=30",
                          "--set",     "train.checkpoint_every=3",
                          "--set",     "tpu.iterations_per_loop=5",
                          "--set",     "optimizer.kind=adam",
                          "--set",     "optimizer.lr=0.002"};

Words train(const Words& more) { return with(kLongTrain, more); }

// {state digest, run digest} of a run that is not interrupted.
std::pair<std::string, std::string> undisturbed() {
  static const std::pair<std::string, std::string> digests = [] {
    const Folder folder;
    const Outcome o = twinrun(folder, train({"-o", "whole.h5", "--json", "-q"}));
    const auto j = json_of(o.out);
    return std::pair(j["state_digest"].get<std::string>(), j["root_digest"].get<std::string>());
  }();
  return digests;
}

TEST(Signals, InterruptedRunGoesOnToTheSameBits) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Folder folder;
    Process process(folder, train({"-o", "run.h5"}));
    ASSERT_TRUE(process.wait_for(folder / "run.h5.checkpoint.h5"));
    process.kill(signal);
    const Outcome stopped = process.finish();
    EXPECT_EQ(stopped.code, 130) << stopped.err;
    EXPECT_TRUE(stopped.says("--resume run.h5")) << stopped.err;
    const auto run = json_of(twinrun(folder, {"inspect", "run.h5", "--json"}).out);
    EXPECT_EQ(run["ended"], "interrupted");
    EXPECT_GE(run["steps"], 3);
    EXPECT_EQ(run["steps"].get<int>() % 5, 0) << "an interrupt waits for the end of the loop";
    EXPECT_TRUE(stopped.prints("partial: interrupted at step")) << stopped.out;
    ASSERT_LT(run["steps"], 30) << "the run was over before the signal came";
    EXPECT_EQ(run["checkpoints"].back()["step"], run["steps"]);
    EXPECT_EQ(folder.entries(), (std::set<std::string>{"run.h5"}));

    const Outcome rest =
        twinrun(folder, train({"--resume", "run.h5", "-o", "rest.h5", "--json", "-q"}));
    EXPECT_EQ(rest.code, 0) << rest.err;
    const auto j = json_of(rest.out);
    EXPECT_EQ(j["ended"], "completed");
    EXPECT_EQ(j["state_digest"], undisturbed().first);
    // The run file equals that of a run which was never stopped.
    EXPECT_EQ(j["root_digest"], undisturbed().second);
  }
}

TEST(Signals, ResumedInPlaceKeepsItsHistory) {
  const Folder folder;
  Process process(folder, train({"-o", "run.h5", "-q"}));
  ASSERT_TRUE(process.wait_for(folder / "run.h5.checkpoint.h5"));
  process.kill(SIGINT);
  ASSERT_EQ(process.finish().code, 130);
  const Outcome rest =
      twinrun(folder, train({"--resume", "run.h5", "-o", "run.h5", "--json", "-q"}));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(json_of(rest.out)["steps"], 30);
  EXPECT_EQ(json_of(rest.out)["root_digest"], undisturbed().second);
  const auto run = json_of(twinrun(folder, {"inspect", "run.h5", "--json"}).out);
  EXPECT_EQ(run["first_step"], 0);
}

TEST(Signals, KilledRunGoesOnFromItsLastCheckpoint) {
  const Folder folder;
  Process process(folder, train({"-o", "run.h5", "-q"}));
  ASSERT_TRUE(process.wait_for(folder / "run.h5.checkpoint.h5"));
  process.kill(SIGKILL);
  EXPECT_EQ(process.finish().signal, SIGKILL);
  EXPECT_FALSE(fs::exists(folder / "run.h5"));
  const auto kept = json_of(twinrun(folder, {"inspect", "run.h5.checkpoint.h5", "--json"}).out);
  const int step = kept["checkpoints"].back()["step"];
  EXPECT_EQ(step % 5, 0);  // checkpoints are written at the end of a loop
  EXPECT_EQ(kept["steps"], step) << "the losses up to the checkpoint are kept";
  ASSERT_LT(step, 30);
  const Outcome rest =
      twinrun(folder, train({"--resume", "run.h5.checkpoint.h5", "-o", "rest.h5", "--json", "-q"}));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(json_of(rest.out)["state_digest"], undisturbed().first);
  EXPECT_EQ(json_of(rest.out)["root_digest"], undisturbed().second);
}

// A supervisor types the same command again.
TEST(Signals, TheSameCommandGoesOnWithAKilledRun) {
  const Folder folder;
  Process process(folder, train({"-o", "run.h5", "-q"}));
  ASSERT_TRUE(process.wait_for(folder / "run.h5.checkpoint.h5"));
  process.kill(SIGKILL);
  process.finish();
  const auto kept = [&] {
    return json_of(
               twinrun(folder, {"inspect", "run.h5.checkpoint.h5", "--json"}).out)["checkpoints"]
        .back()["step"]
        .get<int>();
  };
  const int before = kept();
  // Another run does not take its place.
  const Outcome other =
      twinrun(folder, train({"--set", "optimizer.lr=0.003", "-o", "run.h5", "--json", "-q"}));
  EXPECT_EQ(other.code, 128) << other.err;
  EXPECT_TRUE(other.says("--restart")) << other.err;
  EXPECT_EQ(kept(), before);
  const Outcome rest = twinrun(folder, train({"-o", "run.h5", "--json", "-q"}));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(rest.says("goes on after step " + std::to_string(before))) << rest.err;
  EXPECT_EQ(json_of(rest.out)["root_digest"], undisturbed().second);
  EXPECT_EQ(folder.entries(), (std::set<std::string>{"run.h5"}));
}

// Killed after several checkpoints, or twice: the file is that of a run which was never stopped.
TEST(Signals, EarlierCheckpointsOutliveAKill) {
  const Folder folder;
  for (const char* file : {"run.h5.checkpoint.h5.5", "run.h5.checkpoint.h5.15"}) {
    Process process(folder, train({"-o", "run.h5", "-q"}));
    ASSERT_TRUE(process.wait_for(folder / file));
    process.kill(SIGKILL);
    EXPECT_EQ(process.finish().signal, SIGKILL);
  }
  const Outcome rest = twinrun(folder, train({"-o", "run.h5", "--json", "-q"}));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(json_of(rest.out)["root_digest"], undisturbed().second);
  EXPECT_EQ(folder.entries(), (std::set<std::string>{"run.h5"}));
}

TEST(Signals, TheSameCommandGoesOnWithAKilledResumption) {
  const Folder folder;
  Process first(folder, train({"-o", "half.h5", "-q"}));
  ASSERT_TRUE(first.wait_for(folder / "half.h5.checkpoint.h5.5"));
  first.kill(SIGINT);
  ASSERT_EQ(first.finish().code, 130);
  const Words command = train({"--resume", "half.h5", "-o", "run.h5", "--json", "-q"});
  Process process(folder, command);
  ASSERT_TRUE(process.wait_for(folder / "run.h5.checkpoint.h5"));
  process.kill(SIGKILL);
  process.finish();
  // Another beginning does not take its place.
  ASSERT_EQ(twinrun(folder, {"train", "digits_cnn", "--snapshot", "--set", "seed=7", "--set",
                             "optimizer.kind=adam", "-o", "init.h5"})
                .code,
            0);
  const Outcome other = twinrun(folder, train({"--init", "init.h5", "-o", "run.h5", "-q"}));
  EXPECT_EQ(other.code, 128) << other.err;
  EXPECT_TRUE(other.says("another beginning was given")) << other.err;
  const Outcome rest = twinrun(folder, command);
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(rest.says("of a run that was cut off")) << rest.err;
  EXPECT_EQ(json_of(rest.out)["root_digest"], undisturbed().second);
  EXPECT_EQ(folder.entries(), (std::set<std::string>{"half.h5", "init.h5", "run.h5"}));
}

TEST(Signals, AFileOfThatNameIsNotRemoved) {
  const Folder folder;
  std::ofstream(folder / "run.h5.checkpoint.h5") << "mine";
  for (const Words& more : {Words{}, Words{"--restart"}}) {
    const Outcome o = twinrun(folder, train(with({"-o", "run.h5", "--json", "-q"}, more)));
    EXPECT_EQ(o.code, 128) << o.err;
    EXPECT_TRUE(o.says("run.h5.checkpoint.h5")) << o.err;
  }
  EXPECT_EQ(fs::file_size(folder / "run.h5.checkpoint.h5"), 4u);
}

// A step takes seconds here; the second signal must not wait for its end.
TEST(Signals, TheSecondOneEndsAtOnce) {
  const Folder folder;
  Process process(folder,
                  {"train", "digits_cnn", "--threads", "1", "--set", "train.batch=4096", "--set",
                   "train.steps=9", "--set", "train.checkpoint_every=1", "-o", "run.h5"});
  ASSERT_TRUE(process.wait_for(folder / "run.h5.checkpoint.h5"));
  process.kill(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // signals 200 ms apart count as two
  const auto begin = Clock::now();
  process.kill(SIGTERM);
  EXPECT_EQ(process.finish().code, 130);
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(1000));
  EXPECT_FALSE(fs::exists(folder / "run.h5"));
}

// A terminal and a parent that forwards signals can both deliver one key press: two signals in
// quick succession count as one.
TEST(Signals, DeliveredTwiceIsOnePress) {
  const Folder folder;
  Process process(folder, train({"--set", "train.checkpoint_every=1", "-o", "run.h5"}));
  ASSERT_TRUE(process.wait_for(folder / "run.h5.checkpoint.h5"));
  process.kill(SIGINT);
  process.kill(SIGTERM);
  EXPECT_EQ(process.finish().code, 130);
  EXPECT_TRUE(fs::exists(folder / "run.h5"));
}

TEST(Signals, InterruptedDiagnosisSaysSo) {
  const Folder folder;
  Process process(folder, {"diagnose", "digits_mlp", "--threads", "1", "-o", "out"});
  ASSERT_TRUE(process.wait_for(folder / "out/runs/R.h5"));
  process.kill(SIGINT);
  const Outcome o = process.finish();
  EXPECT_EQ(o.code, 130);
  EXPECT_TRUE(o.says("interrupted")) << o.err;
  EXPECT_FALSE(fs::exists(folder / "out/report.json"));
}

// The run during which the signal arrived is reported as partial and not saved as a complete run.
TEST(Signals, APartialRunIsNotToldAsFinished) {
  const Folder folder;
  Process process(folder, {"diagnose", "digits_mlp", "--threads", "1", "--set", "train.steps=20000",
                           "-o", "out"});
  ASSERT_TRUE(process.wait_for(folder / "out/init.h5"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the run R begins
  process.kill(SIGINT);
  const Outcome o = process.finish();
  EXPECT_EQ(o.code, 130);
  EXPECT_TRUE(o.says("partial: interrupted at step")) << o.err;
  EXPECT_TRUE(o.says(" of 20000")) << o.err;
  EXPECT_FALSE(o.says("held-out loss")) << o.err;
  EXPECT_FALSE(fs::exists(folder / "out/runs/R.h5"));
}

}  // namespace
}  // namespace twinrun::e2e

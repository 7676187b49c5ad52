// Tests event files: what is written is read back, and damage is refused with the number of the
// record. For TensorBoard's own reader see tests/harness/read_event_files.py.
#include "harness/foreign/event_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "harness/foreign/curves.h"
#include "harness/foreign/tensorboard.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class EventFile : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }
  Folder folder_;
};

const Curve kLoss{"loss", {0, 1, 5}, {2.5, 0.125, std::numeric_limits<double>::quiet_NaN()}, true};
const Curve kRate{"learning_rate", {1, 2}, {0.1f, std::numeric_limits<double>::infinity()}, true};

TEST_F(EventFile, ReadsBackWhatIsWritten) {
  const std::string path = write("a.tfevents.1", event_file({kLoss, kRate}));
  const auto back = read_events(path);
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_EQ(back->curves.size(), 2U);
  EXPECT_EQ(back->curves[0].name, "loss");
  EXPECT_EQ(back->curves[0].steps, kLoss.steps);
  EXPECT_EQ(back->curves[0].values[1], 0.125);
  EXPECT_TRUE(std::isnan(back->curves[0].values[2]));
  EXPECT_EQ(back->curves[1].values, kRate.values);
  EXPECT_TRUE(back->curves[1].binary32);
  EXPECT_EQ(back->replaced, 0);
  EXPECT_EQ(event_file({kLoss, kRate}), event_file({kLoss, kRate})) << "a function of the curves";
}

// The first record of every event file as TensorFlow writes it. All bytes but those of its
// checksums are compared.
TEST_F(EventFile, TheFramingIsTfRecords) {
  const std::string bytes = event_file({});
  ASSERT_EQ(bytes.size(), 8 + 4 + 15 + 4U);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x0f\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(12, 15),
            "\x1a\x0d"
            "brain.Event:2");
}

TEST_F(EventFile, AFolderIsOneRunAndLaterValuesCount) {
  write("run/events.out.tfevents.1", event_file({{"loss", {0, 1, 2}, {3, 2, 1}}}));
  write("run/events.out.tfevents.2", event_file({{"loss", {2, 3}, {0.5, 0.25}}}));
  write("run/readme.txt", "no events");
  const auto back = read_events(folder_ / "run");
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->curves[0].steps, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(back->curves[0].values, (std::vector<double>{3, 2, 0.5, 0.25}));
  EXPECT_EQ(back->replaced, 1);
  EXPECT_TRUE(is_event_path(folder_ / "run"));
  EXPECT_FALSE(is_event_path(folder_ / ""));
  EXPECT_FALSE(read_events(folder_ / ""));
}

TEST_F(EventFile, DamageIsNamedByRecord) {
  const std::string good = event_file({kLoss});
  for (size_t i = 0; i < good.size(); i += 3) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    const auto back = read_events(write("x.tfevents.1", bad));
    ASSERT_FALSE(back) << i;
    EXPECT_NE(back.error().where.find("x.tfevents.1: record "), std::string::npos)
        << back.error().message();
  }
  int whole = 0;
  for (size_t size = 1; size < good.size(); ++size) {
    const auto back = read_events(write("x.tfevents.1", good.substr(0, size)));
    if (back) ++whole;  // cut between two records
  }
  EXPECT_EQ(whole, 3);
  const auto text = read_events(write("y.tfevents.1", "no events at all, but long enough"));
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().what.find("not an event file"), std::string::npos);
}

TEST_F(EventFile, EveryRunOfADiagnosisHasAFolder) {
  const Experiment e = tiny::experiment(tiny::kDense, {});
  const RunResult r = tiny::must(train(e, e.whole(), *tiny::backend("cpu"), {}));
  fs::create_directories(folder_ / "runs");
  ASSERT_TRUE(write_run(folder_ / "runs/R.h5", r.file));
  Report report;
  report.runs.resize(2);
  report.runs[0].name = "R";
  report.runs[1].name = "T#1";  // its file is missing
  report.runs[1].steps = 2;
  report.runs[1].losses = {0.5f, 0.25f};
  report.runs[1].eval_loss = 0.375;
  const auto files = tensorboard_files(report, folder_ / "");
  ASSERT_TRUE(files) << files.error().message();
  ASSERT_EQ(files->size(), 2U);
  EXPECT_EQ((*files)[0].name, "R/events.out.tfevents.0.twinrun");
  const auto first = read_events(write("t/" + (*files)[0].name, (*files)[0].content));
  ASSERT_TRUE(first) << first.error().message();
  ASSERT_EQ(first->curves.size(), curves_of(r.file).size());
  for (size_t i = 0; i < r.file.steps.size(); ++i)
    EXPECT_EQ(static_cast<float>(first->curves[0].values[i]), r.file.steps[i].loss);
  const auto second = read_events(write("t/" + (*files)[1].name, (*files)[1].content));
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(second->curves[0].values, (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(second->curves[1].steps, std::vector<int64_t>{2});
  for (const char* name : {"../x", "", "a/b", ".", "x\ny"}) {
    report.runs[1].name = name;
    EXPECT_FALSE(tensorboard_files(report, folder_ / "")) << name;
  }
}

}  // namespace
}  // namespace twinrun

// Tests curves and weights in the formats of other tools, against each other and against ours;
// hostile files are refused with the line and column.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "checkpoints/container/atomic_file.h"
#include "checkpoints/interchange/weights.h"
#include "harness/diff/diff.h"
#include "harness/foreign/convert.h"
#include "harness/foreign/curves.h"
#include "harness/foreign/event_file.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

class DiffForeign : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  Curve curve(const std::string& name, const std::string& text, const std::string& column = "") {
    return tiny::must(read_curve(write(name, text), column)).curve;
  }
  void refused(const std::string& name, const std::string& text, const std::string& says,
               const std::string& column = "") {
    const auto read = read_curve(write(name, text), column);
    ASSERT_FALSE(read) << text;
    EXPECT_NE(read.error().message().find(says), std::string::npos)
        << says << ": " << read.error().message();
    EXPECT_NE(read.error().message().find(name), std::string::npos) << read.error().message();
  }
  Folder folder_;
};

using Steps = std::vector<int64_t>;
using Values = std::vector<double>;

TEST_F(DiffForeign, CsvHasManyForms) {
  EXPECT_EQ(curve("a.csv", "step,loss\n0,2.5\n1,0.5\n").values, (Values{2.5, 0.5}));
  const Curve board =
      curve("b.csv", "Wall time,Step,Value\r\n1700000000.5,10,0.25\r\n1700000001,20,+1e-3\r\n");
  EXPECT_EQ(board.name, "Value");
  EXPECT_EQ(board.steps, (Steps{10, 20}));
  EXPECT_EQ(board.values, (Values{0.25, 1e-3}));
  EXPECT_EQ(curve("c.tsv", "epoch\tloss\tacc\n1.0\t3\t0.1\n2\t\t0.2\n3\t1\n").steps, (Steps{1, 3}));
  EXPECT_EQ(
      curve("d.csv", "\xEF\xBB\xBF\"Train_Loss\";\"note \"\"x\"\";\"\n1;\"a;\nb\"\n2;c\n").values,
      (Values{1, 2}));
  const Curve odd = curve("e.csv", "step,loss\n0,nan\n1,-inf\n2, 4 \n\n");
  EXPECT_TRUE(std::isnan(odd.values[0]) && std::isinf(odd.values[1]));
  EXPECT_EQ(odd.values[2], 4);
  EXPECT_EQ(curve("f.csv", "step,a,b\n0,1,2\n", "b").values, Values{2});
}

TEST_F(DiffForeign, JsonLinesAsPythonWritesThem) {
  const Curve c = curve("a.jsonl",
                        "{\"step\": 0, \"loss\": 2.5, \"note\": \"NaN \\\"Infinity\"}\n"
                        "{\"step\": 1, \"eval\": 1}\n{\"step\": 2, \"loss\": NaN}\n"
                        "\r\n{\"step\": 3, \"loss\": -Infinity}\n{\"step\": 4, \"loss\": null}\n");
  EXPECT_EQ(c.steps, (Steps{0, 2, 3}));
  EXPECT_TRUE(std::isnan(c.values[1]));
  EXPECT_EQ(c.values[2], -INFINITY);
}

TEST_F(DiffForeign, StepsTwiceOrOutOfOrderAreSaid) {
  const auto twice = tiny::must(read_curve(write("a.csv", "step,loss\n0,1\n1,2\n1,3\n"), ""));
  EXPECT_EQ(twice.curve.values, (Values{1, 3}));
  ASSERT_EQ(twice.notes.size(), 1U);
  EXPECT_NE(twice.notes[0].find("1 value written more than once"), std::string::npos)
      << twice.notes[0];
  const auto mixed = tiny::must(read_curve(write("b.csv", "step,loss\n5,1\n1,2\n3,3\n"), ""));
  EXPECT_EQ(mixed.curve.steps, (Steps{1, 3, 5}));
  ASSERT_EQ(mixed.notes.size(), 1U);
  EXPECT_NE(mixed.notes[0].find("not in order"), std::string::npos);
  const auto counted = tiny::must(read_curve(write("c.csv", "loss\n5\n4\n"), ""));
  EXPECT_EQ(counted.curve.steps, (Steps{0, 1}));
  EXPECT_NE(counted.notes[0].find("counted from 0"), std::string::npos);
}

TEST_F(DiffForeign, HostileTextIsRefusedByPlace) {
  refused("a.csv", "step,loss\n0,abc\n", "line 2: 'loss': found 'abc'; allowed: a number, nan");
  refused("a.csv", "step,loss\nx,1\n", "line 2: 'step': found 'x'");
  refused("a.csv", "step,loss\n0.5,1\n", "'step': found '0.5'; allowed: a whole number");
  refused("a.csv", "step,loss\n1e300,1\n", "allowed: a whole number up to 2^53");
  refused("a.csv", "step,loss\nnan,1\n", "allowed: a whole number");
  refused("a.csv", "step,loss\n0,1e999\n", "found '1e999'; allowed: numbers of binary64");
  refused("a.csv", "step,loss\n0,1,2\n", "line 2: 3 cells under 2 column titles");
  refused("a.csv", "step,loss\n0,\"1\n", "a quoted cell is not closed");
  refused("a.csv", "step,loss\n", "holds no value");
  refused("a.csv", "", "holds no value");
  refused("a.csv", "step,a,b\n0,1,2\n", "it has several columns of values: 'a', 'b'");
  refused("a.csv", "step,loss\n0,1\n", "did you mean 'loss'?", "los");
  refused("a.csv", "step,loss\n0,\x1b[31m\n", "found ");
  refused("a.jsonl", "{\"loss\": 1}\n[2]\n",
          "line 2: found '[2]'; allowed: one JSON object per line");
  refused("a.jsonl", "{\"loss\": 1}\n{\"loss\": ", "line 2: found");
  refused("a.jsonl", "{\"loss\": \"high\"}\n", "line 1: 'loss': found 'high'");
  refused("a.jsonl", "{\"loss\": [1]}\n", "found an array or object");
  refused("a.jsonl", "{\"step\": null, \"loss\": 1}\n", "'step': found 'null'");
  refused("a.jsonl", "{\"step\": 1}\n", "a.jsonl: holds no scalar values");
  refused("a.jsonl", std::string(100000, '['), "line 1: found");
  EXPECT_FALSE(read_curve(folder_ / "none.csv", ""));
}

TEST_F(DiffForeign, CurvesAreAlignedByStep) {
  const Curve a{"loss", {0, 1, 2, 3}, {4, 3, 2, 1}}, b{"Value", {1, 2, 5}, {3, 2.5, 0}};
  const Diff d = diff_curves(a, b);
  EXPECT_FALSE(d.same);
  EXPECT_EQ(d.steps_compared, 2);
  EXPECT_EQ(d.first_loss, 2);
  EXPECT_EQ(d.first_values, "2 against 2.5");
  EXPECT_EQ(d.max_loss_gap, 0.5);
  EXPECT_EQ(d.max_relative_gap, 0.2);
  EXPECT_EQ(d.notes, (std::vector<std::string>{"2 steps only in A: 0, 3", "1 step only in B: 5"}));
  EXPECT_TRUE(diff_curves(a, a).same);
  const Curve nan{"loss", {0}, {NAN}}, one{"loss", {0}, {1}};
  EXPECT_TRUE(diff_curves(nan, nan).same);
  EXPECT_TRUE(std::isinf(diff_curves(nan, one).max_loss_gap));
  EXPECT_FALSE(diff_curves(one, {"loss", {0}, {std::nextafter(1.0, 2.0)}}).same);
  EXPECT_TRUE(diff_curves({"loss", {0}, {1}, true}, {"loss", {0}, {1.00000001}}).same)
      << "nine digits name a binary32 number";
}

class DiffOurs : public DiffForeign {
 protected:
  DiffOurs() {
    const Experiment e = tiny::experiment(tiny::kDense, {});
    run_ = tiny::must(train(e, e.whole(), *tiny::backend("cpu"), {})).file;
    tiny::must(write_run(folder_ / "run.h5", run_));
    tiny::must(write_checkpoint(folder_ / "c.h5", run_.checkpoints.back()));
  }
  Diff diff(const std::string& a, const std::string& b, const Columns& columns = {}) {
    return tiny::must(diff_files(folder_ / a, folder_ / b, false, columns));
  }
  void convert_to(const std::string& name, std::optional<WeightsFormat> format = {}) {
    tiny::must(convert({.in = folder_ / "c.h5", .out = folder_ / name, .format = format}));
  }
  RunFile run_;
};

TEST_F(DiffOurs, ARunAgainstItsOwnCurve) {
  std::string csv = "step,loss,lr\n", lines;
  for (size_t i = 0; i < run_.steps.size(); ++i) {
    csv += fmt::format("{},{:.9g},{:.9g}\n", i, run_.steps[i].loss, run_.steps[i].learning_rate);
    lines += fmt::format("{{\"step\": {}, \"loss\": {:.9g}}}\n", i, run_.steps[i].loss);
  }
  write("run.csv", csv);
  write("run.jsonl", lines);
  write("x.tfevents.0", event_file(curves_of(run_)));
  for (const char* other : {"run.csv", "run.jsonl", "x.tfevents.0"}) {
    EXPECT_TRUE(diff("run.h5", other).same) << other;
    EXPECT_TRUE(diff(other, "run.h5").same) << other;
  }
  EXPECT_TRUE(diff("run.csv", "x.tfevents.0").same);
  const Diff rates = diff("run.csv", "run.h5", {"lr", "learning_rate"});
  EXPECT_TRUE(rates.same);
  EXPECT_EQ(rates.column_b, "learning_rate");
  EXPECT_EQ(diff("run.h5", "run.h5", {"held_out/loss", "held_out/loss"}).kind, "curve");
  write("other.csv", "step,loss\n0,1\n");
  const Diff other = diff("run.h5", "other.csv");
  EXPECT_EQ(other.first_loss, 0);
  EXPECT_EQ(other.notes.size(), 1U) << "the steps that it lacks";
}

TEST_F(DiffOurs, ACheckpointAgainstItsOwnWeights) {
  convert_to("w.safetensors");
  convert_to("w.npz");
  convert_to("w.weights.h5");
  convert_to("keras.h5", WeightsFormat::kKerasH5);
  for (const char* theirs : {"w.safetensors", "w.npz", "w.weights.h5", "keras.h5"}) {
    for (const char* ours : {"c.h5", "run.h5"}) {
      const Diff d = diff(ours, theirs);
      EXPECT_TRUE(d.same) << ours << " " << theirs;
      EXPECT_EQ(d.kind, "weights");
      EXPECT_GE(d.tensors_compared, 4) << theirs;
    }
  }
  EXPECT_TRUE(diff("w.npz", "w.safetensors").same);
  Checkpoint moved = run_.checkpoints.back();
  Tensor& kernel = moved.tensors.begin()->second.value;
  const std::string name = moved.tensors.begin()->first;
  kernel = kernel.clone();
  kernel.as<float>()[1] += 0.5f;
  tiny::must(write_checkpoint(folder_ / "moved.h5", moved));
  const Diff d = diff("moved.h5", "w.npz");
  ASSERT_EQ(d.tensors.size(), 1U);
  EXPECT_EQ(d.tensors[0].name, name);
  EXPECT_EQ(d.tensors[0].different, 1);
  EXPECT_FALSE(diff("w.npz", "moved.h5").same);
}

TEST_F(DiffOurs, WhatCannotBeComparedIsSaid) {
  convert_to("w.npz");
  write("a.csv", "step,loss\n0,1\n");
  write("junk.bin", "neither curve nor weights");
  const auto says = [&](const char* a, const char* b, const std::string& part) {
    const auto d = diff_files(folder_ / a, folder_ / b);
    ASSERT_FALSE(d) << a << " " << b;
    EXPECT_NE(d.error().message().find(part), std::string::npos) << d.error().message();
  };
  says("a.csv", "w.npz", "w.npz: holds weights; expected a curve to compare");
  says("a.csv", "c.h5", "c.h5");
  says("junk.bin", "w.npz", "junk.bin: is not a weights file");
  says("none.npz", "w.npz", "none.npz");
}

}  // namespace
}  // namespace twinrun

// Tests what is read of captures: what our own writer makes of a profile, a real capture of JAX,
// and GPU and TPU captures made by hand.
#include "harness/xplane/read.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/xplane/compare.h"
#include "harness/xplane/hlo_names.h"
#include "harness/xplane/timeline.h"
#include "harness/xplane/write.h"
#include "tests/harness/tiny.h"
#include "tests/reports/profile_examples.h"
#include "tests/support/wire_writer.h"

namespace twinrun {
namespace {

using wire::Written;

constexpr const char* kCapture =
    TWINRUN_SOURCE_DIR "/tests/harness/xplane/fixtures/jax_cpu.xplane.pb";

std::map<std::string, CaptureOp> by_name(const Capture& capture) {
  std::map<std::string, CaptureOp> ops;
  for (const CaptureOp& op : capture.ops) ops[op.name] = op;
  return ops;
}

TEST(Xplane, ReadsBackAProfile) {
  const Profile p = examples::profile();
  const Capture c = tiny::must(read_xplane_bytes(to_xplane(p), "x.xplane.pb"));
  EXPECT_EQ(c.device, "TPU v2-8");
  EXPECT_EQ(c.devices, 8);
  EXPECT_EQ(c.steps.size(), 2U);
  EXPECT_NEAR(c.step_seconds, p.step_seconds, 1e-12);
  EXPECT_EQ(c.deviation, 0);
  EXPECT_NEAR(c.input_share, p.average.input / p.step_seconds, 1e-9);
  EXPECT_NEAR(c.idle_share, p.average.host / p.step_seconds, 1e-9);
  EXPECT_NEAR(c.busy_share + c.input_share + c.idle_share, 1, 1e-12);
  auto ops = by_name(c);
  for (const ProfileOp& op : p.ops) {
    const CaptureOp& read = ops[hlo_name(op.name)];
    EXPECT_NEAR(read.seconds, op.seconds, 2e-12) << op.name;
    EXPECT_EQ(read.category, op.category);
    EXPECT_EQ(read.count, 2 * 8);
    EXPECT_EQ(read.flops, op.flops);
    EXPECT_EQ(read.bytes, op.bytes);
  }
}

TEST(Xplane, MeasuredStepsAreWrittenOneByOne) {
  Profile p = examples::profile();
  p.source = "measured";
  const Capture c = tiny::must(read_xplane_bytes(to_xplane(p), "x.xplane.pb"));
  EXPECT_EQ(c.devices, 1) << "the cores of an engine take turns on the threads";
  ASSERT_EQ(c.steps.size(), p.steps.size());
  for (size_t i = 0; i < p.steps.size(); ++i)
    EXPECT_NEAR(c.steps[i].seconds, p.steps[i].seconds(), 1e-12);
}

TEST(Xplane, WritesTheSameBytesAndTakesHostileNames) {
  EXPECT_EQ(to_xplane(examples::profile()), to_xplane(examples::profile()));
  EXPECT_TRUE(read_xplane_bytes(to_xplane(examples::hostile_profile()), "x"));
  Profile none = examples::profile();
  none.ops.clear();
  none.steps.clear();
  none.input.stages.clear();
  none.average = {};
  const auto read = read_xplane_bytes(to_xplane(none), "x.xplane.pb");
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().what.find("no ops"), std::string::npos) << read.error().message();
}

// tests/xprof/jax_steps.py with 3 steps. tests/xprof/record_jax.py records anew.
TEST(Xplane, ReadsACaptureOfJax) {
  const Capture c = tiny::must(read_xplane(kCapture));
  EXPECT_EQ(c.device, "CPU");
  EXPECT_EQ(c.steps_from, "step annotations of the host");
  ASSERT_EQ(c.steps.size(), 3U);
  EXPECT_EQ(c.steps[0].step, 40);
  EXPECT_EQ(c.steps[2].step, 42);
  EXPECT_FALSE(c.input_known);
  auto ops = by_name(c);
  EXPECT_EQ(ops.size(), c.ops.size());
  for (const auto& [name, op] : ops) {
    EXPECT_EQ(op.count, 3) << name;
    EXPECT_EQ(op.program, "jit_step") << name;
    EXPECT_NE(op.category, "") << name;
  }
  const std::vector<std::string>& tanh = ops["wrapped_tanh"].paths;
  EXPECT_NE(std::ranges::find(tanh, "dense1/tanh"), tanh.end());
  EXPECT_EQ(c.notes.size(), 2U);
}

// A plane with events that have one stat of their own each.
class PlaneMaker {
 public:
  explicit PlaneMaker(const std::string& name) { plane_.text(2, name); }
  void begin_line(const std::string& name, int64_t ns = 0) {
    line_ = Written().text(2, name).number(3, static_cast<uint64_t>(ns));
  }
  void event(const std::string& name, uint64_t begin, uint64_t duration,
             const std::string& stat = "", const std::string& value = "") {
    plane_.message(4, Written().number(1, ++id_).message(2, Written().text(2, name)));
    Written event = Written()
                        .number(1, id_)
                        .number(2, begin * 1'000'000)
                        .number(3, duration * 1'000'000);  // microseconds
    if (!stat.empty()) {
      plane_.message(5, Written().number(1, id_).message(2, Written().text(2, stat)));
      Written written = Written().number(1, id_);
      if (value.find_first_not_of("0123456789") == std::string::npos)
        written.number(4, std::stoull(value));
      else
        written.text(5, value);
      event.message(4, written);
    }
    line_.message(4, event);
  }
  void end_line() { plane_.message(3, line_); }
  const Written& get() const { return plane_; }

 private:
  Written plane_, line_;
  uint64_t id_ = 0;
};

// Two steps of 100 us: a kernel of 60 us in each, of which 10 us overlap with a copy of 20 us on
// another stream, and 30 us of input on the host, 10 us of them while the device is busy.
TEST(Xplane, ReadsStreamsOfAGpu) {
  PlaneMaker gpu("/device:GPU:0"), host("/host:CPU");
  for (const char* name : {"Stream #7", "XLA Ops"}) {
    gpu.begin_line(name);
    gpu.event("sgemm", 0, 60, "hlo_op", "dot.1");
    gpu.event("sgemm", 100, 60, "hlo_op", "dot.1");
    gpu.end_line();
  }
  gpu.begin_line("Stream #8");
  gpu.event("Memcpy", 50, 20);
  gpu.end_line();
  host.begin_line("main");
  host.event("train", 0, 100, "step_num", "5");
  host.event("train", 100, 100, "step_num", "6");
  host.event("IteratorGetNext", 150, 30);
  host.event("of both steps", 0, 200, "group_id", "9");
  host.end_line();
  const Written space = Written().message(1, gpu.get()).message(1, host.get()).text(4, "node1");
  const Capture c = tiny::must(read_xplane_bytes(space.bytes, "gpu.xplane.pb"));
  EXPECT_EQ(c.device, "GPU");
  EXPECT_EQ(c.host, "node1");
  ASSERT_EQ(c.steps.size(), 2U);
  EXPECT_EQ(c.steps[1].step, 6);
  EXPECT_NEAR(c.step_seconds, 100e-6, 1e-12);
  EXPECT_NEAR(c.wall_seconds, 200e-6, 1e-12);
  EXPECT_NEAR(c.busy_share, 130.0 / 200, 1e-9);
  EXPECT_NEAR(c.input_share, 20.0 / 200, 1e-9);
  EXPECT_NEAR(c.idle_share, 50.0 / 200, 1e-9);
  EXPECT_TRUE(c.input_known);
  auto ops = by_name(c);
  ASSERT_EQ(ops.size(), 2U) << "the derived line counts nothing twice";
  EXPECT_NEAR(ops["dot.1"].seconds, 60e-6, 1e-12);
  EXPECT_NEAR(ops["Memcpy"].seconds, 10e-6, 1e-12) << "of a step";
}

// Without a line of steps the executions of the longest program are the steps. A loop holds its
// body.
TEST(Xplane, ReadsModulesAndNestedOpsOfATpu) {
  PlaneMaker tpu("/device:TPU:0"), other("/device:TPU:0 SparseCore 1");
  tpu.begin_line("XLA Modules", 1000);
  for (uint64_t i = 0; i < 3; ++i) tpu.event("jit_step(7)", 100 * i, 80);
  tpu.event("jit_small(8)", 290, 5);
  tpu.end_line();
  tpu.begin_line("XLA Ops", 1000);
  for (uint64_t i = 0; i < 3; ++i) {
    tpu.event("while.1", 100 * i, 80);
    tpu.event("fusion.2", 100 * i + 10, 29, "device_duration_ps", "30000000");
  }
  tpu.end_line();
  other.begin_line("XLA Ops", 1000);
  other.event("ignored", 0, 1000);
  other.end_line();
  const Written space = Written().message(1, tpu.get()).message(1, other.get());
  const Capture c = tiny::must(read_xplane_bytes(space.bytes, "tpu.xplane.pb"));
  EXPECT_EQ(c.steps_from, "executions of jit_step(7)");
  EXPECT_EQ(c.devices, 1);
  EXPECT_NEAR(c.step_seconds, 80e-6, 1e-12);
  EXPECT_NEAR(c.wall_seconds, 280e-6, 1e-12);
  EXPECT_NEAR(c.busy_share, 240.0 / 280, 1e-9);
  auto ops = by_name(c);
  EXPECT_NEAR(ops["while.1"].seconds, 50e-6, 1e-12) << "without its body";
  EXPECT_NEAR(ops["fusion.2"].seconds, 30e-6, 1e-12);
}

TEST(Xplane, SaysWhatIsWrong) {
  const Folder folder;
  const auto error_of = [&](const std::string& bytes) {
    const auto read = read_xplane_bytes(bytes, "a.xplane.pb");
    EXPECT_FALSE(read);
    return read ? "" : read.error().message();
  };
  const std::string whole = to_xplane(examples::profile());
  EXPECT_NE(error_of("{\"traceEvents\": []}").find("is JSON"), std::string::npos);
  EXPECT_NE(error_of("\x1F\x8B\x08").find("is gzip"), std::string::npos);
  EXPECT_NE(error_of("HloModule step").find("is not an XSpace"), std::string::npos);
  EXPECT_NE(error_of("").find("has no planes"), std::string::npos);
  EXPECT_NE(error_of(whole.substr(0, whole.size() - 1)).find("cut short"), std::string::npos);
  EXPECT_NE(error_of(Written().message(1, Written().text(3, "\xFF")).bytes).find("a line is cut"),
            std::string::npos);

  const std::string logs = folder / "logs";
  const std::filesystem::path runs = std::filesystem::path(logs) / "plugins/profile";
  std::filesystem::create_directories(runs);
  EXPECT_NE(read_xplane(logs).error().what.find("holds no *.xplane.pb"), std::string::npos);
  for (const char* run : {"a", "b"}) {
    std::filesystem::create_directories(runs / run);
    std::ofstream(runs / run / "h.xplane.pb", std::ios::binary) << whole;
    const auto read = read_xplane(logs);
    EXPECT_EQ(read.ok(), *run == 'a') << "one capture is found, two are listed";
    if (!read) {
      EXPECT_NE(read.error().what.find("holds 2 captures"), std::string::npos);
    }
  }
}

TEST(Xplane, FindsTheOpThatTakesLong) {
  Profile model = examples::profile();
  Profile slow = model;
  slow.ops[2].seconds *= 5;  // conv2/convolution: 2 ms become 10
  slow.average.compute += 0.008;
  slow.step_seconds += 0.008;
  model.uncertainty = 2;
  Capture c = tiny::must(read_xplane_bytes(to_xplane(slow), "x.xplane.pb"));
  compare_with(c, model);
  ASSERT_EQ(c.comparison.size(), 1U);
  const CaptureComparison& m = c.comparison[0];
  ASSERT_EQ(m.matches.size(), model.ops.size());
  EXPECT_TRUE(m.same_kind);
  EXPECT_EQ(m.matches[0].ops[0], "conv2_convolution");
  EXPECT_NEAR(m.against_expected(m.matches[0]), 5, 1e-6);
  EXPECT_TRUE(m.slower(m.matches[0]));
  for (size_t i = 1; i < m.matches.size(); ++i) EXPECT_FALSE(m.slower(m.matches[i])) << i;
  EXPECT_EQ(m.only_measured, 0) << "waiting for input is no op";
  EXPECT_EQ(m.only_predicted, 0);

  const auto j = nlohmann::json::parse(to_capture_json(c));
  EXPECT_EQ(j["comparison"]["matches"][0]["slower_than_expected"], true);
  const std::string text = to_capture_text(c, 100);
  EXPECT_NE(text.find("1 of 4 take more than 2.00 times"), std::string::npos) << text;
  // On another kind of device an op is held against its share: 10 of 13 ms, not 2 of 5.
  c.device = "GPU";
  compare_with(c, model);
  EXPECT_NEAR(c.comparison[0].against_expected(c.comparison[0].matches[0]), (10.0 / 13) / (2.0 / 5),
              1e-6);
}

TEST(Timeline, SelfTimesAndSets) {
  std::vector<OpSpan> line(3);
  line[0].begin = 2, line[0].end = 3;
  line[1].begin = 0, line[1].end = 10;
  line[2].begin = 9, line[2].end = 12;  // ends after the span that it begins in
  set_self_times(line);
  EXPECT_EQ(line[0].self, 8);
  EXPECT_EQ(line[1].self, 1);
  EXPECT_EQ(line[2].self, 3);
  const std::vector<Span> a = merged({{5, 7}, {0, 1}, {1, 2}, {6, 9}, {3, 3}});
  EXPECT_EQ(a.size(), 2U);
  EXPECT_EQ(total(a), 6);
  EXPECT_EQ(total(intersection(a, merged({{1.5, 5.5}, {8, 20}}))), 2);
}

}  // namespace
}  // namespace twinrun

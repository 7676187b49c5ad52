// Tests the table of messages and what `twinrun check --log` reads out of logs. The files in logs/
// are excerpts of public threads: their names say which, kLogs says what is in them.
#include "harness/check/log.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "harness/experiment/memory.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

LogReading reading_of(const std::string& text) {
  std::istringstream in(text);
  return read_log(in, "test");
}

std::string ids(const LogReading& r) {
  std::string out;
  for (const LogFinding& f : r.findings)
    out += (out.empty() ? "" : " ") + std::string(f.message->id);
  return out;
}

// A wording with something in place of each argument.
std::string filled(std::string_view wording) {
  std::string out;
  int count = 0;
  for (size_t i = 0; i < wording.size(); ++i) {
    if (wording[i] != '{') {
      out += wording[i];
      continue;
    }
    out += "value" + std::to_string(++count);
    i = wording.find('}', i);
  }
  return out;
}

TEST(Messages, RowsAreComplete) {
  std::set<std::string_view> known;
  EXPECT_GE(messages().size(), 80U);
  for (const Message& m : messages()) {
    SCOPED_TRACE(m.id);
    EXPECT_TRUE(known.insert(m.id).second);
    EXPECT_FALSE(wordings(m).empty());
    EXPECT_FALSE(meaning_of(m).empty());
    EXPECT_FALSE(m.fix.empty());
    EXPECT_FALSE(sources_of(m).empty());
    for (const std::string_view id : rules_of(m)) EXPECT_EQ(rule(id).id, id);
  }
}

TEST(Messages, EveryRuleWithAMessageHasARow) {
  std::set<std::string_view> named;
  for (const Message& m : messages()) {
    for (const std::string_view id : rules_of(m)) named.insert(id);
  }
  for (const Rule& r : rules()) {
    if (!r.message.empty()) {
      EXPECT_TRUE(named.contains(r.id)) << r.id;
    }
  }
}

TEST(Messages, EveryWordingIsFoundAsItsRowAndAsNoOther) {
  for (const Message& m : messages()) {
    for (const std::string_view w : wordings(m)) {
      const LogReading r = reading_of("before\n  RuntimeError: " + filled(w) + "\nafter\n");
      EXPECT_EQ(ids(r), m.id) << w;
      if (r.findings.empty()) continue;
      EXPECT_EQ(r.findings[0].line, 2U) << w;
      EXPECT_EQ(r.findings[0].count, 1U) << w;
      int count = 0;
      for (const LogArgument& a : r.findings[0].arguments)
        EXPECT_EQ(a.value, "value" + std::to_string(++count)) << w;
    }
  }
}

// Terminals cut words anywhere, mails and editors at spaces.
TEST(Messages, WrappedMessagesAreFound) {
  constexpr size_t kWidth = 40;
  for (const Message& m : messages()) {
    for (const std::string_view w : wordings(m)) {
      const std::string whole = filled(w);
      std::string cut, at_spaces;
      for (size_t i = 0; i < whole.size(); i += kWidth) cut += whole.substr(i, kWidth) + "\n";
      size_t width = 0;
      for (const char c : whole) {
        const bool wrap = c == ' ' && ++width > kWidth / 8;
        at_spaces += wrap ? '\n' : c;
        if (wrap) width = 0;
      }
      EXPECT_EQ(ids(reading_of(cut)), m.id) << cut;
      EXPECT_EQ(ids(reading_of(at_spaces)), m.id) << at_spaces;
    }
  }
}

TEST(Log, PrefixesAndColoursAreNoHindrance) {
  const char* const before[] = {
      "",
      "ValueError: ",
      "  \t",
      "I0000 00:00:1700000000.123456    1234 tpu.cc:12] ",
      "E1111 07:35:00.272763 140408571025152 error_handling.py:81] ValueError: ",
      "2020-04-03 09:00:45.480838: W tensorflow/core/rpc/grpc_remote_master.cc:157] ",
      "2024-05-01T10:00:00.123Z ",
      "2024-05-01 10:00:00,123 ",
      "INFO:tensorflow:",
      "[rank3]: ",
      "(train_fn pid=123) ",
      "> > ",
      "\x1b[31m\x1b[1mValueError:\x1b[0m ",
      "\x1b]0;title\x07",
      "jaxlib.xla_extension.XlaRuntimeError: INVALID_ARGUMENT: ",
  };
  for (const char* const b : before) {
    // The prefix stands before a wrapped line, too.
    const LogReading r = reading_of(b + std::string("train batch size 100 must be\r\n") + b +
                                    "divisible by number of replicas 8\r\n");
    const bool exception = std::string(b).find("Error") != std::string::npos;
    const LogReading whole = reading_of(
        b + std::string("train batch size 100 must be divisible by number of replicas 8"));
    if (!exception) {
      EXPECT_EQ(ids(r), "batch-size-uneven") << b;
    }
    ASSERT_EQ(ids(whole), "batch-size-uneven") << b;
    EXPECT_EQ(whole.findings[0].arguments[0].value, "100") << b;
    EXPECT_EQ(whole.findings[0].arguments[1].value, "8") << b;
    EXPECT_EQ(whole.findings[0].text,
              "train batch size 100 must be divisible by number of replicas 8");
  }
  EXPECT_EQ(
      ids(reading_of("For TPU training, one of steps or max_steps must be set. Cannot be both "
                     "None.")),
      "train-steps-missing");  // as a web page renders it, without backticks
  EXPECT_EQ(ids(reading_of("No registered \u2018Where\u2019 OpKernel for \u2018TPU\u2019 devices")),
            "op-unsupported");
}

TEST(Log, CausesStandAboveTheirConsequences) {
  const LogReading r = reading_of(
      "INFO:tensorflow:An error was raised while a session was being created. This may be due\n"
      "Deadline Exceeded\n"
      "Some donated buffers were not usable: f32[2]\n"
      "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 9.08G of 7.48G hbm. "
      "Exceeded "
      "hbm capacity by 1.60G.\n"
      "Gradient for dense/kernel is NaN\n");
  EXPECT_EQ(ids(r), "hbm-full training-nan session-renewed deadline-exceeded donation-unused");
  EXPECT_EQ(r.count(MessageKind::kCause), 2U);
  EXPECT_EQ(r.count(MessageKind::kConsequence), 2U);
  EXPECT_EQ(r.count(MessageKind::kRemark), 1U);
}

TEST(Log, RepeatedMessagesAreCounted) {
  std::string text;
  for (int i = 0; i < 20; ++i)
    text += "No registered 'Op" + std::to_string(i % 12) + "' OpKernel for 'TPU' devices\n";
  const LogReading r = reading_of(text);
  ASSERT_EQ(ids(r), "op-unsupported");
  EXPECT_EQ(r.lines, 20U);
  EXPECT_EQ(r.findings[0].count, 20U);
  EXPECT_EQ(r.findings[0].arguments[0].value, "Op0");
  EXPECT_EQ(r.findings[0].others.size(), kMaxOtherTexts);
  EXPECT_NE(r.findings[0].others[0].find("'Op1'"), std::string::npos);
}

TEST(Log, NothingIsKnownOfOtherTexts) {
  for (const char* const text : {"", "\n\n\n", "hello", "step 100: loss 0.5\nstep 200: loss 0.4",
                                 "train batch size 128\nall must be well"}) {
    EXPECT_EQ(ids(reading_of(text)), "") << text;
  }
  EXPECT_EQ(reading_of("a\nb").lines, 2U);
  EXPECT_EQ(reading_of("a\nb\n").lines, 2U);
}

TEST(Log, APieceOfAMessageIsEnough) {
  const std::pair<const char*, const char*> pieces[] = {
      {"must have a fixed size for dimension", "shape-not-static"},
      {"Ran out of memory in memory space hbm", "hbm-full"},
      {"limit: 7.48G", "hbm-full"},
      {"memory space hbm. Used 9.08G of 7.48G hbm", "hbm-full"},
      {"An error was raised while a session was being", "session-renewed"},
  };
  for (const auto& [piece, id] : pieces) {
    const LogReading r = reading_of(std::string("\n") + piece + "\n\n");
    EXPECT_EQ(ids(r), id) << piece;
    if (r.findings.empty()) continue;
    EXPECT_FALSE(r.findings[0].part_of.empty()) << piece;
    EXPECT_EQ(r.findings[0].line, 2U);
    EXPECT_EQ(ids(reading_of(std::string("step 1: loss 0.5\n") + piece)), "") << piece;
  }
  for (const char* const text : {"memory", "an error", "the input", "step 100: loss 0.5", "7.48G"})
    EXPECT_EQ(ids(reading_of(text)), "") << text;
}

struct PublicLog {
  const char* file;
  const char* thread;
  const char* ids;
};
constexpr PublicLog kLogs[] = {
    {"flowpm_27", "DifferentiableUniverseInitiative/flowpm#27", "hbm-full session-closed"},
    {"colabfold_62", "sokrypton/ColabFold#62", "hbm-full"},
    {"tensorflow_26893", "tensorflow/tensorflow#26893", "vmem-full session-closed thread-stopped"},
    {"tensorflow_26214", "tensorflow/tensorflow#26214", "op-unsupported"},
    {"tensorflow_38190", "tensorflow/tensorflow#38190", "socket-closed"},
    {"t5_280", "google-research/text-to-text-transfer-transformer#280", "session-renewed"},
    {"wav2vec2_32", "thevasudevgupta/gsoc-wav2vec2#32", "not-a-constant"},
    {"marin_3737", "marin-community/marin#3737", "no-topology backend-unavailable"},
    {"jax_fault_tolerance", "jax docs/fault_tolerance.rst", "heartbeat-lost peer-died"},
    {"xla_2246", "pytorch/xla#2246", "rendezvous-failed socket-closed"},
    {"colabtools_5126", "googlecolab/colabtools#5126", "hbm-no-buffer"},
};

LogReading public_log(const std::string& name) {
  std::ifstream in(TWINRUN_SOURCE_DIR "/tests/harness/check/logs/" + name + ".log");
  EXPECT_TRUE(in) << name;
  return read_log(in, name);
}

TEST(Log, PublicLogs) {
  for (const PublicLog& log : kLogs) EXPECT_EQ(ids(public_log(log.file)), log.ids) << log.thread;
}

TEST(Log, MemoryIsReadWithItsLargestAllocations) {
  const LogReading r = public_log("flowpm_27");
  ASSERT_TRUE(r.findings[0].memory);
  const LoggedMemory& m = *r.findings[0].memory;
  EXPECT_EQ(m.limit, int64_t{16} << 30);
  EXPECT_EQ(m.used, logged_bytes("41.74G"));
  EXPECT_EQ(m.exceeded, logged_bytes("25.74G"));
  ASSERT_EQ(m.largest.size(), 1U);
  EXPECT_EQ(m.largest[0].bytes, int64_t{32} << 30);
  EXPECT_EQ(m.largest[0].op, "slicewise_79/cic_update/FloorMod");
  EXPECT_EQ(m.largest[0].shape, "s32[8388608,8,4]{2,1,0:T(8,128)}");
  EXPECT_EQ(m.largest[0].unpadded, "1.00G");
  EXPECT_EQ(m.largest[0].expansion, "32.0");
  EXPECT_EQ(m.largest[0].label, "copy.40488");
  EXPECT_EQ(logged_bytes("530.00M"), 530 << 20);
  EXPECT_EQ(logged_bytes("420.0K"), 420 << 10);
  EXPECT_EQ(logged_bytes("0B"), 0);
  for (const char* const no : {"", "G", "unknown size", "-1G", "1e300G", "nan"})
    EXPECT_EQ(logged_bytes(no), 0) << no;
  // The guide's own form, and the list with a logger's prefix before each line.
  const LogReading guide = reading_of(
      "Ran out of memory in memory space hbm; used: 9.00G; limit: 7.48G.\n"
      "2020-05-04 09:05:40.721128: E    1578 tensorflow/xla_util.cc:76]   1. Size: 48.00M\n"
      "2020-05-04 09:05:40.721128: E    1578 tensorflow/xla_util.cc:76]      Shape: "
      "bf16[512,16]{1,0}\n");
  ASSERT_TRUE(guide.findings.at(0).memory);
  EXPECT_EQ(guide.findings[0].memory->exceeded, logged_bytes("9.00G") - logged_bytes("7.48G"));
  ASSERT_EQ(guide.findings[0].memory->largest.size(), 1U);
  EXPECT_EQ(guide.findings[0].memory->largest[0].shape, "bf16[512,16]{1,0}");
}

TEST(Log, AdviceSavesWhatIsMissing) {
  MemoryReport report;
  report.hbm = int64_t{8} << 30;
  report.program = int64_t{10} << 30;
  report.changes = {{"train.batch = 512", "--set train.batch=512", int64_t{5} << 30, true},
                    {"tpu.bfloat16 = true", "--set tpu.bfloat16=true", int64_t{9} << 30, false}};
  report.fit = {{"", 640, 64, int64_t{7} << 30}};
  const auto advice = memory_advice({.exceeded = int64_t{3} << 30}, report);
  ASSERT_EQ(advice.size(), 2U);
  EXPECT_EQ(advice[0],
            "train.batch = 512: saves 5.00G of the model's 10.00G (--set train.batch=512)");
  EXPECT_NE(advice[1].find("--set train.batch=640"), std::string::npos) << advice[1];
  EXPECT_TRUE(memory_advice({}, report).empty());
}

TEST(Log, PlacesInAScenario) {
  const auto checked = check_scenario("digits_cnn", {{"train.batch", "100"}});
  ASSERT_TRUE(checked);
  LogReading r = reading_of(
      "Input 1 to node `digits_cnn/conv1/Conv2D` with op Conv2D must be a compile-time constant\n"
      "train batch size 100 must be divisible by number of replicas 8\n");
  find_places(*checked, r);
  ASSERT_EQ(r.findings.size(), 2U);
  ASSERT_EQ(r.findings[0].places.size(), 1U);
  EXPECT_NE(r.findings[0].places[0].find("model.layers.conv1"), std::string::npos)
      << r.findings[0].places[0];
  EXPECT_TRUE(r.findings[0].agreeing.empty());
  EXPECT_EQ(r.findings[1].agreeing, std::vector<std::string_view>{"batch-not-divisible"});
  // The ops of the largest allocations are looked up as well.
  LogReading full = reading_of(
      "Ran out of memory in memory space hbm. Used 9G of 8G hbm. Exceeded hbm capacity by 1G\n"
      "  1. Size: 2.00G\n     Operator: op_type=\"Conv2D\" op_name=\"digits_cnn/conv2/Conv2D\"\n");
  find_places(*checked, full);
  ASSERT_EQ(full.findings.at(0).places.size(), 1U);
  EXPECT_NE(full.findings[0].places[0].find("conv2"), std::string::npos);
}

TEST(Log, PlacesInAProgram) {
  const Folder folder;
  const std::string file = folder / "places.hlo";
  std::ofstream(file)
      << "HloModule step\nENTRY main {\n  w = f32[8] parameter(0)\n"
         "  fft.3 = f64[8] convert(w), metadata={op_name=\"jit(step)/enc/convert\"}\n"
         "  loss = f32[] constant(1)\n  ROOT out = (f32[8], f32[]) tuple(w, loss)\n}\n";
  const auto checked = check_program({.program = file});
  ASSERT_TRUE(checked) << checked.error().message();
  LogReading r = reading_of(
      "While rewriting computation to not contain X64 element types, XLA encountered an HLO for "
      "which "
      "this rewriting is not implemented: %fft.3 = f64[8]{0} convert(f32[8]{0} %w)\n"
      "Ran out of memory in memory space vmem while allocating on stack for "
      "jit(step)/enc/convert\n");
  find_places(*checked, r);
  ASSERT_EQ(r.findings.size(), 2U);
  ASSERT_EQ(r.findings[0].places.size(), 1U);
  EXPECT_NE(r.findings[0].places[0].find("places.hlo:4: fft.3"), std::string::npos);
  EXPECT_EQ(r.findings[0].agreeing, std::vector<std::string_view>{"wide-dtype"});
  EXPECT_EQ(r.findings[1].places, r.findings[0].places);
}

// Logs are cut anywhere, changed, and made to be expensive: nothing crashes, and what is kept stays
// small.
TEST(Log, HostileLogs) {
  std::string all;
  for (const PublicLog& log : kLogs) {
    std::ifstream in(TWINRUN_SOURCE_DIR "/tests/harness/check/logs/" + std::string(log.file) +
                     ".log");
    all += std::string(std::istreambuf_iterator<char>(in), {});
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string changed = all;
    for (int k = 0; k < 40; ++k)
      changed[random() % changed.size()] = "\x1b[]\n\0\x80\xff{}'`:0"[random() % 13];
    (void)reading_of(changed.substr(0, random() % changed.size()));
  }
  std::string repeated, one_line, sizes;
  for (int i = 0; i < 20000; ++i) {
    repeated += "train batch size ";
    one_line += "Input to node with op ";
    sizes += std::to_string(i) + ". Size: 1.00G\n     Operator: op_name=\"" +
             std::string(300, 'x') + "\"\n";
  }
  EXPECT_EQ(ids(reading_of(repeated)), "");
  EXPECT_EQ(ids(reading_of(one_line)), "");
  const LogReading r = reading_of(
      "Ran out of memory in memory space hbm. Used 9.08G of 7.48G hbm. Exceeded hbm capacity by "
      "1G\n" +
      sizes);
  ASSERT_TRUE(r.findings.at(0).memory);
  EXPECT_LE(r.findings[0].memory->largest.size(), kMaxLoggedAllocations);
  EXPECT_LE(r.findings[0].memory->largest[0].op.size(), 200U);
  // A line longer than what is read at once is found at its seams as well.
  for (const size_t pad : {size_t{16370}, size_t{16380}, size_t{100000}}) {
    const LogReading seam = reading_of(
        std::string(pad, '.') + "train batch size 100 must be divisible by number of replicas 8");
    EXPECT_EQ(ids(seam), "batch-size-uneven") << pad;
    EXPECT_EQ(seam.lines, 1U);
  }
}

// Gives the same text again and again.
class Endless : public std::streambuf {
 protected:
  int_type underflow() override {
    setg(text_, text_, text_ + sizeof text_ - 1);
    return traits_type::to_int_type(text_[0]);
  }

 private:
  char text_[64] = "a line of a log that says nothing which is known to anyone\n....";
};

TEST(Log, OnlySoMuchIsRead) {
  Endless endless;
  std::istream in(&endless);
  const LogReading r = read_log(in, "endless");
  EXPECT_TRUE(r.cut);
  EXPECT_TRUE(r.findings.empty());
  EXPECT_FALSE(reading_of("short").cut);
}

}  // namespace
}  // namespace twinrun

// Traces that are cut short, damaged or hostile end in an error that names the place; none crashes.
#include "harness/trace/trace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <fstream>

#include "harness/trace/judge_trace.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

// Writes records as docs/reference/trace-format.md says.
class Writer {
 public:
  Writer() { out_ = "TWINTRC2" + std::string(56, '\0'); }
  template <typename T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void record(uint32_t kind, uint64_t id, const std::string& payload) {
    std::string covered;
    put<uint32_t>(covered, kind);
    put<uint64_t>(covered, payload.size());
    put<uint64_t>(covered, id);
    covered += payload;
    put<uint32_t>(out_, kind);
    put<uint32_t>(out_,
                  static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(covered.data()),
                                              static_cast<uInt>(covered.size()))));
    out_ += covered.substr(4, 16);
    out_ += payload + std::string((8 - payload.size() % 8) % 8, '\0');
  }
  // A float32 tensor of `n` elements at the begin of a block.
  static std::string tensor(uint64_t block, int64_t n, int64_t offset = 0, int64_t stride = 1) {
    std::string t(1, '\5');
    put<uint64_t>(t, block);
    put<uint64_t>(t, block);
    put<uint32_t>(t, 0);
    t += std::string("\x08\0\0\1", 4);
    put<int64_t>(t, offset);
    put<int64_t>(t, n);
    put<int64_t>(t, stride);
    return t;
  }
  // aten.relu of one tensor, with another as its result.
  static std::string relu(const std::string& x, const std::string& y, int32_t step = 0) {
    std::string c;
    for (const uint32_t id : {1, 0, 0, 0}) put<uint32_t>(c, id);
    put<int64_t>(c, -1);
    put<int32_t>(c, step);
    put<uint32_t>(c, 0);
    put<uint32_t>(c, 1);
    c += x;
    put<uint32_t>(c, 0);
    c += y;
    put<uint32_t>(c, 0);
    return c;
  }
  void begin() {
    record(1, 0, R"({"framework": "torch", "version": "2.15.0", "settings": {}})");
    record(2, 1, "aten.relu.default");
    const float x[4] = {-1, 2, -3, 4}, y[4] = {0, 2, 0, 5};
    record(3, 1, std::string(reinterpret_cast<const char*>(x), sizeof x));
    record(3, 2, std::string(reinterpret_cast<const char*>(y), sizeof y));
  }
  void end() { record(5, 0, R"({"calls": 1, "steps": 1, "bytes": 0, "exception": null})"); }
  const std::string& bytes() const { return out_; }

 private:
  std::string out_;
};

class TraceFileTest : public testing::Test {
 protected:
  const Folder folder_;
  const std::string path_ = folder_ / "trace";
  Result<TraceFile> read(const std::string& bytes, bool partial = false) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return read_trace(path_, partial);
  }
  std::string error(const std::string& bytes) {
    const auto r = read(bytes);
    return r ? "no error" : r.error().message();
  }
};

std::string whole() {
  Writer w;
  w.begin();
  w.record(4, 0, Writer::relu(Writer::tensor(1, 4), Writer::tensor(2, 4)));
  w.end();
  return w.bytes();
}

TEST_F(TraceFileTest, AWrongElementIsNamed) {
  const auto trace = read(whole());
  ASSERT_TRUE(trace) << trace.error().message();
  const TraceVerdict v = judge_trace(*trace, nullptr);
  EXPECT_EQ(to_string(v.verdict()), "ENGINE_BUG");
  ASSERT_EQ(v.findings.size(), 1U);
  EXPECT_EQ(v.findings[0].outside, 1);
  EXPECT_EQ(v.findings[0].worst_index, "[3]");
  EXPECT_EQ(v.findings[0].expected, 4);
  EXPECT_EQ(v.findings[0].got, 5);
}

TEST_F(TraceFileTest, EveryPrefixIsAnErrorOrPartial) {
  const std::string bytes = whole();
  // The end record's padding may be missing.
  for (size_t n = 0; n + 8 < bytes.size(); ++n) {
    EXPECT_FALSE(read(bytes.substr(0, n))) << n;
    static_cast<void>(read(bytes.substr(0, n), true));
  }
}

TEST_F(TraceFileTest, ATraceThatWasKilledHasItsWholeSteps) {
  Writer w;
  w.begin();
  w.record(4, 0, Writer::relu(Writer::tensor(1, 4), Writer::tensor(2, 4)));
  w.record(7, 1, "");
  w.record(4, 1, Writer::relu(Writer::tensor(1, 4), Writer::tensor(2, 4), 1));
  const auto trace = read(w.bytes());
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_TRUE(trace->cut_short);
  EXPECT_EQ(trace->steps, 1);
  EXPECT_EQ(trace->calls.size(), 1U);
  EXPECT_EQ(read(w.bytes(), true)->calls.size(), 2U);
}

// Whatever bit is flipped, nobody is accused of anything else. What no checksum covers is not read.
TEST_F(TraceFileTest, AFlippedBitIsRefusedOrChangesNothing) {
  const std::string bytes = whole();
  int accepted = 0;
  for (size_t n = 0; n < bytes.size(); ++n) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[n] = static_cast<char>(damaged[n] ^ (1 << bit));
      const auto trace = read(damaged);
      if (!trace) continue;
      ++accepted;
      const TraceVerdict v = judge_trace(*trace, nullptr);
      ASSERT_EQ(v.findings.size(), 1U) << n;
      EXPECT_EQ(v.findings[0].worst_index, "[3]");
      EXPECT_EQ(v.findings[0].expected, 4);
      EXPECT_EQ(v.findings[0].got, 5);
    }
  }
  EXPECT_LT(accepted, 8 * (56 + 7 * 7)) << "the header's zeros, and what follows seven records";
}

TEST_F(TraceFileTest, TheFirstFormIsRead) {
  std::string bytes = whole();
  bytes.replace(0, 8, "TWINTRC1");
  for (size_t at = 64; at < bytes.size();) {
    uint32_t kind;
    uint64_t size;
    std::memcpy(&kind, &bytes[at], sizeof kind);
    std::memcpy(&size, &bytes[at + 8], sizeof size);
    const auto crc =
        static_cast<uint32_t>(kind == 3 ? 0
                                        : crc32(0, reinterpret_cast<const Bytef*>(&bytes[at + 24]),
                                                static_cast<uInt>(size)));
    std::memcpy(&bytes[at + 4], &crc, sizeof crc);
    at += 24 + (size + 7) / 8 * 8;
  }
  const auto trace = read(bytes);
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(judge_trace(*trace, nullptr).findings.size(), 1U);
}

TEST_F(TraceFileTest, NothingFollowsTheEnd) {
  EXPECT_NE(error(whole() + std::string(4096, '\0')).find("4096 bytes follow the end record"),
            std::string::npos);
}

// A name of one megabyte, named by 300 calls.
TEST_F(TraceFileTest, NamesAreHeldOnce) {
  Writer w;
  w.begin();
  w.record(2, 2, std::string(1 << 20, 'x'));
  std::string call = Writer::relu(Writer::tensor(1, 4), Writer::tensor(2, 4));
  call[0] = 2;
  for (uint64_t n = 0; n < 300; ++n) w.record(4, n, call);
  w.end();
  EXPECT_NE(error(w.bytes()).find("more than 256 MiB"), std::string::npos);
}

TEST_F(TraceFileTest, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const auto trace = read_trace(path_, false);
  ASSERT_FALSE(trace);
  EXPECT_NE(trace.error().message().find("not a file"), std::string::npos);
}

// Its pages are gone: others would end by SIGBUS.
TEST_F(TraceFileTest, AFileThatShrinksIsAnError) {
  Writer w;
  w.begin();
  w.record(3, 3, std::string(1 << 20, '\1'));
  w.record(4, 0, Writer::relu(Writer::tensor(3, 4, (1 << 20) - 16), Writer::tensor(2, 4)));
  w.end();
  const auto trace = read(w.bytes());
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_TRUE(unchanged(*trace).ok());
  ASSERT_EQ(::truncate(path_.c_str(), 64), 0);
  static_cast<void>(judge_trace(*trace, nullptr));
  ASSERT_FALSE(unchanged(*trace).ok());
  EXPECT_NE(unchanged(*trace).error().what.find("changed while it was read"), std::string::npos);
}

TEST_F(TraceFileTest, TensorsStayWithinTheirBlocks) {
  const auto with = [](const std::string& x) {
    Writer w;
    w.begin();
    w.record(4, 0, Writer::relu(x, Writer::tensor(2, 4)));
    w.end();
    return w.bytes();
  };
  EXPECT_NE(error(with(Writer::tensor(1, 5))).find("reaches beyond its block of 16 bytes"),
            std::string::npos);
  EXPECT_NE(error(with(Writer::tensor(1, 4, 4))).find("reaches beyond"), std::string::npos);
  EXPECT_NE(error(with(Writer::tensor(1, 4, -4))).find("reaches beyond"), std::string::npos);
  EXPECT_NE(error(with(Writer::tensor(1, 4, 0, INT64_MAX))).find("reaches over more than"),
            std::string::npos);
  EXPECT_EQ(error(with(Writer::tensor(1, int64_t{1} << 36, 0, 0))),
            "no error");  // one that is expanded
  EXPECT_NE(error(with(Writer::tensor(1, INT64_MAX))).find("elements"), std::string::npos);
  EXPECT_NE(error(with(Writer::tensor(1, -1))).find("elements"), std::string::npos);
  EXPECT_NE(error(with(Writer::tensor(7, 4))).find("block 7 is not in the file"),
            std::string::npos);
}

// A region y = relu(x) as a graph of one node; what is given replaces its parts.
struct Region {
  uint32_t inputs = 1, argument = 0, output = 1, written_input = 0, graph = 1;
  int64_t size = 4;
  bool writes = false, arguments = true;

  std::string bytes() const {
    Writer w;
    w.begin();
    w.record(2, 2, "torch.compile.inductor");
    w.record(2, 3, "graph");
    std::string g;
    for (const uint32_t n : {inputs, 1U, 1U, 0U, arguments ? 1U : 0U}) Writer::put(g, n);
    if (arguments) {
      g += '\x0a';
      Writer::put(g, argument);
    }
    for (const uint32_t n : {0U, 1U}) Writer::put(g, n);
    g += std::string("\x08\x01", 2);
    Writer::put(g, size);
    Writer::put<uint32_t>(g, 1);
    Writer::put(g, output);
    Writer::put<uint32_t>(g, writes ? 1 : 0);
    if (writes) {
      Writer::put(g, written_input);
      Writer::put<uint32_t>(g, 1);
    }
    w.record(6, 1, g);
    std::string c;
    for (const uint32_t id : {2, 0, 0, 0}) Writer::put<uint32_t>(c, id);
    Writer::put<int64_t>(c, -1);
    for (const uint32_t n : {0, 0, arguments ? 1 : 0}) Writer::put<uint32_t>(c, n);
    if (arguments) {
      c += '\x06';
      Writer::put<uint32_t>(c, 1);
      c += Writer::tensor(1, 4);
    }
    for (const uint32_t n : {1, 3}) Writer::put<uint32_t>(c, n);
    c += '\x02';
    Writer::put<int64_t>(c, graph);
    c += '\x06';
    Writer::put<uint32_t>(c, 1);
    c += Writer::tensor(2, 4);
    Writer::put<uint32_t>(c, writes ? 1 : 0);
    if (writes) c += Writer::tensor(2, 4);
    w.record(4, 0, c);
    w.end();
    return w.bytes();
  }
};

TEST_F(TraceFileTest, AWrongElementOfARegionIsNamed) {
  const auto trace = read(Region{}.bytes());
  ASSERT_TRUE(trace) << trace.error().message();
  const TraceVerdict v = judge_trace(*trace, nullptr);
  ASSERT_EQ(v.findings.size(), 1U);
  EXPECT_EQ(v.findings[0].worst_index, "[3]");
  EXPECT_NE(v.findings[0].result.find("aten.relu.default"), std::string::npos);
}

TEST_F(TraceFileTest, GraphsAreChecked) {
  const auto told = [&](const Region& r) { return error(r.bytes()); };
  EXPECT_NE(told({.argument = 1}).find("value 1 of 1 values"), std::string::npos);  // a cycle
  EXPECT_NE(told({.argument = 0xFFFFFFFF}).find("of 1 values"), std::string::npos);
  EXPECT_NE(told({.output = 2}).find("value 2 of 2 values"), std::string::npos);
  EXPECT_NE(told({.graph = 2}).find("graph 2 is not in the file"), std::string::npos);
  EXPECT_NE(told({.inputs = 2, .output = 2}).find("a region of 1 inputs"), std::string::npos);
  EXPECT_NE(told({.inputs = 0xFFFFFFFF}).find("a graph of 4294967295 inputs"), std::string::npos);
  EXPECT_NE(told({.size = int64_t{1} << 40}).find("elements"), std::string::npos);
  EXPECT_NE(told({.size = -1}).find("elements"), std::string::npos);
  EXPECT_NE(told({.inputs = 0, .output = 0, .arguments = false}).find("without the list of its"),
            std::string::npos);
  EXPECT_NE(told({.written_input = 1, .writes = true}).find("input 1 of 1 is written"),
            std::string::npos);
  // Shapes that disagree with the definition are no finding, but are listed.
  const auto trace = read(Region{.size = 5}.bytes());
  ASSERT_TRUE(trace);
  const TraceVerdict v = judge_trace(*trace, nullptr);
  EXPECT_EQ(v.judged, 0);
  ASSERT_EQ(v.unjudged.size(), 1U);
  EXPECT_NE(v.unjudged.begin()->first.second.find("where the graph has"), std::string::npos);
}

TEST_F(TraceFileTest, NoFlippedByteOfARegionCrashes) {
  const std::string bytes = Region{.writes = true}.bytes();
  for (size_t n = 0; n < bytes.size(); ++n) {
    std::string damaged = bytes;
    damaged[n] = static_cast<char>(damaged[n] ^ 0x81);
    const auto trace = read(damaged);
    if (trace) static_cast<void>(judge_trace(*trace, nullptr));
  }
}

}  // namespace
}  // namespace twinrun

// Traces that are cut short, damaged or hostile end in an error that names the place; none crashes.
#include "harness/trace/trace_file.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "harness/trace/judge_trace.h"

namespace twinrun {
namespace {

// Writes records as docs/reference/trace-format.md says.
class Writer {
 public:
  Writer() { out_ = "TWINTRC1" + std::string(56, '\0'); }
  template <typename T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void record(uint32_t kind, uint64_t id, const std::string& payload) {
    put<uint32_t>(out_, kind);
    const uLong crc =
        crc32(0, reinterpret_cast<const Bytef*>(payload.data()), static_cast<uInt>(payload.size()));
    put<uint32_t>(out_, kind == 3 ? 0 : static_cast<uint32_t>(crc));
    put<uint64_t>(out_, payload.size());
    put<uint64_t>(out_, id);
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
  static std::string relu(const std::string& x, const std::string& y) {
    std::string c;
    for (const uint32_t id : {1, 0, 0, 0}) put<uint32_t>(c, id);
    put<int64_t>(c, -1);
    put<int32_t>(c, 0);
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
  std::string path_ =
      (std::filesystem::temp_directory_path() / ("trace_" + std::to_string(getpid()))).string();
  Result<TraceFile> read(const std::string& bytes, bool partial = false) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return read_trace(path_, partial);
  }
  void TearDown() override { std::filesystem::remove(path_); }
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
  EXPECT_EQ(v.word(), "ENGINE_BUG");
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

TEST_F(TraceFileTest, NoFlippedByteCrashes) {
  const std::string bytes = whole();
  for (size_t n = 0; n < bytes.size(); ++n) {
    std::string damaged = bytes;
    damaged[n] = static_cast<char>(damaged[n] ^ 0x81);
    const auto trace = read(damaged);
    if (trace) static_cast<void>(judge_trace(*trace, nullptr));
  }
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
  EXPECT_NE(error(with(Writer::tensor(1, 4, 0, INT64_MAX))).find("reaches beyond"),
            std::string::npos);
  EXPECT_NE(error(with(Writer::tensor(1, INT64_MAX))).find("elements"), std::string::npos);
  EXPECT_NE(error(with(Writer::tensor(1, -1))).find("elements"), std::string::npos);
  EXPECT_NE(error(with(Writer::tensor(7, 4))).find("block 7 is not in the file"),
            std::string::npos);
}

}  // namespace
}  // namespace twinrun

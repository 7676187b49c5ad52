// Inputs that ask for far more than their size: each is read within a gibibyte and four seconds of
// CPU time, the limits of an isolated process.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>

#include "checkpoints/container/isolated.h"
#include "harness/foreign/curves.h"
#include "tests/fuzz/reader.h"
#include "tests/support/sanitized.h"

namespace twinrun::fuzz {
namespace {

// The error of a check that runs within the limits; "" where there is none.
std::string failure(const char* reader, const std::string& input) {
  const auto done = run_isolated(
      [&]() -> Result<std::vector<std::byte>> {
        try {
          find_reader(reader)->check(input);
        } catch (const Violation& violation) {
          return Error{violation.what, reader, ""};
        }
        return std::vector<std::byte>(1);
      },
      0, reader);
  return done ? "" : done.error().message();
}

std::string repeated(const std::string& text, size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

class FuzzLimits : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory and time cannot be limited";
  }
};

// All objects of the file together would take seventy times its size.
TEST_F(FuzzLimits, TenMegabytesOfJsonLines) {
  const std::string path = as_file("x.jsonl", repeated("{\"a\":1}\n", 1'250'000));
  // As if the file were larger: 16 seconds more on a slow machine, and eight times its memory, which
  // is taken back.
  constexpr uint64_t kAsLarge = uint64_t{16} << 24;
  const auto done = run_isolated(
      [&]() -> Result<std::vector<std::byte>> {
        rlimit memory{};
        ::getrlimit(RLIMIT_AS, &memory);
        memory.rlim_cur -= (rlim_t{700} << 20) + 8 * rlim_t{kAsLarge};
        ::setrlimit(RLIMIT_AS, &memory);
        TWINRUN_ASSIGN(const CurveFile file, read_curve(path, ""));
        return std::vector<std::byte>(file.curve.values.size());
      },
      kAsLarge, path);
  ASSERT_TRUE(done.ok()) << done.error().message();
  EXPECT_EQ(done->size(), 1'250'000u);
}

TEST_F(FuzzLimits, OneLineOfManyValues) {
  EXPECT_EQ(failure("json_lines", "{\"loss\":[" + repeated("[],", 5'000'000) + "1]}\n"), "");
  EXPECT_EQ(failure("report", "{\"schema\":[" + repeated("{},", 5'000'000) + "1]}"), "");
}

TEST_F(FuzzLimits, ManyKeysAndDeepNesting) {
  std::string keys = "{";
  for (int i = 0; i < 200'000; ++i) keys += "\"" + std::to_string(i) + "\":0,";
  keys.back() = '}';
  for (const char* reader :
       {"report", "manifest", "session", "case", "known", "binding", "reply"}) {
    EXPECT_EQ(failure(reader, keys), "") << reader;
    EXPECT_EQ(failure(reader, repeated("[", 2'000'000)), "") << reader;
    EXPECT_EQ(failure(reader, repeated("{\"a\":", 500'000)), "") << reader;
  }
}

}  // namespace
}  // namespace twinrun::fuzz

// Tests readers that run in a process of their own: results, errors, crashes, and limits of time
// and memory.
#include "checkpoints/container/isolated.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/sanitized.h"

namespace twinrun {
namespace {

using Answer = Result<std::vector<std::byte>>;

std::string error_of(const std::function<Answer()>& reader) {
  const auto answer = run_isolated(reader, 0, "f.h5");
  return answer ? "" : answer.error().message();
}

TEST(Isolated, ValuesAndErrorsComeBack) {
  const std::vector<std::byte> bytes(100000, std::byte{7});
  const auto answer = run_isolated([&] { return Answer(bytes); }, 0, "f.h5");
  ASSERT_TRUE(answer.ok()) << answer.error().message();
  EXPECT_EQ(*answer, bytes);
  const auto empty = run_isolated([] { return Answer(std::vector<std::byte>()); }, 0, "f.h5");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->empty());
  const auto error = run_isolated([] { return Answer(Error{"w\xFFhat", "where", "fix"}); }, 0, "f");
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.error().where, "where");
  EXPECT_EQ(error.error().fix, "fix");
}

TEST(Isolated, ACrashIsAnError) {
  EXPECT_NE(error_of([]() -> Answer {
              std::raise(SIGSEGV);
              return std::vector<std::byte>();
            }).find("library that reads it failed"),
            std::string::npos);
  EXPECT_NE(error_of([]() -> Answer { ::_exit(3); }).find("failed"), std::string::npos);
  EXPECT_NE(error_of([]() -> Answer { throw std::bad_alloc(); }).find("failed"), std::string::npos);
}

TEST(Isolated, AnEndlessReaderIsStopped) {
  const std::string error = error_of([]() -> Answer {
    const rlimit second{1, 1};  // 1 s instead of the usual limit of 4 s
    ::setrlimit(RLIMIT_CPU, &second);
    for (;;) (void)::getppid();
  });
  EXPECT_NE(error.find("did not finish in time"), std::string::npos) << error;
}

TEST(Isolated, MemoryIsLimited) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory cannot be limited";
  EXPECT_NE(error_of([]() -> Answer {
              return std::vector<std::byte>(size_t{4} << 30);
            }).find("ran out of memory"),
            std::string::npos);
}

}  // namespace
}  // namespace twinrun

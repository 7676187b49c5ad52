// What is left of the memory, read from files like those of /proc and /sys.
#include "program/base/memory_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/folder.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

// What the heap has freed and kept is added.
void expect_left(const MemoryLeft& left, int64_t bytes) {
  EXPECT_GE(left.bytes, bytes);
  EXPECT_LE(left.bytes, bytes + (64 << 20));
}

class MemoryLeftOf : public ::testing::Test {
 protected:
  MemoryLeftOf() {
    write("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 4000000 kB\nSwapFree: 1000 kB\n");
  }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  const Folder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(MemoryLeftOf, MachineCountsFreeSwap) {
  const MemoryLeft left = memory_left(root_);
  expect_left(left, int64_t{4001000} * 1024);
  EXPECT_EQ(left.limited_by, "this machine's memory");
}

TEST_F(MemoryLeftOf, NothingKnownIsNoLimit) {
  fs::remove(root_ / "proc/meminfo");
  EXPECT_GT(memory_left(root_).bytes, int64_t{1} << 60);
}

TEST_F(MemoryLeftOf, ControlGroupsOfVersion2LeaveTheLeastOfThemselvesAndThoseAbove) {
  write("proc/self/cgroup", "0::/jobs/7\n");
  write("sys/fs/cgroup/jobs/7/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/7/memory.current", "1000\n");
  write("sys/fs/cgroup/jobs/memory.max", "2000000\n");
  write("sys/fs/cgroup/jobs/memory.current", "1500000\n");
  write("sys/fs/cgroup/jobs/memory.stat", "anon 9\nactive_file 100\ninactive_file 20\n");
  const MemoryLeft left = memory_left(root_);
  expect_left(left, 500120);
  EXPECT_EQ(left.limited_by, "the control group /jobs");
}

TEST_F(MemoryLeftOf, ControlGroupOfVersion1InsideAContainer) {
  // The name is the host's; the container sees its own group as the root.
  write("proc/self/cgroup", "12:cpu:/\n4:memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "3500000\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 600000\n");
  expect_left(memory_left(root_), 100000);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_left(root_).limited_by, "this machine's memory");
}

TEST_F(MemoryLeftOf, DamagedFilesAreNoLimit) {
  write("proc/self/cgroup", "0\n::\n4:memory:\n0::\n");
  write("sys/fs/cgroup/memory.max", "lots\n");
  write("sys/fs/cgroup/memory.current", "\n");
  EXPECT_EQ(memory_left(root_).limited_by, "this machine's memory");
}

// Each test is a process of its own in ctest, so these are the first calls in it. Under a sanitizer,
// whose allocator serves malloc, the heap of glibc must be set up before them.
TEST(MemoryLeftInThreads, FirstCallsAtTheSameTime) {
  std::latch ready(8);
  std::vector<std::jthread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      ready.arrive_and_wait();
      EXPECT_GT(memory_left().bytes, 0);
    });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Runs in a child process, since limits cannot be taken back.
int in_child(int (*run)()) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(run());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(MemoryLimit, MoreThanIsLeftIsAnErrorOfTheAllocation) {
  EXPECT_EQ(in_child([] {
              limit_memory();
              const auto all = static_cast<size_t>(memory_left().bytes);
              try {
                // Volatile: the compiler may leave out a pair of new and delete.
                void* volatile block = ::operator new(all / 8);
                ::operator delete(block);
                block = ::operator new(all + all / 8);
                ::operator delete(block);
              } catch (const std::bad_alloc&) {
                return 1;
              }
              return 0;
            }),
            1);
}

TEST(MemoryLimit, ALimitOfTheCallerIsNamed) {
  EXPECT_EQ(in_child([] {
              const rlimit limit{rlim_t{1} << 30, rlim_t{1} << 30};
              ::setrlimit(RLIMIT_AS, &limit);
              const MemoryLeft left = memory_left();
              return left.limited_by == "ulimit -v" && left.bytes < (int64_t{1} << 30) ? 1 : 0;
            }),
            1);
}
#endif

}  // namespace
}  // namespace twinrun

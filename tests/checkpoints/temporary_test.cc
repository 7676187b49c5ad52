// Tests of temporary files and folders: what killed processes left is swept, what is in use or
// belongs to others is not.
#include "checkpoints/container/temporary.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "checkpoints/container/atomic_file.h"
#include "tests/checkpoints/samples.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using samples::write_bytes;

// Gives a file or folder the age of a leftover.
void make_old(const std::string& path) {
  const timespec old[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), old, 0), 0) << path;
}

void left_file(const std::string& path) {
  write_bytes(path, "half");
  make_old(path);
}

void left_folder(const std::string& path) {
  fs::create_directories(path + "/runs");
  write_bytes(path + "/runs/R.h5", "half");
  make_old(path);
}

TEST(Temporary, ANewFileSweepsWhatKilledOnesLeft) {
  const Folder folder;
  left_file(folder / ".twinrun-7-0.tmp");
  left_file(folder / ".twinrun-7-1.tmp");
  ASSERT_TRUE(write_file_atomically(folder / "run.h5", "new").ok());
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Temporary, WhatMayBeInUseStays) {
  const Folder folder;
  write_bytes(folder / ".twinrun-7-0.tmp", "young");
  left_file(folder / ".twinrun-7-1.tmp");
  left_file(folder / ".twinrun-mine");  // the name is another one
  left_file(folder / "twinrun-7-1.tmp");
  fs::create_symlink(folder / "twinrun-7-1.tmp", folder / ".twinrun-8-0.tmp");
  // Another process has the lock: it may be in a container, where its number means another one.
  const int used = ::open((folder / ".twinrun-7-1.tmp").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(used, LOCK_EX | LOCK_NB), 0);
  sweep_leftovers(folder.path());
  ::close(used);
  EXPECT_EQ(folder.files(), 5u);
}

TEST(Temporary, FilesOfOthersStay) {
  const Folder folder;
  left_file(folder / ".twinrun-7-0.tmp");
  if (::chown((folder / ".twinrun-7-0.tmp").c_str(), 65534, 65534) != 0)
    GTEST_SKIP() << "only root can give files away";
  sweep_leftovers(folder.path());
  EXPECT_EQ(folder.files(), 1u);
}

// The folder that an object holds is locked, however old it is.
TEST(Temporary, AFolderOfALivingProcessStays) {
  const Folder folder;
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  left_folder(folder / "twinrun-bundle-abcdef");
  left_folder(folder / "twinrun-replay-abcdef");
  left_folder(folder / "twinrun-e2e-abcdef");       // of a test
  left_folder(folder / "twinrun-bundle-abcdefgh");  // of a person
  {
    auto mine = TemporaryFolder::make("bundle");
    ASSERT_TRUE(mine.ok()) << mine.error().message();
    const TemporaryFolder moved = *std::move(mine);
    make_old(moved.path());
    EXPECT_FALSE(fs::exists(folder / "twinrun-bundle-abcdef"));
    EXPECT_FALSE(fs::exists(folder / "twinrun-replay-abcdef"));
    const pid_t pid = ::fork();  // another process: this one looks at a folder once
    if (pid == 0) {
      sweep_leftovers(folder.path() + "/.");
      ::_exit(0);
    }
    ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
    EXPECT_TRUE(fs::exists(moved.path()));
  }
  if (before == nullptr) {
    ::unsetenv("TMPDIR");
  } else {
    ::setenv("TMPDIR", kept.c_str(), 1);
  }
  EXPECT_EQ(folder.files(), 2u);
  EXPECT_TRUE(fs::exists(folder / "twinrun-e2e-abcdef"));
  EXPECT_TRUE(fs::exists(folder / "twinrun-bundle-abcdefgh"));
}

}  // namespace
}  // namespace twinrun

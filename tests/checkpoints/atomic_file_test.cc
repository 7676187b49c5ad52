// Tests that files are written atomically: a write either completes or leaves the old file intact.
#include "checkpoints/container/atomic_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "checkpoints/container/open_file.h"
#include "tests/checkpoints/samples.h"

namespace twinrun {
namespace {

using samples::read_bytes;
using samples::write_bytes;

TEST(AtomicFile, WritesAndReplaces) {
  const Folder folder;
  const std::string path = folder / "a.txt";
  ASSERT_TRUE(write_file_atomically(path, "first").ok());
  EXPECT_EQ(read_bytes(path), "first");
  ASSERT_TRUE(write_file_atomically(path, "").ok());
  EXPECT_EQ(read_bytes(path), "");
  EXPECT_EQ(folder.files(), 1u);
}

// An unnamed file of the same file system gets the name; of another one, its content is copied.
TEST(AtomicFile, AnUnnamedFileGetsTheName) {
  const Folder folder;
  const std::string path = folder / "a.txt", content = "content";
  const auto bytes = std::as_bytes(std::span(content));
  write_bytes(path, "old");
  for (const bool elsewhere : {false, true}) {
    const Descriptor unnamed =
        elsewhere ? Descriptor(::memfd_create("a", 0)) : unnamed_file(folder.path());
    if (unnamed.get() < 0) GTEST_SKIP() << "this file system has no unnamed files";
    ASSERT_EQ(::pwrite(unnamed.get(), "content and more", 16, 0), 16);
    ASSERT_TRUE(write_file_atomically(path, bytes, unnamed.get()).ok());
    EXPECT_EQ(read_bytes(path), content);
    struct stat named {
    }, itself{};
    ASSERT_EQ(::stat(path.c_str(), &named), 0);
    ASSERT_EQ(::fstat(unnamed.get(), &itself), 0);
    EXPECT_EQ(named.st_ino == itself.st_ino && named.st_dev == itself.st_dev, !elsewhere);
    EXPECT_EQ(folder.files(), 1u);
  }
}

TEST(AtomicFile, KeepsPermissionsAndFollowsLinks) {
  const Folder folder;
  const std::string path = folder / "a.txt", link = folder / "link";
  write_bytes(path, "old");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  std::filesystem::create_symlink("a.txt", link);
  ASSERT_TRUE(write_file_atomically(link, "new").ok());
  EXPECT_EQ(read_bytes(path), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST(AtomicFile, RefusesWhatIsNoFile) {
  const Folder folder;
  EXPECT_FALSE(write_file_atomically("", "x").ok());
  EXPECT_FALSE(write_file_atomically(folder.path(), "x").ok());
  EXPECT_FALSE(write_file_atomically("/dev/null", "x").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  EXPECT_FALSE(write_file_atomically(folder / "dangling", "x").ok());
  EXPECT_EQ(folder.files(), 1u);
}

TEST(AtomicFile, MissingFolderSaysHowToMakeIt) {
  const Folder folder;
  const Status status = write_file_atomically(folder / "none/a.txt", "x");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().where, folder / "none/a.txt");
  EXPECT_NE(status.error().what.find("No such file or directory"), std::string::npos);
  EXPECT_NE(status.error().fix.find("mkdir -p '" + folder / "none" + "'"), std::string::npos);
  write_bytes(folder / "file", "");
  EXPECT_FALSE(write_file_atomically(folder / "file/a.txt", "x").ok());
}

TEST(AtomicFile, UnwritableFolderKeepsTheOldFile) {
  const Folder folder;
  const std::string path = folder / "a.txt";
  write_bytes(path, "old");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const Status status = write_file_atomically(path, "new");
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().what.find("Permission denied"), std::string::npos);
  EXPECT_NE(status.error().fix.find("writable"), std::string::npos);
  EXPECT_EQ(read_bytes(path), "old");
}

// A write fails in the middle. The file size limit stands in for a full disk, as it works
// everywhere.
TEST(AtomicFile, FailureInTheMiddleKeepsTheOldFile) {
  const Folder folder;
  const std::string path = folder / "a.txt";
  write_bytes(path, "old");
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{4096, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status = write_file_atomically(path, std::string(1 << 20, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().what.find("File too large"), std::string::npos);
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(AtomicFile, FullDiskKeepsTheOldFile) {
  const Folder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here (not root, or in a container)";
  }
  const std::string path = folder / "a.h5";
  const bool small_fits = write_file_atomically(path, "old").ok();
  Checkpoint checkpoint = samples::checkpoint();
  checkpoint.tensors["big"] = {samples::pattern({DType::kF32, {100000}}), "parameter", false};
  const Status status = write_checkpoint(path, checkpoint);
  const std::string left = read_bytes(path);
  const size_t files = folder.files();
  ASSERT_EQ(::umount(folder.path().c_str()), 0);
  EXPECT_TRUE(small_fits);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().what.find("No space left"), std::string::npos)
      << status.error().message();
  EXPECT_NE(status.error().fix.find("free space"), std::string::npos);
  EXPECT_EQ(left, "old");
  EXPECT_EQ(files, 1u);
}

}  // namespace
}  // namespace twinrun

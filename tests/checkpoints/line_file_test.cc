// Files of lines: what is read of them after a crash, and that lines are added behind those known.
#include "checkpoints/container/line_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/checkpoints/samples.h"

namespace twinrun {
namespace {

using namespace std::string_view_literals;
using samples::read_bytes;
using samples::write_bytes;
using Lines = std::vector<std::string_view>;

TEST(LineFile, LinesThatWereNotWrittenWholeAreLeftOut) {
  EXPECT_EQ(whole_lines(""), Lines());
  EXPECT_EQ(whole_lines("{\"a\":1"), Lines());
  EXPECT_EQ(whole_lines("a\nb\n"), (Lines{"a", "b"}));
  EXPECT_EQ(whole_lines("a\n\nb"), (Lines{"a", ""}));
  // The sectors of the last line came to the disk in part: the last one, then the first one.
  EXPECT_EQ(whole_lines("a\n\0\0\0\0bcd\n"sv), Lines{"a"});
  EXPECT_EQ(whole_lines("a\nbcd\0\0\0\0"sv), Lines{"a"});
  EXPECT_EQ(whole_lines("a\nbc\0\0d"sv), Lines{"a"});
  // No crash can do this: the line was on the disk before the next one was written.
  EXPECT_EQ(whole_lines("a\0\nb\n"sv), (Lines{"a\0"sv, "b"}));
}

TEST(LineFile, AddsLinesToThoseThatAreKept) {
  const Folder folder;
  const std::string path = folder / "lines.jsonl";
  EXPECT_FALSE(LineFile::begin(folder / "no/folder", ""));
  write_bytes(path, "first\nbrok");
  auto file = LineFile::begin(path, "first\n");
  ASSERT_TRUE(file.ok()) << file.error().message();
  ASSERT_TRUE(file->add("second").ok());
  EXPECT_EQ(read_bytes(path), "first\nsecond\n");
  ASSERT_TRUE(file->add("").ok());
  EXPECT_EQ(read_bytes(path), "first\nsecond\n\n");
}

TEST(LineFile, AFullDiskIsAnErrorOfTheMachine) {
  const Folder folder;
  auto file = LineFile::begin(folder / "lines.jsonl", "first\n");
  ASSERT_TRUE(file.ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full = {6, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const Status added = file->add("line");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.error().kind, Error::Kind::kMachine);
}

}  // namespace
}  // namespace twinrun

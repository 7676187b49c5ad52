// Tests that the Python program in FORMAT.md recomputes our digests with only h5py and xxhash.
#include <cstdlib>

#include "tests/checkpoints/samples.h"

namespace twinrun {
namespace {

// The fenced Python block of FORMAT.md.
std::string snippet() {
  const std::string text = samples::read_bytes(TWINRUN_SOURCE_DIR "/checkpoints/FORMAT.md");
  const std::string open = "```python\n";
  const size_t begin = text.find(open), end = text.find("\n```", begin);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + open.size(), end - begin - open.size() + 1);
}

// Debian's interpreter, for which the packages are installed, or else the first one on the path.
std::string python() {
  for (const char* name : {"/usr/bin/python3", "python3"}) {
    if (std::system((std::string(name) + " -c 'import h5py, xxhash' 2>/dev/null").c_str()) == 0)
      return name;
  }
  return "";
}

TEST(Format, PythonRecomputesTheDigests) {
  const Folder folder;
  ASSERT_FALSE(snippet().empty());
  if (python().empty()) GTEST_SKIP() << "needs python3-h5py and python3-xxhash";
  samples::write_bytes(folder / "check.py", snippet());
  const auto check = [&](const std::string& arguments) {
    return std::system((python() + " '" + folder / "check.py" + "' '" + folder.path() + "/" +
                        arguments + " > '" + folder / "out" + "'")
                           .c_str());
  };
  ASSERT_TRUE(write_checkpoint(folder / "c.h5", samples::checkpoint()).ok());
  ASSERT_TRUE(write_run(folder / "r.h5", samples::run()).ok());
  EXPECT_EQ(check("c.h5'"), 0);
  const std::string out = samples::read_bytes(folder / "out");
  EXPECT_EQ(out.find("DAMAGED"), std::string::npos) << out;
  EXPECT_NE(out.find("root_digest " + samples::checkpoint().root_digest().hex() + " ok"),
            std::string::npos);
  EXPECT_EQ(check("r.h5' /checkpoints/10"), 0);
}

}  // namespace
}  // namespace twinrun

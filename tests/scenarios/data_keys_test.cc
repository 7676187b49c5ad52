// Tests the keys of [data] for every source: which there are, their defaults, and that the resolved
// text reads back.
#include <gtest/gtest.h>

#include "scenarios/scenario.h"

namespace twinrun {
namespace {

Result<Scenario> with_data(const std::string& data) {
  return parse_scenario(
      "[[model.layers]]\nkind = \"flatten\"\n[train]\nbatch = 8\nsteps = 1\n[data]\n" + data,
      "a.toml");
}

TEST(DataKeys, EverySourceRoundTrips) {
  const std::pair<const char*, const char*> sources[] = {
      {"digits", ""},
      {"idx", "dir = \"mnist\"\n"},
      {"cifar10", "dir = \"cifar\"\n"},
      {"images32", "classes = 4\n"},
      {"tfrecord", "files = [\"a\", \"b\"]\neval_files = [\"c\"]\nvocabulary = 9\nwindow = 5\n"},
      {"npy", "files = [\"x.npy\", \"y.npy\", \"w.npy\"]\nvocabulary = 9\n"},
      {"npz", "files = [\"a.npz\"]\neval_feature = \"x\"\neval_label = \"y\"\nshape = [3, 4]\n"},
      {"hdf5", "files = [\"a.h5\"]\nfeature = \"in/x\"\nweight = \"w\"\n"},
      {"text", "files = [\"a.txt\"]\ntokens = \"characters\"\nwindow = 8\n"},
      {"text_synthetic", ""},
      {"phrases", "vocabulary = 100\n"},
  };
  for (const auto& [source, keys] : sources) {
    SCOPED_TRACE(source);
    const auto scenario = with_data(std::string("source = \"") + source + "\"\n" + keys);
    ASSERT_TRUE(scenario.ok()) << scenario.error().message();
    const std::string text = resolved_toml(*scenario);
    const auto again = parse_scenario(text, "resolved.toml");
    ASSERT_TRUE(again.ok()) << again.error().message() << "\n" << text;
    EXPECT_EQ(resolved_toml(*again), text);
    EXPECT_EQ(scenario_digest(*again), scenario_digest(*scenario));
  }
}

TEST(DataKeys, DefaultsAreThoseOfTheSource) {
  const auto spec = [](const std::string& source, const std::string& keys = "") {
    const auto scenario = with_data("source = \"" + source + "\"\n" + keys);
    EXPECT_TRUE(scenario.ok()) << scenario.error().message();
    return scenario.ok() ? scenario->data : DataSpec{};
  };
  EXPECT_EQ(spec("images32").shape, (Dims{32, 32, 3}));
  EXPECT_EQ(spec("images32").train, 4096);
  EXPECT_EQ(spec("cifar10").shape, (Dims{32, 32, 3}));
  EXPECT_EQ(spec("cifar10").train, 0) << "all of the files";
  EXPECT_EQ(spec("phrases").window, 16);
  EXPECT_EQ(spec("phrases").vocabulary, 64);
  EXPECT_EQ(spec("text_synthetic").window, 64);
  EXPECT_EQ(spec("text", "files = [\"a\"]\n").window, 64);
  EXPECT_EQ(spec("tfrecord", "files = [\"a\"]\n").window, 0) << "no padding unless asked for";
  EXPECT_TRUE(spec("npz", "files = [\"a\"]\n").shape.empty()) << "that of the file";
}

// File names and what is read from the files decide the bits, so they are in the digest; the folder
// is not.
TEST(DataKeys, FolderIsNotInTheDigest) {
  const auto digest = [](const std::string& keys) {
    const auto scenario = with_data("source = \"npz\"\nfiles = [\"a.npz\"]\n" + keys);
    EXPECT_TRUE(scenario.ok()) << scenario.error().message();
    return scenario_digest(*scenario);
  };
  EXPECT_EQ(digest("dir = \"x\"\n"), digest("dir = \"y\"\n"));
  EXPECT_NE(digest(""), digest("feature = \"x\"\n"));
  EXPECT_NE(digest(""), digest("vocabulary = 7\n"));
}

}  // namespace
}  // namespace twinrun

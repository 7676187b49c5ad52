// Tests the parts of `bisect package`: the order of versions, which releases lie between two, the
// Python that they share, and the links.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "harness/bisect/comparison_links.h"
#include "harness/bisect/packages.h"
#include "harness/bisect/release_version.h"
#include "tests/harness/tiny.h"

namespace twinrun::bisect {
namespace {

using tiny::must;

// The orders that PEP 440 prints, the oldest version first.
const std::vector<std::vector<std::string>> kPublished = {
    {"1.dev0",
     "1.0.dev456",
     "1.0a1",
     "1.0a2.dev456",
     "1.0a12.dev456",
     "1.0a12",
     "1.0b1.dev456",
     "1.0b2",
     "1.0b2.post345.dev456",
     "1.0b2.post345",
     "1.0rc1.dev456",
     "1.0rc1",
     "1.0",
     "1.0+abc.5",
     "1.0+abc.7",
     "1.0+5",
     "1.0.post456.dev34",
     "1.0.post456",
     "1.0.15",
     "1.1.dev1"},
    {"2013.10", "2014.04", "1!1.0", "1!1.1", "1!2.0"},
    {"0.9", "0.9.1", "0.9.2", "0.9.10", "0.9.11", "1.0", "1.0.1", "1.1", "2.0", "2.0.1"},
    {"1.1.0", "1.1.1", "1.2.0", "2012.1", "2012.2", "2012.15", "2013.1"},
};

TEST(ReleaseVersion, OrderIsThatOfPep440) {
  std::mt19937 random(1);
  for (const auto& published : kPublished) {
    std::vector<std::string> names = published;
    for (int trial = 0; trial < 20; ++trial) {
      std::ranges::shuffle(names, random);
      std::ranges::sort(names, {},
                        [](const std::string& n) { return must(ReleaseVersion::parse(n)); });
      EXPECT_EQ(names, published);
    }
  }
}

// The spellings that PEP 440 normalizes, and what to.
TEST(ReleaseVersion, SpellingsAreEqual) {
  const std::pair<const char*, const char*> same[] = {
      {"1.1RC1", "1.1rc1"},      {"1.1.a1", "1.1a1"},         {"1.1-a1", "1.1a1"},
      {"1.1_a1", "1.1a1"},       {"1.1a.1", "1.1a1"},         {"1.1alpha1", "1.1a1"},
      {"1.1beta2", "1.1b2"},     {"1.1c3", "1.1rc3"},         {"1.1pre3", "1.1rc3"},
      {"1.1preview3", "1.1rc3"}, {"1.2a", "1.2a0"},           {"1.2-post2", "1.2.post2"},
      {"1.2post2", "1.2.post2"}, {"1.2.post-2", "1.2.post2"}, {"1.0-r4", "1.0.post4"},
      {"1.0-1", "1.0.post1"},    {"1.2.post", "1.2.post0"},   {"1.2-dev2", "1.2.dev2"},
      {"1.2dev2", "1.2.dev2"},   {"1.2.dev", "1.2.dev0"},     {"1.0+ubuntu-1", "1.0+ubuntu.1"},
      {"v1.0", "1.0"},           {"00.0010", "0.10"},         {"1.0", "1.0.0"},
      {"0!1.5", "1.5"},
  };
  for (const auto& [a, b] : same)
    EXPECT_TRUE(must(ReleaseVersion::parse(a)) == must(ReleaseVersion::parse(b))) << a;
}

TEST(ReleaseVersion, PrereleasesAndWhatIsNoVersion) {
  for (const char* text : {"1.0rc1", "1.0a0", "2.0b3", "1.0.dev1", "1.0.post1.dev2"})
    EXPECT_TRUE(must(ReleaseVersion::parse(text)).is_prerelease()) << text;
  for (const char* text : {"1.0", "1.0.post1", "1!3", "1.0+cu118"})
    EXPECT_FALSE(must(ReleaseVersion::parse(text)).is_prerelease()) << text;
  for (const char* text : {"", "x", "1.", "1..2", "1.0-", "1.0+", "1.0rc1x", "1.0+a..b",
                           "french toast", "1.0 ", "99999999999999999999999"})
    EXPECT_FALSE(ReleaseVersion::parse(text).ok()) << text;
}

std::vector<Release> some_releases() {
  const std::vector<std::string> both = {"3.9", "3.11"};
  return {{"0.9", false, both, ""},      {"0.10", false, {"3.9"}, ""},
          {"0.11", true, both, ""},      {"0.12rc1", false, both, ""},
          {"0.12", false, both, ""},     {"0.13", false, {}, ""},
          {"0.14", false, {"3.11"}, ""}, {"0.14.post1", false, both, ""},
          {"1.0", false, both, ""},      {"not a version", false, both, ""}};
}

std::string names_between(const char* low, const char* high, const char* python = "") {
  const auto found = releases_between(some_releases(), "toy", low, high, python);
  if (!found) return found.error().message();
  std::string all;
  for (const Release& r : *found) all += r.version + " ";
  return all;
}

TEST(ReleasesBetween, LeavesOutWhatCannotBeUsed) {
  EXPECT_EQ(names_between("0.9", "1.0"), "0.9 0.10 0.12 0.14 0.14.post1 1.0 ");
  EXPECT_EQ(names_between("v0.9.0", "0.12"), "0.9 0.10 0.12 ");
  // Release candidates only where an end is one.
  EXPECT_EQ(names_between("0.12rc1", "0.14"), "0.12rc1 0.12 0.14 ");
  EXPECT_EQ(names_between("0.9", "1.0", "3.9"), "0.9 0.10 0.12 0.14.post1 1.0 ");
}

TEST(ReleasesBetween, SaysWhatIsWrongWithAnEnd) {
  EXPECT_EQ(names_between("1.0", "0.9"), "LOW 1.0 is not below HIGH 0.9\n  fix: 0.9..1.0");
  EXPECT_EQ(names_between("1.0", "1.0.0"),
            "LOW 1.0 is not below HIGH 1.0.0\n  fix: give two releases");
  EXPECT_EQ(names_between("0.9.5", "1.0"),
            "toy 0.9.5 is not released\n  fix: the nearest: 0.9 and 0.10");
  EXPECT_EQ(names_between("0.9", "7"), "toy 7 is not released\n  fix: the nearest: 1.0");
  EXPECT_EQ(names_between("0.11", "1.0"),
            "toy 0.11 was yanked\n  fix: the nearest: 0.10 and 0.12rc1");
  EXPECT_EQ(
      names_between("0.9", "0.13"),
      "toy 0.13 has no wheel for a Python of this machine\n  fix: the nearest: 0.12 and 0.14");
  EXPECT_EQ(names_between("0.9", "0.14", "3.9"),
            "toy 0.14 has no wheel for Python 3.9\n  fix: the nearest: 0.12 and 0.14.post1");
  EXPECT_NE(names_between("latest", "1.0").find("'latest' is not a version"), std::string::npos);
}

TEST(CommonPython, HasMostWheelsAndIsTheNewest) {
  EXPECT_EQ(common_python({{"1", false, {"3.8", "3.9"}, ""}, {"2", false, {"3.9", "3.10"}, ""}}),
            "3.9");
  EXPECT_EQ(common_python({{"1", false, {"3.9", "3.10"}, ""}, {"2", false, {"3.9", "3.10"}, ""}}),
            "3.10");
  EXPECT_EQ(common_python({}), "");
  EXPECT_EQ(python_for({"1", false, {"3.8", "3.9", "3.10"}, ""}, "3.9"), "3.9");
  EXPECT_EQ(python_for({"1", false, {"3.8", "3.10", "3.9"}, ""}, "3.12"), "3.10");
}

TEST(ComparisonLinks, FollowTheTagsOfEachRepository) {
  EXPECT_EQ(
      comparison_links("torch", "1.11.0", "1.12.0"),
      std::vector<std::string>{"https://github.com/pytorch/pytorch/compare/v1.11.0...v1.12.0"});
  // jaxlib shares the tags of jax since 0.4.33; 0.4.32 and 0.4.33 are built from one commit of XLA.
  EXPECT_EQ(comparison_links("jaxlib", "0.4.32", "0.4.33"),
            std::vector<std::string>{
                "https://github.com/jax-ml/jax/compare/jaxlib-v0.4.32...jax-v0.4.33"});
  EXPECT_EQ(comparison_links("jaxlib", "0.4.34", "0.4.35"),
            (std::vector<std::string>{
                "https://github.com/jax-ml/jax/compare/jax-v0.4.34...jax-v0.4.35",
                "https://github.com/openxla/xla/compare/cd6e808c59f5...76da73017931"}));
  EXPECT_EQ(comparison_links("jax", "0.4.34", "99.0").size(), 1u);
  EXPECT_TRUE(comparison_links("some-package", "1.0", "1.1").empty());
}

}  // namespace
}  // namespace twinrun::bisect

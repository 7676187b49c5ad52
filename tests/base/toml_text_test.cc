// TOML that nobody vouches for: an error with its line, or a table; never an assertion.
#include "program/base/toml_text.h"

#include <gtest/gtest.h>

#include <string>

namespace twinrun {
namespace {

std::string error_of(const std::string& text) {
  const auto table = parse_toml_text(text, "m.toml");
  return table ? "" : table.error().message();
}

TEST(TomlText, WhatTheLibraryAssertsIsAnErrorWithItsLine) {
  for (const char* text : {"[é]", "é = 1", "v = é", "v = 7é", "v = 7meé", "v = 7={\"a:é00", "[$]",
                           "[.a]", "[=]", "[{", "v = [}"}) {
    const std::string two_lines = std::string("a = 1\n") + text + "\nb = 2\n";
    EXPECT_NE(error_of(two_lines).find("m.toml:2: not valid TOML"), std::string::npos)
        << text << ": " << error_of(two_lines);
  }
}

TEST(TomlText, KeysAreNotDeep) {
  std::string key = "a";
  for (int i = 1; i < kMostKeyParts; ++i) key += ".a";
  EXPECT_EQ(error_of("[" + key + "]\nx = 1.5\n"), "");
  EXPECT_NE(error_of("\n[" + key + ".a]\n").find("m.toml:2:"), std::string::npos);
  EXPECT_NE(error_of(key + " . \"a\" = 1\n").find("more than 64 parts"), std::string::npos);
  for (int i = 0; i < 20000; ++i) key += ".a";
  EXPECT_NE(error_of("[" + key + "]").find("more than 64 parts"), std::string::npos);
}

TEST(TomlText, DotsElsewhereAreNoKeys) {
  const std::string dots(500, '.');
  std::string floats = "0.5";
  for (int i = 0; i < 300; ++i) floats += ", 0.5";
  EXPECT_EQ(error_of("a = \"" + dots + "\"\nb = '" + dots + "'\n# " + dots + "\nc = [" + floats +
                     "]\nd = \"\"\"\n\"" + dots + "\n\"\"\"\ne = \"\\\"" + dots + "\"\n"),
            "");
}

}  // namespace
}  // namespace twinrun

// TOML that nobody vouches for: an error with its line, or a table; never an assertion.
#include "program/base/toml_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace twinrun {
namespace {

std::string error_of(const std::string& text) {
  const auto table = parse_toml_text(text, "m.toml");
  return table ? "" : table.error().message();
}

TEST(TomlText, WhatTheLibraryAssertsIsAnErrorWithItsLine) {
  for (const char* text : {"[é]", "[$]", "[.a]", "[=]", "[{", "v = [}"}) {
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

// TWINRUN_FUZZ=N makes N times as many.
TEST(TomlText, DamagedTextsAreAValueOrAnError) {
  const std::vector<std::string> seeds = {
      "[model]\nname = \"mlp\"\nlayers = [{units = 16, act = 'relu'}, {units = 4}]\n",
      "seed = 7\n[train]\nsteps = 1_000\nrate = 1e-3\n[[drill]]\nat = 1979-05-27T07:32:00Z\n",
      "a.b.\"c d\" = \"\\u00e9\\n\"\ns = '''x\ny'''\nt = \"\"\"x\\\n  y\"\"\"\nh = 0x1F\ni = "
      "-inf\n",
      "deep = [[[[{a = {b = [true, false]}}]]]]\ntime = 07:32:00.5\n"};
  const std::string alphabet =
      "[]{}=.,#\"'\\\n\r\t ae_-+0123456789:TZxob$\xc3\xa9\xff\x7f" + std::string(1, '\0');
  const char* factor = std::getenv("TWINRUN_FUZZ");
  const int times = 4000 * (factor != nullptr ? std::max(1, std::atoi(factor)) : 1);
  std::mt19937 random(28);
  int valid = 0;
  for (int n = 0; n < times; ++n) {
    std::string text = seeds[random() % seeds.size()];
    if (random() % 3 == 0) text.resize(random() % text.size());
    for (unsigned k = 1 + random() % 6; k > 0; --k) {
      const size_t at = random() % (text.size() + 1);
      switch (random() % 4) {
        case 0:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 1:
          text.erase(at, random() % 5);
          break;
        case 2:
          if (at < text.size()) text[at] = alphabet[random() % alphabet.size()];
          break;
        default:
          text.insert(at, text.substr(random() % (text.size() + 1), random() % 12));
      }
    }
    const auto table = parse_toml_text(text, "m.toml");
    valid += table ? 1 : 0;
    if (!table) {
      ASSERT_EQ(table.error().where.rfind("m.toml:", 0), 0u) << text;
    }
  }
  EXPECT_GT(valid, times / 50);
  EXPECT_LT(valid, times / 2);
}

}  // namespace
}  // namespace twinrun

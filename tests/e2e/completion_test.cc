// Tests that the shells complete what --help shows, by the scripts of `twinrun_dev completion`, and
// that the pages of `twinrun_dev manual` render. Bash is part of every system; zsh, fish and groff are
// asked where they are installed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <regex>
#include <sstream>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

// Runs a command of sh with twinrun in its path, and returns what it prints on both streams.
std::string run_shell(const std::string& command) {
  const std::string path = fs::path(TWINRUN_BINARY).parent_path().string();
  const std::string all = fmt::format("PATH='{}':$PATH; {{ {}\n}} 2>&1", path, command);
  std::string out;
  FILE* pipe = ::popen(all.c_str(), "r");
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << out;
  return out;
}

bool is_installed(const std::string& program) {
  return std::system(fmt::format("command -v {} > /dev/null", program).c_str()) == 0;
}

Words lines_of(const std::string& text) {
  Words out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out.push_back(line);
  return out;
}

// What bash offers for the last of these words, as bash itself splits them at "=" and ":".
Words bash_offers(const Folder& folder, const std::string& words) {
  write_text(folder / "ask.bash", "cd " + folder.path() +
                                      "\nsource <(twinrun_dev completion bash)\n"
                                      "compopt() { :; }\n"
                                      "COMP_WORDS=(twinrun " +
                                      words +
                                      ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_twinrun\n"
                                      "for word in \"${COMPREPLY[@]}\"; do echo \"$word\"; done\n");
  Words out = lines_of(run_shell("bash " + folder / "ask.bash"));
  std::ranges::sort(out);
  return out;
}

// The names in --help that a pattern finds.
std::set<std::string> in_help(const Folder& folder, Words words, const std::string& pattern) {
  words.push_back("--help");
  const std::string text = twinrun(folder, words).out;
  std::set<std::string> out;
  const std::regex row(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it)
    out.insert((*it)[1]);
  out.erase("twinrun");
  return out;
}

TEST(Completion, BashKnowsEveryVerbAndOption) {
  const Folder folder;
  const auto as_set = [](const Words& words) { return std::set(words.begin(), words.end()); };
  const auto verbs = in_help(folder, {}, "\n  ([a-z]+) +[a-z]");
  ASSERT_EQ(verbs.size(), 15u);
  EXPECT_EQ(as_set(bash_offers(folder, "''")), verbs);
  for (const std::string& verb : verbs) {
    EXPECT_EQ(as_set(bash_offers(folder, verb + " -")),
              in_help(folder, {verb}, "\n  (?:-[a-z] \\[ )?(--[a-z-]+)"))
        << verb;
  }
}

TEST(Completion, BashOffersValues) {
  const Folder folder;
  write_text(folder / "digits_mine.toml", "");
  const std::pair<std::string, Words> cases[] = {
      {"bisect ''", {"config", "op", "package", "rev", "step"}},
      {"bisect op --tolerance ''", {"bits", "bound"}},
      {"train digits_m", {"digits_mine.toml", "digits_mlp"}},
      {"train digits_mlp --engine = c", {"cpu", "cpu:f64"}},
      {"train --engine cpu : f", {"f64"}},
      {"train -e e", {"exec:"}},
      {"train --set loss.red", {"loss.reduction="}},
      {"train --set loss.reduction =", {"mean", "sum"}},
      {"train digits_mlp -e tpu --eng", {}},  // given already
      {"report DIR --format json,ma", {"json,markdown"}},
      {"compare digits_mlp --a-fault drop_c", {"drop_core@"}},
      {"check digits_mlp --fail-on ''", {"error", "note", "warning"}},
      {"diagnose trace.twin --threads ''", {}},
      {"convert digits_m", {"digits_mine.toml", "digits_mlp"}},
  };
  for (const auto& [words, expected] : cases)
    EXPECT_EQ(bash_offers(folder, words), expected) << words;
}

TEST(Completion, ZshAndFishOfferTheSameWithMeanings) {
  const Folder folder;
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    if (!is_installed(shell)) continue;
    write_text(folder / shell, twinrun(folder, {"completion", shell}).out);
    EXPECT_EQ(run_shell(fmt::format("{} -n {}", shell, folder / shell)), "");
  }
  if (is_installed("fish")) {
    const auto ask = [&](const std::string& line) {
      return run_shell(fmt::format("fish --no-config -c 'source {}; complete -C \"{}\"'",
                                   folder / "fish", line));
    };
    EXPECT_EQ(ask("twinrun bisect op --tolerance="), "--tolerance=bits\n--tolerance=bound\n");
    EXPECT_EQ(ask("twinrun doctor --j"),
              "--json\tone JSON document on stdout, nothing else there\n");
  }
  if (is_installed("zsh")) {
    // Of zsh's own functions only what they are given is of interest here.
    const auto ask = [&](const std::string& words) {
      return run_shell(
          "zsh -fc 'compdef() {}; compset() {}; _files() { echo files }; "
          "_describe() { print -rl -- \"${(@P)2}\" }; source " +
          folder / "zsh" + "; words=(twinrun " + words + "); CURRENT=$#words; _twinrun'");
    };
    EXPECT_EQ(ask("train -e cpu"), "cpu\ncpu\\:f64\n");
    EXPECT_EQ(ask("doctor --j"), "--json:one JSON document on stdout, nothing else there\n");
    EXPECT_EQ(ask("train digits_m"), "digits_mlp\nfiles\n");
  }
}

TEST(Completion, ManualPagesRenderWithoutWarnings) {
  const Folder folder;
  ASSERT_EQ(twinrun(folder, {"manual", "-o", "man"}).code, 0);
  const auto verbs = in_help(folder, {}, "\n  ([a-z]+) +[a-z]");
  const auto axes = in_help(folder, {"bisect"}, "\n  ([a-z]+) +[a-z]");
  std::set<std::string> expected = {"man", "man/twinrun.1"};
  for (const std::string& verb : verbs) expected.insert(fmt::format("man/twinrun-{}.1", verb));
  for (const std::string& axis : axes)
    expected.insert(fmt::format("man/twinrun-bisect-{}.1", axis));
  EXPECT_EQ(folder.entries(), expected);
  EXPECT_EQ(twinrun(folder, {"manual", "bisect", "op"}).out,
            read_text(folder / "man/twinrun-bisect-op.1"));
  EXPECT_EQ(twinrun(folder, {"manual", "train", "op"}).code, 128);
  if (!is_installed("groff")) return;
  for (const std::string& page : expected) {
    if (page == "man") continue;
    EXPECT_EQ(run_shell(fmt::format("groff -man -ww -Tutf8 {} > /dev/null", folder / page)), "")
        << page;
  }
  EXPECT_NE(run_shell("groff -man -Tascii -P-c -P-b -P-u " + folder / "man/twinrun-train.1")
                .find("-o, --out FILE"),
            std::string::npos);
}

}  // namespace
}  // namespace twinrun::e2e

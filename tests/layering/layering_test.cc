// Tests that the sources keep the rules of docs/developers/architecture.md, and that the checks
// find planted violations.
#include "tests/layering/layering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

namespace twinrun::layering {
namespace {

std::string list(const std::vector<Violation>& violations) {
  std::string out;
  for (const Violation& v : violations)
    out += v.file + ":" + std::to_string(v.line) + ": " + v.what + "\n";
  return out;
}

const Files& tree() {
  static const Files files = read_tree(TWINRUN_SOURCE_DIR);
  return files;
}

TEST(Tree, IsRead) {
  EXPECT_TRUE(tree().contains("program/base/types.h"));
  EXPECT_TRUE(tree().contains("tests/layering/layering.cc"));
  EXPECT_GT(tree().size(), 20u);
}

TEST(Tree, KeepsItsArrows) { EXPECT_EQ(list(check_arrows(tree())), ""); }
TEST(Tree, HasARowForEveryFolder) { EXPECT_EQ(list(check_rows(tree())), ""); }
TEST(Tree, HasNoCircles) { EXPECT_EQ(list(check_circles(tree())), ""); }
TEST(Tree, OnlyTheCommandLineSpeaks) { EXPECT_EQ(list(check_speech(tree())), ""); }
TEST(Tree, IsaFilesSeePlainHeadersOnly) { EXPECT_EQ(list(check_isa(tree())), ""); }
TEST(Tree, NoFileIsOvergrown) { EXPECT_EQ(list(check_length(tree())), ""); }

// Each line of these tables stands beside the tests that hold it: `Suite.Name`, or a test of ctest
// that is a script, `xprof.name`.
class Guarantees : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Pages, Guarantees, testing::Values("guarantees.md", "guides/tpu-tools.md"),
                         [](const auto& page) {
                           std::string name = page.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });
TEST_P(Guarantees, EveryLineNamesATest) {
  std::ifstream page(std::string(TWINRUN_SOURCE_DIR "/docs/") + GetParam());
  const std::regex test("`([A-Z]\\w*)\\.([A-Z]\\w*)`"), script("`xprof\\.(\\w+)`");
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| ") || line.starts_with("| if ") || line.starts_with("| what ") ||
        line.starts_with("| element "))
      continue;
    for (std::sregex_iterator it(line.begin(), line.end(), script), end; it != end; ++it)
      EXPECT_TRUE(
          std::filesystem::exists(TWINRUN_SOURCE_DIR "/tests/xprof/" + (*it)[1].str() + ".py"))
          << it->str();
    if (std::regex_search(line, script) && !std::regex_search(line, test)) {
      ++rows;
      continue;
    }
    ++rows;
    const std::sregex_iterator named(line.begin(), line.end(), test), none;
    EXPECT_NE(named, none) << "no test stands beside: " << line;
    for (auto it = named; it != none; ++it) {
      const std::string parts = "(" + (*it)[1].str() + ", " + (*it)[2].str() + ")";
      EXPECT_TRUE(std::ranges::any_of(tree(),
                                      [&](const auto& file) {
                                        for (const char* macro : {"TEST", "TEST_F", "TEST_P"}) {
                                          if (file.second.find(macro + parts) != std::string::npos)
                                            return true;
                                        }
                                        return false;
                                      }))
          << "there is no test " << it->str();
    }
  }
  EXPECT_GT(rows, 10);
}

// ---- the checks find planted violations ----

int arrows(const std::string& from, const std::string& to) {
  return static_cast<int>(check_arrows({{from, "#include \"" + to + "\"\n"}, {to, ""}}).size());
}

TEST(Checker, NamesTheLayer) {
  EXPECT_EQ(layer_of("program/base/bits.h"), "program/base");
  EXPECT_EQ(layer_of("program/ops.def"), "program");
  EXPECT_EQ(layer_of("checkpoints/container/npy.cc"), "checkpoints/container");
  EXPECT_EQ(layer_of("scenarios/data/feed.h"), "scenarios/data");
  EXPECT_EQ(layer_of("backends/kernels/dot.h"), "backends/kernels");
  EXPECT_EQ(layer_of("backends/tpu/tpu.h"), "backends/tpu");
  EXPECT_EQ(layer_of("backends/registry.cc"), "backends");
  EXPECT_EQ(layer_of("harness/cli/main.cc"), "harness/cli");
  EXPECT_EQ(layer_of("bench/dot.cc"), "");
}

TEST(Checker, AllowsTheArrowsOfTheHouse) {
  EXPECT_EQ(arrows("program/ops/graph.cc", "program/base/types.h"), 0);
  EXPECT_EQ(arrows("scenarios/models.cc", "program/ops/graph.h"), 0);
  EXPECT_EQ(arrows("scenarios/data/idx.cc", "checkpoints/container/npy.h"), 0);
  EXPECT_EQ(arrows("reports/bundle.cc", "checkpoints/container/zip.h"), 0);
  EXPECT_EQ(arrows("checkpoints/run.cc", "checkpoints/container/hdf5.h"), 0);
  EXPECT_EQ(arrows("backends/tpu/engine.cc", "backends/kernels/kernels.h"), 0);
  EXPECT_EQ(arrows("backends/exec/job.cc", "checkpoints/checkpoint.h"), 0);
  EXPECT_EQ(arrows("harness/diagnose/pipeline.cc", "reports/report.h"), 0);
  EXPECT_EQ(arrows("harness/cli/diff.cc", "harness/diff/diff.h"), 0);
  EXPECT_EQ(arrows("harness/diagnose/classify.cc", "backends/core/backend.h"), 0);
  EXPECT_EQ(arrows("tests/reference/interpreter.cc", "program/ops/op.h"), 0);
}

TEST(Checker, FindsEveryForbiddenArrow) {
  EXPECT_EQ(arrows("program/base/bits.h", "program/ops/op.h"), 1);
  EXPECT_EQ(arrows("program/ops/graph.cc", "scenarios/scenario.h"), 1);
  EXPECT_EQ(arrows("program/ops/graph.cc", "backends/core/backend.h"), 1);
  EXPECT_EQ(arrows("scenarios/scenario.cc", "checkpoints/checkpoint.h"), 1);
  EXPECT_EQ(arrows("scenarios/scenario.cc", "checkpoints/container/npy.h"), 1);
  EXPECT_EQ(arrows("scenarios/data/idx.cc", "checkpoints/checkpoint.h"), 1);
  EXPECT_EQ(arrows("scenarios/data/idx.cc", "scenarios/scenario.h"), 1);
  EXPECT_EQ(arrows("checkpoints/run.cc", "scenarios/scenario.h"), 1);
  EXPECT_EQ(arrows("checkpoints/container/npy.cc", "checkpoints/checkpoint.h"), 1);
  EXPECT_EQ(arrows("checkpoints/run.cc", "backends/core/backend.h"), 1);
  EXPECT_EQ(arrows("backends/cpu/engine.cc", "checkpoints/checkpoint.h"), 1);
  EXPECT_EQ(arrows("backends/cpu/engine.cc", "scenarios/scenario.h"), 1);
  EXPECT_EQ(arrows("backends/registry.cc", "backends/exec/job.h"), 1);
  EXPECT_EQ(arrows("backends/kernels/dot.h", "backends/tpu/tpu.h"), 1);
  EXPECT_EQ(arrows("reports/html.cc", "program/ops/graph.h"), 1);
  EXPECT_EQ(arrows("reports/html.cc", "checkpoints/run.h"), 1);
  EXPECT_EQ(arrows("reports/html.cc", "harness/diagnose/pipeline.h"), 1);
  EXPECT_EQ(arrows("program/ops/op_def.h", "program/graph/program.h"), 1);
  EXPECT_EQ(arrows("backends/core/interpreter.h", "backends/registry.h"), 1);
  EXPECT_EQ(arrows("backends/cpu/cpu.cc", "backends/tpu/tpu.h"), 1);
  EXPECT_EQ(arrows("harness/run/run.cc", "harness/lockstep/lockstep.h"), 1);
  EXPECT_EQ(arrows("harness/envelope/members.cc", "harness/diagnose/pipeline.h"), 1);
  EXPECT_EQ(arrows("harness/diagnose/pipeline.cc", "harness/cli/verbs.h"), 1);
  EXPECT_EQ(arrows("harness/diagnose/pipeline.cc", "tests/support/temp.h"), 1);
  EXPECT_EQ(arrows("harness/diagnose/classify.cc", "backends/tpu/tpu.h"), 1);
  EXPECT_EQ(arrows("tests/reference/interpreter.cc", "backends/kernels/kernels.h"), 1);
}

TEST(Checker, AsksForARow) {
  EXPECT_EQ(check_rows({{"harness/run/run.cc", ""}, {"tests/new/a.cc", ""}}).size(), 0u);
  EXPECT_EQ(check_rows({{"harness/new/a.cc", ""}}).size(), 1u);
  EXPECT_EQ(check_rows({{"harness/run/new/a.cc", ""}}).size(), 1u);
}

TEST(Checker, FindsACircle) {
  const auto circles = [](const Files& files) { return list(check_circles(files)); };
  Files files = {{"harness/run/run.cc", "#include \"harness/host/heap.h\"\n"},
                 {"harness/host/heap.h", "#include \"program/base/types.h\"\n"},
                 {"program/base/types.h", ""}};
  EXPECT_EQ(circles(files), "");
  files["program/base/types.h"] = "#include \"harness/run/run.h\"\n";
  files["harness/run/run.h"] = "";
  EXPECT_EQ(circles(files),
            "harness/run/run.cc:0: a circle of folders: harness/host -> program/base -> "
            "harness/run -> harness/host\n");
}

TEST(Checker, SeesThroughSpelling) {
  const auto count = [](const std::string& line) {
    return check_arrows({{"program/base/a.h", "\n" + line + "\n"},
                         {"program/ops/op.h", ""},
                         {"program/base/b.h", ""}})
        .size();
  };
  EXPECT_EQ(count("  #  include   \"program/ops/op.h\"  // why not"), 1u);
  EXPECT_EQ(count("#include <program/ops/op.h>"), 1u);
  EXPECT_EQ(count("#include \"../ops/op.h\""), 1u);
  EXPECT_EQ(count("#include \"hdf5.h\""), 1u);
  EXPECT_EQ(count("#include \"b.h\""), 0u);
  EXPECT_EQ(count("#include <vector>"), 0u);
  EXPECT_EQ(count("// #include \"program/ops/op.h\""), 0u);
  EXPECT_EQ(count("/* \n#include \"program/ops/op.h\"\n*/"), 0u);
  const auto found = check_arrows({{"program/base/a.h", "\n\n#include \"harness/run/run.h\"\n"}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].line, 3);
}

int speech(const std::string& file, const std::string& text) {
  return static_cast<int>(check_speech({{file, text + "\n"}}).size());
}

TEST(Checker, FindsThoseWhoSpeak) {
  for (const char* text :
       {"#include <iostream>", "#include <boost/program_options.hpp>",
        "void f() { std::cout << 1; }", "void f() { printf(\"x\"); }",
        "void f() { std::printf (\"x\"); }", "void f() { puts(s); }", "void f() { std::exit(1); }",
        "void f() { exit(1); }", "void f() { fmt::print(\"x\"); }",
        "void f() { fprintf(stderr, \"x\"); }", "int main(int argc, char** argv) {}",
        "int n = 1'000; void f() { std::cerr << 'x'; }"}) {
    EXPECT_EQ(speech("harness/run/run.cc", text), 1) << text;
    EXPECT_EQ(speech("program/base/bits.cc", text), 1) << text;
    EXPECT_EQ(speech("harness/cli/output.cc", text), 0) << text;
    EXPECT_EQ(speech("tests/support/command.cc", text), 0) << text;
  }
}

TEST(Checker, FindsThoseInTheCommandLineWhoDoNotPrintThroughItsOutput) {
  for (const char* text :
       {"void f() { std::cout << 1; }", "void f() { fmt::print(\"x\"); }",
        "void f() { std::fputs(s, stderr); }", "void f() { fwrite(s, 1, 2, stdout); }"}) {
    EXPECT_EQ(speech("harness/cli/train.cc", text), 1) << text;
    EXPECT_EQ(speech("harness/cli/output.cc", text), 0) << text;
  }
  EXPECT_EQ(speech("harness/cli/train.cc", "void f() { print(\"x\"); say(\"y\"); }"), 0);
  EXPECT_EQ(speech("harness/cli/main.cc", "int main(int argc, char** argv) { exit(1); }"), 0);
}

TEST(Checker, LetsOthersBe) {
  for (const char* text :
       {"// printf(1), std::cout", "/* exit(1) */", "auto s = \"std::cout << printf(\";",
        "auto s = R\"x(exit(1) \" )\" puts(1))x\";", "void f() { std::snprintf(a, 4, \"x\"); }",
        "void f() { _exit(0); }", "void f() { loop.exit(1); loop->exit(2); }", "int on_exit(int);",
        "char c = '\"'; int argcount;", "auto s = \"a\\\" exit(1)\";"}) {
    EXPECT_EQ(speech("harness/run/run.cc", text), 0) << text;
  }
}

int isa(const Files& files) { return static_cast<int>(check_isa(files).size()); }

TEST(Checker, KeepsInstructionSetsIn) {
  const std::string good =
      "#include <immintrin.h>\n#include <stddef.h>\n#include <stdint.h>\n#include "
      "\"backends/kernels/plain.h\"\n";
  const std::string plain = "#pragma once\n#include <stdint.h>\n";
  EXPECT_EQ(isa({{"backends/kernels/dot_avx512.cc", good}, {"backends/kernels/plain.h", plain}}),
            0);
  for (const char* header :
       {"<vector>", "<cmath>", "<Eigen/Core>", "<fmt/format.h>", "<cstdint>"}) {
    for (const char* file : {"backends/kernels/dot_avx512.cc", "backends/kernels/dot_avx2.cc",
                             "backends/kernels/dot_avx512bf16.cc", "backends/kernels/dot_amx.cc"}) {
      EXPECT_EQ(isa({{file, std::string("#include ") + header + "\n"}}), 1) << file << header;
    }
    EXPECT_EQ(isa({{"backends/kernels/dot_scalar.cc", std::string("#include ") + header + "\n"}}),
              0);
  }
  // The forbidden header is reached through two of our own headers.
  EXPECT_EQ(isa({{"backends/kernels/dot_amx.cc", "#include \"backends/kernels/a.h\"\n"},
                 {"backends/kernels/a.h", "#include \"program/base/b.h\"\n"},
                 {"program/base/b.h", "#include <vector>\n"}}),
            1);
}

TEST(Checker, CountsLines) {
  const auto lines = [](int n) { return std::string(static_cast<size_t>(n), '\n'); };
  EXPECT_TRUE(check_length({{"harness/run/run.cc", lines(600)}}).empty());
  EXPECT_EQ(check_length({{"harness/run/run.cc", lines(601)}}).size(), 1u);
  EXPECT_EQ(check_layering({{"harness/run/run.cc", lines(601)}}).size(), 1u);
}

TEST(Checker, StripKeepsTheShape) {
  EXPECT_EQ(strip("a /* b\nc */ \"d\" // e", false), "a     \n     \" \"     ");
  EXPECT_EQ(strip("a \"// d\" // e", true), "a \"// d\"     ");
}

}  // namespace
}  // namespace twinrun::layering

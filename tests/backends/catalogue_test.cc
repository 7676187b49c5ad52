// Tests that every op of the table has all that an op needs (CONTRIBUTING.md, "an op"): it says by
// name what is missing. What a test of every kind covers by itself is not repeated here.
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <string>

#include "program/ops/op_def.h"
#include "tests/reference/op_cases.h"

namespace twinrun::catalogue_test {
namespace {

// The text of a file of the repository between two lines that begin so.
std::string section(const std::string& path, const std::string& from, const std::string& to) {
  std::ifstream file(std::string(TWINRUN_SOURCE_DIR) + "/" + path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = text.find("\n" + from), end = text.find("\n" + to, begin);
  EXPECT_TRUE(begin != std::string::npos && end != std::string::npos)
      << path << ": no section from '" << from << "' to '" << to << "'";
  return text.substr(begin, end - begin);
}

bool has_word(const std::string& text, const std::string& word) {
  const auto part_of_word = [&](size_t i) {
    return i < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_');
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !part_of_word(at - 1)) && !part_of_word(at + word.size())) return true;
  }
  return false;
}

// The first cell of every row of the tables in a text.
std::string first_cells(const std::string& text) {
  std::string cells;
  for (size_t at = text.find("\n| "); at != std::string::npos; at = text.find("\n| ", at + 1))
    cells += text.substr(at + 2, text.find(" |", at + 3) - at - 2) + "\n";
  return cells;
}

TEST(Catalogue, NothingIsMissingFromAnOp) {
  const std::string numerics = "docs/method/numerics.md", bounds = "docs/method/bounds.md",
                    semantics = "program/ops/op.h";
  const std::string comment = section(semantics, "// Semantics", "#pragma once");
  const std::string results = first_cells(section(numerics, "## 2.", "## 3."));
  const std::string gradients = first_cells(section(numerics, "**Gradients**", "## 9."));
  const std::string radii = section(bounds, "## Every op", "Softmax");
  std::string missing;
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    const std::string name(name_of(kind));
    const auto need = [&](bool there, const std::string& what) {
      if (!there) missing += "op " + name + ": " + what + "\n";
    };
    need(has_word(comment, name), "no semantics in the comment of " + semantics);
    need(op_def(kind).infer != nullptr, "no result type in its family's file of program/ops");
    need(has_word(results, name), "no row in " + numerics + " §2");
    need(has_word(radii, name), "no row in " + bounds + ", \"Every op of the table\"");
    if (kind == OpKind::kParameter) continue;  // it is given, not computed
    need(!op_cases(kind, DataClass::kNormal, 1).empty(), "no case in tests/reference/op_cases.cc");
    if (op_def(kind).gradient == nullptr) continue;
    // The row says "broadcast".
    const std::string row = kind == OpKind::kBroadcastInDim ? "broadcast" : name;
    need(has_word(gradients, row), "no row in the table of gradients, " + numerics + " §8");
  }
  EXPECT_EQ(missing, "");
}

}  // namespace
}  // namespace twinrun::catalogue_test

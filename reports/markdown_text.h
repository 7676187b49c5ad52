// Pieces of GitHub-flavoured Markdown that hold up under any content: names with pipes and
// backticks, programs with fences, megabytes of text. Every piece has a size in bytes that it never
// exceeds.
//
//   Pieces md(level);                         // a higher level is a smaller report
//   md.prose("a | b", 400);                   // "a \| b"
//   md.code("conv1/kernel", 80);              // "`conv1/kernel`"
//   md.block("hlo", program, 10000);          // fenced, cut at a line
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twinrun::text {

class Pieces {
 public:
  explicit Pieces(int level) : level_(level) {}

  // How many rows and bytes are left of the usual number at this level; never 0.
  size_t rows(size_t usual) const;
  size_t bytes(size_t usual) const;

  // Plain words: nothing in them is markup, no line end. Good in tables too.
  std::string prose(std::string_view raw, size_t usual = 400) const;
  // A code span; empty for nothing. In a table a pipe needs a backslash, elsewhere it must not have
  // one.
  std::string code(std::string_view raw, size_t usual = 160) const;
  std::string cell_code(std::string_view raw, size_t usual = 160) const;
  // A fenced block of its own.
  std::string block(std::string_view language, std::string_view raw, size_t usual) const;
  // Titles first; a title that ends in ":" is a column of numbers. Columns without content are left
  // out, rows beyond the limit are counted: "12 more rows in report.json".
  std::string table(std::vector<std::string> titles,
                    const std::vector<std::vector<std::string>>& rows, size_t usual_rows) const;
  // One "- " line for each item.
  std::string bullets(const std::vector<std::string>& items, size_t usual_rows) const;

 private:
  int level_;
};

// Folded away on GitHub.
std::string details(std::string_view summary, std::string_view body);

}  // namespace twinrun::text

// Pieces of GitHub-flavoured Markdown that stay intact for any content: names with pipes and
// backticks, programs with fences, megabytes of text. Every piece has a maximum size in bytes.
//
//   Pieces md(level);                         // a higher level makes a smaller report
//   md.prose("a | b", 400);                   // "a \| b"
//   md.code("conv1/kernel", 80);              // "`conv1/kernel`"
//   md.block("hlo", program, 10000);          // fenced, cut at a line end
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reports/text.h"

namespace twinrun::text {

class Pieces {
 public:
  explicit Pieces(int level) : level_(level) {}

  // How many of the usual rows and bytes remain at this level; never 0.
  size_t rows(size_t usual) const;
  size_t bytes(size_t usual) const;

  // Plain words on one line, with all markup escaped. Also fit for tables.
  std::string prose(std::string_view raw, size_t usual = 400) const;
  // A code span; "" for an empty string. A pipe needs a backslash inside a table and must not have
  // one elsewhere, hence two functions.
  std::string code(std::string_view raw, size_t usual = 160) const;
  std::string cell_code(std::string_view raw, size_t usual = 160) const;
  // A fenced block.
  std::string block(std::string_view language, std::string_view raw, size_t usual) const;
  // Cells are Markdown already. Columns without content are left out; rows that are not shown are
  // counted: "12 more rows in report.json".
  static std::string table(const std::vector<Column>& columns,
                           const std::vector<std::vector<std::string>>& rows, size_t left_out);
  // One "- " line for each item.
  std::string bullets(const std::vector<std::string>& items, size_t usual_rows) const;

 private:
  int level_;
};

// A section that GitHub shows folded.
std::string details(std::string_view summary, std::string_view body);

}  // namespace twinrun::text

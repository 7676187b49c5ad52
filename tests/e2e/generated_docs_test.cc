// Tests that generated pages and tables of docs/ are what the program says today. `./dev docs`
// writes them: it runs these tests with TWINRUN_UPDATE_GOLDEN=1.
#include <fmt/format.h>

#include "harness/check/messages.h"
#include "harness/diagnose/classify.h"
#include "harness/identify/formulas.h"
#include "harness/sharding/catalogue.h"
#include "scenarios/keys.h"
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

const fs::path kDocs = TWINRUN_SOURCE_DIR "/docs";

// Compares a page with its text, or writes it.
void expect_page(const fs::path& page, const std::string& text) {
  if (std::getenv("TWINRUN_UPDATE_GOLDEN") != nullptr) return write_text(page, text);
  EXPECT_EQ(read_text(page), text) << page << " is not current: run ./dev docs";
}

// The same for what stands in a page between the lines
// <!-- NAME: begin (generated) --> and <!-- NAME: end -->.
void expect_block(const fs::path& page, const std::string& name, const std::string& text) {
  const std::string begin = fmt::format("<!-- {}: begin (generated) -->\n", name),
                    end = fmt::format("<!-- {}: end -->", name);
  const std::string all = read_text(page);
  const size_t from = all.find(begin), to = all.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos && from < to)
      << page << " lacks the lines " << begin << end;
  expect_page(page, all.substr(0, from + begin.size()) + text + all.substr(to));
}

TEST(GeneratedDocs, KeysOfScenarios) {
  expect_block(kDocs / "reference/scenarios.md", "keys", key_table_markdown());
}

TEST(GeneratedDocs, TableOfVerdicts) {
  expect_block(kDocs / "method/diagnosis.md", "verdict table", verdict_table_markdown());
}

TEST(GeneratedDocs, TableOfCauses) {
  expect_block(kDocs / "method/diagnosis.md", "causes", cause_table_markdown());
}

TEST(GeneratedDocs, CatalogueOfFormulas) {
  expect_block(kDocs / "reference/formulas.md", "catalogue", formula_table_markdown());
}

TEST(GeneratedDocs, TableOfMessages) {
  expect_block(kDocs / "guides/check.md", "messages", message_table_markdown());
}

}  // namespace
}  // namespace twinrun::e2e

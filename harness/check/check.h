// Will it work on a TPU? Rules over a scenario and its program on paper, or over a training step as HLO or StableHLO text. Nothing
// is run and no data is opened. On the data's path: scenario or step.hlo -> Checked (here) -> terminal, JSON, graph page.
//
//   TWINRUN_ASSIGN(Checked c, check_scenario("digits_cnn", {{"train.batch", "100"}}));
//   c.findings[0].id;                     // "batch-not-divisible"
//   c.step;                               // what one core runs, for who plans memory or time
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/experiment/imported.h"
#include "program/import/hlo_module.h"
#include "scenarios/reader.h"

namespace twinrun {

// An error stops the run on a TPU, or makes it train something else without a word; a warning trains another thing than one
// device would; a note costs time or memory.
enum class Severity : uint8_t { kError, kWarning, kNote };
std::string_view to_string(Severity severity);  // "error", "warning", "note"
Result<Severity> find_severity(const std::string& word);

// A row of the table of rules (rules.cc). docs/check.md has the same rows; a test compares.
struct Rule {
  std::string_view id;  // stable
  Severity severity;
  std::string_view meaning;
  std::string_view message;  // what a TPU's stack prints, {} for its arguments; "": it says nothing
  std::string_view source;   // of the message, or of the rule where there is none
};
std::span<const Rule> rules();
const Rule& rule(std::string_view id);  // must be one

struct RuleFinding {
  std::string_view id;
  Severity severity = Severity::kError;
  std::string where;  // "digits.toml:7: train.batch", "step.hlo:41: fft.3"
  std::string found, why;
  std::string fix;                    // a --set line where one cures it
  std::string stack_message;          // with its arguments; "" where the stack says nothing
  std::vector<std::string> ops = {};  // all that it speaks of: layers, instructions ("fft.3:41")
};

struct Checked {
  std::string name;
  Experiment experiment;          // of a scenario; `scenario` alone where no program could be built
  std::optional<Program> step;    // what one core runs
  std::optional<HloModule> text;  // of --program
  std::string no_step;            // why there is no `step`
  std::vector<RuleFinding> findings;  // errors, warnings, notes; in each the order of rules()
  size_t count(Severity severity) const;
};

// Errors: of a scenario that cannot be read for a reason that is none of the rules'.
Result<Checked> check_scenario(std::string_view name_or_path, const Overrides& overrides = {});
// Only `program` and `binding` are read.
Result<Checked> check_program(const ImportRequest& request);

}  // namespace twinrun

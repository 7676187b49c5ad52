// Whether a training step works on a TPU: rules over a scenario and its program, over a step given
// as HLO or StableHLO text, or over a TensorFlow graph. Nothing is run and no data is opened. On the
// data's path: scenario, step.hlo or saved_model.pb -> Checked (here) -> terminal, JSON.
//
//   TWINRUN_ASSIGN(Checked c, check_scenario("digits_cnn", {{"train.batch", "100"}}));
//   c.findings[0].id;                     // "batch-not-divisible"
//   c.step;                               // what one core runs, e.g. to plan memory or time
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/check/tf_step.h"
#include "harness/experiment/imported.h"
#include "program/import/hlo_module.h"
#include "scenarios/reader.h"

namespace twinrun {

// Error: the run on a TPU stops, or silently trains something else. Warning: it trains something
// else than one device would. Note: it costs time or memory.
enum class Severity : uint8_t { kError, kWarning, kNote };
std::string_view to_string(Severity severity);  // "error", "warning", "note"
std::vector<std::string> severity_names();      // in this order
Result<Severity> find_severity(const std::string& word);

// A row of the table of rules (rules.cc). docs/guides/check.md has the same rows; a test compares
// them.
struct Rule {
  std::string_view id;  // stable
  Severity severity;
  std::string_view meaning;
  std::string_view message;  // what a TPU's stack prints, {} for its arguments; "": nothing
  std::string_view source;   // of the message or, if there is none, of the rule
};
std::span<const Rule> rules();
const Rule& rule(std::string_view id);  // `id` must be in the table

struct RuleFinding {
  std::string_view id;
  Severity severity = Severity::kError;
  std::string where;  // "digits.toml:7: train.batch", "step.hlo:41: fft.3"
  std::string found, why;
  std::string fix;                    // a --set argument, if one cures it
  std::string stack_message;          // with its arguments; "" if the stack prints nothing
  std::vector<std::string> ops = {};  // all layers or instructions ("fft.3:41") that it concerns
};

struct Checked {
  std::string name;
  // Of a scenario. If no program could be built, only its member `scenario` is set.
  Experiment experiment;
  // What one core runs, of a scenario with a batch that its cores can share.
  std::optional<Program> step;
  std::optional<HloModule> text;  // of --program
  // Of --graph, and what of it runs on the TPU.
  std::shared_ptr<const TfGraph> graph;
  TfStep tf_step;
  std::string no_step;  // why there is no `step`
  // Of a scenario: each layer and where it is, "digits.toml:31: model.layers.dense1".
  std::vector<std::pair<std::string, std::string>> layer_places;
  std::vector<RuleFinding> findings;  // errors, then warnings, then notes; each in rules() order
  size_t count(Severity severity) const;
};

// The ops of the step, and those of them that no error names.
struct OpCount {
  size_t all = 0, on_tpu = 0;
};
OpCount count_ops(const Checked& checked);

// Errors: the scenario cannot be read, for a reason that no rule covers.
Result<Checked> check_scenario(std::string_view name_or_path, const Overrides& overrides = {});
// Checks a step given as text. Only `program` and `binding` are read.
Result<Checked> check_program(const ProgramFiles& files);
// Checks a TensorFlow graph: the path of a file, or of a SavedModel's folder.
Result<Checked> check_graph(const std::string& path);

}  // namespace twinrun

// The table of verdicts: which evidence gives which class. Rows are tried in order, and the first
// whose condition holds decides. The table of docs/method/diagnosis.md is printed from it.
//
//   const VerdictRow& row = deciding_row(evidence);   // row.name: "identical"
//   row.write(evidence, judgement);                   // headline, confidence, findings, next steps
#pragma once

#include <span>
#include <string_view>

#include "harness/diagnose/classify.h"

namespace twinrun {

struct VerdictRow {
  std::string_view name;
  std::string_view condition;  // of `holds`, in words, where no earlier row holds: Markdown
  VerdictClass verdict = VerdictClass::kInconclusive;
  bool (*holds)(const Evidence&) = nullptr;
  // The judgement has the verdict of the row already.
  void (*write)(const Evidence&, Judgement&) = nullptr;
  // Whether the engine and its program are judged. Where they are not, `--fail-on` may not say that
  // nothing is wrong with them.
  enum class Judges : uint8_t {
    kBoth,
    kOpen,    // something is held against the subject that is not decided
    kNothing  // the experiment itself failed: nothing is said about the subject
  } judges = Judges::kBoth;
};

std::span<const VerdictRow> verdict_rows();
const VerdictRow& deciding_row(const Evidence& evidence);
const VerdictRow* find_verdict_row(std::string_view name);  // nullptr: there is none

}  // namespace twinrun

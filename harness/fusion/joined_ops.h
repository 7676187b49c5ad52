// Which ops of a step an engine computes wrongly only where its compiler joins them: bisected by
// optimization barriers in the text of the module (program/import/barriers.h), and proved on an
// excerpt of it. Follows compiled_step.h, which finds that a step is wrong.
//
//   const auto wrong = [&](Engine& e) -> Result<bool> { ... };
//   TWINRUN_ASSIGN(const JoinedOps found, find_joined_ops(*backend, program, given, wrong, &pool));
//   found.ops[0].label;                // "delay/dynamic_update_slice@train.py:12"
//   found.excerpt;                     // the smallest module of them that is computed wrongly
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/fusion/compiled_step.h"
#include "harness/host/progress.h"
#include "program/import/barriers.h"

namespace twinrun {

struct JoinedOps {
  // The ops that may not be joined, in the order of the text. Empty: not found, for the reason
  // `why`.
  std::vector<DefinedOp> ops;
  std::string why;
  int64_t compilations = 0, definitions = 0;
  // A module of ops of the step alone, which the engine computes wrongly on the operands that they
  // have in the step; then `ops` are those of the module.
  std::optional<Excerpt> excerpt;
  StepVerdict verdict;  // of the excerpt
};

// Whether the engine's untraced step is wrong. It is called with other texts of the same module.
using WrongStep = std::function<Result<bool>(Engine&)>;

// Errors: the engine fails in a step that it computed before; interrupted. A text that it refuses
// to compile is left out of the search.
Result<JoinedOps> find_joined_ops(Backend& backend, const Program& program, const KeptStep& given,
                                  const WrongStep& wrong, ThreadPool* pool,
                                  Progress* progress = nullptr, const StopFlag* stop = nullptr);

}  // namespace twinrun

// Holds the values of two diagnoses of one JAX step against each other: the results of each side
// against what rounding can make of the *other* side's program on the same arguments. Where an
// element is outside, the two programs do not mean the same, whatever either engine does.
//
//   TWINRUN_ASSIGN(both.values, compare_reports(*both.a.step, *both.b.step, &pool));
#pragma once

#include "backends/core/backend.h"
#include "program/base/result.h"
#include "reports/two_reports.h"

namespace twinrun {

// Errors: a file of a step is missing or is not what its report says.
Result<ValuesApart> compare_reports(const StepFiles& a, const StepFiles& b, ThreadPool* pool);

}  // namespace twinrun

// How differently two sides move the parameters: the updates of each step, compared.
//
//   for (const UpdateDifference& u : compare_updates(trace_a, trace_b)) u.relative;
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "harness/trace/trace_file.h"

namespace twinrun {

struct Moved {
  const aten::TensorView* before = nullptr;  // as the step first reads it
  const aten::TensorView* after = nullptr;   // as it was last written; nullptr: it was not
};
// For each parameter, in the order of first use: what each step did to it.
struct Parameter {
  uint64_t storage = 0;
  std::map<int32_t, Moved> steps;
};
std::vector<Parameter> parameters_of(const TraceFile& trace);

// What the optimizers read in a step: gradients and parameters, each in the order of first use, and
// how many calls they make.
struct Optimized {
  std::vector<const aten::TensorView*> gradients;
  std::vector<uint64_t> parameters;
  int64_t calls = 0, first_call = 0;
};
std::map<int32_t, Optimized> optimized_by(const TraceFile& trace);
bool same_sizes(const std::vector<const aten::TensorView*>& a,
                const std::vector<const aten::TensorView*>& b);

struct UpdateDifference {
  int32_t step = 0;
  int64_t parameters = 0;  // that were found on both sides
  // The Euclidean norm of the difference of both updates of all parameters, over the larger norm of
  // the two.
  double relative = 0;
  // The same of the gradients that the optimizers read; NaN where the sides do not read gradients of
  // the same sizes in the same order.
  double gradients = NAN;
  // Of the first step: the part of the moved elements whose updates are further apart than the
  // difference of their gradients and the optimizers' roundings explain; NaN where it is not known.
  double unlike = NAN;
};
// Parameters are known by their first values; those that begin differently are left out.
std::vector<UpdateDifference> compare_updates(const TraceFile& a, const TraceFile& b);

}  // namespace twinrun

// Is it the machine, or the model? A known-answer program on an engine, and facts of the machine.
//
//   for (const auto& row : *doctor("tpu")) ...   // name, passed, detail
#pragma once

#include <string>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

struct DoctorRow {
  std::string name;
  bool passed = true;
  std::string detail;
};

// The known answer: exact small-integer products, sums and an all-reduce over 8 cores, which every precision holds exactly; and the
// digest of a three-step run that the numeric contract fixes, over 1 and 2 threads.
Result<std::vector<DoctorRow>> doctor(const std::string& engine);

}  // namespace twinrun

// Checks an installation and an engine: facts of the machine, and a program with a known answer on
// the engine, to exclude both before a model or its data are suspected. Behind `twinrun doctor`.
//
//   TWINRUN_ASSIGN(const Doctor d, doctor("exec:python3 engine.py", nullptr));
//   d.good(); d.answer;                                 // one sentence
//   for (const auto& row : d.checks) ...                // name, passed, detail
#pragma once

#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/host/progress.h"
#include "program/base/result.h"

namespace twinrun {

struct DoctorRow {
  std::string name;
  bool passed = true;
  std::string detail;
};

struct Doctor {
  std::vector<DoctorRow> machine, checks;
  std::vector<DeviceFacts> devices;  // that the engine sees
  std::string answer;                // what this means for a training that goes wrong
  bool good() const;
};

// Runs the checks, each only if those before it passed: the engine starts; one of the devices that
// it lists can be used; a step of small
// integers, which every precision holds exactly, on one core and on several; a step from the state
// that the engine kept has the bits of a step from the same state given to it; for an engine of
// ours, the bits of three steps are the same with 1 and 2 threads and poisoned memory. Error: no
// engine of ours has that name.
Result<Doctor> doctor(const std::string& engine, Progress* progress);

}  // namespace twinrun

// Is it the server, or the pipeline? A program with a known answer on an engine, before anybody's model or data is suspected; and
// facts of the machine.
//
//   TWINRUN_ASSIGN(const Doctor d, doctor("exec:python3 engine.py", nullptr));
//   d.good(); d.answer;                                 // one sentence
//   for (const auto& row : d.checks) ...                // name, passed, detail
#pragma once

#include <string>
#include <vector>

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
  std::string answer;  // what follows for somebody whose training goes wrong
  bool good() const;
};

// The checks, each only where those before it passed: it starts; a step of small integers, which every precision holds exactly, on
// one core and on several; a step from the state that it kept and from the same state given to it; of an engine of ours, the bits
// of three steps with 1 and 2 threads and poisoned memory. Errors: no such engine among ours.
Result<Doctor> doctor(const std::string& engine, Progress* progress);

}  // namespace twinrun

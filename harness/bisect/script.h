// Runs a training script of the user's under the Python of an environment, and reads its verdict.
//
//   ScriptOptions o{.script = {"train.py"}, .way = ScriptOptions::Way::kDiagnose, .folder = "out"};
//   TWINRUN_ASSIGN(const ScriptAnswer a, run_script(o, "/env/bin/python", "003-0.4.28", stop));
//   a.word;                                     // "ENGINE_BUG"; "" where nothing was judged
#pragma once

#include <string>
#include <vector>

#include "harness/host/progress.h"
#include "program/base/result.h"

namespace twinrun::bisect {

struct ScriptOptions {
  // Where the verdict comes from.
  enum class Way : uint8_t {
    kDiagnose,  // the script calls twinrun.diagnose, whose report has it
    kWatch,     // python -m twinrun watch records the script, and the trace is judged
    kExit,      // the exit code of the script: 0 is good, 125 a skip, others up to 127 bad
  } way = Way::kDiagnose;
  std::vector<std::string> script;  // with its arguments; runs in the caller's folder
  std::string folder;               // of results: logs/NAME.log, reports/NAME/
  std::string package;              // folder of the Python package twinrun; "": the script has none
  int steps = 1;                    // kWatch: steps that are recorded
  int threads = 2;                  // kWatch: to judge with
  double timeout_seconds = 0;       // 0: none
};

struct ScriptAnswer {
  // The class of the verdict; of kExit "PASSED" or "FAILED"; "" if there is none.
  std::string word;
  std::string why;  // the verdict's headline; or why there is none
  double seconds = 0;
};

// Words of kExit.
inline constexpr std::string_view kGoodWord = "PASSED", kBadWord = "FAILED";

// `name`: of the log, to which is appended, and of the folder into which the report is copied.
// Errors: the interpreter cannot be started; interrupted.
Result<ScriptAnswer> run_script(const ScriptOptions& options, const std::string& python,
                                const std::string& name, const StopFlag* stop);

// kDiagnose where the text of the script calls diagnose of twinrun, else kWatch. Error: it cannot
// be read.
Result<ScriptOptions::Way> way_of(const std::string& script);

// The folder of the package twinrun that this interpreter imports. Error: it imports none.
Result<std::string> package_folder(const std::string& python, const std::string& log,
                                   const StopFlag* stop);

}  // namespace twinrun::bisect

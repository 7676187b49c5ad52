// twinrun diagnose: one door for everything that can be diagnosed.
#include <fmt/format.h>

#include "backends/exec/exec_backend.h"
#include "harness/cli/diagnose_what.h"
#include "harness/cli/program.h"
#include "harness/trace/side.h"

namespace twinrun::cli {
namespace {

// What the first word of a --against names: a Python alone runs the same script.
Result<What> other_side(const std::string& text, const What& what) {
  std::vector<std::string> words = command_words(text);
  if (words.empty()) return Error{"nothing is named", "--against", "name a script or a trace"};
  if (words.size() == 1 && what.kind == WhatKind::kScript && is_python(words[0])) {
    const bool named = is_python(what.words.front());
    words.insert(words.end(), what.words.begin() + (named ? 1 : 0), what.words.end());
  }
  return what_of(words);
}

Status check_ranks(const Parsed& parsed, const What& what) {
  if (ranks() == nullptr) return Ok{};
  for (const char* alone : {"against", "program"}) {
    if (parsed.has(alone))
      return Error{fmt::format("does not run on several ranks ({} were started)", ranks()->ranks()),
                   fmt::format("--{}", alone), "start it without mpirun"};
  }
  if (what.kind == WhatKind::kScenario) return Ok{};
  return Error{
      fmt::format("only a scenario runs on several ranks ({} were started)", ranks()->ranks()),
      what.words.front(), "start it without mpirun"};
}

}  // namespace

Result<int> diagnose_verb(const Args& args) {
  if (fault_help(args)) return 0;
  Options options;
  options.text("out,o FOLDER", "folder of the results (default twinrun-results/NAME..)");
  options.text("against WHAT",
               "the other side: another Python for the same script, a command in quotes, a trace, "
               "or a finished diagnosis");
  add_answer_options(options);
  add_common_options(options);
  options.group("a script or a trace");
  add_step_options(options);
  options.group("a scenario or a training step as HLO or StableHLO text");
  add_scenario_diagnosis_options(options);
  options.group("a compiled module and its results");
  add_module_options(options);
  const size_t script = script_at(args, options);
  const bool module = script < args.size() && args[script] == "-m";
  Args ours(args.begin(), args.begin() + static_cast<int64_t>(std::min(script + 1, args.size())));
  if (module) ours.back() = "module";  // not an option of ours
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(ours,
            "twinrun diagnose [OPTIONS] WHAT\n\n"
            "WHAT is one of\n"
            "  train.py ARGS     a Python script, or -m MODULE ARGS: its first training steps are\n"
            "                    recorded and judged\n"
            "  trace.twin ..     what `python -m twinrun watch` has recorded, of each rank\n"
            "  digits_cnn        a scenario of the library, or your TOML\n"
            "  step.mlir         a training step as HLO or StableHLO text\n"
            "  FOLDER            of a finished diagnosis (shown again), or of traces",
            "twinrun diagnose train.py --epochs 1", options, {"?WHAT.."}));
  if (parsed.help) return 0;
  if (parsed.has("program") == parsed.has("?WHAT..")) {
    return parsed.has("program")
               ? Error{"both WHAT and --program", "", "give one of them"}
               : Error{"nothing to diagnose is named", "",
                       "twinrun diagnose train.py, trace.twin or digits_cnn; --help"};
  }
  What what{WhatKind::kModule, {}, ""};
  if (parsed.has("program")) {
    what.words = {parsed.get<std::string>("program")};
  } else {
    auto words = parsed.get<std::vector<std::string>>("?WHAT..");
    if (script < args.size())
      words.insert(words.end(), args.begin() + static_cast<int64_t>(script) + 1, args.end());
    if (module) words.front() = "-m";
    TWINRUN_ASSIGN(what, what_of(words));
  }
  TWINRUN_RETURN_IF_ERROR(check_ranks(parsed, what));
  if (!what.understood.empty() && !parsed.get<bool>("quiet") && !parsed.get<bool>("json"))
    say(what.understood + "\n");
  if (parsed.has("against")) {
    TWINRUN_ASSIGN(const What against, other_side(parsed.get<std::string>("against"), what));
    if (what.kind == WhatKind::kReport || against.kind == WhatKind::kReport)
      return diagnose_reports(parsed, what, against);
    for (const What* side : {static_cast<const What*>(&what), &against}) {
      if (side->kind != WhatKind::kScript && side->kind != WhatKind::kTraces)
        return Error{
            "two sides are scripts, traces or finished diagnoses", side->words.front(),
            "diagnose each, then name both folders; to hold what two of them compute against each "
            "other: twinrun train each, then twinrun diff; two engines on one: --baseline, "
            "--subject"};
    }
    return diagnose_step(parsed, what, &against);
  }
  switch (what.kind) {
    case WhatKind::kScript:
    case WhatKind::kTraces:
      return diagnose_step(parsed, what, nullptr);
    case WhatKind::kReport: {
      return show_report(what.words.front(), parsed);
    }
    case WhatKind::kModule:
      if (parsed.has("values")) return diagnose_module(parsed, what.words.front());
      break;
    case WhatKind::kScenario:
      break;
  }
  return diagnose_scenario(parsed, what);
}

}  // namespace twinrun::cli

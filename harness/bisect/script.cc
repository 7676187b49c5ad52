// Runs a script under an environment's Python, and reads the verdict of its report or of its trace.
#include "harness/bisect/script.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>

#include "harness/diagnose/write_report.h"
#include "harness/host/command.h"
#include "harness/search/session.h"
#include "harness/trace/judge_trace.h"
#include "program/base/json_text.h"
#include "reports/text.h"

namespace twinrun::bisect {
namespace {

namespace fs = std::filesystem;
using Way = ScriptOptions::Way;

// The package alone, under a folder of its own: beside an installed package lie others, which must
// not be imported instead of the environment's.
Result<std::string> door(const ScriptOptions& options) {
  const fs::path folder = fs::path(options.folder) / "door";
  std::error_code failed;
  fs::create_directories(folder, failed);
  fs::remove(folder / "twinrun", failed);
  fs::create_directory_symlink(options.package, folder / "twinrun", failed);
  if (failed)
    return Error{"cannot write: " + failed.message(), folder.string(), "choose another with -o"};
  return folder.string();
}

// The verdicts that twinrun.diagnose has appended to the file: the first engine bug, else the
// first.
std::optional<ScriptAnswer> verdict_in(const std::string& file, const fs::path& report) {
  std::ifstream in(file);
  std::optional<ScriptAnswer> found;
  for (std::string line; std::getline(in, line);) {
    const auto parsed = parse_json_text(line);
    const nlohmann::json j = parsed ? *parsed : nullptr;
    const auto text_at = [&](const char* key) {
      return j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
    };
    const std::string word = text_at("verdict");
    if (word.empty() || (found && word != "ENGINE_BUG")) continue;
    found = {word, text_at("headline"), 0};
    copy_report(text_at("path"), report.string());
    if (word == "ENGINE_BUG") break;
  }
  return found;
}

// A failure that says that this release has another interface, not that it computes wrongly.
bool is_interface_error(const std::string& line) {
  static const std::regex kPattern(
      "^(ImportError|ModuleNotFoundError|AttributeError|NotImplementedError):|"
      "^TypeError: .*unexpected keyword argument");
  return std::regex_search(line, kPattern);
}

ScriptAnswer judge_recorded(const ScriptOptions& options, const std::string& trace_file,
                            const fs::path& report, const StopFlag* stop) {
  const auto trace = read_trace(trace_file, false);
  if (!trace) return {"", trace.error().what, 0};
  ThreadPool pool(options.threads);
  const TraceVerdict verdict = judge_trace(*trace, &pool, stop);
  if (const Status same = unchanged(*trace); !same) return {"", same.error().what, 0};
  const Report found = report_of(verdict);
  (void)write_report(report.string(), found);  // the search does not depend on the pages
  return {std::string(to_string(found.verdict)), found.headline, 0};
}

ScriptAnswer answer_of_exit(const CommandResult& ran, const std::string& last) {
  const bool exited = ran.ended == CommandResult::Ended::kExit;
  if (exited && ran.code == 0) return {std::string(kGoodWord), ran.text(), 0};
  const std::string why = last.empty() ? ran.text() : fmt::format("{}, {}", ran.text(), last);
  const bool answers = exited && ran.code != 125 && ran.code < 128 && !is_interface_error(last);
  return {answers ? std::string(kBadWord) : "", why, 0};
}

}  // namespace

Result<Way> way_of(const std::string& script) {
  std::ifstream in(script, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return Error{"cannot read the script", script, "give the path of a Python file"};
  static const std::regex kCalls("(^|[^\\w])diagnose\\s*\\("), kImports("\\btwinrun\\b");
  const std::string all = text.str();
  const bool calls = std::regex_search(all, kImports) && std::regex_search(all, kCalls);
  return calls ? Way::kDiagnose : Way::kWatch;
}

Result<std::string> package_folder(const std::string& python, const std::string& log,
                                   const StopFlag* stop) {
  const std::string out = log + ".out";
  std::error_code ignored;
  fs::remove(log, ignored);
  TWINRUN_ASSIGN(
      const CommandResult ran,
      run_command({python, "-c",
                   "import os, twinrun; print(os.path.dirname(os.path.abspath(twinrun.__file__)))"},
                  {.log = log, .out = out}, stop));
  if (ran.ended == CommandResult::Ended::kInterrupted) return interrupted();
  const std::string folder = last_line(out);
  fs::remove(out, ignored);
  if (ran.code != 0 || folder.empty())
    return Error{fmt::format("{} does not import the package twinrun: {}", python,
                             text::clean(last_line(log))),
                 "",
                 "pip install twinrun, or set PYTHONPATH to the folder adapters of a checkout; "
                 "$TWINRUN_PYTHON names another Python"};
  return folder;
}

Result<ScriptAnswer> run_script(const ScriptOptions& options, const std::string& python,
                                const std::string& name, const StopFlag* stop) {
  const fs::path folder(options.folder), report = folder / "reports" / name;
  const std::string log = (folder / "logs" / (name + ".log")).string();
  const std::string verdicts = (folder / "verdicts.jsonl").string();
  const std::string trace = (folder / "trace.twin").string();
  std::error_code ignored;
  for (const fs::path& earlier :
       {fs::path(verdicts), report / "report.html", report / "report.json"})
    fs::remove(earlier, ignored);
  std::vector<std::string> words{"env", "TWINRUN_VERDICTS=" + verdicts,
                                 "TWINRUN=" + fs::read_symlink("/proc/self/exe", ignored).string()};
  std::string path;
  if (!options.package.empty()) {
    TWINRUN_ASSIGN(path, door(options));
  }
  words.push_back("PYTHONPATH=" + path);
  words.push_back(python);
  if (options.way == Way::kWatch) {
    for (const std::string& word :
         {std::string("-m"), std::string("twinrun"), std::string("watch"), std::string("--output"),
          trace, std::string("--stop"), std::string("--steps"), std::to_string(options.steps)})
      words.push_back(word);
  }
  words.insert(words.end(), options.script.begin(), options.script.end());
  TWINRUN_ASSIGN(
      const CommandResult ran,
      run_command(words, {.log = log, .timeout_seconds = options.timeout_seconds}, stop));
  if (ran.ended == CommandResult::Ended::kInterrupted) return interrupted();
  // What recording says comes after the exception that ended the script.
  const std::string last = text::clean(last_line(log, "twinrun: "));
  ScriptAnswer answer;
  if (options.way == Way::kExit) {
    answer = answer_of_exit(ran, last);
  } else if (const auto told = verdict_in(verdicts, report)) {
    answer = *told;
  } else if (ran.ended != CommandResult::Ended::kExit || ran.code != 0) {
    answer.why = last.empty() ? ran.text() : fmt::format("{}, {}", ran.text(), last);
  } else if (options.way == Way::kWatch) {
    answer = judge_recorded(options, trace, report, stop);
    if (stop != nullptr && stop->load()) return interrupted();
  } else {
    answer.why = "the script ended without calling twinrun.diagnose; --way watch records it";
  }
  fs::remove(trace, ignored);
  answer.seconds = ran.seconds;
  return answer;
}

}  // namespace twinrun::bisect

// Finds out what `twinrun diagnose` is given, and prints its answer.
#include "harness/cli/diagnose_what.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "checkpoints/container/atomic_file.h"
#include "harness/diagnose/verdict_rows.h"
#include "harness/trace/side.h"
#include "harness/trace/trace_file.h"
#include "program/base/names.h"

namespace twinrun::cli {
namespace {

namespace fs = std::filesystem;

constexpr VerdictClass kFailing[] = {VerdictClass::kSharding, VerdictClass::kProgram,
                                     VerdictClass::kEngineBug, VerdictClass::kNondeterministic,
                                     VerdictClass::kInconclusive};
constexpr std::string_view kRemarks = "remarks";

// The first bytes of a regular file.
std::string beginning(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  std::ifstream file(path, std::ios::binary);
  std::string out(512, '\0');
  file.read(out.data(), static_cast<std::streamsize>(out.size()));
  out.resize(static_cast<size_t>(file.gcount()));
  return out;
}

// NAME.rank*.twin of NAME.twin, which is not there, in the order of the ranks.
std::vector<std::string> ranks_of(const fs::path& whole) {
  std::error_code ignored;
  const std::string begin = whole.stem().string() + ".rank", end = whole.extension().string();
  std::map<int64_t, std::string> found;
  for (const auto& entry : fs::directory_iterator(
           whole.has_parent_path() ? whole.parent_path() : fs::path("."), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(end) ||
        name.size() <= begin.size() + end.size())
      continue;
    const std::string number = name.substr(begin.size(), name.size() - begin.size() - end.size());
    if (number.size() < 10 && number.find_first_not_of("0123456789") == std::string::npos)
      found[std::stoll(number)] = (whole.parent_path() / name).string();
  }
  std::vector<std::string> all;
  for (auto& [rank, path] : found) all.push_back(std::move(path));
  return all;
}

What traces(std::vector<std::string> paths) {
  const std::string what =
      paths.size() == 1 ? "a recorded step" : fmt::format("traces of {} ranks", paths.size());
  return {WhatKind::kTraces, paths,
          fmt::format("{}: {}; every call is judged", paths.front(), what)};
}

What script(const std::vector<std::string>& words) {
  return {WhatKind::kScript, words,
          fmt::format("{}: a Python script; its first training steps are recorded, and every call "
                      "is judged",
                      fmt::join(words, " "))};
}

Result<What> folder(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(fs::path(path) / "report.json", ignored))
    return What{WhatKind::kReport, {path}, fmt::format("{}: a finished diagnosis", path)};
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    if (entry.path().extension() == ".twin") found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  if (!found.empty()) return traces(found);
  return Error{"this folder holds neither a report.json nor traces (*.twin)", path,
               "name the script, the trace or the scenario"};
}

}  // namespace

Result<What> what_of(const std::vector<std::string>& words) {
  std::error_code ignored;
  const std::string& first = words.front();
  const fs::path path(first);
  if (first == "-m" && words.size() == 1)
    return Error{"no module is named", "-m", "twinrun diagnose -m PACKAGE.MODULE ARGS"};
  if (first == "-m" || (words.size() > 1 && std::ranges::any_of(words, is_python)))
    return script(words);
  if (fs::is_directory(path, ignored) && words.size() == 1) return folder(first);
  const std::string begin = beginning(first);
  const std::string text = begin.substr(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
  if (is_trace(first)) return traces(words);
  if (path.extension() == ".py" || (begin.starts_with("#!") && begin.find("python") < 80)) {
    if (begin.empty() && !fs::exists(path, ignored))
      return Error{"no such file", first, "check the script's name"};
    return script(words);
  }
  if (path.extension() == ".twin" && begin.empty()) {
    if (words.size() > 1) return traces(words);
    std::vector<std::string> ranks = ranks_of(path);
    return traces(ranks.empty() ? words : ranks);
  }
  if (words.size() > 1)
    return Error{fmt::format("unexpected argument '{}'", words[1]), first,
                 "only a script has arguments, and only traces are several"};
  if (path.extension() == ".mlir" || path.extension() == ".hlo" || text.starts_with("HloModule") ||
      text.starts_with("module @") || text.starts_with("module {"))
    return What{WhatKind::kModule, words, fmt::format("{}: a compiled training step", first)};
  if (begin.starts_with("PK"))
    return Error{"this is a zip file", first,
                 fmt::format("a bundle is replayed: twinrun replay {}", first)};
  if (begin.starts_with("\x89HDF"))
    return Error{
        "this is a run or a checkpoint, not something to diagnose", first,
        fmt::format("show it: twinrun inspect {0}; compare two: twinrun diff {0} OTHER", first)};
  if (text.starts_with("{")) {
    if (text.find("\"known_step\"") != std::string::npos)
      return Error{"this is the record of a known step", first,
                   fmt::format("twinrun verify {} SCRIPT", first)};
    return What{WhatKind::kReport, words, fmt::format("{}: the report of a diagnosis", first)};
  }
  return What{WhatKind::kScenario, words, ""};
}

void add_answer_options(Options& options) {
  std::vector<std::string> classes;
  for (const VerdictClass verdict : kFailing) classes.push_back(lower_case(to_string(verdict)));
  classes.emplace_back(kRemarks);
  options.some_of(
      "fail-on",
      "classes that count as bad, all others exit 0, a subject that was not judged 125; remarks: "
      "whatever the report says to look at",
      classes);
}

std::string results_folder(const Parsed& parsed, const std::string& name) {
  return parsed.has("out") ? parsed.get<std::string>("out") : "twinrun-results/" + name;
}

Result<int> answer(const Report& report, const Parsed& parsed, bool again) {
  const int code = exit_code(report.verdict, report.effect);
  int exit = code;
  if (parsed.has("fail-on")) {
    FailOn fail_on;
    for (const std::string& word : split_commas(parsed.get<std::string>("fail-on"))) {
      fail_on.remarks = fail_on.remarks || word == kRemarks;
      for (const VerdictClass verdict : kFailing)
        if (word == lower_case(to_string(verdict))) fail_on.classes.push_back(verdict);
    }
    if (!fail_on.has(report.verdict)) {
      // A verdict is of the gravest answer; a gate may ask for another one.
      const auto failing = std::ranges::find_if(questions(), [&](const Question& q) {
        return (report.answers.*q.answer).outcome == Answer::Outcome::kNo &&
               q.if_no != VerdictClass::kNoise && fail_on.has(q.if_no);
      });
      // And it does not turn a subject that was not judged into a good one.
      const VerdictRow* row = find_verdict_row(report.verdict_row);
      const bool judged = row != nullptr ? row->judges == VerdictRow::Judges::kBoth
                                         : report.verdict != VerdictClass::kInconclusive;
      exit = failing != questions().end()                 ? exit_code(failing->if_no)
             : fail_on.remarks && !report.remarks.empty() ? exit_code(VerdictClass::kProgram)
             : judged                                     ? 0
                                                          : exit_code(VerdictClass::kInconclusive);
    }
    fail_on.open = exit == exit_code(VerdictClass::kInconclusive);
    if (!report.directory.empty() && !again)
      TWINRUN_RETURN_IF_ERROR(
          write_file_atomically(report.directory + "/junit.xml", to_junit(report, fail_on)));
  }
  if (parsed.get<bool>("json")) {
    print_document(to_json(report));
    return exit;
  }
  TerminalOptions terminal = terminal_options();
  terminal.whole = parsed.get<bool>("verbose");
  if (exit != code) terminal.exit = fmt::format("exit code {} ({} without --fail-on)", exit, code);
  print_text(to_terminal(report, terminal), Colors::kOwn);
  return exit;
}

}  // namespace twinrun::cli

// twinrun bisect package: finds the release of a package with which a script became wrong, or
// right.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "harness/bisect/packages.h"
#include "harness/cli/bisect.h"
#include "harness/cli/progress_printer.h"
#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

using bisect::Found;
using Json = nlohmann::ordered_json;
using Way = bisect::ScriptOptions::Way;

constexpr const char* kWays[] = {"diagnose", "watch", "exit"};

Json json_of(const bisect::TriedRelease& t) {
  if (t.version.empty()) return nullptr;
  return {{"version", t.version},
          {"date", t.date},
          {"python", t.python},
          {"answer", t.answer},
          {"report", t.report},
          {"answers", {{"good", t.tally.good}, {"bad", t.tally.bad}, {"skip", t.tally.skip}}}};
}

Json json_of(const bisect::PackagesFound& f, const std::string& package) {
  const auto when = [](bool is, const bisect::TriedRelease& t) { return is ? json_of(t) : Json(); };
  Json tried = Json::array();
  for (const bisect::TriedRelease& t : f.tried) tried.push_back(json_of(t));
  return {{"schema", 1},
          {"axis", "package"},
          {"package", package},
          {"end", to_string(f.found.end)},
          {"fixed", f.fixed},
          {"wrong", f.wrong},
          {"way", kWays[static_cast<size_t>(f.way)]},
          {"first_bad", when(!f.fixed, f.first_bad)},
          {"last_good", when(!f.fixed, f.last_good)},
          {"last_bad", when(f.fixed, f.first_bad)},
          {"first_good", when(f.fixed, f.last_good)},
          {"skipped", f.skipped},
          {"why", f.found.why},
          {"links", f.links},
          {"releases", f.releases},
          {"tried", tried},
          {"executions", f.found.executions},
          {"testable", f.found.testable},
          {"untestable", f.found.untestable},
          {"bound", f.found.bound > 0 ? Json(f.found.bound) : Json(nullptr)},
          {"environments",
           {{"made", f.environments},
            {"seconds", f.environment_seconds},
            {"removed", f.removed},
            {"bytes_left", f.bytes}}},
          {"notes", f.found.notes}};
}

// What a release is called, and below it what it answered: text of the script's and the package's.
void print_end(const char* title, const std::string& package, const bisect::TriedRelease& t) {
  std::string line = fmt::format("{:<10} {} {}", title, package, t.version);
  if (!t.date.empty()) line += fmt::format(", of {}", t.date);
  print("{}\n", text::clean(line));
  for (const std::string& part : text::wrap(text::clean(t.answer), terminal_width() - 11))
    print("           {}\n", part);
}

void print_tried(const bisect::PackagesFound& f) {
  text::Table table({{.title = "release"},
                     {.title = "Python"},
                     {.title = "answers"},
                     {.title = "what", .flexible = true}});
  for (const bisect::TriedRelease& t : f.tried) {
    // What stands above in full is not repeated.
    const bool above = t.answer == f.first_bad.answer || t.answer == f.last_good.answer;
    table.add({text::clean(t.version), text::clean(t.python), t.tally.text(),
               text::clean(above ? t.answer.substr(0, t.answer.find(':')) : t.answer)});
  }
  for (const std::string& line : table.lines(terminal_width(), 2)) print("{}\n", line);
}

void print_package(const bisect::PackagesFound& f, const std::string& package) {
  if (f.found.end == Found::End::kNotReproducible) {
    print("not found: {}\n", text::clean(f.found.why));
    print_tried(f);
    return;
  }
  print_end(f.fixed ? "fixed in" : "first bad", package, f.fixed ? f.last_good : f.first_bad);
  print_end(f.fixed ? "last bad" : "last good", package, f.fixed ? f.first_bad : f.last_good);
  if (f.found.end == Found::End::kUndecided)
    print("not decided: {} cannot be tested, and lie between the two\n", join(f.skipped, ", "));
  for (const std::string& link : f.links) print("{:<10} {}\n", "compare", link);
  if (f.first_bad.python != f.last_good.python)
    print(
        "note: their Pythons differ, {} and {}, because no Python of this machine has wheels of "
        "both\n",
        text::clean(f.first_bad.python), text::clean(f.last_good.python));
  print_tried(f);
  for (const std::string& note : f.found.notes) print("  {}\n", note);
}

Result<std::pair<std::string, std::string>> range_of(const std::string& text) {
  const size_t dots = text.find("..");
  if (dots == std::string::npos || dots == 0 || dots + 2 == text.size())
    return Error{fmt::format("'{}' is not a range of releases", text), "LOW..HIGH",
                 "such as 0.4.21..0.4.35"};
  return std::pair(text.substr(0, dots), text.substr(dots + 2));
}

}  // namespace

Result<int> bisect_package(const Args& args) {
  const auto [words, command] = split_command(args);
  Options options;
  options.takes("NAME", {});
  options.takes("LOW..HIGH", {});
  options.one_of("way", "where the verdict comes from (default: by the text of SCRIPT)",
                 {{"diagnose", "SCRIPT calls twinrun.diagnose"},
                  {"watch", "python -m twinrun watch SCRIPT, and judge"},
                  {"exit", "the exit code of SCRIPT, as for git bisect run"}});
  options.some_of("fail-on", "what is bad (default: the class that only one of LOW and HIGH shows)",
                  {"engine_bug", "program", "sharding", "nondeterministic"});
  options.list("with REQUIREMENT", "a further package in every environment (repeatable)");
  options.takes("with", {});
  options.text("python PYTHON",
               "Python of all environments (default: that of most wheels, where it fits)");
  options.takes("python", {});
  options.number<int>("steps", "--way watch: steps to record", 1);
  options.number<double>("disk", "GB that the environments of this search may take", 20);
  options.text("environments COMMAND",
               "command that makes environments (default: $TWINRUN_PYTHON or python3 -m twinrun "
               "environment)");
  options.takes("environments", {});
  add_search_options(options, "twinrun-results/bisect-package", 2, 2);
  options.number<int>("threads", "--way watch: threads to judge with", 2);
  options.flag("json", "one JSON document on stdout");
  options.flag("quiet,q", "no progress");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(words, "twinrun bisect package NAME LOW..HIGH [OPTIONS] -- SCRIPT [ARGS]",
                       "twinrun bisect package jaxlib 0.4.30..0.5.0 -- train.py", options,
                       {"NAME", "LOW..HIGH"}));
  if (parsed.help) return 0;
  bisect::PackageOptions o;
  o.package = parsed.get<std::string>("NAME");
  TWINRUN_ASSIGN(const auto range, range_of(parsed.get<std::string>("LOW..HIGH")));
  o.low = range.first, o.high = range.second;
  if (command.empty()) return Error{"no script", "", "add -- SCRIPT, which is judged"};
  o.script = command;
  if (parsed.has("way")) {
    const auto way = std::ranges::find(kWays, parsed.get<std::string>("way"));
    o.way = static_cast<Way>(way - std::begin(kWays));
  }
  if (parsed.has("fail-on")) {
    for (std::string word : split_commas(parsed.get<std::string>("fail-on"))) {
      std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::toupper(c); });
      o.fail_on.push_back(word);
    }
  }
  if (parsed.has("with")) o.requirements = parsed.get<std::vector<std::string>>("with");
  for (const std::string& word : o.requirements)
    if (word.starts_with('-'))
      return Error{"--with takes a requirement, not an option", word, "--with flax==0.8.3"};
  if (parsed.has("python")) o.python = parsed.get<std::string>("python");
  const char* named = std::getenv("TWINRUN_PYTHON");
  o.interpreter = named != nullptr && *named != 0 ? named : "python3";
  o.environments = {o.interpreter, "-m", "twinrun", "environment"};
  if (parsed.has("environments"))
    o.environments = {"sh", "-c", parsed.get<std::string>("environments") + " \"$@\"", "sh"};
  o.disk = 1e9 * parsed.get<double>("disk");
  if (!(o.disk > 0))
    return Error{fmt::format("{}", parsed.get<double>("disk")), "--disk", "allowed: GB, above 0"};
  o.steps = parsed.get<int>("steps");
  if (o.steps < 1 || o.steps > 1000)
    return Error{std::to_string(o.steps), "--steps", "allowed: 1 to 1000"};
  TWINRUN_ASSIGN(o.threads, threads_of(parsed));
  TWINRUN_ASSIGN(o.repeats, repeats_of(parsed));
  o.timeout_seconds = parsed.get<double>("timeout");
  o.folder = parsed.get<std::string>("out");
  o.resume = parsed.get<bool>("resume");
  o.typed = command_line();
  ProgressPrinter printer(parsed.get<bool>("quiet"), false);
  const StopFlag& stop = install_stop_flag();
  TWINRUN_ASSIGN(const auto found,
                 unless_stopped(bisect::bisect_packages(o, &printer, &stop), stop));
  if (parsed.get<bool>("json")) {
    print_document(json_of(found, o.package).dump(2, ' ', false, Json::error_handler_t::replace) +
                   "\n");
  } else {
    print_package(found, o.package);
    print("{}\n", counts_text(found.found.executions, found.found.testable, found.found.untestable,
                              found.found.bound));
    print("  {} made in {}{}; {:.1f} GB of them are left\n",
          text::plural(found.environments, "environment"),
          text::duration(found.environment_seconds),
          found.removed > 0 ? fmt::format(", {} removed", found.removed) : "",
          static_cast<double>(found.bytes) / 1e9);
  }
  return found.found.end == Found::End::kFound ? 0 : kExitUnavailable;
}

}  // namespace twinrun::cli

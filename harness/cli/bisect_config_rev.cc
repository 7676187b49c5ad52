// twinrun bisect config and rev: finds the scenario keys or the commit that make a difference.
#include <fmt/format.h>

#include <filesystem>

#include "harness/bisect/revisions.h"
#include "harness/bisect/scenarios.h"
#include "harness/cli/bisect.h"
#include "harness/cli/progress_printer.h"
#include "harness/experiment/engines.h"
#include "harness/run/reference_cache.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

using bisect::Found;
using Json = nlohmann::ordered_json;

// ---- config

Result<bisect::ScenarioOptions> scenario_options(const Parsed& parsed, const Args& command,
                                                 const Scenario& a) {
  using Test = bisect::ScenarioOptions::Test;
  bisect::ScenarioOptions o;
  const auto test = parsed.get<std::string>("test");
  o.test = test == "verdict"  ? Test::kVerdict
           : test == "loss"   ? Test::kLoss
           : test == "digest" ? Test::kDigest
                              : Test::kCommand;
  if ((o.test == Test::kCommand) == command.empty())
    return Error{command.empty() ? "no command" : "a command, and another test", "--test",
                 "--test command -- CMD: CMD gets the scenario's file as its last word"};
  o.command = command;
  o.engine = parsed.get<std::string>("subject");
  o.quick = parsed.get<bool>("quick");
  TWINRUN_ASSIGN(o.faults, faults_of(parsed));
  o.margin = parsed.has("margin") ? parsed.get<double>("margin") : a.diagnose.margin;
  if (o.test == Test::kLoss && !(o.margin > 0))
    return Error{fmt::format("a margin of {}", o.margin), "--margin",
                 "a difference of held-out loss that you do not mind, above 0"};
  TWINRUN_ASSIGN(o.threads, threads_of(parsed));
  TWINRUN_ASSIGN(o.repeats, repeats_of(parsed));
  o.timeout_seconds = parsed.get<double>("timeout");
  o.folder = parsed.get<std::string>("out");
  o.cache = reference_cache_folder();
  o.resume = parsed.get<bool>("resume");
  o.typed = command_line();
  return o;
}

void print_config(const bisect::ScenariosFound& f) {
  if (f.set.end != Found::End::kFound) {
    print("not reproducible: {}\n", f.set.why);
    if (!f.answer_a.empty()) print("  A: {}; B: {}\n", f.answer_a, f.answer_b);
    return;
  }
  print("{} of {} that differ make{} the difference\n",
        text::plural(static_cast<int64_t>(f.set.changes.size()), "key"), f.changes.size(),
        f.set.changes.size() == 1 ? "s" : "");
  for (const int i : f.set.changes) {
    const bisect::KeyChange& c = f.changes[static_cast<size_t>(i)];
    for (const std::string& setting : c.settings()) print("  --set '{}'\n", setting);
    print("    in A {}\n", c.from);
  }
  print("  A: {}; B: {}\n", f.answer_a, f.answer_b);
  print("  good {} ({})\n  bad  {} ({})\n", f.good_file, f.set.good_tally.text(), f.bad_file,
        f.set.bad_tally.text());
}

Json json_of(const bisect::ScenariosFound& f) {
  Json keys = Json::array(), differ = Json::array();
  for (const int i : f.set.changes) {
    const bisect::KeyChange& c = f.changes[static_cast<size_t>(i)];
    keys.push_back({{"key", c.key}, {"a", c.from}, {"b", c.to}, {"set", c.settings()}});
  }
  for (const bisect::KeyChange& c : f.changes) differ.push_back(c.key);
  return {{"schema", 1},
          {"axis", "config"},
          {"end", to_string(f.set.end)},
          {"keys", keys},
          {"differ", differ},
          {"a", f.answer_a},
          {"b", f.answer_b},
          {"good", f.good_file},
          {"bad", f.bad_file},
          {"why", f.set.why},
          {"executions", f.set.executions},
          {"testable", f.set.testable},
          {"untestable", f.set.untestable},
          {"bound", f.set.bound},
          {"notes", f.set.notes}};
}

// ---- rev

Json json_of(const bisect::RevisionsFound& f) {
  const auto commit = [](const bisect::Commit& c) -> Json {
    if (c.name.empty()) return nullptr;
    return {{"commit", c.name}, {"subject", c.subject}};
  };
  Json skipped = Json::array();
  for (const bisect::Commit& c : f.skipped) skipped.push_back(commit(c));
  const auto tally = [](const bisect::Tally& t) -> Json {
    return {{"good", t.good}, {"bad", t.bad}, {"skip", t.skip}};
  };
  return {{"schema", 1},
          {"axis", "rev"},
          {"end", to_string(f.found.end)},
          {"first_bad", commit(f.first_bad)},
          {"last_good", commit(f.last_good)},
          {"skipped", skipped},
          {"why", f.found.why},
          {"good", {{"folder", f.good_folder}, {"answers", tally(f.found.good_tally)}}},
          {"bad", {{"folder", f.bad_folder}, {"answers", tally(f.found.bad_tally)}}},
          {"report", f.bad_report},
          {"commits", f.commits},
          {"executions", f.found.executions},
          {"testable", f.found.testable},
          {"untestable", f.found.untestable},
          {"bound", f.found.bound > 0 ? Json(f.found.bound) : Json(nullptr)},
          {"git", f.git_says},
          {"notes", f.found.notes}};
}

// Subjects of commits are untrusted text.
std::string commit_text(const bisect::Commit& c) {
  return fmt::format("{}  {}", c.name.substr(0, 12), text::clean(c.subject));
}

void print_rev(const bisect::RevisionsFound& f) {
  if (f.found.end == Found::End::kNotReproducible) {
    print("not reproducible: {}\n", f.found.why);
  } else {
    const bool one = f.found.end == Found::End::kFound;
    print("{}  {}\n", one ? "first bad" : "bad      ", commit_text(f.first_bad));
    for (auto c = f.skipped.rbegin(); c != f.skipped.rend(); ++c)
      print("untestable {}\n", commit_text(*c));
    print("last good  {}\n", commit_text(f.last_good));
    if (!one) print("not decided: the first bad commit is one of the untestable, or the bad one\n");
    print("  bad:  {}, {}\n  good: {}, {}\n", f.found.bad_tally.text(), f.bad_folder,
          f.found.good_tally.text(), f.good_folder);
    if (!f.bad_report.empty()) print("  report of the bad one: {}\n", f.bad_report);
    if (!f.git_says.empty()) print("  git bisect: {}\n", text::clean(f.git_says));
  }
}

}  // namespace

Result<int> bisect_config(const Args& args) {
  if (fault_help(args)) return 0;
  const auto [words, command] = split_command(args);
  Options options;
  options.takes("A", scenario_values());
  options.takes("?B", scenario_values());
  add_key_option(options, "set", "override a key of A and B (repeatable)");
  add_key_option(options, "set-b",
                 "override a key of B; without a second scenario B is A with these");
  options.one_of("test", "",
                 {{"verdict", "the class of a diagnosis, and the cause of a SHARDING or PROGRAM"},
                  {"loss", "the last held-out loss of a run, beyond --margin of A's"},
                  {"digest", "the last state of a run, the same as B's"},
                  {"command", "the exit code of CMD, as for git bisect run"}},
                 "verdict");
  options.number<double>("margin", "margin of --test loss (default: diagnose.margin of A)");
  options.flag("quick", "with --test verdict: no seeds, so that no effect is measured");
  add_engine_option(options, "subject", "engine to run", Engines::kWithForeign, "tpu");
  add_fault_option(options, "fault", "engine");
  add_search_options(options, "twinrun-results/bisect-config", 1);
  add_common_options(options);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(words, "twinrun bisect config A [B] [--set-b KEY=VALUE].. [--test TEST] [-- CMD]",
            "twinrun bisect config digits_mlp --set-b loss.reduction=sum --set-b train.log_every=5",
            options, {"A", "?B"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const auto a, scenario_of(parsed, "A"));
  TWINRUN_ASSIGN(auto overrides, overrides_of(parsed));
  TWINRUN_ASSIGN(auto more, overrides_of(parsed, "set-b"));
  overrides.insert(overrides.end(), more.begin(), more.end());
  if (!parsed.has("?B") && more.empty())
    return Error{"B is missing", "", "a second scenario, or --set-b KEY=VALUE"};
  TWINRUN_ASSIGN(const auto b,
                 load_scenario(parsed.get<std::string>(parsed.has("?B") ? "?B" : "A"), overrides));
  TWINRUN_ASSIGN(const auto o, scenario_options(parsed, command, a));
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  TWINRUN_RETURN_IF_ERROR(make_engine(o.engine, a, {}, &printer));
  TWINRUN_ASSIGN(const auto found,
                 unless_stopped(bisect::bisect_scenarios(a, b, o, &printer, &stop), stop));
  if (parsed.get<bool>("json")) {
    print_document(json_of(found).dump(2) + "\n");
  } else {
    print_config(found);
    for (const std::string& note : found.set.notes) print("  {}\n", note);
    print("{}\n", counts_text(found.set.executions, found.set.testable, found.set.untestable,
                              found.set.bound));
  }
  return found.set.end == Found::End::kFound ? 0 : kExitUnavailable;
}

Result<int> bisect_rev(const Args& args) {
  const auto [words, command] = split_command(args);
  Options options;
  options.text("repo FOLDER", "the repository", ".");
  options.text("good COMMIT", "a good commit");
  options.text("bad COMMIT", "a later, bad commit");
  options.text(
      "build COMMAND",
      "shell command to run in the worktree before CMD; if it fails, the commit is untestable");
  options.flag("clean", "remove untracked files before each commit");
  add_search_options(options, "twinrun-results/bisect-rev", 2);
  options.flag("json", "one JSON document on stdout");
  options.flag("quiet,q", "no progress");
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(words, "twinrun bisect rev --good R1 --bad R2 [OPTIONS] -- CMD|SCRIPT [ARGS]",
            "twinrun bisect rev --repo engine --good v1.0 --bad main --build 'make -j2' -- twinrun "
            "diagnose digits_mlp --subject exec:./engine",
            options, {}));
  if (parsed.help) return 0;
  for (const char* end : {"good", "bad"}) {
    if (!parsed.has(end)) return Error{"is missing", fmt::format("--{}", end), "a commit"};
  }
  if (command.empty()) return Error{"no command", "", "add -- CMD, whose exit code is the answer"};
  TWINRUN_ASSIGN(const auto repeats, repeats_of(parsed));
  bisect::RevisionOptions o;
  o.repository = parsed.get<std::string>("repo");
  o.good = parsed.get<std::string>("good");
  o.bad = parsed.get<std::string>("bad");
  o.folder = parsed.get<std::string>("out");
  if (parsed.has("build")) o.build = parsed.get<std::string>("build");
  o.command = command;
  // The name of a script, which no shell would run: it is diagnosed, and its verdict is the answer.
  if (command.front().ends_with(".py") && command.front().find('/') == std::string::npos) {
    std::error_code ignored;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
    const Args diagnose = {ignored ? "twinrun" : self.string(), "diagnose"};
    o.command.insert(o.command.begin(), diagnose.begin(), diagnose.end());
  }
  o.repeats = repeats;
  o.timeout_seconds = parsed.get<double>("timeout");
  o.clean = parsed.get<bool>("clean");
  o.resume = parsed.get<bool>("resume");
  o.typed = command_line();
  ProgressPrinter printer(parsed.get<bool>("quiet"), false);
  const StopFlag& stop = install_stop_flag();
  TWINRUN_ASSIGN(const auto found,
                 unless_stopped(bisect::bisect_revisions(o, &printer, &stop), stop));
  if (parsed.get<bool>("json")) {
    print_document(json_of(found).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    print_rev(found);
    for (const std::string& note : found.found.notes) print("  {}\n", note);
    print("{}\n", counts_text(found.found.executions, found.found.testable, found.found.untestable,
                              found.found.bound));
  }
  return found.found.end == Found::End::kFound ? 0 : kExitUnavailable;
}

}  // namespace twinrun::cli

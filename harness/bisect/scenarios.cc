// Axis `config`: judges scenarios between A and B by a diagnosis, a run or the user's command.
#include "harness/bisect/scenarios.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "checkpoints/container/atomic_file.h"
#include "harness/diagnose/pipeline.h"
#include "harness/host/command.h"
#include "harness/run/engine_setup.h"
#include "harness/run/run.h"

namespace twinrun::bisect {
namespace {

namespace fs = std::filesystem;
using Test = ScenarioOptions::Test;

// The name of a set of changes: "{}", "{0-3,7}".
std::string name_of_set(const std::vector<int>& set) {
  std::string text = "{";
  for (size_t i = 0; i < set.size();) {
    size_t k = i;
    while (k + 1 < set.size() && set[k + 1] == set[k] + 1) ++k;
    text += fmt::format("{}{}", text.size() > 1 ? "," : "", set[i]);
    if (k > i) text += fmt::format("-{}", set[k]);
    i = k + 1;
  }
  return text + "}";
}

// An engine that fails, or a machine without disk or memory: nothing is known of the candidate.
bool is_no_answer(const Error& error) {
  return error.of_foreign_engine() || error.kind == Error::Kind::kMachine;
}

// The test's answer for one scenario; none if it cannot be tested.
struct Answer {
  std::optional<std::string> text;
  std::string why;  // why there is no text
};

class ScenarioOracle {
 public:
  ScenarioOracle(const Scenario& a, const std::vector<KeyChange>& changes,
                 const ScenarioOptions& options, Session& session, const StopFlag* stop)
      : a_(a), changes_(changes), options_(options), session_(session), stop_(stop) {}

  // The set's name, which operator() maps back to the set.
  std::string name(const std::vector<int>& set) {
    std::string text = name_of_set(set);
    sets_[text] = set;
    return text;
  }
  std::string shown(const std::string& name) const {
    const std::vector<int>& set = sets_.at(name);
    std::string text = "A";
    for (size_t i = 0; i < set.size() && i < 3; ++i)
      text += (i == 0 ? " with " : ", ") + changes_[static_cast<size_t>(set[i])].key;
    return set.size() > 3 ? fmt::format("{} and {} more", text, set.size() - 3) : text;
  }
  std::string answer_of(const std::string& name) const {
    const auto it = answers_.find(name);
    return it == answers_.end() ? "" : it->second;
  }
  std::string file_of(const std::string& name) const {
    return (fs::path(options_.folder) / "scenarios" / (name + ".toml")).string();
  }
  // Takes over the answer of an end from an earlier search.
  void known(const Execution& e) { answers_.try_emplace(e.candidate, e.why); }

  Result<Execution> operator()(const std::string& name) {
    const auto begin = std::chrono::steady_clock::now();
    Execution e{name, Outcome::kSkip, "", 0, ""};
    Answer answer;
    if (const auto reported = remembered_.extract(name); !reported.empty()) {
      answer = reported.mapped();
    } else {
      TWINRUN_ASSIGN(answer, ask(name, e));
    }
    e.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    e.why = answer.text.value_or(answer.why);
    if (answer.text) {
      answers_[name] = *answer.text;
      if (options_.test != Test::kCommand) {
        TWINRUN_ASSIGN(e.outcome, compare(*answer.text));
      }
    }
    return e;
  }

 private:
  Result<Answer> ask(const std::string& name, Execution& e) {
    const auto scenario = with_changes(a_, changes_, sets_.at(name));
    if (!scenario) return Answer{std::nullopt, "not a valid scenario: " + scenario.error().what};
    TWINRUN_RETURN_IF_ERROR(write_file_atomically(file_of(name), resolved_toml(*scenario)));
    switch (options_.test) {
      case Test::kVerdict:
        return diagnosed(*scenario, name);
      case Test::kLoss:
      case Test::kDigest:
        return trained(*scenario);
      case Test::kCommand:
        break;
    }
    e.log = fmt::format("logs/{:03}.log", session_.executions() + 1);
    const std::string log = (fs::path(options_.folder) / e.log).string();
    std::error_code ignored;
    fs::remove(log, ignored);
    std::vector<std::string> words = options_.command;
    words.push_back(file_of(name));
    TWINRUN_ASSIGN(
        const CommandResult ran,
        run_command(words, {.log = log, .timeout_seconds = options_.timeout_seconds}, stop_));
    TWINRUN_ASSIGN(e.outcome, outcome_of(ran, options_.command[0]));
    return e.outcome == Outcome::kSkip ? Answer{std::nullopt, ran.text()} : Answer{ran.text(), ""};
  }

  Result<Answer> diagnosed(const Scenario& scenario, const std::string& name) const {
    DiagnoseOptions o;
    o.subject = options_.engine;
    o.quick = options_.quick;
    o.threads = options_.threads;
    o.faults = options_.faults;
    o.cache = options_.cache;
    o.command = options_.typed;
    o.directory = (fs::path(options_.folder) / "diagnoses" / name).string();
    const auto d = diagnose(scenario, o, nullptr, stop_);
    if (!d) {
      if (is_no_answer(d.error())) return d.error();
      // For example a fault that names no op of this scenario, or too few samples.
      return Answer{std::nullopt, d.error().what};
    }
    if (d->interrupted) return interrupted();
    // Of two causes of sharding one is not the other. Where an engine is wrong depends on the scenario.
    std::string answer(to_string(d->report.verdict));
    const bool by_cause =
        d->report.verdict == VerdictClass::kSharding || d->report.verdict == VerdictClass::kProgram;
    if (by_cause && !d->report.findings.empty()) answer += ", " + d->report.findings.front().cause;
    return Answer{std::move(answer), ""};
  }

  Result<Answer> trained(const Scenario& scenario) const {
    const auto experiment = make_experiment(scenario);
    if (!experiment) return Answer{std::nullopt, experiment.error().what};
    EngineSpec spec{
        .engine = options_.engine, .threads = options_.threads, .faults = options_.faults};
    if (!spec.engine.starts_with("cpu")) spec.cores = scenario.tpu.cores;
    auto engine = set_up(*experiment, spec);
    if (!engine) {
      if (is_no_answer(engine.error())) return engine.error();
      return Answer{std::nullopt, engine.error().what};  // a fault that fits no op of the program
    }
    RunOptions o;
    o.threads = options_.threads;
    o.stop = stop_;
    o.digest_states = false;
    const auto run = train(*experiment, engine->program, *engine->backend, o);
    if (!run) {
      if (is_no_answer(run.error())) return run.error();
      return Answer{std::nullopt, run.error().what};
    }
    if (run->file.ended.interrupted()) return interrupted();
    if (options_.test == Test::kDigest)
      return Answer{run->file.checkpoints.back().root_digest().hex(), ""};
    const double loss = run->file.evaluations.empty() ? run->file.steps.back().loss
                                                      : run->file.evaluations.back().loss;
    return Answer{fmt::format("{:.9g}", loss), ""};
  }

  // The answer of A or B, with which the others are compared. Tests the end now if that has not
  // been done.
  Result<std::string> end(const std::string& name) {
    const auto it = answers_.find(name);
    if (it != answers_.end()) return it->second;
    Execution e;
    TWINRUN_ASSIGN(const Answer answer, ask(name, e));
    if (!answer.text)
      return Error{fmt::format("cannot be tested: {}", answer.why), name == "{}" ? "A" : "B", ""};
    remembered_[name] = answer;
    answers_[name] = *answer.text;
    return *answer.text;
  }

  Result<Outcome> compare(const std::string& answer) {
    std::vector<int> all(changes_.size());
    std::iota(all.begin(), all.end(), 0);
    const std::string b_name = name(all);
    if (options_.test == Test::kDigest) {
      TWINRUN_ASSIGN(const std::string b, end(b_name));
      TWINRUN_ASSIGN(const std::string a, end("{}"));
      return answer == b && a != b ? Outcome::kBad : Outcome::kGood;
    }
    TWINRUN_ASSIGN(const std::string a, end("{}"));
    if (options_.test == Test::kLoss) {
      const double gap = std::abs(std::stod(answer) - std::stod(a));
      return gap <= options_.margin ? Outcome::kGood : Outcome::kBad;  // NaN is bad
    }
    TWINRUN_ASSIGN(const std::string b, end(b_name));
    return answer == a ? Outcome::kGood : answer == b ? Outcome::kBad : Outcome::kSkip;
  }

  const Scenario& a_;
  const std::vector<KeyChange>& changes_;
  const ScenarioOptions& options_;
  Session& session_;
  const StopFlag* stop_;
  std::map<std::string, std::vector<int>> sets_;
  std::map<std::string, std::string> answers_;
  // Answers of ends that were tested before the search executed them.
  std::map<std::string, Answer> remembered_;
};

std::string_view name_of(Test test) {
  constexpr std::string_view kNames[] = {"verdict", "loss", "digest", "command"};
  return kNames[static_cast<size_t>(test)];
}

}  // namespace

Result<ScenariosFound> bisect_scenarios(const Scenario& a, const Scenario& b,
                                        const ScenarioOptions& options, Progress* progress,
                                        const StopFlag* stop) {
  ScenariosFound r;
  r.changes = key_changes(a, b);
  if (r.changes.empty())
    return Error{"A and B have the same keys", a.file + ", " + b.file, "give two that differ"};
  std::error_code error;
  for (const char* name : {"logs", "scenarios"}) {
    fs::create_directories(fs::path(options.folder) / name, error);
    if (error)
      return Error{"cannot create the folder: " + error.message(), options.folder,
                   "choose another with -o"};
  }
  nlohmann::ordered_json faults = nlohmann::ordered_json::array();
  for (const FaultSpec& f : options.faults) faults.push_back(f.text);
  const nlohmann::ordered_json identity = {{"a", scenario_digest(a).hex()},
                                           {"b", scenario_digest(b).hex()},
                                           {"test", name_of(options.test)},
                                           {"engine", options.engine},
                                           {"faults", faults},
                                           {"quick", options.quick},
                                           {"margin", options.margin},
                                           {"command", options.command}};
  TWINRUN_ASSIGN(const auto session,
                 Session::open(options.folder, {"config", identity.dump(), options.typed},
                               options.resume, progress));
  ScenarioOracle oracle(a, r.changes, options, *session, stop);
  const int n = static_cast<int>(r.changes.size());
  std::vector<int> all(r.changes.size());
  std::iota(all.begin(), all.end(), 0);
  for (const std::string& end : {oracle.name({}), oracle.name(all)}) {
    for (const Execution& e : session->known(end)) oracle.known(e);
  }
  Judge judge(std::ref(oracle), options.repeats, *session, progress, stop);
  judge.shown_as([&](const std::string& name) { return oracle.shown(name); });
  TWINRUN_ASSIGN(r.set,
                 smallest_set(
                     n, [&](const std::vector<int>& set) { return oracle.name(set); }, judge));
  r.answer_a = oracle.answer_of("{}");
  r.answer_b = oracle.answer_of(oracle.name(all));
  nlohmann::ordered_json keys = nlohmann::ordered_json::array();
  if (r.set.end == Found::End::kFound) {
    for (const int i : r.set.changes) keys.push_back(r.changes[static_cast<size_t>(i)].key);
    for (const auto& [set, file] :
         {std::pair(&r.set.neighbour, &r.good_file), std::pair(&r.set.changes, &r.bad_file)}) {
      TWINRUN_ASSIGN(const Scenario scenario, with_changes(a, r.changes, *set));
      *file =
          (fs::path(options.folder) / (file == &r.good_file ? "good.toml" : "bad.toml")).string();
      TWINRUN_RETURN_IF_ERROR(write_file_atomically(*file, resolved_toml(scenario)));
    }
  }
  const nlohmann::ordered_json result = {
      {"end", to_string(r.set.end)}, {"keys", keys}, {"why", r.set.why}};
  TWINRUN_RETURN_IF_ERROR(session->finish(result.dump()));
  return r;
}

}  // namespace twinrun::bisect

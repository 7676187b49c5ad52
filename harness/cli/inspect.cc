// twinrun inspect: shows what a file or a scenario contains.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoints/run.h"
#include "harness/cli/program.h"
#include "harness/experiment/experiment.h"
#include "harness/foreign/export_state.h"
#include "harness/trace/trace_file.h"
#include "program/graph/liveness.h"
#include "reports/text.h"
#include "scenarios/library.h"

namespace twinrun::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Checkpoint& c) {
  Json tensors = Json::object();
  for (const auto& [name, t] : c.tensors) {
    tensors[name] = {{"type", to_string(t.value.type())},
                     {"role", t.role},
                     {"replica_axis", t.replica_axis},
                     {"digest", digest(t.value).hex()}};
  }
  return {{"schema", 1},
          {"kind", "checkpoint"},
          {"step", c.step},
          {"seed", c.seed},
          {"contract", c.contract},
          {"engine", c.engine},
          {"cores", c.cores},
          {"scenario_digest", c.scenario_digest},
          {"root_digest", c.root_digest().hex()},
          {"tensors", tensors},
          {"replicas", replicas_json(replicas_of(c))}};
}

// Core by core: what it holds, and how far that is from core 0.
void show_replicas(const Checkpoint& c) {
  const std::vector<ReplicaRow> replicas = replicas_of(c);
  if (replicas.empty()) return;
  constexpr size_t kShown = 64;
  print(
      "after {} steps cores differ in {} of {} tensors; of each core the digest, how far it is "
      "from core 0, and the tensor that is farthest\n",
      c.step, replicas.front().tensors.size(), c.tensors.size());
  for (size_t i = 0; i < std::min(replicas.size(), kShown); ++i) {
    const ReplicaRow& row = replicas[i];
    const auto farthest = std::ranges::max_element(row.tensors, {}, &ReplicaTensor::distance);
    print(
        "  core {:<4} {}  {:>9.3g}{}\n", row.core, row.digest, row.distance,
        i == 0 ? "" : fmt::format("  {} {:.3g}", text::clean(farthest->name), farthest->distance));
  }
  if (replicas.size() > kShown) print("  and {} more cores\n", replicas.size() - kShown);
}

void show(const Checkpoint& c) {
  print("checkpoint after {} steps, seed {}, contract {}, {}\nroot digest {}\nscenario    {}\n",
        c.step, c.seed, c.contract, c.engine.empty() ? "snapshot" : c.engine, c.root_digest().hex(),
        c.scenario_digest);
  for (const auto& [name, t] : c.tensors) {
    print("  {:<34} {:<10} {:<24} {}{}\n", name, t.role, to_string(t.value.type()),
          digest(t.value).hex(), t.replica_axis ? "  (replicas differ)" : "");
  }
  show_replicas(c);
}

void show(const RunFile& r) {
  print("run on {} ({}), steps {} to {}, {}\nrun digest   {}\nscenario     {}\n", r.engine,
        r.engine_settings, r.first_step, r.first_step + static_cast<int64_t>(r.steps.size()),
        to_string(r.ended), r.root_digest().hex(), r.scenario_digest);
  for (const auto& [key, value] : r.environment) print("  {:<12} {}\n", key, value);
  for (const auto& e : r.evaluations) {
    print("after {:>6} steps: held-out loss {:.6f}{}\n", e.step, e.loss,
          std::isnan(e.accuracy) ? "" : fmt::format(", accuracy {:.2f} %", 100 * e.accuracy));
  }
  for (const auto& c : r.checkpoints)
    print("checkpoint after {} steps: {}\n", c.step, c.root_digest().hex());
  if (const Checkpoint* c = checkpoint_of_cores(r)) show_replicas(*c);
}

std::string batches_text(const ImportedRun& run) {
  const std::string held_out =
      run.held_out.empty() ? "" : fmt::format(", {} held out", run.held_out.size());
  return fmt::format("{} batch{}{}", run.batches.size(), run.batches.size() == 1 ? "" : "es",
                     held_out);
}

// What names an imported program binds: which of its parameters is what.
void print_variables(const Program& program, const std::vector<std::string>& notes) {
  for (const StateVar& var : program.state)
    print("  {:<34} {:<10} {}{}\n", text::clean(var.name), to_string(var.role), to_string(var.type),
          var.next == kNoValue ? "  (does not change)" : "");
  for (const Input& input : program.inputs)
    print("  {:<34} {:<10} {}\n", text::clean(input.name), "input",
          to_string(program.graph.type(input.id)));
  for (const std::string& note : notes) print("  note: {}\n", text::clean(note));
}

// The scenarios of the library. Those of drills come last, since they are made for fault injection.
Result<int> list_library(bool json) {
  Json all = Json::array();
  for (const bool drills : {false, true}) {
    if (drills && !json) print("\nfor drills, with planted faults:\n");
    for (const LibraryFile& file : library_files()) {
      if (file.name.starts_with("drill_") != drills) continue;
      const auto s = parse_scenario(file.text, file.name);
      const std::string what = s ? s->description : s.error().message();
      all.push_back({{"name", file.name}, {"description", what}});
      if (!json) print("  {:<24} {}\n", file.name, what);
    }
  }
  if (json) print_document(Json{{"schema", 1}, {"scenarios", all}}.dump(2) + "\n");
  return 0;
}

// A scenario's text, as it is in the library or its file: what one copies to begin with.
Result<int> print_text_of(const std::string& name) {
  for (const LibraryFile& file : library_files()) {
    if (file.name != name) continue;
    print_document(file.text);
    return 0;
  }
  TWINRUN_ASSIGN(const Scenario scenario, load_scenario(name, {}));
  print_document(resolved_toml(scenario));
  return 0;
}

// A scenario, or an imported program.
Result<int> inspect_experiment(const Parsed& parsed) {
  if (parsed.get<bool>("resolved") && !parsed.has("program")) {
    TWINRUN_ASSIGN(const auto scenario, scenario_of(parsed, "?FILE"));
    print_document(resolved_toml(scenario));
    return 0;
  }
  TWINRUN_ASSIGN(const auto e, experiment_of(parsed, "?FILE"));
  const Scenario& scenario = e.scenario;
  if (parsed.get<bool>("resolved")) {
    print_document(resolved_toml(scenario));
    return 0;
  }
  TWINRUN_RETURN_IF_ERROR(check_shares(e, e.sharding, /*alone=*/false));
  const Program whole = e.whole();
  const Program program = e.sharding.cores > 1 ? e.sharded(e.sharding) : whole;
  if (parsed.get<bool>("ops")) {
    print_document(to_text(program));
    return 0;
  }
  const std::string data = e.imported ? batches_text(*e.imported) : e.data->description;
  int64_t parameters = 0;
  for (const auto& var : whole.state)
    parameters += var.role == StateRole::kParameter ? var.type.elements() : 0;
  if (parsed.get<bool>("json")) {
    const Json j = {
        {"schema", 1},
        {"kind", e.imported ? "program" : "scenario"},
        {"name", scenario.name},
        {"scenario_digest", scenario_digest(scenario).hex()},
        {"root_digest",
         to_checkpoint(whole, initial_states(e, whole), scenario, 0).root_digest().hex()},
        {"program_digest", digest(program).hex()},
        {"parameters", parameters},
        {"flops_per_step", step_flops(whole)},
        {"data", data}};
    print_document(j.dump(2) + "\n");
    return 0;
  }
  const std::string runs =
      e.imported ? fmt::format("ops         {}", program.graph.size())
                 : fmt::format("sharded     {} cores x {}, {} ops", program.sharding.cores,
                               program.batch, program.graph.size());
  print(
      "{}: {}\n  data        {}\n  parameters  {}\n  per step    {:.3g} GFLOP at batch {}\n"
      "  {}\n  digest      {}\n  program     {}\n",
      scenario.name, scenario.description, data, parameters, step_flops(whole) / 1e9,
      scenario.train.batch, runs, scenario_digest(scenario).hex(), digest(program).hex());
  if (e.imported) print_variables(whole, e.imported->notes);
  return 0;
}

// `--program` was the flag that is now `--ops`.
Status check_meaning_of_program(const Args& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] != "--program") continue;
    const std::string value = i + 1 < args.size() ? args[i + 1] : "";
    const std::vector<std::string> library = scenario_values().names;
    const bool scenario = std::ranges::find(library, value) != library.end();
    if (!value.empty() && !value.starts_with("-") && !scenario) continue;
    return Error{
        scenario ? fmt::format("'{}' is a scenario, not a program", value) : "no file is given",
        "--program",
        "--program FILE is a program of yours; the training step of a scenario is printed by "
        "twinrun inspect SCENARIO --ops"};
  }
  return Ok{};
}

}  // namespace

Result<int> inspect_verb(const Args& args) {
  TWINRUN_RETURN_IF_ERROR(check_meaning_of_program(args));
  Options options;
  add_program_options(options);
  options.takes("?FILE", scenario_values());
  options.flag("toml", "the text of a scenario of the library, to begin a file of your own");
  options.flag("resolved", "a scenario with every key filled in, as TOML");
  options.flag("ops", "the training step that runs, one op a line; of a scenario the sharded one");
  options.flag("json", "one JSON document on stdout");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun inspect [FILE|SCENARIO|--program FILE] [OPTIONS]",
                       "twinrun inspect runs/T.h5", options, {"?FILE"}));
  if (parsed.help) return 0;
  const auto what = parsed.has("?FILE") ? parsed.get<std::string>("?FILE") : "";
  if (what.empty() && !parsed.has("program")) return list_library(parsed.get<bool>("json"));
  if (parsed.get<bool>("toml")) return print_text_of(what);
  if (parsed.has("program")) return inspect_experiment(parsed);
  std::error_code ignored;
  if (is_trace(what))
    return Error{"this is a recorded step", what, "judge it: twinrun diagnose " + what};
  if (std::filesystem::exists(std::filesystem::path(what) / "report.json", ignored))
    return Error{"this is a finished diagnosis", what, "show it: twinrun report " + what};
  if (!std::filesystem::is_regular_file(what, ignored) || what.ends_with(".toml"))
    return inspect_experiment(parsed);
  TWINRUN_ASSIGN(const auto kind, file_kind(what));
  const bool json = parsed.get<bool>("json"), resolved = parsed.get<bool>("resolved");
  if (kind == "checkpoint") {
    TWINRUN_ASSIGN(const auto c, read_checkpoint(what));
    if (resolved) {
      print_document(c.scenario);
    } else if (json) {
      print_document(json_of(c).dump(2) + "\n");
    } else {
      show(c);
    }
    return 0;
  }
  TWINRUN_ASSIGN(const auto r, read_run(what));
  if (resolved) {
    print_document(r.scenario);
  } else if (json) {
    Json j = {{"schema", 1},
              {"kind", "run"},
              {"engine", r.engine},
              {"engine_settings", r.engine_settings},
              {"cores", r.cores},
              {"first_step", r.first_step},
              {"steps", r.steps.size()},
              {"ended", to_string(r.ended)},
              {"scenario_digest", r.scenario_digest},
              {"root_digest", r.root_digest().hex()},
              {"environment", r.environment}};
    j["evaluations"] = Json::array();
    for (const auto& e : r.evaluations)
      j["evaluations"].push_back({{"step", e.step}, {"loss", e.loss}, {"accuracy", e.accuracy}});
    j["checkpoints"] = Json::array();
    for (const auto& c : r.checkpoints)
      j["checkpoints"].push_back({{"step", c.step}, {"root_digest", c.root_digest().hex()}});
    const Checkpoint* const of_cores = checkpoint_of_cores(r);
    j["replicas"] = of_cores == nullptr ? Json::array() : replicas_json(replicas_of(*of_cores));
    print_document(j.dump(2) + "\n");
  } else {
    show(r);
  }
  return 0;
}

}  // namespace twinrun::cli

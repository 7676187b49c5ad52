// twinrun convert: weights between checkpoints and files of other frameworks; a training step as
// StableHLO text; the tensors of a checkpoint core by core.
#include "harness/foreign/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "harness/cli/program.h"
#include "harness/foreign/export_state.h"
#include "harness/foreign/export_step.h"
#include "harness/run/engine_setup.h"
#include "program/base/names.h"

namespace twinrun::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Converted& done, const std::string& path) {
  Json j = {{"schema", 1}, {"file", path}, {"from", done.from}, {"to", done.to}};
  if (done.checkpoint) {
    j["step"] = done.checkpoint->step;
    j["scenario_digest"] = done.checkpoint->scenario_digest;
    j["root_digest"] = done.checkpoint->root_digest().hex();
  }
  j["tensors"] = Json::array();
  for (const auto& row : done.conversion.rows) {
    j["tensors"].push_back({{"ours", row.ours},
                            {"theirs", row.theirs},
                            {"their_type", row.their_type},
                            {"our_type", row.our_type},
                            {"matched_by", row.how},
                            {"change", row.change}});
  }
  j["initial"] = done.conversion.initial;
  j["unused"] = Json::array();
  for (const auto& unused : done.conversion.unused) {
    j["unused"].push_back({{"theirs", unused.theirs}, {"nearest", unused.nearest}});
  }
  j["notes"] = done.conversion.notes;
  return j;
}

void show(const Converted& done, const std::string& path, bool quiet) {
  size_t ours = 4, theirs = 6;
  for (const auto& row : done.conversion.rows) {
    ours = std::max(ours, row.ours.size());
    theirs = std::max(theirs, row.theirs.size());
  }
  print("{}: {} from {}, {} tensors\n", path, done.to, done.from, done.conversion.rows.size());
  if (!quiet) print("  {:<{}}  {:<{}}  {}\n", "ours", ours, "theirs", theirs, "type, matched by");
  for (const auto& row : done.conversion.rows) {
    if (quiet) break;
    print("  {:<{}}  {:<{}}  {}, {}{}\n", row.ours, ours, row.theirs, theirs, row.their_type,
          row.how, row.change.empty() ? "" : "; " + row.change);
  }
  if (done.checkpoint) {
    print("  step {}, root digest {}\n", done.checkpoint->step,
          done.checkpoint->root_digest().hex());
  }
}

// Prints what the user should know in addition to the table.
void print_notes(const Conversion& conversion) {
  if (!conversion.initial.empty()) {
    say(fmt::format("initial values, not in the file: {}\n",
                    text::clean(join(conversion.initial, ", "))));
  }
  for (const auto& unused : conversion.unused) {
    say(fmt::format("not used: '{}' (nearest of the model: '{}')\n", text::clean(unused.theirs),
                    text::clean(unused.nearest)));
  }
  for (const std::string& note : conversion.notes) say(text::clean(note) + "\n");
}

bool is_scenario(const Parsed& parsed) {
  const std::vector<std::string> library = scenario_values().names;
  return std::ranges::find(library, parsed.get<std::string>("?IN")) != library.end();
}

// --to stablehlo: the training step of a scenario or program, with its arguments and results.
Result<int> write_step(const Parsed& parsed) {
  TWINRUN_ASSIGN(const auto threads, threads_of(parsed));
  // With --program an argument is the folder, and not a scenario.
  const bool program = parsed.has("program");
  const bool alone = program && parsed.has("?IN") && !parsed.has("?OUT") && !is_scenario(parsed);
  ExperimentSource source;
  if (alone) {
    TWINRUN_ASSIGN(source.program, program_files_of(parsed));
  } else {
    TWINRUN_ASSIGN(source, source_of(parsed, "?IN"));
  }
  TWINRUN_ASSIGN(const Overrides overrides, overrides_of(parsed));
  TWINRUN_ASSIGN(const Experiment experiment, open_experiment(source, overrides));
  const Scenario& scenario = experiment.scenario;
  const int cores = parsed.get<int>("cores");
  TWINRUN_RETURN_IF_ERROR(check_cores(scenario, cores));
  Sharding sharding = experiment.sharding;
  sharding.cores = cores;
  TWINRUN_RETURN_IF_ERROR(check_shares(experiment, sharding, /*alone=*/false));
  ExportOptions o;
  const char* const folder = alone ? "?IN" : "?OUT";
  o.folder = parsed.has(folder) ? parsed.get<std::string>(folder) : scenario.name + "-stablehlo";
  o.values = parsed.get<bool>("values");
  o.threads = threads;
  TWINRUN_ASSIGN(const auto done, export_step(experiment,
                                              cores == 1 ? experiment.whole(Experiment::Stack::kTpu)
                                                         : experiment.sharded(sharding),
                                              o));
  if (parsed.get<bool>("json")) {
    const Json j = {{"schema", 1},
                    {"files", done.files},
                    {"ops", done.ops},
                    {"arguments", done.arguments},
                    {"results", done.results}};
    print_document(j.dump() + "\n");
  } else {
    print("{}: {} ops, {} arguments, {} results, {} replica{}\n", o.folder, done.ops,
          done.arguments, done.results, cores, cores == 1 ? "" : "s");
  }
  return 0;
}

// --to tensors: of a checkpoint or run one array for each tensor, and for each core where cores
// differ.
Result<int> write_tensors(const Parsed& parsed) {
  const auto file = parsed.get<std::string>("?IN");
  const std::string folder = parsed.has("?OUT")
                                 ? parsed.get<std::string>("?OUT")
                                 : std::filesystem::path(file).stem().string() + "-state";
  TWINRUN_ASSIGN(const ExportedState done, export_state(file, folder));
  if (parsed.get<bool>("json")) {
    const Json j = {{"schema", 1},
                    {"files", done.files},
                    {"tensors", done.tensors},
                    {"replicas", replicas_json(done.replicas)}};
    print_document(j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    print("{}: {} tensors, {}\n", folder, done.tensors,
          done.replicas.empty()
              ? "the same on all cores"
              : fmt::format("{} of them one for each of {} cores",
                            done.replicas.front().tensors.size(), done.replicas.size()));
  }
  return 0;
}

}  // namespace

Result<int> convert_verb(const Args& args) {
  Options options;
  std::vector<Choice> forms = choices(weights_format_names());
  forms.push_back({"stablehlo", "the training step of a scenario or --program, with its values"});
  forms.push_back({"tensors", "a checkpoint or run, one array for each core where cores differ"});
  options.one_of("to FORM", "what OUT is (default: weights, by the name of OUT)", forms);
  options.flag("json", "one JSON document on stdout");
  options.flag("quiet,q", "neither table nor notes");
  options.group("weights");
  options.text("scenario SCENARIO", "the model: library name or TOML file");
  options.takes("scenario", scenario_values());
  options.text("map", "TOML or JSON of names: \"ours\" = \"theirs\"");
  options.number<int64_t>("step", "training steps done (default: what IN says, else 0)");
  options.group("a step (--to stablehlo)");
  add_program_options(options);
  options.number<int>("cores", "1: the whole batch; N: the sharded step, N replicas of one module",
                      1);
  options.flag("values", "make the value of every op a result");
  options.number<int>("threads", "host threads (default: all cores); never changes a bit");
  options.takes("?IN", scenario_values());
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args,
                       "twinrun convert IN OUT [--to FORM] [OPTIONS]\n"
                       "       twinrun convert SCENARIO|--program FILE [FOLDER] --to stablehlo",
                       "twinrun convert keras.weights.h5 init.h5 --scenario digits_cnn", options,
                       {"?IN", "?OUT"}));
  if (parsed.help) return 0;
  const std::string form = parsed.has("to") ? parsed.get<std::string>("to") : "";
  if (form == "stablehlo") return write_step(parsed);
  if (!parsed.has("?IN")) return Error{"IN is missing", "", "twinrun convert IN OUT"};
  if (form == "tensors") return write_tensors(parsed);
  if (!parsed.has("?OUT")) return Error{"OUT is missing", "", "twinrun convert IN OUT"};
  ConvertOptions what;
  what.in = parsed.get<std::string>("?IN");
  what.out = parsed.get<std::string>("?OUT");
  if (!form.empty()) {
    TWINRUN_ASSIGN(const auto format, parse_weights_format(form));
    what.format = format;
  }
  if (parsed.has("map")) what.map = parsed.get<std::string>("map");
  if (parsed.has("step")) {
    what.step = parsed.get<int64_t>("step");
    if (*what.step < 0) {
      return Error{fmt::format("{} is below 0", *what.step), "--step", "allowed: 0 or more"};
    }
  }
  if (parsed.has("scenario")) {
    TWINRUN_ASSIGN(auto scenario, scenario_of(parsed, "scenario"));
    what.scenario = std::move(scenario);
  } else if (parsed.has("set")) {
    return Error{"there is no scenario to override", "--set", "add --scenario NAME"};
  }
  TWINRUN_RETURN_IF_ERROR(check_output(what.out));
  TWINRUN_ASSIGN(const auto done, convert(what));
  if (parsed.get<bool>("json")) {
    print_document(
        json_of(done, what.out).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
        "\n");
  } else {
    show(done, what.out, parsed.get<bool>("quiet"));
  }
  if (!parsed.get<bool>("quiet")) print_notes(done.conversion);
  return 0;
}

}  // namespace twinrun::cli

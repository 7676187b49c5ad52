// twinrun convert: converts weights between checkpoints and files of other frameworks.
#include "harness/foreign/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/cli/options.h"
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

}  // namespace

Result<int> convert_verb(const Args& args) {
  Options options;
  options.one_of("to", "format (default: by the name of OUT)", choices(weights_format_names()));
  options.text("scenario", "the model: library name or TOML file");
  options.takes("scenario", scenario_values());
  add_key_option(options, "set", "override a key of the scenario");
  options.text("map", "TOML or JSON of names: \"ours\" = \"theirs\"");
  options.number<int64_t>("step", "training steps done (default: what IN says, else 0)");
  options.flag("json", "one JSON document on stdout");
  options.flag("quiet,q", "neither table nor notes");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun convert IN OUT [OPTIONS]",
                       "twinrun convert keras.weights.h5 init.h5 --scenario digits_cnn", options,
                       {"IN", "OUT"}));
  if (parsed.help) return 0;
  ConvertOptions what;
  what.in = parsed.get<std::string>("IN");
  what.out = parsed.get<std::string>("OUT");
  if (parsed.has("to")) {
    TWINRUN_ASSIGN(const auto format, parse_weights_format(parsed.get<std::string>("to")));
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

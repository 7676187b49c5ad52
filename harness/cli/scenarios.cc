// twinrun scenarios: lists the scenarios of the library, or prints one.
#include <fmt/format.h>

#include "harness/cli/options.h"
#include "scenarios/library.h"
#include "scenarios/scenario.h"

namespace twinrun::cli {

Result<int> scenarios_verb(const Args& args) {
  Options options;
  options.takes("?ACTION", {.names = {"show"}, .closed = true});
  options.takes("?NAME", {.names = scenario_values().names, .closed = true});
  TWINRUN_ASSIGN(const Parsed parsed, parse(args, "twinrun scenarios [show NAME]",
                                            "twinrun scenarios show digits_cnn > mine.toml",
                                            options, {"?ACTION", "?NAME"}));
  if (parsed.help) return 0;
  if (!parsed.has("?ACTION")) {
    // Drill scenarios come last, since they are made for fault injection.
    for (const bool drills : {false, true}) {
      if (drills) print("\nfor twinrun drill:\n");
      for (const auto& file : library_files()) {
        if (file.name.starts_with("drill_") != drills) continue;
        const auto s = parse_scenario(file.text, file.name);
        print("  {:<24} {}\n", file.name, s ? s->description : s.error().message());
      }
    }
    return 0;
  }
  if (!parsed.has("?NAME"))
    return Error{"NAME is missing", "scenarios show", "twinrun scenarios show digits_cnn"};
  for (const auto& file : library_files()) {
    if (file.name == parsed.get<std::string>("?NAME")) print_document(file.text);
  }
  return 0;
}

}  // namespace twinrun::cli

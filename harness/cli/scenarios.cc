// twinrun scenarios: lists the scenarios of the library, or prints one.
#include <fmt/format.h>

#include "harness/cli/cli.h"
#include "program/base/names.h"
#include "scenarios/library.h"
#include "scenarios/scenario.h"

namespace twinrun::cli {

Result<int> scenarios_verb(const Args& args) {
  if (args.empty()) {
    // Drill scenarios come last, since they are made for fault injection.
    for (const bool drills : {false, true}) {
      if (drills) fmt::print("\nfor twinrun drill:\n");
      for (const auto& file : library_files()) {
        if (file.name.starts_with("drill_") != drills) continue;
        const auto s = parse_scenario(file.text, file.name);
        fmt::print("  {:<24} {}\n", file.name, s ? s->description : s.error().message());
      }
    }
    return 0;
  }
  if (args[0] == "--help" || args[0] == "-h") {
    fmt::print(
        "usage: twinrun scenarios [show NAME]\n\nexample:\n  twinrun scenarios show digits_cnn > "
        "mine.toml\n");
    return 0;
  }
  if (args.size() != 2 || args[0] != "show")
    return Error{"expected nothing, or: show NAME", "scenarios",
                 "twinrun scenarios show digits_cnn"};
  std::vector<std::string> names;
  for (const auto& file : library_files()) {
    if (file.name == args[1]) {
      fmt::print("{}", file.text);
      return 0;
    }
    names.emplace_back(file.name);
  }
  return Error{fmt::format("no scenario '{}' (known: {})", args[1], join(names, ", ")),
               "scenarios show", fmt::format("did you mean '{}'?", nearest(args[1], names))};
}

}  // namespace twinrun::cli

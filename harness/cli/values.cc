// The values of options that several verbs share: scenarios, their keys, engines and faults.
#include <fmt/format.h>

#include <algorithm>

#include "backends/registry.h"
#include "device/machine.h"
#include "harness/cli/options.h"
#include "program/base/names.h"
#include "scenarios/keys.h"
#include "scenarios/library.h"

namespace twinrun::cli {

std::vector<Choice> generation_choices() {
  std::vector<Choice> all;
  for (const tpu::Generation& g : tpu::generations()) all.push_back({std::string(g.name)});
  return all;
}

Values scenario_values() {
  Values values{.files = true};
  for (const LibraryFile& file : library_files()) values.names.emplace_back(file.name);
  return values;
}

void add_key_option(Options& options, const std::string& name, const std::string& help) {
  options.list(name + " KEY=VALUE", help);
  Values values;
  const auto add = [&]<typename Part>(std::string_view section, const Part&) {
    for (const Key<Part>& key : keys<Part>()) {
      values.names.push_back(fmt::format("{}{}{}=", section, section.empty() ? "" : ".", key.name));
      const std::string assign = values.names.back();
      for (const std::string_view value : split_names(key.allowed.names))
        values.names.push_back(assign + std::string(value));
    }
    return true;
  };
  const Scenario scenario;
  add("", scenario);
  each_section(scenario, add);
  options.takes(name, std::move(values));
}

void add_engine_option(Options& options, const std::string& name, const std::string& help,
                       Engines which, const std::optional<std::string>& value) {
  std::vector<std::string> all = backend_names();
  if (which != Engines::kWithDouble) std::erase(all, "cpu:f64");
  all.emplace_back("honest:SEED");
  if (which != Engines::kOurs) all.emplace_back("exec:COMMAND");
  options.text(name + " ENGINE", fmt::format("{}: {}", help, join(all, ", ")), value);
  // What a user chooses is in capitals.
  for (std::string& engine : all)
    engine.resize(std::min(engine.size(), engine.find_first_of("SC")));
  options.takes(name, {.names = std::move(all)});
}

}  // namespace twinrun::cli

// twinrun snapshot: writes the seeded initial checkpoint.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/options.h"
#include "harness/experiment/experiment.h"

namespace twinrun::cli {

Result<int> snapshot_verb(const Args& args) {
  Options options;
  add_scenario_options(options);
  options.text("out,o", "file to write", "init.h5");
  options.flag("json", "one JSON document on stdout");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun snapshot SCENARIO -o init.h5",
                       "twinrun snapshot digits_cnn -o init.h5", options, {"SCENARIO"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const auto scenario, scenario_of(parsed));
  TWINRUN_ASSIGN(const auto experiment, make_experiment(scenario));
  const Program program = experiment.whole();
  Checkpoint c = to_checkpoint(program, initial_states(program, scenario.seed), scenario, 0);
  c.scenario = resolved_toml(scenario);
  c.scenario_digest = scenario_digest(scenario).hex();
  const auto path = parsed.get<std::string>("out");
  TWINRUN_RETURN_IF_ERROR(write_checkpoint(path, c));
  int64_t elements = 0;
  for (const auto& [name, t] : c.tensors) elements += t.value.elements();
  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"file", path},
                                      {"root_digest", c.root_digest().hex()},
                                      {"tensors", c.tensors.size()},
                                      {"elements", elements}};
    print_document(j.dump() + "\n");
  } else {
    print("{}: {} tensors, {} elements, root digest {}\n", path, c.tensors.size(), elements,
          c.root_digest().hex());
  }
  return 0;
}

}  // namespace twinrun::cli

// twinrun snapshot: writes the seeded initial checkpoint.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/cli.h"
#include "harness/experiment/experiment.h"

namespace twinrun::cli {

int snapshot_verb(const Args& args) {
  po::options_description options("options");
  add_scenario_options(options);
  options.add_options()("out,o", po::value<std::string>()->default_value("init.h5"),
                        "file to write")("json", po::bool_switch(), "one JSON document on stdout");
  const Parsed parsed = parse(args, "twinrun snapshot SCENARIO -o init.h5",
                              "twinrun snapshot digits_cnn -o init.h5", options, {"SCENARIO"});
  if (parsed.exit) return *parsed.exit;
  const auto scenario = scenario_of(parsed);
  if (!scenario) return fail(scenario.error());
  const auto experiment = make_experiment(*scenario);
  if (!experiment) return fail(experiment.error());
  const Program program = experiment->whole();
  Checkpoint c = to_checkpoint(program, initial_states(program, scenario->seed), *scenario, 0);
  c.scenario = resolved_toml(*scenario);
  c.scenario_digest = scenario_digest(*scenario).hex();
  const auto path = parsed.get<std::string>("out");
  if (const Status written = write_checkpoint(path, c); !written) return fail(written.error());
  int64_t elements = 0;
  for (const auto& [name, t] : c.tensors) elements += t.value.elements();
  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"file", path},
                                      {"root_digest", c.root_digest().hex()},
                                      {"tensors", c.tensors.size()},
                                      {"elements", elements}};
    fmt::print("{}\n", j.dump());
  } else {
    fmt::print("{}: {} tensors, {} elements, root digest {}\n", path, c.tensors.size(), elements,
               c.root_digest().hex());
  }
  return 0;
}

}  // namespace twinrun::cli

// twinrun serve: runs one of our engines behind the engine protocol.
#include "harness/doctor/serve.h"

#include <iostream>

#include "harness/cli/cli.h"

namespace twinrun::cli {

int serve_verb(const Args& args) {
  po::options_description options("options");
  options.add_options()("engine,e", po::value<std::string>()->default_value("cpu"),
                        "one of ours: cpu, tpu, honest:SEED");
  add_fault_option(options, "engine");
  add_common_options(options);
  const Parsed parsed = parse(args, "twinrun serve [--engine ENGINE] FOLDER",
                              "twinrun serve --engine tpu /tmp/session", options, {"FOLDER"});
  if (parsed.exit) return *parsed.exit;
  const auto threads = threads_of(parsed);
  if (!threads) return fail(threads.error());
  const auto faults = faults_of(parsed);
  if (!faults) return fail(faults.error());
  const ServeOptions o{parsed.get<std::string>("engine"), parsed.get<std::string>("FOLDER"),
                       *threads, *faults};
  const Status served = serve(o, std::cin, std::cout);
  return served ? 0 : fail(served.error());
}

}  // namespace twinrun::cli

// twinrun_dev serve: runs one of our engines behind the engine protocol.
#include "harness/doctor/serve.h"

#include <iostream>

#include "harness/developers/developers.h"

namespace twinrun::cli {

Result<int> serve_verb(const Args& args) {
  Options options;
  add_engine_option(options, "engine,e", "engine to serve", Engines::kOurs, "cpu");
  add_fault_option(options, "fault", "engine");
  add_common_options(options);
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun_dev serve [--engine ENGINE] FOLDER",
                       "twinrun_dev serve --engine tpu /tmp/session", options, {"FOLDER"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const auto threads, threads_of(parsed));
  TWINRUN_ASSIGN(const auto faults, faults_of(parsed));
  const ServeOptions o{parsed.get<std::string>("engine"), parsed.get<std::string>("FOLDER"),
                       threads, faults};
  TWINRUN_RETURN_IF_ERROR(serve(o, std::cin, messages_out()));
  return 0;
}

}  // namespace twinrun::cli

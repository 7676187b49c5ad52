// Engines on the command line: --pjrt-plugin, and the exit code where an engine cannot start.
#include "harness/cli/cli.h"
#include "harness/experiment/engines.h"

namespace twinrun::cli {

void add_plugin_option(po::options_description& options) {
  options.add_options()("pjrt-plugin", po::value<std::string>(),
                        "the engine xla: its PJRT plugin (default: $TWINRUN_PJRT_PLUGIN, or found "
                        "in Python's package folders)");
}

std::string engine_of(const Parsed& parsed, const char* option) {
  auto engine = parsed.get<std::string>(option);
  if (engine == "xla" && parsed.has("pjrt-plugin"))
    engine += ":" + parsed.get<std::string>("pjrt-plugin");
  return engine;
}

int fail_engine(const Error& error, const std::string& engine) {
  return fail(error, is_foreign_engine(engine) ? kExitUnavailable : kExitUsage);
}

}  // namespace twinrun::cli

#include "harness/doctor.h"

#include <fmt/format.h>

#include "backends/kernels/kernels.h"
#include "harness/cli/cli.h"
#include "harness/environment.h"

namespace twinrun::cli {

int doctor_verb(const Args& args) {
  po::options_description options("options");
  options.add_options()("engine,e", po::value<std::string>()->default_value("tpu"),
                        "engine to examine");
  add_plugin_option(options);
  const Parsed parsed =
      parse(args, "twinrun doctor [--engine ENGINE]", "twinrun doctor --engine tpu", options, {});
  if (parsed.exit) return *parsed.exit;
  const std::string engine = engine_of(parsed, "engine");
  const auto rows = doctor(engine);
  if (!rows) return fail_engine(rows.error(), engine);
  fmt::print("{}\n", version_text());
  bool good = true;
  for (const DoctorRow& row : *rows) {
    fmt::print("  {:<6} {:<40} {}\n", row.passed ? "ok" : "FAILED", row.name, row.detail);
    good = good && row.passed;
  }
  return good ? 0 : 1;
}

}  // namespace twinrun::cli

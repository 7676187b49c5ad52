// twinrun profile: shows where the time of a step goes, modelled or measured.
#include "reports/profile.h"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/cli.h"
#include "harness/cli/progress_printer.h"
#include "harness/profile/measured.h"
#include "harness/profile/modelled.h"

namespace twinrun::cli {
namespace {

Status write_profile(const Profile& profile, const ChromeTrace& trace, const std::string& dir) {
  std::error_code failed;
  std::filesystem::create_directories(dir, failed);
  if (failed) return Error{failed.message(), dir, "name a folder that can be made"};
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(dir + "/profile.json", to_profile_json(profile)));
  TWINRUN_RETURN_IF_ERROR(
      write_file_atomically(dir + "/profile.html", to_profile_html(profile, "trace.json")));
  return write_file_atomically(dir + "/trace.json", to_chrome_trace(trace));
}

Result<MeasuredProfile> profile_of(const Scenario& scenario, const Parsed& parsed) {
  if (parsed.get<bool>("measured")) {
    TWINRUN_ASSIGN(const int threads, threads_of(parsed));
    ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
    return measured_profile(scenario, {.engine = parsed.get<std::string>("engine"),
                                       .threads = threads,
                                       .steps = parsed.get<int64_t>("steps"),
                                       .progress = &printer,
                                       .stop = &install_stop_flag()});
  }
  MeasuredProfile modelled;
  TWINRUN_ASSIGN(modelled.profile,
                 modelled_profile(scenario, {.generation = parsed.get<std::string>("generation")}));
  modelled.trace = to_profile_trace(modelled.profile);
  return modelled;
}

}  // namespace

int profile_verb(const Args& args) {
  po::options_description options("options");
  add_scenario_options(options);
  options.add_options()("out,o", po::value<std::string>(),
                        "folder for profile.json, profile.html and trace.json")(
      "generation", po::value<std::string>()->default_value("v2"), "of the modelled TPU: v2, v3")(
      "measured", po::bool_switch(),
      "by the clock: some steps of one of our engines on this machine")(
      "engine,e", po::value<std::string>()->default_value("tpu"), "to measure: cpu, tpu")(
      "steps", po::value<int64_t>()->default_value(5), "to measure, after two that warm up");
  add_common_options(options);
  const Parsed parsed = parse(args, "twinrun profile SCENARIO [-o DIR] [OPTIONS]",
                              "twinrun profile resnet50 -o profile", options, {"SCENARIO"});
  if (parsed.exit) return *parsed.exit;
  const auto scenario = scenario_of(parsed);
  if (!scenario) return fail(scenario.error());
  const auto profile = profile_of(*scenario, parsed);
  if (!profile) return fail(profile.error());
  if (parsed.has("out")) {
    const Status written =
        write_profile(profile->profile, profile->trace, parsed.get<std::string>("out"));
    if (!written) return fail(written.error());
  }
  if (parsed.get<bool>("json")) {
    fmt::print("{}", to_profile_json(profile->profile));
    return 0;
  }
  fmt::print("{}", to_profile_text(profile->profile, terminal_width()));
  if (parsed.has("out"))
    fmt::print("\n{}: profile.html, profile.json, trace.json\n", parsed.get<std::string>("out"));
  return 0;
}

}  // namespace twinrun::cli

#include "reports/profile.h"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/cli.h"
#include "harness/profile/modelled.h"

namespace twinrun::cli {
namespace {

Status write_profile(const Profile& profile, const std::string& dir) {
  std::error_code failed;
  std::filesystem::create_directories(dir, failed);
  if (failed) return Error{failed.message(), dir, "name a folder that can be made"};
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(dir + "/profile.json", to_profile_json(profile)));
  TWINRUN_RETURN_IF_ERROR(
      write_file_atomically(dir + "/profile.html", to_profile_html(profile, "trace.json")));
  return write_file_atomically(dir + "/trace.json", to_chrome_trace(to_profile_trace(profile)));
}

}  // namespace

int profile_verb(const Args& args) {
  po::options_description options("options");
  add_scenario_options(options);
  options.add_options()("out,o", po::value<std::string>(),
                        "folder for profile.json, profile.html and trace.json")(
      "generation", po::value<std::string>()->default_value("v2"), "of the TPU: v2, v3")(
      "json", po::bool_switch(), "one JSON document on stdout, nothing else there");
  const Parsed parsed = parse(args, "twinrun profile SCENARIO [-o DIR] [OPTIONS]",
                              "twinrun profile resnet50 -o profile", options, {"SCENARIO"});
  if (parsed.exit) return *parsed.exit;
  const auto scenario = scenario_of(parsed);
  if (!scenario) return fail(scenario.error());
  const auto profile =
      modelled_profile(*scenario, {.generation = parsed.get<std::string>("generation")});
  if (!profile) return fail(profile.error());
  if (parsed.has("out")) {
    const Status written = write_profile(*profile, parsed.get<std::string>("out"));
    if (!written) return fail(written.error());
  }
  if (parsed.get<bool>("json")) {
    fmt::print("{}", to_profile_json(*profile));
    return 0;
  }
  fmt::print("{}", to_profile_text(*profile, terminal_width()));
  if (parsed.has("out"))
    fmt::print("\n{}: profile.html, profile.json, trace.json\n", parsed.get<std::string>("out"));
  return 0;
}

}  // namespace twinrun::cli

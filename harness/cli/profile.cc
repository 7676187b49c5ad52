// twinrun profile: shows where the time of a step goes, modelled or measured.
#include "reports/profile.h"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/profile/measured.h"
#include "harness/profile/modelled.h"
#include "harness/xplane/write.h"

namespace twinrun::cli {
namespace {

Status write_profile(const Profile& profile, const ChromeTrace& trace, const std::string& dir) {
  std::error_code failed;
  std::filesystem::create_directories(dir, failed);
  if (failed) return Error{failed.message(), dir, "name a folder that can be made"};
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(dir + "/profile.json", to_profile_json(profile)));
  TWINRUN_RETURN_IF_ERROR(
      write_file_atomically(dir + "/profile.html", to_profile_html(profile, "trace.json")));
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(dir + "/trace.json", to_chrome_trace(trace)));
  return write_xplane(profile, dir);
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

Result<int> profile_verb(const Args& args) {
  Options options;
  add_program_options(options);
  options.text("out,o", "folder for profile.json, profile.html and trace.json");
  options.one_of("generation", "generation of the modelled TPU", generation_choices(), "v2");
  options.flag("measured", "measure some steps of cpu or tpu on this machine");
  options.one_of("engine,e", "engine to measure", {{"cpu"}, {"tpu"}}, "tpu");
  options.number<int64_t>("steps", "steps to measure, after two for warm-up", 50);
  add_common_options(options);
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun profile SCENARIO|--program FILE [-o DIR] [OPTIONS]",
                       "twinrun profile resnet50 -o profile", options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  // The model of a scenario reads no data, so none is opened.
  TWINRUN_ASSIGN(const ExperimentSource source, source_of(parsed));
  Scenario scenario;
  if (source.program.program.empty()) {
    TWINRUN_ASSIGN(scenario, scenario_of(parsed, "?SCENARIO"));
  } else {
    TWINRUN_ASSIGN(const Experiment experiment, experiment_of(parsed));
    scenario = experiment.scenario;
  }
  TWINRUN_ASSIGN(const auto profile, profile_of(scenario, parsed));
  if (parsed.has("out")) {
    TWINRUN_RETURN_IF_ERROR(
        write_profile(profile.profile, profile.trace, parsed.get<std::string>("out")));
  }
  if (parsed.get<bool>("json")) {
    print_document(to_profile_json(profile.profile));
    return 0;
  }
  print_text(to_profile_text(profile.profile, terminal_width()));
  if (parsed.has("out"))
    print("\n{}: profile.html, profile.json, trace.json\n", parsed.get<std::string>("out"));
  return 0;
}

}  // namespace twinrun::cli

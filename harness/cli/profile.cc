// twinrun profile: shows where the time of a step goes, modelled or measured.
#include "reports/profile.h"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/profile/measured.h"
#include "harness/profile/modelled.h"
#include "harness/xplane/compare.h"
#include "harness/xplane/hlo_module.h"
#include "harness/xplane/read.h"
#include "harness/xplane/write.h"

namespace twinrun::cli {
namespace {

// The modelled step as XProf's graph and memory viewer show it. What is measured runs on this
// machine and has no memory plan of a TPU.
Result<std::string> hlo_of(const Scenario& scenario, const Profile& profile) {
  if (profile.source != "modelled") return std::string();
  TWINRUN_ASSIGN(const Program step, modelled_step(scenario));
  return to_hlo_proto(scenario.name, step, tpu::plan_hbm(step));
}

Status write_profile(const Scenario& scenario, const Profile& profile, const std::string& dir) {
  TWINRUN_ASSIGN(const std::string hlo, hlo_of(scenario, profile));
  std::error_code failed;
  std::filesystem::create_directories(dir, failed);
  if (failed) return Error{failed.message(), dir, "name a folder that can be made"};
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(dir + "/profile.json", to_profile_json(profile)));
  return write_xplane(profile, hlo, dir);
}

// The model of a scenario reads no data, so none is opened.
Result<Scenario> profiled_scenario(const Parsed& parsed) {
  TWINRUN_ASSIGN(const ExperimentSource source, source_of(parsed));
  if (source.program.program.empty()) return scenario_of(parsed, "?SCENARIO");
  TWINRUN_ASSIGN(const Experiment experiment, experiment_of(parsed));
  return experiment.scenario;
}

Result<Profile> profile_of(const Scenario& scenario, const Parsed& parsed) {
  if (parsed.get<bool>("measured")) {
    TWINRUN_ASSIGN(const int threads, threads_of(parsed));
    ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
    return measured_profile(scenario, {.engine = parsed.get<std::string>("engine"),
                                       .threads = threads,
                                       .steps = parsed.get<int64_t>("steps"),
                                       .progress = &printer,
                                       .stop = &install_stop_flag()});
  }
  return modelled_profile(scenario, {.generation = parsed.get<std::string>("generation")});
}

// A recorded profile, beside the model of a scenario or program where one is named.
Result<int> show_capture(const Parsed& parsed) {
  if (parsed.get<bool>("measured") || parsed.has("out"))
    return Error{"does not go with --xplane", parsed.has("out") ? "--out" : "--measured",
                 "leave it out"};
  TWINRUN_ASSIGN(Capture capture, read_xplane(parsed.get<std::string>("xplane")));
  if (parsed.has("?SCENARIO") || parsed.has("program")) {
    TWINRUN_ASSIGN(const Scenario scenario, profiled_scenario(parsed));
    TWINRUN_ASSIGN(const Profile model,
                   modelled_profile(scenario, {.generation = parsed.get<std::string>("generation"),
                                               .advice = false}));
    compare_with(capture, model);
  }
  if (parsed.get<bool>("json"))
    print_document(to_capture_json(capture));
  else
    print_text(to_capture_text(capture, terminal_width()));
  return 0;
}

}  // namespace

Result<int> profile_verb(const Args& args) {
  Options options;
  add_program_options(options);
  options.text("out,o FOLDER", "folder for profile.json, and for the profile that XProf opens");
  options.one_of("generation", "generation of the modelled TPU", generation_choices(), "v2");
  options.flag("measured", "measure some steps of cpu or tpu on this machine");
  options.one_of("engine,e", "engine to measure", {{"cpu"}, {"tpu"}}, "tpu");
  options.text("xplane",
               "show a recorded profile (*.xplane.pb, or its folder), beside the model of "
               "a scenario or program if one is named");
  options.number<int64_t>("steps", "steps to measure, after two for warm-up", 50);
  add_common_options(options);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun profile SCENARIO|--program FILE|--xplane FILE [-o DIR] [OPTIONS]",
            "twinrun profile resnet50 -o profile", options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  if (parsed.has("xplane")) return show_capture(parsed);
  TWINRUN_ASSIGN(const Scenario scenario, profiled_scenario(parsed));
  TWINRUN_ASSIGN(const Profile profile, profile_of(scenario, parsed));
  if (parsed.has("out")) {
    TWINRUN_RETURN_IF_ERROR(write_profile(scenario, profile, parsed.get<std::string>("out")));
  }
  if (parsed.get<bool>("json")) {
    print_document(to_profile_json(profile));
    return 0;
  }
  print_text(to_profile_text(profile, terminal_width()));
  if (parsed.has("out"))
    print("\n{0}: profile.json, {1}\nIts pages and its trace: xprof --logdir {0}\n",
          parsed.get<std::string>("out"), xplane_path(profile));
  return 0;
}

}  // namespace twinrun::cli

// Parses --program and the options that belong to it, and opens what they name.
#include "harness/cli/program.h"

#include <fmt/format.h>

namespace twinrun::cli {
namespace {

struct FileOption {
  const char* name;
  std::string ProgramFiles::*member;
  const char* help;
};
constexpr FileOption kFileOptions[] = {
    {"state", &ProgramFiles::state,
     "its initial state: a checkpoint or run, .npz, .safetensors (default STEM.state.npz)"},
    {"batch", &ProgramFiles::batch,
     "its inputs, with a leading axis over steps (default STEM.batch.npz)"},
    {"binding", &ProgramFiles::binding, "what each parameter is (default STEM.json, else guessed)"},
    {"held-out", &ProgramFiles::held_out,
     "batches that are not trained on, for the held-out loss (default none)"},
    {"whole", &ProgramFiles::whole,
     "the same step on one device, which says what its sharding should mean (default none)"}};

std::string text_of(const Parsed& parsed, const std::string& name) {
  return parsed.has(name) ? parsed.get<std::string>(name) : "";
}

}  // namespace

void add_program_files(Options& options) {
  options.text(
      "program",
      "instead of a scenario: a training step as HLO or StableHLO text (docs/guides/import.md)");
  for (const FileOption& option : kFileOptions) options.text(option.name, option.help);
}

void add_program_of_run(Options& options) {
  options.text("program",
               "where the imported program of the run lies now (default: where it lay then)");
  for (const FileOption& option : kFileOptions) options.text(option.name, option.help);
}

void add_program_options(Options& options) {
  add_scenario_options(options);
  add_program_files(options);
}

Result<ProgramFiles> program_files_of(const Parsed& parsed, const std::string& program) {
  ProgramFiles files;
  files.program = program.empty() ? text_of(parsed, "program") : program;
  for (const FileOption& option : kFileOptions) {
    files.*option.member = text_of(parsed, option.name);
    if (parsed.has(option.name) && files.program.empty())
      return Error{"applies only to an imported program", fmt::format("--{}", option.name),
                   "give --program FILE as well"};
  }
  return files;
}

Result<ExperimentSource> source_of(const Parsed& parsed, const std::string& argument) {
  ExperimentSource source;
  TWINRUN_ASSIGN(source.program, program_files_of(parsed));
  source.scenario = text_of(parsed, argument);
  const bool program = !source.program.program.empty();
  if (program && !source.scenario.empty())
    return Error{fmt::format("both a scenario, '{}', and --program", source.scenario), "",
                 "give one of them"};
  if (!program && source.scenario.empty())
    return Error{"neither a scenario nor a program", "",
                 "name a scenario (twinrun inspect lists them), or give --program FILE"};
  if (!program) TWINRUN_RETURN_IF_ERROR(check_is_scenario(source.scenario));
  return source;
}

Result<Experiment> experiment_of(const Parsed& parsed, const std::string& argument) {
  TWINRUN_ASSIGN(const ExperimentSource source, source_of(parsed, argument));
  TWINRUN_ASSIGN(const Overrides overrides, overrides_of(parsed));
  return open_experiment(source, overrides);
}

}  // namespace twinrun::cli

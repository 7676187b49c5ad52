// The options of a verb and their values. Only options.cc sees the library that parses them.
//
//   Options options;
//   options.text("out,o", "file to write", "run.h5");
//   options.flag("json", "one JSON document on stdout");
//   TWINRUN_ASSIGN(const Parsed parsed, parse(args, "twinrun x SCENARIO -o FILE",
//                                             "twinrun x digits_mlp", options, {"SCENARIO"}));
//   if (parsed.help) return 0;
//   parsed.get<std::string>("out");
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/faults/faults.h"
#include "harness/cli/cli.h"
#include "scenarios/scenario.h"

namespace boost::program_options {
class options_description;
class variables_map;
}  // namespace boost::program_options

namespace twinrun::cli {

struct Parsed;

// Names are "out", or "out,o" with a short form. An option without a default value may be absent.
class Options {
 public:
  Options();
  void flag(const std::string& name, const std::string& help);
  void text(const std::string& name, const std::string& help,
            const std::optional<std::string>& value = {});
  void list(const std::string& name, const std::string& help);  // repeatable
  // T: int, int64_t, uint64_t or double.
  template <typename T>
  void number(const std::string& name, const std::string& help, std::optional<T> value = {});

 private:
  friend Result<Parsed> parse(const Args&, const char*, const char*, Options,
                              const std::vector<std::string>&);
  std::shared_ptr<boost::program_options::options_description> description_;
};

struct Parsed {
  std::shared_ptr<boost::program_options::variables_map> values;
  bool help = false;  // --help was given and is answered: the verb is done
  bool has(const std::string& name) const;
  // T: bool of flag(), std::string of text(), std::vector<std::string> of list(), else of number().
  template <typename T>
  T get(const std::string& name) const;
};
// `positional`: names of the arguments; "?NAME" may be absent, "NAME.." is a list. Prints the help
// text if it is requested.
Result<Parsed> parse(const Args& args, const char* usage, const char* example, Options options,
                     const std::vector<std::string>& positional);

// Options that several verbs share.
void add_scenario_options(Options& options);  // --set
void add_common_options(Options& options);    // --threads, --json, -q, -v
Result<Overrides> overrides_of(const Parsed& parsed, const std::string& option = "set");
Result<Scenario> scenario_of(const Parsed& parsed, const std::string& option = "SCENARIO");
Result<int> threads_of(const Parsed& parsed);

// --pjrt-plugin, for the engine `xla`: engine_of turns its name into xla:PATH.
void add_plugin_option(Options& options);
std::string engine_of(const Parsed& parsed, const std::string& option);

// --fault SPEC.
void add_fault_option(Options& options, const char* what);
// Prints the kinds for --fault help, even if other arguments are missing; false if not requested.
bool fault_help(const Args& args);
Result<std::vector<FaultSpec>> faults_of(const Parsed& parsed, const std::string& option = "fault");
// Checks that each fault begins within a run of `steps` steps.
Status check_faults_begin(const std::vector<FaultSpec>& faults, int64_t steps);

}  // namespace twinrun::cli

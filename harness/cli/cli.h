// The command line: one file per verb, one line per verb in main.cc. Only this folder prints,
// parses argv or decides exit codes.
#pragma once

#include <boost/program_options.hpp>
#include <optional>
#include <string>
#include <vector>

#include "backends/faults/faults.h"
#include "harness/host/progress.h"
#include "program/base/result.h"
#include "reports/report.h"
#include "scenarios/scenario.h"

namespace twinrun::cli {

namespace po = boost::program_options;

// Exit codes (docs/reference/cli.md): usage or bad input; engine or environment; interrupted.
inline constexpr int kExitUsage = 128;
inline constexpr int kExitUnavailable = 125;
inline constexpr int kExitInterrupted = 130;

using Args = std::vector<std::string>;

int diagnose_verb(const Args& args);
int snapshot_verb(const Args& args);
int train_verb(const Args& args);
int report_verb(const Args& args);
int diff_verb(const Args& args);
int inspect_verb(const Args& args);
int doctor_verb(const Args& args);
int scenarios_verb(const Args& args);
int convert_verb(const Args& args);
int drill_verb(const Args& args);
int serve_verb(const Args& args);
int export_verb(const Args& args);
int bundle_verb(const Args& args);
int replay_verb(const Args& args);
int record_verb(const Args& args);
int verify_verb(const Args& args);
int compare_verb(const Args& args);
int bisect_verb(const Args& args);
int check_verb(const Args& args);
int profile_verb(const Args& args);

// The options of a verb. parse() adds --help and prints it; `exit` is set when the verb is done.
struct Parsed {
  po::variables_map values;
  std::optional<int> exit;
  bool has(const char* key) const { return values.count(key) > 0; }
  template <typename T>
  T get(const char* key) const {
    return values[key].as<T>();
  }
};
Parsed parse(const Args& args, const char* usage, const char* example,
             po::options_description visible, const std::vector<std::string>& positional);

// Prints "twinrun: where: what" and the fix to stderr. Returns the code, or kExitUnavailable where
// the error is about an engine of another process, which could not be started or failed later.
int fail(const Error& error, int code = kExitUsage);
// Prints to standard error. Errors of writing are ignored: a closed terminal or full disk must not
// end a run.
void say(const std::string& text);

// Options that several verbs share.
void add_scenario_options(po::options_description& options);  // SCENARIO, --set
void add_common_options(po::options_description& options);    // --threads, --json, -q, -v
Result<Overrides> overrides_of(const Parsed& parsed, const char* option = "set");  // --set
Result<Scenario> scenario_of(const Parsed& parsed, const char* option = "SCENARIO");
Result<int> threads_of(const Parsed& parsed);

// --pjrt-plugin, for the engine `xla`: engine_of turns its name into xla:PATH. fail_engine exits
// with 125 where a foreign engine cannot start.
void add_plugin_option(po::options_description& options);
std::string engine_of(const Parsed& parsed, const char* option);
int fail_engine(const Error& error, const std::string& engine);

// --fault SPEC. fault_help prints the kinds for --fault help, even if other arguments are missing.
void add_fault_option(po::options_description& options, const char* what);
std::optional<int> fault_help(const Args& args);
Result<std::vector<FaultSpec>> faults_of(const Parsed& parsed, const char* option = "fault");
// Checks that each fault begins within a run of `steps` steps.
Status check_faults_begin(const std::vector<FaultSpec>& faults, int64_t steps);

// Checks that a file can be written here, before hours of work rather than after.
Status check_output(const std::string& path);

// The command line as typed, quoted for a shell.
std::string command_line();
void remember_command_line(int argc, char** argv);

// Handles SIGINT and SIGTERM: the first one asks runs to end after the current step, a second one
// ends the process at once.
const StopFlag& install_stop_flag();

bool stdout_is_terminal();
bool colors_wanted();  // NO_COLOR unset or empty, TERM not dumb
bool use_color();      // wanted, and stdout is a terminal
int terminal_width();  // of stdout, at most 120; 80 if it is no terminal
// False only if the first of LC_ALL, LC_CTYPE and LANG that is set does not name UTF-8.
bool unicode_wanted();
void print_report(const Report& report);  // to_terminal with the settings of this terminal

}  // namespace twinrun::cli

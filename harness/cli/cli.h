// The command line: one file per verb, one line per verb in main.cc. Only this folder prints, parses argv or decides exit codes.
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

// interfaces.md: usage, bad input, environment.
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

// A verb's options: adds --help, parses, prints help. Returns an exit code when the verb is done already.
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

// Prints "twinrun: where: what" and the fix to stderr; returns the code, or kExitUnavailable where the place is an engine of
// another process: it could not be started, or failed later.
int fail(const Error& error, int code = kExitUsage);
// On standard error. A terminal that is gone or a full disk behind it costs nobody a run.
void say(const std::string& text);

// Options that several verbs share.
void add_scenario_options(po::options_description& options);  // SCENARIO, --set
void add_common_options(po::options_description& options);    // --threads, --json, -q, -v
Result<Overrides> overrides_of(const Parsed& parsed, const char* option = "set");  // --set
Result<Scenario> scenario_of(const Parsed& parsed, const char* option = "SCENARIO");
Result<int> threads_of(const Parsed& parsed);

// --pjrt-plugin, of the engine `xla`: its name becomes xla:PATH. An engine of others that cannot start ends with 125.
void add_plugin_option(po::options_description& options);
std::string engine_of(const Parsed& parsed, const char* option);
int fail_engine(const Error& error, const std::string& engine);

// --fault SPEC. `fault_help`: prints the kinds if --fault help asks for them, whatever else is missing.
void add_fault_option(po::options_description& options, const char* what);
std::optional<int> fault_help(const Args& args);
Result<std::vector<FaultSpec>> faults_of(const Parsed& parsed, const char* option = "fault");
// A run of `steps` steps: each fault begins within it.
Status check_faults_begin(const std::vector<FaultSpec>& faults, int64_t steps);

// Whether a file can be put here, asked before hours of work rather than after.
Status check_output(const std::string& path);

// The words as typed, quoted for a shell.
std::string command_line();
void remember_command_line(int argc, char** argv);

// SIGINT and SIGTERM: the first asks runs to end after the step, the second ends at once.
const StopFlag& install_stop_flag();

bool stdout_is_terminal();
bool colors_wanted();   // NO_COLOR unset or empty, TERM not dumb
bool use_color();       // wanted, and stdout is a terminal
int terminal_width();   // of stdout; 80 elsewhere
bool unicode_wanted();  // unless LC_ALL, LC_CTYPE or LANG, the first that is set, names no UTF-8
void print_report(const Report& report);  // to_terminal, as this terminal has it

}  // namespace twinrun::cli

// The command line: one file per verb, one line per verb in main.cc. Only this folder prints,
// parses argv or decides exit codes. A verb returns its exit code, or an error, which main() prints
// and whose kind gives the exit code.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/core/communicator.h"
#include "harness/cli/output.h"
#include "harness/host/progress.h"
#include "program/base/result.h"
#include "reports/report.h"

namespace twinrun::cli {

// Exit codes (docs/reference/cli.md): a run failed; engine or environment; usage or bad input;
// interrupted.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUnavailable = 125;
inline constexpr int kExitUsage = 128;
inline constexpr int kExitInterrupted = 130;

using Args = std::vector<std::string>;

// A row of the table of verbs. A verb that has axes takes one of them before its options.
struct Verb {
  std::string_view name, what;
  Result<int> (*run)(const Args&);
  std::span<const Verb> axes = {};
  bool on_ranks = false;  // runs on several ranks of MPI together
};
std::span<const Verb> verbs();                                              // of twinrun
const Verb* find_verb(std::span<const Verb> verbs, std::string_view name);  // nullptr: none

// What twinrun --help and twinrun(1) say beside the verbs.
inline constexpr std::string_view kSubtitle = "is it noise, my sharding, or a bug in the engine?";
struct Term {
  std::string_view name, meaning;
};
std::span<const Term> exit_codes();
std::span<const Term> environment_variables();

// A program: twinrun, or twinrun_dev (harness/developers).
struct Tool {
  std::string_view name, subtitle, example;
  std::span<const Verb> verbs;
};
const Tool& tool();  // this one
int main_of(const Tool& which, int argc, char** argv);

// The candidates for the last of the words that a shell's completion script hands over, if these
// words are of that form.
inline constexpr std::string_view kCompleteWord = "complete";
std::optional<int> complete(const Args& words);

Result<int> diagnose_verb(const Args& args);
Result<int> train_verb(const Args& args);
Result<int> report_verb(const Args& args);
Result<int> diff_verb(const Args& args);
Result<int> inspect_verb(const Args& args);
Result<int> doctor_verb(const Args& args);
Result<int> convert_verb(const Args& args);
Result<int> bundle_verb(const Args& args);
Result<int> replay_verb(const Args& args);
Result<int> record_verb(const Args& args);
Result<int> verify_verb(const Args& args);
Result<int> compare_verb(const Args& args);
Result<int> bisect_verb(const Args& args);
Result<int> check_verb(const Args& args);
Result<int> profile_verb(const Args& args);

// Checks that a file can be written here, before hours of work rather than after, and makes the
// folder that it is to lie in.
Status check_output(const std::string& path);

// Creates a folder. Errors: it exists already; its parent does not exist.
Status new_folder(const std::string& path);

// The command line as typed, quoted for a shell.
std::string command_line();
void remember_command_line(int argc, char** argv);

// Handles SIGINT and SIGTERM: the first one asks runs to end after the current step, a second one
// ends the process at once.
const StopFlag& install_stop_flag();

// The ranks that do this work together; nullptr: this process is alone.
Communicator* ranks();
// Whether this process prints and writes: it is alone, or the first of the ranks.
bool first_rank();
// Errors: this engine, given by `option`, or so few cores cannot be split over the ranks.
Status check_splits(const std::string& option, const std::string& engine, int cores);

bool stdout_is_terminal();
bool colors_wanted();  // NO_COLOR unset or empty, TERM not dumb
bool use_color();      // wanted, and stdout is a terminal
int terminal_width();  // of stdout, at most 120; 80 if it is no terminal
// False only if the first of LC_ALL, LC_CTYPE and LANG that is set does not name UTF-8.
bool unicode_wanted();
TerminalOptions terminal_options();                   // of this terminal
void print_report(const Report& report, bool whole);  // to_terminal with these

}  // namespace twinrun::cli

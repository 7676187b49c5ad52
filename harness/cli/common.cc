// Functions that the verbs share: signals, checks of output files, facts about the terminal.
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "backends/exec/last_resort.h"
#include "checkpoints/container/temporary.h"
#include "harness/cli/cli.h"
#include "harness/host/command.h"
#include "program/base/names.h"
#include "program/base/os_error.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

std::string typed;
StopFlag stop{false};

// One Ctrl-C may arrive twice, from the terminal and from a process that forwards it. Only a signal
// that comes later than this counts as a second one.
constexpr int64_t kAnotherPress = 200'000'000;  // ns
std::atomic<int64_t> first_press = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

void on_signal(int) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  if (!stop.exchange(true)) {
    first_press = at;
    return;
  }
  if (at - first_press < kAnotherPress) return;
  end_sessions();
  _exit(kExitInterrupted);
}

}  // namespace

void remember_command_line(int argc, char** argv) {
  typed = tool().name;
  for (int i = 1; i < argc; ++i) typed += " " + shell_word(argv[i]);
}
std::string command_line() { return typed; }

const StopFlag& install_stop_flag() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A closed terminal asks to stop, too, unless nohup has it ignored.
  struct sigaction before {};
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
    sigaction(SIGHUP, &action, nullptr);
  return stop;
}

Status check_output(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return Error{"is a folder, a file is to be written", path, "name a file inside it"};
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  std::error_code cannot;
  fs::create_directories(folder, cannot);
  TemporaryFile probe;
  const int why = cannot ? cannot.value() : probe.create(folder);
  if (why != 0)
    return Error{
        fmt::format("cannot create a file here: {}", std::strerror(why)), path,
        fmt::format("make '{}' a folder that you may write to, or write elsewhere with -o", folder),
        kind_of_failure(why)};
  return Ok{};
}

Status new_folder(const std::string& path) {
  std::error_code error;
  if (std::filesystem::create_directory(path, error)) return Ok{};
  return Error{error ? fmt::format("cannot be created ({})", error.message()) : "exists already",
               path, "name a new folder inside an existing one", kind_of_failure(error.value())};
}

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) != 0; }
bool colors_wanted() {
  const char* term = std::getenv("TERM");
  const char* no_color =
      std::getenv("NO_COLOR");  // no-color.org: "when present and not an empty string"
  return (no_color == nullptr || *no_color == '\0') && term != nullptr &&
         std::string_view(term) != "dumb";
}
bool use_color() { return stdout_is_terminal() && colors_wanted(); }
int terminal_width() {
  winsize size{};
  if (stdout_is_terminal() && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
    return std::min<int>(size.ws_col, 120);
  return 80;
}
bool unicode_wanted() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = lower_case(value);
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return true;
}
TerminalOptions terminal_options() {
  return {.width = terminal_width(), .color = use_color(), .unicode = unicode_wanted()};
}
void print_report(const Report& report, bool whole) {
  TerminalOptions terminal = terminal_options();
  terminal.whole = whole;
  print_text(to_terminal(report, terminal), Colors::kOwn);
}

}  // namespace twinrun::cli

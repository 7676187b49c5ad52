// Functions that the verbs share: parsing options, errors, signals, facts about the terminal.
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
#include <optional>
#include <thread>

#include "backends/exec/last_resort.h"
#include "harness/cli/cli.h"
#include "harness/experiment/engines.h"
#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

std::string typed;
StopFlag stop{false};
constexpr const char* kSurplus = "surplus words";

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

std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-_=./,:@%+").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

void remember_command_line(int argc, char** argv) {
  typed = "twinrun";
  for (int i = 1; i < argc; ++i) typed += " " + quoted(argv[i]);
}
std::string command_line() { return typed; }

const StopFlag& install_stop_flag() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return stop;
}

Parsed parse(const Args& args, const char* usage, const char* example,
             po::options_description visible, const std::vector<std::string>& positional) {
  Parsed parsed;
  visible.add_options()("help,h", "this text");
  po::options_description all;
  all.add(visible);
  po::positional_options_description places;
  po::options_description hidden;
  for (const auto& name : positional) {
    const bool several = name.ends_with("..");
    if (several) {
      hidden.add_options()(name.c_str(), po::value<std::vector<std::string>>());
    } else {
      hidden.add_options()(name.c_str(), po::value<std::string>());
    }
    places.add(name.c_str(), several ? -1 : 1);
  }
  hidden.add_options()(kSurplus, po::value<std::vector<std::string>>());
  if (positional.empty() || !positional.back().ends_with("..")) places.add(kSurplus, -1);
  all.add(hidden);
  std::vector<std::string> known;
  for (const auto& option : visible.options()) known.push_back("--" + option->long_name());
  try {
    po::store(
        po::command_line_parser(args)
            .options(all)
            .positional(places)
            .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
            .run(),
        parsed.values);
    po::notify(parsed.values);
  } catch (const po::unknown_option& e) {
    std::string name = e.get_option_name();
    name = name.substr(0, name.find('='));
    parsed.exit = fail({fmt::format("unknown option '{}'", name), "",
                        fmt::format("did you mean {}? See --help", nearest(name, known))});
    return parsed;
  } catch (const po::error& e) {
    parsed.exit = fail({e.what(), "", fmt::format("usage: {}", usage)});
    return parsed;
  }
  if (parsed.has("help")) {
    fmt::print("usage: {}\n\n", usage);
    std::ostringstream text;
    text << visible;
    fmt::print("{}\nexample:\n  {}\n", text.str(), example);
    parsed.exit = 0;
    return parsed;
  }
  if (parsed.has(kSurplus)) {
    const auto words = parsed.get<std::vector<std::string>>(kSurplus);
    parsed.exit = fail({fmt::format("one word too many: '{}'", words.front()), "",
                        fmt::format("usage: {}", usage)});
    return parsed;
  }
  for (const auto& name : positional) {
    if (name.starts_with('?') || parsed.has(name.c_str())) continue;
    parsed.exit = fail({fmt::format("{} is missing", name), "", fmt::format("usage: {}", usage)});
    break;
  }
  return parsed;
}

void say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

int fail(const Error& error, int code) {
  const bool color = isatty(STDERR_FILENO) != 0 && colors_wanted();
  // The message may contain text from engines and files, so clean it.
  say(fmt::format("{}twinrun:{} {}\n", color ? "\x1b[1;31m" : "", color ? "\x1b[0m" : "",
                  join(text::clean_lines(error.message()), "\n")));
  return of_foreign_engine(error) ? kExitUnavailable : code;
}

void add_scenario_options(po::options_description& options) {
  options.add_options()(
      "set", po::value<std::vector<std::string>>()->composing(),
      "KEY=VALUE: override a key of the scenario (repeatable), e.g. train.steps=20");
}
void add_common_options(po::options_description& options) {
  options.add_options()("threads", po::value<int>(),
                        "host threads (default: all cores); never changes a bit")(
      "json", po::bool_switch(), "one JSON document on stdout, nothing else there")(
      "quiet,q", po::bool_switch(), "no progress")("verbose,v", po::bool_switch(),
                                                   "a line every train.log_every steps");
}

Result<Overrides> overrides_of(const Parsed& parsed, const char* option) {
  Overrides overrides;
  if (parsed.has(option)) {
    for (const auto& item : parsed.get<std::vector<std::string>>(option)) {
      const size_t equals = item.find('=');
      if (equals == std::string::npos || equals == 0) {
        return Error{fmt::format("'{}' is not KEY=VALUE", item), fmt::format("--{}", option),
                     fmt::format("for example --{} train.steps=20", option)};
      }
      overrides.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    }
  }
  return overrides;
}

Result<Scenario> scenario_of(const Parsed& parsed, const char* option) {
  TWINRUN_ASSIGN(const Overrides overrides, overrides_of(parsed));
  return load_scenario(parsed.get<std::string>(option), overrides);
}

Result<int> threads_of(const Parsed& parsed) {
  if (!parsed.has("threads"))
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int n = parsed.get<int>("threads");
  if (n < 1 || n > 1024)
    return Error{fmt::format("{} threads", n), "--threads", "allowed: 1 to 1024"};
  return n;
}

Status check_output(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return Error{"is a folder, a file is to be written", path, "name a file inside it"};
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  std::string probe = folder + "/.twinrun-probe-XXXXXX";
  const int fd = mkstemp(probe.data());
  if (fd < 0) {
    const int why = errno;
    return Error{
        fmt::format("cannot create a file here: {}", std::strerror(why)), path,
        why == ENOENT
            ? fmt::format("create the folder: mkdir -p '{}'", folder)
            : fmt::format("make '{}' a folder that you may write to, or write elsewhere with -o",
                          folder)};
  }
  close(fd);
  unlink(probe.c_str());
  return Ok{};
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
void print_report(const Report& report) {
  fmt::print("{}", to_terminal(report, {terminal_width(), use_color(), unicode_wanted()}));
}

}  // namespace twinrun::cli

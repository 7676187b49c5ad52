// PROGRAM VERB ...: what main() does, for each of the two programs.
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "backends/exec/exec_backend.h"
#include "backends/exec/last_resort.h"
#include "backends/kernels/kernels.h"
#include "backends/mpi/join_ranks.h"
#include "checkpoints/container/hdf5_tree.h"
#include "harness/cli/cli.h"
#include "harness/host/environment.h"
#include "harness/host/heap.h"
#include "program/base/memory_limit.h"
#include "program/base/names.h"
#include "program/base/os_error.h"
#include "program/base/sizes.h"
#include "reports/error_text.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

std::unique_ptr<Communicator> joined;  // ranks()

Tool running;  // tool()
bool wants_json = false;

void print_help() {
  print("{}: {}\n\nusage: {} VERB [OPTIONS]; {} VERB --help\n\n", running.name, running.subtitle,
        running.name, running.name);
  const auto list = [](std::span<const Term> terms, int width) {
    for (const Term& term : terms) {
      std::string_view name = term.name;
      for (const std::string& line : text::wrap(term.meaning, terminal_width() - width - 4)) {
        print("  {:<{}}  {}\n", name, width, line);
        name = {};
      }
    }
  };
  std::vector<Term> rows;
  for (const Verb& verb : running.verbs) rows.push_back({verb.name, verb.what});
  rows.push_back({"--version", "version, contract, instruction set, build"});
  list(rows, 10);
  print("\nexample:\n  {}\n\nexit codes:\n", running.example);
  list(exit_codes(), 3);
  print("\nenvironment:\n");
  list(environment_variables(), 19);
}

// HDF5 files from engines are parsed in another twinrun process, which may crash on them: the file
// is its standard input, and its argument is the largest size in bytes. An internal verb, so it is
// not listed and prints nothing for users.
constexpr std::string_view kHdf5Reader = "read-hdf5";

std::optional<int> read_hdf5(const Args& words) {
  if (words.size() != 2 || words[0] != kHdf5Reader) return std::nullopt;
  uint64_t most = 0;
  const auto [end, error] =
      std::from_chars(words[1].data(), words[1].data() + words[1].size(), most);
  if (error != std::errc() || *end != 0) return kExitUsage;
  return serve_hdf5_tree(most);
}

// Joins the other ranks, if a launcher started several. The first of them prints for all.
Status join_others(const Args& words) {
  TWINRUN_ASSIGN(joined, join_ranks());
  if (joined == nullptr) return Ok{};
  set_silent(joined->rank() != 0);
  const Verb* verb = words.empty() ? nullptr : find_verb(running.verbs, words[0]);
  if (verb == nullptr || verb->on_ranks) return Ok{};
  std::string able;
  for (const Verb& other : running.verbs) {
    if (other.on_ranks) able += fmt::format("{}{}", able.empty() ? "" : ", ", other.name);
  }
  return Error{fmt::format("'{}' does not run on several ranks, and a launcher started {}",
                           verb->name, joined->ranks()),
               "",
               fmt::format("start it without mpirun; on several ranks run: {} "
                           "(docs/developers/processors.md#several-processes-by-mpi)",
                           able)};
}

Result<int> run(int argc, char** argv) {
  const Args words(argv + 1, argv + argc);
  if (const auto done = read_hdf5(words)) return *done;
  read_hdf5_with({"/proc/self/exe", std::string(kHdf5Reader)});
  if (const auto done = complete(words)) return *done;
  TWINRUN_RETURN_IF_ERROR(join_others(words));
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_help();
    return words.empty() ? kExitUsage : 0;
  }
  TWINRUN_RETURN_IF_ERROR(check_isa_request());
  if (words[0] == "--version") {
    print("{}\n", version_text());
    return 0;
  }
  if (const Verb* verb = find_verb(running.verbs, words[0]))
    return verb->run(Args(words.begin() + 1, words.end()));
  // What is typed as a verb, and is none.
  constexpr std::pair<std::string_view, std::string_view> kInstead[] = {
      {"judge", "twinrun diagnose TRACE judges a recorded step"},
      {"watch", "twinrun diagnose SCRIPT records and judges; python -m twinrun watch only records"},
      {"environment", "python -m twinrun environment PACKAGE==VERSION makes one"},
      {"explain", "twinrun diagnose WHAT"},
      {"snapshot", "twinrun train SCENARIO --snapshot"},
      {"export", "twinrun convert SCENARIO FOLDER --to stablehlo"},
      {"scenarios", "twinrun inspect lists them, and shows one"},
      {"drill", "twinrun_dev drill"},
      {"serve", "twinrun_dev serve"},
      {"version", "twinrun --version"}};
  std::vector<std::string> names;
  for (const Verb& verb : running.verbs) names.emplace_back(verb.name);
  std::string fix = did_you_mean(words[0], names);
  for (const auto& [word, instead] : kInstead) {
    if (words[0] == word) fix = instead;
  }
  if (std::filesystem::exists(words[0])) fix = "twinrun diagnose " + words[0];
  return Error{
      fmt::format("unknown verb '{}'", words[0]), "",
      fix + (fix.empty() ? "" : "; ") + fmt::format("{} --help lists the verbs", running.name)};
}

// Opens closed standard streams, so that a file opened later does not get their number. Standard
// output is opened for reading only, so that writing to it still fails and is reported.
void open_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF)
      static_cast<void>(::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY));
  }
}

// Gives this thread the stack that the system allows, up to what is common, and the others that
// much. Below the least, a run would end in the middle of something.
Status ask_for_stack() {
  constexpr rlim_t kCommon = 8 << 20, kLeast = 1 << 20;
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kCommon) return Ok{};
  stack.rlim_cur = std::min(stack.rlim_max, kCommon);
  ::setrlimit(RLIMIT_STACK, &stack);
  if (stack.rlim_cur < kLeast)
    return Error{fmt::format("the stack is limited to {} bytes; {} or more are needed",
                             stack.rlim_cur, kLeast),
                 "", "raise the limit (ulimit -s)", Error::Kind::kMachine};
  pthread_attr_t threads;
  if (pthread_getattr_default_np(&threads) == 0) {
    pthread_attr_setstacksize(&threads, kCommon);
    pthread_setattr_default_np(&threads);
    pthread_attr_destroy(&threads);
  }
  return Ok{};
}

// Destructors of nlohmann::json allocate. If that fails nothing can catch it, but it can be said.
[[noreturn]] void on_terminate() {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kWords = "twinrun: out of memory\n  fix: lower train.batch\n";
    static_cast<void>(!::write(STDERR_FILENO, kWords.data(), kWords.size()));
    end_sessions();
    ::_exit(kExitUsage);
  } catch (...) {  // a bug of ours
  }
  std::abort();
}

int exit_code(Error::Kind kind) {
  switch (kind) {
    case Error::Kind::kRun:
      return kExitFailed;
    case Error::Kind::kForeignEngine:
    case Error::Kind::kRefusal:
    case Error::Kind::kUnavailable:
      return kExitUnavailable;
    case Error::Kind::kInterrupted:
      return kExitInterrupted;
    case Error::Kind::kInput:
    case Error::Kind::kMachine:
      break;
  }
  return kExitUsage;
}

// Prints "twinrun: where: what" and the fix to stderr, and returns the exit code. One of several
// ranks ends all of them instead, because the others may be waiting for it. An error that all ranks
// find is printed by the first one, for which the others wait a moment.
int fail(Error error) {
  if (joined != nullptr && joined->rank() != 0) {
    std::signal(SIGTERM, SIG_DFL);  // by which launchers end a rank whose fellow has failed
    constexpr timespec kForTheFirst{.tv_sec = 5, .tv_nsec = 0};
    ::nanosleep(&kForTheFirst, nullptr);
    set_silent(false);
    error.what = fmt::format("rank {} of {}: {}", joined->rank(), joined->ranks(), error.what);
  }
  const bool color = isatty(STDERR_FILENO) != 0 && colors_wanted();
  say(fmt::format("{}twinrun:{} {}\n", color ? "\x1b[1;31m" : "", color ? "\x1b[0m" : "",
                  text::printed(error)),
      Colors::kOwn);
  if (wants_json && first_rank() && !has_printed_document()) {
    const nlohmann::ordered_json j = {{"schema", 3},
                                      {"error",
                                       {{"what", text::clean(error.what)},
                                        {"where", text::clean(error.where)},
                                        {"fix", text::clean(error.fix)}}}};
    print_document(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  if (joined != nullptr) {
    constexpr timespec kUntilPassedOn{.tv_sec = 0, .tv_nsec = 300'000'000};
    ::nanosleep(&kUntilPassedOn, nullptr);  // MPICH's launcher drops what it has not yet read
    joined->abort(exit_code(error.kind));
  }
  return exit_code(error.kind);
}

Error stdout_error() {
  return {fmt::format("cannot write: {}", std::strerror(errno)), "standard output",
          "free space, or write elsewhere"};
}

}  // namespace

const Tool& tool() { return running; }
Communicator* ranks() { return joined.get(); }

bool first_rank() { return joined == nullptr || joined->rank() == 0; }

Status check_splits(const std::string& option, const std::string& engine, int cores) {
  if (joined == nullptr) return Ok{};
  if (engine != "tpu" && engine != "cpu")
    return Error{fmt::format("the engine '{}' does not run on several ranks ({} were started)",
                             engine, joined->ranks()),
                 option, "use the engine tpu or cpu, or start it without mpirun"};
  if (joined->ranks() > cores)
    return Error{
        fmt::format("{} ranks for {} core{}", joined->ranks(), cores, cores == 1 ? "" : "s"), "",
        "start as many ranks as there are cores, or fewer"};
  return Ok{};
}

const Verb* find_verb(std::span<const Verb> verbs, std::string_view name) {
  const auto it = std::ranges::find(verbs, name, &Verb::name);
  return it == verbs.end() ? nullptr : &*it;
}

int main_of(const Tool& which, int argc, char** argv) {
  running = which;
  // Steps allocate and free the same sizes over and over: keep freed pages instead of returning
  // them to the system.
  keep_freed_pages();
  open_streams();
  // An ignored SIGCHLD is inherited, and children's exit codes would be lost.
  std::signal(SIGCHLD, SIG_DFL);
  // A file that grows over a limit (ulimit -f) is an error of writing, not the end.
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(on_terminate);
  try {
    limit_memory();
    remember_command_line(argc, argv);
    // Words after a script are the script's.
    for (int i = 1; i < argc && !std::string_view(argv[i]).ends_with(".py"); ++i)
      wants_json = wants_json || std::string_view(argv[i]) == "--json";
    const Status stack = ask_for_stack();
    const Result<int> done = stack ? run(argc, argv) : Result<int>(stack.error());
    const int code = done ? *done : fail(done.error());
    // Output may still be in the buffer: a full disk behind a redirection is an error.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail(stdout_error());
    joined.reset();
    return code;
  } catch (const std::system_error& e) {
    if (std::ferror(stdout) != 0) return fail(stdout_error());
    if (kind_of_failure(e.code().value()) == Error::Kind::kMachine)
      return fail({e.what(), "", "close other programs, or raise the limits (ulimit -a)",
                   Error::Kind::kMachine});
    return fail({fmt::format("internal error: {}", e.what()), "",
                 "please report it with the command line"});
  } catch (const std::bad_alloc&) {
    const MemoryLeft left = memory_left();
    return fail(
        {fmt::format("out of memory: {} are left of {}", size_text(left.bytes), left.limited_by),
         "", "lower train.batch, data.samples or the sizes of layers, or allow more memory",
         Error::Kind::kMachine});
  } catch (const std::exception& e) {
    return fail({fmt::format("internal error: {}", e.what()), "",
                 "please report it with the command line"});
  }
}

}  // namespace twinrun::cli

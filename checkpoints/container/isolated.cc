// Starts the isolated process, limits it and decodes its answer: one byte (a value or an error),
// then the value's bytes or the error's three texts as JSON.
#include "checkpoints/container/isolated.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "checkpoints/container/open_file.h"
#include "program/base/os_error.h"
#include "program/base/spawn.h"

namespace twinrun {
namespace {

constexpr std::byte kValue{1}, kError{2};

[[maybe_unused]] uint64_t own_address_space() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void limit(int resource, uint64_t most) {
  const rlimit value{most, most};
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &value);
}

void limit_resources(uint64_t input_bytes) {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, 4 + (input_bytes >> 24));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  limit(RLIMIT_AS, own_address_space() + (uint64_t{1} << 30) + 8 * input_bytes);
#endif
}

void leave_streams() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null >= 0) ::dup2(null, stream);
  }
  // A process group of its own, so that signals from the terminal reach only the parent.
  ::setpgid(0, 0);
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
}

// Writes the reader's value or error to `fd`. False if the reader threw or writing failed.
bool answer_to(int fd, const std::function<Result<std::vector<std::byte>>()>& reader) {
  try {
    const auto result = reader();
    if (result) return write_all(fd, std::span(&kValue, 1)) == 0 && write_all(fd, *result) == 0;
    const Error& e = result.error();
    const std::string text = nlohmann::json({e.what, e.where, e.fix})
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return write_all(fd, std::span(&kError, 1)) == 0 &&
           write_all(fd, std::as_bytes(std::span(text))) == 0;
  } catch (const std::exception&) {
    return false;
  }
}

std::string how_it_ended(int status) {
  if (!WIFSIGNALED(status)) return "it ran out of memory or stopped";
  if (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL)
    return "it did not finish in time";
  return fmt::format("it crashed: {}", ::strsignal(WTERMSIG(status)));
}

// The answer that the process left in `memory`, given its exit status.
Result<std::vector<std::byte>> taken(int memory, int status, const std::string& where) {
  std::vector<std::byte> bytes;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    if (auto answer = read_open_file(memory, ~uint64_t{0}, where)) bytes = *std::move(answer);
  }
  if (bytes.empty()) {
    return Error{fmt::format("the library that reads it failed ({})", how_it_ended(status)), where,
                 "the file is damaged or hostile: download or write it again"};
  }
  const bool value = bytes[0] == kValue;
  if (!value) {
    const auto parts = nlohmann::json::parse(bytes.begin() + 1, bytes.end(), nullptr, false);
    const bool three = parts.is_array() && parts.size() == 3 &&
                       std::ranges::all_of(parts, [](const auto& p) { return p.is_string(); });
    if (!three) return Error{"cannot be read", where, ""};
    return Error{parts[0], parts[1], parts[2]};
  }
  bytes.erase(bytes.begin());
  return bytes;
}

// Starts the command; returns 0 or an errno. Its standard error is discarded.
int spawn(const std::vector<std::string>& command, int input, int output, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const SpawnAttributes attributes;
  const int failed =
      posix_spawnp(&pid, words[0], &actions, attributes.get(), words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

}  // namespace

Result<std::vector<std::byte>> run_isolated(
    const std::function<Result<std::vector<std::byte>>()>& reader, uint64_t input_bytes,
    const std::string& where) {
  const Descriptor memory(::memfd_create("twinrun", MFD_CLOEXEC));
  if (memory.get() < 0) {
    return Error{fmt::format("cannot make a file in memory: {}", std::strerror(errno)), where, "",
                 kind_of_failure(errno)};
  }
  const pid_t pid = ::fork();
  if (pid < 0) {
    return Error{fmt::format("cannot start a process to read it: {}", std::strerror(errno)), where,
                 "close other programs", kind_of_failure(errno)};
  }
  if (pid == 0) {
    limit_resources(input_bytes);
    leave_streams();
    ::_exit(answer_to(memory.get(), reader) ? 0 : 1);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return Error{"cannot wait for the process that reads the file", where, ""};
  }
  return taken(memory.get(), status, where);
}

Result<std::vector<std::byte>> run_isolated(const std::vector<std::string>& command, int input,
                                            double seconds, const std::string& where) {
  const Descriptor memory(::memfd_create("twinrun", MFD_CLOEXEC));
  if (memory.get() < 0) {
    return Error{fmt::format("cannot make a file in memory: {}", std::strerror(errno)), where, "",
                 kind_of_failure(errno)};
  }
  pid_t pid = -1;
  if (const int failed = spawn(command, input, memory.get(), pid); failed != 0) {
    return Error{fmt::format("cannot start '{}' to read it: {}", command[0], std::strerror(failed)),
                 where, "", kind_of_failure(failed)};
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  for (;;) {
    const pid_t found = ::waitpid(pid, &status, WNOHANG);
    if (found == pid) break;
    if (found < 0 && errno != EINTR)
      return Error{"cannot wait for the process that reads the file", where, ""};
    if (std::chrono::steady_clock::now() > end) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return taken(memory.get(), status, where);
}

int serve_isolated(const std::function<Result<std::vector<std::byte>>()>& reader,
                   uint64_t input_bytes) {
  limit_resources(input_bytes);
  return answer_to(STDOUT_FILENO, reader) ? 0 : 1;
}

}  // namespace twinrun

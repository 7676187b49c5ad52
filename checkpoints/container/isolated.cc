#include "checkpoints/container/isolated.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

namespace twinrun {
namespace {

constexpr std::byte kValue{1}, kError{2};

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

[[maybe_unused]] uint64_t own_address_space() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void limit(int resource, uint64_t most) {
  const rlimit value{most, most};
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &value);
}

void limit_child(uint64_t input_bytes) {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, 10 + (input_bytes >> 24));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  limit(RLIMIT_AS, own_address_space() + (uint64_t{1} << 30) + 8 * input_bytes);
#endif
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null >= 0) ::dup2(null, stream);
  }
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
}

[[noreturn]] void child(int fd, const std::function<Result<std::vector<std::byte>>()>& reader,
                        uint64_t input_bytes) {
  limit_child(input_bytes);
  bool good = false;
  try {
    const auto result = reader();
    if (result) {
      good = write_all(fd, std::span(&kValue, 1)) && write_all(fd, *result);
    } else {
      const Error& e = result.error();
      const std::string text = nlohmann::json({e.what, e.where, e.fix})
                                   .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      good = write_all(fd, std::span(&kError, 1)) && write_all(fd, std::as_bytes(std::span(text)));
    }
  } catch (const std::exception&) {
    good = false;
  }
  ::_exit(good ? 0 : 1);
}

std::string how_it_ended(int status) {
  if (!WIFSIGNALED(status)) return "it ran out of memory or gave up";
  if (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL)
    return "it did not come to an end";
  return fmt::format("it crashed: {}", ::strsignal(WTERMSIG(status)));
}

// The whole answer; empty where there is none.
std::vector<std::byte> answer(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_size <= 0) return {};
  std::vector<std::byte> bytes(static_cast<size_t>(info.st_size));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(fd, &bytes[done], bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {};
    done += static_cast<size_t>(n);
  }
  return bytes;
}

// Closes on the way out.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<std::vector<std::byte>> run_isolated(
    const std::function<Result<std::vector<std::byte>>()>& reader, uint64_t input_bytes,
    const std::string& where) {
  const Descriptor memory{::memfd_create("twinrun", MFD_CLOEXEC)};
  if (memory.fd < 0) {
    return Error{fmt::format("cannot make a file in memory: {}", std::strerror(errno)), where, ""};
  }
  const pid_t pid = ::fork();
  if (pid < 0) {
    return Error{fmt::format("cannot start a process to read it: {}", std::strerror(errno)), where,
                 "close other programs"};
  }
  if (pid == 0) child(memory.fd, reader, input_bytes);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return Error{"lost the process that reads it", where, ""};
  }
  std::vector<std::byte> bytes;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) bytes = answer(memory.fd);
  if (bytes.empty()) {
    return Error{fmt::format("the library that reads it failed ({})", how_it_ended(status)), where,
                 "the file is damaged or hostile: fetch or make it again"};
  }
  const bool value = bytes[0] == kValue;
  if (!value) {
    const auto parts = nlohmann::json::parse(bytes.begin() + 1, bytes.end(), nullptr, false);
    if (!parts.is_array() || parts.size() != 3) return Error{"cannot be read", where, ""};
    return Error{parts[0], parts[1], parts[2]};
  }
  bytes.erase(bytes.begin());
  return bytes;
}

}  // namespace twinrun

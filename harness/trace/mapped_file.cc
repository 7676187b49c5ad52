// Maps a file, and replaces pages that it loses meanwhile.
#include "harness/trace/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace twinrun {
namespace {

// What the handler of SIGBUS knows: it may read nothing that takes a lock.
struct Watched {
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<bool> lost = false;
};
std::array<Watched, 64> watched;
struct sigaction before;

// A page of a file that became shorter is replaced by zeros; any other fault is left to who had the
// signal before.
void replace_page(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (Watched& w : watched) {
    if (at < w.begin.load() || at >= w.end.load()) continue;
    void* const from = reinterpret_cast<void*>(at / page * page);  // NOLINT
    if (::mmap(from, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != from)
      break;
    w.lost = true;
    return;
  }
  ::sigaction(SIGBUS, &before, nullptr);
}

int64_t when_written(const struct stat& facts) {
  return int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
}

size_t watch(uintptr_t begin, size_t size) {
  static std::once_flag installed;
  std::call_once(installed, [] {
    struct sigaction action {};
    action.sa_sigaction = replace_page;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, &before);
  });
  for (size_t i = 0; i < watched.size(); ++i) {
    uintptr_t none = 0;
    if (!watched[i].begin.compare_exchange_strong(none, begin)) continue;
    watched[i].lost = false;
    watched[i].end = begin + size;
    return i;
  }
  // More files than anybody reads at once: one that shrinks ends the process.
  return watched.size();
}

}  // namespace

MappedFile::MappedFile(int fd, const std::byte* data, size_t size, int64_t written)
    : fd_(fd),
      data_(data),
      size_(size),
      written_(written),
      watched_(watch(reinterpret_cast<uintptr_t>(data), size)) {}

MappedFile::~MappedFile() {
  if (watched_ < watched.size()) watched[watched_].end = 0, watched[watched_].begin = 0;
  ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(fd_);
}

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe that nobody writes would wait for ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return Error{fmt::format("cannot open: {}", std::strerror(errno)), path, "check the path"};
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size == 0) {
    ::close(fd);
    return Error{"it is empty or not a file", path, ""};
  }
  const auto size = static_cast<size_t>(facts.st_size);
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) {
    const Error error{fmt::format("cannot map: {}", std::strerror(errno)), path, "check the file"};
    ::close(fd);
    return error;
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(fd, static_cast<const std::byte*>(mapped), size, when_written(facts)));
}

bool MappedFile::shortened() const {
  struct stat facts {};
  return (watched_ < watched.size() && watched[watched_].lost) || ::fstat(fd_, &facts) != 0 ||
         static_cast<size_t>(facts.st_size) < size_;
}

bool MappedFile::changed() const {
  struct stat facts {};
  return shortened() || ::fstat(fd_, &facts) != 0 || when_written(facts) != written_;
}

}  // namespace twinrun

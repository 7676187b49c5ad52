// Makes, locks and removes temporary files and folders, and what killed processes left of them.
#include "checkpoints/container/temporary.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoints/container/open_file.h"
#include "program/base/os_error.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFilePrefix = ".twinrun-", kFileSuffix = ".tmp";
constexpr std::string_view kFolderPrefix = "twinrun-", kRandom = "-XXXXXX";
constexpr std::array<std::string_view, 7> kPurposes = {"bundle", "replay", "sides", "rank",
                                                       "pass",   "graph",  "engine"};

bool names_file(std::string_view name) {
  return name.starts_with(kFilePrefix) && name.ends_with(kFileSuffix);
}

bool names_folder(std::string_view name) {
  return std::ranges::any_of(kPurposes, [&](std::string_view purpose) {
    const std::string prefix = fmt::format("{}{}-", kFolderPrefix, purpose);
    return name.starts_with(prefix) && name.size() == prefix.size() + kRandom.size() - 1;
  });
}

bool is_first_sweep(const std::string& folder) {
  static std::mutex mutex;
  static std::set<std::string> swept;
  const std::lock_guard lock(mutex);
  return swept.insert(folder).second;
}

// Removes a folder and all below it with one open file at a time, because the process may be at its
// limit of them. Returns whether nothing is left.
bool remove_tree(const std::string& folder) {
  std::vector<std::string> names;
  if (DIR* const open = ::opendir(folder.c_str())) {
    while (const dirent* const entry = ::readdir(open)) names.emplace_back(entry->d_name);
    ::closedir(open);
  }
  for (const std::string& name : names) {
    if (name == "." || name == "..") continue;
    const std::string path = folder + "/" + name;
    struct stat info {};
    if (::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
      remove_tree(path);
    } else {
      ::unlink(path.c_str());
    }
  }
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT;
}

// Retries, because an engine may have removed permissions from folders of its own, and because
// killed processes take a moment to disappear.
void remove_folder(const fs::path& folder) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    if (remove_tree(folder)) return;
    std::error_code ignored;
    fs::recursive_directory_iterator at(folder, ignored), end;
    for (; !ignored && at != end; at.increment(ignored)) {
      if (at->is_directory(ignored) && !at->is_symlink(ignored))
        fs::permissions(at->path(), fs::perms::owner_all, ignored);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Removes the file or folder of that name if it is a leftover.
void sweep(int folder, const fs::path& path, const char* name) {
  struct stat info {
  }, open{};
  if (::fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || info.st_uid != ::geteuid())
    return;
  const bool is_folder = S_ISDIR(info.st_mode);
  if (is_folder ? !names_folder(name) : !S_ISREG(info.st_mode) || !names_file(name)) return;
  const std::chrono::seconds age(std::time(nullptr) - info.st_mtime);
  if (age < (is_folder ? std::chrono::seconds(kFolderLeftover) : kFileLeftover)) return;
  const Descriptor file(::openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0 || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return;
  // Another process may have swept it meanwhile, and a third one may have made it anew.
  if (::fstat(file.get(), &open) != 0 || ::fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
      open.st_ino != info.st_ino || open.st_dev != info.st_dev)
    return;
  if (is_folder) {
    remove_folder(path / name);
  } else {
    ::unlinkat(folder, name, 0);
  }
}

}  // namespace

void sweep_leftovers(const std::string& folder) {
  if (!is_first_sweep(folder)) return;
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> entries(::opendir(folder.c_str()));
  if (entries == nullptr) return;
  for (int looked = 0; looked < kMaxLooked; ++looked) {
    const dirent* const entry = ::readdir(entries.get());
    if (entry == nullptr) return;
    if (names_file(entry->d_name) || names_folder(entry->d_name))
      sweep(::dirfd(entries.get()), folder, entry->d_name);
  }
}

TemporaryFile::~TemporaryFile() {
  if (fd_ >= 0) ::close(fd_);
  if (exists_) ::unlink(name_.c_str());
}

int TemporaryFile::make(const std::string& folder, const std::function<int(const char*)>& open) {
  sweep_leftovers(folder);
  static std::atomic<unsigned> counter{0};
  do {  // a killed process may have left a file of this name
    name_ = fmt::format("{}/{}{}-{}{}", folder, kFilePrefix, ::getpid(), counter++, kFileSuffix);
    fd_ = open(name_.c_str());
  } while (fd_ < 0 && errno == EEXIST);
  exists_ = fd_ >= 0;
  if (!exists_) return errno;
  static_cast<void>(::flock(fd_, LOCK_EX | LOCK_NB));  // some file systems have no locks
  return 0;
}

int TemporaryFile::create(const std::string& folder) {
  return make(folder, [](const char* name) {
    return ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  });
}

int TemporaryFile::name(int unnamed, const std::string& folder) {
  const std::string itself = fmt::format("/proc/self/fd/{}", unnamed);
  return make(folder, [&](const char* name) {
    Descriptor file(::fcntl(unnamed, F_DUPFD_CLOEXEC, 0));
    const bool named = file.get() >= 0 &&
                       ::linkat(AT_FDCWD, itself.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
    const int code = errno;
    if (named) return file.release();
    file = Descriptor(-1);
    errno = code;  // closing may change it
    return -1;
  });
}

int TemporaryFile::sync_and_close() {
  if (::fsync(fd_) != 0) return errno;
  return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
}

int TemporaryFile::move_to(const std::string& destination) {
  if (::rename(name_.c_str(), destination.c_str()) != 0) return errno;
  exists_ = false;
  return 0;
}

Result<TemporaryFolder> TemporaryFolder::make(std::string_view purpose) {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  if (!error) sweep_leftovers(base.string());
  TemporaryFolder made;
  std::string path = (base / fmt::format("{}{}{}", kFolderPrefix, purpose, kRandom)).string();
  if (error || ::mkdtemp(path.data()) == nullptr)
    return Error{fmt::format("cannot create a temporary folder ({})",
                             error ? error.message() : std::strerror(errno)),
                 path, "set TMPDIR to a folder that can be written to",
                 kind_of_failure(error ? error.value() : errno)};
  made.path_ = std::move(path);
  made.lock_ = ::open(made.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (made.lock_ >= 0) static_cast<void>(::flock(made.lock_, LOCK_EX | LOCK_NB));
  return made;
}

TemporaryFolder::~TemporaryFolder() {
  if (lock_ >= 0) ::close(lock_);  // its number may be the last one that is free
  if (!path_.empty()) remove_folder(path_);
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::exchange(other.lock_, -1)) {}

TemporaryFolder& TemporaryFolder::operator=(TemporaryFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_, other.lock_);
  return *this;
}

}  // namespace twinrun

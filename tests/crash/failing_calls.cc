// A library for LD_PRELOAD that counts the system calls by which a program changes or reads what is
// stored, and lets one of them fail: an error, a short write, or SIGKILL just before or after it.
// It can also write down every call with its bytes, from which power.py rebuilds what a disk may
// hold after power was lost, and let the Nth allocation fail. Only calls on files below one folder
// count, and only those of the process that is started, between the begin and the end of main().
//
//   FAILING_CALLS_UNDER=/tmp/x   count calls on files and folders below this one
//   FAILING_CALLS_LOG=FILE       write down each call that counts
//   FAILING_CALLS_AT=N           what happens, happens at the Nth call (from 1) ...
//   FAILING_CALLS_LAST=M         ... to the Mth (default: N)
//   FAILING_CALLS_ONLY=write,..  and only at calls of these names
//   FAILING_CALLS_DO=fail:ERRNO | short | kill-before | kill-after
//   FAILING_CALLS_MALLOC=N       the Nth allocation returns null
//   FAILING_CALLS_CLOCK=1        the clock of the day jumps by days, forwards and backwards
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

enum class What { kNothing, kFail, kShort, kKillBefore, kKillAfter };

struct Settings {
  char under[PATH_MAX] = "", only[256] = "";
  long at = 0, last = 0, malloc_at = 0;
  int error = 0, log = -1;
  What what = What::kNothing;
  bool clock = false;
  pid_t owner = 0;
} settings;

std::atomic<bool> started = false;  // inside main()
std::atomic<bool> failed = false;   // the allocation that was to fail
std::atomic<long> calls = 0, allocations = 0, clocks = 0;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

constexpr int kMaxFiles = 4096;
bool tracked[kMaxFiles];  // descriptors of files below settings.under

bool active() { return started && syscall(SYS_getpid) == settings.owner; }

template <typename F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

void take_text(const char* name, char* into, size_t size) {
  if (const char* value = getenv(name)) snprintf(into, size, "%s", value);
}

long take_number(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? 0 : atol(value);
}

void take_settings() {
  char what[64] = "", log[PATH_MAX] = "";
  take_text("FAILING_CALLS_UNDER", settings.under, sizeof settings.under);
  take_text("FAILING_CALLS_ONLY", settings.only, sizeof settings.only);
  take_text("FAILING_CALLS_DO", what, sizeof what);
  take_text("FAILING_CALLS_LOG", log, sizeof log);
  settings.at = take_number("FAILING_CALLS_AT");
  settings.last = take_number("FAILING_CALLS_LAST");
  if (settings.last == 0) settings.last = settings.at;
  settings.malloc_at = take_number("FAILING_CALLS_MALLOC");
  settings.clock = take_number("FAILING_CALLS_CLOCK") != 0;
  if (strncmp(what, "fail:", 5) == 0) settings.what = What::kFail, settings.error = atoi(what + 5);
  if (strcmp(what, "short") == 0) settings.what = What::kShort;
  if (strcmp(what, "kill-before") == 0) settings.what = What::kKillBefore;
  if (strcmp(what, "kill-after") == 0) settings.what = What::kKillAfter;
  if (log[0] != 0)
    settings.log = static_cast<int>(
        syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  settings.owner = getpid();
  void* frame[1];
  backtrace(frame, 1);  // the first call allocates
  // Programs that this one starts run undisturbed.
  unsetenv("LD_PRELOAD");
}

// The absolute path, of a path relative to an open folder.
void absolute(int folder, const char* path, char* out) {
  if (path[0] == '/') {
    snprintf(out, PATH_MAX, "%s", path);
    return;
  }
  char link[64], base[PATH_MAX / 2] = "";
  if (folder == AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/cwd");
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  }
  if (readlink(link, base, sizeof base - 1) < 0) base[0] = 0;
  snprintf(out, PATH_MAX, "%s/%.2000s", base, path);
}

bool below(const char* path) {
  const size_t n = strlen(settings.under);
  return n > 0 && strncmp(path, settings.under, n) == 0 && (path[n] == '/' || path[n] == 0);
}

bool counts(int fd) { return active() && fd >= 0 && fd < kMaxFiles && tracked[fd]; }

// What is written down of a call.
struct Event {
  const char* call;
  int fd = -1;
  const char *path = "", *to = "";
  long offset = 0, length = 0;
  const void* bytes = nullptr;
  const char* flags = "";
};

void put(const void* data, size_t size) {
  for (size_t at = 0; at < size;) {
    const long n = syscall(SYS_write, settings.log, static_cast<const char*>(data) + at, size - at);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

void write_down(const Event& e) {
  if (settings.log < 0) return;
  struct stat info = {};
  if (e.fd >= 0) {
    fstat(e.fd, &info);
  } else if (e.path[0] != 0) {
    lstat(e.to[0] != 0 ? e.to : e.path, &info);
  }
  char line[2 * PATH_MAX + 256];
  const int n = snprintf(line, sizeof line, "%ld\t%s\t%lu\t%ld\t%ld\t%s\t%s\t%s\n", calls.load(),
                         e.call, static_cast<unsigned long>(info.st_ino), e.offset,
                         e.bytes == nullptr ? 0 : e.length, e.flags, e.path, e.to);
  put(line, static_cast<size_t>(n));
  if (e.bytes != nullptr) put(e.bytes, static_cast<size_t>(e.length));
}

[[noreturn]] void die() {
  for (;;) syscall(SYS_kill, settings.owner, SIGKILL);
}

bool chosen(const char* call) {
  if (settings.only[0] == 0) return true;
  const size_t n = strlen(call);
  for (const char* at = settings.only; (at = strstr(at, call)) != nullptr; at += n) {
    if ((at == settings.only || at[-1] == ',') && (at[n] == ',' || at[n] == 0)) return true;
  }
  return false;
}

// Counts the call and makes it, unless it is to fail. `make` returns a number below 0 with errno
// set if the call fails; its argument is the number of bytes to write. A close that fails has
// closed the file.
template <typename Make>
long counted(Event e, Make make) {
  pthread_mutex_lock(&mutex);
  const long n = ++calls;
  const bool here =
      settings.what != What::kNothing && n >= settings.at && n <= settings.last && chosen(e.call);
  if (here && settings.what == What::kKillBefore) die();
  long result = -1;
  int error = 0;
  const bool fails = here && settings.what == What::kFail;
  if (fails && strcmp(e.call, "close") == 0) make(0L);
  if (fails) {
    error = settings.error;
    e.flags = "failed";
    e.bytes = nullptr;
  } else {
    const bool half = here && settings.what == What::kShort && e.length > 1;
    result = make(half ? e.length / 2 : e.length);
    error = errno;
    if (e.length > 0) e.length = result;
    if (result < 0) e.bytes = nullptr;
  }
  if (fails || result >= 0) write_down(e);
  if (here && settings.what == What::kKillAfter) die();
  pthread_mutex_unlock(&mutex);
  errno = error;
  return result;
}

void track(long fd, bool yes) {
  if (fd >= 0 && fd < kMaxFiles) tracked[fd] = yes;
}

int open_file(int folder, const char* path, int flags, mode_t mode) {
  const auto make = [&](long) { return syscall(SYS_openat, folder, path, flags, mode); };
  char where[PATH_MAX];
  if (active()) absolute(folder, path, where);
  if (!active() || !below(where)) return static_cast<int>(make(0));
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT) != 0;
  const bool fresh = (flags & O_CREAT) != 0 && access(where, F_OK) != 0;
  const long fd = counted({.call = writes ? "create" : "open",
                           .path = where,
                           .flags = (flags & O_TRUNC) != 0 ? "truncated"
                                    : fresh                ? "new"
                                                           : ""},
                          make);
  track(fd, true);
  return static_cast<int>(fd);
}

// A call on one path, or on two.
template <typename Make>
int on_paths(const char* call, int folder, const char* path, int to_folder, const char* to,
             Make make) {
  char first[PATH_MAX] = "", second[PATH_MAX] = "";
  if (active()) {
    absolute(folder, path, first);
    if (to != nullptr) absolute(to_folder, to, second);
  }
  if (!active() || !(below(first) || below(second))) return static_cast<int>(make(0L));
  return static_cast<int>(counted({.call = call, .path = first, .to = second}, make));
}

template <typename Make>
long on_file(Event e, Make make) {
  return counts(e.fd) ? counted(e, make) : make(e.length);
}

long position(int fd) { return syscall(SYS_lseek, fd, 0, SEEK_CUR); }

long end_if_appending(int fd) {
  if ((fcntl(fd, F_GETFL) & O_APPEND) == 0) return position(fd);
  struct stat info = {};
  fstat(fd, &info);
  return info.st_size;
}

// libhdf5 crashes if an allocation on its behalf fails, which is known
// (checkpoints/container/hdf5_internal.h).
bool is_spared() {
  void* frames[64];
  const int many = backtrace(frames, 64);
  for (int i = 0; i < many; ++i) {
    Dl_info info = {};
    if (dladdr(frames[i], &info) != 0 && info.dli_fname != nullptr &&
        strstr(info.dli_fname, "libhdf5") != nullptr)
      return true;
  }
  return false;
}

// The Nth allocation fails, or where it is spared, the next one that is not.
bool allocation_fails() {
  if (!started.load(std::memory_order_relaxed)) return false;
  const long n = ++allocations;
  if (settings.malloc_at == 0 || n < settings.malloc_at || !active()) return false;
  if (is_spared() || failed.exchange(true)) return false;
  errno = ENOMEM;
  return true;
}

using Main = int (*)(int, char**, char**);
Main real_main;

int main_between(int argc, char** argv, char** environment) {
  take_settings();
  started = true;
  const int code = real_main(argc, argv, environment);
  if (active() && settings.log >= 0) {
    char line[64];
    const int n =
        snprintf(line, sizeof line, "0\tallocations\t%ld\t0\t0\t\t\t\n", allocations.load());
    put(line, static_cast<size_t>(n));
  }
  started = false;
  return code;
}

}  // namespace

extern "C" {

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*end)(), void* stack) {
  real_main = main;
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  return real<Start>("__libc_start_main")(main_between, argc, argv, init, fini, end, stack);
}

// The mode is given only if a file may be created.
#define TAKE_MODE(flags)                        \
  mode_t mode = 0;                              \
  if (((flags) & (O_CREAT | O_TMPFILE)) != 0) { \
    va_list list;                               \
    va_start(list, flags);                      \
    mode = va_arg(list, mode_t);                \
    va_end(list);                               \
  }

int open(const char* path, int flags, ...) {
  TAKE_MODE(flags)
  return open_file(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  TAKE_MODE(flags)
  return open_file(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  TAKE_MODE(flags)
  return open_file(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  TAKE_MODE(flags)
  return open_file(folder, path, flags, mode);
}

// Streams of C and C++ open their files inside the C library; they are given an open file instead.
FILE* fopen64(const char* path, const char* mode) {
  const bool plus = strchr(mode, '+') != nullptr;
  const int access = plus ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
  const int more = mode[0] == 'r'   ? 0
                   : mode[0] == 'a' ? O_CREAT | O_APPEND
                                    : O_CREAT | (strchr(mode, 'x') != nullptr ? O_EXCL : O_TRUNC);
  const int close = strchr(mode, 'e') != nullptr ? O_CLOEXEC : 0;
  const int fd = open_file(AT_FDCWD, path, access | more | close, 0666);
  return fd < 0 ? nullptr : fdopen(fd, mode);
}
FILE* fopen(const char* path, const char* mode) { return fopen64(path, mode); }

int mkstemp64(char* path) {
  static std::atomic<unsigned> number = 0;
  char* const end = path + strlen(path) - 6;
  for (;;) {
    snprintf(end, 7, "%06x", (static_cast<unsigned>(getpid()) * 7919u + number++) & 0xffffffu);
    const int fd = open_file(AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
}
int mkstemp(char* path) { return mkstemp64(path); }

int close(int fd) {
  const long result = on_file({.call = "close", .fd = fd}, [&](long) {
    track(fd, false);
    return syscall(SYS_close, fd);
  });
  return static_cast<int>(result);
}

ssize_t read(int fd, void* to, size_t n) {
  return on_file({.call = "read", .fd = fd}, [&](long) { return syscall(SYS_read, fd, to, n); });
}
ssize_t pread64(int fd, void* to, size_t n, off64_t offset) {
  return on_file({.call = "read", .fd = fd},
                 [&](long) { return syscall(SYS_pread64, fd, to, n, offset); });
}
ssize_t pread(int fd, void* to, size_t n, off_t offset) { return pread64(fd, to, n, offset); }

ssize_t write(int fd, const void* from, size_t n) {
  const long at = counts(fd) ? end_if_appending(fd) : 0;
  return on_file(
      {.call = "write", .fd = fd, .offset = at, .length = static_cast<long>(n), .bytes = from},
      [&](long some) { return syscall(SYS_write, fd, from, some); });
}
ssize_t pwrite64(int fd, const void* from, size_t n, off64_t offset) {
  return on_file(
      {.call = "write", .fd = fd, .offset = offset, .length = static_cast<long>(n), .bytes = from},
      [&](long some) { return syscall(SYS_pwrite64, fd, from, some, offset); });
}
ssize_t pwrite(int fd, const void* from, size_t n, off_t offset) {
  return pwrite64(fd, from, n, offset);
}
// A file below the folder takes the pieces one after the other.
ssize_t writev(int fd, const iovec* pieces, int count) {
  if (!counts(fd)) return syscall(SYS_writev, fd, pieces, count);
  ssize_t done = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t n = write(fd, pieces[i].iov_base, pieces[i].iov_len);
    if (n < 0) return done > 0 ? done : n;
    done += n;
    if (static_cast<size_t>(n) < pieces[i].iov_len) break;
  }
  return done;
}
int ftruncate64(int fd, off64_t size) {
  return static_cast<int>(on_file({.call = "ftruncate", .fd = fd, .offset = size},
                                  [&](long) { return syscall(SYS_ftruncate, fd, size); }));
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int fsync(int fd) {
  return static_cast<int>(
      on_file({.call = "fsync", .fd = fd}, [&](long) { return syscall(SYS_fsync, fd); }));
}
int fdatasync(int fd) {
  return static_cast<int>(
      on_file({.call = "fsync", .fd = fd}, [&](long) { return syscall(SYS_fdatasync, fd); }));
}
int flock(int fd, int how) {
  return static_cast<int>(
      on_file({.call = "flock", .fd = fd}, [&](long) { return syscall(SYS_flock, fd, how); }));
}

int renameat(int folder, const char* from, int to_folder, const char* to) {
  return on_paths("rename", folder, from, to_folder, to,
                  [&](long) { return syscall(SYS_renameat2, folder, from, to_folder, to, 0); });
}
int rename(const char* from, const char* to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
int linkat(int folder, const char* from, int to_folder, const char* to, int flags) {
  return on_paths("link", folder, from, to_folder, to,
                  [&](long) { return syscall(SYS_linkat, folder, from, to_folder, to, flags); });
}
int link(const char* from, const char* to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int unlinkat(int folder, const char* path, int flags) {
  return on_paths((flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink", folder, path, 0, nullptr,
                  [&](long) { return syscall(SYS_unlinkat, folder, path, flags); });
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  const int code = unlink(path);
  return code != 0 && errno == EISDIR ? rmdir(path) : code;
}
int mkdirat(int folder, const char* path, mode_t mode) {
  return on_paths("mkdir", folder, path, 0, nullptr,
                  [&](long) { return syscall(SYS_mkdirat, folder, path, mode); });
}
int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
char* mkdtemp(char* path) {
  static std::atomic<unsigned> number = 0;
  char* const end = path + strlen(path) - 6;
  do {
    snprintf(end, 7, "%06x", (static_cast<unsigned>(getpid()) * 7919u + number++) & 0xffffffu);
    if (mkdir(path, 0700) == 0) return path;
  } while (errno == EEXIST);
  return nullptr;
}

// Starting threads and processes returns the error instead of setting errno.
#define STARTS(name, parameters, arguments)                  \
  int name parameters {                                      \
    const auto make = real<decltype(&name)>(#name);          \
    if (!active()) return make arguments;                    \
    int code = 0;                                            \
    const long done = counted({.call = "start"}, [&](long) { \
      code = make arguments;                                 \
      return 0L;                                             \
    });                                                      \
    return done < 0 ? EAGAIN : code;                         \
  }
STARTS(pthread_create,
       (pthread_t * thread, const pthread_attr_t* how, void* (*run)(void*), void* argument),
       (thread, how, run, argument))
STARTS(posix_spawn,
       (pid_t * pid, const char* path, const posix_spawn_file_actions_t* actions,
        const posix_spawnattr_t* how, char* const* words, char* const* environment),
       (pid, path, actions, how, words, environment))
STARTS(posix_spawnp,
       (pid_t * pid, const char* path, const posix_spawn_file_actions_t* actions,
        const posix_spawnattr_t* how, char* const* words, char* const* environment),
       (pid, path, actions, how, words, environment))
pid_t fork() {
  const auto make = real<pid_t (*)()>("fork");
  if (!active()) return make();
  pid_t pid = -1;
  const long done = counted({.call = "start"}, [&](long) {
    pid = make();
    return 0L;
  });
  if (done < 0) errno = EAGAIN;
  return done < 0 ? -1 : pid;
}

void* malloc(size_t n) { return allocation_fails() ? nullptr : __libc_malloc(n); }
void* calloc(size_t n, size_t size) {
  return allocation_fails() ? nullptr : __libc_calloc(n, size);
}
void* realloc(void* old, size_t n) { return allocation_fails() ? nullptr : __libc_realloc(old, n); }
void* memalign(size_t align, size_t n) {
  return allocation_fails() ? nullptr : __libc_memalign(align, n);
}
void* aligned_alloc(size_t align, size_t n) { return memalign(align, n); }
int posix_memalign(void** out, size_t align, size_t n) {
  void* const memory = memalign(align, n);
  if (memory == nullptr) return ENOMEM;
  *out = memory;
  return 0;
}

int clock_gettime(clockid_t clock, timespec* now) {
  const long code = syscall(SYS_clock_gettime, clock, now);
  constexpr long kJumps[] = {0, 86400 * 3, -86400 * 400L, 7, -3600};  // seconds
  if (code == 0 && clock == CLOCK_REALTIME && settings.clock && active())
    now->tv_sec += kJumps[clocks++ % 5];
  return static_cast<int>(code);
}
time_t time(time_t* out) {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(timeval* out, void*) {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  *out = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

}  // extern "C"

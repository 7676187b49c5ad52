// Forks, runs the work in the child, and reads its answer from a file in memory.
#include "harness/drill/own_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <span>
#include <thread>

#include "checkpoints/container/open_file.h"
#include "program/base/os_error.h"

namespace twinrun::drill {
namespace {

Error cannot_start() {
  const int code = errno;
  return {fmt::format("cannot start a process: {}", std::strerror(code)), "",
          "close other programs, or raise the limits (ulimit -a)", kind_of_failure(code)};
}

}  // namespace

bool OwnProcess::by_itself() const {
  constexpr std::array kOwn = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP};
  return std::ranges::find(kOwn, signal) != kOwn.end();
}

Result<OwnProcess> in_own_process(const std::function<std::string()>& work, const StopFlag* stop) {
  const Descriptor memory(::memfd_create("twinrun", MFD_CLOEXEC));
  if (memory.get() < 0) return cannot_start();
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) return cannot_start();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    int code = 1;
    try {
      const std::string answer = work();
      code = write_all(memory.get(), std::as_bytes(std::span(answer)));
    } catch (const std::exception&) {  // no memory: no answer
    }
    ::_exit(code == 0 ? 0 : 1);
  }
  int status = 0;
  for (bool told = false;;) {
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) break;
    if (ended < 0 && errno != EINTR) return cannot_start();
    if (!told && stop != nullptr && stop->load()) told = ::kill(pid, SIGINT) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  OwnProcess out;
  if (WIFSIGNALED(status)) out.signal = WTERMSIG(status);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    TWINRUN_ASSIGN(const auto bytes, read_open_file(memory.get(), ~uint64_t{0}, "its answer"));
    out.answer.emplace(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return out;
}

}  // namespace twinrun::drill

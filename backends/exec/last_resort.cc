// A fixed table of sessions that a signal handler can read without locks or allocation.
#include "backends/exec/last_resort.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

namespace twinrun {
namespace {

struct Slot {
  std::atomic<int> group{0};  // 0: free; -1: being filled
  std::array<char, 512> folder{};
};
std::array<Slot, 64> slots;

}  // namespace

LastResort::LastResort(pid_t group, const std::string& folder) {
  if (folder.size() >= slots[0].folder.size()) return;
  for (size_t i = 0; i < slots.size() && slot_ < 0; ++i) {
    int free = 0;
    if (!slots[i].group.compare_exchange_strong(free, -1)) continue;
    std::memcpy(slots[i].folder.data(), folder.c_str(), folder.size() + 1);
    slots[i].group = group;
    slot_ = static_cast<int>(i);
  }
}

LastResort::~LastResort() {
  if (slot_ >= 0) slots[static_cast<size_t>(slot_)].group = 0;
}

void end_sessions() noexcept {
  for (Slot& slot : slots) {
    const int group = slot.group.load();
    if (group <= 0) continue;
    kill(-group, SIGKILL);
    // fork() takes locks; _Fork() is async-signal-safe.
    const pid_t remover = _Fork();
    if (remover == 0) {
      execl("/bin/rm", "rm", "-rf", "--", slot.folder.data(), static_cast<char*>(nullptr));
      _exit(127);
    }
    if (remover > 0) waitpid(remover, nullptr, 0);
  }
}

}  // namespace twinrun

// Ranks that are threads of one process, for tests of what is split over ranks: they exchange bytes
// as ranks of MPI do (backends/mpi), without MPI.
//
//   run_on_ranks(4, [&](Communicator& ranks) { ... });   // the function on four threads
#pragma once

#include <barrier>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "backends/core/communicator.h"

namespace twinrun {

// What the ranks of one run share: the memory that each shows to the others.
struct Meeting {
  explicit Meeting(int ranks) : barrier(ranks), shown(static_cast<size_t>(ranks)) {}
  std::barrier<> barrier;
  std::vector<std::span<const std::byte>> shown;
};

class ThreadRanks : public Communicator {
 public:
  ThreadRanks(int rank, int ranks, Meeting& meeting)
      : Communicator(rank, ranks), meeting_(meeting) {}
  [[noreturn]] void abort(int) override { std::abort(); }

 private:
  void move_all(std::span<std::byte> all, std::span<const size_t> offsets) override {
    const auto mine = static_cast<size_t>(rank());
    meeting_.shown[mine] = all;
    meeting_.barrier.arrive_and_wait();
    for (size_t r = 0; r < meeting_.shown.size(); ++r) {
      const size_t bytes = offsets[r + 1] - offsets[r];
      if (r != mine && bytes != 0)
        std::memcpy(all.data() + offsets[r], meeting_.shown[r].data() + offsets[r], bytes);
    }
    meeting_.barrier.arrive_and_wait();
  }
  void move_on(std::span<const std::byte> to_next, std::span<std::byte> from_previous) override {
    meeting_.shown[static_cast<size_t>(rank())] = to_next;
    meeting_.barrier.arrive_and_wait();
    const auto sent = meeting_.shown[static_cast<size_t>((rank() + ranks() - 1) % ranks())];
    if (sent.size() != from_previous.size()) std::abort();
    if (!sent.empty()) std::memcpy(from_previous.data(), sent.data(), sent.size());
    meeting_.barrier.arrive_and_wait();
  }

  Meeting& meeting_;
};

inline void run_on_ranks(int ranks, const std::function<void(Communicator&)>& work) {
  Meeting meeting(ranks);
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      ThreadRanks mine(r, ranks, meeting);
      work(mine);
    });
  }
}

}  // namespace twinrun

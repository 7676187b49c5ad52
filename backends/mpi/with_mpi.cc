// Moves bytes between ranks with MPI. It adds nothing: sums are made by our kernels.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "backends/mpi/join_ranks.h"

namespace twinrun {
namespace {

// MPI counts bytes in an int; longer messages are cut into pieces of this size.
constexpr size_t kPiece = size_t{1} << 30;

// Waits as MPI does, but lets other processes run: where they are more than the processors, the
// rank that is waited for may be one of them.
void wait(std::span<MPI_Request> requests) {
  int done = 0;
  while (true) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done != 0) return;
    ::sched_yield();
  }
}

class MpiRanks : public Communicator {
 public:
  MpiRanks(int rank, int ranks) : Communicator(rank, ranks) {}
  ~MpiRanks() override { MPI_Finalize(); }

  [[noreturn]] void abort(int exit_code) override {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::abort();
  }

 private:
  void move_all(std::span<std::byte> all, std::span<const size_t> offsets) override {
    if (all.size() <= kPiece) {
      std::vector<int> counts, places;
      for (size_t r = 0; r + 1 < offsets.size(); ++r) {
        counts.push_back(static_cast<int>(offsets[r + 1] - offsets[r]));
        places.push_back(static_cast<int>(offsets[r]));
      }
      MPI_Request gathered;
      MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all.data(), counts.data(), places.data(),
                      MPI_BYTE, MPI_COMM_WORLD, &gathered);
      wait({&gathered, 1});
      return;
    }
    for (size_t r = 0; r + 1 < offsets.size(); ++r) {
      for (size_t at = offsets[r]; at < offsets[r + 1]; at += kPiece) {
        MPI_Bcast(all.data() + at, static_cast<int>(std::min(kPiece, offsets[r + 1] - at)),
                  MPI_BYTE, static_cast<int>(r), MPI_COMM_WORLD);
      }
    }
  }

  void move_on(std::span<const std::byte> to_next, std::span<std::byte> from_previous) override {
    constexpr int kTag = 0;
    for (size_t at = 0; at < std::max(to_next.size(), from_previous.size()); at += kPiece) {
      const auto left = [&](size_t size) {
        return static_cast<int>(size > at ? std::min(kPiece, size - at) : 0);
      };
      const int sent = left(to_next.size()), received = left(from_previous.size());
      std::array<MPI_Request, 2> both;
      MPI_Irecv(from_previous.data() + at, received, MPI_BYTE,
                received > 0 ? (rank() + ranks() - 1) % ranks() : MPI_PROC_NULL, kTag,
                MPI_COMM_WORLD, &both[0]);
      MPI_Isend(to_next.data() + at, sent, MPI_BYTE,
                sent > 0 ? (rank() + 1) % ranks() : MPI_PROC_NULL, kTag, MPI_COMM_WORLD, &both[1]);
      wait(both);
    }
  }
};

}  // namespace

Result<std::unique_ptr<Communicator>> join_ranks() {
  if (started_ranks() == 1) return std::unique_ptr<Communicator>();
  // Errors of MPI itself end all ranks with its own message, which is its default.
  int level = 0, rank = 0, ranks = 1;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  auto joined = std::make_unique<MpiRanks>(rank, ranks);
  if (level < MPI_THREAD_FUNNELED)
    return Error{"this MPI does not support processes with threads", "MPI_Init_thread",
                 "use an MPI that was built with MPI_THREAD_FUNNELED or more",
                 Error::Kind::kUnavailable};
  if (ranks != started_ranks() && ranks == 1)
    return Error{"the launcher is of another MPI than this build: each process finds itself alone",
                 "MPI_Init", "start it with the mpirun of the MPI that it was built with",
                 Error::Kind::kUnavailable};
  return std::unique_ptr<Communicator>(std::move(joined));
}

}  // namespace twinrun

// The ranks of a run whose emulated cores are split over processes. An engine that is given one
// (BackendOptions::ranks) computes the cores of its own block only and exchanges bytes with the
// other ranks; every sum is added by our own kernels, in the order of the contract. Every rank
// makes the same calls in the same order. backends/mpi implements it; nullptr in its place means
// that all cores are in this process.
//
//   const CoreBlock mine = block_of(ranks->rank(), ranks->ranks(), 8);   // cores [first, last)
//   ranks->all_gather(bytes, offsets);   // afterwards all ranks hold all parts
//   if (any_rank(ranks, stop)) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

// What one rank sent to others. A part that all ranks gather counts once for each other rank.
struct Traffic {
  int64_t messages = 0, bytes = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }    // of this process, from 0
  int ranks() const { return ranks_; }  // how many there are
  const Traffic& traffic() const { return traffic_; }

  // Rank r's part of `all` is [offsets[r], offsets[r + 1]). This rank's part is sent to all others,
  // and theirs are received. The offsets are the same on all ranks.
  void all_gather(std::span<std::byte> all, std::span<const size_t> offsets);
  // Sends to the next rank of the ring while it receives from the previous one.
  void shift(std::span<const std::byte> to_next, std::span<std::byte> from_previous);
  // Ends the processes of all ranks.
  [[noreturn]] virtual void abort(int exit_code) = 0;

 protected:
  Communicator(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

 private:
  virtual void move_all(std::span<std::byte> all, std::span<const size_t> offsets) = 0;
  virtual void move_on(std::span<const std::byte> to_next, std::span<std::byte> from_previous) = 0;

  int rank_, ranks_;
  Traffic traffic_;
};

// Whether it is true on any rank. nullptr: on this one.
bool any_rank(Communicator* ranks, bool mine);
// Each rank's bytes, in the order of the ranks. All are of the same length.
std::vector<std::vector<std::byte>> from_all_ranks(Communicator& ranks,
                                                   std::span<const std::byte> mine);

// The cores [first, last) that a rank computes: contiguous blocks whose sizes differ by one at
// most.
struct CoreBlock {
  size_t first = 0, last = 0;
  size_t size() const { return last - first; }
};
CoreBlock block_of(int rank, int ranks, int cores);
// Errors: a program of several cores has fewer than there are ranks. A program of one core is
// computed by every rank.
Status check_ranks(const Communicator* ranks, int cores);

}  // namespace twinrun

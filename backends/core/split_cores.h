// What an interpreter exchanges with other ranks: the values of the cores that they compute, and
// the hops of the contract's ring (numerics.md, section 6) that cross from one rank to the next.
//
//   SplitCores split(*ranks, 8);            // split.mine(): the cores of this rank
//   split.gather(types, at);                // at(core, i) of the other ranks' cores is filled
//   split.all_reduce_sum(context, contributions, output);
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backends/core/communicator.h"
#include "backends/kernels/kernels.h"
#include "program/base/tensor.h"

namespace twinrun {

class SplitCores {
 public:
  // There are at least as many cores as ranks.
  SplitCores(Communicator& ranks, int cores);
  CoreBlock mine() const { return block(ranks_.rank()); }

  // at(core, i) is the tensor of type types[i] of a core. Those of this rank's cores are sent to
  // all others; those of the other ranks' cores are replaced by what they hold.
  void gather(std::span<const TensorType> types,
              const std::function<Tensor&(size_t core, size_t i)>& at);

  // The kernel all_reduce_sum over the cores of all ranks: the same hops in the same order, hence
  // the same bits. `contributions` are those of this rank's cores. Each rank sends partial sums to
  // the next one, and at last the finished parts of the result to all.
  void all_reduce_sum(const KernelContext& context, std::span<const Tensor> contributions,
                      Tensor& output);

 private:
  CoreBlock block(int rank) const { return block_of(rank, ranks_.ranks(), cores_); }

  Communicator& ranks_;
  int cores_;
  std::vector<std::byte> sums_, received_;  // partial sums on their way around the ring
};

}  // namespace twinrun

// Tests of the ring across ranks: the bits of one process, and the bytes that the ring needs. Whole
// runs are tested in tests/harness/run/ranks_test.cc.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "backends/core/split_cores.h"
#include "backends/kernels/kernels.h"
#include "program/base/philox.h"
#include "tests/support/thread_ranks.h"

namespace twinrun::ranks_test {
namespace {

Tensor contribution(DType dtype, int64_t length, uint32_t core) {
  Tensor t = Tensor::empty({dtype, {length}});
  for (int64_t i = 0; i < length; ++i) {
    const uint32_t bits = draw({5, core}, 0, 0, static_cast<uint64_t>(i));
    const auto at = static_cast<size_t>(i);
    // Of many magnitudes, denormals among them, so that another order gives another sum.
    const float value = std::ldexp(static_cast<float>(bits & 0xFFFFFF) - 8e6f,
                                   i % 7 == 6 ? -160 : static_cast<int>(bits >> 29) - 20);
    if (dtype == DType::kI32) t.as<int32_t>()[at] = static_cast<int32_t>(bits);
    if (dtype == DType::kF32) t.as<float>()[at] = value;
    if (dtype == DType::kBF16)
      t.as<uint16_t>()[at] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  return t;
}

// Blocks of equal and of different sizes, chunks of different sizes, and chunks without elements.
TEST(Ranks, TheRingThroughThreadsIsThatOfOneProcess) {
  for (const int cores : {2, 3, 5, 8}) {
    for (const int64_t length :
         {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{1000}, int64_t{70001}}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
        for (const bool flush : {false, true}) {
          std::vector<Tensor> x;
          for (int core = 0; core < cores; ++core)
            x.push_back(contribution(dtype, length, static_cast<uint32_t>(core)));
          const KernelContext context{nullptr, {.flush = flush}};
          Tensor expected = Tensor::zeros({dtype, {length}});
          all_reduce_sum(context, x, expected);
          for (int ranks = 2; ranks <= cores; ++ranks) {
            run_on_ranks(ranks, [&](Communicator& mine) {
              SplitCores split(mine, cores);
              const CoreBlock block = split.mine();
              const std::span<const Tensor> here(x.data() + block.first, block.size());
              for (int again = 0; again < 2; ++again) {
                Tensor sum = Tensor::zeros({dtype, {length}});
                split.all_reduce_sum(context, here, sum);
                EXPECT_TRUE(sum.same_bits(expected))
                    << cores << " cores, " << length << " elements, rank " << mine.rank() << " of "
                    << ranks;
              }
            });
          }
        }
      }
    }
  }
}

// In an all-reduce of L bytes over R ranks of one core each, the ring sends (R - 1) / R L bytes
// from every rank, and as many again for the result.
TEST(Ranks, TheRingThroughThreadsSendsNoMoreThanItNeeds) {
  constexpr int kRanks = 4;
  constexpr int64_t kLength = 4000, kBytes = 4 * kLength;
  run_on_ranks(kRanks, [&](Communicator& mine) {
    SplitCores split(mine, kRanks);
    const Tensor x = contribution(DType::kF32, kLength, static_cast<uint32_t>(mine.rank()));
    Tensor sum = Tensor::zeros(x.type());
    split.all_reduce_sum({}, {&x, 1}, sum);
    EXPECT_EQ(mine.traffic().bytes, 2 * kBytes * (kRanks - 1) / kRanks);
    EXPECT_EQ(mine.traffic().messages, 2 * (kRanks - 1));
  });
}

}  // namespace
}  // namespace twinrun::ranks_test

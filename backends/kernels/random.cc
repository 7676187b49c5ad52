// rng_uniform. Its generator is counter-based, so that any division of the work draws the same
// numbers. One Philox block gives four elements; eight blocks are computed at once, because
// philox4x32 (program/base/philox.h) takes twice as long.
#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"
#include "program/base/philox.h"

namespace twinrun {

namespace {

constexpr int kLanes = 8;
struct Blocks {
  uint32_t word[4][kLanes];
};

// Philox4x32-10 of the counters {first, second, third, fourth} to {first + 7, ..}.
Blocks philox(uint32_t first, uint32_t second, uint32_t third, uint32_t fourth, uint64_t seed) {
  Blocks c;
  for (uint32_t l = 0; l < kLanes; ++l) {
    c.word[0][l] = first + l;
    c.word[1][l] = second, c.word[2][l] = third, c.word[3][l] = fourth;
  }
  auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c.word[0][l],
                     p1 = uint64_t{0xCD9E8D57u} * c.word[2][l];
      const uint32_t c0 = static_cast<uint32_t>(p1 >> 32) ^ c.word[1][l] ^ k0;
      const uint32_t c2 = static_cast<uint32_t>(p0 >> 32) ^ c.word[3][l] ^ k1;
      c.word[1][l] = static_cast<uint32_t>(p1), c.word[3][l] = static_cast<uint32_t>(p0);
      c.word[0][l] = c0, c.word[2][l] = c2;
    }
  }
  return c;
}

}  // namespace

void run_rng_uniform(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  const auto step = static_cast<uint32_t>(inputs[0].as<int32_t>()[0]);
  const int32_t* samples = inputs[1].as<int32_t>().data();
  const int64_t n = inputs[1].elements();
  if (output.elements() == 0) return;
  constexpr int64_t kRun = 4 * kLanes;
  const int64_t elements = output.elements() / n, runs = (elements + kRun - 1) / kRun;
  const uint32_t stream = kStreamOps + op.attrs.stream;
  float* out = output.as<float>().data();
  for_ranges(context, n * runs, 8 * kRun, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / runs, first = i % runs * kRun;
      const Blocks blocks =
          philox(static_cast<uint32_t>(first / 4), static_cast<uint32_t>(samples[sample]), step,
                 stream, op.attrs.seed);
      float* to = out + sample * elements + first;
      const int64_t count = std::min(kRun, elements - first);
      for (int64_t q = 0; q < count; ++q) to[q] = uniform(blocks.word[q % 4][q / 4]);
    }
  });
}

}  // namespace twinrun

// rng_uniform. Its generator is counter-based, so that any division of the work draws the same
// numbers. One Philox block gives four elements.
#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"
#include "program/base/philox.h"

namespace twinrun {

void run_rng_uniform(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  const auto step = static_cast<uint32_t>(inputs[0].as<int32_t>()[0]);
  const int32_t* samples = inputs[1].as<int32_t>().data();
  const int64_t n = inputs[1].elements();
  if (output.elements() == 0) return;
  const int64_t elements = output.elements() / n, blocks = (elements + 3) / 4;
  const uint32_t stream = kStreamOps + op.attrs.stream;
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(op.attrs.seed),
                                       static_cast<uint32_t>(op.attrs.seed >> 32)};
  float* out = output.as<float>().data();
  for_ranges(context, n * blocks, 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / blocks, block = i % blocks;
      const Philox4 words = philox4x32(
          {static_cast<uint32_t>(block), static_cast<uint32_t>(samples[sample]), step, stream},
          key);
      float* to = out + sample * elements + 4 * block;
      const int64_t count = std::min<int64_t>(4, elements - 4 * block);
      for (int64_t q = 0; q < count; ++q) to[q] = uniform(words[static_cast<size_t>(q)]);
    }
  });
}

}  // namespace twinrun

// Elementwise ops over whole tensors, convert, select, negate and abs included: each piece of the
// range is one block, which the kernels of blocks.cc compute.
#include "backends/kernels/arithmetic.h"
#include "backends/kernels/blocks.h"
#include "backends/kernels/kernel_list.h"

namespace twinrun {

void run_elementwise(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  const bool flush = context.arithmetic.flush;
  const DType operand = inputs[op.kind == OpKind::kSelect ? 1 : 0].dtype();
  const BlockKernel kernel = block_kernel(op, operand, flush);
  for_ranges(context, output.elements(), block_cost(op.kind), [&](int64_t begin, int64_t end) {
    const FlushScope scope(flush);
    BlockArgs block;
    for (size_t i = 0; i < inputs.size(); ++i) {
      block.in[i] = inputs[i].raw() + static_cast<size_t>(begin) * size_of(inputs[i].dtype());
    }
    block.out = output.raw() + static_cast<size_t>(begin) * size_of(output.dtype());
    block.n = end - begin;
    kernel(block);
  });
}

}  // namespace twinrun

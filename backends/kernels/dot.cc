// dot_general: rank 2 by rank 2. Contracting both outermost dimensions is a kernel gradient:
// segments of 4096.
#include "backends/kernels/gemm.h"
#include "backends/kernels/kernel_list.h"
#include "backends/kernels/operands.h"

namespace twinrun {

void run_dot(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  const int lc = op.attrs.lhs_contract, rc = op.attrs.rhs_contract;
  const Dims &l = inputs[0].dims(), &r = inputs[1].dims();
  const int64_t m = l[static_cast<size_t>(1 - lc)], k = l[static_cast<size_t>(lc)],
                n = r[static_cast<size_t>(1 - rc)];
  const float* a = dot_operand(context, inputs[0], Scratch::kOperandA);
  const float* b = dot_operand(context, inputs[1], Scratch::kOperandB);
  const int64_t a_row = lc == 1 ? k : 1, a_k = lc == 1 ? 1 : m;
  const int64_t b_column = rc == 0 ? 1 : k, b_k = rc == 0 ? n : 1;
  DotResult result(context, output);
  const GemmPlan plan(context);
  const int64_t segment = lc == 0 && rc == 0 ? 4096 : std::max<int64_t>(k, 1);
  run_passes(plan, result.data(), m * n, [&](Terms terms, float* c) {
    float* sum = c;
    for (int64_t k0 = 0; k0 < std::max<int64_t>(k, 1); k0 += segment) {
      const int64_t length = std::min(segment, k - k0);
      if (k0 > 0) sum = scratch<float>(Scratch::kPartials, static_cast<size_t>(m * n));
      dense_gemm(plan,
                 {m,
                  n,
                  length,
                  {a + k0 * a_k, a_row, a_k},
                  {b + k0 * b_k, b_column, b_k, length, 0},
                  sum,
                  n},
                 terms);
      if (k0 > 0) add_partial(plan, c, sum, m * n, false);
    }
  });
  result.finish();
}

}  // namespace twinrun

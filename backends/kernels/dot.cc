// dot_general: matrices, or stacks of them. A product that contracts both outermost dimensions of
// two matrices is treated as a kernel gradient: it has segments of 4096.
#include "backends/kernels/gemm.h"
#include "backends/kernels/kernel_list.h"
#include "backends/kernels/operands.h"

namespace twinrun {
namespace {

struct Product {
  int64_t m, k, n;
  // a_rows: k runs along the rows of a (a is [m, k]). b_rows: k is the first dimension of b (b is
  // [k, n]).
  bool a_rows, b_rows;
  int64_t segment;
};

void multiply(const KernelContext& context, const Product& p, const float* a, const float* b,
              float* c) {
  const int64_t a_row = p.a_rows ? p.k : 1, a_k = p.a_rows ? 1 : p.m;
  const int64_t b_column = p.b_rows ? 1 : p.k, b_k = p.b_rows ? p.n : 1;
  const GemmPlan plan(context);
  run_passes(plan, c, p.m * p.n, [&](Terms terms, float* pass) {
    float* sum = pass;
    for (int64_t k0 = 0; k0 < std::max<int64_t>(p.k, 1); k0 += p.segment) {
      const int64_t length = std::min(p.segment, p.k - k0);
      if (k0 > 0) sum = scratch<float>(Scratch::kPartials, static_cast<size_t>(p.m * p.n));
      dense_gemm(plan,
                 {p.m,
                  p.n,
                  length,
                  {a + k0 * a_k, a_row, a_k},
                  {b + k0 * b_k, b_column, b_k, length, 0},
                  sum,
                  p.n},
                 terms);
      if (k0 > 0) add_partial(plan, pass, sum, p.m * p.n, false);
    }
  });
}

}  // namespace

void run_dot(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  const int lc = op.attrs.lhs_contract, rc = op.attrs.rhs_contract;
  const auto batch = static_cast<size_t>(op.attrs.batch_dims);
  const Dims &l = inputs[0].dims(), &r = inputs[1].dims();
  const auto at = [&](const Dims& dims, int i) { return dims[batch + static_cast<size_t>(i)]; };
  Product p{at(l, 1 - lc), at(l, lc), at(r, 1 - rc), lc == 1, rc == 0, 0};
  p.segment = batch == 0 && lc == 0 && rc == 0 ? 4096 : std::max<int64_t>(p.k, 1);
  const float* a = dot_operand(context, inputs[0], Scratch::kOperandA);
  const float* b = dot_operand(context, inputs[1], Scratch::kOperandB);
  DotResult result(context, output);
  float* const c = result.data();
  if (batch == 0) {
    multiply(context, p, a, b, c);
  } else {  // small products, each on one thread
    int64_t count = 1;
    for (size_t d = 0; d < batch; ++d) count *= l[d];
    const KernelContext alone{nullptr, context.arithmetic};
    for_pieces(context, count, count * p.m * p.k * p.n / 16, [&](int64_t i) {
      multiply(alone, p, a + i * p.m * p.k, b + i * p.k * p.n, c + i * p.m * p.n);
    });
  }
  result.finish();
}

}  // namespace twinrun

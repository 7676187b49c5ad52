// Pooling, its gradients and scatter_add: collects the terms of every result in the contract's
// order, and adds them in the variant's order.
#include "backends/kernels/arithmetic.h"
#include "backends/variants/internal.h"
#include "backends/variants/order.h"
#include "program/ops/terms.h"

namespace twinrun::variants {
namespace {

struct Addend {
  int64_t target;
  float value;
};

std::vector<Addend> addends_of(const Op& op, std::span<const Tensor> inputs) {
  const bool shared = op.kind == OpKind::kAvgPoolGrad;
  std::vector<Addend> addends;
  for_each_term(op, inputs, [&](const SumTerm& t) {
    const float value = number(inputs.back(), t.b);
    // Divide by 1, too: that flushes a denormal, if the engine flushes.
    addends.push_back({t.result, shared ? value / static_cast<float>(t.count) : value});
  });
  return addends;
}

}  // namespace

void scattered_sums(const Variant& variant, const Op& op, std::span<const Tensor> inputs,
                    Tensor& output) {
  const FlushScope scope(variant.declared.flush);
  const std::vector<Addend> addends = addends_of(op, inputs);
  // Group them by target with a stable counting sort.
  std::vector<int64_t> begin(static_cast<size_t>(output.elements()) + 1, 0);
  for (const Addend& t : addends) ++begin[static_cast<size_t>(t.target) + 1];
  for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<int64_t> next(begin.begin(), begin.end() - 1);
  std::vector<float> values(addends.size());
  for (const Addend& t : addends)
    values[static_cast<size_t>(next[static_cast<size_t>(t.target)]++)] = t.value;
  const bool mean = is_mean(op);
  for (int64_t i = 0; i < output.elements(); ++i) {
    const int64_t from = begin[static_cast<size_t>(i)],
                  n = begin[static_cast<size_t>(i) + 1] - from;
    const float sum = sum_in_order<float>(variant.scatter, n, Numbers{values.data() + from});
    set_number(output, i, mean ? sum / static_cast<float>(n) : sum, variant.declared.flush);
  }
}

}  // namespace twinrun::variants

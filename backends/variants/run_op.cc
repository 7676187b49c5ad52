// Computes one op, or some elements of it, as a variant does.
#include <algorithm>
#include <cstring>

#include "backends/kernels/arithmetic.h"
#include "backends/variants/internal.h"
#include "program/ops/terms.h"

namespace twinrun {
namespace variants {
namespace {

Arithmetic arithmetic_of(const Capabilities& declared) {
  Arithmetic a;
  a.dot = static_cast<DotArithmetic>(declared.precision);
  a.flush = declared.flush;
  return a;
}

// An elementwise op, restricted to n picked elements.
Op on_few(const Op& op, int64_t n) {
  Op few = op;
  few.type.dims = {n};
  few.attrs.shape.clear();
  return few;
}
Tensor picked(const Tensor& t, std::span<const int64_t> elements) {
  Tensor few = Tensor::empty({t.dtype(), {static_cast<int64_t>(elements.size())}});
  const size_t size = size_of(t.dtype());
  for (size_t i = 0; i < elements.size(); ++i)
    std::memcpy(few.raw() + i * size, t.raw() + static_cast<size_t>(elements[i]) * size, size);
  return few;
}

std::vector<float> numbers(const Tensor& t) {
  std::vector<float> out(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    out[i] = is_floating(t.dtype())     ? number(t, at)
             : t.dtype() == DType::kI32 ? static_cast<float>(t.as<int32_t>()[i])
                                        : static_cast<float>(t.as<uint8_t>()[i]);
  }
  return out;
}

Tensor computed(const Variant& v, const Op& op, std::span<const Tensor> inputs) {
  Tensor output = Tensor::empty(op.type);
  const KernelContext context{nullptr, arithmetic_of(v.declared)};
  if (replaces(v, op)) {
    run_op(v, op, inputs, output);
  } else if (op.kind == OpKind::kAllReduce) {
    all_reduce_sum(context, inputs, output);
  } else {
    run_kernel(context, op, inputs, output);
  }
  return output;
}

}  // namespace

bool replaces(const Variant& variant, const Op& op) {
  if (op.type.dtype == DType::kF64 || !is_floating(op.type.dtype)) return false;
  switch (class_of(op.kind)) {
    case OpClass::kDot:
    case OpClass::kReduce:
    case OpClass::kWindow:
      return is_sum_of_terms(op);
    case OpClass::kCollective:
      // bf16 contributions are rounded at each hop, in the contract's ring: no choice.
      return op.type.dtype == DType::kF32;
    default:
      return (is_elementary(op.kind) && variant.off_by > 0) ||
             (op.kind == OpKind::kRsqrt && variant.rsqrt_once);
  }
}

void run_op(const Variant& variant, const Op& op, std::span<const Tensor> inputs, Tensor& output) {
  if (is_grid_sum(op)) return grid_sums(variant, op, inputs, output);
  if (class_of(op.kind) != OpClass::kElementwise)
    return scattered_sums(variant, op, inputs, output);
  const FlushScope scope(variant.declared.flush);
  for (int64_t i = 0; i < output.elements(); ++i)
    set_number(output, i, elementary(variant, op.kind, number(inputs[0], i)),
               variant.declared.flush);
}

}  // namespace variants

std::vector<std::vector<float>> variants_elements(std::span<const Variant> variants, const Op& op,
                                                  std::span<const Tensor> inputs,
                                                  std::span<const int64_t> elements,
                                                  ThreadPool* pool) {
  const bool same = std::ranges::all_of(variants, [&](const Variant& v) {
    return variants::replaces(v, op) && v.declared.precision == variants[0].declared.precision &&
           v.declared.split == variants[0].declared.split &&
           v.declared.flush == variants[0].declared.flush;
  });
  if (same && variants::is_grid_sum(op))
    return variants::grid_sum_elements(variants, op, inputs, elements, pool);
  std::vector<std::vector<float>> results(variants.size());
  in_pieces(pool, static_cast<int64_t>(variants.size()), [&](int64_t i) {
    const Variant& v = variants[static_cast<size_t>(i)];
    std::vector<float>& result = results[static_cast<size_t>(i)];
    if (class_of(op.kind) == OpClass::kElementwise) {
      std::vector<Tensor> few;
      for (const Tensor& t : inputs) few.push_back(variants::picked(t, elements));
      result = variants::numbers(
          variants::computed(v, variants::on_few(op, static_cast<int64_t>(elements.size())), few));
    } else if (variants::is_grid_sum(op) && variants::replaces(v, op)) {
      result = variants::grid_sum_elements({&v, 1}, op, inputs, elements, nullptr)[0];
    } else {
      result = variants::numbers(variants::picked(variants::computed(v, op, inputs), elements));
    }
  });
  return results;
}

std::vector<float> variant_elements(const Variant& variant, const Op& op,
                                    std::span<const Tensor> inputs,
                                    std::span<const int64_t> elements) {
  return variants_elements({&variant, 1}, op, inputs, elements)[0];
}

}  // namespace twinrun

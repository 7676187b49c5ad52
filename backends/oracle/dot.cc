// Bounds of dots and convolutions: operands are rounded as declared; the radius is gamma of the
// declared order's depth times sum |a| |b| (docs/method/bounds.md, "Dot products and
// convolutions").
#include "backends/oracle/gemm.h"
#include "backends/oracle/internal.h"
#include "backends/oracle/parts.h"

namespace twinrun::oracle {
namespace {

constexpr int64_t kSegment = 4096;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool segmented(const Op& op) {
  if (op.kind == OpKind::kConvolutionKernelGrad) return true;
  return op.kind == OpKind::kDotGeneral && op.attrs.batch_dims == 0 && op.attrs.lhs_contract == 0 &&
         op.attrs.rhs_contract == 0;
}

// The largest number of rounded additions (or fused multiply-adds) that one of K products passes
// through on its way into the sum.
int64_t depth_of_pass(const Capabilities& declared, const Op& op, int64_t k) {
  // Any order, with products rounded separately.
  if (!declared.ours && !declared.block32_order) return k;
  const int64_t segment = segmented(op) ? std::min(k, kSegment) : k;
  const int64_t segments = segmented(op) ? ceil_div(k, kSegment) : 1;
  int64_t depth = segment;
  if (declared.block32_order && declared.precision != DotPrecision::kF32) {
    // The chain of even or odd terms (its first product is exact), the sum of the two chains, then
    // the blocks (the first is added to +0).
    const int64_t chain = std::min<int64_t>(16, ceil_div(segment, 2)) - 1;
    depth = chain + 1 + (ceil_div(segment, 32) - 1);
  }
  return depth + segments - 1;
}

int passes_of(DotPrecision precision) {
  return precision == DotPrecision::kBf16x3 ? 3 : precision == DotPrecision::kBf16x6 ? 6 : 1;
}

}  // namespace

void eval_dot(const Call& call) {
  const Op& op = call.op;
  if (has_parts(op)) {
    return in_pieces(call.pool, part_count(op, call.inputs), [&](int64_t i) {
      const Part part = part_of(op, call.inputs, i);
      const auto n = static_cast<size_t>(part.op.type.elements());
      OracleResult result{std::vector<double>(n), std::vector<double>(n)};
      eval_dot(
          {call.declared, part.op, part.inputs, nullptr, result, call.wide, 0, 0, call.bounded});
      const Placement place = placement_of(op, i);
      for (size_t e = 0; e < n; ++e)
        call.set(place(static_cast<int64_t>(e)), {result.value[e], result.radius[e]});
    });
  }
  const Capabilities& declared = call.declared;
  const Product product = product_of(op, call.inputs);
  const bool bf16 = declared.precision != DotPrecision::kF32;
  const bool flush = declared.flush || bf16;  // bf16 dots always flush, as matrix units do
  const Operand a = split(call.inputs[0], declared.precision, declared.split, flush, call.pool);
  const Operand b = split(call.inputs[1], declared.precision, declared.split, flush, call.pool);
  const Sums sums = evaluate(product, a, b, call.pool, call.bounded);
  const auto value_of = [&](size_t i) {
    const bool more = !sums.rest.empty() && sums.rest[i] == sums.rest[i];
    return more ? sums.head[i] + sums.rest[i] : sums.head[i];
  };
  if (!call.bounded) {
    return for_each_element(call.pool, product.m * product.n,
                            [&](int64_t i) { *call.value(i) = value_of(static_cast<size_t>(i)); });
  }

  const int passes = passes_of(declared.precision);
  const auto k = static_cast<double>(product.k);
  const auto depth = static_cast<double>(depth_of_pass(declared, op, product.k));
  double relative = gamma(depth + (passes > 1));
  if (passes > 1) {
    // hh is added last, once. A term of the other passes goes through more additions, two in all
    // for bf16x3, five for bf16x6; but their sizes are below 2^-6 of the whole: |m| <= 2^-8 |h|,
    // |l| <= 2^-16 |h|. Parts that are cut instead of rounded are up to twice as large.
    const double rest = declared.split == DotSplit::kTruncated ? 0x1p-5 : 0x1p-6;
    relative += rest * (gamma(depth + (passes == 3 ? 2 : 5)) - relative);
  }
  // If no arithmetic is declared, operands may have been rounded to bf16, or not.
  if (!declared.declares_arithmetic) relative += 0x1p-7 + 0x1p-16;
  relative = (relative + (k + 8) * passes * 0x1p-52) * kOutward;
  // Every operation may lose one tiny result: half of 2^-149 with gradual underflow, up to 2^-126
  // with flush.
  const double operations = passes * (2 * k + k / 16 + k / static_cast<double>(kSegment) + 8);
  const double absolute = operations * (flush ? kMinNormal : 0x1p-150);
  // With operands of this size no finite partial sum can overflow, so a non-finite result comes
  // from an operand.
  const bool contained =
      k * a.largest * b.largest * passes * (1 + relative) < kBinary32.overflow / 2;

  Storage storage = call.storage();
  storage.flush = flush;
  for_each_element(call.pool, product.m * product.n, [&](int64_t i) {
    const auto u = static_cast<size_t>(i);
    const double value = value_of(u), size = sums.magnitude[u];
    if (!finite(size)) {
      const bool certain = contained || (passes == 1 && value != value);
      return call.set(i, {value, !finite(value) && certain ? 0.0 : kInfinity});
    }
    if (!finite(relative) || size * (1 + relative) + absolute >= kBinary32.overflow)
      return call.set(i, {value, kInfinity});
    call.set(i, store({value, size * relative + absolute}, Final::kIncluded, storage));
  });
}

}  // namespace twinrun::oracle

namespace twinrun {

double operand_residual(const Op& op, std::span<const Tensor> inputs, const Tensor& subject,
                        ThreadPool* pool) {
  using namespace oracle;
  double residual = 0, scale = 0;
  const bool whole = !has_parts(op);
  for (int64_t i = 0; i < (whole ? 1 : part_count(op, inputs)); ++i) {
    const Part part = whole ? Part{op, {inputs.begin(), inputs.end()}} : part_of(op, inputs, i);
    const Tensor result = whole ? subject : part_of_result(op, subject, i);
    const Product product = product_of(part.op, part.inputs);
    Operand a = split(part.inputs[0], DotPrecision::kF32, DotSplit::kNearest, false, pool);
    Operand b = split(part.inputs[1], DotPrecision::kF32, DotSplit::kNearest, false, pool);
    // With squares in place of the magnitudes, sums.magnitude becomes the sum of (a b)^2.
    for (Operand* x : {&a, &b}) {
      x->magnitude = x->parts[0];
      for (double& v : x->magnitude) v *= v;
    }
    const Sums sums = evaluate(product, a, b, pool);
    for (size_t e = 0; e < sums.head.size(); ++e) {
      const double difference = number_at(result, static_cast<int64_t>(e)) - sums.head[e];
      if (!finite(difference) || !finite(sums.magnitude[e])) continue;
      residual += difference * difference;
      scale += sums.magnitude[e];
    }
  }
  return scale > 0 ? std::sqrt(residual / scale) : 0;
}

}  // namespace twinrun

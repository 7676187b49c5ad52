// Dots, convolutions and their gradients: the same product of magnitudes and radii, by the matrix
// products of the oracle.
#include "backends/oracle/gemm.h"
#include "backends/oracle/parts.h"
#include "backends/radii/internal.h"

namespace twinrun::radii {
namespace {

using oracle::Operand;
using oracle::Plane;

// An operand as its values and the larger distances to the ends of its intervals.
struct Spread {
  Tensor value, radius;  // radius: not valid where it is exact
};
Spread spread_of(const Known& k, ThreadPool* pool) {
  Spread out{k.value, {}};
  if (k.exact()) return out;
  out.radius = Tensor::empty({DType::kF64, k.value.dims()});
  double* const to = out.radius.as<double>().data();
  oracle::for_each_element(pool, k.value.elements(), [&](int64_t i) {
    const Interval e = at(k, i);
    to[i] = std::fmax(e.value - e.low, e.high - e.value);
    if (to[i] != to[i] || e.value != e.value) to[i] = e.nan() ? 0 : kInfinity;
  });
  return out;
}
Operand plane(const Tensor& t, ThreadPool* pool) {
  return oracle::split(t, DotPrecision::kF32, DotSplit::kNearest, false, pool);
}
// |value| + radius.
Operand sizes(const Operand& value, const Operand& radius) {
  Operand out;
  out.parts.emplace_back(value.parts[0].size());
  for (size_t i = 0; i < out.parts[0].size(); ++i)
    out.parts[0][i] = std::fabs(value.parts[0][i]) + radius.parts[0][i];
  return out;
}
Operand absolute(Operand x) {
  for (double& v : x.parts[0]) v = std::fabs(v);
  return x;
}

// How far a product of two operands may be from that of the numbers themselves, relative to their
// sizes, because operands are rounded. Three passes keep h + l of each, with |l| < 2^-7 and an error
// of 2^-15, where h may be cut, and leave out l l: 2^-14 + 2 2^-15. Six keep h + m + l, with |l| <
// 2^-14 and an error of 2^-22, and leave out m l twice and l l: 2 2^-21 + 2^-28 + 2 2^-22.
double operand_error(const FusedArithmetic& may) {
  if (may.tf32) return 0x1p-9 + 0x1p-20;
  switch (may.dots) {
    case DotPrecision::kBf16:
      return 0x1p-7 + 0x1p-16;
    case DotPrecision::kBf16x3:
      return 0x1p-12;
    case DotPrecision::kBf16x6:
      return 0x1p-19;
    case DotPrecision::kF32:
      break;
  }
  return 0;
}
double passes_of(DotPrecision precision) {
  return precision == DotPrecision::kBf16x3 ? 3 : precision == DotPrecision::kBf16x6 ? 6 : 1;
}

void product(const Site& site, const Op& op, const std::vector<Tensor>& values,
             const std::vector<Tensor>& radii, ThreadPool* pool, const Planes& to,
             const std::function<int64_t(int64_t)>& place) {
  const oracle::Product shape = oracle::product_of(op, values);
  const Operand a = plane(values[0], pool), b = plane(values[1], pool);
  if (site.error != nullptr && site.error->valid()) {
    const oracle::Sums sums = oracle::evaluate(shape, a, b, pool, false);
    const double* const error = site.error->as<const double>().data();
    return oracle::for_each_element(pool, shape.m * shape.n, [&](int64_t i) {
      const double v = sums.head[static_cast<size_t>(i)], r = error[place(i)];
      to.set(place(i), {v, v - r, v + r});
    });
  }
  const oracle::Sums sums = oracle::evaluate(shape, a, b, pool);
  // |a| rb + ra (|b| + rb): what the radii of the operands move.
  Plane moved;
  const auto add_moved = [&](const Operand& x, const Operand& y) {
    oracle::Sums more = oracle::evaluate(shape, x, y, pool, false);
    if (moved.empty()) {
      moved = std::move(more.head);
    } else {
      for (size_t i = 0; i < moved.size(); ++i) moved[i] += more.head[i];
    }
  };
  const bool wide_a = radii[0].valid(), wide_b = radii[1].valid();
  Operand ra, rb;
  if (wide_a) ra = plane(radii[0], pool);
  if (wide_b) rb = plane(radii[1], pool);
  if (wide_a) add_moved(ra, wide_b ? sizes(b, rb) : absolute(b));
  if (wide_b) add_moved(absolute(a), rb);

  const Rules rules = site.rules(), f32(site.may, DType::kF32);
  const double passes = passes_of(site.may.dots), k = static_cast<double>(shape.k);
  // Every product rounds, and passes through up to k - 1 additions in any order.
  const double summed = site.may.tf32 && !site.may.independent
                            ? oracle::gamma(1.25 * (k + 1), 2 * f32.unit())
                            : f32.of_sum(k * passes);
  const double relative = (summed + operand_error(site.may) + (k + 8) * 0x1p-51) * kOutward;
  // Sums and products below the normal range; and parts of rounded operands there.
  double lost = passes * 2 * (k + 1) * f32.lost();
  bool may_overflow = false;
  if (site.may.dots != DotPrecision::kF32) {
    lost += 4 * k * passes * kMinNormal * (a.largest + b.largest);
    for (const double largest : {a.largest, b.largest, ra.largest, rb.largest})
      may_overflow = may_overflow || largest > 0x1p126;
  }
  oracle::for_each_element(pool, shape.m * shape.n, [&](int64_t i) {
    const auto u = static_cast<size_t>(i);
    const double v = sums.head[u], from_operands = moved.empty() ? 0 : moved[u];
    const double size = sums.magnitude[u] + from_operands;
    Interval e = anything(v);
    if (may_overflow) {
      // a rounded operand may be infinite
    } else if (v != v && moved.empty() && op.kind == OpKind::kDotGeneral) {
      e = exactly(v);  // of a convolution, an engine may leave out what the padding multiplies
    } else if (size == 0) {
      e = exactly(0);
    } else if (oracle::finite(v) && size * (1 + relative) < oracle::kBinary32.overflow / 2) {
      const double r = (from_operands + relative * size) * kOutward + lost;
      e = rules.rounded({v, v - r, v + r});
    }
    to.set(place(i), e);
  });
}

void keep_error(const Site& site, Known& product) {
  if (site.error == nullptr || site.error->valid()) return;
  *site.error = Tensor::empty(product.value.type());
  const Planes p = planes_of(product);
  const auto to = site.error->as<double>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = (p.high[i] - p.low[i]) / 2;
}

}  // namespace

Known eval_product(const Site& site) {
  const Op& op = site.op;
  Known out = fresh(op);
  const Planes to = planes_of(out);
  const Spread a = spread_of(*site.x[0], site.pool), b = spread_of(*site.x[1], site.pool);
  const std::vector<Tensor> values = {a.value, b.value};
  if (!oracle::has_parts(op)) {
    product(site, op, values, {a.radius, b.radius}, site.pool, to, [](int64_t i) { return i; });
    keep_error(site, out);
    return out;
  }
  const std::vector<Tensor> radii = {a.radius.valid() ? a.radius : a.value,
                                     b.radius.valid() ? b.radius : b.value};
  in_pieces(site.pool, oracle::part_count(op, values), [&](int64_t i) {
    const oracle::Part part = oracle::part_of(op, values, i);
    std::vector<Tensor> own = oracle::part_of(op, radii, i).inputs;
    if (!a.radius.valid()) own[0] = {};
    if (!b.radius.valid()) own[1] = {};
    product(site, part.op, part.inputs, own, nullptr, to, oracle::placement_of(op, i));
  });
  keep_error(site, out);
  return out;
}

}  // namespace twinrun::radii

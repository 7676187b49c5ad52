// Elementwise ops over the field. Quotients are computed in batches, because many inverses cost one
// inversion (invert_all).
#include <cmath>

#include "backends/oracle/field_internal.h"
#include "program/base/bits.h"

namespace twinrun::oracle {
namespace {

constexpr size_t kBlock = 1024;  // elements whose inverses are taken together

using Elements = std::span<const Field61>;

// Returns out with out[i] = f(i).
template <typename F>
Tensor each(const Op& op, ThreadPool* pool, F f) {
  Tensor out = Tensor::empty(field_type(op.type.dims));
  const auto to = out.as<Field61>();
  in_ranges(pool, out.elements(), [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) to[i] = f(i);
  });
  return out;
}

// Returns out with out[i] = numerator(i) / denominator(i).
template <typename N, typename D>
Tensor quotients(const Op& op, ThreadPool* pool, N numerator, D denominator) {
  Tensor out = Tensor::empty(field_type(op.type.dims));
  const auto to = out.as<Field61>();
  in_ranges(pool, out.elements(), [&](int64_t first, int64_t last) {
    for (auto begin = static_cast<size_t>(first); begin < static_cast<size_t>(last);
         begin += kBlock) {
      const size_t end = std::min(static_cast<size_t>(last), begin + kBlock);
      bool alike = true;
      for (size_t i = begin; i < end; ++i) {
        to[i] = denominator(i);
        alike = alike && to[i] == to[begin];
      }
      if (alike) {
        std::fill(to.begin() + static_cast<std::ptrdiff_t>(begin),
                  to.begin() + static_cast<std::ptrdiff_t>(end), to[begin].inverse());
      } else {
        invert_all(to.subspan(begin, end - begin));
      }
      for (size_t i = begin; i < end; ++i) to[i] = numerator(i) * to[i];
    }
  });
  return out;
}

Result<Tensor> truncated(const Op& op, Elements x) {
  Tensor out = Tensor::empty({DType::kI32, op.type.dims});
  for (size_t i = 0; i < x.size(); ++i) {
    const auto fraction = x[i].fraction();
    if (!fraction)
      return Error{"the op converts a float that depends on the data to an integer", op.name,
                   "such an integer has no value in a finite field"};
    out.as<int32_t>()[i] = static_cast<int32_t>(fraction->first / fraction->second);
  }
  return out;
}

Result<Tensor> converted(const Op& op, const Tensor& x, ThreadPool* pool) {
  if (op.type.dtype == DType::kI32 && in_field(x)) return truncated(op, x.as<const Field61>());
  if (op.type.dtype == DType::kPred) {  // x != 0
    const Tensor from = field_of(x);
    const Elements e = from.as<const Field61>();
    return each(op, pool, [&](size_t i) { return Field61{e[i].word != 0 ? 1u : 0u}; });
  }
  return field_of(x);
}

Tensor compared(const FieldPoint& point, const Op& op, Elements a, Elements b, ThreadPool* pool) {
  constexpr Field61 one{1};
  switch (op.attrs.compare) {
    case CompareKind::kEq:
      return each(op, pool, [&](size_t i) { return Field61{a[i] == b[i] ? 1u : 0u}; });
    case CompareKind::kNe:
      return each(op, pool, [&](size_t i) { return Field61{a[i] == b[i] ? 0u : 1u}; });
    case CompareKind::kLt:
      return each(op, pool, [&](size_t i) { return point.greater(b[i], a[i]); });
    case CompareKind::kLe:
      return each(op, pool, [&](size_t i) { return one - point.greater(a[i], b[i]); });
    case CompareKind::kGt:
      return each(op, pool, [&](size_t i) { return point.greater(a[i], b[i]); });
    default:
      return each(op, pool, [&](size_t i) { return one - point.greater(b[i], a[i]); });
  }
}

Tensor selected(const Op& op, const Tensor& p, const Tensor& a, const Tensor& b, ThreadPool* pool) {
  const Tensor yes = field_of(a), no = field_of(b);
  const Elements y = yes.as<const Field61>(), n = no.as<const Field61>();
  if (!in_field(p)) {
    const auto mask = p.as<const uint8_t>();
    return each(op, pool, [&](size_t i) { return mask[i] != 0 ? y[i] : n[i]; });
  }
  const Elements share = p.as<const Field61>();
  return each(op, pool, [&](size_t i) { return n[i] + share[i] * (y[i] - n[i]); });
}

// The numbers that integers are the bits of. Bits that are no number are a random element each.
Tensor recast(const FieldPoint& point, const Op& op, const Tensor& x, ThreadPool* pool) {
  const auto bits = x.as<const int32_t>();
  const auto other = point.function(static_cast<uint64_t>(op.kind));
  return each(op, pool, [&](size_t i) {
    const float number = from_bits(static_cast<uint32_t>(bits[i]));
    return std::isfinite(number) ? Field61::constant(number)
                                 : other(static_cast<uint64_t>(static_cast<uint32_t>(bits[i])));
  });
}

}  // namespace

Result<Tensor> field_elementwise(const FieldPoint& point, const Op& op,
                                 std::span<const Tensor> operands, ThreadPool* pool) {
  if (op.kind == OpKind::kConvert) return converted(op, operands[0], pool);
  if (op.kind == OpKind::kSelect) return selected(op, operands[0], operands[1], operands[2], pool);
  if (op.kind == OpKind::kBitcastConvert) return recast(point, op, operands[0], pool);
  const Tensor first = field_of(operands[0]);
  const Tensor second = operands.size() > 1 ? field_of(operands[1]) : Tensor();
  const Elements a = first.as<const Field61>(), b = second.as<const Field61>();
  const auto named = [&](OpKind kind) { return point.function(static_cast<uint64_t>(kind)); };
  const auto one_of = [](size_t) { return Field61{1}; };
  constexpr Field61 one{1};
  switch (op.kind) {
    case OpKind::kAdd:
      return each(op, pool, [&](size_t i) { return a[i] + b[i]; });
    case OpKind::kSubtract:
      return each(op, pool, [&](size_t i) { return a[i] - b[i]; });
    case OpKind::kMultiply:
      return each(op, pool, [&](size_t i) { return a[i] * b[i]; });
    case OpKind::kNegate:
      return each(op, pool, [&](size_t i) { return -a[i]; });
    case OpKind::kDivide:
      return quotients(
          op, pool, [&](size_t i) { return a[i]; }, [&](size_t i) { return b[i]; });
    case OpKind::kMaximum:
      return each(op, pool,
                  [&](size_t i) { return b[i] + point.greater(a[i], b[i]) * (a[i] - b[i]); });
    case OpKind::kMinimum:
      return each(op, pool,
                  [&](size_t i) { return b[i] + point.greater(b[i], a[i]) * (a[i] - b[i]); });
    case OpKind::kAbs:  // the larger of x and -x
      return each(op, pool,
                  [&](size_t i) { return point.greater(a[i], -a[i]) * (a[i] + a[i]) - a[i]; });
    case OpKind::kCompare:
      return compared(point, op, a, b, pool);
    case OpKind::kRsqrt:
      return quotients(op, pool, one_of,
                       [&, root = named(OpKind::kSqrt)](size_t i) { return root(a[i]); });
    case OpKind::kLogistic:
      return quotients(op, pool, one_of, [&, exp = named(OpKind::kExponential)](size_t i) {
        return one + exp(-a[i]);
      });
    case OpKind::kLog1p:
      return each(op, pool, [&, log = named(OpKind::kLog)](size_t i) { return log(one + a[i]); });
    default:  // sqrt, exponential, log, tanh, erf, sine, cosine
      return each(op, pool, [&, f = named(op.kind)](size_t i) { return f(a[i]); });
  }
}

}  // namespace twinrun::oracle

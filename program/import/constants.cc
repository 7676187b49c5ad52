// Evaluates the ops of a graph whose operands are known, with the bits that an engine computes.
// Results that are subnormal, or of types other than f32, i32 and pred, are not known.
#include "program/import/constants.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "program/ops/numbers.h"

namespace twinrun {
namespace {

bool is_known_type(DType t) { return t == DType::kF32 || t == DType::kI32 || t == DType::kPred; }

Dims strides_of(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

// Calls f(flat index, indices) for every element.
template <typename F>
void each(const Dims& dims, F f) {
  Dims at(dims.size(), 0);
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  for (int64_t i = 0; i < n; ++i) {
    f(i, at);
    for (size_t d = dims.size(); d-- > 0;) {
      if (++at[d] < dims[d]) break;
      at[d] = 0;
    }
  }
}

// f32 results are rounded once more from binary64, which changes nothing for + - * /: it has more
// than twice the bits (Figueroa, "When is double rounding innocuous?").
double binary(OpKind kind, DType type, double a, double b) {
  if (type != DType::kF32)
    return whole_number(kind, static_cast<int64_t>(a), static_cast<int64_t>(b));
  switch (kind) {
    case OpKind::kAdd:
      return static_cast<float>(a + b);
    case OpKind::kSubtract:
      return static_cast<float>(a - b);
    case OpKind::kMultiply:
      return static_cast<float>(a * b);
    case OpKind::kDivide:
      return static_cast<float>(a / b);
    case OpKind::kMaximum:
      return larger(a, b);
    default:
      return -larger(-a, -b);
  }
}

double converted(DType from, DType to, double v) {
  if (to == DType::kF32) return static_cast<float>(v);
  if (to == DType::kPred) return v != 0 ? 1 : 0;
  if (from != DType::kF32) return v;
  if (std::isnan(v)) return 0;
  constexpr double kLeast = std::numeric_limits<int32_t>::min(),
                   kMost = std::numeric_limits<int32_t>::max();
  return std::trunc(std::clamp(v, kLeast, kMost));
}

bool is_move_of_one(OpKind kind) {
  return kind == OpKind::kBroadcastInDim || kind == OpKind::kReshape ||
         kind == OpKind::kTranspose || kind == OpKind::kSlice;
}

}  // namespace

const KnownValue* Constants::found(ValueId id) const {
  const auto at = known_.find(id);
  return at == known_.end() || !at->second ? nullptr : &*at->second;
}

const KnownValue* Constants::of(ValueId id) {
  std::vector<ValueId> open = {id};
  while (!open.empty()) {
    const ValueId next = open.back();
    if (known_.contains(next)) {
      open.pop_back();
      continue;
    }
    const Op& op = graph_.op(next);
    bool ready = true, possible = is_known_type(op.type.dtype);
    for (const ValueId operand : op.operands) {
      if (!possible) break;
      const auto at = known_.find(operand);
      if (at == known_.end()) {
        open.push_back(operand);
        ready = false;
        break;
      }
      possible = at->second.has_value();
    }
    if (possible && !ready) continue;
    known_[next] = possible ? computed(op) : std::nullopt;
    open.pop_back();
  }
  return found(id);
}

std::optional<int64_t> Constants::integer(ValueId id) {
  const TensorType& type = graph_.type(id);
  if (type.dtype == DType::kF32 || type.elements() != 1) return std::nullopt;
  const KnownValue* k = of(id);
  if (k == nullptr) return std::nullopt;
  return static_cast<int64_t>(k->numbers[0]);
}

void Constants::declare(ValueId id, const Tensor& value) {
  const TensorType& type = value.type();
  if (!is_known_type(type.dtype) || value.elements() > kMaxKnownElements) return;
  KnownValue k{type, {}};
  k.numbers.reserve(static_cast<size_t>(value.elements()));
  for (int64_t i = 0; i < value.elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    k.numbers.push_back(type.dtype == DType::kF32   ? value.as<float>()[at]
                        : type.dtype == DType::kI32 ? value.as<int32_t>()[at]
                                                    : value.as<uint8_t>()[at]);
  }
  known_[id] = std::move(k);
}

std::optional<KnownValue> Constants::computed(const Op& op) {
  std::vector<const KnownValue*> x;
  bool splats = true;
  for (const ValueId operand : op.operands) {
    x.push_back(found(operand));
    splats = splats && x.back()->splat();
  }
  KnownValue out{op.type, {}};
  if (op.kind == OpKind::kConstant) {
    out.numbers = {op.attrs.value};
    return out;
  }
  const int64_t n = op.type.elements();
  if (op.kind == OpKind::kParameter || n < 1) return std::nullopt;
  if (is_move_of_one(op.kind) && splats) {
    out.numbers = x[0]->numbers;
    return out;
  }
  const bool one_number = class_of(op.kind) == OpClass::kElementwise ||
                          op.kind == OpKind::kSelect || op.kind == OpKind::kNegate ||
                          op.kind == OpKind::kAbs;
  const int64_t work = one_number && splats ? 1 : n;
  if (work > kMaxKnownElements || (work > 1 && budget_ < work)) return std::nullopt;
  budget_ -= work;
  out.numbers.resize(static_cast<size_t>(work));
  auto& y = out.numbers;
  const auto fill = [&](auto f) {
    for (int64_t i = 0; i < work; ++i) y[static_cast<size_t>(i)] = f(i);
  };
  const Dims& dims = op.type.dims;
  const Dims from = x.empty() ? Dims{} : x[0]->type.dims;
  const Dims strides = strides_of(from), &d = op.attrs.dims;
  const auto place = [&](auto offset) {  // y[index] = x[0][offset(indices)]
    each(dims,
         [&](int64_t i, const Dims& at) { y[static_cast<size_t>(i)] = x[0]->at(offset(at)); });
  };
  const auto axis = static_cast<size_t>(d.empty() ? 0 : d[0]);
  switch (op.kind) {
    case OpKind::kIota:
      each(dims, [&](int64_t i, const Dims& at) {
        y[static_cast<size_t>(i)] = static_cast<double>(at[axis]);
      });
      break;
    case OpKind::kReshape:
      y = x[0]->numbers;
      break;
    case OpKind::kBroadcastInDim:
      place([&](const Dims& at) {
        int64_t sum = 0;
        for (size_t k = 0; k < from.size(); ++k)
          sum += from[k] == 1 ? 0 : at[static_cast<size_t>(d[k])] * strides[k];
        return sum;
      });
      break;
    case OpKind::kTranspose:
      place([&](const Dims& at) {
        int64_t sum = 0;
        for (size_t k = 0; k < at.size(); ++k) sum += at[k] * strides[static_cast<size_t>(d[k])];
        return sum;
      });
      break;
    case OpKind::kSlice:
      place([&](const Dims& at) {
        int64_t sum = d[1] * strides[axis];
        for (size_t k = 0; k < at.size(); ++k) sum += at[k] * strides[k];
        return sum;
      });
      break;
    case OpKind::kPad:
      each(dims, [&](int64_t i, const Dims& at) {
        const int64_t inner = at[axis] - d[1];
        int64_t sum = (inner - at[axis]) * strides[axis];
        for (size_t k = 0; k < at.size(); ++k) sum += at[k] * strides[k];
        y[static_cast<size_t>(i)] = inner < 0 || inner >= from[axis] ? 0 : x[0]->at(sum);
      });
      break;
    case OpKind::kConcatenate: {
      const Dims second = strides_of(x[1]->type.dims);
      each(dims, [&](int64_t i, const Dims& at) {
        const bool first = at[axis] < from[axis];
        int64_t sum = 0;
        for (size_t k = 0; k < at.size(); ++k) {
          const int64_t index = at[k] - (k == axis && !first ? from[axis] : 0);
          sum += index * (first ? strides[k] : second[k]);
        }
        y[static_cast<size_t>(i)] = x[first ? 0 : 1]->at(sum);
      });
      break;
    }
    case OpKind::kGather: {
      const int64_t row = from[0] > 0 ? x[0]->type.elements() / from[0] : 0;
      fill([&](int64_t i) {
        const auto id = static_cast<int64_t>(x[1]->at(i / row));
        return x[0]->at(std::clamp<int64_t>(id, 0, from[0] - 1) * row + i % row);
      });
      break;
    }
    case OpKind::kSelect:
      fill([&](int64_t i) { return x[0]->at(i) != 0 ? x[1]->at(i) : x[2]->at(i); });
      break;
    case OpKind::kNegate:
      fill([&](int64_t i) {
        const double v = -x[0]->at(i);
        return op.type.dtype == DType::kI32 ? as_i32(static_cast<int64_t>(v)) : v;
      });
      break;
    case OpKind::kAbs:
      fill([&](int64_t i) { return std::fabs(x[0]->at(i)); });
      break;
    case OpKind::kConvert:
      fill([&](int64_t i) { return converted(x[0]->type.dtype, op.type.dtype, x[0]->at(i)); });
      break;
    case OpKind::kCompare:
      fill([&](int64_t i) { return holds(op.attrs.compare, x[0]->at(i), x[1]->at(i)) ? 1 : 0; });
      break;
    case OpKind::kBitcastConvert:
      fill([&](int64_t i) {
        const auto to_i32 = [](double v) {
          return as_i32(std::bit_cast<int32_t>(static_cast<float>(v)));
        };
        return op.type.dtype == DType::kI32
                   ? to_i32(x[0]->at(i))
                   : std::bit_cast<float>(static_cast<int32_t>(x[0]->at(i)));
      });
      break;
    case OpKind::kDivide:
    case OpKind::kRemainder:
    case OpKind::kAnd:
    case OpKind::kOr:
    case OpKind::kXor:
    case OpKind::kShiftLeft:
    case OpKind::kShiftRightLogical:
    case OpKind::kShiftRightArithmetic:
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kMultiply:
    case OpKind::kMaximum:
    case OpKind::kMinimum:
      fill([&](int64_t i) { return binary(op.kind, op.type.dtype, x[0]->at(i), x[1]->at(i)); });
      break;
    default:
      return std::nullopt;
  }
  if (op.type.dtype == DType::kF32) {
    constexpr double kLeastNormal = std::numeric_limits<float>::min();
    const auto subnormal = [](double v) { return v != 0 && std::fabs(v) < kLeastNormal; };
    if (std::ranges::any_of(y, subnormal)) return std::nullopt;
  }
  return out;
}

}  // namespace twinrun

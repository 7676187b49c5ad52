// reduce: sums and extremes of floats by our reduce op; predicates by a maximum; integers and
// products by adding rows or by combining pairs, which is exact except for products of floats. Also
// the arg-max that JAX writes as a reduction of two operands.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "program/import/reductions.h"

namespace twinrun {
namespace {

// x with its reduced dimensions moved to the front and merged into one.
ValueId reduced_first(Site& s, ValueId x, const Dims& dims) {
  const Dims sizes = s.b.type(x).dims;
  Dims order = dims, flat = {1};
  std::ranges::sort(order);
  for (int64_t d : order) flat[0] *= sizes[static_cast<size_t>(d)];
  for (int64_t d : other_dims(static_cast<int64_t>(sizes.size()), dims)) {
    order.push_back(d);
    flat.push_back(sizes[static_cast<size_t>(d)]);
  }
  return s.reshape(s.transpose(x, order, "reduced_first"), flat, "rows");
}

// The sum of s32 by a scatter_add of all rows to one. Integer sums wrap, so their order does not
// matter.
ValueId integer_sum(Site& s, ValueId x, const Dims& dims) {
  const ValueId rows = reduced_first(s, x, dims);
  Dims one = s.b.type(rows).dims;
  const ValueId first = s.splat(0, {DType::kI32, {one[0]}}, "first");
  one[0] = 1;
  const ValueId sum = s.b.scatter_add(first, rows, one, s.name());
  return s.reshape(sum, Dims(one.begin() + 1, one.end()), "sum");
}

ValueId folded(Site& s, OpKind kind, ValueId x, const Dims& dims) {
  return s.fold(kind, reduced_first(s, x, dims));
}

// An extreme of u32: of numbers whose top bit is flipped, and flipped back.
ValueId unsigned_extreme(Site& s, OpKind kind, const Dims& dims) {
  const ValueId most = folded(s, kind, ordered(s, 0), dims);
  const ValueId top = s.scalar_like(most, static_cast<double>(INT32_MIN), "top_bit");
  return s.b.binary(OpKind::kXor, most, top, s.name());
}

ValueId maximum(Site& s, ValueId x, const Dims& dims, const std::string& name) {
  if (is_floating(s.b.type(x).dtype)) return s.b.reduce(x, dims, Reducer::kMax, name);
  return s.fold(OpKind::kMaximum, reduced_first(s, x, dims));
}

ValueId minimum(Site& s, ValueId x, const Dims& dims, const std::string& name) {
  if (!is_floating(s.b.type(x).dtype)) return s.fold(OpKind::kMinimum, reduced_first(s, x, dims));
  const ValueId flipped = s.b.unary(OpKind::kNegate, x, s.name("negated"));
  const ValueId most = s.b.reduce(flipped, dims, Reducer::kMax, s.name("maximum"));
  return s.b.unary(OpKind::kNegate, most, name);
}

ValueId any(Site& s, ValueId p, const Dims& dims, const std::string& name) {
  const ValueId numbers = s.convert(p, DType::kF32, "as_f32");
  const ValueId most = s.b.reduce(numbers, dims, Reducer::kMax, s.name("any"));
  const ValueId zero = s.scalar_like(most, 0, "zero");
  return s.b.compare(CompareKind::kGt, most, zero, name);
}

ValueId joined(Site& s, const std::string& region, ValueId a, ValueId init) {
  const TensorType like = s.b.type(a);
  const ValueId i = s.spread(init, like);
  if (like.dtype == DType::kPred)
    return region == "or" || region == "maximum" || region == "add" ? s.logical_or(a, i)
                                                                    : s.logical_and(a, i);
  const OpKind kind = kind_of_region(region, like.dtype).value();
  if (is_unsigned(s.hlo_type(0)) && (kind == OpKind::kMaximum || kind == OpKind::kMinimum))
    s.refuse("a largest or smallest unsigned number that starts from another one");
  return s.b.binary(kind, a, i, s.name("with_init"));
}

Dims axes_of(const Site& s, const TensorType& t) {
  Dims dims = list_attribute(s.in, "dimensions");
  std::ranges::sort(dims);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0 || dims[i] >= t.rank() || (i > 0 && dims[i] == dims[i - 1]))
      s.refuse(fmt::format("dimensions={} of {}", to_string(dims), to_string(t)));
  }
  return dims;
}

// Nothing is known about a product of many numbers.
Range any_product(const Site& s) {
  return bits_of_integer(s.in.shape.dtype) == 64 ? Range{INT64_MIN, INT64_MAX} : Range{};
}

ValueId reduced(Site& s, const std::string& region, const Dims& dims) {
  const TensorType t = s.type(0);
  Dims kept;
  for (int64_t d : other_dims(t.rank(), dims)) kept.push_back(t.dims[static_cast<size_t>(d)]);
  const bool trivial =
      std::ranges::all_of(dims, [&](int64_t d) { return t.dims[static_cast<size_t>(d)] == 1; });
  if (trivial) return s.reshape(s.x[0], kept, "");
  if (t.dtype == DType::kPred) {
    if (region == "or" || region == "maximum" || region == "add")
      return any(s, s.x[0], dims, s.name());
    if (region == "and" || region == "minimum" || region == "multiply") {
      const ValueId some = any(s, s.logical_not(s.x[0]), dims, s.name());
      return s.logical_not(some);
    }
  } else if ((region == "maximum" || region == "minimum") && has_top_bit(s, 0)) {
    const bool most = region == "maximum";
    return unsigned_extreme(s, most ? OpKind::kMaximum : OpKind::kMinimum, dims);
  } else if (region == "maximum") {
    return maximum(s, s.x[0], dims, s.name());
  } else if (region == "minimum") {
    return minimum(s, s.x[0], dims, s.name());
  } else if (region == "multiply") {
    const ValueId y = folded(s, OpKind::kMultiply, s.x[0], dims);
    return t.dtype == DType::kI32 ? as_declared(s, y, any_product(s)) : y;
  } else if (region == "and" || region == "or" || region == "xor") {
    if (const auto kind = kind_of_region(region, t.dtype)) return folded(s, *kind, s.x[0], dims);
  } else if (region == "add") {
    if (t.dtype == DType::kI32) {
      const Range r = range_of(s, s.x[0], s.hlo_type(0));
      const int64_t n = t.elements() / product(kept);
      const ValueId sum = integer_sum(s, s.x[0], dims);
      return as_declared(s, sum, {std::min(r.low, r.low * n), std::max(r.high, r.high * n)});
    }
    return s.b.reduce(s.x[0], dims, Reducer::kSum, s.name());
  }
  s.refuse(
      fmt::format("reduce of {} by '{}'; allowed: add, multiply, maximum, minimum, and, or, xor",
                  to_string(t), region.empty() ? text_attribute(s.in, "to_apply") : region));
}

ValueId reduce(Site& s) {
  s.expect(2);
  const std::string region = s.region();
  const TensorType t = s.type(0);
  if (!s.type(1).dims.empty() || s.type(1).dtype != t.dtype)
    s.refuse("an initial value of another type");
  const Dims dims = axes_of(s, t);
  const ValueId y = reduced(s, region, dims);
  return starts_neutral(s, s.x[1], region, t.dtype, s.hlo_type(0)) ? y
                                                                   : joined(s, region, y, s.x[1]);
}

// (values, indices) -> (extreme, its index; of several the smallest): JAX's argmax and argmin. The
// `direction` of the comparison of values in the region tells which of the two it is.
std::vector<ValueId> arg_extreme(Site& s) {
  const HloComputation* c = s.module.find(text_attribute(s.in, "to_apply"));
  s.expect(4);
  const TensorType t = s.type(0);
  bool most = false, least = false, ties = false;
  for (const HloInstruction& in : c == nullptr ? std::vector<HloInstruction>{} : c->instructions) {
    const std::string direction = in.opcode == "compare" ? text_attribute(in, "direction") : "";
    // Parameters 0 and 2 are values, 1 and 3 their indices.
    const bool of_values = in.operands.size() == 2 && (in.operands[0] == c->parameters.front() ||
                                                       in.operands[1] == c->parameters.front());
    if (of_values) most = most || direction == "GT", least = least || direction == "LT";
    ties = ties || (!of_values && direction == "LT");
  }
  if (t.dtype == DType::kPred || has_top_bit(s, 0) ||
      s.type(1) != TensorType{DType::kI32, t.dims} || most == least || !ties ||
      c->parameters.size() != 4)
    s.refuse(
        "reduce of several operands; allowed: the arg-max and arg-min of floats and signed "
        "integers as JAX writes them");
  const Dims dims = axes_of(s, t);
  const std::string name = s.name("extreme");
  const ValueId extreme = most ? maximum(s, s.x[0], dims, name) : minimum(s, s.x[0], dims, name);
  const Dims kept = other_dims(t.rank(), dims);
  const ValueId spread = s.b.broadcast(extreme, t.dims, kept, s.name("spread"));
  const ValueId here = s.b.compare(CompareKind::kEq, s.x[0], spread, s.name("here"));
  const ValueId nowhere = s.scalar_like(s.x[1], std::numeric_limits<int32_t>::max(), "nowhere");
  const ValueId places = s.b.select(here, s.x[1], nowhere, s.name("places"));
  if (is_floating(t.dtype))
    s.note("the arg-max of rows with NaN is not XLA's: it is the largest index");
  return {extreme, minimum(s, places, dims, s.name())};
}

}  // namespace

double neutral_of(const std::string& region, DType dtype, std::string_view hlo) {
  const bool integer = dtype == DType::kI32, no_sign = is_unsigned(hlo);
  const double infinity = std::numeric_limits<double>::infinity();
  if (region == "add" || region == "or" || region == "xor") return 0;
  if (region == "multiply") return 1;
  if (region == "and") return integer ? -1 : 1;
  if (region != "maximum" && region != "minimum") return std::nan("");
  const bool most = region == "maximum";
  if (dtype == DType::kPred) return most ? 0 : 1;
  if (!integer) return most ? -infinity : infinity;
  const double last = std::ldexp(1.0, std::min(bits_of_integer(hlo), 32) - (no_sign ? 0 : 1));
  if (most) return no_sign ? 0 : -last;
  return last - 1 < std::ldexp(1.0, 31) ? last - 1 : -1;  // the bits of 2^32 - 1
}

bool starts_neutral(const Site& s, ValueId init, const std::string& region, DType dtype,
                    std::string_view hlo) {
  const auto value = splat_of(s.b.graph(), init);
  return value && *value == neutral_of(region, dtype, hlo);
}

std::optional<OpKind> kind_of_region(const std::string& region, DType dtype) {
  static const std::map<std::string_view, OpKind> kinds = {
      {"add", OpKind::kAdd},         {"multiply", OpKind::kMultiply}, {"maximum", OpKind::kMaximum},
      {"minimum", OpKind::kMinimum}, {"and", OpKind::kAnd},           {"or", OpKind::kOr},
      {"xor", OpKind::kXor}};
  const auto found = kinds.find(region);
  if (found == kinds.end()) return std::nullopt;
  const bool bits = region == "and" || region == "or" || region == "xor";
  if (bits && dtype != DType::kI32) return std::nullopt;
  return found->second;
}

void add_arg_extremes(ManyLoweringTable& table) { table["reduce"] = arg_extreme; }

void add_reductions(LoweringTable& table) { table["reduce"] = reduce; }

}  // namespace twinrun

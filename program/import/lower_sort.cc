// sort and topk: the comparison tells which operand is the key and how it is ordered; the key
// becomes an integer with the same order, sort_order gives the positions, and every operand is
// gathered by them.
#include <fmt/format.h>

#include <numeric>

#include "program/import/integers.h"

namespace twinrun {
namespace {

// One key of a comparison: an operand, in ascending or descending order.
struct Key {
  size_t operand = 0;
  bool descending = false;
  bool total = false;  // -0 before +0, where no op of the comparison makes them equal
  bool one_zero = false;
};

// Reads comparisons as JAX writes them: a < b; of several keys a0 < b0 or (a0 = b0 and a1 < b1); of
// floats in total order, of which zeros and NaN have been made equal by selects.
class Comparison {
 public:
  Comparison(Site& s, const HloComputation& c) : s_(s), c_(c) {}

  std::vector<Key> keys() {
    std::vector<Key> out;
    const HloInstruction* in = &at(c_.root);
    while (in->opcode == "or" && out.size() < kMaxKeys) {
      const HloInstruction *less = &operand(*in, 0), *rest = &operand(*in, 1);
      if (less->opcode != "compare") std::swap(less, rest);
      if (less->opcode != "compare" || rest->opcode != "and") refuse();
      const HloInstruction *same = &operand(*rest, 0), *next = &operand(*rest, 1);
      if (text_attribute(*same, "direction") != "EQ") std::swap(same, next);
      const Key key = key_of(*less);
      if (text_attribute(*same, "direction") != "EQ" ||
          side(operand(*same, 0)) != 2 * key.operand ||
          side(operand(*same, 1)) != 2 * key.operand + 1)
        refuse();
      out.push_back(key);
      in = next;
    }
    out.push_back(key_of(*in));
    return out;
  }

 private:
  static constexpr size_t kMaxKeys = 8;

  [[noreturn]] void refuse() const {
    s_.refuse(
        "sort by another comparison; allowed: less or greater of one operand, of several one after "
        "the other, as jnp.sort, jnp.argsort and jax.lax.sort write them");
  }
  const HloInstruction& at(int i) const { return c_.instructions[static_cast<size_t>(i)]; }
  const HloInstruction& operand(const HloInstruction& in, size_t i) const {
    if (i >= in.operands.size()) refuse();
    return at(in.operands[i]);
  }
  static bool is_compare(const HloInstruction& in, const std::string& direction) {
    return in.opcode == "compare" && text_attribute(in, "direction") == direction;
  }

  Key key_of(const HloInstruction& in) {
    const std::string direction = text_attribute(in, "direction");
    if (in.opcode != "compare" || (direction != "LT" && direction != "GT")) refuse();
    zero_ = false;
    const size_t a = side(operand(in, 0)), b = side(operand(in, 1));
    if (a / 2 != b / 2 || a == b || a / 2 >= s_.x.size()) refuse();
    Key key{a / 2, (direction == "GT") == (a < b), false, zero_};
    key.total = text_attribute(in, "type") == "TOTALORDER";
    return key;
  }

  // The parameter that a side of the comparison is, behind selects of one zero and one NaN.
  size_t side(const HloInstruction& in) {
    const HloInstruction* v = &in;
    while (v->opcode == "select") {
      const HloInstruction &p = operand(*v, 0), &made = operand(*v, 1), &kept = operand(*v, 2);
      const bool zero = is_compare(p, "EQ") && operand(p, 1).opcode == "constant",
                 nan = is_compare(p, "NE") && p.operands.size() == 2 &&
                       p.operands[0] == p.operands[1];
      if ((!zero && !nan) || made.opcode != "constant") refuse();
      zero_ = zero_ || zero;
      v = &kept;
    }
    if (v->opcode != "parameter") refuse();
    return static_cast<size_t>(std::stoull(v->literal));
  }

  Site& s_;
  const HloComputation& c_;
  bool zero_ = false;
};

// i32 that are ordered as the numbers are.
ValueId ordered_bits(Site& s, const Key& key) {
  ValueId x = s.x[key.operand];
  const DType dtype = s.b.type(x).dtype;
  if (is_floating(dtype)) {
    if (key.one_zero || !key.total) {
      const ValueId zero = s.scalar_like(x, 0, "zero");
      const ValueId is_zero = s.b.compare(CompareKind::kEq, x, zero, s.name("is_zero"));
      x = s.b.select(is_zero, zero, x, s.name("one_zero"));
    }
    x = in_total_order(s, x);
  } else if (dtype == DType::kPred) {
    x = s.b.convert(s.b.convert(x, DType::kF32, s.name("as_f32")), DType::kI32, s.name("number"));
  } else {
    x = ordered(s, key.operand);
  }
  if (!key.descending) return x;
  const ValueId ones = s.scalar_like(x, -1, "ones");
  return s.b.binary(OpKind::kXor, x, ones, s.name("descending"));
}

// A permutation that brings `axis` to the end, and the one back.
std::pair<Dims, Dims> to_last(int64_t rank, int64_t axis) {
  Dims there(static_cast<size_t>(rank)), back(there.size());
  std::iota(there.begin(), there.end(), 0);
  there.erase(there.begin() + axis);
  there.push_back(axis);
  for (size_t i = 0; i < there.size(); ++i)
    back[static_cast<size_t>(there[i])] = static_cast<int64_t>(i);
  return {there, back};
}

// Elements of rows [.., n] at positions [.., k] of their row.
ValueId taken(Site& s, ValueId x, ValueId positions) {
  const Dims dims = s.b.type(x).dims, to = s.b.type(positions).dims;
  const int64_t n = dims.back(), rows = product(dims) / n, k = to.back();
  ValueId places = s.reshape(positions, {rows, k}, "positions");
  if (rows > 1) {
    const ValueId row = s.b.iota({rows, k}, 0, DType::kI32, s.name("row"));
    const ValueId first =
        s.b.mul(row, s.scalar_like(row, static_cast<double>(n), "row_size"), s.name("row_begin"));
    places = s.b.add(places, first, s.name("places"));
  }
  const ValueId flat = s.reshape(x, {rows * n}, "elements");
  return s.reshape(s.b.gather(flat, places, s.name()), to, "sorted");
}

std::vector<ValueId> sort(Site& s) {
  const HloComputation* c = s.module.find(text_attribute(s.in, "to_apply"));
  const Dims axes = list_attribute(s.in, "dimensions");
  if (c == nullptr || s.x.empty() || axes.size() != 1 || axes[0] < 0 ||
      axes[0] >= s.type(0).rank() || c->parameters.size() != 2 * s.x.size())
    s.refuse("sort; allowed: along one dimension, by a comparison of two elements");
  for (size_t i = 1; i < s.x.size(); ++i) {
    if (s.type(i).dims != s.type(0).dims) s.refuse("sort of operands of two shapes");
  }
  const auto [there, back] = to_last(s.type(0).rank(), axes[0]);
  std::vector<Key> keys = Comparison(s, *c).keys();
  // Sorting is stable: the last key first, then those that weigh more.
  ValueId order = kNoValue;
  for (; !keys.empty(); keys.pop_back()) {
    const ValueId bits = s.transpose(ordered_bits(s, keys.back()), there);
    if (order == kNoValue) {
      order = s.b.sort_order(bits, s.name("order"));
    } else {
      const ValueId again = s.b.sort_order(taken(s, bits, order), s.name("order"));
      order = taken(s, order, again);
    }
  }
  std::vector<ValueId> out;
  for (const ValueId x : s.x)
    out.push_back(s.transpose(taken(s, s.transpose(x, there), order), back));
  return out;
}

// The k largest (or smallest) elements of every row in order, and their positions. Equal ones are in
// order of their positions.
std::vector<ValueId> top_k(Site& s) {
  s.expect(1);
  const int64_t k = number_attribute(s.in, "k");
  const TensorType t = s.type(0);
  if (t.dims.empty() || k < 1 || k > t.dims.back()) s.refuse(fmt::format("topk with k={}", k));
  const Key key{0, text_attribute(s.in, "largest", "true") == "true", true, false};
  const ValueId order = s.b.sort_order(ordered_bits(s, key), s.name("order"));
  const ValueId first = s.cut(order, t.rank() - 1, 0, k);
  return {taken(s, s.x[0], first), first};
}

}  // namespace

void add_sorts(ManyLoweringTable& table) {
  table["sort"] = sort;
  table["topk"] = top_k;
}

}  // namespace twinrun

// Calls on integers that binary64 does not hold, and arithmetic that may wrap around. Arithmetic is
// done in 64 bits. A move or a comparison does the same with other numbers in the same order: there,
// small numbers stand for large ones while the usual definition is asked.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

constexpr int64_t kHeld = int64_t{1} << 53;
bool is_large(int64_t v) { return v > kHeld || v < -kHeld; }

struct Whole {
  Dims dims;
  Checked<int64_t> values;
};
int64_t whole_at(const std::byte* p, Element e) {
  if (e != Element::kI64) return static_cast<int64_t>(element_at(p, e));
  int64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
std::optional<Whole> whole_of(const Value& v) {
  if (v.kind == Value::Kind::kInteger || v.kind == Value::Kind::kBool)
    return Whole{{}, {v.integer}};
  if (v.kind != Value::Kind::kTensor || !is_integer(v.tensor.element) || v.tensor.data == nullptr)
    return std::nullopt;
  const TensorView& t = v.tensor;
  Whole out{t.dims, Checked<int64_t>(static_cast<size_t>(allowed_count(t.dims)))};
  for (size_t i = 0; i < out.values.size(); ++i) {
    int64_t flat = static_cast<int64_t>(i), offset = 0;
    for (size_t d = t.dims.size(); d-- > 0; flat /= t.dims[d])
      offset += flat % t.dims[d] * t.strides[d];
    out.values[i] = whole_at(t.data + offset * size_of(t.element), t.element);
  }
  return out;
}
bool has_large(const Value& v) {
  if (v.kind == Value::Kind::kInteger) return is_large(v.integer);
  if (std::ranges::any_of(v.items, has_large)) return true;
  if (v.kind != Value::Kind::kTensor || v.tensor.element != Element::kI64) return false;
  const std::optional<Whole> w = whole_of(v);
  return w && std::ranges::any_of(w->values, is_large);
}

// What the call returned, or wrote if it returned nothing.
Checked<TensorView> returned(const Call& call) {
  Checked<const TensorView*> found;
  collect(call.result, found);
  Checked<TensorView> out;
  for (const TensorView* t : found) out.push_back(*t);
  return out.empty() ? call.written : out;
}
// The result as the nearest numbers of binary64; what is not the same as what the call gave, to the
// last bit, is told.
void keep(Expected& e, const Whole& expected, const TensorView& given) {
  Array out = empty_array(expected.dims, true);
  for (size_t i = 0; i < expected.values.size(); ++i)
    out.value[i] = static_cast<double>(expected.values[i]);
  Value v;
  v.kind = Value::Kind::kTensor, v.tensor = given;
  const std::optional<Whole> found = whole_of(v);
  if (found && found->dims == expected.dims && e.problem.empty()) {
    const auto [a, b] = std::ranges::mismatch(expected.values, found->values);
    if (a != expected.values.end() && static_cast<double>(*a) == static_cast<double>(*b)) {
      e.problem = fmt::format("element {} is {}, expected {}", a - expected.values.begin(), *b, *a);
    }
  }
  e.results.emplace_back(std::move(out));
}

// ---- Arithmetic, modulo 2 to the number of bits ------------------------------------------------

using U = uint64_t;
int64_t floored(int64_t a, int64_t b) {
  if (b == -1) return static_cast<int64_t>(-static_cast<U>(a));
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}
int64_t as(U v, Element e) {
  switch (e) {
    case Element::kBool:
      return v != 0;
    case Element::kU8:
      return static_cast<uint8_t>(v);
    case Element::kI8:
      return static_cast<int8_t>(v);
    case Element::kI16:
      return static_cast<int16_t>(v);
    case Element::kI32:
      return static_cast<int32_t>(v);
    default:
      return static_cast<int64_t>(v);
  }
}
// The third number is alpha.
using Operation = U (*)(U a, U b, U alpha);
struct Row {
  std::string_view name;
  Operation f;
  bool divides = false, unary = false;
};
constexpr Row kArithmetic[] = {
    {"aten.add", [](U a, U b, U alpha) { return a + b * alpha; }},
    {"aten.sub", [](U a, U b, U alpha) { return a - b * alpha; }},
    {"aten.rsub", [](U a, U b, U alpha) { return b - a * alpha; }},
    {"aten.mul", [](U a, U b, U) { return a * b; }},
    {"aten.neg", [](U a, U, U) { return -a; }, false, true},
    {"aten.bitwise_not", [](U a, U, U) { return ~a; }, false, true},
    {"aten.bitwise_and", [](U a, U b, U) { return a & b; }},
    {"aten.bitwise_or", [](U a, U b, U) { return a | b; }},
    {"aten.bitwise_xor", [](U a, U b, U) { return a ^ b; }},
    {"aten.floor_divide",
     [](U a, U b, U) { return U(floored(static_cast<int64_t>(a), static_cast<int64_t>(b))); },
     true},
    {"aten.remainder",
     [](U a, U b, U) {
       return a - b * U(floored(static_cast<int64_t>(a), static_cast<int64_t>(b)));
     },
     true},
};

std::optional<Expected> arithmetic(const Call& call, std::string_view name) {
  const Row* row = std::ranges::find(kArithmetic, name, &Row::name);
  if (row == std::end(kArithmetic) || call.args.empty()) return std::nullopt;
  const Checked<TensorView> given = returned(call);
  if (given.size() != 1 || given[0].element > Element::kI64 || given[0].element == Element::kBool)
    return std::nullopt;
  std::optional<Whole> a = whole_of(call.args[0]), b = Whole{{}, {0}}, alpha = Whole{{}, {1}};
  if (!row->unary) b = call.args.size() > 1 ? whole_of(call.args[1]) : std::nullopt;
  if (call.args.size() > 2) alpha = whole_of(call.args[2]);
  for (const auto& [key, v] : call.kwargs) {
    if (key == "alpha") alpha = whole_of(v);
    if (key == "other") b = whole_of(v);
  }
  if (!a || !b || !alpha || alpha->values.size() != 1) return std::nullopt;
  if (row->divides && std::ranges::count(b->values, 0) > 0) return std::nullopt;
  Whole out{broadcast_dims(a->dims, b->dims), {}};
  // Places by way of arrays of indices.
  const auto places = [&](const Whole& w) {
    Array index = empty_array(w.dims, true);
    for (size_t i = 0; i < index.value.size(); ++i) index.value[i] = static_cast<double>(i);
    return broadcast(index, out.dims);
  };
  const Array x = places(*a), y = places(*b);
  for (size_t i = 0; i < x.value.size(); ++i) {
    out.values.push_back(
        as(row->f(U(a->values[static_cast<size_t>(x.value[i])]),
                  U(b->values[static_cast<size_t>(y.value[i])]), U(alpha->values[0])),
           given[0].element));
  }
  Expected e;
  keep(e, out, given[0]);
  return e;
}

// ---- Moves and comparisons ---------------------------------------------------------------------

// Which arguments are numbers, and not places or sizes (the first is bit 0); and how many of the
// results.
struct Moves {
  std::string_view name;
  unsigned arguments;
  size_t results = SIZE_MAX;
};
constexpr Moves kMoves[] = {
    {"aten.full", 0b10},
    {"aten.full_like", 0b11},
    {"aten.new_full", 0b101},
    {"aten.scalar_tensor", 0b1},
    {"aten.fill", 0b11},
    {"aten.masked_fill", 0b101},
    {"aten.zero", 0b1},
    {"aten.zeros_like", 0b1},
    {"aten.ones_like", 0b1},
    {"aten.where", 0b110},
    {"aten.copy", 0b11},
    {"aten.clone", 0b1},
    {"aten.detach", 0b1},
    {"aten.alias", 0b1},
    {"aten.lift_fresh", 0b1},
    {"aten.contiguous", 0b1},
    {"aten._to_copy", 0b1},
    {"aten.to", 0b1},
    {"aten.view", 0b1},
    {"aten._unsafe_view", 0b1},
    {"aten.reshape", 0b1},
    {"aten._reshape_alias", 0b1},
    {"aten.permute", 0b1},
    {"aten.t", 0b1},
    {"aten.transpose", 0b1},
    {"aten.unsqueeze", 0b1},
    {"aten.squeeze", 0b1},
    {"aten.expand", 0b1},
    {"aten.repeat", 0b1},
    {"aten.slice", 0b1},
    {"aten.select", 0b1},
    {"aten.narrow", 0b1},
    {"aten.unbind", 0b1},
    {"aten.split", 0b1},
    {"aten.split_with_sizes", 0b1},
    {"aten.chunk", 0b1},
    {"aten.flip", 0b1},
    {"aten.roll", 0b1},
    {"aten.cat", 0b1},
    {"aten.stack", 0b1},
    {"aten.tril", 0b1},
    {"aten.triu", 0b1},
    {"aten.constant_pad_nd", 0b101},
    {"aten.index", 0b1},
    {"aten.index_select", 0b1},
    {"aten.index_put", 0b101},
    {"aten.index_copy", 0b1001},
    {"aten.index_fill", 0b1001},
    {"aten.gather", 0b1},
    {"aten.scatter", 0b1001},
    {"aten.masked_select", 0b1},
    {"aten.select_scatter", 0b11},
    {"aten.slice_scatter", 0b11},
    {"aten.maximum", 0b11},
    {"aten.minimum", 0b11},
    {"aten.clamp", 0b111},
    {"aten.clamp_min", 0b11},
    {"aten.clamp_max", 0b11},
    {"aten.amax", 0b1},
    {"aten.amin", 0b1},
    {"aten.max", 0b1, 1},
    {"aten.min", 0b1, 1},
    {"aten.sort", 0b1, 1},
    {"aten.topk", 0b1, 1},
    {"aten.argmax", 0b1, 0},
    {"aten.argmin", 0b1, 0},
    {"aten.argsort", 0b1, 0},
    {"aten.nonzero", 0b1, 0},
    {"aten.eq", 0b11},
    {"aten.ne", 0b11},
    {"aten.lt", 0b11},
    {"aten.le", 0b11},
    {"aten.gt", 0b11},
    {"aten.ge", 0b11},
};

// The numbers in order; each has its place, counted from that of 0, so that signs are kept.
class Places {
 public:
  void add(const Value& v) {
    for (const Value& item : v.items) add(item);
    const std::optional<Whole> w = whole_of(v);
    if (w) numbers_.insert(numbers_.end(), w->values.begin(), w->values.end());
  }
  void settle() {
    std::ranges::sort(numbers_);
    numbers_.erase(std::unique(numbers_.begin(), numbers_.end()), numbers_.end());
    zero_ = place(0);
  }
  Value coded(Value v) {
    for (Value& item : v.items) item = coded(item);
    const std::optional<Whole> w = whole_of(v);
    if (!w) return v;
    if (v.kind != Value::Kind::kTensor) {
      v.integer = place(v.integer) - zero_;
      return v;
    }
    arrays_.push_back(std::make_unique<Array>(empty_array(w->dims, true)));
    for (size_t i = 0; i < w->values.size(); ++i)
      arrays_.back()->value[i] = static_cast<double>(place(w->values[i]) - zero_);
    v.tensor.estimate = arrays_.back().get();
    return v;
  }
  int64_t number(double coded) const {
    const double at = coded + static_cast<double>(zero_);
    if (!(at >= 0 && at < static_cast<double>(numbers_.size())) || at != std::floor(at))
      throw Undefined("integers beyond 2^53");
    return numbers_[static_cast<size_t>(at)];
  }

 private:
  int64_t place(int64_t v) const {
    return std::ranges::lower_bound(numbers_, v) - numbers_.begin();
  }
  Checked<int64_t> numbers_ = {0, 1};
  int64_t zero_ = 0;
  Checked<std::unique_ptr<Array>> arrays_;
};

std::optional<Expected> moved(const Call& call, std::string_view name, Define define,
                              const Arithmetic& m) {
  const Moves* row = std::ranges::find(kMoves, name, &Moves::name);
  if (row == std::end(kMoves)) return std::nullopt;
  const auto is_number = [&](size_t i) { return i < 8 && (row->arguments >> i & 1) != 0; };
  // An argument by its name is one of those numbers where it has one of these.
  const auto is_named = [&](const std::string& key) {
    return key == "value" || key == "fill_value" || key == "min" || key == "max" ||
           key == "other" || key == "src" || key == "values";
  };
  Places places;
  for (size_t i = 0; i < call.args.size(); ++i)
    if (is_number(i)) places.add(call.args[i]);
  for (const auto& [key, v] : call.kwargs)
    if (is_named(key)) places.add(v);
  places.settle();
  Call coded = call;
  for (size_t i = 0; i < call.args.size(); ++i)
    if (is_number(i)) coded.args[i] = places.coded(call.args[i]);
  for (auto& [key, v] : coded.kwargs)
    if (is_named(key)) v = places.coded(v);
  Expected e = define(Arguments(coded, m)), out;
  const Checked<TensorView> given = returned(call);
  for (size_t r = 0; r < e.results.size(); ++r) {
    if (!e.results[r] || r >= row->results || r >= given.size() ||
        given[r].element == Element::kBool) {
      out.results.push_back(std::move(e.results[r]));
      continue;
    }
    if (!is_integer(given[r].element)) throw Undefined("integers beyond 2^53, as other numbers");
    Whole w{e.results[r]->dims, {}};
    for (const double v : e.results[r]->value)
      w.values.push_back(as(U(places.number(v)), given[r].element));
    keep(out, w, given[r]);
  }
  return out;
}

}  // namespace

std::optional<Expected> expected_of_integers(const Call& call, std::string_view name, Define define,
                                             const Arithmetic& m) {
  if (std::optional<Expected> e = arithmetic(call, name)) return e;
  const bool large =
      std::ranges::any_of(call.args, has_large) ||
      std::ranges::any_of(call.kwargs, [](const auto& k) { return has_large(k.second); });
  const auto integers = returned(call);
  const bool to_integers =
      std::ranges::any_of(integers, [](const TensorView& t) { return is_integer(t.element); });
  return large && to_integers ? moved(call, name, define, m) : std::nullopt;
}

}  // namespace twinrun::aten

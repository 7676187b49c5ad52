// Reads the arguments of recorded calls, and finds the definition of a call by its name.
#include "backends/aten/definitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "program/base/bits.h"

namespace twinrun::aten {
namespace {

// The number in a value that is a number, a truth value or a tensor of one element.
double number_of(const Value& value, std::string_view name) {
  switch (value.kind) {
    case Value::Kind::kBool:
    case Value::Kind::kInteger:
      return static_cast<double>(value.integer);
    case Value::Kind::kNumber:
      return value.number;
    case Value::Kind::kTensor:
      if (value.tensor.estimate != nullptr) {
        if (value.tensor.elements() != 1 || !value.tensor.estimate->exact())
          throw Undefined(fmt::format("argument '{}' is known up to a radius only", name));
        return value.tensor.estimate->value[0];
      }
      if (value.tensor.elements() == 1 && value.tensor.data != nullptr) return value.tensor.at(0);
      throw Undefined(fmt::format("argument '{}' has no recorded number", name));
    default:
      throw Undefined(fmt::format("argument '{}' is not a number", name));
  }
}

// A size, a step or a position is 2^31 at most, as the number of a tensor's elements whose values are
// looked at: so the product of two does not overflow. Where three or more are multiplied, count()
// finds what does.
constexpr int64_t kFarthest = int64_t{1} << 31;
void need_small_sizes(const std::vector<const TensorView*>& tensors) {
  for (const TensorView* t : tensors)
    if (std::ranges::any_of(t->dims, [](int64_t n) { return n > kFarthest; }))
      throw Undefined("a tensor of a size beyond 2^31");
}
int64_t position_of(double x, std::string_view name) {
  if (!(std::fabs(x) <= static_cast<double>(kFarthest)))
    throw Undefined(fmt::format("argument '{}' is not a size or a position", name));
  return static_cast<int64_t>(x);
}

std::vector<const TensorView*> tensors_of(const Call& call) {
  std::vector<const TensorView*> tensors;
  for (const Value& v : call.args) collect(v, tensors);
  for (const auto& [name, v] : call.kwargs) collect(v, tensors);
  collect(call.result, tensors);
  for (const TensorView& w : call.written) tensors.push_back(&w);
  return tensors;
}

const std::map<std::string_view, Define>& table() {
  static const std::map<std::string_view, Define> all = [] {
    std::map<std::string_view, Define> made;
    for (const auto family : {pointwise_definitions(),
                              activation_definitions(),
                              movement_definitions(),
                              indexing_definitions(),
                              creation_definitions(),
                              reduction_definitions(),
                              product_definitions(),
                              convolution_definitions(),
                              normalization_definitions(),
                              row_normalization_definitions(),
                              pooling_definitions(),
                              interpolation_definitions(),
                              loss_definitions(),
                              attention_definitions(),
                              embedding_definitions(),
                              recurrent_definitions(),
                              optimizer_definitions(),
                              random_definitions(),
                              ctc_definitions(),
                              sampling_definitions(),
                              distance_definitions(),
                              pooling3d_definitions(),
                              linear_algebra_definitions(),
                              vision_definitions(),
                              prim_definitions(),
                              searching_definitions()}) {
      for (const Definition& d : family) made.emplace(d.name, d.define);
    }
    return made;
  }();
  return all;
}

constexpr std::string_view kEach = "aten._foreach_";

// "aten.add_.Tensor": the operation "aten.add_" and its overload.
std::string_view without_overload(std::string_view op) {
  if (!op.starts_with("aten.")) return op;
  const size_t dot = op.rfind('.');
  return dot <= 4 ? op : op.substr(0, dot);
}

struct Found {
  Define define = nullptr;
  bool each = false;  // of a _foreach_ call: for each element of its lists
};
Found find(std::string_view op) {
  const auto look = [](std::string_view name) -> Define {
    const auto at = table().find(name);
    return at == table().end() ? nullptr : at->second;
  };
  std::string_view plain = without_overload(op);
  if (Define d = look(op)) return {d};
  if (Define d = look(plain)) return {d};
  const bool in_place = plain.ends_with("_") && !plain.ends_with("__");
  if (in_place) {
    plain.remove_suffix(1);
    const std::string whole = std::string(plain) + std::string(op.substr(plain.size() + 1));
    if (Define d = look(whole)) return {d};
    if (Define d = look(plain)) return {d};
  }
  if (plain.starts_with(kEach)) {
    if (Define d = look("aten." + std::string(plain.substr(kEach.size())))) return {d, true};
  }
  return {};
}

// A _foreach_ call's i-th call: list arguments give their i-th element, others are shared.
Value item_of(const Value& value, size_t i, size_t items) {
  if (value.kind == Value::Kind::kList && value.items.size() == items) return value.items[i];
  return value;
}

Expected for_each(Define define, const Call& call, const Arithmetic& arithmetic) {
  const auto list = std::ranges::find(call.args, Value::Kind::kList, &Value::kind);
  if (list == call.args.end()) throw Undefined("a _foreach_ call without a list");
  const size_t items = list->items.size();
  Expected all;
  for (size_t i = 0; i < items; ++i) {
    Call one;
    one.op = call.op;
    for (const Value& v : call.args) one.args.push_back(item_of(v, i, items));
    for (const auto& [name, v] : call.kwargs) one.kwargs.emplace_back(name, item_of(v, i, items));
    if (call.result.kind == Value::Kind::kList && call.result.items.size() == items)
      one.result = call.result.items[i];
    Expected expected = define(Arguments(one, arithmetic));
    if (expected.results.size() != 1) throw Undefined("a _foreach_ call of several results");
    all.results.push_back(std::move(expected.results[0]));
  }
  return all;
}

}  // namespace

const Value* Arguments::find(size_t position, std::string_view name) const {
  const Value* found = nullptr;
  if (!name.empty()) {
    for (const auto& [key, value] : call_.kwargs) {
      if (key == name) found = &value;
    }
  }
  if (found == nullptr && position < call_.args.size()) found = &call_.args[position];
  return found == nullptr || found->kind == Value::Kind::kNone ? nullptr : found;
}

Array array_of(const TensorView& view, ThreadPool* pool) {
  if (view.estimate != nullptr) return *view.estimate;
  if (view.data == nullptr) throw Undefined("the bytes of an argument were left out of the trace");
  if (view.element > Element::kF64)
    throw Undefined(fmt::format("an argument of {}", name_of(view.element)));
  Array out = empty_array(view.dims, true);
  if (out.size() == 0) return out;
  const size_t rank = view.dims.size();
  const int64_t run = rank == 0 ? 1 : view.dims[rank - 1];
  const int64_t step = (rank == 0 ? 0 : view.strides[rank - 1]) * size_of(view.element);
  const int64_t rows = out.size() / run, group = std::max<int64_t>(1, (1 << 15) / run);
  const auto copy = [&](int64_t g) {
    for (int64_t row = g * group; row < std::min(rows, (g + 1) * group); ++row) {
      int64_t rest = row, offset = 0;
      for (size_t d = rank - (rank > 0); d-- > 0;) {
        offset += rest % view.dims[d] * view.strides[d];
        rest /= view.dims[d];
      }
      const std::byte* from = view.data + offset * size_of(view.element);
      double* to = out.value.data() + row * run;
      if (view.element == Element::kF32) {
        for (int64_t i = 0; i < run; ++i) {
          float x;
          std::memcpy(&x, from + i * step, sizeof x);
          to[i] = static_cast<double>(x);
        }
      } else {
        for (int64_t i = 0; i < run; ++i) to[i] = element_at(from + i * step, view.element);
      }
    }
  };
  const int64_t groups = (rows + group - 1) / group;
  if (pool != nullptr && groups > 1) {
    pool->parallel_for(groups, copy);
  } else {
    for (int64_t g = 0; g < groups; ++g) copy(g);
  }
  return out;
}
Array held_array_of(const TensorView& view, ThreadPool* pool) {
  Array out = array_of(view, pool);
  if (view.element == Element::kI64 && view.estimate == nullptr &&
      std::ranges::any_of(out.value, [](double x) { return std::fabs(x) > 0x1p53; })) {
    throw Undefined("integers beyond 2^53");
  }
  return out;
}

Checked<int64_t> integers_of(const TensorView& view) {
  if (!is_integer(view.element)) throw Undefined("indices that are not integers");
  const Array numbers = held_array_of(view, nullptr);
  if (!numbers.exact()) throw Undefined("indices that are known up to a radius only");
  Checked<int64_t> out;
  out.reserve(numbers.value.size());
  for (const double x : numbers.value) out.push_back(as_integer(x));
  return out;
}

double nearest(double x, Element half) {
  if (!finite(x)) return x;
  const Format& f = format_of(half);
  const double unit = 2 * f.half_ulp(x), r = std::nearbyint(x / unit) * unit;
  return std::fabs(r) < f.overflow ? r : std::copysign(kInfinity, x);
}

Estimate stored(Estimate e, Element as) {
  if (!is_float(as) || !(e.radius < kInfinity)) return e;
  if (!finite(e.value)) return {e.value, 0};
  const Format& f = format_of(as);
  const double size = std::fabs(e.value) + e.radius;
  if (size >= f.overflow) {
    if (std::fabs(e.value) - e.radius < f.overflow) return {e.value, kInfinity};
    return {std::copysign(kInfinity, e.value), 0};
  }
  const bool wide = as == Element::kF64;  // the arithmetic's rounding is all there is
  if (e.radius == 0 &&
      (wide || (is_half(as) ? nearest(e.value, as) : static_cast<float>(e.value)) == e.value))
    return e;
  return {e.value, (e.radius + (wide ? 0 : f.half_ulp(size))) * oracle::kOutward};
}
Array stored(const Arithmetic& m, const Array& x, Element as) {
  return map(
      m, [&](Estimate e) { return stored(e, as); }, x);
}

bool fits(double x, Element to) {
  const double high = std::ldexp(1, to == Element::kU8 ? 8 : static_cast<int>(8 * size_of(to)) - 1);
  return std::trunc(x) >= (to == Element::kU8 ? 0 : -high) && std::trunc(x) < high;
}
Array converted(Array x, Element to) {
  if (!is_integer(to)) return x;
  for (double& v : x.value) {
    if (to == Element::kBool) {
      v = v != 0 ? 1 : 0;
      continue;
    }
    v = std::trunc(v);
    if (!fits(v, to)) throw Undefined("a conversion beyond the range of the integers");
  }
  x.radius.clear();
  return x;
}

Array Arguments::array(size_t position, std::string_view name) const {
  const Value* v = find(position, name);
  if (v == nullptr) throw Undefined(fmt::format("argument {} ('{}') is missing", position, name));
  if (v->kind == Value::Kind::kTensor) return held_array_of(v->tensor, m.pool);
  return scalar(number_of(*v, name));
}
Limit limit_of(const Arguments& a, double number, Element of) {
  if (of == Element::kF32 && !a.m.binary64()) return {static_cast<float>(number)};
  if (!is_half(of)) return {number};
  const Estimate e = stored(exactly(number), of);
  return {e.value, e.radius > 0 ? e.radius : -1};
}
Array exact_operand(const Arguments& a) {
  Array y = a.array(1, "other");
  const Value *x = a.find(0, "self"), *other = a.find(1, "other");
  if (x != nullptr && x->kind == Value::Kind::kTensor && other->kind == Value::Kind::kNumber &&
      !is_half(x->tensor.element))
    y.value[0] = limit_of(a, y.value[0], x->tensor.element).at;
  return y;
}
std::optional<Array> Arguments::maybe(size_t position, std::string_view name) const {
  if (!has(position, name)) return std::nullopt;
  return array(position, name);
}
const TensorView& Arguments::view(size_t position, std::string_view name) const {
  const Value* v = find(position, name);
  if (v == nullptr || v->kind != Value::Kind::kTensor)
    throw Undefined(fmt::format("argument {} ('{}') is not a tensor", position, name));
  return v->tensor;
}
Checked<Array> Arguments::arrays(size_t position, std::string_view name) const {
  const Value* v = find(position, name);
  Checked<Array> out;
  if (v == nullptr) return out;
  Checked<const TensorView*> views;
  collect(*v, views);
  for (const TensorView* view : views) out.push_back(held_array_of(*view, m.pool));
  return out;
}
double Arguments::number(size_t position, std::string_view name, double otherwise) const {
  const Value* v = find(position, name);
  return v == nullptr ? otherwise : number_of(*v, name);
}
int64_t Arguments::integer(size_t position, std::string_view name, int64_t otherwise) const {
  const Value* v = find(position, name);
  if (v == nullptr) return otherwise;
  // INT64_MAX as the end of a slice: farther than any position.
  if (v->kind == Value::Kind::kInteger && std::abs(v->integer / 2) >= int64_t{1} << 61)
    return v->integer < 0 ? -kFarthest : kFarthest;
  return position_of(number_of(*v, name), name);
}
bool Arguments::flag(size_t position, std::string_view name, bool otherwise) const {
  return number(position, name, otherwise ? 1 : 0) != 0;
}
std::string Arguments::text(size_t position, std::string_view name, std::string otherwise) const {
  const Value* v = find(position, name);
  return v == nullptr || v->kind != Value::Kind::kText ? otherwise : v->text;
}
Dims Arguments::integers(size_t position, std::string_view name, Dims otherwise) const {
  const Value* v = find(position, name);
  if (v == nullptr) return otherwise;
  if (v->kind != Value::Kind::kList) return {integer(position, name, 0)};
  Dims out;
  for (const Value& item : v->items) out.push_back(position_of(number_of(item, name), name));
  return out;
}
std::pair<int64_t, int64_t> Arguments::pair(size_t position, std::string_view name,
                                            int64_t otherwise) const {
  const Dims both = integers(position, name, {});
  if (both.empty()) return {otherwise, otherwise};
  return {both.front(), both.back()};
}
const TensorView& Arguments::result(size_t i) const {
  Checked<const TensorView*> all;
  collect(call_.result, all);
  if (i >= all.size()) throw Undefined("a result is missing");
  return *all[i];
}
Array Arguments::result_array(size_t i) const { return held_array_of(result(i), m.pool); }
bool Arguments::has_result(size_t i) const {
  const Value& r = call_.result;
  if (r.kind == Value::Kind::kTensor) return i == 0;
  return i < r.items.size() && r.items[i].kind == Value::Kind::kTensor;
}

bool is_defined(std::string_view op) { return find(op).define != nullptr; }

int64_t held_elements(const std::vector<const TensorView*>& tensors) {
  int64_t held = 0;
  for (const TensorView* t : tensors) {
    if ((t->data == nullptr && t->estimate == nullptr) || t->elements() == 0) continue;
    int64_t last = 0;
    for (size_t d = 0; d < t->dims.size(); ++d) last += (t->dims[d] - 1) * t->strides[d];
    held += std::max<int64_t>(0, last + 1);
  }
  return held;
}
int64_t most_elements_for(int64_t held) {
  // Attention has as many scores for each number of its operands as there are keys; a patch of a
  // convolution as many as the kernel has places. 2^22 numbers with their bounds take 64 MiB.
  constexpr int64_t kFewest = int64_t{1} << 22, kOfHeld = 256;
  return std::max(kFewest, kOfHeld * held);
}

Expected expected_of(const Call& call, const Arithmetic& arithmetic) try {
  const std::vector<const TensorView*> tensors = tensors_of(call);
  need_small_sizes(tensors);
  const ArraysOfAtMost limit(most_elements_for(held_elements(tensors)));
  const Found found = find(call.op);
  if (found.define == nullptr) throw Undefined("the operation has no definition here");
  if (found.each) return for_each(found.define, call, arithmetic);
  std::string_view plain = without_overload(call.op);
  if (plain.ends_with("_") && !plain.ends_with("__")) plain.remove_suffix(1);
  if (std::optional<Expected> e = expected_of_integers(call, plain, found.define, arithmetic))
    return std::move(*e);
  return found.define(Arguments(call, arithmetic));
} catch (const std::bad_alloc&) {
  throw Undefined("its sizes take more memory than there is");
} catch (const std::length_error&) {
  throw Undefined("its sizes take more memory than there is");
}

Expected expected_of_uncertain(const Call& call, const Arithmetic& arithmetic) {
  // Definitions whose operations carry radii along.
  static constexpr std::string_view kCarry[] = {
      "aten.add",
      "aten.sub",
      "aten.rsub",
      "aten.mul",
      "aten.div",
      "aten.true_divide",
      "aten.square",
      "aten.exp",
      "aten.log",
      "aten.tanh",
      "aten.erf",
      "aten.sqrt",
      "aten.rsqrt",
      "aten.reciprocal",
      "aten.sigmoid",
      "aten.addcmul",
      "aten.addcdiv",
      "aten.t",
      "aten.transpose",
      "aten.permute",
      "aten.view",
      "aten.reshape",
      "aten._unsafe_view",
      "aten.unsqueeze",
      "aten.squeeze",
      "aten.expand",
      "aten.detach",
      "aten.alias",
      "aten.clone",
      "aten.contiguous",
      "aten.slice",
      "aten.select",
      "aten.cat",
      "aten.stack",
      "aten.split",
      "aten.split_with_sizes",
      "aten.unbind",
      "aten.flip",
      "aten.repeat",
      "aten.select_backward",
      "aten.slice_backward",
      "aten.constant_pad_nd",
      "aten.sum",
      "aten.mean",
      "aten.mm",
      "aten.bmm",
      "aten.mv",
      "aten.dot",
      "aten.addmm",
      "aten.baddbmm",
      "aten.addmv",
      "aten.convolution",
      "aten.convolution_backward",
      "aten._softmax",
      "aten._log_softmax",
      "aten._scaled_dot_product_flash_attention_for_cpu",
      "aten._scaled_dot_product_flash_attention_for_cpu_backward",
      "aten.gather",
      "aten.index",
      "aten._unsafe_index",
      "aten.index_put",
      "aten._unsafe_index_put",
      "aten._unsafe_masked_index",
      "aten._unsafe_masked_index_put_accumulate",
      "aten.index_select",
      "aten.scatter_add",
      "aten.avg_pool2d",
      "aten.max_pool2d_with_indices_backward",
      "aten.embedding_dense_backward"};
  need_small_sizes(tensors_of(call));
  std::string plain(without_overload(call.op));
  const bool each = plain.starts_with(kEach);
  if (each) plain = "aten." + plain.substr(kEach.size());
  for (const Definition& d : uncertain_definitions()) {
    if (d.name != plain && d.name != call.op) continue;
    return each ? for_each(d.define, call, arithmetic) : d.define(Arguments(call, arithmetic));
  }
  if (std::ranges::find(kCarry, plain) == std::end(kCarry))
    throw Undefined(fmt::format("{} has no bound for inputs with a radius", call.op));
  return expected_of(call, arithmetic);
}

}  // namespace twinrun::aten

// Says of each argument of a call which of its values belong to one element of a result.
#include "harness/trace/operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/aten/definitions.h"
#include "harness/tensors/pattern.h"

namespace twinrun {
namespace {

using aten::TensorView;
using aten::Value;

constexpr size_t kMaxOperands = 12;
constexpr int64_t kMaxValues = 6;  // of a row that are written out

int64_t flat_of(const Dims& dims, const Dims& index) {
  int64_t flat = 0;
  for (size_t d = 0; d < dims.size(); ++d) flat = flat * dims[d] + index[d];
  return flat;
}

// The index of a tensor that broadcasts to the element `index` of the sizes `to`; nothing if it
// does not.
bool broadcast_index(const Dims& dims, const Dims& to, const Dims& index, Dims& own) {
  if (dims.size() > to.size()) return false;
  own.assign(index.end() - static_cast<ptrdiff_t>(dims.size()), index.end());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) {
      own[d] = 0;
    } else if (dims[d] != to[to.size() - dims.size() + d]) {
      return false;
    }
  }
  return true;
}

// The first values of a tensor along one dimension through `index`.
std::string along(const TensorView& t, Dims index, size_t dim) {
  for (size_t d = 0; d < t.dims.size(); ++d)
    if (d != dim && index[d] >= t.dims[d]) return "";
  std::string out;
  const int64_t n = t.dims[dim];
  for (int64_t i = 0; i < std::min(n, kMaxValues); ++i) {
    index[dim] = i;
    out += fmt::format("{}{:.6g}", i > 0 ? ", " : "", t.at(flat_of(t.dims, index)));
  }
  return n > kMaxValues ? fmt::format("{}, … ({} values)", out, n) : out;
}

std::string range(const TensorView& t, ThreadPool* pool) try {
  // The definition may not have looked at this argument, however far it is expanded.
  const aten::ArraysOfAtMost limit(aten::most_elements_for(aten::held_elements({&t})));
  const aten::Array all = aten::array_of(t, pool);
  double low = INFINITY, high = -INFINITY;
  int64_t others = 0;
  for (const double v : all.value) {
    if (!std::isfinite(v)) {
      ++others;
      continue;
    }
    low = std::min(low, v);
    high = std::max(high, v);
  }
  std::string out = low <= high ? fmt::format("all from {:.6g} to {:.6g}", low, high) : "";
  if (others > 0) out += fmt::format("{}{} not finite", out.empty() ? "" : ", ", others);
  return out;
} catch (const aten::Undefined&) {
  return "";
}

// The factors of mm, addmm, bmm and baddbmm, which are the last two of their tensors.
bool is_product(const std::string& op) {
  return op.starts_with("aten.") && op.substr(5, op.find('.', 5) - 5).ends_with("mm");
}

std::string text_of(const Value& v) {
  switch (v.kind) {
    case Value::Kind::kBool:
      return v.integer != 0 ? "true" : "false";
    case Value::Kind::kInteger:
      return fmt::format("{}", v.integer);
    case Value::Kind::kNumber:
      return fmt::format("{:.9g}", v.number);
    case Value::Kind::kElement:
      return std::string(aten::name_of(static_cast<aten::Element>(v.integer)));
    case Value::Kind::kList: {
      std::string out;
      for (const Value& item : v.items) out += (out.empty() ? "" : ", ") + text_of(item);
      return "[" + out + "]";
    }
    case Value::Kind::kNone:
      return "None";
    default:
      return v.text;
  }
}

}  // namespace

std::vector<CallOperand> operands_of(const aten::Call& call, const Dims& dims, size_t which,
                                     int64_t flat, ThreadPool* pool) {
  const Dims at = index_of(dims, flat);
  std::vector<const TensorView*> tensors;
  for (const Value& v : call.args) aten::collect(v, tensors);
  const size_t n = tensors.size();
  const bool product = is_product(call.op) && n >= 2 && dims.size() >= 2 &&
                       tensors[n - 1]->dims.size() == dims.size() &&
                       tensors[n - 2]->dims.size() == dims.size();

  const auto values_of = [&](const TensorView& t) -> std::string {
    if (t.data == nullptr) return "not recorded";
    if (t.elements() == 0) return "no elements";
    if (t.elements() == 1) return fmt::format("{:.9g}", t.at(0));
    const size_t last = dims.size() - 1;
    Dims own;
    std::string out;
    if (product && &t == tensors[n - 2]) {
      out = fmt::format("row {}: {}", at[last - 1], along(t, at, last));
    } else if (product && &t == tensors[n - 1]) {
      out = fmt::format("column {}: {}", at[last], along(t, at, last - 1));
    } else if (broadcast_index(t.dims, dims, at, own)) {
      const int64_t mine = flat_of(t.dims, own);
      out = fmt::format("{:.9g} at {}", t.at(mine), index_text(t.dims, mine));
    }
    const std::string all =
        aten::is_float(t.element) || aten::is_integer(t.element) ? range(t, pool) : "";
    return out.empty() || all.empty() ? out + all : out + "; " + all;
  };

  std::vector<CallOperand> out;
  const auto add = [&](std::string name, const Value& v) {
    if (v.kind == Value::Kind::kNone || out.size() >= kMaxOperands) return;
    std::vector<const TensorView*> inside;
    aten::collect(v, inside);
    if (inside.empty()) {
      out.push_back({std::move(name), "", text_of(v)});
      return;
    }
    // A list of tensors has one for each result, or they are joined to one result.
    const size_t mine = which < inside.size() ? which : 0;
    if (v.kind == Value::Kind::kList)
      name += fmt::format(", tensor {} of {}", mine + 1, inside.size());
    out.push_back({std::move(name), inside[mine]->type(), values_of(*inside[mine])});
  };
  for (size_t i = 0; i < call.args.size(); ++i)
    add(fmt::format("argument {}", i + 1), call.args[i]);
  for (const auto& [name, v] : call.kwargs) add(name, v);
  return out;
}

}  // namespace twinrun

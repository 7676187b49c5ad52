// Replays graphs of compiled regions.
#include "backends/aten/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

// Numbers that a region may compute in all for each that was recorded of it, or for 2^14.
constexpr int64_t kComputedForEach = 4096, kFewestRecorded = int64_t{1} << 14;

// Kernels that are called with tensors in memory, and give tensors in memory: their results are
// computed once, so that what the region returns of them is what it went on with.
constexpr std::string_view kStored[] = {
    "aten.mm.default",
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.baddbmm.default",
    "aten.convolution.default",
    "aten.convolution_backward.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"};
// Draws: what they give is known by its range, whatever the seed.
constexpr std::string_view kDraws[] = {"prims.inductor_seed.default",
                                       "prims.inductor_seeds.default",
                                       "prims.inductor_lookup_seed.default",
                                       "prims.inductor_random.default",
                                       "prims.inductor_randint.default",
                                       "aten.rand.default",
                                       "aten.rand_like.default",
                                       "aten.randn.default",
                                       "aten.randn_like.default",
                                       "aten.uniform.default",
                                       "aten.randint.low",
                                       "aten.bernoulli.default",
                                       "aten.bernoulli.p"};
// Other views of the same memory.
constexpr std::string_view kViews[] = {
    "aten.view.default",    "aten.permute.default",      "aten.t.default",    "aten.transpose.int",
    "aten.reshape.default", "aten.unsqueeze.default",    "aten.squeeze.dim",  "aten.squeeze.dims",
    "aten.select.int",      "aten._unsafe_view.default", "aten.slice.Tensor", "aten.alias.default"};

struct Known {
  std::unique_ptr<Array> array;  // nullptr: not known, for the reason
  std::string why;
  TensorView view;
  bool stored = false;  // in memory before others read it
  bool bytes = false;   // an input of the region: the view has its bytes
  bool given = false;   // no definition gives it: there is nothing to compare
  int64_t last = -1;    // the last node that reads it
  const GraphNode* by = nullptr;
};

// Calls `see` with each value of the graph inside of v.
template <typename See>
void each_value(const Value& v, const See& see) {
  if (v.kind == Value::Kind::kGraphValue) see(static_cast<size_t>(v.integer));
  for (const Value& item : v.items) each_value(item, see);
}
template <typename See>
void each_argument(const GraphNode& node, const See& see) {
  for (const Value& v : node.args) each_value(v, see);
  for (const auto& [name, v] : node.kwargs) each_value(v, see);
}

struct Filled {
  std::string missing;  // why an argument is not known
  bool uncertain = false, views = true;
};
Value filled_in(const Value& v, const Checked<Known>& values, Filled& about) {
  Value out = v;
  if (v.kind == Value::Kind::kGraphValue) {
    const Known& k = values[static_cast<size_t>(v.integer)];
    out.kind = Value::Kind::kTensor;
    out.tensor = k.view;
    if (k.bytes) return out;
    if (k.array == nullptr) {
      if (about.missing.empty()) about.missing = k.why;
      return out;
    }
    out.tensor.estimate = k.array.get();
    about.uncertain = about.uncertain || !k.array->exact();
    about.views = about.views && k.stored;
    return out;
  }
  for (Value& item : out.items) item = filled_in(item, values, about);
  return out;
}
void settle(Array& x, Element element, bool rounds) {
  if (!rounds) {
    x.radius.clear();
    return;
  }
  if (is_float(element)) {
    if (x.radius.empty()) x.radius = Plane(x.value.size(), 0.0);
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, stored(x.at(i), element));
  }
  if (std::ranges::all_of(x.radius, [](double r) { return r == 0; })) x.radius.clear();
}

class Replay {
 public:
  Replay(const Graph& graph, const std::vector<const TensorView*>& actual,
         const std::function<Arithmetic(const Call&)>& arithmetic_of, bool rounds)
      : graph_(graph), actual_(actual), arithmetic_of_(arithmetic_of), rounds_(rounds) {}

  Replayed run(const Checked<Value>& inputs) {
    std::vector<const TensorView*> recorded(actual_.begin(), actual_.end());
    std::erase(recorded, nullptr);
    for (const Value& v : inputs)
      if (v.kind == Value::Kind::kTensor) recorded.push_back(&v.tensor);
    const int64_t held = held_elements(recorded);
    const ArraysOfAtMost limit(most_elements_for(held));
    left_to_compute_ = kComputedForEach * std::max(held, kFewestRecorded);
    size_t n = graph_.inputs;
    for (const GraphNode& node : graph_.nodes) n += node.results.size();
    values_.resize(n);
    for (size_t i = 0; i < graph_.inputs && i < inputs.size(); ++i) {
      values_[i].stored = values_[i].bytes = true;
      values_[i].view = inputs[i].tensor;
      if (inputs[i].kind != Value::Kind::kTensor) {
        values_[i].bytes = false;
        values_[i].why = "an input that is not a tensor";
      }
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      each_argument(graph_.nodes[i],
                    [&](size_t value) { values_[value].last = static_cast<int64_t>(i); });
    }
    std::vector<uint32_t> wanted = graph_.outputs;
    for (const auto& [input, value] : graph_.written) wanted.push_back(value);
    for (size_t o = 0; o < wanted.size(); ++o) outputs_of_.emplace(wanted[o], o);
    out_.outputs.resize(wanted.size());
    out_.why.resize(wanted.size());
    out_.nodes.resize(wanted.size(), nullptr);
    uint32_t first = graph_.inputs;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const GraphNode& node = graph_.nodes[i];
      evaluate(node, first);
      // What nobody reads any more is freed.
      const auto free_if_last = [&](size_t value) {
        Known& k = values_[value];
        if (k.last <= static_cast<int64_t>(i) && k.by != nullptr) k.array.reset();
      };
      each_argument(node, free_if_last);
      for (uint32_t k = 0; k < node.results.size(); ++k) {
        give(first + k);
        free_if_last(first + k);
      }
      first += static_cast<uint32_t>(node.results.size());
    }
    return std::move(out_);
  }

 private:
  void evaluate(const GraphNode& node, uint32_t first) {
    Call call;
    call.op = node.op;
    Filled about;
    for (const Value& v : node.args) call.args.push_back(filled_in(v, values_, about));
    for (const auto& [name, v] : node.kwargs)
      call.kwargs.emplace_back(name, filled_in(v, values_, about));
    const bool view = std::ranges::find(kViews, node.op) != std::end(kViews);
    const bool kept =
        std::ranges::find(kStored, node.op) != std::end(kStored) || (view && about.views);
    Checked<Value> results;
    for (uint32_t k = 0; k < node.results.size(); ++k) {
      Known& to = values_[first + k];
      to.by = &node;
      to.stored = kept;
      to.view.element = node.results[k].element;
      to.view.dims = node.results[k].dims;
      to.view.strides = Dims(to.view.dims.size(), 1);
      for (size_t d = to.view.dims.size(); d-- > 1;)
        to.view.strides[d - 1] = to.view.strides[d] * to.view.dims[d];
      Value v;
      if (node.results[k].is_tensor) v.kind = Value::Kind::kTensor;
      v.tensor = to.view;
      results.push_back(std::move(v));
    }
    if (results.size() == 1) {
      call.result = std::move(results[0]);
    } else {
      call.result.kind = Value::Kind::kList;
      call.result.items = std::move(results);
    }
    const auto unknown = [&](const std::string& why) {
      for (uint32_t k = 0; k < node.results.size(); ++k) values_[first + k].why = why;
    };
    const bool draws = std::ranges::find(kDraws, node.op) != std::end(kDraws);
    if (!about.missing.empty() && !draws) return unknown(about.missing);
    if (draws && !rounds_) return unknown("a draw");
    for (const GraphResult& r : node.results) {
      if ((left_to_compute_ -= std::min(count(r.dims), left_to_compute_ + 1)) < 0)
        return unknown(fmt::format("{}: the region computes more than {} numbers for each recorded",
                                   node.op, kComputedForEach));
    }
    try {
      const Arithmetic m = arithmetic_of_(call);
      Expected e = about.uncertain || draws ? expected_of_uncertain(call, m) : expected_of(call, m);
      for (uint32_t k = 0; k < node.results.size(); ++k) {
        Known& to = values_[first + k];
        if (!node.results[k].is_tensor) continue;
        if (k >= e.results.size() || !e.results[k].has_value()) {
          to.why = fmt::format("{}, which is taken as given", node.op);
          to.given = true;
          continue;
        }
        if (e.results[k]->dims != to.view.dims) {
          to.why = fmt::format("{}, which gives [{}] where the graph has {}", node.op,
                               fmt::join(e.results[k]->dims, ", "), to.view.type());
          continue;
        }
        to.array = std::make_unique<Array>(std::move(*e.results[k]));
        settle(*to.array, to.view.element, rounds_);
      }
    } catch (const Undefined& e) {
      unknown(fmt::format("{}: {}", node.op, e.what()));
    } catch (const std::bad_alloc&) {
      unknown(fmt::format("{}: more memory than there is", node.op));
    }
  }

  // Keeps what an output is held against; then goes on with the region's own result where that is
  // what the region itself went on with, or where nothing else is known.
  void give(uint32_t value) {
    Known& k = values_[value];
    const TensorView* seen = nullptr;
    const auto [begin, end] = outputs_of_.equal_range(value);
    for (auto it = begin; it != end; ++it) {
      const size_t o = it->second;
      out_.nodes[o] = k.given ? nullptr : k.by;
      if (k.array != nullptr) {
        out_.outputs[o] = *k.array;
      } else {
        out_.why[o] = k.why;
      }
      if (o < actual_.size() && actual_[o] != nullptr && actual_[o]->data != nullptr &&
          actual_[o]->dims == k.view.dims && actual_[o]->element == k.view.element) {
        seen = actual_[o];
      }
    }
    // Integers and truth values that are not known, or open: a random mask.
    const bool exact = !is_float(k.view.element) && (k.array == nullptr || !k.array->exact());
    if (seen == nullptr || (!exact && !k.stored)) return;
    if (!rounds_ && (k.array != nullptr || is_float(k.view.element))) return;
    try {
      Array found = held_array_of(*seen, nullptr);
      if (is_float(k.view.element)) {
        // The region may have gone on with the number before its rounding to this type.
        Array around = empty_array(found.dims);
        for (int64_t i = 0; i < found.size(); ++i)
          around.set(i, stored({found.value[static_cast<size_t>(i)], 0x1p-1000}, k.view.element));
        found = std::move(around);
      }
      k.array = std::make_unique<Array>(std::move(found));
    } catch (const Undefined&) {  // integers that are too large
    }
  }

  const Graph& graph_;
  const Checked<const TensorView*> actual_;
  const std::function<Arithmetic(const Call&)>& arithmetic_of_;
  Checked<Known> values_;
  bool rounds_;
  std::multimap<uint32_t, size_t> outputs_of_;  // positions of a value in Replayed::outputs
  int64_t left_to_compute_ = 0;
  Replayed out_;
};

}  // namespace

Replayed replay(const Graph& graph, const std::vector<Value>& inputs,
                const std::vector<const TensorView*>& actual,
                const std::function<Arithmetic(const Call&)>& arithmetic_of) {
  return Replay(graph, actual, arithmetic_of, true).run(inputs);
}

std::vector<std::optional<Array>> evaluated(const Graph& graph, const std::vector<Value>& inputs,
                                            const std::vector<const TensorView*>& actual,
                                            const Arithmetic& arithmetic) {
  const auto same = [&](const Call&) { return arithmetic; };
  const std::function<Arithmetic(const Call&)> arithmetic_of = same;
  return Replay(graph, actual, arithmetic_of, false).run(inputs).outputs;
}

std::vector<std::string> made_by(const Graph& graph, const GraphNode& node) {
  std::vector<size_t> maker;  // the node of each value after the inputs
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    maker.insert(maker.end(), graph.nodes[n].results.size(), n);
  const auto last = static_cast<size_t>(&node - graph.nodes.data());
  std::vector<bool> needed(graph.nodes.size(), false);
  needed[last] = true;
  for (size_t n = last + 1; n-- > 0;) {
    if (!needed[n]) continue;
    each_argument(graph.nodes[n], [&](size_t value) {
      if (value >= graph.inputs) needed[maker[value - graph.inputs]] = true;
    });
  }
  std::vector<std::string> out;
  for (size_t n = 0; n <= last; ++n) {
    const std::string& op = graph.nodes[n].op;
    if (needed[n] && op != "prims.convert_element_type.default" &&
        !op.starts_with("aten._to_copy") &&
        std::ranges::find(kViews, op) == std::ranges::end(kViews) &&
        std::ranges::find(out, op) == out.end())
      out.push_back(op);
  }
  return out;
}

}  // namespace twinrun::aten

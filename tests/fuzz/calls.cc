// Traces of one call each, of the table of calls with results by hand; and of regions that make it.
#include "tests/fuzz/calls.h"

#include <cstring>
#include <map>
#include <utility>

#include "backends/aten/call.h"
#include "tests/backends/aten/rows.h"
#include "tests/fuzz/repair.h"

namespace twinrun::fuzz {
namespace {

using aten::Value;

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Records as docs/reference/trace-format.md has them; checksums are added at the end.
class TraceOf {
 public:
  // `compiled`: by a region, which multiplies the call's numbers by 1, so that they have bounds, and
  // makes the call of what that gives.
  TraceOf(const aten::Call& call, bool compiled) {
    out_ = "TWINTRC2" + std::string(56, '\0');
    record(1, 0, R"({"framework": "torch", "version": "2.15.0", "settings": {"a": 1}})");
    called(compiled ? region_of(call) : call);
    record(5, 0, R"({"calls": 1, "steps": 1, "bytes": 0, "exception": null})");
  }
  std::string bytes() const { return with_trace_checksums(out_); }

 private:
  void called(const aten::Call& call) {
    std::string c;
    put(c, string(call.op));
    for (int none = 0; none < 3; ++none) put<uint32_t>(c, 0);
    put<int64_t>(c, -1);
    put<int32_t>(c, 0);
    put<uint32_t>(c, 0);
    arguments(c, call);
    value(c, call.result);
    put<uint32_t>(c, 0);
    record(4, 0, c);
  }
  void arguments(std::string& to, const aten::Call& call) {
    list(to, call.args);
    put(to, static_cast<uint32_t>(call.kwargs.size()));
    for (const auto& [name, v] : call.kwargs) put(to, string(name)), value(to, v);
  }

  aten::Call region_of(aten::Call call) {
    std::vector<Value> inputs;
    for (Value& v : call.args) move_tensors(v, inputs);
    for (auto& [name, v] : call.kwargs) move_tensors(v, inputs);
    const auto n = static_cast<uint32_t>(inputs.size());
    for (Value& v : call.args) count_from(v, n);
    for (auto& [name, v] : call.kwargs) count_from(v, n);
    const std::vector<Value> results =
        call.result.kind == Value::Kind::kList ? call.result.items : std::vector{call.result};
    std::string graph;
    put(graph, n), put(graph, n + 1);
    for (uint32_t k = 0; k < n; ++k) {
      aten::Call same;
      const bool numbers = aten::is_float(inputs[k].tensor.element);
      same.op = numbers ? "aten.mul.Tensor" : "aten.alias.default";
      same.args.push_back(graph_value(k));
      if (numbers) same.args.push_back(Value{.kind = Value::Kind::kNumber, .number = 1});
      node(graph, same, {inputs[k]});
    }
    node(graph, call, results);
    put(graph, static_cast<uint32_t>(results.size()));
    for (uint32_t k = 0; k < results.size(); ++k) put(graph, 2 * n + k);
    put<uint32_t>(graph, 0);
    record(6, 1, graph);
    aten::Call out;
    out.op = "torch.compile.inductor";
    out.args = {list_of(std::move(inputs))};
    out.kwargs = {{"graph", Value{.kind = Value::Kind::kInteger, .integer = 1}}};
    out.result = list_of(results);
    return out;
  }
  static Value list_of(std::vector<Value> items) {
    return {.kind = Value::Kind::kList, .items = std::move(items)};
  }
  static Value graph_value(uint32_t which) {
    return {.kind = Value::Kind::kGraphValue, .integer = which};
  }
  // Puts the graph's values 0, 1, ... in place of tensors.
  static void move_tensors(Value& v, std::vector<Value>& to) {
    if (v.kind == Value::Kind::kTensor)
      to.push_back(std::exchange(v, graph_value(static_cast<uint32_t>(to.size()))));
    for (Value& item : v.items) move_tensors(item, to);
  }
  static void count_from(Value& v, uint32_t first) {
    if (v.kind == Value::Kind::kGraphValue) v.integer += first;
    for (Value& item : v.items) count_from(item, first);
  }
  void node(std::string& to, const aten::Call& call, const std::vector<Value>& results) {
    put(to, string(call.op)), put(to, string("r.py:1"));
    arguments(to, call);
    put(to, static_cast<uint32_t>(results.size()));
    for (const Value& v : results) {
      const bool is_tensor = v.kind == Value::Kind::kTensor;
      to += is_tensor ? static_cast<char>(v.tensor.element) : '\xFF';
      to += static_cast<char>(v.tensor.dims.size());
      for (const int64_t d : v.tensor.dims) put(to, d);
    }
  }
  void record(uint32_t kind, uint64_t id, const std::string& payload) {
    put(out_, kind), put<uint32_t>(out_, 0), put<uint64_t>(out_, payload.size()), put(out_, id);
    out_ += payload + std::string((8 - payload.size() % 8) % 8, '\0');
  }
  uint32_t string(const std::string& text) {
    const auto [at, is_new] = strings_.try_emplace(text, strings_.size() + 1);
    if (is_new) record(2, at->second, text);
    return at->second;
  }
  void list(std::string& to, const std::vector<Value>& items) {
    put(to, static_cast<uint32_t>(items.size()));
    for (const Value& v : items) value(to, v);
  }
  void value(std::string& to, const Value& v) {
    switch (v.kind) {
      case Value::Kind::kBool:
        to += '\1';
        to += static_cast<char>(v.integer);
        return;
      case Value::Kind::kInteger:
        to += '\2';
        return put<int64_t>(to, v.integer);
      case Value::Kind::kNumber:
        to += '\3';
        return put(to, v.number);
      case Value::Kind::kText:
        to += '\4';
        return put(to, string(v.text));
      case Value::Kind::kTensor:
        to += '\5';
        return tensor(to, v.tensor);
      case Value::Kind::kList:
        to += '\6';
        return list(to, v.items);
      case Value::Kind::kElement:
        to += '\7';
        to += static_cast<char>(v.integer);
        return;
      case Value::Kind::kGraphValue:
        to += '\n';  // 10
        return put(to, static_cast<uint32_t>(v.integer));
      default:
        to += '\0';
    }
  }
  void tensor(std::string& to, const aten::TensorView& t) {
    const auto size = static_cast<size_t>(t.elements() * aten::size_of(t.element));
    record(3, ++blocks_, std::string(reinterpret_cast<const char*>(t.data), size));
    put(to, blocks_), put(to, blocks_), put<uint32_t>(to, 0);
    to += static_cast<char>(t.element);
    to += std::string(2, '\0');
    to += static_cast<char>(t.dims.size());
    put<int64_t>(to, 0);
    for (const int64_t n : t.dims) put(to, n);
    for (const int64_t n : t.strides) put(to, n);
  }

  std::string out_;
  std::map<std::string, uint32_t> strings_;
  uint64_t blocks_ = 0;
};

}  // namespace

std::vector<std::string> traces_of_calls() {
  std::vector<std::string> out;
  for (const aten::Line& line :
       aten::rows_of(std::filesystem::path(TWINRUN_SOURCE_DIR) / "tests/backends/aten/calls.txt")) {
    const aten::Row row(line.text);
    for (const bool compiled : {false, true}) out.push_back(TraceOf(row.call, compiled).bytes());
  }
  return out;
}

}  // namespace twinrun::fuzz

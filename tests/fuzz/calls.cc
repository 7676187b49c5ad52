// Traces of one call each, of the table of calls with results by hand.
#include "tests/fuzz/calls.h"

#include <cstring>
#include <map>

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
  explicit TraceOf(const aten::Call& call) {
    out_ = "TWINTRC2" + std::string(56, '\0');
    record(1, 0, R"({"framework": "torch", "version": "2.15.0", "settings": {"a": 1}})");
    std::string c;
    put(c, string(call.op));
    for (int none = 0; none < 3; ++none) put<uint32_t>(c, 0);
    put<int64_t>(c, -1);
    put<int32_t>(c, 0);
    put<uint32_t>(c, 0);
    list(c, call.args);
    put(c, static_cast<uint32_t>(call.kwargs.size()));
    for (const auto& [name, v] : call.kwargs) put(c, string(name)), value(c, v);
    value(c, call.result);
    put<uint32_t>(c, 0);
    record(4, 0, c);
    record(5, 0, R"({"calls": 1, "steps": 1, "bytes": 0, "exception": null})");
  }
  std::string bytes() const { return with_trace_checksums(out_); }

 private:
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
    out.push_back(TraceOf(row.call).bytes());
  }
  return out;
}

}  // namespace twinrun::fuzz

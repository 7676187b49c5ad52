// Traces made by hand, call by call, for tests.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "harness/trace/trace_file.h"

namespace twinrun {

// A trace of calls on float32 vectors, whose bytes it owns.
class Made {
 public:
  TraceFile trace;
  Made() {
    trace.framework = "torch";
    trace.version = "2.1.0";
    trace.steps = 1;
  }
  aten::TensorView tensor(const std::vector<float>& values) {
    aten::TensorView t = view(values);
    t.storage = ++storages_;
    return t;
  }
  aten::TensorView parameter(const std::vector<float>& values) {
    aten::TensorView t = tensor(values);
    t.parameter = true;
    return t;
  }
  // Memory without values, as aten.empty returns it.
  aten::TensorView empty(int64_t n) {
    aten::TensorView t = tensor(std::vector<float>(static_cast<size_t>(n)));
    t.data = nullptr;
    call_of("aten.empty.memory_format", {}).result = value(t);
    return t;
  }
  // The same memory with these values.
  aten::TensorView now(const aten::TensorView& t, const std::vector<float>& values) {
    aten::TensorView n = view(values);
    n.storage = t.storage;
    n.parameter = t.parameter;
    return n;
  }
  aten::TensorView call(const std::string& op, const std::vector<aten::TensorView>& read,
                        const std::vector<float>& result, const std::string& module = "",
                        std::optional<double> number = {}) {
    aten::Call& c = call_of(op, read);
    c.module = module;
    if (number) c.args.push_back(number_value(*number));
    c.result = value(tensor(result));
    return c.result.tensor;
  }
  // A call of the backward pass.
  aten::TensorView backward(const std::string& op, const std::vector<aten::TensorView>& read,
                            const std::vector<float>& result) {
    const aten::TensorView t = call(op, read, result);
    trace.calls.back().node = "MulBackward0";
    return t;
  }
  // An optimizer's weight -= rate * gradient.
  aten::TensorView update(const aten::TensorView& weight, const aten::TensorView& gradient,
                          float rate) {
    std::vector<float> after;
    for (int64_t i = 0; i < weight.elements(); ++i)
      after.push_back(static_cast<float>(weight.at(i)) - rate * static_cast<float>(gradient.at(i)));
    aten::Call& c = call_of("aten.add_.Tensor", {weight, gradient});
    c.kwargs.emplace_back("alpha", number_value(-static_cast<double>(rate)));
    c.optimizer = true;
    c.written = {now(weight, after)};
    c.result = value(c.written[0]);
    return c.written[0];
  }
  aten::Call& call_of(const std::string& op, const std::vector<aten::TensorView>& read) {
    aten::Call c;
    c.index = static_cast<int64_t>(trace.calls.size());
    c.step = static_cast<int32_t>(trace.steps - 1);
    c.op = op;
    for (const aten::TensorView& t : read) c.args.push_back(value(t));
    trace.calls.push_back(c);
    return trace.calls.back();
  }
  static aten::Value value(const aten::TensorView& t) {
    aten::Value v;
    v.kind = aten::Value::Kind::kTensor;
    v.tensor = t;
    return v;
  }

 private:
  aten::TensorView view(const std::vector<float>& values) {
    bytes_.push_back(values);
    aten::TensorView t;
    t.data = reinterpret_cast<const std::byte*>(bytes_.back().data());
    t.element = aten::Element::kF32;
    t.dims = {static_cast<int64_t>(values.size())};
    t.strides = {1};
    return t;
  }
  static aten::Value number_value(double number) {
    aten::Value v;
    v.kind = aten::Value::Kind::kNumber;
    v.number = number;
    return v;
  }
  std::deque<std::vector<float>> bytes_;
  uint64_t storages_ = 0;
};

}  // namespace twinrun

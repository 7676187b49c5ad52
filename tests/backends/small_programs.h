// Small programs built by hand and classes to run them, shared by the tests of engines, gradients,
// optimizers and faults.
//
//   Hand h;
//   ValueId w = h.param("w", {3});
//   Program p = h.forward(h.weighted_sum(h.b.mul(w, w)));
//   Trial run("cpu:f64", training_step(p));
//   run.step();  run.output("w.grad");
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "backends/registry.h"
#include "program/base/philox.h"
#include "program/graph/initial_state.h"
#include "program/graph/layers.h"

namespace twinrun::small {

template <typename T>
Tensor tensor(DType dtype, Dims dims, const std::vector<T>& values) {
  Tensor t = Tensor::empty({dtype, std::move(dims)});
  EXPECT_EQ(t.elements(), static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), t.template as<T>().begin());
  return t;
}
inline Tensor f32(Dims dims, const std::vector<float>& v) {
  return tensor(DType::kF32, std::move(dims), v);
}
inline Tensor f64(Dims dims, const std::vector<double>& v) {
  return tensor(DType::kF64, std::move(dims), v);
}
inline Tensor i32(Dims dims, const std::vector<int32_t>& v) {
  return tensor(DType::kI32, std::move(dims), v);
}

// Numbers uniform in [low, high) with all 53 bits random, so that practically none is a binary32
// number or the midpoint of two.
inline std::vector<double> generic(int64_t n, double low, double high, uint32_t stream) {
  std::vector<double> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) {
    const double a = draw({77, stream}, 0, 0, 2 * i), b = draw({77, stream}, 0, 0, 2 * i + 1);
    v[i] = low + (high - low) * (a * 0x1p-32 + b * 0x1p-64);
  }
  return v;
}
inline Tensor generic_f32(Dims dims, double low, double high, uint32_t stream) {
  Tensor t = Tensor::empty({DType::kF32, std::move(dims)});
  const std::vector<double> v = generic(t.elements(), low, high, stream);
  for (size_t i = 0; i < v.size(); ++i) t.as<float>()[i] = static_cast<float>(v[i]);
  return t;
}

inline std::vector<double> numbers(const Tensor& t) {
  std::vector<double> v;
  if (t.dtype() == DType::kF64) v.assign(t.as<double>().begin(), t.as<double>().end());
  if (t.dtype() == DType::kF32) v.assign(t.as<float>().begin(), t.as<float>().end());
  if (t.dtype() == DType::kI32) v.assign(t.as<int32_t>().begin(), t.as<int32_t>().end());
  if (t.dtype() == DType::kPred) v.assign(t.as<uint8_t>().begin(), t.as<uint8_t>().end());
  return v;
}

// Builds a forward pass. The first input is always learning_rate.
struct Hand {
  Program p;
  GraphBuilder b{p.graph};
  // The range of the random values of a parameter, by name.
  std::map<std::string, std::pair<double, double>> ranges;

  Hand() { input("learning_rate", {DType::kF32, {}}); }
  Hand(const Hand&) = delete;
  Hand& operator=(const Hand&) = delete;

  ValueId input(const std::string& name, TensorType type, bool per_core = false) {
    const ValueId id = b.parameter(name, std::move(type));
    p.inputs.push_back({name, id, per_core});
    return id;
  }
  ValueId param(const std::string& name, Dims dims, double low = 0.5, double high = 1.5) {
    StateVar var{name,    {DType::kF32, std::move(dims)}, StateRole::kParameter, {}, kNoValue,
                 kNoValue};
    var.id = b.parameter(name, var.type);
    p.state.push_back(var);
    ranges[name] = {low, high};
    return var.id;
  }
  // The sum of y times an input of random weights, so that the gradient of every element shows.
  ValueId weighted_sum(ValueId y) {
    const TensorType type = b.type(y);
    const std::string name = "weights" + std::to_string(p.inputs.size());
    const ValueId product = b.mul(y, input(name, type), "weighted");
    if (type.dims.empty()) return product;
    Dims all;
    for (int64_t i = 0; i < type.rank(); ++i) all.push_back(i);
    return b.reduce(product, all, Reducer::kSum, "loss");
  }
  Program forward(ValueId loss, OptimizerSpec optimizer = {}) {
    p.loss = loss;
    p.batch = 1;
    p.optimizer = optimizer;
    p.outputs.push_back({"loss", loss});
    return p;
  }
};

// The program sum = all_reduce(x) over `cores` replicas.
inline Program all_reduce_program(int cores, int64_t length) {
  Hand h;
  const ValueId x = h.input("x", {DType::kF32, {length}});
  h.p.outputs.push_back({"sum", h.b.all_reduce(x)});
  h.p.sharding.cores = cores;
  h.p.batch = 1;
  return h.p;
}

// Records the inputs and results of every op, and the order of the ops:
// seen["name"].outputs[replica].
class Recorder : public TraceSink {
 public:
  struct Seen {
    std::vector<std::vector<Tensor>> inputs;  // [replica][operand]
    std::vector<Tensor> outputs;              // [replica]
  };
  void on_op(const OpEvent& e) override {
    order.push_back(e.op().name);
    seen[e.op().name] = {{e.inputs.begin(), e.inputs.end()}, {e.outputs.begin(), e.outputs.end()}};
  }
  const Tensor& output(const std::string& name, size_t replica = 0) const {
    return seen.at(name).outputs.at(replica);
  }
  std::map<std::string, Seen> seen;
  std::vector<std::string> order;
};

// A program prepared on an engine, with its state and inputs.
class Trial {
 public:
  Trial(const std::string& engine, const Program& program, BackendOptions options = {},
        uint64_t seed = 1) {
    auto backend = make_backend(engine, options);
    EXPECT_TRUE(backend.ok()) << engine;
    begin(**backend, program, seed);
  }
  Trial(Backend& backend, const Program& program, uint64_t seed = 1) {
    begin(backend, program, seed);
  }
  const Program& program() const { return engine_->program(); }

  // Sets a state variable or an input on every replica, or on one.
  void set(const std::string& name, const Tensor& value) {
    for (size_t r = 0; r < states.size(); ++r) set(name, value, r);
  }
  void set(const std::string& name, const Tensor& value, size_t replica) {
    const int s = program().state_index(name);
    if (s >= 0) states[replica].vars[static_cast<size_t>(s)] = value;
    for (size_t i = 0; i < program().inputs.size(); ++i) {
      if (program().inputs[i].name == name) inputs[replica][i] = value;
    }
  }
  // Cuts a batched input into contiguous blocks, one for each replica.
  void split(const std::string& name, const Tensor& whole) {
    const auto n = static_cast<int64_t>(states.size()), rows = whole.dims()[0] / n;
    for (int64_t r = 0; r < n; ++r)
      set(name, whole.rows(r * rows, (r + 1) * rows), static_cast<size_t>(r));
  }
  void step(int64_t step = 0, TraceSink* sink = nullptr, OpHooks* hooks = nullptr) {
    for (size_t i = 0; i < program().inputs.size(); ++i) {
      if (program().inputs[i].name == "step")
        set("step", Tensor::scalar_i32(static_cast<int32_t>(step)));
    }
    const Status status = engine_->step(step, states, inputs, outputs, sink, hooks);
    ASSERT_TRUE(status.ok()) << status.error().message();
  }
  const Tensor& output(const std::string& name, size_t replica = 0) const {
    for (size_t i = 0; i < program().outputs.size(); ++i) {
      if (program().outputs[i].name == name) return outputs.at(replica)[i];
    }
    throw std::runtime_error("no output " + name);
  }
  const Tensor& state(const std::string& name, size_t replica = 0) const {
    return states.at(replica).vars.at(static_cast<size_t>(program().state_index(name)));
  }
  // The digest of the state of all replicas.
  std::string digest() const {
    DigestBuilder b;
    for (const ReplicaState& replica : states) {
      for (const Tensor& t : replica.vars) b.add(twinrun::digest(t));
    }
    return b.finish().hex();
  }

  States states;
  StepInputs inputs;
  StepOutputs outputs;

 private:
  void begin(Backend& backend, const Program& program, uint64_t seed) {
    auto prepared = backend.prepare(program);
    EXPECT_TRUE(prepared.ok());
    engine_ = *std::move(prepared);
    const auto cores = static_cast<size_t>(program.sharding.cores);
    states.assign(cores, {initial_state(program, seed)});
    inputs.assign(cores, std::vector<Tensor>(program.inputs.size()));
    set("learning_rate", Tensor::scalar(0.1f));
  }
  std::unique_ptr<Engine> engine_;
};

inline double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = numbers(a), y = numbers(b);
  EXPECT_EQ(x.size(), y.size());
  double worst = 0;
  for (size_t i = 0; i < x.size() && i < y.size(); ++i)
    worst = std::max(worst, std::abs(x[i] - y[i]));
  return worst;
}

}  // namespace twinrun::small

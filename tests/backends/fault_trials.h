// Helpers that the tests of faults share: two models in which every kind of fault has an op to act
// on, and a way to run one op again on the inputs that it had.
#pragma once

#include <set>

#include "backends/faults/faults.h"
#include "tests/backends/small_programs.h"

namespace twinrun::small {

inline FaultSpec fault(const std::string& text) {
  auto spec = parse_fault(text);
  if (!spec) throw std::runtime_error(spec.error().message());
  return *std::move(spec);
}
inline std::unique_ptr<FaultHooks> hooks_of(const Program& p, const std::vector<std::string>& texts,
                                            const FaultHooks::Where& where = {}) {
  std::vector<FaultSpec> specs;
  for (const std::string& text : texts) specs.push_back(fault(text));
  auto hooks = FaultHooks::make(p, specs, where);
  if (!hooks) throw std::runtime_error(hooks.error().message());
  return *std::move(hooks);
}

inline constexpr int kCores = 2;

// A model with overlapping pools, batch and layer norm, dropout, a square dense layer and every
// elementary function but log1p.
inline Program image_net() {
  const Program forward = build_forward(Mode::kTraining, 8, {{9, 9, 3}}, 1,
                                        {OptimizerSpec::Kind::kMomentum}, [](Layers& n) {
                                          n.conv2d("conv1", {.filters = 5, .kernel = 3});
                                          n.batch_norm("bn1", {.epsilon = 1e-3, .momentum = 0.9});
                                          n.relu("relu1");
                                          n.pool("max1", {3, 2}, Reducer::kMax);
                                          n.conv2d("conv2", {.filters = 4, .kernel = 3});
                                          n.pool("avg1", {3, 2}, Reducer::kMean);
                                          n.flatten("flatten1");
                                          n.layer_norm("ln1", {.epsilon = 1e-3});
                                          n.dense("dense1", 6);
                                          n.gelu("gelu1", false);
                                          n.dropout("dropout1", {.rate = 0.5});
                                          n.dense("dense2", 6);
                                          n.silu("silu1");
                                          n.unary("tanh1", OpKind::kTanh);
                                          n.dense("dense3", 3);
                                          n.softmax_cross_entropy(3, {});
                                        });
  return training_step(shard(forward, {.cores = kCores}));
}
// A model with repeated tokens, attention and a loss with log1p.
inline Program token_net() {
  const Program forward =
      build_forward(Mode::kTraining, 8, {{5}, DType::kI32, {}, false, 7, 3}, 3,
                    {OptimizerSpec::Kind::kAdam}, [](Layers& n) {
                      n.embedding("e", 7, 6, {Initializer::Kind::kRandomUniform});
                      n.attention("a", {2, true, false}, {});
                      n.flatten("f");
                      n.dense("d", 3);
                      n.sigmoid_cross_entropy(3, {});
                    });
  return training_step(shard(forward, {.cores = kCores}));
}

// Sets the inputs of one step; images and tokens change from step to step.
inline void feed(Trial& t, int64_t step) {
  const auto cores = static_cast<int64_t>(t.states.size());
  for (size_t i = 0; i < t.program().inputs.size(); ++i) {
    const std::string& name = t.program().inputs[i].name;
    const TensorType& type = t.program().graph.type(t.program().inputs[i].id);
    for (int64_t r = 0; r < cores; ++r) {
      Tensor& to = t.inputs[static_cast<size_t>(r)][i];
      if (name == "replica_id") to = Tensor::scalar_i32(static_cast<int32_t>(r));
      if (type.dims.empty()) continue;
      to = type.dtype == DType::kF32
               ? generic_f32(type.dims, -1, 1, static_cast<uint32_t>(10 * step + r))
               : Tensor::empty(type);
      if (type.dtype != DType::kI32) continue;
      const auto ids = to.as<int32_t>();
      for (size_t e = 0; e < ids.size(); ++e) {
        const auto at = static_cast<int64_t>(e) + r * to.elements();
        ids[e] = static_cast<int32_t>(name == "sample_ids" ? 100 * step + at
                                      : name == "tokens"   ? (at * 5 + step + at / 3) % 7
                                                           : (at + step) % 3);
      }
    }
  }
}

// The correct result of an op, on every replica, for the inputs that the engine reports to have
// read.
inline std::vector<Tensor> replayed(const std::string& engine, const Program& p,
                                    const std::string& name, const Recorder::Seen& seen,
                                    int64_t step) {
  const size_t cores = seen.inputs.size();
  Op copy = p.graph.op(p.graph.find(name));
  const bool collective = copy.kind == OpKind::kAllReduce;
  Program one;
  GraphBuilder b(one.graph);
  one.sharding.cores = collective ? static_cast<int>(cores) : 1;
  for (size_t i = 0; i < copy.operands.size(); ++i) {
    const std::string input = "in" + std::to_string(i);
    copy.operands[i] = b.parameter(input, seen.inputs[0][i].type());
    one.inputs.push_back({input, copy.operands[i], false});
  }
  one.outputs.push_back({"out", one.graph.add(copy)});
  Trial alone(engine, one);
  std::vector<Tensor> results;
  for (size_t r = 0; r < cores; ++r) {
    for (size_t i = 0; i < copy.operands.size(); ++i) {
      for (size_t q = 0; q < alone.states.size(); ++q)
        alone.set("in" + std::to_string(i), seen.inputs[collective ? q : r][i], q);
    }
    alone.step(step);
    results.push_back(alone.output("out"));
  }
  return results;
}

// ---- programs of one op

using Values = std::map<std::string, Tensor>;

// Runs the steps one after another on one core and returns y of the last one.
inline Tensor run(const Program& p, const std::vector<Values>& steps,
                  const std::vector<std::string>& faults, const std::string& engine = "cpu",
                  const FaultHooks::Where& where = {}) {
  Trial t(engine, p);
  const auto hooks = hooks_of(p, faults, where);
  for (size_t s = 0; s < steps.size(); ++s) {
    for (const auto& [name, value] : steps[s]) t.set(name, value);
    t.step(static_cast<int64_t>(s), nullptr, faults.empty() ? nullptr : hooks.get());
  }
  return t.output("y");
}

// A program that computes y from the operands a, b, ... by one op.
struct One {
  Program p;
  Values in;
  template <typename F>
  One(const std::vector<Tensor>& operands, F build) {
    Hand h;
    std::vector<ValueId> ids;
    for (size_t i = 0; i < operands.size(); ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      ids.push_back(h.input(name, operands[i].type()));
      in[name] = operands[i];
    }
    h.p.outputs = {{"y", build(h.b, ids)}};
    p = h.p;
  }
  Tensor conforming() const { return run(p, {in}, {}); }
  Tensor with(const std::string& fault) const { return run(p, {in}, {fault}); }
  // Without a fault, with one operand replaced.
  Tensor on(const std::string& name, const Tensor& other) const {
    Values v = in;
    v[name] = other;
    return run(p, {v}, {});
  }
};
inline One sum(const Tensor& a) {
  return One({a},
             [](GraphBuilder& g, const std::vector<ValueId>& v) { return g.add(v[0], v[0], "y"); });
}
inline Tensor mapped(const Tensor& t, const std::function<float(float)>& f) {
  Tensor out = t.clone();
  for (float& v : out.as<float>()) v = f(v);
  return out;
}

// The names of all kinds of fault in these groups.
inline std::vector<std::string> kinds_of(const std::set<FaultGroup>& groups) {
  std::vector<std::string> names;
  for (const FaultKind& kind : fault_catalogue()) {
    if (groups.contains(kind.group)) names.emplace_back(kind.name);
  }
  return names;
}

}  // namespace twinrun::small

// Tests of the replay of compiled regions: what draws leave open, and what follows from a mask that the
// region gives.
#include "backends/aten/graph.h"

#include <gtest/gtest.h>

#include <cstring>

namespace twinrun::aten {
namespace {

class Bytes {
 public:
  TensorView view(const std::vector<float>& values) { return made(values, Element::kF32); }
  TensorView truths(const std::vector<uint8_t>& values) { return made(values, Element::kBool); }

 private:
  template <typename T>
  TensorView made(const std::vector<T>& values, Element element) {
    kept_.emplace_back(values.size() * sizeof(T));
    std::memcpy(kept_.back().data(), values.data(), kept_.back().size());
    TensorView t;
    t.data = kept_.back().data(), t.element = element;
    t.dims = {static_cast<int64_t>(values.size())}, t.strides = {1};
    return t;
  }
  std::vector<std::vector<std::byte>> kept_;
};

Value of(uint32_t number) {
  Value v;
  v.kind = Value::Kind::kGraphValue, v.integer = number;
  return v;
}
Value number(double x) {
  Value v;
  v.kind = Value::Kind::kNumber, v.number = x;
  return v;
}
Value text(std::string s) {
  Value v;
  v.kind = Value::Kind::kText, v.text = std::move(s);
  return v;
}
GraphNode node(std::string op, std::vector<Value> args, Element element, Dims dims) {
  GraphNode n;
  n.op = std::move(op), n.args = std::move(args);
  n.results = {{true, element, std::move(dims)}};
  return n;
}

// Dropout as compilers write it: 2 x where a draw is above 0.5. Values: 0 x, 1 seeds, 2 seed, 3 draw,
// 4 mask, 5 kept, 6 result.
Graph dropout() {
  Graph g;
  g.inputs = 1;
  g.nodes = {
      node("prims.inductor_seeds.default", {number(1)}, Element::kI64, {1}),
      node("prims.inductor_lookup_seed.default", {of(1), number(0)}, Element::kI64, {}),
      node("prims.inductor_random.default", {number(4), of(2), text("rand")}, Element::kF32, {4}),
      node("aten.gt.Scalar", {of(3), number(0.5)}, Element::kBool, {4}),
      node("aten.mul.Tensor", {of(4), of(0)}, Element::kF32, {4}),
      node("aten.mul.Tensor", {of(5), number(2)}, Element::kF32, {4})};
  return g;
}
Arithmetic plain(const Call&) { return {}; }

TEST(Graph, WhatADrawDecidesIsWithinBothBranches) {
  Bytes bytes;
  Graph g = dropout();
  g.outputs = {6};
  Value x;
  x.kind = Value::Kind::kTensor, x.tensor = bytes.view({1, 2, 3, 4});
  const TensorView y = bytes.view({2, 0, 6, 0});
  const Replayed r = replay(g, {x}, {&y}, plain);
  ASSERT_TRUE(r.outputs[0].has_value()) << r.why[0];
  for (int64_t i = 0; i < 4; ++i) {
    const Estimate e = r.outputs[0]->at(i);
    const double full = 2 * static_cast<double>(i + 1);
    EXPECT_LE(std::fabs(0 - e.value), e.radius);
    EXPECT_LE(std::fabs(full - e.value), e.radius);
    EXPECT_GT(std::fabs(full * 1.6 - e.value), e.radius);
  }
}
TEST(Graph, AMaskThatTheRegionGivesDecides) {
  Bytes bytes;
  Graph g = dropout();
  g.outputs = {1, 4, 6};
  Value x;
  x.kind = Value::Kind::kTensor, x.tensor = bytes.view({1, 2, 3, 4});
  const TensorView mask = bytes.truths({1, 0, 1, 0}), y = bytes.view({2, 0, 6, 0});
  const Replayed r = replay(g, {x}, {nullptr, &mask, &y}, plain);
  // Seeds are no result that could be wrong.
  EXPECT_EQ(r.nodes[0], nullptr);
  ASSERT_TRUE(r.outputs[2].has_value()) << r.why[2];
  const std::vector<double> expected = {2, 0, 6, 0};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(r.outputs[2]->at(i).value, expected[static_cast<size_t>(i)]);
    EXPECT_LT(r.outputs[2]->at(i).radius, 1e-5);
  }
}

}  // namespace
}  // namespace twinrun::aten

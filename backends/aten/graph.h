// The graph of a compiled region, and its replay: each node by its definition, in binary64, where
// values and bounds go from node to node. A fused kernel may round an intermediate to its type or
// keep more; the bounds allow both.
//
//   const Replayed r = replay(graph, inputs, outputs, arithmetic_of);
//   r.outputs[0]->value, r.outputs[0]->radius      // or r.why[0], why it is not known
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backends/aten/array.h"
#include "backends/aten/call.h"

namespace twinrun::aten {

struct GraphResult {
  bool is_tensor = false;
  Element element = Element::kOther;
  Dims dims;
};
struct GraphNode {
  std::string op, place;
  std::vector<Value> args;  // values of the graph have kind kGraphValue
  std::vector<std::pair<std::string, Value>> kwargs;
  std::vector<GraphResult> results;
};
struct Graph {
  static constexpr uint32_t kNothing = 0xFFFFFFFF;
  uint32_t inputs = 0;  // they are values 0 to inputs - 1; the results of the nodes follow
  std::vector<GraphNode> nodes;
  std::vector<uint32_t> outputs;                       // values, or kNothing
  std::vector<std::pair<uint32_t, uint32_t>> written;  // an input, and the value written into it
};

struct Replayed {
  // In the order of the graph's outputs, then of what it writes. Neither an array nor a reason:
  // there is nothing to compare.
  std::vector<std::optional<Array>> outputs;
  std::vector<std::string> why;
  std::vector<const GraphNode*> nodes;  // that compute them
};
// `actual`: what the region gave, in the order of Replayed::outputs; nullptr where there is no
// tensor. `arithmetic_of` gives the arithmetic of a node's call.
Replayed replay(const Graph& graph, const std::vector<Value>& inputs,
                const std::vector<const TensorView*>& actual,
                const std::function<Arithmetic(const Call&)>& arithmetic_of);

// The values alone, by one arithmetic and without the roundings of the types between the nodes: of the
// outputs, then of what is written. An input may be an estimate. nullopt: not known, as of a draw that
// the region does not give.
std::vector<std::optional<Array>> evaluated(const Graph& graph, const std::vector<Value>& inputs,
                                            const std::vector<const TensorView*>& actual,
                                            const Arithmetic& arithmetic);

// The operations on whose results `node` depends, and its own, in the order of the graph; each name
// once, and no name of a cast. One of them is wrong, or they were fused wrongly, if its result is.
std::vector<std::string> made_by(const Graph& graph, const GraphNode& node);

}  // namespace twinrun::aten

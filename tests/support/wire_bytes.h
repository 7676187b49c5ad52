// Writes TensorFlow's graphs in protobuf's wire format, for tests.
//
//   graph_def({node("x", "Placeholder", {}, {type("dtype", "float"), shape("shape", {-1, 4})})});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/check/tf_graph.h"
#include "tests/support/wire_writer.h"

namespace twinrun::wire {

// A TensorShapeProto. An empty list is a scalar; unknown_rank() has no rank.
inline std::string dims(const std::vector<int64_t>& sizes) {
  std::string out;
  for (const int64_t size : sizes) out += bytes(2, number(1, size));
  return out;
}
inline std::string unknown_rank() { return number(3, 1); }

// Attributes of a node.
inline std::string type(std::string_view name, std::string_view dtype) {
  return entry(5, name, number(6, tf_type(dtype)));
}
inline std::string types(std::string_view name, const std::vector<std::string_view>& dtypes) {
  std::string packed;
  for (const std::string_view dtype : dtypes)
    packed += varint(static_cast<uint64_t>(tf_type(dtype)));
  return entry(5, name, bytes(1, bytes(6, packed)));
}
inline std::string shape(std::string_view name, const std::vector<int64_t>& sizes) {
  return entry(5, name, bytes(7, dims(sizes)));
}
inline std::string shapes(std::string_view name, const std::vector<std::vector<int64_t>>& all) {
  std::string list;
  for (const auto& sizes : all) list += bytes(7, dims(sizes));
  return entry(5, name, bytes(1, list));
}
inline std::string integer(std::string_view name, int64_t value) {
  return entry(5, name, number(3, value));
}
inline std::string text(std::string_view name, std::string_view value) {
  return entry(5, name, bytes(2, value));
}
inline std::string function(std::string_view name, std::string_view called) {
  return entry(5, name, bytes(10, bytes(1, called)));
}
inline std::string device(std::string_view name) { return bytes(4, name); }

// A NodeDef, without its place in another message.
inline std::string node(std::string_view name, std::string_view op, const Parts& inputs = {},
                        const Parts& attributes = {}) {
  std::string out = bytes(1, name) + bytes(2, op);
  for (const std::string& input : inputs) out += bytes(3, input);
  return out + all(attributes);
}
inline std::string function_def(std::string_view name, const Parts& nodes) {
  std::string out = bytes(1, bytes(1, name));
  for (const std::string& one : nodes) out += bytes(3, one);
  return out;
}
inline std::string graph_def(const Parts& nodes, const Parts& functions = {}) {
  std::string out, library;
  for (const std::string& one : nodes) out += bytes(1, one);
  for (const std::string& one : functions) library += bytes(1, one);
  return out + (functions.empty() ? "" : bytes(2, library));
}
// A signature with one output. `parts`: further fields of the MetaGraphDef.
inline std::string meta_graph(const std::string& graph, std::string_view output,
                              std::string_view tag = "serve", const Parts& parts = {}) {
  const std::string signature = entry(2, "y", bytes(1, output) + number(2, 1));
  return bytes(1, bytes(4, tag) + bytes(5, "2.19.0")) + bytes(2, graph) +
         entry(5, "serving_default", signature) + all(parts);
}
inline std::string saved_model(const Parts& meta_graphs) {
  std::string out = number(1, 1);
  for (const std::string& one : meta_graphs) out += bytes(2, one);
  return out;
}

}  // namespace twinrun::wire

// A TensorFlow graph as a file has it: a GraphDef (.pb, frozen or not), a MetaGraphDef (.meta) or a
// SavedModel (its folder, or saved_model.pb), each in protobuf's binary or text form. Only what
// `check` needs is read: no weights. The fields are those of
// tensorflow/core/protobuf/{saved_model,meta_graph,saved_object_graph,saver}.proto and
// tensorflow/core/framework/{graph,function,op_def,node_def,attr_value,tensor_shape}.proto.
// On the data's path: file -> TfGraph (here) -> tf_step.h -> rules.
//
//   TWINRUN_ASSIGN(TfGraph graph, read_tf_graph("export/1"));
//   graph.nodes[0].op;                               // "MatMul"
//   to_string(graph.signatures[0].inputs[0].shape);  // "[?,784]"
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

// -1: a size that is known only at run time. nullopt: so is the number of sizes.
using TfShape = std::optional<std::vector<int64_t>>;
std::string to_string(const TfShape& shape);

// Names of types.proto: "float", "int64", "resource"; "float_ref" for a reference.
std::string tf_type_name(int type);
int tf_type(std::string_view name);  // 0 if there is no such type

// Of a list, all of its values; of a value of another kind (a tensor, a number with a point), none.
struct TfAttribute {
  std::string_view name;
  std::vector<int> types;
  std::vector<TfShape> shapes;
  std::vector<std::string_view> functions, texts;
  std::vector<int64_t> numbers;  // integers and booleans
};

struct TfNode {
  std::string_view name, op, device;
  std::vector<std::string_view> inputs;  // "x", "x:1", "^x", in functions "x:out:0"
  std::vector<TfAttribute> attributes;
  const TfAttribute* find(std::string_view attribute) const;
};

// An input of a function, or an input or output of a signature.
struct TfPort {
  std::string_view name;
  std::string_view tensor;  // of a signature: "serving_default_x:0"
  int type = 0;
  TfShape shape;
};

struct TfFunction {
  std::string_view name;
  std::string_view alias;  // as the user called it; "" if the file does not say
  std::vector<TfPort> inputs;
  std::vector<TfNode> nodes;
  std::vector<std::string_view> results;  // "y:z:0"
  std::vector<std::string_view> effects;  // nodes that run without giving a result
};

struct TfSignature {
  std::string_view name;  // "serving_default"
  std::vector<TfPort> inputs, outputs;
};

struct TfGraph {
  std::shared_ptr<const std::string> bytes;  // that all names refer to
  std::string file;
  const char* kind = "";     // "GraphDef", "MetaGraphDef" or "SavedModel"
  std::string_view version;  // of the TensorFlow that wrote it; "" if the file does not say
  std::vector<TfNode> nodes;
  std::vector<TfFunction> functions;
  std::vector<TfSignature> signatures;
  std::vector<std::string_view> traced;  // functions that a SavedModel keeps for its users
  std::vector<std::string_view> saver;   // nodes that save and restore
};

// Errors: no such file; damaged, with the byte or the line; no graph.
Result<TfGraph> read_tf_graph(const std::string& path);
// The same of bytes. `file`: its name in errors, whose ending .meta or name saved_model.pb says
// what it ought to be.
Result<TfGraph> parse_tf_graph(std::string bytes, const std::string& file);

}  // namespace twinrun

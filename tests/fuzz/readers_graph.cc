// Readers of TensorFlow's graphs: what is read is also checked, as `twinrun check --graph` does.
#include "harness/check/rules.h"
#include "tests/fuzz/reader.h"
#include "tests/support/wire_bytes.h"

namespace twinrun::fuzz {
namespace {

void check_graph_bytes(std::string_view bytes) {
  const auto graph = parse_tf_graph(std::string(bytes), "graph.pb");
  if (!accepted(graph)) return;
  require(!graph->nodes.empty() || !graph->functions.empty(), "a graph without nodes");
  const TfStep step = tf_step(*graph);
  check::Findings findings;
  check::check_tf_graph(*graph, step, findings);
  for (const TfBody& body : step.bodies)
    require(body.on_tpu.size() == body.nodes.size(), "a body that is not judged");
  for (const RuleFinding& f : findings) {
    require(!f.found.empty() && !f.why.empty() && !f.fix.empty(), "a finding without words");
    require(!f.ops.empty() && !f.where.empty(), "a finding without a place");
  }
}

std::vector<std::string> graph_seeds() {
  using namespace wire;  // NOLINT: the words of the format
  const std::string on_tpu = wire::text("_tpu_replicate", "c");
  const std::string small =
      graph_def({node("x", "Placeholder", {}, {type("dtype", "double"), shape("shape", {-1, 4})}),
                 node("n", "Placeholder", {},
                      {type("dtype", "int32"), entry(5, "shape", bytes(7, unknown_rank()))}),
                 node("r", "Reshape", {"x", "n"}, {type("T", "double")}),
                 node("w", "Where", {"r"}, {type("T", "half"), device("/gpu:0")}),
                 node("p", "PyFunc", {"w:0", "^x"}, {types("Tin", {"float", "string"})})});
  const std::string calls = graph_def(
      {node("y", "PartitionedCall", {"x"}, {function("f", "g")}),
       node("i", "If", {"y", "x"}, {function("then_branch", "g"), function("else_branch", "h")})},
      {function_def("g", {node("a", "Relu", {"x"}, {type("T", "uint8")})}) +
           bytes(4, bytes(1, "z") + bytes(2, "a:activations:0")) +
           bytes(7, number(1, 0) +
                        bytes(2, entry(1, "_output_shapes", bytes(1, bytes(7, dims({8, -1})))))),
       function_def("h", {node("b", "RandomUniform", {}, {type("dtype", "float")})})});
  const std::string replicated = graph_def(
      {node("m", "TPUReplicateMetadata", {}, {integer("num_replicas", 8), on_tpu}),
       node("f", "InfeedDequeueTuple", {},
            {types("dtypes", {"uint8"}), shapes("shapes", {{-1}}), on_tpu}),
       node("u", "ResourceApplyGradientDescent", {"v"}, {type("T", "float"), on_tpu}),
       node("it", "IteratorGetNext", {}, {shapes("output_shapes", {{100, 4}})}),
       node("h", "PrintV2", {"f"}, {on_tpu, wire::text("_xla_outside_compilation", "0")})});
  const std::string objects =
      bytes(3, bytes(1, "save") + bytes(3, "y")) + bytes(7, entry(2, "h", ""));
  return {
      small, calls, replicated, meta_graph(calls, "i:0", "serve", {objects}),
      saved_model({meta_graph(calls, "i:0", "serve", {objects}), meta_graph(small, "p", "tpu")})};
}

// A GraphDef in protobuf's text form.
std::vector<std::string> graph_text_seeds() {
  return {
      "node {\n  name: \"x\"\n  op: 'Place' \"holder\"\n"
      "  attr { key: \"dtype\" value { type: DT_DOUBLE_REF } }\n"
      "  attr { key: \"shape\" value { shape { dim { size: -1 } dim < size: 4 > } } }\n}\n"
      "node { name: \"y\\x41\\101\\n\" op: \"PyFunc\" input: [\"x\", \"^x\"] # a comment\n"
      "  attr { key: \"Tin\" value { list { type: [DT_FLOAT, DT_STRING] f: 1.5e3 } } }\n"
      "  [a.b/c] { d: -inf; e: true } attr { key: \"f\" value { func { name: \"g\" } } } }\n"
      "library { function { signature { name: \"g\" } node_def { name: \"a\" op: \"Lu\" }\n"
      "  ret { key: \"z\" value: \"a:0\" } } }\nversions { producer: 1 }\n",
      "saved_model_schema_version: 1 meta_graphs { meta_info_def { tags: \"serve\" } graph_def {"
      " node { name: \"a\" op: \"Where\" } } signature_def { key: \"s\" value { outputs {"
      " key: \"y\" value { name: \"a:0\" dtype: DT_FLOAT } } } } }"};
}

}  // namespace

std::vector<Reader> graph_readers() {
  return {{.name = "tf_graph",
           .kind = Kind::kBinary,
           .reads = "a TensorFlow graph: GraphDef, MetaGraphDef, SavedModel",
           .longest = 4000,
           .seeds = &graph_seeds,
           .check = &check_graph_bytes},
          {.name = "tf_graph_text",
           .kind = Kind::kText,
           .reads = "the same in protobuf's text form",
           .longest = 4000,
           .seeds = &graph_text_seeds,
           .check = &check_graph_bytes}};
}

}  // namespace twinrun::fuzz

// Tests the reading of TensorFlow's graphs, which of their nodes count, and what is found in them.
// tf_graphs.py does the same with graphs that TensorFlow writes.
#include "harness/check/tf_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "harness/check/check.h"
#include "harness/check/log.h"
#include "harness/check/tpu_ops.h"
#include "tests/support/folder.h"
#include "tests/support/wire_bytes.h"

namespace twinrun {
namespace {

using wire::function;
using wire::function_def;
using wire::graph_def;
using wire::integer;
using wire::meta_graph;
using wire::node;
using wire::Parts;
using wire::saved_model;
using wire::shape;
using wire::text;
using wire::type;

std::string graph_file(const std::string& name, const std::string& bytes) {
  static const Folder folder;
  std::string path = folder / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string input(const std::string& name, const std::vector<int64_t>& sizes,
                  const char* dtype = "float") {
  return node(name, "Placeholder", {}, {type("dtype", dtype), shape("shape", sizes)});
}
std::string unary(const std::string& name, const char* op, const std::string& of,
                  const char* dtype = "float") {
  return node(name, op, {of}, {type("T", dtype)});
}

Checked checked_graph(const std::string& bytes, const std::string& name = "graph.pb") {
  auto c = check_graph(graph_file(name, bytes));
  if (!c) {
    ADD_FAILURE() << c.error().message();
    return {};
  }
  return *std::move(c);
}

// What is found: "unsupported-op PyFunc: y; wide-dtype ...".
std::string findings(const Checked& c) {
  std::string out;
  for (const RuleFinding& f : c.findings)
    out += (out.empty() ? "" : "; ") + std::string(f.id) + " " + f.found;
  return out;
}
std::string findings(const std::string& bytes, const std::string& name = "graph.pb") {
  return findings(checked_graph(bytes, name));
}

const std::string& healthy() {
  static const std::string bytes =
      graph_def({input("x", {8, 4}), unary("y", "Relu", "x"), unary("z", "Tanh", "y:0")});
  return bytes;
}

TEST(TfGraph, ReadsTheFieldsThatCount) {
  const auto graph = parse_tf_graph(
      saved_model({meta_graph(
          graph_def({input("x", {-1, 4}),
                     node("y", "PartitionedCall", {"x", "^x"},
                          {function("f", "inner"), wire::types("Tin", {"float", "resource"}),
                           wire::device("/device:GPU:0"), text("config", "abc"),
                           wire::shapes("_output_shapes", {{8, 2}, {}}), integer("n", -5)})},
                    {function_def("inner", {node("a", "NoOp")})}),
          "y:0")}),
      "saved_model.pb");
  ASSERT_TRUE(graph) << graph.error().message();
  EXPECT_STREQ(graph->kind, "SavedModel");
  EXPECT_EQ(graph->version, "2.19.0");
  ASSERT_EQ(graph->nodes.size(), 2U);
  EXPECT_EQ(to_string(graph->nodes[0].find("shape")->shapes[0]), "[?,4]");
  const TfNode& y = graph->nodes[1];
  EXPECT_EQ(y.inputs, (std::vector<std::string_view>{"x", "^x"}));
  EXPECT_EQ(y.device, "/device:GPU:0");
  EXPECT_EQ(y.find("f")->functions[0], "inner");
  EXPECT_EQ(y.find("Tin")->types, (std::vector<int>{tf_type("float"), tf_type("resource")}));
  EXPECT_EQ(y.find("config")->texts[0], "abc");
  EXPECT_EQ(to_string(y.find("_output_shapes")->shapes[1]), "[]");
  EXPECT_EQ(y.find("n")->numbers, std::vector<int64_t>{-5});
  EXPECT_EQ(y.find("absent"), nullptr);
  ASSERT_EQ(graph->functions.size(), 1U);
  EXPECT_EQ(graph->functions[0].nodes[0].op, "NoOp");
  ASSERT_EQ(graph->signatures.size(), 1U);
  EXPECT_EQ(graph->signatures[0].outputs[0].tensor, "y:0");
}

TEST(TfGraph, KindsAreKnownByTheirContent) {
  const std::string meta = meta_graph(healthy(), "z:0");
  const std::pair<std::string, const char*> files[] = {
      {healthy(), "GraphDef"}, {meta, "MetaGraphDef"}, {saved_model({meta}), "SavedModel"}};
  for (const auto& [bytes, kind] : files) {
    const auto graph = parse_tf_graph(bytes, "x.pb");
    ASSERT_TRUE(graph) << kind << graph.error().message();
    EXPECT_STREQ(graph->kind, kind);
    EXPECT_EQ(graph->nodes.size(), 3U);
  }
}

TEST(TfGraph, OfSeveralGraphsTheOneForATpuIsTaken) {
  const auto graph =
      parse_tf_graph(saved_model({meta_graph(graph_def({node("a", "NoOp")}), "a", "serve"),
                                  meta_graph(graph_def({node("b", "NoOp")}), "b", "tpu"),
                                  meta_graph(graph_def({node("c", "NoOp")}), "c", "gpu")}),
                     "x.pb");
  ASSERT_TRUE(graph);
  EXPECT_EQ(graph->nodes[0].name, "b");
}

TEST(TfGraph, AFolderIsASavedModel) {
  const Folder outer;
  const std::string folder = outer / "saved";
  std::filesystem::create_directories(folder);
  const auto none = check_graph(folder);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().what, "no saved_model.pb in this folder");
  std::ofstream(folder + "/saved_model.pb", std::ios::binary)
      << saved_model({meta_graph(healthy(), "z:0")});
  for (const std::string& path : {folder, folder + "/", folder + "/saved_model.pb"}) {
    const auto c = check_graph(path);
    ASSERT_TRUE(c) << c.error().message();
    EXPECT_EQ(c->name, "saved");
  }
}

TEST(TfGraph, WhatIsNoGraphIsAnErrorThatSaysWhatToGive) {
  const std::string cut = healthy().substr(0, healthy().size() - 1);
  const std::pair<std::string, const char*> wrong[] = {
      {"", "not a GraphDef: an empty file"},
      {"\x89PNG", "not a GraphDef: "},
      {cut, "not a GraphDef: field 1 has"},
      {wire::bytes(1, wire::bytes(1, "x")), "a node without an op, or whose op is no name"},
      {wire::bytes(1, node("x", "a b")), "a node without an op, or whose op is no name"},
      {wire::bytes(4, ""), "not a GraphDef: no node in it"},
      {saved_model({}), "not a SavedModel: a SavedModel without a graph"},
      {graph_def({input("x", {-2})}), "a size of -2"},
      {graph_def({input("x", std::vector<int64_t>(255, 1))}), "a shape of more than 254 sizes"},
  };
  for (const auto& [bytes, says] : wrong) {
    const auto graph = parse_tf_graph(bytes, "x.pb");
    ASSERT_FALSE(graph) << says;
    EXPECT_NE(graph.error().what.find(says), std::string::npos) << graph.error().what;
    EXPECT_TRUE(graph.error().where.starts_with("x.pb")) << graph.error().where;
    EXPECT_FALSE(graph.error().fix.empty());
  }
  EXPECT_FALSE(read_tf_graph("/nowhere/absent.pb"));
  EXPECT_NE(parse_tf_graph("x", "train.meta").error().what.find("not a MetaGraphDef"),
            std::string::npos);
}

constexpr const char* kGraphText =
    "# as tf.io.write_graph writes it\n"
    "node {\n  name: \"x\"\n  op: \"Placeholder\"\n"
    "  attr {\n    key: \"dtype\"\n    value {\n      type: DT_FLOAT\n    }\n  }\n"
    "  attr { key: \"shape\" value { shape { dim { size: -1 } dim < size: 4 > } } }\n}\n"
    "node { name: 'a\\101' \"\\x62c\\n\" op: \"PyFunc\" input: [\"x\", \"^x\"]; device: \"/d\"\n"
    "  attr { key: \"Tin\" value { list { type: [DT_FLOAT, DT_INT64_REF] f: 1.5e3 } } }\n"
    "  attr { key: \"value\" value { tensor { dtype: DT_INT32 int_val: 3 } } } }\n"
    "versions { producer: 27 }\n";

TEST(TfGraph, ReadsTheTextForm) {
  const auto graph = parse_tf_graph(kGraphText, "graph.pbtxt");
  ASSERT_TRUE(graph) << graph.error().message();
  EXPECT_STREQ(graph->kind, "GraphDef");
  ASSERT_EQ(graph->nodes.size(), 2U);
  EXPECT_EQ(to_string(graph->nodes[0].find("shape")->shapes[0]), "[?,4]");
  EXPECT_EQ(graph->nodes[0].find("dtype")->types, std::vector<int>{tf_type("float")});
  const TfNode& y = graph->nodes[1];
  EXPECT_EQ(y.name, "aAbc\n");
  EXPECT_EQ(y.inputs, (std::vector<std::string_view>{"x", "^x"}));
  EXPECT_EQ(y.device, "/d");
  EXPECT_EQ(y.find("Tin")->types, (std::vector<int>{1, tf_type("int64") + 100}));
  EXPECT_NE(y.find("value"), nullptr);
}

TEST(TfGraph, ADamagedTextIsAnErrorThatNamesTheLine) {
  const std::pair<const char*, const char*> wrong[] = {
      {"node {\n  name: \"x\"\n", "x.pbtxt:3: the text ends before '}': it is cut short"},
      {"node {\n  name: \"x\n}", "x.pbtxt:2: a string that does not end"},
      {"node {\n  name: 5 }", "x.pbtxt:2: '5'; name is a string"},
      {"node {\n  name { } }", "x.pbtxt:2: a message; name is a string"},
      {"node {\n  name }", "x.pbtxt:2: a field without a value"},
      {"node: \"x\"", "x.pbtxt:1: a string; node is a NodeDef"},
      {"node { attr { value { i: 1e } } }", "x.pbtxt:1: '1e'; i is a number"},
      {"node {\n } }", "x.pbtxt:2: found something else where the name of a field has to stand"},
      {"node { name: \"x\" op: \"a b\" }",
       "x.pbtxt: not a GraphDef: a node without an op, or whose op is no name"},
  };
  for (const auto& [text, says] : wrong) {
    const auto graph = parse_tf_graph(text, "x.pbtxt");
    ASSERT_FALSE(graph) << says;
    EXPECT_TRUE(graph.error().message().starts_with(says)) << graph.error().message();
  }
  std::string deep = "node ";
  for (int i = 0; i < 200; ++i) deep += "{ a ";
  EXPECT_NE(parse_tf_graph(deep, "x").error().what.find("more than 100 deep"), std::string::npos);
}

TEST(TfRules, TheTableOfOps) {
  EXPECT_EQ(check::tpu_versions().size(), 3U);
  ASSERT_NE(check::find_tpu_op("MatMul"), nullptr);
  EXPECT_TRUE(check::accepts(*check::find_tpu_op("MatMul"), "T", "bfloat16"));
  EXPECT_FALSE(check::accepts(*check::find_tpu_op("MatMul"), "T", "uint8"));
  EXPECT_TRUE(check::accepts(*check::find_tpu_op("MatMul"), "transpose_a", "uint8"));
  EXPECT_NE(check::find_tpu_op("Placeholder"), nullptr);
  EXPECT_EQ(check::find_tpu_op("PyFunc"), nullptr);
  EXPECT_EQ(check::find_tpu_op(""), nullptr);
  EXPECT_NE(check::instead_of("StaticRegexReplace").find("input pipeline"), std::string::npos);
  EXPECT_NE(check::instead_of("Reluu").find("Relu"), std::string::npos);
}

TEST(TfRules, AHealthyGraphHasNoFinding) {
  for (const char* name : {"graph.pb", "graph.meta"}) {
    const bool meta = std::string_view(name).ends_with(".meta");
    const Checked c = checked_graph(meta ? meta_graph(healthy(), "z:0") : healthy(), name);
    EXPECT_EQ(findings(c), "");
    ASSERT_EQ(c.tf_step.bodies.size(), 1U);
    EXPECT_EQ(c.tf_step.bodies[0].on_tpu, std::vector<bool>(3, true));
  }
}

struct GraphCase {
  const char* what;
  std::string bytes;
  const char* finds;
};

TEST(TfRules, WhatIsFound) {
  const std::string x = input("x", {8, 4});
  const std::string scalar = input("n", {}, "int32");
  const GraphCase all[] = {
      {"an op without a kernel", graph_def({x, unary("y", "ResizeBicubic", "x")}),
       "unsupported-op ResizeBicubic: y"},
      {"several of one kind", graph_def({x, unary("y", "Lu", "x"), unary("z", "Lu", "x")}),
       "unsupported-op Lu: 2 nodes, the first y"},
      {"a type that the op does not take",
       graph_def({input("u", {4, 4}, "uint8"), unary("y", "MatMul", "u", "uint8")}),
       "unsupported-op MatMul of uint8: y"},
      {"strings", graph_def({input("s", {4}, "string"), unary("y", "StringLower", "s")}),
       "unsupported-op StringLower: y; unsupported-op strings in Placeholder: s"},
      {"a double", graph_def({input("d", {4}, "double"), unary("y", "Relu", "d", "double")}),
       "wide-dtype double: 2 nodes, the first d"},
      {"a half",
       graph_def({x, node("h", "Cast", {"x"}, {type("DstT", "half"), type("SrcT", "float")})}),
       "unsupported-dtype half: h"},
      {"an index is no finding, a label is",
       graph_def({input("i", {4}, "int64"),
                  node("g", "GatherV2", {"x", "i"}, {type("Tindices", "int64")}), x}),
       "wide-integer int64: i"},
      {"a size that depends on data", graph_def({x, unary("w", "Where", "x")}),
       "dynamic-shape the size of what Where gives depends on data: w"},
      {"a result that is not padded", graph_def({x, unary("w", "NonMaxSuppressionV4", "x")}),
       "dynamic-shape the size of what NonMaxSuppressionV4 gives depends on data: w"},
      {"a result that is",
       graph_def({x, node("w", "NonMaxSuppressionV4", {"x"},
                          {type("T", "float"),
                           wire::entry(5, "pad_to_max_output_size", wire::number(5, 1))})}),
       ""},
      {"an unknown batch", graph_def({input("b", {-1, 4})}),
       "unknown-batch an input of shape (?,4)"},
      {"an unknown sample", graph_def({input("b", {8, -1})}),
       "unknown-shape an input of shape (8,?)"},
      {"an unknown rank", graph_def({node("b", "Placeholder", {}, {type("dtype", "float")})}),
       "unknown-shape an input of shape (...)"},
      {"a scalar", graph_def({scalar}), ""},
      {"a device",
       graph_def({x, node("y", "Relu", {"x"},
                          {type("T", "float"), wire::device("/job:worker/device:CPU:0")})}),
       "pinned-device placed on a CPU: y"},
      {"the TPU's own device",
       graph_def(
           {x, node("y", "Relu", {"x"}, {type("T", "float"), wire::device("/device:TPU:0")})}),
       ""},
      {"the device's draws", graph_def({node("r", "RandomUniform", {}, {type("dtype", "float")})}),
       "stateful-random draws of the device's own state: r"},
      {"a reference", graph_def({node("v", "VariableV2", {}, {type("dtype", "float")})}),
       "unsupported-op VariableV2: v"},
  };
  for (const GraphCase& c : all) EXPECT_EQ(findings(c.bytes), c.finds) << c.what;
}

// What saves, restores, feeds or summarises runs on the host, with all that only it reads.
TEST(TfRules, TheHostsOpsAreNoFinding) {
  EXPECT_EQ(findings(graph_def(
                {node("name", "Const", {}, {type("dtype", "string")}),
                 node("read", "ReaderReadV2", {}, {}),
                 node("v", "VarHandleOp", {}, {type("dtype", "float")}),
                 node("w", "ReadVariableOp", {"v"}, {type("dtype", "float")}),
                 node("save", "SaveV2", {"name", "w"}, {}),
                 node("done", "Identity", {"name", "^save"}, {type("T", "string")}),
                 node("restore", "RestoreV2", {"name"}, {}),
                 node("restored", "Identity", {"restore"}, {type("T", "float")}),
                 node("put", "AssignVariableOp", {"v", "restored"}, {type("dtype", "float")}),
                 node("loss", "ScalarSummary", {"name", "w"}, {type("T", "float")}),
                 node("w/Initializer/r", "RandomUniform", {}, {type("dtype", "float")})})),
            "unsupported-op ReaderReadV2: read");
}

// From a signature's outputs backwards; the rest of the graph is not of the step.
TEST(TfRules, OnlyWhatASignatureNeedsCounts) {
  const std::string graph = graph_def(
      {input("x", {8, 4}),
       node("y", "StatefulPartitionedCall", {"x"}, {function("f", "__inference_step_12")}),
       unary("other", "PyFunc", "x")},
      {function_def("__inference_step_12",
                    {node("a", "If", {},
                          {function("then_branch", "then"), function("else_branch", "else")})}),
       function_def("then", {node("p", "PyFunc")}), function_def("else", {node("q", "NoOp")}),
       function_def("unused", {node("p", "PyFunc")})});
  EXPECT_EQ(findings(saved_model({meta_graph(graph, "y:0")})), "unsupported-op PyFunc: then: p");
  // A function that the file keeps for its users counts as well, unless it saves.
  const std::string objects = wire::bytes(7, wire::entry(2, "unused", ""));
  EXPECT_EQ(findings(saved_model({meta_graph(graph, "y:0", "serve", {objects})})),
            "unsupported-op PyFunc: 2 nodes, the first then: p");
}

TEST(TfRules, AFunctionsArgumentsAreInputs) {
  // arg_attr: argument 0 has an unknown second size.
  const std::string argument = wire::bytes(
      7, wire::number(1, 0) +
             wire::bytes(2, wire::entry(1, "_output_shapes",
                                        wire::bytes(1, wire::bytes(7, wire::dims({8, -1}))))));
  const std::string step =
      wire::bytes(1, wire::bytes(1, "__inference_step_12") +
                         wire::bytes(2, wire::bytes(1, "x") + wire::number(3, 1))) +
      wire::bytes(3, unary("y", "Relu", "x")) + argument;
  const std::string objects = wire::bytes(7, wire::entry(2, "__inference_step_12", ""));
  const Checked c = checked_graph(
      saved_model({meta_graph(graph_def({node("a", "NoOp")}, {step}), "a", "serve", {objects})}));
  EXPECT_EQ(findings(c), "unknown-shape an input of shape (8,?)");
  EXPECT_TRUE(c.findings[0].where.ends_with(": step(x)")) << c.findings[0].where;
}

// Results of a function: what they do not need is dropped, unless it runs for its effect.
std::string with_results(const std::string& function, const Parts& results, const Parts& effects) {
  std::string out = function;
  for (const std::string& r : results)
    out += wire::bytes(4, wire::bytes(1, "r") + wire::bytes(2, r));
  for (const std::string& e : effects)
    out += wire::bytes(6, wire::bytes(1, "e") + wire::bytes(2, e));
  return out;
}

std::string calling(const std::string& step) {
  return graph_def({input("x", {8, 4}), input("n", {}, "int32"),
                    node("y", "PartitionedCall", {"x", "n"}, {function("f", "step")})},
                   {step});
}

TEST(TfRules, WhatGivesNoResultIsDropped) {
  const std::string step =
      function_def("step", {node("used", "PyFunc"), node("dropped", "LookupTableFindV2"),
                            node("told", "PrintV2", {"text"}), node("text", "StringFormat")});
  EXPECT_EQ(findings(calling(with_results(step, {"used:output:0"}, {"told"}))),
            "unsupported-op PrintV2: step: told; unsupported-op PyFunc: step: used; "
            "unsupported-op StringFormat: step: text");
  EXPECT_EQ(findings(calling(with_results(step, {"used:output:0"}, {"used"}))),
            "unsupported-op PyFunc: step: used");
}

// What is fed is followed into functions, but not through shapes.
TEST(TfRules, SizesThatDependOnData) {
  const auto step = [](const std::string& size) {
    return wire::bytes(
               1, wire::bytes(1, "step") + wire::bytes(2, wire::bytes(1, "x")) +
                      wire::bytes(2, wire::bytes(1, "n") + wire::number(3, tf_type("int32")))) +
           wire::bytes(3, node("five", "Const")) +
           wire::bytes(3, unary("double", "AddV2", "n", "int32")) +
           wire::bytes(3, node("shape", "Shape", {"x"})) +
           wire::bytes(3, node("z", "Fill", {size, "x"}, {type("T", "float")}));
  };
  EXPECT_EQ(findings(calling(step("double:z:0"))),
            "not-constant input 0 of Fill depends on data: step: z");
  EXPECT_EQ(findings(calling(step("n"))), "not-constant input 0 of Fill depends on data: step: z");
  EXPECT_EQ(findings(calling(step("shape:output:0"))), "");
  EXPECT_EQ(findings(calling(step("five:output:0"))), "");
  // The axis of ConcatV2 is its last input, and control inputs do not count.
  const auto concat = [](const std::string& axis) {
    return graph_def({input("x", {8}), node("a", "Const"), node("v", "ReadVariableOp"),
                      node("y", "ConcatV2", {"x", "v", axis, "^v"}, {type("T", "float")})});
  };
  EXPECT_EQ(findings(concat("v")), "not-constant input 2 of ConcatV2 depends on data: y");
  EXPECT_EQ(findings(concat("a")), "");
  // The gradient of a loop takes sizes from a list.
  EXPECT_EQ(findings(graph_def({node("pop", "TensorListPopBack"),
                                node("list", "TensorListReserve", {"shape", "pop:1"})})),
            "not-constant input 1 of TensorListReserve depends on data: list");
}

// A counter of steps is a single number, which costs nothing.
TEST(TfRules, ASingleWideIntegerIsNoFinding) {
  const auto cast = [](const std::vector<int64_t>& sizes) {
    return graph_def({node(
        "y", "Cast", {},
        {type("SrcT", "int32"), type("DstT", "int64"), wire::shapes("_output_shapes", {sizes})})});
  };
  EXPECT_EQ(findings(cast({})), "");
  EXPECT_EQ(findings(cast({8})), "wide-integer int64: y");
}

std::string replicated(const char* all_reduce, const std::string& feed) {
  const std::string on_tpu = text("_tpu_replicate", "cluster");
  return graph_def({node("read", "PyFunc"), feed,
                    node("meta", "TPUReplicateMetadata", {}, {integer("num_replicas", 8), on_tpu}),
                    node("grad", all_reduce, {}, {type("T", "float"), on_tpu}),
                    node("update", "ResourceApplyGradientDescent", {"v", "rate", "grad"},
                         {type("T", "float"), on_tpu}),
                    node("told", "PrintV2", {}, {on_tpu, text("_xla_outside_compilation", "0")})});
}

// In a graph that was built for TPUs, what is marked counts, and what it says of its cores.
TEST(TfRules, AGraphBuiltForTpus) {
  const std::string even = input("x", {64, 4});
  const Checked c = checked_graph(replicated("CrossReplicaSum", even));
  EXPECT_TRUE(c.tf_step.marked);
  EXPECT_EQ(findings(c), "");
  EXPECT_EQ(findings(replicated("Identity", even)),
            "no-all-reduce 8 replicas, and no all-reduce before the updates: update");
  const Checked uneven = checked_graph(replicated("CrossReplicaSum", input("x", {100, 4})));
  EXPECT_EQ(findings(uneven), "batch-not-divisible a batch of 100 for 8 replicas");
  EXPECT_EQ(uneven.findings[0].fix, "a batch of 104");
  const auto infeed = [](const char* dtype, const std::vector<int64_t>& sizes) {
    return node("feed", "InfeedEnqueueTuple", {},
                {wire::types("dtypes", {dtype}), wire::shapes("shapes", {sizes})});
  };
  EXPECT_EQ(findings(replicated("CrossReplicaSum", infeed("float", {8, 4}))), "");
  EXPECT_EQ(findings(replicated("CrossReplicaSum", infeed("uint8", {8, 4}))),
            "infeed-type an infeed of uint8: feed");
  EXPECT_EQ(findings(replicated("CrossReplicaSum", infeed("float", {-1, 4}))),
            "remainder-kept an infeed of shape [?,4]: feed");
}

TEST(TfRules, AnOpOfALaterVersion) {
  const std::string graph = graph_def({node("y", "XlaSparseActivationsUnstack")});
  EXPECT_EQ(findings(meta_graph(graph, "y"), "x.meta"),  // of TensorFlow 2.19.0
            "unsupported-op XlaSparseActivationsUnstack: y");
  EXPECT_EQ(findings(graph), "");  // of an unknown version
}

TEST(TfRules, FindingsSayWhatTheStackSaysAndWhatToDo) {
  const Checked c = checked_graph(graph_def({input("x", {8}), unary("deep/y", "PyFunc", "x")}));
  ASSERT_EQ(c.findings.size(), 1U);
  const RuleFinding& f = c.findings[0];
  EXPECT_TRUE(f.where.ends_with("graph.pb: deep/y")) << f.where;
  EXPECT_EQ(f.ops, std::vector<std::string>{"deep/y"});
  EXPECT_EQ(
      f.stack_message,
      "Compilation failure: Detected unsupported operations when trying to compile graph main on "
      "XLA_TPU_JIT: PyFunc (No registered 'PyFunc' OpKernel for XLA_TPU_JIT devices compatible "
      "with node {{node deep/y}}){{node deep/y}}");
  EXPECT_NE(f.why.find("2.16.2 to 2.20.0"), std::string::npos);
  EXPECT_NE(f.fix.find("tf.data"), std::string::npos);
}

// A node that a log names is found in the graph beside it.
TEST(TfRules, ALogsNodesAreFound) {
  const Checked c = checked_graph(graph_def({input("x", {8}), unary("deep/y", "PyFunc", "x")}));
  std::istringstream log(
      "No registered 'PyFunc' OpKernel for XLA_TPU_JIT devices compatible with node "
      "{{node deep/y}}\n");
  LogReading reading = read_log(log, "train.log");
  ASSERT_EQ(reading.findings.size(), 1U);
  find_places(c, reading);
  ASSERT_EQ(reading.findings[0].places.size(), 1U);
  EXPECT_TRUE(reading.findings[0].places[0].ends_with("graph.pb: deep/y"));
  EXPECT_EQ(reading.findings[0].agreeing, std::vector<std::string_view>{"unsupported-op"});
}

}  // namespace
}  // namespace twinrun

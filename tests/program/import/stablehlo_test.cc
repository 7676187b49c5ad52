// Tests of the import of StableHLO text: what is accepted and refused, where errors point, how ops
// are named, and that it gives the same step as the HLO text of the same program.
#include <fmt/format.h>

#include <cmath>

#include "tests/program/import/texts.h"

namespace twinrun::import_tests {
namespace {

// The text without source locations, as as_text() prints it unless they are requested.
std::string without_places(const std::string& text) {
  std::string out;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (!line.starts_with("#loc")) {
      for (size_t at = 0; at < line.size();) {
        if (line.compare(at, 5, " loc(") != 0) {
          out += line[at++];
          continue;
        }
        int depth = 0;
        do {
          depth += line[at] == '(' ? 1 : line[at] == ')' ? -1 : 0;
          ++at;
        } while (at < line.size() && (depth > 0 || line[at - 1] != ')'));
      }
      out += '\n';
    }
    begin = end + 1;
  }
  return out;
}

// A step with one state variable w and one input x. `body` must define %next, the next value of w.
std::string mlir_step(const std::string& body, const std::string& after = "") {
  return "module @step {\n  func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> "
         "(tensor<4xf32>, tensor<f32>) {\n" +
         body +
         "\n    %loss = stablehlo.constant dense<5.000000e-01> : tensor<f32>\n    return %next, "
         "%loss : tensor<4xf32>, tensor<f32>\n  }\n" +
         after + "}\n";
}

// Kinds, types and, with `named`, names of the ops that compute on arrays, sorted. The numbers that
// distinguish equal names are left out.
std::vector<std::string> computed(const Program& p, bool named) {
  std::vector<std::string> out;
  for (const Op& op : p.graph.ops()) {
    if (class_of(op.kind) == OpClass::kSource || class_of(op.kind) == OpClass::kMove ||
        op.type.dims.empty())
      continue;
    std::string name = op.name;
    if (const size_t at = name.rfind(':'); at > name.find(':') && at != std::string::npos)
      name.resize(at);
    if (named && name.find(';') != std::string::npos)
      continue;  // the name of two ops joined by XLA
    out.push_back(fmt::format("{} {} {}", name_of(op.kind), to_string(op.type), named ? name : ""));
  }
  std::ranges::sort(out);
  if (named) out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// The elements of `list` that `other` lacks.
std::vector<std::string> lacking(const std::vector<std::string>& list,
                                 const std::vector<std::string>& other) {
  std::vector<std::string> out;
  std::ranges::set_difference(list, other, std::back_inserter(out));
  return out;
}

class StableHloOfJax : public testing::TestWithParam<const char*> {};

TEST_P(StableHloOfJax, IsTheStepOfTheHloText) {
  const std::string name = GetParam(), text = fixture(name + ".mlir");
  const auto hlo = import_text(fixture(name + ".hlo")), ours = import_text(text),
             plain = import_text(without_places(text));
  ASSERT_TRUE(hlo) << hlo.error().message();
  ASSERT_TRUE(ours) << ours.error().message();
  ASSERT_TRUE(plain) << plain.error().message();
  using testing::PrintToString;
  // When XLA translates StableHLO to HLO, it folds constants and joins equal ops. Every op of the
  // HLO must therefore occur in the StableHLO.
  const auto named = lacking(computed(hlo->program, true), computed(ours->program, true)),
             unnamed = lacking(computed(hlo->program, false), computed(plain->program, false));
  EXPECT_TRUE(named.empty()) << PrintToString(named);
  EXPECT_TRUE(unnamed.empty()) << PrintToString(unnamed);
  EXPECT_GT(computed(ours->program, true).size(), 10u);
  EXPECT_EQ(ours->program.state.size(), hlo->program.state.size());
  for (size_t i = 0; i < ours->program.state.size(); ++i)
    EXPECT_EQ(ours->program.state[i].name, hlo->program.state[i].name);
}

INSTANTIATE_TEST_SUITE_P(, StableHloOfJax,
                         testing::Values("mlp_sgd", "mlp_momentum", "mlp_adam", "cnn_max_pool",
                                         "cnn_batch_norm", "cnn_strided", "layer_norm_mlp",
                                         "embedding_bag", "recurrent", "forms"),
                         [](const auto& test) { return std::string(test.param); });

TEST(StableHlo, PlacesNameTheOps) {
  const auto step = import_text(fixture("mlp_momentum.mlir"));
  ASSERT_TRUE(step) << step.error().message();
  const auto names = names_of(step->program);
  for (const char* name :
       {"dense1/dot_general@make_fixtures.py:38", "dense2/dot_general.grad@make_fixtures.py:38",
        "dense1/relu/max@make_fixtures.py:120", "sub@make_fixtures.py:58"})
    EXPECT_TRUE(has(names, name)) << name;
  EXPECT_EQ(step->program.state[1].name, "params/dense1/kernel");
  // Without source locations, names consist of functions and of the names of values.
  const auto plain = import_text(without_places(fixture("mlp_momentum.mlir")));
  ASSERT_TRUE(plain) << plain.error().message();
  EXPECT_TRUE(has(names_of(plain->program), "dot.0"));
  EXPECT_TRUE(has(names_of(plain->program), "relu/maximum.1"));
  EXPECT_EQ(plain->program.state[1].name, "arg1");
}

TEST(StableHlo, PlacesThatReferToEachOtherEnd) {
  const std::string next = "  %next = stablehlo.add %w, %x : tensor<4xf32> loc(#loc1)";
  const auto step = import_text(
      "#loc1 = loc(callsite(#loc2 at #loc2))\n#loc2 = loc(\"a\"(#loc1))\n" + mlir_step(next));
  ASSERT_TRUE(step) << step.error().message();
  std::string deep = "#loc0 = loc(unknown)\n";
  for (int i = 1; i < 64; ++i)
    deep += fmt::format("#loc{0} = loc(callsite(#loc{1} at #loc{1}))\n", i, i - 1);
  EXPECT_TRUE(
      import_text(deep + mlir_step("  %next = stablehlo.add %w, %x : tensor<4xf32> loc(#loc63)")));
}

TEST(StableHlo, LiteralsOfAllForms) {
  const auto step = import_text(mlir_step(
      "  %a = stablehlo.constant dense<[1.0, 0x7F800000, 0xFF800000, -2.500000e+00]> : "
      "tensor<4xf32>\n"
      "  %b = stablehlo.constant dense<\"0x0000803F000000400000404000008040\"> : tensor<4xf32>\n"
      "  %c = stablehlo.constant dense<3.0> : tensor<4xf32>\n"
      "  %d = stablehlo.constant dense<0x7FC00000> : tensor<f32>\n"
      "  %i = stablehlo.constant dense<\"0xFFFFFFFF01000000\"> : tensor<2xi32>\n"
      "  %p = \"stablehlo.constant\"() <{value = dense<\"0x01000001\"> : tensor<4xi1>}> : () -> "
      "tensor<4xi1>\n"
      "  %j = stablehlo.convert %i : (tensor<2xi32>) -> tensor<2xf32>\n"
      "  %k = stablehlo.concatenate %j, %j, dim = 0 : (tensor<2xf32>, tensor<2xf32>) -> "
      "tensor<4xf32>\n"
      "  %e = stablehlo.add %a, %b : tensor<4xf32>\n  %f = stablehlo.select %p, %e, %c : "
      "tensor<4xi1>, tensor<4xf32>\n"
      "  %h = stablehlo.add %f, %k : tensor<4xf32>\n  %next = stablehlo.add %w, %h : "
      "tensor<4xf32>"));
  ASSERT_TRUE(step) << step.error().message();
  ASSERT_EQ(step->literals.size(), 4u);
  const auto floats = [&](const char* name) {
    const auto values = step->literals.at(name).as<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  EXPECT_EQ(floats("literal/a"), (std::vector<float>{1, INFINITY, -INFINITY, -2.5F}));
  EXPECT_EQ(floats("literal/b"), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(step->literals.at("literal/i").as<int32_t>()[0], -1);
  const auto flags = step->literals.at("literal/p").as<uint8_t>();
  EXPECT_EQ(std::vector<uint8_t>(flags.begin(), flags.end()), (std::vector<uint8_t>{1, 0, 0, 1}));
  for (const char* bad :
       {"dense<\"0x0000803F\">", "dense<\"0x0000803F0000004000004040000080ZZ\">",
        "dense<[1.0, 2.0]>", "dense<[1.0, 0x7F80, 1.0, 1.0]>", "dense<[1, 2, 3, x]>", "dense<>"}) {
    const std::string error =
        error_of(mlir_step(fmt::format("  %c = stablehlo.constant {} : tensor<4xf32>\n  %next = "
                                       "stablehlo.add %w, %c : tensor<4xf32>",
                                       bad)));
    EXPECT_NE(error.find("step:3: the literal"), std::string::npos) << bad << ": " << error;
  }
}

// The pretty and the generic form of an op must give the same program. The forms include some that
// only newer or older writers print.
TEST(StableHlo, GenericFormsAreThePrettyOnes) {
  const std::pair<const char*, const char*> forms[] = {
      {"stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>",
       "\"stablehlo.broadcast_in_dim\"(%w) <{broadcast_dimensions = array<i64: 1>}> : "
       "(tensor<4xf32>) -> tensor<2x4xf32>"},
      {"stablehlo.slice %w [1:4:2] : (tensor<4xf32>) -> tensor<2xf32>",
       "\"stablehlo.slice\"(%w) <{limit_indices = array<i64: 4>, start_indices = array<i64: 1>, "
       "strides = array<i64: 2>}> : (tensor<4xf32>) -> tensor<2xf32>"},
      {"stablehlo.compare GT, %w, %x, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>",
       "\"stablehlo.compare\"(%w, %x) <{compare_type = #stablehlo<comparison_type FLOAT>, "
       "comparison_direction = #stablehlo<comparison_direction GT>}> : (tensor<4xf32>, "
       "tensor<4xf32>) -> tensor<4xi1>"},
      {"stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, "
       "tensor<4xf32>) -> tensor<f32>",
       "\"stablehlo.dot_general\"(%w, %x) <{dot_dimension_numbers = "
       "#stablehlo.dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]>, "
       "precision_config = [#stablehlo<precision DEFAULT>]}> : (tensor<4xf32>, tensor<4xf32>) -> "
       "tensor<f32>"},
      {"stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, "
       "tensor<4xf32>) -> tensor<f32>",
       "stablehlo.dot %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>"},
      {"stablehlo.pad %w, %z, low = [1], high = [-1], interior = [0] : (tensor<4xf32>, "
       "tensor<f32>) -> tensor<4xf32>",
       "\"stablehlo.pad\"(%w, %z) <{edge_padding_high = array<i64: -1>, edge_padding_low = "
       "array<i64: 1>, interior_padding = array<i64: 0>}> : (tensor<4xf32>, tensor<f32>) -> "
       "tensor<4xf32>"},
      {"stablehlo.reduce(%w init: %z) applies stablehlo.add across dimensions = [0] : "
       "(tensor<4xf32>, tensor<f32>) -> tensor<f32>",
       "\"stablehlo.reduce\"(%w, %z) <{dimensions = array<i64: 0>}> ({\n    ^bb0(%p: tensor<f32>, "
       "%q: tensor<f32>):\n      %s = stablehlo.add %p, %q : tensor<f32>\n      stablehlo.return "
       "%s "
       ": tensor<f32>\n    }) : (tensor<4xf32>, tensor<f32>) -> tensor<f32>"},
      {"stablehlo.iota dim = 0 : tensor<4xi32>",
       "\"stablehlo.iota\"() <{iota_dimension = 0 : i64}> : () -> tensor<4xi32>"},
      {"stablehlo.reduce_precision %w, format = e8m7 : tensor<4xf32>",
       "\"stablehlo.reduce_precision\"(%w) <{exponent_bits = 8 : i32, mantissa_bits = 7 : i32}> : "
       "(tensor<4xf32>) -> tensor<4xf32>"},
      {"stablehlo.multiply %w, %w : tensor<4xf32>",
       "chlo.square %w : tensor<4xf32> -> tensor<4xf32>"},
      {"stablehlo.reshape %w : (tensor<4xf32>) -> tensor<4xf32>",
       "stablehlo.custom_call @Sharding(%w) {backend_config = \"\", mhlo.sharding = "
       "\"{devices=[2,1]<=[2]}\"} : (tensor<4xf32>) -> tensor<4xf32>"},
      {"stablehlo.reshape %w : (tensor<4xf32>) -> tensor<4xf32>",
       "sdy.sharding_constraint %w <@mesh, [{\"x\"}]> : tensor<4xf32>"},
  };
  const auto body = [](const std::string& op) {
    const std::string type = op.substr(op.rfind("tensor<"));
    return mlir_step(
        "  %z = stablehlo.constant dense<0.0> : tensor<f32>\n  %v = " + op +
        "\n  %u:2 = stablehlo.optimization_barrier %v, %w : " + type +
        ", tensor<4xf32>\n  %next = stablehlo.add %u#1, %x : tensor<4xf32>\n    return "
        "%next, %z, %u#0 : tensor<4xf32>, tensor<f32>, " +
        type + "\n  }\n}\n");
  };
  for (const auto& [pretty, generic] : forms) {
    const auto cut = [&](const std::string& text) {
      return text.substr(0, text.find("    %loss"));
    };
    const auto a = import_text(cut(body(pretty))), b = import_text(cut(body(generic)));
    ASSERT_TRUE(a) << pretty << a.error().message();
    ASSERT_TRUE(b) << generic << b.error().message();
    EXPECT_EQ(to_text(a->program), to_text(b->program)) << generic;
  }
}

TEST(StableHlo, FunctionsMayStandInAnyOrder) {
  const std::string twice =
      "  func.func private @twice(%a: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = stablehlo.add "
      "%a, "
      "%a : tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n";
  const auto step = import_text(mlir_step(
      "  %v = call @both(%w) : (tensor<4xf32>) -> tensor<4xf32>\n  %next = stablehlo.composite "
      "\"my.op\" %v {decomposition = @twice} : (tensor<4xf32>) -> tensor<4xf32>",
      "  func.func private @both(%a: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = call @twice(%a) : "
      "(tensor<4xf32>) -> tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n" +
          twice));
  ASSERT_TRUE(step) << step.error().message();
  EXPECT_TRUE(has(names_of(step->program), "both/twice/add.0"));
  const std::string itself =
      "  func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = call @f(%a) : "
      "(tensor<4xf32>) -> tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n";
  EXPECT_NE(error_of(mlir_step("  %next = call @f(%w) : (tensor<4xf32>) -> tensor<4xf32>", itself))
                .find("function @f calls itself"),
            std::string::npos);
  EXPECT_NE(error_of(mlir_step("  %next = call @g(%w) : (tensor<4xf32>) -> tensor<4xf32>"))
                .find("call of 'g': no such computation"),
            std::string::npos);
}

TEST(StableHlo, ErrorsNameTheLineAndWhatIsAllowed) {
  const auto next = [](const std::string& op) { return error_of(mlir_step("  %next = " + op)); };
  const std::pair<std::string, const char*> cases[] = {
      {next("stablehlo.add %w, %y : tensor<4xf32>"),
       "step:3: '%y' is not defined before this line"},
      {next("stablehlo.add %w, %w#1 : tensor<4xf32>"), "'%w#1' is not defined before this line"},
      {next("stablehlo.add %w, %x : tensor<?xf32>"),
       "step:3: a shape with a dimension of '?'; allowed: static sizes"},
      {next("stablehlo.add %w, %x : tensor<99999999999xf32>"), "at most 2147483648 elements"},
      {next("stablehlo.add %w, %x : tensor<4xf32, #stablehlo.bounds<8>>"),
       "static sizes and a type"},
      {next("stablehlo.add %w, %x : tensor<4xf32>\n  %v = stablehlo.add %w, %x : tensor<5xf32>"),
       "step:4: declares f32[5], but its operands give f32[4]"},
      {next("stablehlo.add %w, %x"), "stablehlo.add of 1 results with 0 types"},
      {next("stablehlo.constant dense_resource<big> : tensor<4xf32>"),
       "step:3: a literal that is stored elsewhere, dense_resource"},
      {next("stablehlo.add %w, %x : tensor<4xf32> loc("), "step:"},
      {error_of("module @m {\n  func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {\n"),
       "a region is not closed"},
      {error_of("module @m {\n}\n"), "the module has no function"},
      {error_of("\"builtin.module\"() ({\n}) : () -> ()\n"),
       "allowed: StableHLO text in its pretty form"},
      {error_of("ML\xefR\x01"), "MLIR bytecode"},
      {error_of(mlir_step("  %next = stablehlo.add %w, %x : tensor<4xf32>",
                          "  func.func private @main() {\n    return\n  }\n")),
       "function @main is defined twice"},
  };
  for (const auto& [error, wanted] : cases)
    EXPECT_NE(error.find(wanted), std::string::npos) << wanted << ": " << error;
}

TEST(StableHlo, ListsAllThatItLacksAtOnce) {
  const std::string all = error_of(mlir_step(
      "  %0 = chlo.lgamma %w : tensor<4xf32> -> tensor<4xf32>\n"
      "  %1:2 = stablehlo.while(%i = %w, %j = %x) : tensor<4xf32>, tensor<4xf32>\n  cond {\n"
      "    %p = stablehlo.constant dense<true> : tensor<i1>\n    stablehlo.return %p : tensor<i1>\n"
      "  } do {\n    stablehlo.return %i, %j : tensor<4xf32>, tensor<4xf32>\n  }\n"
      "  %values, %indices = chlo.top_k(%w, k = 5) : tensor<4xf32> -> (tensor<5xf32>, "
      "tensor<5xi32>)\n"
      "  %2 = \"stablehlo.all_reduce\"(%w) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> "
      "({\n"
      "    ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n      %c = stablehlo.add %a, %b : tensor<f32>\n"
      "      stablehlo.return %c : tensor<f32>\n    }) : (tensor<4xf32>) -> tensor<4xf32>\n"
      "  %3 = stablehlo.custom_call @lapack(%w) {api_version = 4 : i32} : (tensor<4xf32>) -> "
      "tensor<4xf32>\n"
      "  %next = stablehlo.add %0, %1#1 : tensor<4xf32>"));
  for (const char* wanted :
       {"5 instructions cannot be imported",
        "step:3: chlo.lgamma (f32[4]); docs/guides/import.md lists the opcodes",
        "step:4: while that never ends", "step:11: topk with k=5",
        "step:12: all-reduce (f32[4]); a step of one core", "step:17: custom-call of \"lapack\""})
    EXPECT_NE(all.find(wanted), std::string::npos) << wanted << "\n" << all;
}

TEST(StableHlo, DonatedAndShardedArgumentsAreArguments) {
  const auto step = import_text(
      "module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {\n"
      "  sdy.mesh @mesh = <[\"x\"=1]>\n  func.func public @main(%arg0: tensor<3xf32> "
      "{jax.buffer_donor = true, mhlo.sharding = \"{devices=[1]<=[1]}\", sdy.sharding = "
      "#sdy.sharding<@mesh, [{\"x\"}, {?}]>, tf.aliasing_output = 0 : i32} loc(\"w\"), %arg1: "
      "tensor<3xf32> {mhlo.layout_mode = \"default\"}) -> (tensor<3xf32> {jax.result_info = "
      "\"result[0]\", mhlo.sharding = \"{replicated}\"}, tensor<f32>) {\n    %0 = "
      "stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = \"{replicated}\"} : (tensor<3xf32>) "
      "-> tensor<3xf32>\n    %1 = stablehlo.add %0, %arg1 {mhlo.frontend_attributes = {fingerprint "
      "= \"a\"}} : tensor<3xf32>\n    %2 = stablehlo.constant dense<0.5> : tensor<f32>\n    return "
      "%1, %2 : tensor<3xf32>, tensor<f32>\n  }\n}\n");
  ASSERT_TRUE(step) << step.error().message();
  EXPECT_EQ(step->program.state.size(), 1u);
}

TEST(StableHlo, BrokenTextIsAnsweredNotObeyed) {
  const std::vector<std::string> words = {"tensor<",    "<",
                                          ">",          "[",
                                          "]",          "{",
                                          "}",          "(",
                                          ")",          "({",
                                          "})",         "<{",
                                          "}>",         ",",
                                          "=",          ":",
                                          "->",         "-1",
                                          "0",          "99999999999999999999",
                                          "2147483648", "tensor<0xf32>",
                                          "loc(",       "#loc1",
                                          "%0",         "%0#7",
                                          "%12:3",      "stablehlo.add",
                                          "return",     "call @main",
                                          "dense<\"0x", "dims = [0, 1, 2, 3]",
                                          "^bb0",       "reducer",
                                          "do {",       "array<i64: 0>",
                                          "?x",         "\"",
                                          "//",         "\n",
                                          "ui8",        "applies"};
  for (const char* name : {"mlp_sgd.mlir", "cnn_max_pool.mlir"})
    break_text(fixture(name), words, 300);
  break_text(without_places(fixture("embedding_bag.mlir")), words, 300);
}

TEST(StableHlo, RegionsThatNestWithoutEndAreRefused) {
  std::string deep = "  %next = \"a.b\"(%w) ";
  for (int i = 0; i < 100'000; ++i) deep += "({ \"a.b\"() ";
  EXPECT_NE(error_of(mlir_step(deep)).find("nested more than 32 deep"), std::string::npos);
  std::string brackets = "  %next = stablehlo.add %w, %x {a = ";
  brackets.append(1'000'000, '[');
  EXPECT_NE(error_of(mlir_step(brackets)).find("step:"), std::string::npos);
}

}  // namespace
}  // namespace twinrun::import_tests

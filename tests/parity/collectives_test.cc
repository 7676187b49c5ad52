// Tests of collectives in imported texts: each form of groups against sums and moves done by hand,
// and texts whose groups, meshes or shardings make no sense.
#include <gtest/gtest.h>

#include <vector>

#include "backends/registry.h"
#include "harness/experiment/experiment.h"
#include "program/import/import.h"

namespace twinrun {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr const char* kRegions =
    "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
    "most {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] maximum(a, "
    "b)\n}\n"
    "product {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] multiply(a, "
    "b)\n}\n"
    "both {\n  a = pred[] parameter(0)\n  b = pred[] parameter(1)\n  ROOT c = pred[] and(a, "
    "b)\n}\n";

// A step with one state variable w, f32[4] on each replica; `body` defines `next`.
std::string step_of(const std::string& body, const std::string& header = "replica_count=4") {
  return "HloModule m, " + header + "\n" + kRegions +
         "ENTRY main {\n  w = f32[4]{0} parameter(0)\n" + body +
         "\n  loss = f32[] constant(0.5)\n  ROOT t = (f32[4], f32[]) tuple(next, loss)\n}\n";
}

Result<ImportedStep> import_text(const std::string& text) {
  TWINRUN_ASSIGN(const HloModule module, parse_program(text, "step"));
  TWINRUN_ASSIGN(const StepBinding binding, default_binding(module));
  return import_step(module, binding);
}

std::string error_of(const std::string& text) {
  const auto step = import_text(text);
  return step ? "" : step.error().message();
}

// The next w of each core; w is 10 core + 0, 1, 2, 3 at first.
Rows run(const std::string& text) {
  const auto step = import_text(text);
  EXPECT_TRUE(step) << step.error().message();
  if (!step) return {};
  const Program& p = step->program;
  const auto backend = make_backend("cpu", {});
  const auto engine = (*backend)->prepare(p);
  EXPECT_TRUE(engine) << engine.error().message();
  const auto cores = static_cast<size_t>(p.sharding.cores);
  States states(cores);
  StepInputs inputs(cores);
  for (size_t core = 0; core < cores; ++core) {
    Tensor w = Tensor::zeros({DType::kF32, {4}});
    for (size_t i = 0; i < 4; ++i) w.as<float>()[i] = static_cast<float>(10 * core + i);
    states[core].vars = {w};
    for (const Input& input : p.inputs)
      inputs[core].push_back(input.name == "replica_id"
                                 ? Tensor::scalar_i32(static_cast<int32_t>(core))
                                 : step->literals.at(input.name));
  }
  StepOutputs outputs;
  const Status done = (*engine)->step(0, states, inputs, outputs, nullptr, nullptr);
  EXPECT_TRUE(done) << done.error().message();
  Rows rows;
  for (const ReplicaState& s : states) {
    const auto values = std::as_const(s.vars[0]).as<float>();
    rows.emplace_back(values.begin(), values.end());
  }
  return rows;
}

TEST(Collectives, SumsWithinGroupsOfAnyShape) {
  const std::string sum = "  next = f32[4] all-reduce(w), to_apply=sum, replica_groups=";
  const Rows all(4, {60, 64, 68, 72});
  EXPECT_EQ(run(step_of(sum + "{}")), all);
  EXPECT_EQ(run(step_of(sum + "{{3,1,0,2}}")), all);
  EXPECT_EQ(run(step_of(sum + "[1,4]<=[4]")), all);
  const Rows pairs = {{20, 22, 24, 26}, {40, 42, 44, 46}, {20, 22, 24, 26}, {40, 42, 44, 46}};
  EXPECT_EQ(run(step_of(sum + "{{0,2},{1,3}}")), pairs);
  EXPECT_EQ(run(step_of(sum + "[2,2]<=[2,2]T(1,0)")), pairs);
  const Rows uneven = {{50, 53, 56, 59}, {10, 11, 12, 13}, {50, 53, 56, 59}, {50, 53, 56, 59}};
  EXPECT_EQ(run(step_of(sum + "{{0,2,3},{1}}")), uneven);
}

TEST(Collectives, NumbersOfDevicesAreReplicasPartitionsOrBoth) {
  const std::string header = "replica_count=2, num_partitions=2";
  const std::string sum = "  next = f32[4] all-reduce(w), to_apply=sum";
  const Rows all(4, {60, 64, 68, 72});
  const Rows replicas = {{20, 22, 24, 26}, {40, 42, 44, 46}, {20, 22, 24, 26}, {40, 42, 44, 46}};
  const Rows neighbours = {{10, 12, 14, 16}, {10, 12, 14, 16}, {50, 52, 54, 56}, {50, 52, 54, 56}};
  EXPECT_EQ(run(step_of(sum + ", replica_groups={{0,1}}", header)), replicas);
  EXPECT_EQ(run(step_of(sum + ", channel_id=1, replica_groups={{0,1}}", header)), all);
  EXPECT_EQ(run(step_of(sum + ", channel_id=1, replica_groups={{0},{1}}", header)), neighbours);
  EXPECT_EQ(run(step_of(sum + ", channel_id=1, use_global_device_ids=true, "
                              "replica_groups={{0,1},{2,3}}",
                        header)),
            neighbours);
  const std::string swap =
      "  next = f32[4] collective-permute(w), source_target_pairs={{0,1},{1,0}}";
  EXPECT_EQ(run(step_of(swap, header)),
            (Rows{{20, 21, 22, 23}, {30, 31, 32, 33}, {0, 1, 2, 3}, {10, 11, 12, 13}}));
  EXPECT_EQ(run(step_of(swap + ", channel_id=1", header)),
            (Rows{{10, 11, 12, 13}, {0, 1, 2, 3}, {30, 31, 32, 33}, {20, 21, 22, 23}}));
}

TEST(Collectives, OtherReductionsGather) {
  EXPECT_EQ(run(step_of("  next = f32[4] all-reduce(w), to_apply=most, "
                        "replica_groups={{0,3},{1,2}}")),
            (Rows{{30, 31, 32, 33}, {20, 21, 22, 23}, {20, 21, 22, 23}, {30, 31, 32, 33}}));
  EXPECT_EQ(run(step_of("  next = f32[4] all-reduce(w), to_apply=product, "
                        "replica_groups={{0,1},{2,3}}"))[3],
            (std::vector<float>{600, 651, 704, 759}));
  EXPECT_EQ(
      run(step_of("  ten = f32[] constant(10)\n  tens = f32[4] broadcast(ten), "
                  "dimensions={}\n  p = pred[4] compare(w, tens), direction=GT\n  q = pred[4] "
                  "all-reduce(p), to_apply=both, replica_groups={{0,1},{2,3}}\n  next = f32[4] "
                  "convert(q)")),
      (Rows{{0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1}, {1, 1, 1, 1}}));
}

TEST(Collectives, GatherScatterAndExchange) {
  EXPECT_EQ(run(step_of("  g = f32[8] all-gather(w), dimensions={0}, replica_groups={{1,0},{2,3}}\n"
                        "  next = f32[4] slice(g), slice={[2:6]}")),
            (Rows{{12, 13, 0, 1}, {12, 13, 0, 1}, {22, 23, 30, 31}, {22, 23, 30, 31}}));
  EXPECT_EQ(run(step_of("  a = (f32[4], f32[8]) all-gather-start(w), dimensions={0}, "
                        "replica_groups={{0,1},{2,3}}\n  g = f32[8] all-gather-done(a)\n"
                        "  next = f32[4] slice(g), slice={[4:8]}"))[0],
            (std::vector<float>{10, 11, 12, 13}));
  EXPECT_EQ(run(step_of("  r = f32[2] reduce-scatter(w), dimensions={0}, to_apply=sum, "
                        "replica_groups={{0,1},{2,3}}\n  next = f32[4] concatenate(r, r), "
                        "dimensions={0}")),
            (Rows{{10, 12, 10, 12}, {14, 16, 14, 16}, {50, 52, 50, 52}, {54, 56, 54, 56}}));
  EXPECT_EQ(
      run(step_of("  next = f32[4] all-to-all(w), dimensions={0}, replica_groups={{0,1,2,3}}")),
      (Rows{{0, 10, 20, 30}, {1, 11, 21, 31}, {2, 12, 22, 32}, {3, 13, 23, 33}}));
  EXPECT_EQ(run(step_of("  h = f32[4] add(w, w)\n  u = (f32[4], f32[4]) all-to-all(w, h), "
                        "replica_groups={{0,1},{2,3}}\n  next = f32[4] get-tuple-element(u), "
                        "index=1")),
            (Rows{{10, 11, 12, 13}, {20, 22, 24, 26}, {30, 31, 32, 33}, {60, 62, 64, 66}}));
  EXPECT_EQ(run(step_of("  h = f32[4] add(w, w)\n  u = (f32[4], f32[4]) all-reduce(w, h), "
                        "to_apply=sum, replica_groups={}\n  next = f32[4] get-tuple-element(u), "
                        "index=1"))[2],
            (std::vector<float>{120, 128, 136, 144}));
}

TEST(Collectives, ThoseThatReceiveNothingGetZeros) {
  EXPECT_EQ(
      run(step_of("  next = f32[4] collective-permute(w), source_target_pairs={{0,1},{3,2}}")),
      (Rows{{0, 0, 0, 0}, {0, 1, 2, 3}, {30, 31, 32, 33}, {0, 0, 0, 0}}));
  EXPECT_EQ(run(step_of("  next = f32[4] collective-broadcast(w), replica_groups={{2,0}}")),
            (Rows{{20, 21, 22, 23}, {0, 0, 0, 0}, {20, 21, 22, 23}, {0, 0, 0, 0}}));
}

TEST(Collectives, ACoreKnowsItsNumber) {
  EXPECT_EQ(run(step_of("  r = u32[] replica-id()\n  three = u32[] constant(3)\n  m = u32[] "
                        "multiply(r, three)\n  two = u32[] constant(2)\n  q = u32[] remainder(m, "
                        "two)\n  s = s32[] convert(q)\n  f = f32[] convert(s)\n  next = f32[4] "
                        "broadcast(f), dimensions={}")),
            (Rows{{0, 0, 0, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}, {1, 1, 1, 1}}));
}

TEST(Collectives, GroupsThatMakeNoSenseAreRefused) {
  const auto refusal = [](const std::string& groups, const std::string& header) {
    return error_of(step_of("  next = f32[4] all-reduce(w), to_apply=sum, " + groups, header));
  };
  const std::string four = "replica_count=4";
  for (const auto& [groups, why] : std::vector<std::pair<std::string, std::string>>{
           {"replica_groups={{0,1},{2}}", "device 3 of 4 is in no group"},
           {"replica_groups={{0,1},{1,2,3}}", "device 1 twice"},
           {"replica_groups={{0,1,2,4}}", "replica 4 of 4"},
           {"replica_groups={{0,1,2,-7}}", "replica -7 of 4"},
           {"replica_groups={{0,1},2}", "allowed: as in"},
           {"replica_groups={{0,one}}", "a list of numbers"},
           {"replica_groups=[2,3]<=[4]", "4 devices"},
           {"replica_groups=[2,2]<=[2,2]T(0,0)", "T(0,0) of 2 dimensions"},
           {"replica_groups=[2,1000000000]<=[2000000000]", "allowed: 1 to 512"},
           {"replica_groups={}, use_global_device_ids=true", "without channel_id"}})
    EXPECT_NE(refusal(groups, four).find(why), std::string::npos) << refusal(groups, four);
  EXPECT_NE(refusal("replica_groups={}", "replica_count=1000000000").find("allowed: 1 to 512"),
            std::string::npos);
  EXPECT_NE(refusal("replica_groups={}", "replica_count=-4").find("allowed: 1 to 512"),
            std::string::npos);
  EXPECT_NE(error_of(step_of("  next = f32[4] collective-permute(w), "
                             "source_target_pairs={{0,1},{2,1}}"))
                .find("a source or a target twice"),
            std::string::npos);
  EXPECT_NE(error_of(step_of("  next = f32[4] all-to-all(w), dimensions={0}, "
                             "replica_groups={{0,1,2},{3}}"))
                .find("groups of different sizes"),
            std::string::npos);
  EXPECT_NE(error_of(step_of("  g = f32[1] reduce-scatter(w), dimensions={1}, to_apply=sum, "
                             "replica_groups={}\n  next = f32[4] broadcast(g), dimensions={0}"))
                .find("dimensions=[1]"),
            std::string::npos);
}

// A shard_map in StableHLO, with its mesh and the sharding of its operand.
std::string mapped(const std::string& mesh, const std::string& sharding,
                   const std::string& local = "2") {
  return "module @m attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {\n"
         "  sdy.mesh @mesh = " +
         mesh +
         "\n  func.func public @main(%arg0: tensor<8xf32>) -> (tensor<8xf32>, tensor<f32>) {\n"
         "    %0 = sdy.manual_computation(%arg0) in_shardings=[" +
         sharding + "] out_shardings=[" + sharding +
         "] manual_axes={\"x\", \"y\"} (%arg1: tensor<" + local +
         "xf32>) {\n      %1 = stablehlo.add %arg1, %arg1 : tensor<" + local +
         "xf32>\n      sdy.return %1 : tensor<" + local +
         "xf32>\n    } : (tensor<8xf32>) -> tensor<8xf32>\n"
         "    %cst = stablehlo.constant dense<0.5> : tensor<f32>\n"
         "    return %0, %cst : tensor<8xf32>, tensor<f32>\n  }\n}\n";
}

TEST(Collectives, ShardingsThatMakeNoSenseAreRefused) {
  const std::string mesh = "<[\"x\"=4]>", sharding = "<@mesh, [{\"x\"}]>";
  EXPECT_EQ(error_of(mapped(mesh, sharding)), "");
  EXPECT_EQ(error_of(mapped("<[\"x\"=2, \"y\"=2]>", "<@mesh, [{\"y\", \"x\"}]>")), "");
  EXPECT_EQ(error_of(mapped("<[\"x\"=4], device_ids=[3, 1, 0, 2]>", sharding)), "");
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {mapped(mesh, "<@mesh, [{\"z\"}]>"), "axis 'z' does not exist"},
           {mapped(mesh, "<@grid, [{\"x\"}]>"), "there is no mesh @grid"},
           {mapped(mesh, "<@mesh, [{\"x\", \"x\"}]>"), "axis 'x' splits an array twice"},
           {mapped(mesh, "<@mesh, [{\"x\"}, {}]>"), "a sharding of 2 dimensions"},
           {mapped(mesh, "<@mesh, [{\"x\":(1)2}]>"), "a part of axis 'x'"},
           {mapped(mesh, sharding, "3"), "declares f32[3], but its operands give f32[2]"},
           {mapped("<[\"x\"=3]>", sharding), "of 3 devices; the text has 4"},
           {mapped("<[\"x\"=1000000000]>", sharding), "allowed: 1 to 512"},
           {mapped("<[\"x\"=4], device_ids=[0, 1, 1, 2]>", sharding), "each once"},
           {mapped("<[\"x\"=4, \"x\"=1]>", sharding), "mesh <[\"x\"=4"},
           {mapped(mesh, "[{\"x\"}]"), "shardings"}})
    EXPECT_NE(error_of(text).find(why), std::string::npos) << why << "\n" << error_of(text);
}

TEST(Collectives, AnArrayThatDoesNotDivideIsRefused) {
  std::string text = mapped("<[\"x\"=4]>", "<@mesh, [{\"x\"}]>");
  for (size_t at = text.find("tensor<8x"); at != std::string::npos; at = text.find("tensor<8x"))
    text.replace(at, 9, "tensor<9x");
  EXPECT_NE(error_of(text).find("dimension 0 of f32[9] does not divide into 4"), std::string::npos)
      << error_of(text);
}

TEST(Collectives, AnnotationsAloneNeedOneCore) {
  const auto step = import_text(
      "HloModule m, num_partitions=8\nENTRY main {\n  w = f32[8]{0} parameter(0), "
      "sharding={devices=[8]<=[8]}\n  s = f32[8]{0} custom-call(w), "
      "custom_call_target=\"Sharding\", "
      "sharding={replicated}\n  next = f32[8]{0} add(s, w)\n  loss = f32[] constant(1)\n  ROOT t = "
      "(f32[8], f32[]) tuple(next, loss)\n}\n");
  ASSERT_TRUE(step) << step.error().message();
  EXPECT_EQ(step->program.sharding.cores, 1);
  EXPECT_TRUE(step->parts.empty());
}

}  // namespace
}  // namespace twinrun

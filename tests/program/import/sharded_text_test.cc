// Tests of damaged sharded texts: each import returns a program or an error that says where.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "program/import/core_layout.h"
#include "tests/program/import/texts.h"

namespace twinrun::import_tests {
namespace {

TEST(ShardedTexts, DamagedHloIsAValueOrAnError) {
  const std::vector<std::string> words = {"replica_groups={{0,1}}",
                                          "{{0,1},{2,3},{4,5},{6,7}}",
                                          "[4,2]<=[8]",
                                          "[2,4]<=[4,2]T(1,0)",
                                          "channel_id=0",
                                          "all-gather",
                                          "all-to-all",
                                          "collective-permute",
                                          "partition-id()",
                                          "dimensions={9}",
                                          "\"data\"",
                                          "{\\\"model\\\"}",
                                          "devices=[2,4]<=[8]",
                                          "{replicated}",
                                          "<@mesh, [{}]>",
                                          "1000000000",
                                          "xla.sdy.LocalToGlobalShape"};
  break_text(fixture("shard_forms.hlo"), words, 400);
  break_text(fixture("shard_tensor_gspmd.hlo"), words, 400);
  break_text(fixture("shard_tensor_spmd.hlo"), words, 400);
}

TEST(ShardedTexts, DamagedStableHloIsAValueOrAnError) {
  const std::vector<std::string> words = {"dense<[[0, 1], [2, 3]]>",
                                          "dense<\"0x0000000000000000\"> : tensor<1x1xi64>",
                                          "sdy.manual_computation(%arg0)",
                                          "in_shardings=[<@mesh, [{\"data\"}]>]",
                                          "manual_axes={\"data\"}",
                                          "sdy.return",
                                          "\"model\":(1)2",
                                          "?",
                                          "handle = 0",
                                          "stablehlo.all_gather",
                                          "@SPMDFullToShardShape",
                                          "#sdy.sharding_per_value<[<@mesh, [{}]>]>",
                                          "sdy.mesh @mesh = <[\"data\"=8]>",
                                          "#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = "
                                          "[#stablehlo.axis_ref<name = \"data\">]>",
                                          "-1"};
  break_text(fixture("shard_forms.mlir"), words, 400);
  break_text(fixture("shard_tensor_gspmd.mlir"), words, 400);
}

// As jaxlib 0.12 writes groups.
TEST(ShardedTexts, GroupsAlongAxesOfAMesh) {
  const auto lists = [](const std::string& mesh, const std::string& axes) {
    std::string text = "#stablehlo.replica_group_mesh_axes<mesh = " + mesh + ", axes = [";
    for (const char a : axes)
      text +=
          (text.back() == '[' ? "" : ", ") + fmt::format("#stablehlo.axis_ref<name = \"{}\">", a);
    return device_lists(text + "]>", "replica_groups");
  };
  const std::string mesh = "<[\"x\"=2, \"y\"=3]>";
  EXPECT_EQ(lists(mesh, "x"), (DeviceLists{{0, 3}, {1, 4}, {2, 5}}));
  EXPECT_EQ(lists(mesh, "y"), (DeviceLists{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(lists(mesh, "xy"), (DeviceLists{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(lists(mesh, "yx"), (DeviceLists{{0, 3, 1, 4, 2, 5}}));
  EXPECT_EQ(lists("<[\"x\"=2, \"y\"=2], device_ids=[3, 1, 2, 0]>", "y"),
            (DeviceLists{{3, 1}, {2, 0}}));
  for (const char* axes : {"z", "xx"}) EXPECT_THROW(lists(mesh, axes), Unsupported) << axes;
}

}  // namespace
}  // namespace twinrun::import_tests

// Tests what the graph page says of fusions: which ops run as one, and the frames around them.
#include "harness/check/drawing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "program/analysis/fusion.h"
#include "program/graph/liveness.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

bool inside(const Drawing::Box& box, const Drawing::Box& frame) {
  return std::abs(box.x - frame.x) + box.width / 2 <= frame.width / 2 &&
         std::abs(box.y - frame.y) + box.height / 2 <= frame.height / 2;
}
bool apart(const Drawing::Box& box, const Drawing::Box& frame) {
  return std::abs(box.x - frame.x) >= (box.width + frame.width) / 2 - 1 ||
         std::abs(box.y - frame.y) >= (box.height + frame.height) / 2 - 1;
}

// Every frame is around the boxes of its fusion and around no other. Returns the number of frames.
size_t check_frames(const GraphPage& page) {
  size_t count = 0;
  for (const DrawnPhase& phase : page.phases) {
    for (const DrawnGroup& group : phase.groups) {
      for (const Drawing::Frame& frame : group.inside.frames) {
        ++count;
        for (size_t i = 0; i < group.ops.size(); ++i) {
          const DrawnOp& op = page.ops[static_cast<size_t>(group.ops[i])];
          const Drawing::Box& box = group.inside.boxes[i];
          if (op.fusion == frame.fusion) {
            EXPECT_TRUE(inside(box, frame.box)) << op.name;
          } else {
            EXPECT_TRUE(apart(box, frame.box)) << op.name;
          }
        }
      }
    }
  }
  return count;
}

TEST(Drawing, FusionsAreThoseInWhichTheStepRuns) {
  const Checked checked = tiny::must(check_scenario("digits_cnn"));
  const GraphPage page = tiny::must(draw(checked));
  const Program& step = *checked.step;
  const FusionPlan plan = plan_fusion(step, constant_values(step));
  // What several fusions compute, each for itself, is drawn in the first of them.
  std::map<ValueId, size_t> first;
  size_t fusions = 0;
  for (const FusionGroup& group : plan.groups) {
    if (group.ops.size() < 2) continue;
    for (const FusedOp& op : group.ops) first.try_emplace(op.id, fusions);
    ++fusions;
  }
  EXPECT_GT(fusions, 10U);
  ASSERT_EQ(page.fusions.size(), fusions);
  for (ValueId id = 0; id < step.graph.size(); ++id) {
    const auto at = first.find(id);
    EXPECT_EQ(page.ops[static_cast<size_t>(id)].fusion,
              at == first.end() ? -1 : static_cast<int>(at->second))
        << step.graph.op(id).name;
  }
  EXPECT_GT(check_frames(page), 0U);
  const std::string html = to_html(page);
  EXPECT_NE(html.find("ops in one pass over"), std::string::npos);
  EXPECT_NE(html.find("one of " + std::to_string(page.fusions.size()) + " fusions"),
            std::string::npos);
}

TEST(Drawing, AFusionOfAModuleIsAGroup) {
  const Folder folder;
  const std::string file = folder / "step.hlo";
  std::ofstream(file) << R"(HloModule fused

fused_computation {
  param_0 = f32[8,128]{1,0} parameter(0)
  constant.1 = f32[] constant(0)
  broadcast.1 = f32[8,128]{1,0} broadcast(constant.1), dimensions={}
  ROOT maximum.1 = f32[8,128]{1,0} maximum(param_0, broadcast.1), metadata={op_name="jit(f)/relu1/max"}
}

ENTRY main {
  w = f32[8,128]{1,0} parameter(0)
  ROOT loop_fusion = f32[8,128]{1,0} fusion(w), kind=kLoop, calls=fused_computation
}
)";
  const GraphPage page = tiny::must(draw(tiny::must(check_program({.program = file}))));
  ASSERT_EQ(page.fusions.size(), 1U);
  EXPECT_EQ(page.fusions[0].first, "loop_fusion");
  EXPECT_EQ(page.fusions[0].second, "4 instructions, kLoop");
  const auto& groups = page.phases.at(0).groups;
  const auto group = std::ranges::find(groups, "loop_fusion", &DrawnGroup::name);
  ASSERT_NE(group, groups.end());
  EXPECT_EQ(group->ops.size(), 4U) << "the named instruction is not drawn elsewhere";
  for (const int op : group->ops) EXPECT_EQ(page.ops[static_cast<size_t>(op)].fusion, 0);
  EXPECT_EQ(check_frames(page), 1U);
}

}  // namespace
}  // namespace twinrun

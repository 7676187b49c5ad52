// Tests of the memory plan: values that are live at the same time never share memory, and a result
// takes over the memory of an operand only where it may be written over that operand.
#include "program/analysis/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/program/models.h"

namespace twinrun {
namespace {

struct Planned {
  Program program;
  FusionPlan fusion;
  MemoryPlan memory;
  std::vector<int> non_finite, last;  // the fusion units that write a value and that read it last

  explicit Planned(Program p) : program(std::move(p)) {
    const auto n = static_cast<size_t>(program.graph.size());
    const std::vector<bool> constant(n, false);
    fusion = plan_fusion(program, constant);
    memory = plan_memory(program, fusion, constant);
    non_finite.assign(n, -1);
    last = fusion.last_use;
    for (size_t u = 0; u < fusion.order.size(); ++u) {
      const FusionUnit& unit = fusion.order[u];
      if (unit.group < 0) non_finite[static_cast<size_t>(unit.op)] = static_cast<int>(u);
      if (unit.group < 0) continue;
      for (ValueId id : fusion.groups[static_cast<size_t>(unit.group)].stored)
        non_finite[static_cast<size_t>(id)] = static_cast<int>(u);
    }
  }
  // The value in whose memory `id` lies: a reshape shares the memory of its operand.
  ValueId root(ValueId id) const {
    while (program.graph.op(id).kind == OpKind::kReshape &&
           non_finite[static_cast<size_t>(id)] >= 0) {
      id = program.graph.op(id).operands[0];
    }
    return id;
  }
};

std::vector<Program> programs() {
  return {training_step(models::mlp()), training_step(models::mlp(8, models::adam())),
          training_step(models::cnn(16, models::momentum())),
          training_step(shard(models::cnn(16, models::momentum()), {.cores = 8})),
          training_step(shard(models::mlp(8, models::adam()),
                              {.cores = 4, .batchnorm = BatchNormSync::kSynced}))};
}

TEST(MemoryPlan, WhatIsNeededAtOnceLiesApart) {
  for (const Program& program : programs()) {
    const Planned p(program);
    const auto n = static_cast<size_t>(p.program.graph.size());
    std::vector<int> last = p.last;
    for (ValueId id = p.program.graph.size() - 1; id >= 0; --id) {
      if (p.non_finite[static_cast<size_t>(id)] < 0) continue;
      int& of_root = last[static_cast<size_t>(p.root(id))];
      of_root = std::max(of_root, last[static_cast<size_t>(id)]);
    }
    int planned = 0;
    for (size_t a = 0; a < n; ++a) {
      if (p.memory.offset[a] < 0) continue;
      ++planned;
      const int64_t a0 = p.memory.offset[a],
                    a1 = a0 + static_cast<int64_t>(
                                  p.program.graph.type(static_cast<ValueId>(a)).bytes());
      EXPECT_EQ(a0 % 64, 0);
      EXPECT_LE(a1, p.memory.bytes);
      EXPECT_LT(last[a], static_cast<int>(p.fusion.order.size())) << "outlives the step";
      for (size_t b = 0; b < n; ++b) {
        if (b == a || p.memory.offset[b] < 0 || p.memory.takes[b] == static_cast<ValueId>(a))
          continue;
        const int64_t b0 = p.memory.offset[b],
                      b1 = b0 + static_cast<int64_t>(
                                    p.program.graph.type(static_cast<ValueId>(b)).bytes());
        const bool together = p.non_finite[b] >= p.non_finite[a] &&
                              p.non_finite[b] <= last[a];  // b is written while a is needed
        EXPECT_FALSE(together && b0 < a1 && a0 < b1)
            << p.program.graph.op(static_cast<ValueId>(b)).name << " is written over "
            << p.program.graph.op(static_cast<ValueId>(a)).name;
      }
    }
    EXPECT_GT(planned, 5);
  }
}

TEST(MemoryPlan, EverythingThatDiesHasAPlace) {
  for (const Program& program : programs()) {
    const Planned p(program);
    for (size_t id = 0; id < p.non_finite.size(); ++id) {
      if (p.non_finite[id] < 0 || p.root(static_cast<ValueId>(id)) != static_cast<ValueId>(id))
        continue;
      EXPECT_TRUE(p.memory.offset[id] >= 0 || p.last[id] == static_cast<int>(p.fusion.order.size()))
          << p.program.graph.op(static_cast<ValueId>(id)).name;
    }
  }
}

TEST(MemoryPlan, StatesAreUpdatedInPlace) {
  for (const Program& program :
       {training_step(models::mlp(8, models::adam())),
        training_step(shard(models::cnn(16, models::momentum()), {.cores = 8}))}) {
    const Planned p(program);
    for (const StateVar& var : p.program.state) {
      if (var.role == StateRole::kParameter) {
        EXPECT_EQ(p.memory.takes[static_cast<size_t>(var.next)], var.id) << var.name;
      }
    }
  }
}

// The L2 sums of kernels are in the same fusion groups as the kernels' gradients. The loss reads
// these sums, but they must wait until the backward pass reaches their groups. If the groups ran
// early for them, all activations and their gradients would be live at once.
TEST(MemoryPlan, L2SumsDoNotPullTheBackwardPassForward) {
  const auto arena = [](double l2) {
    OptimizerSpec optimizer = models::momentum();
    optimizer.l2 = l2;
    const Planned p(
        training_step(build_forward(Mode::kTraining, 8, {{8, 8, 4}}, 7, optimizer, [](Layers& net) {
          for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
            net.conv2d(name, {.filters = 4, .kernel = 3, .weights = {.bias = false}});
            net.relu(std::string("relu_") + name);
          }
          net.flatten("flatten");
          net.dense("dense", 3);
          net.softmax_cross_entropy(3, {Reducer::kMean});
        })));
    return static_cast<double>(p.memory.bytes);
  };
  EXPECT_LT(arena(1e-4), 1.1 * arena(0));
}

// The slope of GELU is computed from values that its gradient reads anyway. It must be computed in
// the backward pass, so that nothing of it is kept from the forward pass.
TEST(MemoryPlan, GeluKeepsNoSlope) {
  const Planned p(
      training_step(build_forward(Mode::kTraining, 8, {{12}}, 7, models::adam(), [](Layers& net) {
        net.dense("up", 40);
        net.gelu("gelu", false);
        net.dense("down", 3);
        net.softmax_cross_entropy(3, {Reducer::kMean});
      })));
  const ValueId slope = p.program.graph.find("gelu/erf.slope"),
                gradient = p.program.graph.find("gelu/erf.grad");
  ASSERT_NE(slope, kNoValue);
  ASSERT_NE(gradient, kNoValue);
  EXPECT_EQ(p.non_finite[static_cast<size_t>(slope)], -1) << "stored";
  int in = 0;
  for (const FusionGroup& group : p.fusion.groups) {
    const auto has = [&](ValueId id) {
      return std::ranges::any_of(group.ops, [&](const FusedOp& op) { return op.id == id; });
    };
    if (!has(slope)) continue;
    ++in;
    EXPECT_TRUE(has(gradient));
  }
  EXPECT_EQ(in, 1);
}

// With several replicas no value in the arena takes over memory: replica 0 would overwrite what
// replica 1 has yet to read.
TEST(MemoryPlan, ReplicasTakeNothingInTheArena) {
  const Planned p(training_step(shard(models::cnn(16, models::momentum()), {.cores = 8})));
  for (size_t id = 0; id < p.non_finite.size(); ++id) {
    if (p.memory.offset[id] >= 0) {
      EXPECT_EQ(p.memory.takes[id], kNoValue);
    }
  }
}

TEST(MemoryPlan, MemoryIsUsedAgain) {
  const Planned p(training_step(models::cnn(16, models::momentum())));
  int64_t sum = 0;
  for (size_t id = 0; id < p.non_finite.size(); ++id) {
    if (p.memory.offset[id] >= 0)
      sum += static_cast<int64_t>(p.program.graph.type(static_cast<ValueId>(id)).bytes());
  }
  EXPECT_LT(p.memory.bytes, sum / 2);
}

}  // namespace
}  // namespace twinrun

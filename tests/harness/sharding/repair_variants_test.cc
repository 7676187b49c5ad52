// Tests of the axes that groups of cores lie along, in the order of the mesh, and of what each core
// gets from an exchange that is written otherwise.
#include "harness/sharding/repair_variants.h"

#include <gtest/gtest.h>

namespace twinrun {
namespace {

// <["model"=2, "data"=3]>, of which the names are in another order than the axes.
std::vector<MeshAxis> mesh() {
  return {{"model", 2, {0, 0, 0, 1, 1, 1}}, {"data", 3, {0, 1, 2, 0, 1, 2}}};
}

TEST(OtherCollectives, GroupsAreNamedByTheAxesOfTheMesh) {
  const std::vector<MeshAxis> axes = mesh();
  EXPECT_EQ(groups_along(axes, {"data"}), (JoinedCores{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(groups_along(axes, {"model"}), (JoinedCores{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(axes_of({0, 0, 0, 1, 1, 1}, axes), "data");
  EXPECT_EQ(axes_of({0, 1, 2, 0, 1, 2}, axes), "model");
  EXPECT_EQ(axes_of(JoinedCores(6, 0), axes), "model, data");
  EXPECT_EQ(axes_of({0, 0, 1, 1, 2, 2}, axes), "groups of 2 cores");
  EXPECT_EQ(axes_of(JoinedCores(4, 0), {}), "all cores");
  using Sets = std::vector<std::vector<std::string>>;
  EXPECT_EQ(sets_of_axes(axes), (Sets{{"model"}, {"data"}, {"model", "data"}}));
  EXPECT_EQ(sets_of_axes({}), Sets());
}

// Three cores place a number each in a table of three rows, and take row (core + 1) % 3.
TEST(OtherCollectives, AnExchangeGoesTheOtherWay) {
  Program p;
  GraphBuilder b(p.graph);
  const ValueId x = b.parameter("x", {DType::kF32, {1, 1}}),
                row = b.parameter("row", {DType::kI32, {1}});
  const ValueId sum =
      b.all_reduce(b.scatter_add(row, x, {3, 1}, "x.placed"), "x.all_reduce@a.py:4");
  p.outputs.push_back({"rows", sum});
  ReplicaWalk::Values given(3, std::vector<Tensor>(static_cast<size_t>(p.graph.size())));
  ReplicaWalk::Values tables(3);
  for (int core = 0; core < 3; ++core) {
    const auto r = static_cast<size_t>(core);
    given[r][static_cast<size_t>(x)] = Tensor::zeros({DType::kF64, {1, 1}});
    given[r][static_cast<size_t>(row)] = Tensor::scalar_i32(core).reshaped({1});
    tables[r].push_back(Tensor::zeros({DType::kF64, {3, 1}}));
    tables[r][0].as<double>()[r] = 10 + core;
  }
  const ReplicaWalk::Eval placed = [](const Op& op, std::span<const Tensor>) -> Result<Tensor> {
    return Tensor::zeros({DType::kF64, op.type.dims});
  };
  const auto flow = RepairFlow::make(p, given, placed, {});
  ASSERT_TRUE(flow) << flow.error().message();
  Exchange exchange;
  exchange.sum = p.graph.op(sum).name;
  exchange.source = {1, 2, 0};
  const std::vector<OtherCollective> others = other_collectives(p, *flow, {}, {{exchange}});
  ASSERT_EQ(others.size(), 2u);
  EXPECT_EQ(others[0].cause, "wrong_direction");
  EXPECT_EQ(others[0].first, sum);
  // What each core reads, by its source, in the tables that it gets instead.
  const auto read = [&](const OtherCollective& other) {
    std::vector<double> out;
    const std::vector<Tensor> got = other.instead.at(sum)(tables);
    for (size_t core = 0; core < 3; ++core)
      out.push_back(got[core].as<const double>()[static_cast<size_t>(exchange.source[core])]);
    return out;
  };
  EXPECT_EQ(read(others[0]), (std::vector<double>{12, 10, 11}));
  EXPECT_EQ(others[1].facts.at("words"), "no exchange");
  EXPECT_EQ(read(others[1]), (std::vector<double>{10, 11, 12}));
}

}  // namespace
}  // namespace twinrun

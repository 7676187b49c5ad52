// Tests the evaluation of several programs side by side: the same bits as one by one, with every
// shared op computed once, and sets that need little more memory than one program.
#include "backends/oracle/replica_walk.h"

#include <gtest/gtest.h>

#include "backends/oracle/oracle.h"
#include "tests/backends/small_programs.h"

namespace twinrun {
namespace {

using Values = ReplicaWalk::Values;

// `ops` multiplications by x in a row, then, from value `branch` on, additions of y instead.
Program chain(int ops, int branch) {
  small::Hand h;
  const ValueId x = h.input("x", {DType::kF32, {8}}), y = h.input("y", {DType::kF32, {8}});
  ValueId v = x;
  for (int i = 0; i < ops; ++i) {
    const std::string name = "v" + std::to_string(i);
    v = i < branch ? h.b.mul(v, x, name) : h.b.add(v, y, name);
  }
  h.p.outputs.push_back({"v", v});
  h.p.sharding.cores = 2;
  return h.p;
}

Values given(const Program& program) {
  Values values(2, std::vector<Tensor>(static_cast<size_t>(program.graph.size())));
  for (size_t r = 0; r < 2; ++r) {
    const double low = r == 0 ? 0.5 : 0.75;
    for (const Input& input : program.inputs) {
      values[r][static_cast<size_t>(input.id)] =
          input.name == "learning_rate"
              ? Tensor::scalar(0)
              : small::f64({8}, small::generic(8, low, 1, input.name == "x" ? 1 : 2));
    }
  }
  return values;
}

TEST(ReplicaWalk, ProgramsTogetherHaveTheBitsOfEachAlone) {
  const std::vector<Program> programs = {chain(40, 40), chain(40, 35), chain(40, 38)};
  Capabilities declared;
  int evaluated = 0;
  const ReplicaWalk::Eval eval = [&](const Op& op,
                                     std::span<const Tensor> operands) -> Result<Tensor> {
    ++evaluated;
    return eval_value(declared, op, operands, nullptr);
  };
  std::vector<const Program*> all;
  std::vector<Values> alone, together;
  for (const Program& program : programs) {
    all.push_back(&program);
    alone.push_back(given(program));
    together.push_back(given(program));
    ASSERT_TRUE(ReplicaWalk(program).run(alone.back(), eval, [](auto...) {}).ok());
  }
  EXPECT_EQ(evaluated, 3 * 40 * 2) << "each op on both replicas";
  evaluated = 0;
  std::vector<int> seen(3, 0);
  ASSERT_TRUE(
      walk_together(all, together, eval, [&](size_t program, auto...) { ++seen[program]; }).ok());
  EXPECT_EQ(evaluated, (40 + 5 + 2) * 2) << "shared ops once";
  EXPECT_EQ(seen, std::vector<int>(3, 40)) << "all programs show all their ops";
  for (size_t p = 0; p < programs.size(); ++p) {
    const auto id = static_cast<size_t>(programs[p].outputs[0].id);
    for (size_t r = 0; r < 2; ++r)
      EXPECT_TRUE(together[p][r][id].same_bits(alone[p][r][id])) << p << ", replica " << r;
  }
}

TEST(ReplicaWalk, OnlyProgramsThatAddLittleAreInOneSet) {
  // Of 43 results with the inputs, a quarter is 10.
  const std::vector<Program> programs = {chain(40, 40), chain(40, 34), chain(40, 20),
                                         chain(40, 37), chain(40, 35), chain(40, 21)};
  std::vector<const Program*> all;
  for (const Program& program : programs) all.push_back(&program);
  const std::vector<std::vector<size_t>> sets = alike(all);
  EXPECT_EQ(sets, (std::vector<std::vector<size_t>>{{0, 1, 3}, {2}, {4}, {5}}));
}

}  // namespace
}  // namespace twinrun

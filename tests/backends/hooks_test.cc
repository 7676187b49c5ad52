// Tests of hooks before, in place of and after an op: the values that the hooks, other ops and the
// trace see, and on which replicas the hooks are called.
#include <gtest/gtest.h>

#include "tests/backends/small_programs.h"

namespace twinrun::hooks_test {
namespace {

using small::all_reduce_program;
using small::f32;
using small::Hand;
using small::numbers;
using small::Recorder;
using small::Trial;
using Vec = std::vector<double>;

// Doubles the first input of the op `target` and adds 100 to its result, in step 1.
class Meddler : public OpHooks {
 public:
  bool watches(const Program& p, ValueId id, int64_t step) override {
    return step == 1 && p.graph.op(id).name == target;
  }
  void before(const OpSite& site, std::vector<Tensor>& inputs) override {
    sites.push_back(site.replica);
    inputs[0] = inputs[0].clone();
    for (float& v : inputs[0].as<float>()) v *= 2;
  }
  void after(const OpSite&, const std::vector<Tensor>& inputs, Tensor& output) override {
    after_saw = numbers(inputs[0]);
    for (float& v : output.as<float>()) v += 100;
  }
  std::string target = "y";
  std::vector<int> sites;
  Vec after_saw;
};

TEST(Hooks, SeePrivateInputsWhileTheTraceShowsTheOriginals) {
  Hand h;
  const ValueId x = h.input("x", {DType::kF32, {2}});
  const ValueId y = h.b.add(x, x, "y"), z = h.b.mul(x, y, "z");
  h.p.outputs = {{"y", y}, {"z", z}};
  Trial t("cpu", h.p);
  t.set("x", f32({2}, {1, 3}));
  Meddler meddler;
  Recorder seen;
  t.step(0, &seen, &meddler);
  EXPECT_EQ(numbers(t.output("y")), (Vec{2, 6})) << "not watched at step 0";
  t.step(1, &seen, &meddler);
  EXPECT_EQ(numbers(t.output("y")), (Vec{103, 109})) << "2 x + x + 100";
  EXPECT_EQ(meddler.after_saw, (Vec{2, 6}));
  EXPECT_EQ(numbers(seen.seen.at("y").inputs[0][0]), (Vec{1, 3})) << "what the engine says it read";
  EXPECT_EQ(numbers(seen.seen.at("y").outputs[0]), (Vec{103, 109})) << "what it says it wrote";
  EXPECT_EQ(numbers(seen.seen.at("z").inputs[0][0]), (Vec{1, 3})) << "others read the original";
  EXPECT_EQ(numbers(t.output("z")), (Vec{103, 327}));
  EXPECT_EQ(meddler.sites, (std::vector<int>{0}));
}

TEST(Hooks, StandOnceAtACollective) {
  Trial t("cpu", all_reduce_program(3, 1));
  for (size_t r = 0; r < 3; ++r) t.set("x", f32({1}, {static_cast<float>(r + 1)}), r);
  Meddler meddler;
  meddler.target = "all_reduce";
  t.step(1, nullptr, &meddler);
  EXPECT_EQ(meddler.sites, (std::vector<int>{-1}));
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(numbers(t.output("sum", r)), (Vec{107}));
}

// Hooks must reach every replica even where the engine would share one computation.
TEST(Hooks, StandOnEveryReplica) {
  Hand h;
  const ValueId y = h.b.binary_scalar(OpKind::kAdd, h.input("x", {DType::kF32, {2}}), 1, "y");
  h.p.outputs = {{"y", y}};
  h.p.sharding.cores = 3;
  Trial t("cpu", h.p);
  t.set("x", f32({2}, {1, 2}));
  Meddler meddler;
  t.step(1, nullptr, &meddler);
  EXPECT_EQ(meddler.sites, (std::vector<int>{0, 1, 2}));
}

class Replacer : public OpHooks {
 public:
  bool watches(const Program& p, ValueId id, int64_t) override {
    return p.graph.op(id).name == "y";
  }
  bool replace(const OpSite&, const std::vector<Tensor>& inputs, Tensor& output) override {
    output = inputs[0].clone();
    return true;
  }
};

TEST(Hooks, ReplaceAnOp) {
  Hand h;
  const ValueId y = h.b.unary(OpKind::kTanh, h.input("x", {DType::kF32, {2}}), "y");
  h.p.outputs = {{"y", y}};
  Trial t("cpu", h.p);
  t.set("x", f32({2}, {5, 6}));
  Replacer replacer;
  t.step(0, nullptr, &replacer);
  EXPECT_EQ(numbers(t.output("y")), (Vec{5, 6}));
}

}  // namespace
}  // namespace twinrun::hooks_test

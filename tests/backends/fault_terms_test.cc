// Tests the terms that faulty accumulators add up: added correctly, they give the result of the
// engine, for every op that has terms.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "backends/faults/terms.h"
#include "program/base/bits.h"
#include "tests/backends/fault_trials.h"
#include "tests/reference/interpreter.h"
#include "tests/reference/op_cases.h"

namespace twinrun::fault_terms_test {
namespace {

using small::Recorder;
using small::Trial;

// A model with strides, dilation, groups and both kinds of padding.
Program convolutions() {
  return training_step(shard(
      build_forward(Mode::kTraining, 4, {{9, 8, 3}}, 1, {},
                    [](Layers& n) {
                      n.conv2d("strided", {.filters = 4, .kernel = 3, .stride = 2});
                      n.depthwise_conv2d("depthwise", {.filters = 2, .kernel = 3, .stride = 1});
                      n.conv2d("dilated", {.filters = 5,
                                           .kernel = 2,
                                           .dilation = 2,
                                           .padding = {Padding::Kind::kValid}});
                      n.flatten("flatten1");
                      n.dense("dense1", 3);
                      n.softmax_cross_entropy(3, {});
                    }),
      {.cores = small::kCores}));
}

// The error of n terms added in f32 in any order is at most (n - 1) u times the sum of their sizes
// to first order; allow twice that to be safe. Both the engine and this sum have such an error, so
// twice that again.
TEST(FaultTerms, AddUpToTheEnginesResult) {
  std::set<OpKind> seen_kinds;
  for (const Program& p : {small::image_net(), small::token_net(), convolutions()}) {
    Trial t("cpu", p);
    small::feed(t, 0);
    Recorder seen;
    t.step(0, &seen);
    for (const std::string& name : seen.order) {
      const ValueId id = p.graph.find(name);
      if (!has_terms(p, id)) continue;
      const Op& op = p.graph.op(id);
      seen_kinds.insert(op.kind);
      const std::vector<Tensor>& inputs = seen.seen.at(name).inputs[0];
      const Tensor& result = seen.output(name);
      std::vector<double> size(static_cast<size_t>(result.elements()), 0), n = size;
      each_addend(op, inputs, {}, [&](int64_t e, double term) {
        size[static_cast<size_t>(e)] += std::fabs(term);
        ++n[static_cast<size_t>(e)];
      });
      const Tensor sum = add_up(op, inputs, {}, [](float s, double term) {
        return static_cast<float>(static_cast<double>(s) + term);
      });
      for (size_t i = 0; i < size.size(); ++i) {
        const double divisor = is_mean(op) ? n[i] : 1;
        const double bound = 4 * (n[i] + 1) * 0x1p-24 * size[i] / divisor + 1e-40;
        EXPECT_NEAR(sum.as<float>()[i], result.as<float>()[i], bound) << name << " " << i;
      }
    }
  }
  EXPECT_EQ(
      seen_kinds,
      (std::set<OpKind>{OpKind::kDotGeneral, OpKind::kConvolution, OpKind::kConvolutionInputGrad,
                        OpKind::kConvolutionKernelGrad, OpKind::kReduce, OpKind::kScatterAdd,
                        OpKind::kReduceWindow, OpKind::kSelectAndScatter, OpKind::kAvgPoolGrad}));
}

// The terms of every case of every kind that has terms sum up to what the reference interpreter
// computes, whose index arithmetic is another.
TEST(FaultTerms, AreThoseOfTheReferenceInterpreter) {
  int compared = 0;
  for (int kind = 0; kind < kOpKinds; ++kind) {
    for (const OpCase& c : op_cases(static_cast<OpKind>(kind), DataClass::kNormal, 5)) {
      if (!is_sum_of_terms(c.op) || c.op.type.dtype != DType::kF32) continue;
      const Tensor result = reference_op(c.op, c.inputs, {});
      const Tensor &first = c.inputs.front(), &last = c.inputs.back();
      std::vector<double> sum(static_cast<size_t>(result.elements()), 0), size = sum, n = sum;
      for_each_term(c.op, c.inputs, [&](const SumTerm& t) {
        const auto i = static_cast<size_t>(t.result);
        const double term = last.as<float>()[static_cast<size_t>(t.b)] /
                            static_cast<double>(t.count) *
                            (t.a < 0 ? 1 : first.as<float>()[static_cast<size_t>(t.a)]);
        sum[i] += term;
        size[i] += std::fabs(term);
        ++n[i];
      });
      for (size_t i = 0; i < sum.size(); ++i) {
        if (class_of(c.op.kind) == OpClass::kDot) {
          EXPECT_LE(n[i], static_cast<double>(k_size(c.op, c.inputs))) << c.name;
        }
        const double mean = is_mean(c.op) ? n[i] : 1;
        EXPECT_NEAR(result.as<float>()[i], sum[i] / mean, 1e-5 * size[i] / mean + 1e-40)
            << c.name << " " << i;
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 50);
}

// The terms of a single product give the result of the emulated TPU, except for the rounding of the
// sum of its few passes (6 terms, 5 roundings).
TEST(FaultTerms, RoundOperandsAsDeclared) {
  const DotPrecision all[] = {DotPrecision::kF32, DotPrecision::kBf16, DotPrecision::kBf16x3,
                              DotPrecision::kBf16x6};
  std::vector<double> worst_gap;
  for (const DotPrecision precision : all) {
    double gap = 0;  // distance to the exact product, which depends on the precision
    for (uint32_t i = 0; i < 50; ++i) {
      const Tensor a = small::generic_f32({1, 1}, 0.5, 2, i),
                   b = small::generic_f32({1, 1}, 0.5, 2, 100 + i);
      const small::One op({a, b}, [](GraphBuilder& g, const std::vector<ValueId>& v) {
        return g.dot(v[0], v[1], 1, 0, "y");
      });
      Trial t("tpu", op.p, {.tpu = {.precision = precision}});
      t.set("a", a);
      t.set("b", b);
      t.step();
      double term = 0;
      each_addend(op.p.graph.op(op.p.graph.find("y")), {a, b}, {.precision = precision},
                  [&](int64_t, double v) { term += v; });
      EXPECT_NEAR(t.output("y").as<float>()[0], term, 5 * 0x1p-24 * term);
      const double exact = static_cast<double>(a.as<float>()[0]) * b.as<float>()[0];
      gap = std::max(gap, std::fabs(term / exact - 1));
    }
    worst_gap.push_back(gap);
  }
  EXPECT_EQ(worst_gap[0], 0);
  EXPECT_GT(worst_gap[1], 0x1p-10);  // each of the two operands is off by at most 2^-9
  EXPECT_GT(worst_gap[2], 0x1p-20);  // the low parts' product is missing
  EXPECT_LT(worst_gap[2], 0x1p-15);
  EXPECT_LT(worst_gap[3], 0x1p-22);
}

}  // namespace
}  // namespace twinrun::fault_terms_test

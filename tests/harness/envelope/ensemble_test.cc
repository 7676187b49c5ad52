// Tests whether a subject is one of the conforming engines: ranks by hand, and that the ranks of
// conforming subjects are uniform.
#include "harness/envelope/ensemble.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backends/variants/variant.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

// Four curves of one point, 0, 1, 5 and 7: for each, the second of its three distances is 5, 4, 4
// and 6.
TEST(Ensemble, RankByHand) {
  const EnsembleRow row = rank_of_first({{0}, {1}, {5}, {7}});
  EXPECT_DOUBLE_EQ(row.subject, 5);
  EXPECT_DOUBLE_EQ(row.low, 4);
  EXPECT_DOUBLE_EQ(row.high, 6);
  EXPECT_DOUBLE_EQ(row.p, 0.5);
  EXPECT_EQ(row.outcome, EnsembleOutcome::kInside);
  EXPECT_EQ(row.members, 3);
}

TEST(Ensemble, FarFromAllIsOutsideAndSoIsNaN) {
  std::vector<std::vector<double>> curves{{1e6}};
  for (const double x : {0.1, -0.2, 0.3, -0.4, 0.5, -0.15, 0.25, -0.35}) curves.push_back({x});
  const EnsembleRow far = rank_of_first(curves);
  EXPECT_DOUBLE_EQ(far.p, 1.0 / 9);
  EXPECT_EQ(far.outcome, EnsembleOutcome::kOutside);
  EXPECT_LT(far.high, 1);
  curves[0] = {std::nan("")};
  EXPECT_EQ(rank_of_first(curves).outcome, EnsembleOutcome::kOutside);
}

// Short runs may have losses that are equal to the bit. A subject that is one ulp away from them
// still conforms.
TEST(Ensemble, AnUlpIsNoDistance) {
  std::vector<std::vector<double>> curves(9, {2.3, 2.2});
  curves[0] = {std::nextafterf(2.3f, 3), 2.2};
  EXPECT_EQ(rank_of_first(curves).outcome, EnsembleOutcome::kInside);
  curves[0] = {2.31, 2.2};
  EXPECT_EQ(rank_of_first(curves).outcome, EnsembleOutcome::kOutside);
}

Result<std::vector<EnsembleRow>> compare(const Experiment& e, Backend& subject, int members,
                                         uint64_t seed) {
  return compare_ensemble(e, as_computed_by(subject.capabilities(), e.sharded(e.sharding)), subject,
                          {.members = members, .steps = 6, .threads = 1, .seed = seed});
}

TEST(Ensemble, ConformingIsInsideAndAFactorIsNot) {
  const Experiment e = tiny::experiment(tiny::kNormalized);
  auto tpu = tiny::backend("tpu");
  for (const EnsembleRow& row : tiny::must(compare(e, *tpu, 9, 1))) {
    EXPECT_EQ(row.outcome, EnsembleOutcome::kInside) << row.metric;
    EXPECT_GT(row.p, 0.1 - 1e-9);
  }
  const auto broken = tiny::faulty(tiny::backend("tpu"), "scale@dense1/kernel.grad,magnitude=1.5");
  EXPECT_DOUBLE_EQ(tiny::must(compare(e, *broken, 9, 1)).back().p, 0.1);
  const auto worse = tiny::faulty(tiny::backend("tpu"), "scale@dense1/kernel.grad,magnitude=1000");
  EXPECT_EQ(tiny::must(compare(e, *worse, 19, 1)).back().outcome, EnsembleOutcome::kOutside);
}

// Sixty conforming subjects with nine others each: ten ranks of equal probability. Chi squared with
// 9 degrees of freedom exceeds 52 with a probability below 1e-7.
TEST(EnsembleSlow, RanksOfConformingSubjectsAreUniform) {
  const Experiment e = tiny::experiment(tiny::kDense);
  constexpr int kSubjects = 60;
  std::vector<int> counts(10);
  for (uint64_t i = 0; i < kSubjects; ++i) {
    const Capabilities declared = draw_variant(5, DotPrecision::kBf16).declared;
    const auto subject = make_variant_backend(variant_within(1000 + i, declared), {});
    const double p = tiny::must(compare(e, *subject, 9, 100 * i)).back().p;
    ++counts[static_cast<size_t>(std::lround(10 * p)) - 1];
  }
  double chi = 0;
  for (const int n : counts) chi += (n - 6.0) * (n - 6.0) / 6.0;
  EXPECT_LT(chi, 52) << ::testing::PrintToString(counts);
}

}  // namespace
}  // namespace twinrun

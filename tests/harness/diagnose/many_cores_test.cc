// Tests of the chapter on many cores: what is derived from the program is what the runs measure.
#include "harness/diagnose/many_cores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/harness/tiny.h"

namespace twinrun::many_cores_test {
namespace {

struct Chapter {
  ManyCores derived;
  double measured = 0;  // the gradient norm of S over that of R, at the first step
};

Chapter chapter(const char* layers, Overrides overrides) {
  overrides.insert(overrides.end(), {{"tpu.cores", "16"}, {"train.batch", "64"}});
  DiagnoseOptions options;
  DiagnosisState diagnosis(options, nullptr, nullptr, tiny::experiment(layers, overrides));
  for (const char* run : {"R", "S"}) {
    const Program program = tiny::program(diagnosis.experiment, run[0] == 'S');
    diagnosis.runs[run] = tiny::must(train(diagnosis.experiment, program, *tiny::backend("cpu"),
                                           {.steps = 1, .evaluate = false}));
  }
  const auto norm = [&](const char* run) {
    return static_cast<double>(diagnosis.runs[run].file.steps[0].gradient_norm);
  };
  return {many_cores(diagnosis, {}), norm("S") / norm("R")};
}

const ManyCoresRow& asked(const Chapter& c) {
  return *std::ranges::find(c.derived.rows, true, &ManyCoresRow::asked);
}

TEST(ManyCores, TheGradientIsTheMultipleThatRunsMeasure) {
  struct Case {
    const char *loss, *cores;
    double factor;
  };
  for (const Case& c : {Case{"mean", "mean", 1}, Case{"mean", "sum", 16}, Case{"sum", "sum", 1},
                        Case{"sum", "mean", 1.0 / 16}}) {
    const Chapter found =
        chapter(tiny::kDense, {{"loss.reduction", c.loss}, {"tpu.reduction", c.cores}});
    ASSERT_TRUE(asked(found).gradient.has_value());
    EXPECT_EQ(*asked(found).gradient, c.factor) << c.loss << " of " << c.cores;
    // Norms of some thousand elements whose sums of 64 terms round by 64 * 2^-24 at most.
    EXPECT_NEAR(found.measured / c.factor, 1, 64 * 0x1p-24) << c.loss << " of " << c.cores;
    EXPECT_NE(found.derived.sentences.front().find("its norm is"), std::string::npos);
  }
  const Chapter none = chapter(tiny::kDense, {{"tpu.reduction", "none"}});
  EXPECT_FALSE(asked(none).gradient.has_value());
  EXPECT_EQ(asked(none).additions, 0);
}

TEST(ManyCores, RowsAreThoseThatDivideTheBatch) {
  const Chapter found = chapter(tiny::kNormalized, {});
  ASSERT_EQ(found.derived.rows.size(), 4u) << "1, 8, 16 and 64 cores; not 512";
  for (const ManyCoresRow& row : found.derived.rows) {
    EXPECT_EQ(row.samples * row.cores, 64);
    EXPECT_EQ(row.normalised, row.samples);
    EXPECT_EQ(row.statistic_noise, 1 / std::sqrt(static_cast<double>(row.samples)));
    EXPECT_EQ(row.additions, row.cores - 1);
    EXPECT_EQ(row.rounding_bound, (row.cores - 1) * 0x1p-24);
  }
  ASSERT_EQ(found.derived.sentences.size(), 3u);
  EXPECT_NE(found.derived.sentences[1].find("4 samples instead of 64"), std::string::npos)
      << found.derived.sentences[1];
}

TEST(ManyCores, SyncedStatisticsAreOfTheWholeBatchOrOfAGroup) {
  EXPECT_EQ(asked(chapter(tiny::kNormalized, {{"tpu.batchnorm", "synced"}})).normalised, 64);
  const Chapter groups =
      chapter(tiny::kNormalized, {{"tpu.batchnorm", "synced"}, {"tpu.batchnorm_group", "4"}});
  EXPECT_EQ(asked(groups).normalised, 16);
}

TEST(ManyCores, EightCoresHaveNoChapter) {
  DiagnoseOptions options;
  const DiagnosisState diagnosis(options, nullptr, nullptr, tiny::experiment(tiny::kDense));
  EXPECT_TRUE(many_cores(diagnosis, {}).rows.empty());
}

}  // namespace
}  // namespace twinrun::many_cores_test

// Tests bias below the bound: errors that stay inside every radius, but that no conforming engine
// has, are found within 50 steps, and conforming engines are never accused. The slow test is the
// calibration that docs/method/bounds.md quotes.
#include "harness/lockstep/bias.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <ostream>

#include "backends/registry.h"
#include "harness/experiment/engines.h"
#include "harness/lockstep/conforming.h"
#include "program/base/philox.h"
#include "tests/harness/watched.h"

namespace twinrun {
namespace {

using tiny::watch;
using tiny::Watched;

struct Below {
  const char* name;
  const char* engine;  // "cpu", "tpu", or "" for conforming variant 5
  DotPrecision precision;
  int cores;
  const char* layers;
  const char* fault;
  const char* op;
  int64_t step;
};
std::ostream& operator<<(std::ostream& out, const Below& b) { return out << b.name; }

class BiasBelowTheBound : public testing::TestWithParam<Below> {};

TEST_P(BiasBelowTheBound, IsFoundWithin50Steps) {
  const Below& b = GetParam();
  const Watched w = watch(
      *b.engine != 0 ? tiny::backend(b.engine, 1, b.precision) : tiny::variant(5, b.precision),
      b.layers, b.cores, 50, {}, b.fault);
  ASSERT_FALSE(w.log->runs.front().empty()) << "inert fault";
  ASSERT_FALSE(w.probe->violations().empty()) << "highest level " << w.probe->bias_counts().highest;
  const Violation& v = w.probe->violations().front();
  EXPECT_EQ(v.op, b.op) << w.all();
  EXPECT_EQ(v.what, Violation::What::kStatistic) << w.all();
  EXPECT_EQ(v.step, b.step) << w.all();
  ASSERT_TRUE(v.bias);
  EXPECT_GE(v.bias->steps, BiasWatch::kSteps);
  EXPECT_GE(v.bias->observations, BiasWatch::kResults);
  EXPECT_EQ(v.verdict.outside, 0);
  std::printf("%s: %s\n", b.name, v.fingerprint.c_str());
  for (const Violation& other : w.probe->violations()) EXPECT_EQ(other.op, b.op) << w.all();
}

constexpr DotPrecision kF32 = DotPrecision::kF32;
INSTANTIATE_TEST_SUITE_P(
    All, BiasBelowTheBound,
    testing::Values(
        Below{"TruncatedAccumulatorCpu", "cpu", tiny::kOnce, 1, tiny::kDense,
              "truncate_accumulator@dense1/dot_general,from=4", "dense1/dot_general", 4},
        Below{"TruncatedAccumulatorTpu8", "tpu", tiny::kOnce, 8, tiny::kDense,
              "truncate_accumulator@dense1/dot_general,from=4", "dense1/dot_general", 4},
        Below{"TruncatedAccumulatorVariant", "", kF32, 1, tiny::kDense,
              "truncate_accumulator@dense1/dot_general,from=4", "dense1/dot_general", 4},
        Below{"TruncatedOnOneCore", "tpu", tiny::kOnce, 8, tiny::kDense,
              "truncate_accumulator@dense1/dot_general,core=3", "dense1/dot_general", 0},
        Below{"ScaledBy3e-6", "cpu", tiny::kOnce, 1, tiny::kDense,
              "scale@dense1/dot_general,from=3,magnitude=1.000003", "dense1/dot_general", 3},
        // Ten sums per step: no single result is enough.
        Below{"TruncatedFewSums", "", kF32, 1, tiny::kDense,
              "truncate_accumulator@dense2/bias.grad,from=5", "dense2/bias.grad", 5},
        Below{"UlpsUpward", "tpu", tiny::kOnce, 1, tiny::kDense,
              "ulp_bias@dense1/dot_general,from=6,magnitude=2", "dense1/dot_general", 6}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase(name, '-');
      return name;
    });

// Dots of long sums, by hand: one lost term among thousands, or a result that is slightly too
// large.
class LongSum : public testing::Test {
 protected:
  // Observes the residuals of one dot [8, k] x [k, 8] for up to 8 steps. `spoil`, if set, makes the
  // results wrong.
  std::optional<BiasFinding> found(
      const Capabilities& declared, int64_t k,
      const std::function<void(const Op&, const std::vector<Tensor>&, Tensor&)>& spoil,
      const Variant& engine) {
    Graph graph;
    GraphBuilder b(graph);
    const ValueId x = b.parameter("x", {DType::kF32, {8, k}}),
                  w = b.parameter("w", {DType::kF32, {k, 8}});
    const ValueId y = b.dot(x, w);
    const Op& op = graph.op(y);
    BiasWatch watch(conforming_engines(declared), 1);
    std::optional<BiasFinding> finding;
    std::vector<int64_t> all(64);
    for (int64_t i = 0; i < 64; ++i) all[static_cast<size_t>(i)] = i;
    for (int64_t step = 0; step < 8 && !finding; ++step) {
      std::vector<Tensor> inputs;
      for (uint32_t i = 0; i < 2; ++i) {
        Tensor t = Tensor::empty(graph.op(static_cast<ValueId>(i)).type);
        uint64_t n = 0;
        for (float& v : t.as<float>())
          v = 2 * uniform(draw({7, i}, static_cast<uint32_t>(step), 0, n++)) - 1;
        inputs.push_back(t);
      }
      Tensor out = Tensor::empty(op.type);
      const auto conforming = variant_elements(engine, op, inputs, all);
      std::ranges::copy(conforming, out.as<float>().begin());
      if (spoil) spoil(op, inputs, out);
      const OracleResult oracle = eval_op(declared, op, inputs, nullptr);
      EXPECT_EQ(judge(oracle, out).outside, 0) << "the radius decides already";
      finding = watch.observe({step, 0, 1, y, &op, inputs, &out, &oracle});
      highest_ = watch.counts().highest;
    }
    return finding;
  }
  double highest_ = 0;
};

Capabilities any_order_f32() {
  Capabilities c;
  c.ours = false;
  return c;
}

TEST_F(LongSum, OneLostTermAmongThousands) {
  const Capabilities declared = any_order_f32();
  const auto lost = [](const Op&, const std::vector<Tensor>& in, Tensor& out) {
    for (int64_t i = 0; i < 64; ++i) {
      const int64_t k = in[0].dims()[1];
      out.as<float>()[static_cast<size_t>(i)] -= in[0].as<float>()[static_cast<size_t>(i / 8 * k)] *
                                                 in[1].as<float>()[static_cast<size_t>(i % 8)];
    }
  };
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const Variant engine = variant_within(seed, declared);
    const auto finding = found(declared, 9000, lost, engine);
    ASSERT_TRUE(finding) << "seed " << seed << " level " << highest_;
    EXPECT_EQ(finding->first_step, 0);
    EXPECT_FALSE(found(declared, 9000, nullptr, engine)) << "seed " << seed;
  }
}

TEST_F(LongSum, AResultThatIsALittleTooLarge) {
  const Capabilities declared = any_order_f32();
  const auto scaled = [](const Op&, const std::vector<Tensor>&, Tensor& out) {
    for (float& v : out.as<float>()) v *= 1.0001f;
  };
  const auto finding = found(declared, 6000, scaled, variant_within(3, declared));
  ASSERT_TRUE(finding);
  EXPECT_NEAR(finding->factor, 1.0001, 1e-5);
}

// Runs clean engines and counts what the watch sees; none may be accused. Few here, many in the
// slow test.
struct Clean {
  BiasCounts counts;
  int64_t diagnoses = 0, accused = 0;
  double highest = 0;
  void run(std::unique_ptr<Backend> subject, const char* layers, int cores, int64_t steps,
           const std::string& seed) {
    const std::string name = subject->capabilities().name + " " + subject->capabilities().settings;
    const Watched w = watch(std::move(subject), layers, cores, steps, {}, "", {{"seed", seed}});
    const BiasCounts& c = w.probe->bias_counts();
    ++diagnoses;
    accused += w.probe->violations().empty() ? 0 : 1;
    counts.results += c.results;
    counts.asked += c.asked;
    counts.beyond += c.beyond;
    counts.findings += c.findings;
    counts.opened += c.opened;
    counts.pooled = std::max(counts.pooled, c.pooled);
    highest = std::max(highest, c.highest);
    EXPECT_TRUE(w.probe->violations().empty()) << name << ", seed " << seed << "\n" << w.all();
  }
};

TEST(Bias, ConformingEnginesAreNotAccused) {
  Clean clean;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const int cores = seed == 2 ? 8 : 1;
    clean.run(tiny::backend("cpu"), tiny::kNormalized, cores, 20, std::to_string(seed));
    clean.run(tiny::backend("tpu"), tiny::kConvolutional, cores, 20, std::to_string(seed));
    clean.run(tiny::variant(seed, kF32), tiny::kNormalized, cores, 20, std::to_string(seed));
    clean.run(tiny::variant(seed + 100, tiny::kOnce), tiny::kConvolutional, cores, 20,
              std::to_string(seed));
  }
  EXPECT_GT(clean.counts.results, 500);
  EXPECT_GT(clean.counts.asked, 0);
  EXPECT_EQ(clean.counts.findings, 0);
}

// Other models: embeddings, attention, layer norm, depthwise convolutions, triplet loss. There must
// be no violation of any kind.
TEST(BiasSlow, NoConformingVariantIsAccusedOnTheDrillsScenarios) {
  const char* names[] = {"drill_mlp",       "drill_cnn",     "drill_attention",
                         "drill_depthwise", "drill_dropout", "drill_triplet"};
  const DotPrecision precisions[] = {kF32, DotPrecision::kBf16, DotPrecision::kBf16x3,
                                     DotPrecision::kBf16x6};
  double highest = 0, pooled = 0;
  int64_t results = 0, opened = 0;
  for (uint64_t seed = 0; seed < 36; ++seed) {
    const Experiment e = tiny::must(make_experiment(
        tiny::must(load_scenario(names[seed % 6], {{"seed", std::to_string(seed + 1)}}))));
    const auto subject = tiny::variant(seed + 500, precisions[seed / 6 % 4]);
    const Program program = e.sharded(e.sharding);
    ThreadPool pool(1);
    Lockstep probe(program, subject->capabilities(), {}, &pool);
    RunOptions options;
    options.observer = &probe;
    options.evaluate = false;
    tiny::must(train(e, program, *subject, options));
    if (probe.bias_counts().highest > 1.5) {
      std::printf("%s, %s: level %.1f of %s\n", names[seed % 6],
                  subject->capabilities().settings.c_str(), probe.bias_counts().highest,
                  probe.bias_counts().highest_at.c_str());
    }
    highest = std::max(highest, probe.bias_counts().highest);
    results += probe.bias_counts().results;
    opened += probe.bias_counts().opened;
    pooled = std::max(pooled, probe.bias_counts().pooled);
    for (const Violation& v : probe.violations()) {
      ADD_FAILURE() << names[seed % 6] << " " << subject->capabilities().name << " " << v.op
                    << " step " << v.step << ": " << v.elements << " " << v.link << " "
                    << v.fingerprint;
    }
  }
  std::printf("%lld results scored, highest level %.1f; %lld pools, at most %.2f of a finding\n",
              static_cast<long long>(results), highest, static_cast<long long>(opened), pooled);
}

// A run of hundreds of steps. Gradients before a batch norm of four samples cancel down to
// rounding: they are sums of four terms, which an engine with one order of summation may compute
// exactly where another may not.
TEST(BiasSlow, NoConformingEngineIsAccusedInALongRun) {
  const Experiment e =
      tiny::must(make_experiment(tiny::must(load_scenario("litmus_batchnorm_small"))));
  const Program program = e.sharded(e.sharding);
  for (const char* engine : {"tpu", "honest:1"}) {
    const auto subject = tiny::must(make_backend(engine, backend_options(e.scenario, 2)));
    ThreadPool pool(2);
    const Program own = as_computed_by(subject->capabilities(), program);
    Lockstep probe(own, subject->capabilities(), {}, &pool);
    RunOptions options;
    options.observer = &probe;
    options.evaluate = false;
    tiny::must(train(e, own, *subject, options));
    for (const Violation& v : probe.violations()) {
      ADD_FAILURE() << engine << " " << v.op << " step " << v.step << ": " << v.elements << " "
                    << v.fingerprint;
    }
  }
}

// The calibration in docs/method/bounds.md, "Bias below the bound".
TEST(BiasSlow, CalibrationOnConformingVariants) {
  Clean clean;
  std::map<int, int64_t> reached;
  const char* layers[] = {tiny::kDense, tiny::kNormalized, tiny::kConvolutional};
  const DotPrecision precisions[] = {DotPrecision::kF32, DotPrecision::kBf16, DotPrecision::kBf16x3,
                                     DotPrecision::kBf16x6};
  const char* text = std::getenv("TWINRUN_CALIBRATION");
  const uint64_t seeds = text == nullptr ? 60 : std::stoull(text);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    clean.highest = 0;
    clean.run(tiny::variant(seed, precisions[seed % 4]), layers[seed % 3], seed % 5 == 0 ? 8 : 1,
              20, std::to_string(1 + seed));
    for (int level = 1; level <= static_cast<int>(clean.highest); ++level) ++reached[level];
  }
  std::printf(
      "%lld diagnoses, %lld results scored, %lld compared with honest engines, %lld beyond, %lld "
      "findings; %lld pools, at most %.2f of a finding\n",
      static_cast<long long>(clean.diagnoses), static_cast<long long>(clean.counts.results),
      static_cast<long long>(clean.counts.asked), static_cast<long long>(clean.counts.beyond),
      static_cast<long long>(clean.counts.findings), static_cast<long long>(clean.counts.opened),
      clean.counts.pooled);
  for (const auto& [level, n] : reached)
    std::printf("level %d or more: %lld of %lld diagnoses\n", level, static_cast<long long>(n),
                static_cast<long long>(clean.diagnoses));
  EXPECT_EQ(clean.accused, 0);
}

}  // namespace
}  // namespace twinrun

// Tests that conforming variants train small models and lockstep accuses none of them, and that the
// program which a subject runs by its declared formulas means what the reference's means.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/variants/variant.h"
#include "harness/lockstep/lockstep.h"
#include "harness/tensors/distance.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

constexpr DotPrecision kPrecisions[] = {DotPrecision::kF32, DotPrecision::kBf16,
                                        DotPrecision::kBf16x3, DotPrecision::kBf16x6};

// Runs three steps of one variant and replays every op.
void expect_clean(uint64_t seed) {
  constexpr const char* kModels[] = {tiny::kDense, tiny::kNormalized, tiny::kConvolutional};
  constexpr const char* kOptimizers[] = {"momentum", "adam", "sgd", "rmsprop"};
  const int cores = 1 << (seed % 4);
  const Experiment e =
      tiny::experiment(kModels[seed % 3], {{"tpu.cores", std::to_string(cores)},
                                           {"optimizer.kind", kOptimizers[seed / 3 % 4]},
                                           {"seed", std::to_string(seed + 1)}});
  const Variant v = draw_variant(seed, kPrecisions[seed / 2 % 4]);
  const auto backend = make_variant_backend(v, {});
  const Program program = as_computed_by(v.declared, tiny::program(e, cores > 1));
  ThreadPool pool(1);
  Lockstep probe(program, v.declared, {}, &pool);
  RunOptions options;
  options.steps = 3;
  options.observer = &probe;
  options.evaluate = false;
  tiny::must(train(e, program, *backend, options));
  for (const Violation& violation : probe.violations()) {
    ADD_FAILURE() << v.declared.name << " " << v.declared.settings << " seed " << seed << ": "
                  << violation.op << " at step " << violation.step << ": " << violation.elements
                  << violation.link << ", " << violation.verdict.worst << " times its bound";
  }
  EXPECT_EQ(probe.summary("T", 3).steps_probed, 3);
}

TEST(ConformingTraining, IsNotAccused) {
  for (uint64_t seed = 0; seed < 16; ++seed) expect_clean(seed);
}
TEST(ConformingTraining, SlowIsNotAccused) {
  for (uint64_t seed = 100; seed < 500; ++seed) expect_clean(seed);
}

// All gradients and the state after one step, in binary64.
std::vector<double> one_step(const Experiment& e, const Program& program) {
  const auto engine = *tiny::backend("cpu:f64")->prepare(program);
  Feed feed(e.data->train, e.feed_options(e.scenario.train.batch));
  States states = initial_states(program, 3);
  StepOutputs outputs;
  tiny::must(engine->step(
      0, states, tiny::must(step_inputs(program, e.scenario, tiny::must(feed.batch(0)), 0)),
      outputs));
  std::vector<double> all;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    if (!program.outputs[i].name.ends_with(".grad")) continue;
    const auto gradient = as_doubles(outputs[0][i]);
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  for (const Tensor& t : states[0].vars) {
    const auto numbers = as_doubles(t);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  return all;
}

TEST(Variance, HasFormulasOfTheSameMeaning) {
  using Variance = Sharding::Variance;
  Capabilities declared;
  declared.one_pass_variance = true;
  for (const char* layers : {tiny::kNormalized, tiny::kConvolutional}) {
    for (const char* sync : {"per_core", "synced"}) {
      for (const bool sharded : {false, true}) {
        const Experiment e = tiny::experiment(layers, {{"tpu.batchnorm", sync}});
        const Program two = tiny::program(e, sharded), one = as_computed_by(declared, two);
        EXPECT_NE(to_text(one).find("mean_of_squares"), std::string::npos);
        for (const Program& other : {one, with_variance(two, Variance::kMeanHeld)}) {
          EXPECT_NE(to_text(other), to_text(two));
          EXPECT_EQ(other.state.size(), two.state.size());
          EXPECT_EQ(other.couplings, two.couplings);
          const std::vector<double> a = one_step(e, other), b = one_step(e, two);
          ASSERT_EQ(a.size(), b.size());
          RelativeDistance distance;
          distance.add(a, b);
          // 2^-53 times (mean / deviation)^2 of a channel; where a channel hardly varies, epsilon
          // takes the place of its variance.
          EXPECT_LT(distance.value(), 1e-11) << sync << " " << sharded;
        }
      }
    }
  }
  // Without batch norm, or if not declared, the program stays as it is.
  const Experiment dense = tiny::experiment(tiny::kDense);
  const Program program = dense.whole();
  EXPECT_EQ(to_text(as_computed_by(declared, program)), to_text(program));
  EXPECT_EQ(to_text(as_computed_by({}, program)), to_text(program));
}

}  // namespace
}  // namespace twinrun

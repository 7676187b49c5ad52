// Tests that two mistakes at once are both named: a difference of the script, and a fault of its
// engine (or two differences of the script).
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/identify/identify.h"
#include "harness/run/run.h"
#include "tests/harness/subjects.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

struct Pair {
  std::string layers;
  Overrides asked;                  // the scenario
  Overrides own;                    // where the script differs from the scenario
  std::vector<const char*> causes;  // causes of sharding that the script has
  const char* fault;                // the fault of its engine; "": none
  std::vector<const char*>
      named;  // settings or causes that must be named; of "a|b", which are one program, either
  const char* tensor;  // the first tensor outside; "": none, all is explained
  std::string own_layers = {};
};

Identification identify_pair(const Pair& p) {
  Overrides with = p.asked, own = p.asked;
  with.emplace_back("tpu.cores", "4");
  own.emplace_back("tpu.cores", "4");
  own.insert(own.end(), p.own.begin(), p.own.end());
  const Experiment e = tiny::experiment(p.layers.c_str(), with);
  Sharding sharding = e.sharding;
  for (const char* cause : p.causes) sharding = introduce(e, sharding, cause);
  auto engine = tiny::backend("tpu", 1, DotPrecision::kF32);
  if (*p.fault != 0) engine = tiny::faulty(std::move(engine), p.fault);
  const std::string& layers = p.own_layers.empty() ? p.layers : p.own_layers;
  tiny::OwnScript subject(tiny::experiment(layers.c_str(), own), sharding, std::move(engine));
  const Program asked = e.sharded(e.sharding);
  tiny::KeptSteps kept;
  RunOptions options;
  options.observer = &kept;
  options.evaluate = false;
  options.steps = 5;
  tiny::must(train(e, asked, subject, options));
  const std::vector<ProbedState> few = {kept.states[0], kept.states[2], kept.states[4]};
  return tiny::must(identify_program(e, asked, subject, few, {.history = &kept.states}));
}

std::string text_of_pair(const Identification& m) {
  std::string out;
  const auto add = [&](const char* how, const Explanation& x) {
    out += how;
    for (const auto& part : x.parts) out += " " + part.cause;
    out += "\n";
  };
  for (const Explanation& x : m.explanations) add("explained by", x);
  if (m.beside) add("beside", *m.beside);
  for (const TensorMismatch& t : m.outside)
    out += t.tensor + " at " + std::to_string(t.step) + ": " + std::to_string(t.ratio) + " " +
           t.pattern + (t.follows ? " (follows)" : "") + "\n";
  return out;
}

void expect_both(const Pair& p) {
  const Identification m = identify_pair(p);
  const std::string text_of = std::string(p.fault) + "\n" + text_of_pair(m);
  const bool explained = *p.tensor == 0;
  ASSERT_EQ(m.outcome,
            explained ? Identification::Outcome::kExplained : Identification::Outcome::kUnexplained)
      << text_of;
  std::vector<Explanation::Part> parts;
  if (m.beside) parts = m.beside->parts;
  if (explained) parts = m.explanations.front().parts;
  for (const std::string named : p.named) {
    const size_t bar = named.find('|');
    EXPECT_TRUE(std::ranges::any_of(
        parts,
        [&](const Explanation::Part& part) {
          return part.cause.find(named.substr(0, bar)) != std::string::npos ||
                 (bar != std::string::npos && part.cause == named.substr(bar + 1));
        }))
        << named << " of " << text_of;
  }
  if (explained) return;
  ASSERT_FALSE(m.outside.empty()) << text_of;
  EXPECT_EQ(m.outside.front().tensor, p.tensor) << text_of;
}

const Overrides kAdam = {{"optimizer.kind", "adam"}, {"optimizer.epsilon", "1e-3"}};
const Overrides kOwnEpsilon = {{"optimizer.epsilon_form", "torch"}};

TEST(BesideSlow, AnEpsilonAndAGradientThatLacksACore) {
  expect_both({tiny::kDense,
               kAdam,
               kOwnEpsilon,
               {},
               "drop_core@dense1/kernel.grad.all_reduce,core=3",
               {"epsilon_form"},
               "dense1/kernel.grad"});
}
TEST(BesideSlow, AnEpsilonAndAStaleCore) {
  expect_both({tiny::kDense,
               kAdam,
               kOwnEpsilon,
               {},
               "stale_core@dense2/kernel.grad.all_reduce,core=1,from=1",
               {"epsilon_form"},
               "dense2/kernel.grad"});
}
// The fault changes every gradient. The formula is identified from the updates, given the gradients
// as the engine reports them.
TEST(BesideSlow, AnEpsilonAndAllGradientsWrong) {
  expect_both({tiny::kDense,
               kAdam,
               kOwnEpsilon,
               {},
               "drop_core@*.grad.all_reduce,core=2",
               {"epsilon_form"},
               "dense2/bias.grad"});
}
TEST(BesideSlow, AnEpsilonAndAFaultOfTheForwardPass) {
  expect_both({tiny::kDense,
               kAdam,
               kOwnEpsilon,
               {},
               "scale@dense1/dot_general,magnitude=1.2",
               {"epsilon_form"},
               "loss"});
}
TEST(BesideSlow, ARateAndAGradientThatLacksACore) {
  expect_both({tiny::kDense,
               {},
               {},
               {"rate_over_cores"},
               "drop_core@*.grad.all_reduce,core=0",
               {"rate_over_cores"},
               "dense2/bias.grad"});
}
TEST(BesideSlow, ASumForAMeanAndAZeroedRow) {
  expect_both({tiny::kDense,
               {},
               {},
               {"unscaled"},
               "zero_rows@dense1/kernel.grad.all_reduce",
               {"unscaled|reduction"},
               "dense1/kernel.grad"});
}
TEST(BesideSlow, AnEpsilonOfBatchNormAndALostUpdate) {
  std::string own = tiny::kConvolutional;
  own.replace(own.find("momentum = 0.9"), 14, "momentum = 0.9\nepsilon = 1e-5");
  expect_both({tiny::kConvolutional,
               {{"tpu.batchnorm", "synced"}},
               {},
               {},
               "stale_weights@dense1/kernel.update",
               {"batch_norm"},
               "dense1/kernel",
               own});
}
TEST(BesideSlow, SmoothingAndATurnedGradient) {
  expect_both({tiny::kDense,
               {{"loss.smoothing", "0.1"}},
               {{"loss.smoothing", "0"}},
               {},
               "scale@dense1/bias.grad.all_reduce,magnitude=-1",
               {"smoothing"},
               "dense1/bias.grad"});
}
TEST(BesideSlow, ASumForAMeanAndBatchNormOfEachCore) {
  expect_both({tiny::kConvolutional,
               {{"tpu.batchnorm", "synced"}},
               {},
               {"unscaled", "batch_norm"},
               "",
               {"unscaled|reduction", "batch_norm"},
               ""});
}
// For an engine fault alone, no formula is named beside it.
TEST(BesideSlow, AFaultAloneIsAlone) {
  for (const char* fault :
       {"drop_core@*.grad.all_reduce,core=2", "stale_weights@dense2/kernel.update,step=2",
        "scale@dense1/dot_general,magnitude=1.2"}) {
    const Identification m = identify_pair({tiny::kDense, kAdam, {}, {}, fault, {}, ""});
    EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained) << fault << text_of_pair(m);
    EXPECT_FALSE(m.beside) << fault << text_of_pair(m);
  }
}

}  // namespace
}  // namespace twinrun

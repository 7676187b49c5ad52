// Tests the held-out accuracy of models of tokens against one computed here from the weights: with
// an embedding and a dense layer, a token has the same logits at every position.
#include "harness/run/evaluate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using tiny::must;

std::string scenario_text(const std::string& data, int classes) {
  return data + R"(
[[model.layers]]
kind = "embedding"
units = 4
[[model.layers]]
kind = "dense"
units = )" +
         std::to_string(classes) + R"(
[train]
batch = 8
steps = 1
[tpu]
cores = 1
)";
}

// The first largest logit of every token: the sum over 4 units in ascending order, with fma, from
// +0.
std::vector<int64_t> best_of_tokens(const Tensor& table, const Tensor& kernel) {
  const int64_t classes = kernel.dims()[1];
  std::vector<int64_t> best;
  for (int64_t token = 0; token < table.dims()[0]; ++token) {
    std::vector<float> logits(static_cast<size_t>(classes));
    for (int64_t c = 0; c < classes; ++c) {
      for (int64_t k = 0; k < 4; ++k) {
        logits[static_cast<size_t>(c)] =
            std::fma(table.as<float>()[static_cast<size_t>(token * 4 + k)],
                     kernel.as<float>()[static_cast<size_t>(k * classes + c)],
                     logits[static_cast<size_t>(c)]);
      }
    }
    best.push_back(std::ranges::max_element(logits) - logits.begin());
  }
  return best;
}

// The accuracy that the evaluator must find, and the number of labels that it is over.
struct Expected {
  double accuracy = 0;
  int64_t labels = 0;
};

Expected expected(const Experiment& e, const States& states) {
  const auto& vars = states[0].vars;  // table, kernel, bias (zero), in the order of layers
  const std::vector<int64_t> best = best_of_tokens(vars[0], vars[1]);
  const Samples& s = e.data->eval;
  int64_t right = 0, all = 0;
  for (size_t i = 0; i < static_cast<size_t>(s.labels.elements()); ++i) {
    if (s.weights.valid() && s.weights.as<const float>()[i] == 0.0f) continue;
    right += best[static_cast<size_t>(s.features.as<const int32_t>()[i])] ==
             s.labels.as<const int32_t>()[i];
    ++all;
  }
  return {static_cast<double>(right) / static_cast<double>(all), all};
}

void check(const std::string& text, int64_t labels) {
  const Scenario scenario = must(parse_scenario(text, "tokens.toml"));
  const Experiment e = must(make_experiment(scenario));
  const Program program = e.whole();
  Evaluator evaluator(e, 1);
  bool distinguished = false;
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    const States states = initial_states(program, seed);
    const Expected wanted = expected(e, states);
    EXPECT_EQ(wanted.labels, labels);
    EXPECT_EQ(must(evaluator.evaluate(program, states, 0)).accuracy, wanted.accuracy) << seed;
    distinguished = distinguished || wanted.accuracy > 0;
  }
  EXPECT_TRUE(distinguished) << "all accuracies are 0: the test says nothing";
}

// 300 windows of 16, in batches of 256 and 44.
TEST(Evaluate, EveryTokenCounts) {
  check(scenario_text("[data]\nsource = \"text_synthetic\"\nwindow = 16\ntrain = 16\neval = 300\n",
                      26),
        300 * 16);
}

// Samples 18 and 19 of the fixture have 4 and 5 tokens; the labels of padding do not count.
TEST(Evaluate, PaddingDoesNotCount) {
  check(
      scenario_text("[data]\nsource = \"npz\"\ndir = \"" TWINRUN_SOURCE_DIR
                    "/tests/scenarios/fixtures\"\nfiles = [\"tokens.npz\"]\nweight = \"weights\"\n"
                    "vocabulary = 10\nclasses = 10\n",
                    10),
      4 + 5);
}

}  // namespace
}  // namespace twinrun

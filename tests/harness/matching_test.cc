// Which program did a subject run? Told from its tensors alone.
#include "harness/matching.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/faults/other_program.h"
#include "harness/run.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

// States of the subject's own run before some of its steps.
class Keeper : public StepObserver {
 public:
  explicit Keeper(std::vector<int64_t> steps) : steps_(std::move(steps)) {}
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs&) override {
    if (std::ranges::find(steps_, step) != steps_.end()) states.push_back({step, before});
    return nullptr;
  }
  std::vector<MatchState> states;

 private:
  std::vector<int64_t> steps_;
};

MatchResult match(const Experiment& e, Backend& subject, std::vector<int64_t> steps = {0, 3}) {
  const Program asked = e.sharded(e.sharding);
  Keeper keeper(steps);
  RunOptions options;
  options.observer = &keeper;
  options.evaluate = false;
  options.steps = steps.back() + 1;
  tiny::must(train(e, asked, subject, options));
  return tiny::must(match_subject(e, asked, subject, keeper.states, {}));
}

bool names(const MatchResult& m, const std::string& cause) {
  return std::ranges::any_of(m.explanations, [&](const Explanation& x) {
    return x.parts.size() == 1 && x.parts[0].cause == cause;
  });
}

std::string told(const MatchResult& m) {
  std::string out = "outcome " + std::to_string(static_cast<int>(m.outcome)) + ", ratio " +
                    std::to_string(m.ratio) + " of " + std::to_string(m.threshold);
  for (const Explanation& x : m.explanations) {
    out += "\n  explained by";
    for (const auto& part : x.parts) out += (part.introduced ? " +" : " -") + part.cause;
    out += " " + std::to_string(x.ratio);
  }
  for (const TensorMismatch& t : m.outside) {
    out += "\n  " + t.tensor + " on " + std::to_string(t.replica) + " at " +
           std::to_string(t.step) + ": " + std::to_string(t.ratio) + ", " + t.pattern;
  }
  return out;
}

// A model with everything that a cause can act on.
constexpr const char* kRich = R"(
[[model.layers]]
kind = "flatten"
[[model.layers]]
kind = "dense"
units = 12
[[model.layers]]
kind = "batch_norm"
momentum = 0.9
[[model.layers]]
kind = "relu"
[[model.layers]]
kind = "dropout"
rate = 0.25
[[model.layers]]
kind = "dense"
units = 10
)";
const Overrides kEverything = {{"tpu.batchnorm", "synced"},
                               {"optimizer.clip", "global_norm"},
                               {"optimizer.clip_at", "0.5"},
                               {"optimizer.l2", "0.01"}};

Experiment rich(int cores) {
  Overrides o = kEverything;
  o.emplace_back("tpu.cores", std::to_string(cores));
  return tiny::experiment(kRich, o);
}

class Hidden : public testing::TestWithParam<int> {};

// Each cause by itself, run in secret: told apart from all others but those of its class.
TEST_P(Hidden, EachCauseIsNamed) {
  const Experiment e = rich(GetParam());
  ASSERT_TRUE(sharding_causes(e).empty());
  for (const std::string& cause : possible_causes(e)) {
    const auto subject = with_other_program(tiny::backend("tpu"), [&](Sharding s) {
      return introduce(e, s, cause);
    });
    const MatchResult m = match(e, *subject);
    EXPECT_EQ(m.outcome, MatchResult::Outcome::kExplained) << cause << ": " << told(m);
    EXPECT_TRUE(names(m, cause)) << cause << ": " << told(m);
    RecordProperty(cause, told(m));
    printf("%s: %s\n", cause.c_str(), told(m).substr(0, 400).c_str());
  }
}
INSTANTIATE_TEST_SUITE_P(Cores, Hidden, testing::Values(2, 8));

}  // namespace
}  // namespace twinrun

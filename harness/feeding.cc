#include "harness/feeding.h"

#include <algorithm>

namespace twinrun {
namespace {

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) { return x.same_bits(y); });
}

// What each core is fed of an input.
std::vector<Tensor> column(const StepInputs& inputs, size_t input) {
  std::vector<Tensor> out;
  for (const auto& core : inputs) out.push_back(core[input]);
  return out;
}

}  // namespace

Result<std::vector<std::string>> feeding_causes(const Experiment& e, const Program& asked,
                                                const std::vector<Violation>& violations) {
  Feed feed(e.data->train, e.feed_options(e.scenario.train.batch));
  std::vector<std::string> causes;
  for (const std::string& cause : possible_causes(e)) {
    Program fed = asked;
    fed.sharding = introduce(e, asked.sharding, cause);
    if (fed.sharding.feeding == asked.sharding.feeding) continue;
    bool explains = true;
    for (const Violation& v : violations) {
      if (v.what != Violation::What::kFeed || !explains) continue;
      TWINRUN_ASSIGN(const Batch batch, feed.batch(v.step));
      TWINRUN_ASSIGN(const StepInputs due, step_inputs(asked, e.scenario, batch, v.step));
      TWINRUN_ASSIGN(const StepInputs theirs, step_inputs(fed, e.scenario, batch, v.step));
      for (size_t i = 0; i < asked.inputs.size(); ++i) {
        const std::string& name = asked.inputs[i].name;
        const auto told = std::ranges::find_if(violations, [&](const Violation& w) {
          return w.what == Violation::What::kFeed && w.step == v.step && w.input == name;
        });
        // An input that nobody reads is not told of.
        if (told == violations.end()) {
          const bool read = std::ranges::any_of(asked.graph.ops(), [&](const Op& op) {
            return std::ranges::find(op.operands, asked.inputs[i].id) != op.operands.end();
          });
          explains = explains && (!read || same(column(due, i), column(theirs, i)));
        } else {
          explains = explains && same(told->read, column(theirs, i));
        }
      }
    }
    if (explains) causes.push_back(cause);
  }
  return causes;
}

}  // namespace twinrun

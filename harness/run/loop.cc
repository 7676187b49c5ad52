// The training loops of the host: when they end, and what has to wait for their end.
#include "harness/run/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace twinrun {

void end_of_loop(const Scenario& scenario, States& states, int64_t step) {
  const int64_t loop = scenario.tpu.iterations_per_loop;
  if ((loop > 0 && (step + 1) % loop == 0) || step + 1 == scenario.train.steps) {
    for (size_t r = 1; r < states.size(); ++r) states[r] = states[0];
  }
}

HostLoop::HostLoop(const Scenario& scenario, int cores, std::string_view engine)
    : iterations_(cores > 1 || engine == "tpu" ? scenario.tpu.iterations_per_loop : 0) {}

bool HostLoop::expected(int64_t every, int64_t done) const {
  if (every <= 0) return false;
  if (!loops()) return done % every == 0;
  return done % iterations_ == 0 && done / every > (done - iterations_) / every;
}

std::string HostLoop::stopping(int64_t step, int64_t last) const {
  const int64_t end = std::min(last, (step / iterations_ + 1) * iterations_);
  return fmt::format(
      "interrupted inside a loop of {} steps (tpu.iterations_per_loop): stops at its end, after {} "
      "steps; another Ctrl-C stops at once and writes nothing",
      iterations_, end);
}

std::string HostLoop::note(const TrainSpec& train) const {
  if (!loops()) return "";
  std::string out;
  for (const auto& [key, every] : {std::pair{"log_every", train.log_every},
                                   {"eval_every", train.eval_every},
                                   {"checkpoint_every", train.checkpoint_every}}) {
    if (every <= 0 || every % iterations_ == 0) continue;
    out += fmt::format("{}train.{} = {}", out.empty() ? "" : ", ", key, every);
  }
  if (out.empty()) return out;
  return fmt::format(
      "loops of {} steps (tpu.iterations_per_loop); actions inside a loop wait for its end: {}",
      iterations_, out);
}

}  // namespace twinrun

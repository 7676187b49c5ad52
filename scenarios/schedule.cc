// The formulas of the learning rate schedules.
#include "scenarios/schedule.h"

#include <algorithm>
#include <cmath>

#include "program/base/math64.h"

namespace twinrun {
namespace {

// `step` as a fraction of decay_steps, at most 1.
double share_done(const OptimizerConfig& c, int64_t step) {
  return static_cast<double>(std::min(step, c.decay_steps)) / static_cast<double>(c.decay_steps);
}

double exponential(const OptimizerConfig& c, int64_t step) {
  double periods = static_cast<double>(step) / static_cast<double>(c.decay_steps);
  if (c.staircase) periods = static_cast<double>(step / c.decay_steps);
  return c.lr * math64::exp2(periods * math64::log2(c.decay_rate));
}

double cosine(const OptimizerConfig& c, int64_t step) {
  const double fallen = 0.5 * (1.0 + math64::cos_pi(share_done(c, step)));
  return c.lr * ((1.0 - c.alpha) * fallen + c.alpha);
}

// The rate after the last boundary below `step`: the step of a boundary still has the rate before
// it.
double piecewise(const OptimizerConfig& c, int64_t step) {
  const auto passed = std::ranges::lower_bound(c.boundaries, step) - c.boundaries.begin();
  return passed == 0 ? c.lr : c.values[static_cast<size_t>(passed - 1)];
}

double polynomial(const OptimizerConfig& c, int64_t step) {
  double share = share_done(c, step);
  if (c.cycle && step > c.decay_steps) {
    // The period ends at the first multiple of decay_steps that is not below `step`.
    const int64_t periods = step / c.decay_steps + (step % c.decay_steps != 0 ? 1 : 0);
    share = static_cast<double>(step) /
            (static_cast<double>(c.decay_steps) * static_cast<double>(periods));
  }
  return (c.lr - c.end_lr) * math64::power(1.0 - share, c.power) + c.end_lr;
}

double scheduled(const OptimizerConfig& c, int64_t step) {
  if (c.schedule == "exponential") return exponential(c, step);
  if (c.schedule == "cosine") return cosine(c, step);
  if (c.schedule == "piecewise") return piecewise(c, step);
  if (c.schedule == "polynomial") return polynomial(c, step);
  return c.lr;
}

}  // namespace

float learning_rate(const OptimizerConfig& c, int64_t at) {
  const int64_t step = std::max<int64_t>(0, at + c.schedule_offset);
  if (step < c.warmup_steps) {
    const double share = static_cast<double>(step) / static_cast<double>(c.warmup_steps);
    return static_cast<float>(c.lr * share);
  }
  return static_cast<float>(scheduled(c, step - c.warmup_steps));
}

}  // namespace twinrun

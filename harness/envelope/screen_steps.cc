// Repeats every step on the reference, scores its distances, and keeps the steps with the highest
// scores.
#include "harness/envelope/screen_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/oracle/rounding.h"
#include "backends/registry.h"
#include "harness/experiment/engines.h"
#include "harness/lockstep/links.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

// A distance is compared with the median of the last kRecent steps, because distances late in a
// training differ from those at its beginning. The first kEarly steps are scored anew with each
// step that is added, so that they are judged together.
constexpr size_t kRecent = 32;
constexpr int64_t kEarly = 16;
// The least median that a distance is divided by, in units of rounding: a quarter of one rounding
// is too small a measure for other distances.
constexpr double kFloor = 0.25;
constexpr int64_t kMemory = int64_t{512} << 20;  // bytes, for the steps that are kept
constexpr size_t kLeftOutKept = 3;
constexpr uint32_t kStreamSteps = kStreamSample + 0xffffff;  // the number of no op
constexpr int64_t kSampled = 6;                              // steps that the seed draws
// The factor by which clipping multiplies is rounded, so the norm of a clipped gradient may end
// slightly below the limit. A norm of at least this fraction of the limit counts as clipped.
constexpr double kClipped = 1 - 0x1p-16;

// The rounding of a product's operands: how far a conforming engine's result may be off, as a share
// of itself.
double rounding_of(DotPrecision precision) {
  switch (precision) {
    case DotPrecision::kBf16:
      return 0x1p-9;
    case DotPrecision::kBf16x3:
      return 0x1p-16;
    default:
      return oracle::kUnit;
  }
}

double median(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return static_cast<double>(*middle);
}

bool is_clipped(const OptimizerSpec& spec, double size) { return size >= kClipped * spec.clip_at; }

}  // namespace

std::vector<int64_t> sampled_steps(int64_t steps, int64_t count, uint64_t seed) {
  std::vector<int64_t> out{0};
  const int64_t between = std::max<int64_t>(0, steps - 2);
  count = std::min(count, between);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = 1 + i * between / count, end = 1 + (i + 1) * between / count;
    const uint32_t drawn = draw({seed, kStreamSteps}, static_cast<uint32_t>(i), 0, 0);
    out.push_back(begin + bounded(drawn, static_cast<uint32_t>(end - begin)));
  }
  if (steps > 1) out.push_back(steps - 1);
  return out;
}

Result<std::unique_ptr<Engine>> reference_of(const Experiment& e, const Program& program,
                                             const Capabilities& declared, int threads) {
  BackendOptions o = backend_options(e.scenario, threads);
  o.tpu.precision = declared.precision;
  const bool whole = declared.precision == DotPrecision::kF32;
  TWINRUN_ASSIGN(const auto backend, make_backend(whole ? "cpu" : "tpu", o));
  return backend->prepare(program);
}

Result<std::unique_ptr<StepScreen>> StepScreen::make(StepObserver& inner, const Experiment& e,
                                                     const Program& program,
                                                     const Capabilities& declared, int64_t steps,
                                                     int threads, int64_t most) {
  TWINRUN_ASSIGN(auto engine, reference_of(e, program, declared, threads));
  std::unique_ptr<StepScreen> screen(new StepScreen(inner, std::move(engine), program));
  const std::vector<bool> alike = uniform_values(program);
  for (Compared& c : compared_tensors(program)) {
    Tracked t;
    t.alike = c.is_state && alike[static_cast<size_t>(c.id)];
    t.what = std::move(c);
    screen->tensors_.push_back(std::move(t));
  }
  screen->share_ = rounding_of(declared.precision);
  screen->steps_ = steps;
  screen->most_ = most;
  screen->seed_ = e.scenario.seed;
  return screen;
}

void StepScreen::choose(const States& states) {
  int64_t bytes = 1;
  for (const ReplicaState& replica : states) {
    for (const Tensor& var : replica.vars) bytes += 2 * static_cast<int64_t>(var.bytes());
  }
  for (const Output& output : program_.outputs)
    bytes += static_cast<int64_t>(program_.graph.type(output.id).bytes() * states.size());
  const int64_t room = std::clamp<int64_t>(kMemory / bytes, 3, std::max<int64_t>(3, most_));
  const int64_t drawn = room >= steps_ ? steps_ : std::min(kSampled, (room - 2) / 3);
  sampled_ = sampled_steps(steps_, drawn, seed_);
  candidates_ =
      static_cast<size_t>(std::max<int64_t>(0, room - static_cast<int64_t>(sampled_.size())));
}

TraceSink* StepScreen::begin_step(int64_t step, const States& before, const StepInputs& inputs) {
  if (sampled_.empty()) choose(before);
  before_ = before;
  inputs_ = inputs;
  return inner_.begin_step(step, before, inputs);
}

void StepScreen::end_step(int64_t step, const States& after, const StepOutputs& outputs) {
  if (update_left_out(program_, before_, after, outputs)) {
    left_out_.push_back(step);
    if (of_left_out_.size() < kLeftOutKept) of_left_out_.push_back({step, before_, after, outputs});
  } else if (!failed_) {
    States expected = before_;
    StepOutputs expected_outputs;
    if (const Status done = reference_->step(step, expected, inputs_, expected_outputs); !done) {
      failed_ = done.error();
    } else {
      Kept now;
      now.looks.assign(tensors_.size() * kAspects, 0);
      compare(after, outputs, expected, expected_outputs, now.looks);
      watch_clipping(outputs);
      now.state = {step, before_, after, outputs};
      now.sampled = std::ranges::find(sampled_, step) != sampled_.end();
      for (size_t t = 0; t < tensors_.size(); ++t) {
        for (size_t a = 0; a < kAspects; ++a) {
          std::vector<float>& recent = tensors_[t].recent[a];
          if (recent.size() < kRecent) recent.push_back(0);
          recent[static_cast<size_t>(screened_) % kRecent] = now.looks[t * kAspects + a];
        }
      }
      ++screened_;
      set_scores(now);
      keep(std::move(now));
    }
  }
  before_.clear();
  inputs_.clear();
  inner_.end_step(step, after, outputs);
}

// Measures each aspect in units of rounding: that of the stored values, and that of product
// operands for the expected change.
void StepScreen::compare(const States& after, const StepOutputs& outputs,
                         const States& expected_states, const StepOutputs& expected_outputs,
                         std::vector<float>& looks) {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    Tracked& tracked = tensors_[t];
    const Compared& c = tracked.what;
    const auto reported = [&](const States& s, const StepOutputs& o, size_t r) -> const Tensor& {
      return c.is_state ? s[r].vars[c.index] : o[r][c.index];
    };
    const auto raise = [&](Aspect aspect, double value) {
      float& look = looks[t * kAspects + aspect];
      // A value that is not a number counts as the largest.
      if (!(value <= static_cast<double>(look)))
        look = std::isnan(value) ? INFINITY : static_cast<float>(value);
    };
    for (size_t r = 0; r < after.size(); ++r) {
      const Tensor &x = reported(after, outputs, r),
                   &expected = reported(expected_states, expected_outputs, r);
      const bool one_state =
          !c.is_state || before_[r].vars[c.index].same_bits(before_[0].vars[c.index]);
      if (r > 0 && one_state && x.same_bits(reported(after, outputs, 0)) &&
          expected.same_bits(reported(expected_states, expected_outputs, 0)))
        continue;
      const float *p = x.as<float>().data(), *q = expected.as<float>().data();
      const float* b = c.is_state ? before_[r].vars[c.index].as<float>().data() : nullptr;
      // Replica 0, for what all replicas should compute alike.
      const float* p0 = reported(after, outputs, 0).as<float>().data();
      const float* b0 = c.is_state ? before_[0].vars[c.index].as<float>().data() : nullptr;
      double gap = 0, changed = 0, stored = 0, along_expected = 0, along_stored = 0, apart = 0;
      for (int64_t i = 0; i < c.elements; ++i) {
        const auto held = static_cast<double>(q[i]);
        const double off = static_cast<double>(p[i]) - held;
        const double change = b == nullptr ? held : held - static_cast<double>(b[i]);
        gap += off * off;
        changed += change * change;
        stored += held * held;
        along_expected += change * off;
        along_stored += held * off;
      }
      if (tracked.alike && r > 0) {
        for (int64_t i = 0; i < c.elements; ++i) {
          const double mine = static_cast<double>(p[i]) - static_cast<double>(b[i]);
          const double other = static_cast<double>(p0[i]) - static_cast<double>(b0[i]);
          apart += (mine - other) * (mine - other);
        }
      }
      tracked.moved = tracked.moved || changed > 0;
      // For a tensor of zeros the unit is the smallest normal number.
      const double unit =
          oracle::kUnit * std::sqrt(stored) + share_ * std::sqrt(changed) + 0x1p-126;
      raise(kNorm, std::sqrt(gap) / unit);
      if (c.elements > 1 && changed > 0)
        raise(kExpected, std::fabs(along_expected) / std::sqrt(changed) / unit);
      if (c.elements > 1 && c.is_state && stored > 0)
        raise(kHeld, std::fabs(along_stored) / std::sqrt(stored) / unit);
      // What follows from one gradient on all replicas is rounded in binary32 only.
      if (tracked.alike && r > 0)
        raise(kReplicas, std::sqrt(apart) /
                             (oracle::kUnit * (std::sqrt(stored) + std::sqrt(changed)) + 0x1p-126));
    }
  }
}

void StepScreen::watch_clipping(const StepOutputs& outputs) {
  const OptimizerSpec& spec = program_.optimizer;
  if (spec.clip == OptimizerSpec::Clip::kNone) return;
  double all = 0;
  for (const Tracked& tracked : tensors_) {
    if (tracked.what.is_state || !tracked.what.tensor.ends_with(".grad")) continue;
    double squares = 0, largest = 0;
    for (const float g : outputs[0][tracked.what.index].as<float>()) {
      squares += static_cast<double>(g) * static_cast<double>(g);
      largest = std::max(largest, std::fabs(static_cast<double>(g)));
    }
    all += squares;
    const double size = spec.clip == OptimizerSpec::Clip::kValue ? largest : std::sqrt(squares);
    if (spec.clip != OptimizerSpec::Clip::kGlobalNorm)
      largest_gradient_ = std::max(largest_gradient_, size);
  }
  if (spec.clip == OptimizerSpec::Clip::kGlobalNorm)
    largest_gradient_ = std::max(largest_gradient_, std::sqrt(all));
  clipped_ = clipped_ || is_clipped(spec, largest_gradient_);
}

void StepScreen::set_scores(Kept& kept) const {
  double gradients = 1, states = 0;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    for (size_t a = 0; a < kAspects; ++a) {
      const auto look = static_cast<double>(kept.looks[t * kAspects + a]);
      if (look == 0) continue;
      // Independent errors are smaller along one direction, by the root of their number.
      const bool direction = a == kExpected || a == kHeld;
      const double floor =
          direction ? kFloor / std::sqrt(static_cast<double>(tensors_[t].what.elements)) : kFloor;
      const double score = look / std::max(floor, median(tensors_[t].recent[a]));
      double& worst = tensors_[t].what.is_state ? states : gradients;
      worst = std::max(worst, std::isnan(score) ? INFINITY : score);
    }
  }
  kept.score = std::max(gradients, states);
  kept.alone = std::isinf(gradients) ? 0 : states / gradients;
}

// Of the candidates, half are kept by their score, the rest by how far their states are off without
// their gradients. A decision that depends on rounding changes gradients and what follows from
// them, and happens far more often than an engine error.
void StepScreen::keep(Kept now) {
  kept_.push_back(std::move(now));
  if (screened_ <= kEarly) {
    for (Kept& k : kept_) set_scores(k);
  }
  std::vector<size_t> left;
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i].sampled) left.push_back(i);
  }
  if (left.size() <= candidates_) return;
  // Among equal scores the earlier steps stay: the first wrong step is the one to know.
  const auto take = [&](double Kept::*score, size_t count) {
    std::ranges::stable_sort(left, [&](size_t a, size_t b) {
      return std::pair(-(kept_[a].*score), kept_[a].state.step) <
             std::pair(-(kept_[b].*score), kept_[b].state.step);
    });
    left.erase(left.begin(),
               left.begin() + static_cast<std::ptrdiff_t>(std::min(count, left.size())));
  };
  const size_t by_score = (candidates_ + 1) / 2;
  take(&Kept::score, by_score);
  take(&Kept::alone, candidates_ - by_score);
  std::ranges::sort(left, std::greater<>());
  for (const size_t i : left) kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
}

Status StepScreen::status() const {
  if (failed_) return *failed_;
  return Ok{};
}

std::vector<ProbedState> StepScreen::take_states() {
  std::vector<ProbedState> out;
  for (Kept& k : kept_) out.push_back(std::move(k.state));
  kept_.clear();
  std::ranges::sort(out, {}, &ProbedState::step);
  return out;
}

ScreenSummary StepScreen::summary() const {
  ScreenSummary out{screened_, sampled_, left_out_, of_left_out_, {}};
  const OptimizerSpec& spec = program_.optimizer;
  if (spec.clip != OptimizerSpec::Clip::kNone && !clipped_) {
    out.not_exercised.push_back(fmt::format(
        "clipping (the largest {} of a gradient was {:.3g}, optimizer.clip_at is {:.3g})",
        spec.clip == OptimizerSpec::Clip::kValue        ? "element"
        : spec.clip == OptimizerSpec::Clip::kGlobalNorm ? "norm over all variables"
                                                        : "norm of a variable",
        largest_gradient_, spec.clip_at));
  }
  std::string still;
  size_t count = 0;
  for (const Tracked& tracked : tensors_) {
    if (tracked.moved || screened_ == 0) continue;
    if (count++ < 4) still += (still.empty() ? "" : ", ") + tracked.what.tensor;
  }
  if (count > 4) still += fmt::format(" and {} more", count - 4);
  if (count > 0)
    out.not_exercised.push_back(
        fmt::format("{} (zero, or without a change, at every step)", still));
  return out;
}

}  // namespace twinrun

// Recommendations: each setting that a profile suggests is applied and modelled again.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "device/machine.h"
#include "harness/profile/modelled.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr double kWorthSaying = 1.01;
constexpr int64_t kBatchSteps[] = {64,
                                   1024};  // multiples that fit the tiles (docs/guides/profile.md)

struct Idea {
  std::string rule, text, setting;
  std::function<void(Scenario&)> apply;
};

std::string percent(double share) { return text::percent(share, 1); }

// Share of the time spent in ops that this unit limits.
double share_of(const Profile& p, const std::string& limit) {
  double seconds = 0, all = 0;
  for (const ProfileOp& op : p.ops) {
    all += op.seconds;
    if (op.limit == limit) seconds += op.seconds;
  }
  return all > 0 ? seconds / all : 0;
}

std::vector<Idea> ideas(const Scenario& s, const Profile& p) {
  std::vector<Idea> all;
  const int64_t batch = s.train.batch;
  for (const int64_t multiple : kBatchSteps) {
    const int64_t wanted = (batch + multiple - 1) / multiple * multiple;
    if (wanted == batch || wanted % s.tpu.cores != 0) continue;
    if (!all.empty() && all.back().setting == fmt::format("train.batch={}", wanted)) continue;
    const double padded = p.unpadded_bytes > 0 ? 1 - p.unpadded_bytes / p.bytes : 0;
    all.push_back(
        {"padding",
         fmt::format(
             "{} samples on a core are not a multiple of {}: {} of the bytes through HBM are "
             "padding, the matrix unit reaches {} of its peak, and {} of the time is "
             "the start of ops; a batch of {} needs another learning rate",
             batch / s.tpu.cores, multiple / tpu::kCoresV2x8, percent(padded),
             percent(p.matrix_utilisation), percent(share_of(p, "start")), wanted),
         fmt::format("train.batch={}", wanted), [wanted](Scenario& t) { t.train.batch = wanted; }});
  }
  if (s.tpu.precision != "default") {
    all.push_back(
        {"several-passes",
         fmt::format("tpu.precision = \"{}\" multiplies in {} passes of bf16, and {} of the time "
                     "waits for the matrix unit",
                     s.tpu.precision, s.tpu.precision == "high" ? 3 : 6,
                     percent(share_of(p, "matrix unit"))),
         "tpu.precision=default", [](Scenario& t) { t.tpu.precision = "default"; }});
  }
  const int64_t loop = s.tpu.iterations_per_loop;
  if (loop > 0 && loop < s.train.steps) {
    const int64_t wanted = std::min(s.train.steps, std::max<int64_t>(100, 10 * loop));
    all.push_back(
        {"short-loops",
         fmt::format("the host takes over every {}: {} of the time", text::plural(loop, "step"),
                     percent(p.average.host / p.step_seconds)),
         fmt::format("tpu.iterations_per_loop={}", wanted),
         [wanted](Scenario& t) { t.tpu.iterations_per_loop = wanted; }});
  }
  if (s.data.prefetch == 0) {
    all.push_back(
        {"no-prefetch",
         fmt::format("the device waits {} of a step for its batch, because nothing is read ahead",
                     percent(p.input.share)),
         "data.prefetch=2", [](Scenario& t) { t.data.prefetch = 2; }});
  }
  if (p.input.bound != InputBound::kNot) {
    const std::string waits = fmt::format("{}: the device waits {} of a step",
                                          to_string(p.input.bound), percent(p.input.share));
    const int64_t threads = std::min<int64_t>(64, 4 * s.data.parallel_calls);
    all.push_back(
        {"",
         waits + ", and samples are prepared on " + text::plural(s.data.parallel_calls, "thread"),
         fmt::format("data.parallel_calls={}", threads),
         [threads](Scenario& t) { t.data.parallel_calls = threads; }});
    if (s.data.cache != "memory")
      all.push_back({"", waits + ", and reads its samples from files in every epoch",
                     "data.cache=memory", [](Scenario& t) { t.data.cache = "memory"; }});
  }
  return all;
}

}  // namespace

Result<std::vector<Recommendation>> recommendations(const Scenario& scenario, const Profile& now,
                                                    const ModelledOptions& options) {
  std::vector<Recommendation> found;
  ModelledOptions alone = options;
  alone.advice = false;
  for (const Idea& idea : ideas(scenario, now)) {
    Scenario changed = scenario;
    idea.apply(changed);
    TWINRUN_ASSIGN(const Profile then, modelled_profile(changed, alone));
    Recommendation r{idea.rule, idea.text, idea.setting, now.samples_per_second(),
                     then.samples_per_second()};
    // Do not recommend a setting that is faster but does not fit into memory.
    if (now.fits() && !then.fits()) continue;
    if (r.gain() >= kWorthSaying) found.push_back(std::move(r));
  }
  std::ranges::stable_sort(found, std::greater{}, &Recommendation::gain);
  return found;
}

}  // namespace twinrun

// Recommendations: each setting that a profile suggests is applied and modelled again.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "device/machine.h"
#include "harness/profile/modelled.h"
#include "reports/profile_words.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr double kWorthSaying = 1.01;
// Of more arithmetic: at least half as much again in the same time.
constexpr double kWorthWidening = 1.5;

struct Idea {
  std::string rule, text, setting;
  std::function<void(Scenario&)> apply;
  bool widens = false;  // does more arithmetic, in a little more time
};

// Hidden layers of fewer features than the matrix unit is wide.
struct Narrow {
  std::vector<size_t> layers;
  std::string names;  // "conv1 (16), conv2 (32) and 3 more"
};
Narrow narrow_layers(const ModelSpec& model) {
  constexpr size_t kNamed = 4;
  Narrow found;
  for (const size_t i : hidden_layers(model)) {
    const LayerSpec& layer = model.layers[i];
    if (layer.features() >= tpu::kLanes) continue;
    if (found.layers.size() < kNamed)
      found.names +=
          fmt::format("{}{} ({})", found.layers.empty() ? "" : ", ", layer.name, layer.features());
    found.layers.push_back(i);
  }
  if (found.layers.size() > kNamed)
    found.names += fmt::format(" and {} more", found.layers.size() - kNamed);
  return found;
}

std::string percent(double share) { return text::percent(share, 1); }

std::vector<Idea> ideas(const Scenario& s, const Profile& p) {
  std::vector<Idea> all;
  const int64_t batch = s.train.batch;
  // Samples on a core in multiples of 8 or of 128 fill the tiles (docs/guides/profile.md).
  for (const int64_t of_core : {tpu::kSublanes, tpu::kLanes}) {
    const int64_t multiple = of_core * s.tpu.cores;
    const int64_t wanted = (batch + multiple - 1) / multiple * multiple;
    if (wanted == batch) continue;
    if (!all.empty() && all.back().setting == fmt::format("train.batch={}", wanted)) continue;
    const double padded = p.unpadded_bytes > 0 ? 1 - p.unpadded_bytes / p.bytes : 0;
    all.push_back(
        {"padding",
         fmt::format(
             "{} samples on a core are not a multiple of {}: {} of the bytes through HBM are "
             "padding, the matrix unit reaches {} of its peak, and {} of the time is "
             "the start of ops; a batch of {} needs another learning rate",
             batch / s.tpu.cores, of_core, percent(padded), percent(p.matrix_utilisation),
             percent(share_of_limit(p, "start")), wanted),
         fmt::format("train.batch={}", wanted), [wanted](Scenario& t) { t.train.batch = wanted; }});
  }
  if (s.tpu.precision != "default") {
    all.push_back(
        {"several-passes",
         fmt::format("tpu.precision = \"{}\" multiplies in {} passes of bf16, and {} of the time "
                     "waits for the matrix unit",
                     s.tpu.precision, s.tpu.precision == "high" ? 3 : 6,
                     percent(share_of_limit(p, "matrix unit"))),
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
  const Narrow narrow = narrow_layers(s.model);
  if (!narrow.layers.empty()) {
    std::string setting;
    for (const size_t i : narrow.layers)
      setting += fmt::format("{}model.layers.{}.{}={}", setting.empty() ? "" : " ", i,
                             s.model.layers[i].filters > 0 ? "filters" : "units", tpu::kLanes);
    all.push_back(
        {"narrow-layers",
         fmt::format("the matrix unit multiplies {} x {} at a time, and {} {} fewer "
                     "features: it reaches {} of its peak",
                     tpu::kLanes, tpu::kLanes, narrow.names,
                     narrow.layers.size() == 1 ? "has" : "have", percent(p.matrix_utilisation)),
         setting,
         [narrow](Scenario& t) {
           for (const size_t i : narrow.layers) {
             LayerSpec& layer = t.model.layers[i];
             (layer.filters > 0 ? layer.filters : layer.units) = tpu::kLanes;
           }
         },
         true});
  }
  return all;
}

}  // namespace

Result<std::vector<Recommendation>> recommendations(const Scenario& scenario, const Profile& now,
                                                    const ModelledOptions& options) {
  ModelledOptions alone = options;
  alone.advice = false;
  struct Found {
    Recommendation said;
    const Idea* idea;
  };
  std::vector<Found> found;
  const std::vector<Idea> tried = ideas(scenario, now);
  for (const Idea& idea : tried) {
    Scenario changed = scenario;
    idea.apply(changed);
    const Result<Profile> then = modelled_profile(changed, alone);
    if (!then && idea.widens) continue;  // other layers expect the features as they are
    if (!then) return then.error();
    Recommendation r{idea.rule, idea.text, idea.setting, now.samples_per_second(),
                     then->samples_per_second()};
    if (idea.widens) {
      r.flops_before = now.flops_per_second(), r.flops_after = then->flops_per_second();
      r.text += fmt::format(
          "; with {} each, a step does {} times the arithmetic in {} times the time. Whether the "
          "model gains by it is another question",
          tpu::kLanes, words::three_digits(then->flops / now.flops),
          words::three_digits(then->step_seconds / now.step_seconds));
    }
    // Do not recommend a setting that is faster but does not fit into memory.
    if (now.fits() && !then->fits()) continue;
    if (r.gain() < (idea.widens ? kWorthWidening : kWorthSaying)) continue;
    found.push_back({std::move(r), &idea});
  }
  std::ranges::stable_sort(found, std::greater{}, [](const Found& f) { return f.said.gain(); });
  std::vector<Recommendation> all;
  for (Found& f : found) all.push_back(std::move(f.said));

  // The best value of every setting at once.
  Scenario together = scenario;
  std::vector<std::string> settings;
  for (const Found& f : found) {
    const std::string& setting = f.idea->setting;
    const std::string key = setting.substr(0, setting.find('=') + 1);
    if (f.idea->widens || std::ranges::any_of(settings, [&](const std::string& other) {
          return other.starts_with(key);
        }))
      continue;
    f.idea->apply(together);
    settings.push_back(setting);
  }
  if (settings.size() > 1) {
    TWINRUN_ASSIGN(const Profile then, modelled_profile(together, alone));
    if (then.fits() || !now.fits())
      all.insert(all.begin(),
                 {"", "all of these together", fmt::format("{}", fmt::join(settings, " ")),
                  now.samples_per_second(), then.samples_per_second()});
  }
  return all;
}

}  // namespace twinrun

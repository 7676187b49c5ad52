// Greedy search for a smaller scenario with the same finding: each change is tried by a diagnosis.
#include "harness/bundle/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "harness/bundle/own_data.h"
#include "harness/bundle/own_program.h"

namespace twinrun {
namespace {

// The sizes below `now`: `from`, twice that, four times that, ...
std::vector<int64_t> smaller_than(int64_t now, int64_t from = 1) {
  std::vector<int64_t> sizes;
  for (int64_t size = from; size < now; size *= 2) sizes.push_back(size);
  return sizes;
}

class Search {
 public:
  Search(const Finding& found, const ReduceOptions& how, Progress* progress, const StopFlag* stop)
      : found_(found), how_(how), progress_(progress), stop_(stop) {}

  Result<Reduced> run(const Scenario& scenario, const DiagnoseOptions& options) {
    best_.scenario = scenario;
    best_.options = options;
    best_.options.directory = (std::filesystem::path(how_.folder) / "try").string();
    best_.options.cache.clear();
    best_.options.quick = options.quick || found_.verdict == VerdictClass::kEngineBug;
    if (progress_ != nullptr) progress_->begin("reducing, diagnoses", 0);
    // Try the steps up to the finding first, which makes all later tries cheaper. Diagnose the
    // whole scenario again only if that loses the finding.
    const bool repeats = fewer_steps(found_.step.value_or(best_.scenario.train.steps - 1) + 1) ||
                         try_it("", best_.scenario);
    if (machine_) return *machine_;
    if (!repeats && !stopped())
      return Error{fmt::format("a second diagnosis gives a different result: {}", last_said_),
                   "reduction",
                   "bundle it without a reduction (--no-reduction); a finding that comes and goes "
                   "is typical of an engine that is not deterministic"};
    bool smaller = true;
    while (smaller && !over()) {
      smaller = false;
      if (!imported()) {
        smaller |= fewer_samples();
        smaller |= fewer_cores();
        smaller |= fewer_layers();
        smaller |= narrower_layers();
      }
      smaller |= fewer_steps(1);
    }
    if (machine_) return *machine_;
    if (stopped()) {
      best_.interrupted = true;
      return best_;
    }
    TWINRUN_RETURN_IF_ERROR(own_data());
    if (progress_ != nullptr)
      progress_->end(fmt::format("{} diagnoses, {} changes kept", best_.tried, best_.log.size()));
    return best_;
  }

 private:
  // Of an imported program, only the steps and the batches can be fewer.
  bool imported() const { return !best_.scenario.imported.empty(); }
  bool stopped() const { return stop_ != nullptr && stop_->load(); }
  bool over() const { return stopped() || machine_ || best_.tried >= how_.max_tried; }

  // Keeps the change if the scenario is valid and its diagnosis has the same finding. `must`: tries
  // it even beyond the limit of diagnoses.
  bool try_it(const std::string& change, const Scenario& changed, bool must = false) {
    if (must ? stopped() || machine_ : over()) return false;
    auto valid = parse_scenario(resolved_toml(changed), changed.file);
    if (!valid) return false;
    valid->program_files = changed.program_files;
    std::error_code ignored;
    std::filesystem::remove_all(best_.options.directory, ignored);
    ++best_.tried;
    auto said = diagnose(*valid, best_.options, nullptr, stop_);
    std::filesystem::remove_all(best_.options.directory, ignored);
    if (!said && said.error().kind == Error::Kind::kMachine) machine_ = said.error();
    if (progress_ != nullptr) progress_->step(best_.tried, change);
    last_said_ = !said                           ? said.error().message()
                 : said->interrupted             ? "interrupted"
                 : said->report.findings.empty() ? std::string(to_string(said->report.verdict))
                                                 : said->report.findings.front().sentence;
    if (!said || said->interrupted || said->report.findings.empty() ||
        !same_failure(said->report.findings.front(), found_))
      return false;
    best_.scenario = *std::move(valid);
    best_.report = std::move(said->report);
    if (!change.empty()) best_.log.push_back(change);
    return true;
  }

  template <typename T>
  bool set(const std::string& key, T Scenario::*section, auto T::*member, int64_t value) {
    Scenario changed = best_.scenario;
    auto& now = changed.*section.*member;
    if (value >= static_cast<int64_t>(now)) return false;
    const std::string change = fmt::format("{}: {} -> {}", key, now, value);
    now = static_cast<std::remove_reference_t<decltype(now)>>(value);
    return try_it(change, changed);
  }

  bool fewer_steps(int64_t least) {
    return set("train.steps", &Scenario::train, &TrainSpec::steps, least);
  }

  bool fewer_samples() {
    const TrainSpec& train = best_.scenario.train;
    bool smaller = std::ranges::any_of(
        smaller_than(train.batch, best_.scenario.tpu.cores),
        [&](int64_t b) { return set("train.batch", &Scenario::train, &TrainSpec::batch, b); });
    smaller |= set("data.train", &Scenario::data, &DataSpec::train, train.batch * train.steps);
    smaller |= set("data.eval", &Scenario::data, &DataSpec::eval, train.batch);
    return smaller;
  }

  bool fewer_cores() {
    return std::ranges::any_of(smaller_than(best_.scenario.tpu.cores), [&](int64_t c) {
      return set("tpu.cores", &Scenario::tpu, &TpuSpec::cores, c);
    });
  }

  // Removes consecutive layers: half of all first, then fewer at a time, from the last to the
  // first.
  bool fewer_layers() {
    bool smaller = false;
    for (size_t width = best_.scenario.model.layers.size() / 2; width > 0; width /= 2) {
      for (size_t end = best_.scenario.model.layers.size(); end >= width; --end) {
        Scenario changed = best_.scenario;
        auto& layers = changed.model.layers;
        if (end > layers.size()) continue;
        const std::string first = layers[end - width].name, last = layers[end - 1].name;
        layers.erase(layers.begin() + static_cast<std::ptrdiff_t>(end - width),
                     layers.begin() + static_cast<std::ptrdiff_t>(end));
        smaller |= try_it(
            fmt::format("without {}{}{}", first, width > 1 ? " to " : "", width > 1 ? last : ""),
            changed);
      }
    }
    return smaller;
  }

  bool narrower_layers() {
    bool smaller = false;
    for (size_t i = 0; i < best_.scenario.model.layers.size(); ++i) {
      for (int64_t LayerSpec::*member : {&LayerSpec::units, &LayerSpec::filters}) {
        const int64_t now = best_.scenario.model.layers[i].*member;
        smaller |= std::ranges::any_of(smaller_than(now), [&](int64_t n) {
          Scenario changed = best_.scenario;
          LayerSpec& layer = changed.model.layers[i];
          layer.*member = n;
          return try_it(fmt::format("{}: {} -> {} wide", layer.name, now, n), changed);
        });
      }
    }
    return smaller;
  }

  Status own_data() {
    TWINRUN_ASSIGN(const Scenario own,
                   imported() ? with_own_program(best_.scenario, how_.folder, /*only_used=*/true)
                              : with_own_data(best_.scenario, how_.folder, {.noise = how_.noise}));
    if (try_it(imported()   ? "the batches of these steps alone"
               : how_.noise ? "noise instead of the data"
                            : "data of its own",
               own, true))
      return Ok{};
    if (machine_) return *machine_;
    return Error{
        fmt::format("with {} the diagnosis gives a different result: {}",
                    how_.noise ? "noise instead of its data" : "its batches in a file of their own",
                    last_said_),
        "reduction",
        how_.noise ? "bundle it without --anonymise" : "pack it as it is: add --no-reduction"};
  }

  const Finding& found_;
  const ReduceOptions& how_;
  Progress* progress_;
  const StopFlag* stop_;
  Reduced best_;
  std::string last_said_;
  std::optional<Error> machine_;  // a full disk, for example: nothing is known of what was tried
};

}  // namespace

bool same_failure(const Finding& a, const Finding& b) {
  return a.verdict == b.verdict && a.cause == b.cause && a.op == b.op && a.phase == b.phase &&
         a.core == b.core && a.level == b.level;
}

Result<Reduced> reduce(const Scenario& scenario, const DiagnoseOptions& options,
                       const Finding& found, const ReduceOptions& how, Progress* progress,
                       const StopFlag* stop) {
  return Search(found, how, progress, stop).run(scenario, options);
}

}  // namespace twinrun

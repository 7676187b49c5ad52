// Combines the parts of an explanation into a program, and says which of them go together.
#include <algorithm>

#include "harness/identify/identify.h"

namespace twinrun {

bool exclude_each_other(const Explanation::Part& a, const Explanation::Part& b) {
  if (a.formula && b.formula) return exclusive(*a.formula, *b.formula);
  if (a.formula || b.formula) return false;
  return exclusive(a.cause, b.cause);
}

bool losses_together(const std::vector<Explanation::Part>& parts) {
  return std::ranges::any_of(
      parts, [](const Explanation::Part& p) { return p.sharding && p.sharding->losses_together; });
}

bool has_free_rates(const std::vector<Explanation::Part>& parts) {
  return std::ranges::any_of(
      parts, [](const Explanation::Part& p) { return p.formula && !p.formula->rates.empty(); });
}

bool is_read_from_steps(const std::vector<Explanation::Part>& parts) {
  return has_free_rates(parts) || std::ranges::any_of(parts, [](const Explanation::Part& p) {
           return p.sharding && !p.sharding->deals.empty();
         });
}

Explanation::Part part_of(ShardingChange change) {
  std::string name = change.cause.name;
  return {std::move(name), true, {}, std::move(change)};
}

bool Explanation::has_formula() const {
  return std::ranges::any_of(parts, [](const Part& part) { return part.formula.has_value(); });
}

bool Explanation::harmless() const {
  return !parts.empty() && std::ranges::all_of(parts, [](const Part& part) {
    return part.sharding && part.sharding->harmless;
  });
}

Program step_of(const Experiment& e, const Sharding& sharding) {
  const Program step = sharding.cores > 1 ? e.sharded(sharding) : e.whole(Experiment::Stack::kTpu);
  return step.sharding == sharding ? step : reshard(step, sharding);
}

Result<ChangedProgram> changed_by(const Experiment& e, const Sharding& sharding,
                                  const std::vector<Explanation::Part>& parts) {
  ChangedProgram out{nullptr, sharding};
  for (const Explanation::Part& part : parts) {
    if (!part.formula) continue;
    TWINRUN_ASSIGN(Experiment changed,
                   with_formula(out.experiment ? *out.experiment : e, *part.formula));
    out.experiment = std::make_shared<const Experiment>(std::move(changed));
  }
  const Experiment& base = out.experiment ? *out.experiment : e;
  for (const Explanation::Part& part : parts) {
    if (part.formula || part.sharding) continue;
    out.sharding = part.introduced ? introduce(base, out.sharding, part.cause)
                                   : restore(base, out.sharding, part.cause);
  }
  std::map<int64_t, Deal> deals;
  for (const Explanation::Part& part : parts) {
    if (!part.sharding) continue;
    out.sharding = with_change(out.sharding, *part.sharding);
    deals.insert(part.sharding->deals.begin(), part.sharding->deals.end());
  }
  if (!deals.empty()) {
    Experiment changed = base;
    changed.deals = std::move(deals);
    out.experiment = std::make_shared<const Experiment>(std::move(changed));
  }
  return out;
}

void keep_preferred(std::vector<Explanation>& explanations) {
  const auto keep_if_any = [&](auto&& wanted) {
    if (std::ranges::any_of(explanations, wanted))
      std::erase_if(explanations, [&](const Explanation& x) { return !wanted(x); });
  };
  keep_if_any([](const Explanation& x) { return !x.has_formula(); });
  keep_if_any([](const Explanation& x) { return x.harmless(); });
  keep_if_any([](const Explanation& x) { return !losses_together(x.parts); });
}

std::vector<std::string> twins_of(const Experiment& e, const std::vector<Explanation>& all) {
  std::vector<std::string> twins;
  for (const Explanation& x : all) {
    for (const Explanation::Part& part : x.parts) {
      if (part.formula) continue;
      const std::string twin =
          part.sharding ? part.sharding->cause.twin : describe(e, part.cause).twin;
      if (part.introduced && !twin.empty() && std::ranges::find(twins, twin) == twins.end())
        twins.push_back(twin);
    }
  }
  return twins;
}

}  // namespace twinrun

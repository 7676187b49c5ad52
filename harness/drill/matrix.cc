// Counts the records of a drill: targets, confusion matrix, kinds, power.
#include "harness/drill/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace twinrun::drill {
namespace {

bool is_engine(Kind kind) {
  return kind == Kind::kEngineOutside || kind == Kind::kEngineInside || kind == Kind::kEngineBiased;
}
bool is_sharding(Kind kind) {
  return kind == Kind::kShardingOutside || kind == Kind::kShardingInside ||
         kind == Kind::kShardingOpen;
}

std::string verdict_of(const CaseRecord& r) {
  return r.error.empty() ? std::string(to_string(r.verdict)) : "error";
}

KindRow& row_of(std::vector<KindRow>& rows, const std::string& kind) {
  const auto it = std::ranges::find(rows, kind, &KindRow::kind);
  if (it != rows.end()) return *it;
  rows.push_back({kind});
  return rows.back();
}

void count_fault(std::vector<KindRow>& rows, const CaseRecord& r, const Score& s) {
  KindRow& row = row_of(rows, r.injected.kind);
  ++row.cases;
  row.inert += s.kind == Kind::kInert ? 1 : 0;
  row.inside += s.kind == Kind::kEngineInside ? 1 : 0;
  if (s.kind != Kind::kInert && r.injected.magnitude)
    row.power[*r.injected.magnitude].add(s.flagged);
  if (s.kind != Kind::kEngineOutside && s.kind != Kind::kEngineBiased) return;
  row.flagged.add(s.flagged);
  if (r.injected.level != 'A') return;  // tensors do not name an op
  row.op.add(s.op);
  row.step.add(s.step);
  row.core.add(s.core);
  row.executions = std::max(row.executions, r.executions);
}

void count_cause(std::vector<KindRow>& rows, const CaseRecord& r, const Score& s) {
  KindRow& row = row_of(rows, r.injected.cause);
  ++row.cases;
  row.inert += s.kind == Kind::kInert ? 1 : 0;
  if (!is_sharding(s.kind)) return;
  row.cause.add(s.cause);
  row.verdict.add(s.right);
  if (s.effect) row.effect.add(*s.effect);
}

void close_all(DrillSummary& d) {
  for (Target& t : d.targets) t.rate.close();
  for (MatrixRow& row : d.matrix) row.right.close();
  for (auto* rows : {&d.faults, &d.causes}) {
    std::ranges::sort(*rows, {}, &KindRow::kind);
    for (KindRow& row : *rows) {
      for (Rate* rate :
           {&row.flagged, &row.op, &row.step, &row.core, &row.cause, &row.verdict, &row.effect})
        rate->close();
      for (auto& [magnitude, rate] : row.power) rate.close();
    }
  }
  d.clean_effects.close();
  d.hidden.close();
  d.false_alarms.close();
}

}  // namespace

void Rate::close() {
  if (n == 0) return;
  const double z = 1.959963984540054, trials = static_cast<double>(n), p = share();
  const double middle = (p + z * z / (2 * trials)) / (1 + z * z / trials);
  const double half =
      z / (1 + z * z / trials) * std::sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials));
  low = k == 0 ? 0 : std::max(0.0, middle - half);
  high = k == n ? 1 : std::min(1.0, middle + half);
}

DrillSummary summarise(const std::vector<CaseRecord>& records) {
  DrillSummary d;
  Target flagged{"engine faults flagged, level A", {}, 0.99};
  Target exact{"... with exact op and first step", {}, 0.97};
  Target tensors{"engine faults flagged, level C", {}, 0.95};
  Target biased{"biased faults (no element outside) flagged", {}, 0.95};
  Target causes{"sharding causes named", {}, 1};
  Target classes{"class right, wherever the truth is one class", {}, 0.98};
  Target effects{"effect right, wherever its truth is known", {}, 0.95};
  Target alarms{"false ENGINE_BUG on clean pairs", {}, 0, true};
  Target both{"sharding + engine, both found", {}, 0.90};
  Target runs{"engine findings within 8 executions", {}, 1};

  std::map<std::pair<Kind, char>, MatrixRow> matrix;
  std::set<std::pair<std::string, uint64_t>> clusters;
  double executions = 0;
  for (const CaseRecord& r : records) {
    const Score s = score(r);
    const bool a = r.injected.level == 'A';
    ++d.cases;
    if (const auto name = parse_id(r.injected.id)) d.seeds.insert(name->seed);
    d.errors += r.error.empty() ? 0 : 1;
    d.seconds += r.seconds;
    d.truth_seconds += r.truth_seconds;
    MatrixRow& row = matrix[{s.kind, r.injected.level}];
    row.level = r.injected.level;
    row.kind = s.kind;
    ++row.verdicts[verdict_of(r)];
    row.right.add(s.right);
    // This rate leaves out cases for which more than one class is right: a conforming engine could
    // give the same result, or the seeds do not decide whether sharding changes the held-out loss
    // by more than the margin.
    if (s.kind != Kind::kEngineInside && s.kind != Kind::kShardingOpen) classes.rate.add(s.right);
    if (!s.right) {
      d.misses.push_back(fmt::format("{}  {} -> {}: {}", r.injected.id, to_string(s.kind),
                                     verdict_of(r), r.error.empty() ? r.headline : r.error));
    }
    if (s.effect) {
      effects.rate.add(*s.effect);
      if (!*s.effect)
        d.misses.push_back(fmt::format("{}  effect {} -> {}: {}", r.injected.id, r.truth.matters,
                                       to_string(r.effect), r.headline));
    }
    if (s.kind == Kind::kClean) {
      d.clean_effects.add(r.effect == Effect::kHarmful || r.effect == Effect::kBeneficial);
      alarms.rate.add(s.flagged);
      d.false_alarms.add(s.flagged || r.verdict == VerdictClass::kSharding);
      clusters.emplace(r.injected.scenario, r.injected.variant);
      ++d.clean_by_scenario[r.injected.scenario];
    }
    if (s.kind == Kind::kEngineOutside) {
      (a ? flagged : tensors).rate.add(s.flagged);
      if (a) exact.rate.add(s.op && s.step);
      if (a && !(s.op && s.step) && s.right)
        d.misses.push_back(fmt::format("{}  flagged, but not as {} at step {}: {}", r.injected.id,
                                       r.injected.op, r.truth.first_outside, r.headline));
    }
    if (!a && r.truth.outside && s.kind == Kind::kEngineInside) d.hidden.add(s.flagged);
    if (s.kind == Kind::kEngineBiased && a) biased.rate.add(s.flagged);
    if (s.flagged && a && is_engine(s.kind)) {
      executions += r.executions;
      d.run_lengths += r.run_lengths;
      d.max_executions = std::max(d.max_executions, r.executions);
      runs.rate.add(r.executions <= 8);
    }
    if (is_sharding(s.kind) && !r.injected.cause.empty()) {
      causes.rate.add(s.cause);
      if (!s.cause && s.right)
        d.misses.push_back(
            fmt::format("{}  {} not named: {}", r.injected.id, r.injected.cause, r.headline));
    }
    if (s.kind == Kind::kBoth) both.rate.add(s.flagged && s.op && s.cause);
    if (!r.injected.fault.empty() && r.injected.cause.empty()) count_fault(d.faults, r, s);
    if (!r.injected.cause.empty() && r.injected.fault.empty()) count_cause(d.causes, r, s);
  }
  if (d.cases > 0) d.seconds /= static_cast<double>(d.cases);
  if (d.cases > 0) d.truth_seconds /= static_cast<double>(d.cases);
  if (runs.rate.n > 0) d.executions = executions / static_cast<double>(runs.rate.n);
  if (runs.rate.n > 0) d.run_lengths /= static_cast<double>(runs.rate.n);
  if (d.false_alarms.n > 0) d.false_alarm_bound = 3.0 / static_cast<double>(d.false_alarms.n);
  d.clusters = static_cast<int64_t>(clusters.size());
  for (auto& [key, row] : matrix) d.matrix.push_back(std::move(row));
  for (Target* t :
       {&flagged, &exact, &tensors, &biased, &causes, &classes, &effects, &alarms, &both, &runs}) {
    if (t->rate.n > 0) d.targets.push_back(std::move(*t));
  }
  close_all(d);
  return d;
}

}  // namespace twinrun::drill

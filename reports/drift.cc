// Computes from the losses of a report which curves diverge, and where.
#include "reports/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "program/base/bits.h"
#include "reports/run_names.h"
#include "reports/text.h"

namespace twinrun::text {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, {}, to_bits, to_bits);
}

}  // namespace

const RunSummary* find_run(const Report& report, std::string_view name) {
  const auto found = std::ranges::find(report.runs, name, &RunSummary::name);
  return found == report.runs.end() ? nullptr : &*found;
}

std::vector<DriftRow> drift_of(const Report& report) {
  std::vector<DriftRow> out;
  for (const RunPair& pair : run_pairs()) {
    const RunSummary* left = find_run(report, pair.left);
    const RunSummary* right = find_run(report, pair.right);
    if (left == nullptr || right == nullptr) continue;
    const size_t steps = std::min(left->losses.size(), right->losses.size());
    if (steps == 0) continue;
    DriftRow row{fmt::format("{} - {}", pair.left, pair.right), std::string(pair.isolates)};
    row.steps = static_cast<int64_t>(steps);
    for (size_t i = 0; i < steps; ++i) {
      const float a = left->losses[i];
      const float b = right->losses[i];
      row.last = 0;
      row.sizes.push_back(0);
      if (to_bits(a) == to_bits(b)) continue;  // equal NaNs and infinities are no difference
      if (!row.first_step) row.first_step = static_cast<int64_t>(i);
      row.last = static_cast<double>(a) - static_cast<double>(b);
      row.sizes.back() = std::abs(row.last);
      if (!std::isnan(row.largest) && !(std::abs(row.last) <= row.largest)) {
        row.largest = std::abs(row.last);
      }
    }
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<Curve> curves_of(const Report& report) {
  std::vector<Curve> out;
  for (const RunSummary& run : report.runs) {
    if (run.losses.empty()) continue;
    const auto same = std::ranges::find_if(
        out, [&](const Curve& curve) { return same_bits(*curve.losses, run.losses); });
    if (same == out.end()) {
      out.push_back({run.name, &run.losses});
    } else {
      same->names += " = " + run.name;
    }
  }
  return out;
}

const Finding* first_divergence(const Report& report) {
  const Finding* best = nullptr;
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  for (const Finding& finding : report.findings) {
    if (finding.verdict != report.verdict) continue;
    if (!finding.step && finding.op.empty()) continue;
    if (best == nullptr || finding.step.value_or(kNever) < best->step.value_or(kNever)) {
      best = &finding;
    }
  }
  return best;
}

std::optional<int64_t> broken_from(const std::vector<float>& losses) {
  const auto non_finite = std::ranges::find_if(losses, [](float x) { return !std::isfinite(x); });
  if (non_finite == losses.end()) return std::nullopt;
  return non_finite - losses.begin();
}

std::string place_of(const Finding& finding) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : ", ") + part; };
  if (finding.step) add(fmt::format("step {}", *finding.step));
  if (!finding.phase.empty()) add(finding.phase);
  if (finding.core) add(fmt::format("core {}", *finding.core));
  return out;
}

}  // namespace twinrun::text

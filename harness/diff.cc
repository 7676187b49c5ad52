#include "harness/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/fingerprint.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

double value_at(const Tensor& t, int64_t i) {
  const auto k = static_cast<size_t>(i);
  switch (t.dtype()) {
    case DType::kF32:
      return t.as<float>()[k];
    case DType::kBF16:
      return bf16_to_f32(t.as<uint16_t>()[k]);
    case DType::kI32:
      return t.as<int32_t>()[k];
    case DType::kPred:
      return t.as<uint8_t>()[k];
    case DType::kF64:
      return t.as<double>()[k];
  }
  return 0;
}

TensorDiff diff_tensors(const std::string& name, const Tensor& a, const Tensor& b) {
  TensorDiff d;
  d.name = name;
  d.types = to_string(a.type());
  d.elements = a.elements();
  if (a.type() != b.type()) {
    d.types += " against " + to_string(b.type());
    d.different = d.elements;
    d.relative = INFINITY;
    return d;
  }
  double gap = 0, norm = 0;
  const size_t size = size_of(a.dtype());
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double y = value_at(b, i);
    if (y == y) norm += y * y;
    const size_t at = static_cast<size_t>(i) * size;
    if (std::memcmp(a.raw() + at, b.raw() + at, size) == 0) continue;
    const double x = value_at(a, i);
    if (d.different++ == 0)
      d.first = fmt::format("{} {:.9g} against {:.9g}", index_text(a.dims(), i), x, y);
    if (x != x || y != y) {
      ++d.nans;
      continue;
    }
    d.max_abs = std::max(d.max_abs, std::abs(x - y));
    if (a.dtype() == DType::kF32)
      d.max_ulps = std::max(d.max_ulps, ulp_distance(static_cast<float>(x), static_cast<float>(y)));
    gap += (x - y) * (x - y);
  }
  d.relative = norm > 0 ? std::sqrt(gap / norm) : std::sqrt(gap);
  return d;
}

}  // namespace

Diff diff_checkpoints(const Checkpoint& a, const Checkpoint& b) {
  Diff d;
  d.kind = "checkpoint";
  if (a.contract != b.contract)
    d.notes.push_back(fmt::format("contract {} against {}", a.contract, b.contract));
  if (a.scenario_digest != b.scenario_digest) d.notes.push_back("made by different scenarios");
  if (a.step != b.step) d.notes.push_back(fmt::format("after {} steps against {}", a.step, b.step));
  for (const auto& [name, x] : a.tensors) {
    const auto y = b.tensors.find(name);
    ++d.tensors_compared;
    if (y == b.tensors.end()) {
      d.tensors.push_back(
          {name, "only in A", x.value.elements(), x.value.elements(), 0, 0, INFINITY});
    } else if (!x.value.same_bits(y->second.value)) {
      d.tensors.push_back(diff_tensors(name, x.value, y->second.value));
    }
  }
  for (const auto& [name, y] : b.tensors) {
    if (!a.tensors.contains(name))
      d.tensors.push_back(
          {name, "only in B", y.value.elements(), y.value.elements(), 0, 0, INFINITY});
  }
  std::ranges::stable_sort(d.tensors, std::greater<>(), &TensorDiff::relative);
  d.same = d.tensors.empty();
  return d;
}

Diff diff_runs(const RunFile& a, const RunFile& b) {
  Diff d;
  if (!a.checkpoints.empty() && !b.checkpoints.empty())
    d = diff_checkpoints(a.checkpoints.back(), b.checkpoints.back());
  d.kind = "run";
  if (a.scenario_digest != b.scenario_digest && d.notes.empty())
    d.notes.push_back("made by different scenarios");
  if (a.first_step != b.first_step) {
    d.notes.push_back(fmt::format("A begins at step {}, B at step {}", a.first_step, b.first_step));
  }
  d.steps_a = static_cast<int64_t>(a.steps.size());
  d.steps_b = static_cast<int64_t>(b.steps.size());
  // Runs may begin at different steps (one was resumed): compare where both have records.
  const int64_t begin = std::max(a.first_step, b.first_step);
  const int64_t end = std::min(a.first_step + d.steps_a, b.first_step + d.steps_b);
  for (int64_t step = begin; step < end; ++step) {
    const auto i = static_cast<size_t>(step - a.first_step),
               k = static_cast<size_t>(step - b.first_step);
    const float x = a.steps[i].loss, y = b.steps[k].loss;
    if (to_bits(x) != to_bits(y)) {
      if (!d.first_loss) d.first_loss = step;
      const double gap = std::abs(static_cast<double>(x) - y);
      d.max_loss_gap = gap == gap ? std::max(d.max_loss_gap, gap) : INFINITY;
    }
    if (!d.first_step && i < a.state_digests.size() && k < b.state_digests.size() &&
        a.state_digests[i] != b.state_digests[k]) {
      d.first_step = step;
    }
  }
  if (!a.evaluations.empty() && !b.evaluations.empty()) {
    d.eval_loss_a = a.evaluations.back().loss;
    d.eval_loss_b = b.evaluations.back().loss;
    d.eval_accuracy_a = a.evaluations.back().accuracy;
    d.eval_accuracy_b = b.evaluations.back().accuracy;
  }
  const bool same_length = a.first_step + d.steps_a == b.first_step + d.steps_b;
  if (!same_length)
    d.notes.push_back(fmt::format("A ends after step {}, B after step {}", a.first_step + d.steps_a,
                                  b.first_step + d.steps_b));
  d.same = d.tensors.empty() && !d.first_step && !d.first_loss && same_length;
  return d;
}

Result<Diff> diff_files(const std::string& a, const std::string& b) {
  TWINRUN_ASSIGN(const std::string kind_a, file_kind(a));
  TWINRUN_ASSIGN(const std::string kind_b, file_kind(b));
  if (kind_a != kind_b) {
    return Error{fmt::format("a {} and a {} cannot be compared", kind_a, kind_b), a + ", " + b,
                 "give two runs or two checkpoints"};
  }
  if (kind_a == "run") {
    TWINRUN_ASSIGN(const RunFile x, read_run(a));
    TWINRUN_ASSIGN(const RunFile y, read_run(b));
    return diff_runs(x, y);
  }
  TWINRUN_ASSIGN(const Checkpoint x, read_checkpoint(a));
  TWINRUN_ASSIGN(const Checkpoint y, read_checkpoint(b));
  return diff_checkpoints(x, y);
}

}  // namespace twinrun

// Compares two runs or checkpoints of twinrun, tensor by tensor and step by step.
#include "harness/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "harness/diff/diff_foreign.h"
#include "harness/tensors/element.h"
#include "harness/tensors/pattern.h"
#include "program/base/bits.h"
#include "program/base/thread_pool.h"

namespace twinrun {
namespace {

// The difference of two tensors over a range of elements.
struct Gap {
  double squares = 0, norm = 0, largest = 0;
  int64_t different = 0, ulps = 0, nans = 0, first = -1;
  void add(const Gap& next) {
    squares += next.squares, norm += next.norm;
    largest = std::max(largest, next.largest), ulps = std::max(ulps, next.ulps);
    different += next.different, nans += next.nans;
    if (first < 0) first = next.first;
  }
};

Gap gap_of_elements(const Tensor& a, const Tensor& b, int64_t begin, int64_t end) {
  Gap g;
  const size_t size = size_of(a.dtype());
  for (int64_t i = begin; i < end; ++i) {
    const double y = number_at(b, i);
    if (y == y) g.norm += y * y;
    const size_t at = static_cast<size_t>(i) * size;
    if (std::memcmp(a.raw() + at, b.raw() + at, size) == 0) continue;
    const double x = number_at(a, i);
    if (g.different++ == 0) g.first = i;
    if (x != x || y != y) {
      ++g.nans;
      continue;
    }
    g.largest = std::max(g.largest, std::abs(x - y));
    if (a.dtype() == DType::kF32)
      g.ulps = std::max(g.ulps, ulp_distance(static_cast<float>(x), static_cast<float>(y)));
    g.squares += (x - y) * (x - y);
  }
  return g;
}

// The same for kGroup binary32 numbers at once, in lanes that the compiler vectorizes. nullopt: one
// of them is NaN or Inf.
constexpr int64_t kLanes = 8, kGroup = 512;
std::optional<Gap> gap_of_group(const float* a, const float* b, int64_t begin) {
  constexpr uint32_t kExponent = 0x7F800000u;
  uint32_t special = 0, different = 0;
  int64_t ulps[kLanes] = {};
  double squares[kLanes] = {}, norm[kLanes] = {}, largest[kLanes] = {};
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const float x = a[i + l], y = b[i + l];
      const uint32_t u = to_bits(x), v = to_bits(y);
      special |=
          static_cast<uint32_t>((u & kExponent) == kExponent || (v & kExponent) == kExponent);
      different += static_cast<uint32_t>(u != v);
      const int64_t steps = ordered(x) - ordered(y), distance = steps < 0 ? -steps : steps;
      ulps[l] = distance > ulps[l] ? distance : ulps[l];
      const double gap = static_cast<double>(x) - static_cast<double>(y);
      const double size = gap < 0 ? -gap : gap;
      squares[l] += gap * gap;
      norm[l] += static_cast<double>(y) * static_cast<double>(y);
      largest[l] = size > largest[l] ? size : largest[l];
    }
  }
  if (special != 0) return std::nullopt;
  Gap g;
  for (int64_t l = 0; l < kLanes; ++l) {
    g.squares += squares[l], g.norm += norm[l];
    g.largest = std::max(g.largest, largest[l]);
    g.ulps = std::max(g.ulps, ulps[l]);
  }
  g.different = different;
  if (different != 0) {
    int64_t i = 0;
    while (to_bits(a[i]) == to_bits(b[i])) ++i;
    g.first = begin + i;
  }
  return g;
}

Gap gap_of(const Tensor& a, const Tensor& b, int64_t begin, int64_t end) {
  if (a.dtype() != DType::kF32) return gap_of_elements(a, b, begin, end);
  const float *x = a.as<float>().data(), *y = b.as<float>().data();
  Gap all;
  int64_t i = begin;
  for (; i + kGroup <= end; i += kGroup) {
    const auto group = gap_of_group(x + i, y + i, i);
    all.add(group ? *group : gap_of_elements(a, b, i, i + kGroup));
  }
  all.add(gap_of_elements(a, b, i, end));
  return all;
}

TensorDiff diff_tensors(const std::string& name, const Tensor& a, const Tensor& b,
                        ThreadPool& pool) {
  TensorDiff d;
  d.name = name;
  d.types = to_string(a.type());
  d.elements = a.elements();
  if (a.type() != b.type()) {
    d.types += " against " + to_string(b.type());
    d.paired = false;
    d.different = d.elements;
    d.relative = INFINITY;
    return d;
  }
  constexpr int64_t kPiece = 1 << 18;
  const int64_t pieces = (d.elements + kPiece - 1) / kPiece;
  std::vector<Gap> gaps(static_cast<size_t>(pieces));
  pool.parallel_for(pieces, [&](int64_t i) {
    gaps[static_cast<size_t>(i)] = gap_of(a, b, i * kPiece, std::min(d.elements, (i + 1) * kPiece));
  });
  Gap all;
  for (const Gap& gap : gaps) all.add(gap);
  d.different = all.different, d.nans = all.nans;
  d.max_ulps = all.ulps, d.max_abs = all.largest;
  if (all.first >= 0) {
    d.first = fmt::format("{} {:.9g} against {:.9g}", index_text(a.dims(), all.first),
                          number_at(a, all.first), number_at(b, all.first));
  }
  d.relative = all.norm > 0 ? std::sqrt(all.squares / all.norm) : std::sqrt(all.squares);
  return d;
}

using ReadTensor = std::function<Result<Tensor>(const std::string&)>;

Result<Diff> diff_states(const CheckpointHeader& a, const ReadTensor& read_a,
                         const CheckpointHeader& b, const ReadTensor& read_b, bool read_all) {
  ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  Diff d;
  d.kind = "checkpoint";
  if (a.contract != b.contract)
    d.notes.push_back(fmt::format("contract {} against {}", a.contract, b.contract));
  if (a.scenario_digest != b.scenario_digest) d.notes.push_back("made by different scenarios");
  if (a.step != b.step) d.notes.push_back(fmt::format("after {} steps against {}", a.step, b.step));
  const auto only = [&](const std::string& name, const CheckpointHeader::Entry& entry,
                        const char* where) {
    d.tensors.push_back({.name = name,
                         .types = where,
                         .paired = false,
                         .elements = entry.type.elements(),
                         .different = entry.type.elements(),
                         .relative = INFINITY});
  };
  for (const auto& [name, x] : a.tensors) {
    const auto y = b.tensors.find(name);
    ++d.tensors_compared;
    if (y == b.tensors.end()) {
      only(name, x, "only in A");
      continue;
    }
    if (!read_all && x.type == y->second.type && x.digest == y->second.digest) {
      ++d.tensors_unread;
      continue;
    }
    TWINRUN_ASSIGN(const Tensor u, read_a(name));
    TWINRUN_ASSIGN(const Tensor v, read_b(name));
    if (!u.same_bits(v)) d.tensors.push_back(diff_tensors(name, u, v, pool));
  }
  for (const auto& [name, y] : b.tensors) {
    if (a.tensors.contains(name)) continue;
    ++d.tensors_compared;
    only(name, y, "only in B");
  }
  std::ranges::stable_sort(d.tensors, std::greater<>(), &TensorDiff::relative);
  d.same = d.tensors.empty();
  return d;
}

}  // namespace

Diff diff_checkpoints(const Checkpoint& a, const Checkpoint& b) {
  const auto reader = [](const Checkpoint& c) {
    return [&c](const std::string& name) -> Result<Tensor> { return c.tensors.at(name).value; };
  };
  // All tensors are in memory, where comparing them costs less than computing digests.
  return *diff_states(a.outline(), reader(a), b.outline(), reader(b), /*read_all=*/true);
}

namespace {

// Compares the initial weights of two runs. If they differ, the rest of the comparison says nothing
// about the engines.
void compare_starts(const RunFile& a, const RunFile& b, Diff& d) {
  const auto x = a.environment.find(std::string(kInitialState)),
             y = b.environment.find(std::string(kInitialState));
  if (x == a.environment.end() || y == b.environment.end() || a.first_step != b.first_step) return;
  d.same_start = x->second == y->second;
  if (*d.same_start) return;
  d.notes.insert(
      d.notes.begin(),
      fmt::format("A and B begin from different initial checkpoints (weights {} against "
                  "{}), which alone makes everything after them differ; train both from one "
                  "checkpoint (twinrun snapshot, train --init FILE) before concluding anything",
                  x->second.substr(0, 8), y->second.substr(0, 8)));
}

}  // namespace

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
  // Runs may begin at different steps (one was resumed): compare the steps that both have.
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
  compare_starts(a, b, d);
  d.same = d.tensors.empty() && !d.first_step && !d.first_loss && same_length;
  return d;
}

Result<Diff> diff_of_ours(const std::string& a, const std::string& b, bool verify) {
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
  TWINRUN_ASSIGN(const CheckpointFile x, CheckpointFile::open(a));
  TWINRUN_ASSIGN(const CheckpointFile y, CheckpointFile::open(b));
  return diff_states(
      x.header(), [&](const std::string& name) { return x.read(name); }, y.header(),
      [&](const std::string& name) { return y.read(name); }, verify);
}

}  // namespace twinrun

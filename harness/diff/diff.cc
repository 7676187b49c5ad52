// Compares two runs or checkpoints of twinrun, tensor by tensor and step by step.
#include "harness/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include "harness/diff/diff_foreign.h"
#include "harness/tensors/element.h"
#include "harness/tensors/element_diff.h"
#include "harness/tensors/pattern.h"
#include "program/base/bits.h"
#include "program/base/thread_pool.h"

namespace twinrun {
namespace {

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
  std::vector<ElementDiff> parts(static_cast<size_t>(pieces));
  pool.parallel_for(pieces, [&](int64_t i) {
    parts[static_cast<size_t>(i)] =
        diff_elements(a, b, i * kPiece, std::min(d.elements, (i + 1) * kPiece));
  });
  ElementDiff all;
  for (const ElementDiff& part : parts) all.add(part);
  d.different = all.different, d.nans = all.nans;
  d.max_ulps = all.max_ulps, d.max_abs = all.max_abs;
  if (all.first >= 0) {
    d.first = fmt::format("{} {:.9g} against {:.9g}", index_text(a.dims(), all.first),
                          number_at(a, all.first), number_at(b, all.first));
  }
  d.relative = all.relative();
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

// Compares two runs or checkpoints of twinrun, tensor by tensor and step by step.
#include "harness/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include "harness/diff/diff_foreign.h"
#include "harness/tensors/element_diff.h"
#include "harness/tensors/pattern.h"
#include "program/base/bits.h"
#include "program/base/element.h"
#include "program/base/thread_pool.h"

namespace twinrun {
namespace {

// The elements [begin, end) of two tensors, and whether they begin to differ there.
struct Part {
  ElementDiff elements;
  std::string first;  // values of the first element that differs
};

// Elements that are read, digested and compared before the next ones: those of both sides stay in
// the cache.
constexpr int64_t kPiece = 1 << 15;

// Compares tensors of one type. Those of files are held against their digests, for which the range
// must be all of them.
Result<Part> diff_range(const TensorReader& a, const TensorReader& b, int64_t begin, int64_t end) {
  const TensorType type{a.type().dtype, {kPiece}};
  Tensor x = Tensor::empty(type), y = Tensor::empty(type);
  DigestBuilder digest_a, digest_b;
  digest_a.begin_tensor(a.type()), digest_b.begin_tensor(b.type());
  Part part;
  for (int64_t i = begin; i < end; i += kPiece) {
    const int64_t n = std::min(kPiece, end - i);
    const size_t bytes = static_cast<size_t>(n) * size_of(type.dtype);
    TWINRUN_RETURN_IF_ERROR(a.read(i, n, x.raw()));
    TWINRUN_RETURN_IF_ERROR(b.read(i, n, y.raw()));
    if (a.has_digest()) digest_a.add_bytes(x.raw(), bytes);
    if (b.has_digest()) digest_b.add_bytes(y.raw(), bytes);
    ElementDiff d = diff_elements(x, y, 0, n);
    if (d.first >= 0) {
      if (part.first.empty())
        part.first =
            fmt::format("{:.9g} against {:.9g}", number_at(x, d.first), number_at(y, d.first));
      d.first += i;
    }
    part.elements.add(d);
  }
  TWINRUN_RETURN_IF_ERROR(a.check(a.has_digest() ? digest_a.finish() : Digest{}));
  TWINRUN_RETURN_IF_ERROR(b.check(b.has_digest() ? digest_b.finish() : Digest{}));
  return part;
}

// Tensors of two states under one name. They are compared in ranges, on several threads.
struct Pair {
  std::string name;
  TensorReader a, b;
  std::vector<Result<Part>> parts;
  int64_t range() const { return a.has_digest() || b.has_digest() ? INT64_MAX : kPiece * 8; }
  int64_t begin(size_t part) const { return static_cast<int64_t>(part) * range(); }
};

TensorDiff added_up(const Pair& pair) {
  ElementDiff all;
  std::string first;
  for (const Result<Part>& part : pair.parts) {
    if (all.first < 0) first = part->first;
    all.add(part->elements);
  }
  const TensorType& type = pair.a.type();
  TensorDiff d{.name = pair.name, .types = to_string(type), .elements = type.elements()};
  d.different = all.different, d.nans = all.nans;
  d.max_ulps = all.max_ulps, d.max_abs = all.max_abs;
  if (all.first >= 0) d.first = index_text(type.dims, all.first) + " " + first;
  d.relative = all.relative();
  return d;
}

Status compare(std::vector<Pair>& pairs) {
  std::vector<std::pair<Pair*, size_t>> todo;
  for (Pair& pair : pairs) {
    const int64_t elements = pair.a.type().elements();
    size_t parts = 0;
    do todo.emplace_back(&pair, parts++);
    while (elements / pair.range() >= static_cast<int64_t>(parts));
    pair.parts.resize(parts, Part{});
  }
  ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  pool.parallel_for(static_cast<int64_t>(todo.size()), [&](int64_t i) {
    const auto& [pair, part] = todo[static_cast<size_t>(i)];
    const int64_t begin = pair->begin(part), elements = pair->a.type().elements();
    const int64_t end = elements - begin < pair->range() ? elements : begin + pair->range();
    pair->parts[part] = diff_range(pair->a, pair->b, begin, end);
  });
  for (const auto& [pair, part] : todo) TWINRUN_RETURN_IF_ERROR(pair->parts[part]);
  return Ok{};
}

using OpenTensor = std::function<Result<TensorReader>(const std::string&)>;

// Reads all of a tensor that is compared with nothing, to hold it against its digest.
Status check_whole(const TensorReader& tensor) {
  TWINRUN_RETURN_IF_ERROR(diff_range(tensor, tensor, 0, tensor.type().elements()));
  return Ok{};
}

Result<Diff> diff_states(const CheckpointHeader& a, const OpenTensor& open_a,
                         const CheckpointHeader& b, const OpenTensor& open_b, bool read_all) {
  Diff d;
  d.kind = "checkpoint";
  if (a.contract != b.contract)
    d.notes.push_back(fmt::format("contract {} against {}", a.contract, b.contract));
  if (a.scenario_digest != b.scenario_digest) d.notes.push_back("made by different scenarios");
  if (a.step != b.step) d.notes.push_back(fmt::format("after {} steps against {}", a.step, b.step));
  const auto only = [&](const std::string& name, const CheckpointHeader::Entry& entry,
                        const std::string& where) {
    d.tensors.push_back({.name = name,
                         .types = where,
                         .paired = false,
                         .elements = entry.type.elements(),
                         .different = entry.type.elements(),
                         .relative = INFINITY});
  };
  std::vector<Pair> pairs;
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
    TWINRUN_ASSIGN(TensorReader u, open_a(name));
    TWINRUN_ASSIGN(TensorReader v, open_b(name));
    if (x.type == y->second.type) {
      pairs.push_back({name, std::move(u), std::move(v), {}});
      continue;
    }
    TWINRUN_RETURN_IF_ERROR(check_whole(u));
    TWINRUN_RETURN_IF_ERROR(check_whole(v));
    only(name, x, to_string(x.type) + " against " + to_string(y->second.type));
  }
  for (const auto& [name, y] : b.tensors) {
    if (a.tensors.contains(name)) continue;
    ++d.tensors_compared;
    only(name, y, "only in B");
  }
  TWINRUN_RETURN_IF_ERROR(compare(pairs));
  for (const Pair& pair : pairs) {
    if (TensorDiff found = added_up(pair); found.different > 0)
      d.tensors.push_back(std::move(found));
  }
  std::ranges::stable_sort(d.tensors, std::greater<>(), &TensorDiff::relative);
  d.same = d.tensors.empty();
  return d;
}

}  // namespace

Diff diff_checkpoints(const Checkpoint& a, const Checkpoint& b) {
  const auto reader = [](const Checkpoint& c) {
    return [&c](const std::string& name) -> Result<TensorReader> {
      return TensorReader(c.tensors.at(name).value);
    };
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
      fmt::format(
          "A and B begin from different initial checkpoints (weights {} against "
          "{}), which alone makes everything after them differ; train both from one "
          "checkpoint (train --snapshot, then train --init FILE) before concluding anything",
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
      x.header(), [&](const std::string& name) { return x.reader(name); }, y.header(),
      [&](const std::string& name) { return y.reader(name); }, verify);
}

}  // namespace twinrun

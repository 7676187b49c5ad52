// Compares curves and weights of other frameworks with each other and with twinrun's files; entry
// point diff_files.
#include "harness/diff/diff_foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "checkpoints/interchange/match.h"
#include "harness/foreign/convert.h"
#include "harness/foreign/curves.h"
#include "program/base/bits.h"
#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun {
namespace {

enum class Holds : uint8_t { kOurs, kCurve, kWeights };

Result<Holds> what_it_holds(const std::string& path) {
  if (is_curve_path(path)) return Holds::kCurve;
  TWINRUN_ASSIGN(const bool ours, is_twinrun_file(path));
  return ours ? Holds::kOurs : Holds::kWeights;
}

bool same_value(double x, double y) {
  return x == y ? std::signbit(x) == std::signbit(y) : x != x && y != y;
}

std::string steps_listed(const std::vector<int64_t>& steps) {
  constexpr size_t kMax = 5;
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(steps.size(), kMax); ++i)
    words.push_back(fmt::format("{}", steps[i]));
  return join(words, ", ") + (steps.size() > kMax ? ", .." : "");
}

Result<Diff> diff_curve_files(const std::string& a, const std::string& b, const Columns& columns) {
  TWINRUN_ASSIGN(const CurveFile x, read_curve(a, columns.a));
  TWINRUN_ASSIGN(const CurveFile y, read_curve(b, columns.b));
  Diff d = diff_curves(x.curve, y.curve);
  for (const auto* file : {&y, &x})
    d.notes.insert(d.notes.begin(), file->notes.begin(), file->notes.end());
  return d;
}

// The arrays of a file as a checkpoint. Spellings of one name, "conv1.kernel" and "conv1/kernel:0",
// both become "conv1/kernel".
Result<Checkpoint> as_checkpoint(const ForeignWeights& weights, const std::string& path,
                                 std::vector<std::string>& notes) {
  Checkpoint out;
  for (const NamedArray& array : weights.arrays) {
    std::string name =
        array.name.ends_with(":0") ? array.name.substr(0, array.name.size() - 2) : array.name;
    std::ranges::replace(name, '.', '/');
    const auto dtype = natural_dtype(array.type);
    if (!dtype) {
      notes.push_back(
          fmt::format("{}: not compared: '{}' of {}", path, array.name, describe(array)));
      continue;
    }
    TWINRUN_ASSIGN(Tensor tensor, to_tensor(array, *dtype, path));
    if (!out.tensors.emplace(name, CheckpointTensor{std::move(tensor), "parameter"}).second)
      return Error{fmt::format("two arrays are named '{}'", name), path, ""};
  }
  for (const std::string& what : weights.ignored)
    notes.push_back(fmt::format("{}: not understood: {}", path, what));
  if (!weights.optimizer.empty())
    notes.push_back(
        fmt::format("{}: {} of the optimizer: not compared", path,
                    text::plural(static_cast<int64_t>(weights.optimizer.size()), "variable")));
  return out;
}

Result<Diff> diff_foreign_weights(const std::string& a, const std::string& b) {
  TWINRUN_ASSIGN(const ForeignWeights x, read_foreign_weights(a));
  TWINRUN_ASSIGN(const ForeignWeights y, read_foreign_weights(b));
  std::vector<std::string> notes;
  TWINRUN_ASSIGN(const Checkpoint u, as_checkpoint(x, a, notes));
  TWINRUN_ASSIGN(const Checkpoint v, as_checkpoint(y, b, notes));
  Diff d = diff_checkpoints(u, v);
  d.kind = "weights";
  d.notes = std::move(notes);
  return d;
}

// Compares a checkpoint of twinrun with foreign weights, matched as in `twinrun convert`. Tensors
// that only ours has (slots, counters) are left out, with a note.
Result<Diff> diff_with_ours(const std::string& ours, const std::string& theirs, bool ours_first) {
  std::string kind;
  TWINRUN_ASSIGN(Checkpoint mine, read_ours(ours, kind));
  TWINRUN_ASSIGN(ForeignWeights weights, read_foreign_weights(theirs));
  ConvertOptions options;
  options.in = ours;
  TWINRUN_ASSIGN(const ModelOutline outline, outline_of(mine, options, weights.format));
  Conversion matched;
  TWINRUN_ASSIGN(Checkpoint other,
                 import_weights(mine, outline, std::move(weights), {}, theirs, matched));
  for (const std::string& name : matched.initial) {
    mine.tensors.erase(name);
    other.tensors.erase(name);
  }
  Diff d = ours_first ? diff_checkpoints(mine, other) : diff_checkpoints(other, mine);
  d.kind = "weights";
  const auto say = [&](const std::string& path, size_t count, const char* what,
                       const std::string& first) {
    if (count == 0) return;
    d.notes.push_back(fmt::format("{}: {} {}: {}{}", path,
                                  text::plural(static_cast<int64_t>(count), "tensor"), what, first,
                                  count > 1 ? ", .." : ""));
  };
  say(theirs, matched.initial.size(), "of ours are not in it and are not compared",
      matched.initial.empty() ? "" : matched.initial.front());
  int64_t converted = 0;
  std::string how;
  for (const Conversion::Row& row : matched.rows) {
    if (row.change.empty()) continue;
    if (converted++ == 0) how = fmt::format("{} ({})", row.theirs, row.change);
  }
  say(theirs, static_cast<size_t>(converted), "converted", how);
  for (const Conversion::Unused& unused : matched.unused) {
    d.tensors.push_back({.name = unused.theirs,
                         .types = ours_first ? "only in B" : "only in A",
                         .paired = false,
                         .relative = INFINITY});
    d.same = false;
  }
  d.notes.insert(d.notes.end(), matched.notes.begin(), matched.notes.end());
  return d;
}

}  // namespace

Diff diff_curves(const Curve& a, const Curve& b) {
  Diff d;
  d.kind = "curve";
  d.column_a = a.name, d.column_b = b.name;
  d.steps_a = std::ssize(a.steps), d.steps_b = std::ssize(b.steps);
  const bool rounded = a.binary32 || b.binary32;
  const auto value = [&](const Curve& curve, size_t i) {
    return rounded ? static_cast<double>(static_cast<float>(curve.values[i])) : curve.values[i];
  };
  std::vector<int64_t> only_a, only_b;
  size_t i = 0, k = 0;
  while (i < a.steps.size() || k < b.steps.size()) {
    if (k == b.steps.size() || (i < a.steps.size() && a.steps[i] < b.steps[k])) {
      only_a.push_back(a.steps[i++]);
      continue;
    }
    if (i == a.steps.size() || b.steps[k] < a.steps[i]) {
      only_b.push_back(b.steps[k++]);
      continue;
    }
    const double x = value(a, i), y = value(b, k);
    const int64_t step = a.steps[i++];
    ++k;
    ++d.steps_compared;
    if (same_value(x, y)) continue;
    if (!d.first_loss) {
      d.first_loss = step;
      d.first_values = fmt::format("{:.9g} against {:.9g}", x, y);
    }
    const double gap = std::abs(x - y);
    d.max_loss_gap = gap == gap ? std::max(d.max_loss_gap, gap) : INFINITY;
    const double relative = gap == gap ? gap / std::abs(y) : INFINITY;
    d.max_relative_gap = relative == relative ? std::max(d.max_relative_gap, relative) : INFINITY;
  }
  const auto missing = [&](const std::vector<int64_t>& steps, const char* side) {
    if (steps.empty()) return;
    d.notes.push_back(fmt::format("{} only in {}: {}",
                                  text::plural(static_cast<int64_t>(steps.size()), "step"), side,
                                  steps_listed(steps)));
  };
  missing(only_a, "A");
  missing(only_b, "B");
  d.same = !d.first_loss && only_a.empty() && only_b.empty();
  return d;
}

Result<Diff> diff_files(const std::string& a, const std::string& b, bool verify,
                        const Columns& columns) {
  TWINRUN_ASSIGN(const Holds x, what_it_holds(a));
  TWINRUN_ASSIGN(const Holds y, what_it_holds(b));
  const bool curves =
      x == Holds::kCurve || y == Holds::kCurve || !columns.a.empty() || !columns.b.empty();
  if (curves) {
    for (const auto& [holds, path] : {std::pair(x, a), std::pair(y, b)}) {
      if (holds == Holds::kWeights)
        return Error{"holds weights; expected a curve to compare", path,
                     "give a run file, an event file, .csv or .jsonl"};
    }
    return diff_curve_files(a, b, columns);
  }
  if (x == Holds::kOurs && y == Holds::kOurs) return diff_of_ours(a, b, verify);
  if (x == y) return diff_foreign_weights(a, b);
  return x == Holds::kOurs ? diff_with_ours(a, b, true) : diff_with_ours(b, a, false);
}

}  // namespace twinrun

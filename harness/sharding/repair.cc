// Runs the sharded program beside the values of the step on one device, repairs what first means
// something else, and names what was repaired.
#include "harness/sharding/repair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "backends/oracle/f64_engine.h"
#include "backends/oracle/oracle.h"
#include "harness/sharding/repair_names.h"
#include "harness/sharding/repair_values.h"
#include "harness/sharding/repair_variants.h"

namespace twinrun {
namespace {

using Values = ReplicaWalk::Values;

constexpr size_t kMaxValues = 4'000'000;  // of all cores, that are remembered
constexpr int kFew = 4;                   // a cause of more parts is not looked for one by one

class Search {
 public:
  Search(const RepairTask& task, WholeValues whole, RepairFlow flow, ReplicaWalk::Eval eval)
      : task_(task),
        whole_(std::move(whole)),
        flow_(std::move(flow)),
        names_(task, flow_),
        eval_(std::move(eval)),
        walk_(task.sharded),
        cores_(task.given.size()),
        drawn_(drawn_values(task.sharded)) {}

  Result<std::vector<RepairedCause>> run() {
    std::vector<RepairedCause> best;
    // In the loss a factor is often no mistake: a core's mean has derivatives as many times as large.
    for (const Phase from : {Phase::kUpdate, Phase::kGradient, Phase::kForward}) {
      for (const bool counts : {true, false}) {
        TWINRUN_ASSIGN(std::vector<RepairedCause> found, attempt(factors(from), counts));
        if (!found.empty() && (best.empty() || found.size() < best.size())) best = std::move(found);
        if (best.size() == 1) return best;
      }
    }
    if (!best.empty()) return best;
    const std::vector<OtherCollective> others =
        other_collectives(task_.sharded, flow_, task_.axes, task_.exchanges);
    const auto none = [](const RepairPoint&) { return false; };
    for (const Allowed& allowed :
         {Allowed(none), factors(Phase::kUpdate), factors(Phase::kGradient)}) {
      for (const OtherCollective& other : others) {
        other_ = &other;
        TWINRUN_ASSIGN(best, attempt(allowed, false));
        if (!best.empty()) return best;
      }
    }
    other_ = nullptr;
    TWINRUN_RETURN_IF_ERROR(walk(none, true));
    for (ValueId id = 0; id < task_.sharded.graph.size(); ++id)
      if (whole_.is_diagonal(task_.sharded.graph.type(id).dims,
                             found_[static_cast<size_t>(id)].marks))
        return std::vector{names_.described("pairs_of_samples", {{.id = id}})};
    return best;
  }

 private:
  using Allowed = std::function<bool(const RepairPoint&)>;

  // Which repairs may be made: those of factors in the update alone, of gradients too, or all.
  Allowed factors(Phase from) const {
    return [this, from](const RepairPoint& p) {
      const bool forward = flow_.is_differentiated(p.id);
      return p.kind != RepairPoint::kFactor || from == Phase::kForward ||
             (from == Phase::kGradient && !forward) ||
             (from == Phase::kUpdate && !forward && phase(p.id) != Phase::kGradient);
    };
  }

  Phase phase(ValueId id) const { return task_.sharded.graph.op(id).phase; }

  // The causes with whose repair the step means the same; none if it does not.
  Result<std::vector<RepairedCause>> attempt(const Allowed& allowed, bool counts) {
    TWINRUN_ASSIGN(const bool same, walk(allowed, counts));
    if (!same || (points_.empty() && other_ == nullptr)) return std::vector<RepairedCause>();
    std::vector<RepairPoint> all = points_;
    if (names_.compensates(all))
      return names_.asks_rank(true) ? std::vector{names_.described("rank", all)}
                                    : std::vector<RepairedCause>();
    for (RepairPoint& p : all) p.cause = names_.cause_of(p, all);
    if (std::ranges::any_of(all, &std::string::empty, &RepairPoint::cause))
      return std::vector<RepairedCause>();
    for (RepairPoint& p : all)
      if (p.cause == "no_all_reduce" && std::ranges::any_of(all, [&](const RepairPoint& other) {
            return other.cause == "forgotten_axis" && other.groups == p.groups;
          }))
        p.cause = "forgotten_axis";
    // One factor has one cause.
    for (RepairPoint& p : all)
      if (p.cause == "unscaled" && std::ranges::any_of(all, [&](const RepairPoint& other) {
            return other.cause == "summed_in_derivative" && other.factor == p.factor;
          }))
        p.cause = "summed_in_derivative";
    std::vector<std::string> kinds;
    for (const RepairPoint& p : all)
      if (std::ranges::find(kinds, p.cause) == kinds.end()) kinds.push_back(p.cause);
    std::vector<std::string> chosen = kinds;
    const auto few = static_cast<unsigned>(kinds.size());
    for (int size = 1; few <= kFew && size < static_cast<int>(few); ++size) {
      bool enough = false;
      for (unsigned set = 1; set < (1U << few) && !enough; ++set) {
        if (__builtin_popcount(set) != size) continue;
        std::vector<std::string> some;
        for (unsigned k = 0; k < few; ++k)
          if ((set >> k & 1U) != 0) some.push_back(kinds[k]);
        const auto is_chosen = [&](const RepairPoint& p) {
          const auto known = std::ranges::find_if(all, [&](const RepairPoint& other) {
            return other.id == p.id && other.kind == p.kind && other.factor == p.factor;
          });
          return known != all.end() && std::ranges::find(some, known->cause) != some.end();
        };
        TWINRUN_ASSIGN(enough, walk(is_chosen, counts));
        if (enough) chosen = some;
      }
      if (enough) break;
    }
    std::vector<RepairedCause> causes;
    for (const std::string& cause : chosen) {
      std::vector<RepairPoint> own;
      std::ranges::copy_if(all, std::back_inserter(own),
                           [&](const RepairPoint& p) { return p.cause == cause; });
      causes.push_back(names_.described(cause, own));
    }
    if (other_ != nullptr) causes.push_back(names_.described(*other_));
    return causes;
  }

  // Runs the program with the repairs that are allowed; whether it means the same.
  Result<bool> walk(const Allowed& allowed, bool counts) {
    points_.clear();
    draws_.clear();
    counts_ = counts;
    found_.assign(static_cast<size_t>(task_.sharded.graph.size()), Found());
    Values values = task_.given;
    for (ValueId id = 0; id < task_.sharded.graph.size(); ++id) {
      const Op& op = task_.sharded.graph.op(id);
      if (!walk_.runs(id)) {
        if (op.kind == OpKind::kParameter && is_floating(op.type.dtype))
          found_[static_cast<size_t>(id)] = look(id, results_of(values, id));
        continue;
      }
      Values operands;
      TWINRUN_RETURN_IF_ERROR(walk_.run_op(
          id, values, eval_, [&](ValueId, const Values& read, const auto&) { operands = read; }));
      if (other_ != nullptr && other_->instead.contains(id)) {
        const std::vector<Tensor> results = other_->instead.at(id)(operands);
        for (size_t r = 0; r < cores_; ++r) values[r][static_cast<size_t>(id)] = results[r];
      }
      repair(id, operands, values, allowed);
    }
    return task_.same(values);
  }

  static std::vector<Tensor> results_of(const Values& values, ValueId id) {
    std::vector<Tensor> out;
    for (const auto& core : values) out.push_back(core[static_cast<size_t>(id)]);
    return out;
  }

  // What a value is to those of the step on one device.
  struct Found {
    enum Relation : uint8_t { kNone, kSame, kMean, kSum, kMultiple } relation = kNone;
    size_t groups = 0;
    double factor = 1;
    std::vector<Mark> marks;  // of the cores
  };

  Found look(ValueId id, const std::vector<Tensor>& own) const {
    std::vector<Mark> marks;
    for (size_t r = 0; r < cores_; ++r)
      marks.push_back(r > 0 && own[r].raw() == own[r - 1].raw() ? marks.back() : mark_of(own[r]));
    const Dims& dims = own[0].dims();
    Found found;
    found.marks = marks;
    const auto all_have = [&](double by) {
      return std::ranges::all_of(marks,
                                 [&](const Mark& m) { return whole_.has(dims, m.scaled(by)); });
    };
    const bool uniform = std::ranges::all_of(marks, [&](const Mark& m) { return m.is(marks[0]); });
    if (whole_.has(dims, marks[0]) && (uniform || all_have(1))) {
      found.relation = Found::kSame;
      return found;
    }
    // Of a core's mean, the derivative is as many times as large as there are cores with other samples.
    const bool derivative = phase(id) == Phase::kGradient;
    for (size_t k = 0; !uniform && k < flow_.groups().size() * (derivative ? 2 : 1); ++k) {
      const size_t g = k % flow_.groups().size();
      const JoinedCores& groups = flow_.groups()[g];
      std::map<int, Mark> sums, first;
      bool alike = true;  // in each group
      for (size_t r = 0; r < cores_; ++r) {
        sums[groups[r]] = sums[groups[r]].plus(marks[r]);
        alike = alike && marks[r].is(first.try_emplace(groups[r], marks[r]).first->second);
      }
      if (alike) continue;
      const auto n = static_cast<double>(size_of_groups(groups));
      const auto cores = static_cast<double>(cores_);
      const auto has = [&](double by) {
        return std::ranges::all_of(
            sums, [&](const auto& sum) { return whole_.explains(dims, sum.second.scaled(by)); });
      };
      const double larger = k == g ? 1 : n < cores ? cores / n : n;
      found.groups = g;
      found.relation = has(1 / n / larger)                        ? Found::kMean
                       : (k == g || n < cores) && has(1 / larger) ? Found::kSum
                                                                  : Found::kNone;
      if (found.relation == Found::kSum) return found;
      if (found.relation == Found::kNone) continue;
      // Where cores hold the same already, the mean of fewer of them is that of all.
      for (size_t other = 0; other < flow_.groups().size(); ++other)
        if (is_mean_of(marks, flow_.groups()[other], larger, dims) &&
            size_of_groups(flow_.groups()[other]) < size_of_groups(flow_.groups()[found.groups]))
          found.groups = other;
      return found;
    }
    for (const JoinedCores& groups : flow_.groups()) {
      const double n = static_cast<double>(size_of_groups(groups));
      for (const double c : {n, 1 / n, n * n, 1 / n / n}) {
        if (!whole_.has(dims, marks[0].scaled(1 / c)) || !all_have(1 / c)) continue;
        found.relation = Found::kMultiple;
        found.factor = c;
        return found;
      }
    }
    return found;
  }

  // Whether the cores' mean in each group is what the step on one device has, times a number.
  bool is_mean_of(const std::vector<Mark>& marks, const JoinedCores& groups, double times,
                  const Dims& dims) const {
    std::map<int, Mark> sums;
    for (size_t r = 0; r < cores_; ++r) sums[groups[r]] = sums[groups[r]].plus(marks[r]);
    const double n = static_cast<double>(size_of_groups(groups));
    return std::ranges::all_of(sums, [&](const auto& sum) {
      return whole_.explains(dims, sum.second.scaled(1 / n / times));
    });
  }

  void repair(ValueId id, const Values& operands, Values& values, const Allowed& allowed) {
    const Op& op = task_.sharded.graph.op(id);
    std::vector<Tensor> own = results_of(values, id);
    const auto put = [&](RepairPoint point, const auto& value_of) {
      if (!allowed(point)) return;
      points_.push_back(std::move(point));
      for (size_t r = 0; r < cores_; ++r) values[r][static_cast<size_t>(id)] = value_of(r);
      found_[static_cast<size_t>(id)].relation = Found::kSame;
    };
    if (flow_.is_constant(id) || !flow_.is_needed(id)) return;
    std::vector<size_t> order;
    if (op.kind == OpKind::kReshape || op.kind == OpKind::kGather || op.kind == OpKind::kSlice) {
      if (const auto rows = whole_.rows(own, order)) {
        // A cause by which cores have each other's rows.
        std::vector<size_t> sorted = order;
        std::ranges::sort(sorted);
        RepairPoint point{.kind = RepairPoint::kRows, .id = id};
        point.cause = sorted.front() == sorted.back()                      ? "same_shard"
                      : std::ranges::adjacent_find(sorted) != sorted.end() ? "shard_twice"
                                                                           : "permuted";
        point.detail = fmt::format("[{}]", fmt::join(order, ", "));
        put(point, [&](size_t r) { return (*rows)[r]; });
        return;
      }
    }
    const bool uniform = flow_.uniform(id, flow_.groups()[0]);
    if (uniform && !is_floating(op.type.dtype)) return;
    Found is = look(id, own);
    const std::vector<size_t> from =
        uniform ? std::vector<size_t>() : whole_.order(op.type.dims, is.marks);
    if (!from.empty()) {
      RepairPoint point{.kind = RepairPoint::kRows, .id = id};
      point.cause = "permuted";
      point.detail = fmt::format("[{}]", fmt::join(from, ", "));
      put(point, [&](size_t r) { return own[from[r]]; });
      return;
    }
    if (!is_floating(op.type.dtype)) return;
    if (drawn_[static_cast<size_t>(id)]) {
      const std::vector<Tensor> draw =
          whole_.draw(op.kind, draws_[op.kind]++, op.type.dims, cores_);
      bool same = true;
      for (size_t r = 0; r < draw.size(); ++r) same = same && mark_of(draw[r]).is(mark_of(own[r]));
      if (!draw.empty() && !same) {
        RepairPoint point{.kind = RepairPoint::kDraw, .id = id};
        point.cause = uniform                                   ? "one_stream"
                      : draw.front().raw() == draw.back().raw() ? "stream_per_core"
                                                                : kOwnDraws;
        put(point, [&](size_t r) { return draw[r]; });
      }
      return;
    }
    Found& found = found_[static_cast<size_t>(id)] = std::move(is);
    if (found.relation == Found::kSame) return;
    if (found.relation == Found::kNone && op.kind == OpKind::kAdd) repeated(id, operands, put);
    // What a value is shows where it has been divided.
    if (flow_.goes_on(id, found.factor)) return;
    if (found.relation == Found::kMultiple) {
      RepairPoint point{.kind = RepairPoint::kFactor, .id = id, .factor = found.factor};
      point.rate = is_rate(id, found.factor);
      put(point, [&](size_t r) { return scaled(own[r], 1 / found.factor); });
    }
    if (found.relation != Found::kMean && found.relation != Found::kSum) return;
    if (flow_.reduced_later(id, found.groups)) return;
    RepairPoint point{.kind = RepairPoint::kJoined, .id = id, .groups = found.groups};
    point.summed = found.relation == Found::kSum;
    if (point.summed && counts_ && flow_.is_counted(id)) return;
    point.count = point.summed && counts_ && flow_.is_count(id);
    if (point.count) point.summed = false;
    if (point.count && op.type.elements() == 1) point.detail = shares(own);
    put(point, [&](size_t r) { return joined(own, r, point); });
  }

  // a + u, which is summed over n cores, where u is the same on all of them.
  template <typename Put>
  void repeated(ValueId id, const Values& operands, const Put& put) {
    const double n = static_cast<double>(cores_);
    if (!flow_.reduced_later(id, 0)) return;
    for (const size_t i : {0U, 1U}) {
      const Mark same = mark_of(operands[0][i]);
      Mark sum;
      bool uniform = true;
      for (size_t r = 0; r < cores_; ++r) {
        uniform = uniform && mark_of(operands[r][i]).is(same);
        sum = sum.plus(mark_of(operands[r][1 - i]));
      }
      if (!uniform || same.size == 0) continue;
      if (!whole_.has(task_.sharded.graph.op(id).type.dims, sum.plus(same))) continue;
      put(RepairPoint{.kind = RepairPoint::kRepeated, .id = id, .factor = n}, [&](size_t r) {
        Tensor out = scaled(operands[r][i], 1 / n);
        const auto to = out.as<double>();
        const auto from = operands[r][1 - i].as<const double>();
        for (size_t e = 0; e < to.size(); ++e) to[e] += from[e];
        return out;
      });
      return;
    }
  }

  // Each core's part of a sum.
  static std::string shares(const std::vector<Tensor>& own) {
    std::vector<std::string> out;
    double sum = 0;
    for (const Tensor& t : own) sum += t.as<const double>()[0];
    if (own.size() > 64 || sum == 0) return "";
    for (const Tensor& t : own) out.push_back(fmt::format("{:.4g}", t.as<const double>()[0] / sum));
    return fmt::format("{}", fmt::join(out, ", "));
  }

  static Tensor scaled(const Tensor& t, double by) {
    Tensor out = t.clone();
    for (double& x : out.as<double>()) x *= by;
    return out;
  }

  Tensor joined(const std::vector<Tensor>& own, size_t core, const RepairPoint& point) const {
    const JoinedCores& groups = flow_.groups()[point.groups];
    Tensor out = Tensor::zeros({DType::kF64, own[0].dims()});
    for (size_t r = 0; r < cores_; ++r) {
      if (groups[r] != groups[core]) continue;
      const auto from = own[r].as<const double>();
      for (size_t e = 0; e < from.size(); ++e) out.as<double>()[e] += from[e];
    }
    return point.summed ? out : scaled(out, 1 / static_cast<double>(size_of_groups(groups)));
  }

  // Whether a factor is not one of the gradient: that is the step's on one device, and what it is
  // multiplied by is another number.
  bool is_rate(ValueId id, double factor) const {
    Mark last = found_[static_cast<size_t>(id)].marks[0];
    for (ValueId at = id; phase(id) == Phase::kUpdate;) {
      const auto before = flow_.scaling(at);
      if (!before) return false;
      const Found& found = found_[static_cast<size_t>(before->first)];
      if (found.relation == Found::kSame) return !last.scaled(1 / factor).is(found.marks[0]);
      at = before->first;
      last = found.marks[0];
    }
    return false;
  }

  const RepairTask& task_;
  WholeValues whole_;
  RepairFlow flow_;
  RepairNames names_;
  ReplicaWalk::Eval eval_;
  ReplicaWalk walk_;
  size_t cores_;
  bool counts_ = true;
  const OtherCollective* other_ = nullptr;  // that the walk takes in place of what is written
  std::vector<RepairPoint> points_;
  std::vector<Found> found_;
  std::vector<bool> drawn_;
  std::map<OpKind, size_t> draws_;  // that were met
};

}  // namespace

Result<std::vector<RepairedCause>> repaired_causes(const RepairTask& task) {
  const size_t cores = task.given.size();
  if (cores * static_cast<size_t>(task.sharded.graph.size()) > kMaxValues)
    return std::vector<RepairedCause>();
  const Capabilities declared = make_f64_backend({})->capabilities();
  ThreadPool pool(task.threads);
  const ReplicaWalk::Eval eval = [&](const Op& op,
                                     std::span<const Tensor> operands) -> Result<Tensor> {
    return eval_value(declared, op, operands, &pool);
  };
  std::vector<JoinedCores> along;
  for (const auto& names : sets_of_axes(task.axes)) along.push_back(groups_along(task.axes, names));
  TWINRUN_ASSIGN(RepairFlow flow, RepairFlow::make(task.sharded, task.given, eval, along));
  std::set<int64_t> parts;
  for (const JoinedCores& groups : flow.groups())
    parts.insert(static_cast<int64_t>(size_of_groups(groups)));
  TWINRUN_ASSIGN(WholeValues whole,
                 WholeValues::make(task.whole, task.whole_given, eval, parts, cores));
  return Search(task, std::move(whole), std::move(flow), eval).run();
}

}  // namespace twinrun

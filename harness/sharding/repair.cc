// Runs the sharded program beside the values of the step on one device, repairs what first means
// something else, and names what was repaired.
#include "harness/sharding/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/oracle/f64_engine.h"
#include "backends/oracle/oracle.h"
#include "harness/sharding/repair_flow.h"
#include "harness/sharding/repair_values.h"

namespace twinrun {
namespace {

using Values = ReplicaWalk::Values;

constexpr size_t kMaxValues = 4'000'000;  // of all cores, that are remembered
constexpr int kFew = 4;                   // a cause of more parts is not looked for one by one

// A repair of one value.
struct Point {
  enum Kind : uint8_t { kJoined, kFactor, kRepeated, kRows, kDraw } kind = kJoined;
  ValueId id = kNoValue;
  size_t groups = 0;
  bool summed = false;  // joined by a sum, not by a mean
  bool count = false;   // a number of samples, of which the mean is taken
  double factor = 1;
  bool rate = false;  // a factor that comes in after the gradient
  std::string cause = {};
};

class Search {
 public:
  Search(const RepairTask& task, WholeValues whole, RepairFlow flow, ReplicaWalk::Eval eval)
      : task_(task),
        whole_(std::move(whole)),
        flow_(std::move(flow)),
        eval_(std::move(eval)),
        walk_(task.sharded),
        cores_(task.given.size()),
        drawn_(drawn_values(task.sharded)) {}

  Result<std::vector<RepairedCause>> run() {
    std::vector<RepairedCause> best;
    // In the loss a factor is often no mistake: a core's mean has derivatives as many times as large.
    for (const Phase from : {Phase::kUpdate, Phase::kGradient, Phase::kForward}) {
      for (const bool counts : {true, false}) {
        const auto allowed = [&](const Point& p) {
          const bool forward = flow_.forward(p.id);
          return p.kind != Point::kFactor || from == Phase::kForward ||
                 (from == Phase::kGradient && !forward) ||
                 (from == Phase::kUpdate && !forward && phase(p.id) != Phase::kGradient);
        };
        TWINRUN_ASSIGN(std::vector<RepairedCause> found, attempt(allowed, counts));
        if (!found.empty() && (best.empty() || found.size() < best.size())) best = std::move(found);
        if (best.size() == 1) return best;
      }
    }
    if (!best.empty()) return best;
    TWINRUN_RETURN_IF_ERROR(walk([](const Point&) { return false; }, true));
    for (ValueId id = 0; id < task_.sharded.graph.size(); ++id)
      if (whole_.is_diagonal(task_.sharded.graph.type(id).dims,
                             found_[static_cast<size_t>(id)].marks))
        return std::vector{described("pairs_of_samples", {{.id = id}})};
    return best;
  }

 private:
  using Allowed = std::function<bool(const Point&)>;

  Phase phase(ValueId id) const { return task_.sharded.graph.op(id).phase; }

  // The causes with whose repair the step means the same; none if it does not.
  Result<std::vector<RepairedCause>> attempt(const Allowed& allowed, bool counts) {
    TWINRUN_ASSIGN(const bool same, walk(allowed, counts));
    if (!same || points_.empty()) return std::vector<RepairedCause>();
    std::vector<Point> all = points_;
    if (compensates(all))
      return asks_rank(true) ? std::vector{described("rank", all)} : std::vector<RepairedCause>();
    for (Point& p : all) p.cause = cause_of(p, all);
    // One factor has one cause.
    for (Point& p : all)
      if (p.cause == "unscaled" && std::ranges::any_of(all, [&](const Point& other) {
            return other.cause == "summed_in_derivative" && other.factor == p.factor;
          }))
        p.cause = "summed_in_derivative";
    std::vector<std::string> kinds;
    for (const Point& p : all)
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
        const auto is_chosen = [&](const Point& p) {
          const auto known = std::ranges::find_if(
              all, [&](const Point& other) { return other.id == p.id && other.kind == p.kind; });
          return known != all.end() && std::ranges::find(some, known->cause) != some.end();
        };
        TWINRUN_ASSIGN(enough, walk(is_chosen, counts));
        if (enough) chosen = some;
      }
      if (enough) break;
    }
    std::vector<RepairedCause> causes;
    for (const std::string& cause : chosen) {
      std::vector<Point> own;
      std::ranges::copy_if(all, std::back_inserter(own),
                           [&](const Point& p) { return p.cause == cause; });
      causes.push_back(described(cause, own));
    }
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
    // Of a core's mean, the derivative is as many times as large.
    const bool derivative = phase(id) == Phase::kGradient;
    for (size_t k = 0; !uniform && k < flow_.groups().size() * (derivative ? 2 : 1); ++k) {
      const size_t g = k % flow_.groups().size();
      const JoinedCores& groups = flow_.groups()[g];
      std::map<int, Mark> sums;
      for (size_t r = 0; r < cores_; ++r) sums[groups[r]] = sums[groups[r]].plus(marks[r]);
      const double n = static_cast<double>(size_of_groups(groups));
      const auto has = [&](double by) {
        return std::ranges::all_of(
            sums, [&](const auto& sum) { return whole_.explains(dims, sum.second.scaled(by)); });
      };
      found.groups = g;
      found.relation = k != g       ? (has(1 / n / n) ? Found::kMean : Found::kNone)
                       : has(1 / n) ? Found::kMean
                       : has(1)     ? Found::kSum
                                    : Found::kNone;
      if (found.relation != Found::kNone) return found;
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

  void repair(ValueId id, const Values& operands, Values& values, const Allowed& allowed) {
    const Op& op = task_.sharded.graph.op(id);
    std::vector<Tensor> own = results_of(values, id);
    const auto put = [&](Point point, const auto& value_of) {
      if (!allowed(point)) return;
      points_.push_back(std::move(point));
      for (size_t r = 0; r < cores_; ++r) values[r][static_cast<size_t>(id)] = value_of(r);
      found_[static_cast<size_t>(id)].relation = Found::kSame;
    };
    if (flow_.is_constant(id)) return;
    std::vector<size_t> order;
    if (op.kind == OpKind::kReshape || op.kind == OpKind::kGather || op.kind == OpKind::kSlice) {
      if (const auto rows = whole_.rows(own, order)) {
        // A cause by which cores have each other's rows.
        std::vector<size_t> sorted = order;
        std::ranges::sort(sorted);
        Point point{.kind = Point::kRows, .id = id};
        point.cause = sorted.front() == sorted.back()                      ? "same_shard"
                      : std::ranges::adjacent_find(sorted) != sorted.end() ? "shard_twice"
                                                                           : "permuted";
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
      Point point{.kind = Point::kRows, .id = id};
      point.cause = "permuted";
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
        Point point{.kind = Point::kDraw, .id = id};
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
    if (flow_.goes_on(id)) return;
    if (found.relation == Found::kMultiple) {
      Point point{.kind = Point::kFactor, .id = id, .factor = found.factor};
      point.rate = is_rate(id, found.factor);
      put(point, [&](size_t r) { return scaled(own[r], 1 / found.factor); });
    }
    if (found.relation != Found::kMean && found.relation != Found::kSum) return;
    if (flow_.reduced_later(id, found.groups)) return;
    Point point{.kind = Point::kJoined, .id = id, .groups = found.groups};
    point.summed = found.relation == Found::kSum;
    if (point.summed && counts_ && flow_.is_counted(id)) return;
    point.count = point.summed && counts_ && flow_.is_count(id);
    if (point.count) point.summed = false;
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
      put(Point{.kind = Point::kRepeated, .id = id, .factor = n}, [&](size_t r) {
        Tensor out = scaled(operands[r][i], 1 / n);
        const auto to = out.as<double>();
        const auto from = operands[r][1 - i].as<const double>();
        for (size_t e = 0; e < to.size(); ++e) to[e] += from[e];
        return out;
      });
      return;
    }
  }

  static Tensor scaled(const Tensor& t, double by) {
    Tensor out = t.clone();
    for (double& x : out.as<double>()) x *= by;
    return out;
  }

  Tensor joined(const std::vector<Tensor>& own, size_t core, const Point& point) const {
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

  // ---- names

  std::string cause_of(const Point& p, const std::vector<Point>& all) const {
    const bool forward = flow_.forward(p.id);
    if (p.kind == Point::kRows || p.kind == Point::kDraw) return p.cause;
    if (p.kind == Point::kRepeated) return "repeated_term";
    if (p.kind == Point::kFactor) {
      // The derivative of a sum in the loss has its factor, and what lacks a sum one of its cores.
      for (const Point& other : all) {
        const double n = static_cast<double>(size_of_groups(flow_.groups()[other.groups]));
        if (other.kind == Point::kJoined && (p.factor == n || p.factor == 1 / n))
          return cause_of(other, all);
        if (other.kind == Point::kFactor && flow_.forward(other.id))
          return other.factor > 1 ? "sum_for_mean" : "mean_for_sum";
      }
      if (p.rate) return p.factor > 1 ? "rate_times_cores" : "rate_over_cores";
      if (p.factor > 1) {
        return cause_of_sum(p.id, p.factor);
      }
      return divisions(p.id) > 1 ? "scaled_twice" : "reduction";
    }
    const auto in_loss = [&](const Point& other) {
      return other.kind == Point::kJoined && flow_.forward(other.id);
    };
    // A value of the backward pass that goes on in it belongs to what is repaired in the loss.
    const bool inside = phase(p.id) == Phase::kGradient && std::ranges::any_of(all, in_loss) &&
                        flow_.users(p.id).size() > 0 &&
                        std::ranges::any_of(flow_.users(p.id), [&](ValueId user) {
                          return phase(user) == Phase::kGradient;
                        });
    if (forward || inside) {
      const auto any = [&](const auto& is) {
        return std::ranges::any_of(all, [&](const Point& q) { return in_loss(q) && is(q); });
      };
      if (any([](const Point& q) { return q.count; })) return "token_mean";
      if (any([&](const Point& q) { return flow_.averages_before_root(q.id); }))
        return "averaged_variance";
      if (any([&](const Point& q) { return flow_.normalises(q.id); })) return "batch_norm";
      return any([&](const Point& q) { return !q.summed || is_divided(q.id); }) ? "late_reduction"
                                                                                : "partial_sum";
    }
    const bool norm = task_.sharded.graph.type(p.id).elements() == 1 && flow_.goes_into_root(p.id);
    if (norm || flow_.reduced_late(p.id, p.groups)) {
      if (norm && p.summed) return "shard_norm";
      if (all_statistics({p.id}))
        return asks_rank(false) ? "statistics" : "averaged_statistics";  // of one core
      return std::ranges::any_of(all, [&](const Point& q) { return flow_.compared(q.id); })
                 ? "clipping"
                 : "late_reduction";
    }
    if (all_statistics({p.id})) return "statistics";
    return !flow_.sums_before(p.id).empty() ? "forgotten_axis" : "no_all_reduce";
  }

  // What a sum over cores that is no mean is.
  std::string cause_of_sum(ValueId id, double factor) const {
    const Graph& graph = task_.sharded.graph;
    const auto line = [&](ValueId op) {
      return graph.op(op).name.substr(graph.op(op).name.find('@') + 1);
    };
    const auto derived = [&](ValueId op) {
      return graph.op(op).name.find(".grad") != std::string::npos;
    };
    const std::vector<ValueId> sums = flow_.sums_before(id);
    std::string cause = "unscaled";
    if (std::ranges::none_of(sums, [&](ValueId sum) { return flow_.joins(sum) == factor; }) &&
        flow_.sums_in_derivative(id, factor))
      return "summed_in_derivative";
    for (const ValueId sum : sums) {
      for (const JoinedCores& groups : flow_.groups())
        if (flow_.uniform(graph.op(sum).operands[0], groups) &&
            static_cast<double>(size_of_groups(groups)) == factor)
          cause = "summed_twice";
      if (!derived(sum)) continue;
      cause = "summed_by_transpose";
      for (ValueId op = 0; op < sum; ++op)
        if (graph.op(op).kind == OpKind::kAllReduce && !derived(op) && line(op) == line(sum))
          return "summed_in_derivative";
    }
    return cause;
  }

  bool is_divided(ValueId id) const {
    return std::ranges::any_of(flow_.users(id),
                               [&](ValueId user) { return flow_.scaling(user).has_value(); });
  }

  // Whether factors outside of the loss undo each other: what is left is a term without them.
  bool compensates(const std::vector<Point>& all) const {
    const auto has = [&](const auto& is) {
      return std::ranges::any_of(all, [&](const Point& p) {
        return p.kind == Point::kFactor && is(p.factor, flow_.forward(p.id));
      });
    };
    return has([](double f, bool) { return f > 1; }) && has([](double f, bool) { return f < 1; }) &&
           !has([](double, bool in_loss) { return in_loss; });
  }

  bool all_statistics(const std::vector<ValueId>& ids) const {
    const std::vector<std::string> names = flow_.reached(ids);
    return !names.empty() && std::ranges::all_of(names, [&](const std::string& name) {
      const StateVar* var = task_.sharded.find_state(name);
      return var->role == StateRole::kStatistic;
    });
  }

  // Whether the step, or its loss, compares the number of the core.
  bool asks_rank(bool in_loss) const {
    const Graph& graph = task_.sharded.graph;
    std::vector<bool> core(static_cast<size_t>(graph.size()));
    for (ValueId id = 0; id < graph.size(); ++id) {
      const Op& op = graph.op(id);
      bool own = op.kind == OpKind::kParameter && op.name.find("replica_id") != std::string::npos;
      for (const ValueId operand : op.operands) own = own || core[static_cast<size_t>(operand)];
      core[static_cast<size_t>(id)] = own && !is_floating(op.type.dtype);
      if (own && op.kind == OpKind::kCompare && (!in_loss || flow_.forward(id))) return true;
    }
    return false;
  }

  // How often a gradient is divided by the number of cores: on its way, and with the loss.
  int divisions(ValueId id) const {
    const double n = static_cast<double>(cores_);
    const auto counted = [&](ValueId at) {
      const auto by = flow_.scaling(at);
      return by && std::fabs(by->second - n) < 1e-6 * n;
    };
    int found = 0;
    for (ValueId at = id; flow_.scaling(at); at = flow_.scaling(at)->first) found += counted(at);
    for (ValueId at = 0; at < task_.sharded.graph.size(); ++at) {
      const Op& op = task_.sharded.graph.op(at);
      if (flow_.forward(at) && op.type.elements() == 1 && counted(at) &&
          task_.sharded.graph.op(flow_.scaling(at)->first).kind != OpKind::kAllReduce)
        return found + 1;
    }
    return found;
  }

  RepairedCause described(const std::string& cause, const std::vector<Point>& points) const {
    const Point& p = points.front();
    // Of a factor, the sum over cores that it comes from, where it is none of the rate.
    const std::vector<ValueId> sums =
        p.kind == Point::kFactor && !p.rate ? flow_.sums_before(p.id) : std::vector<ValueId>();
    const std::string& name = task_.sharded.graph.op(sums.empty() ? p.id : sums.front()).name;
    std::string line = name.substr(name.find('@') == std::string::npos ? 0 : name.find('@') + 1);
    if (const size_t copy = line.find(':', line.find(':') + 1);
        line.find(':') != std::string::npos && copy != std::string::npos)
      line.erase(copy);
    std::vector<ValueId> ids;
    for (const Point& q : points) ids.push_back(q.id);
    const std::vector<std::string> reached = flow_.reached(ids);
    std::string names;
    for (size_t i = 0; i < reached.size() && i < 4; ++i) names += (i == 0 ? "" : ", ") + reached[i];
    if (reached.size() > 4) names += fmt::format(" and {} more", reached.size() - 4);
    const size_t n = size_of_groups(flow_.groups()[p.groups]);
    std::string axes = n == cores_ ? "all cores" : fmt::format("groups of {} cores", n);
    for (const auto& [axis, size] : task_.axes)
      if (static_cast<size_t>(size) == n) axes = axis;
    const std::string factor =
        p.factor >= 1 ? fmt::format("{:.6g}", p.factor) : fmt::format("1/{:.6g}", 1 / p.factor);
    return {cause,
            {{"line", line},
             {"names", names},
             {"axes", axes},
             {"factor", factor},
             {"shares", "unequal"},
             {"summed", "a part of the cores"},
             {"order", "another order"},
             {"by", p.summed ? "psum" : "pmean"}}};
  }

  const RepairTask& task_;
  WholeValues whole_;
  RepairFlow flow_;
  ReplicaWalk::Eval eval_;
  ReplicaWalk walk_;
  size_t cores_;
  bool counts_ = true;
  std::vector<Point> points_;
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
  TWINRUN_ASSIGN(RepairFlow flow, RepairFlow::make(task.sharded, task.given, eval));
  std::set<int64_t> parts;
  for (const JoinedCores& groups : flow.groups())
    parts.insert(static_cast<int64_t>(size_of_groups(groups)));
  TWINRUN_ASSIGN(WholeValues whole,
                 WholeValues::make(task.whole, task.whole_given, eval, parts, cores));
  return Search(task, std::move(whole), std::move(flow), eval).run();
}

}  // namespace twinrun

// Steps of the sharded program and of the one on one device, from the same state, in binary64.
#include "harness/sharding/user_sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "backends/registry.h"
#include "harness/run/one_step.h"
#include "harness/sharding/ablation.h"
#include "harness/sharding/repair_flow.h"

namespace twinrun {
namespace {

constexpr int64_t kSteps = 3;

// Every float of the state times 1 + 2^-48 or 1 - 2^-48: sixteen roundings of binary64.
States nudged(const States& states) {
  States out = states;
  for (Tensor& t : out[0].vars) {
    if (t.dtype() == DType::kI32 || t.dtype() == DType::kPred) continue;
    std::vector<double> values = as_doubles(t);
    Tensor moved = Tensor::empty({DType::kF64, t.dims()});
    for (size_t k = 0; k < values.size(); ++k)
      moved.as<double>()[k] = values[k] * (1 + (k % 3 == 0 ? -0x1p-48 : 0x1p-48));
    t = moved;
  }
  return out;
}

// One core's value of a state variable whose whole value is `whole`: its part, all of it, or, where
// the sharded step has a leading axis over copies, all of it for each.
Result<Tensor> of_core(const ImportedRun& run, const StateVar& var, const Tensor& whole,
                       size_t core) {
  const auto part = run.parts.find(var.name);
  if (part != run.parts.end() && whole.dims() == part->second.whole)
    return part_of(whole, part->second, var.type.dims, core);
  if (whole.dims() == var.type.dims) return whole;
  const Dims& dims = var.type.dims;
  if (!dims.empty() && Dims(dims.begin() + 1, dims.end()) == whole.dims()) {
    Tensor all = Tensor::empty({whole.dtype(), dims});
    for (int64_t copy = 0; copy < dims[0]; ++copy)
      std::copy_n(whole.raw(), whole.bytes(),
                  all.raw() + static_cast<size_t>(copy) * whole.bytes());
    return all;
  }
  return Error{fmt::format("state '{}' is {} on one device; the sharded step has {}", var.name,
                           to_string(whole.type()), to_string(var.type)),
               "--whole", "both steps need the same state"};
}

struct Gap {
  double squares = 0, norm = 0, inner = 0, own = 0;  // |s - w|^2, |w|^2, <s, w>, |s|^2
  void add(const std::vector<double>& s, const std::vector<double>& w) {
    for (size_t k = 0; k < s.size(); ++k) {
      squares += (s[k] - w[k]) * (s[k] - w[k]);
      norm += w[k] * w[k];
      inner += s[k] * w[k];
      own += s[k] * s[k];
    }
  }
  double relative() const {
    return squares == 0 ? 0 : std::sqrt(squares / (norm > 0 ? norm : squares));
  }
  // The factor between them, if nothing else differs by more than the threshold.
  std::optional<double> factor(double threshold) const {
    if (norm == 0 || own == 0) return std::nullopt;
    const double f = inner / norm;
    const double rest = own - 2 * f * inner + f * f * norm;
    // The rest is a difference of squares, each of which is rounded.
    if (rest > std::max(threshold * threshold, 0x1p-44) * own) return std::nullopt;
    return f;
  }
};

std::string name_of_factor(double factor, const Experiment& e, double threshold) {
  std::vector<std::pair<double, std::string>> known = {
      {e.imported->step.sharding.cores, "the number of cores"}};
  for (const MeshAxis& axis : e.imported->mesh_axes)
    known.emplace_back(static_cast<double>(axis.size),
                       fmt::format("the size of mesh axis '{}'", axis.name));
  for (const auto& [value, name] : known) {
    const auto is = [&](double v) { return std::fabs(factor - v) <= std::sqrt(threshold) * v; };
    if (value <= 1) continue;
    if (is(value)) return name;
    if (is(1 / value)) return "one over " + name;
    if (is(value * value)) return "the square of " + name;
    if (is(1 / (value * value))) return "one over the square of " + name;
  }
  return "";
}

// Finds sums over cores whose operands are equal on all of them and not zero.
class CommonOperands : public TraceSink {
 public:
  explicit CommonOperands(const Program& program) {
    for (const Op& op : program.graph.ops()) {
      if (op.kind != OpKind::kAllReduce) continue;
      const Op& table = program.graph.op(op.operands[0]);
      if (table.kind == OpKind::kScatterAdd) placed_.insert(op.operands[0]);
    }
  }
  void on_op(const OpEvent& event) override {
    const Op& op = event.op();
    if (op.kind == OpKind::kAllReduce && !placed_.contains(op.operands[0])) {
      judge(event, 0, std::vector<int32_t>(event.inputs.size(), 0));
    } else if (placed_.contains(event.id)) {
      std::vector<int32_t> rows;
      for (const auto& core : event.inputs) rows.push_back(core[0].as<const int32_t>()[0]);
      judge(event, 1, rows);
    }
  }
  std::vector<std::string> names;

 private:
  // Cores with the same row are summed. A row of a single core is only moved.
  void judge(const OpEvent& event, size_t operand, const std::vector<int32_t>& rows) {
    std::map<int32_t, std::pair<const Tensor*, int>> first;
    for (size_t core = 0; core < rows.size(); ++core) {
      const Tensor& own = event.inputs[core][operand];
      if (own.dtype() == DType::kI32) return;
      const auto [at, fresh] = first.try_emplace(rows[core], &own, 0);
      ++at->second.second;
      if (!own.same_bits(*at->second.first)) return;
    }
    const auto moved = [](const auto& row) { return row.second.second < 2; };
    const auto zero = [](const auto& row) {
      const std::vector<double> values = as_doubles(*row.second.first);
      return std::ranges::all_of(values, [](double v) { return v == 0; });
    };
    if (std::ranges::any_of(first, moved) || std::ranges::all_of(first, zero)) return;
    std::string name = event.op().name;
    if (const size_t local = name.find(".placed"); local != std::string::npos) name.erase(local, 7);
    names.push_back(std::move(name));
  }

  std::set<ValueId> placed_;
};

// What a walk through a program starts from, in binary64.
ReplicaWalk::Values given_values(const Program& program, const States& states,
                                 const StepInputs& inputs) {
  ReplicaWalk::Values values(states.size(),
                             std::vector<Tensor>(static_cast<size_t>(program.graph.size())));
  std::map<const std::byte*, Tensor> wide;  // keeps shared what cores share
  const auto bind = [&](ValueId id, size_t core, const Tensor& own) {
    Tensor& known = wide[own.raw()];
    if (!known.valid() || known.dims() != own.dims()) known = in_binary64(own);
    values[core][static_cast<size_t>(id)] = known;
  };
  for (size_t core = 0; core < states.size(); ++core) {
    for (size_t i = 0; i < program.state.size(); ++i)
      bind(program.state[i].id, core, states[core].vars[i]);
    for (size_t i = 0; i < program.inputs.size(); ++i)
      bind(program.inputs[i].id, core, inputs[core][i]);
  }
  return values;
}

class Judge {
 public:
  Judge(const Experiment& e, Backend& backend, int threads)
      : e_(e), run_(*e.imported), backend_(backend), threads_(threads) {
    out_.cores = run_.step.sharding.cores;
    out_.threshold = meaning_threshold(out_.cores);
    out_.steps = std::min<int64_t>(kSteps, e.scenario.train.steps);
    whole_ = e;
    if (e.unsharded) {
      whole_.imported = e.unsharded;
      out_.compared = true;
    }
  }

  Result<UserSharding> result() {
    TWINRUN_ASSIGN(const auto sharded, backend_.prepare(run_.step));
    States states = initial_states(e_, run_.step);
    StepFeed feed(e_, run_.step);
    std::unique_ptr<Engine> one;
    std::optional<StepFeed> whole_feed;
    States whole;
    if (e_.unsharded) {
      TWINRUN_ASSIGN(one, backend_.prepare(e_.unsharded->step));
      whole_feed.emplace(whole_, e_.unsharded->step);
      whole = initial_states(whole_, e_.unsharded->step);
    }
    CommonOperands common(run_.step);
    for (int64_t step = 0; step < out_.steps; ++step) {
      if (one) TWINRUN_RETURN_IF_ERROR(spread(whole, states));
      const States before = states;
      StepOutputs outputs;
      TWINRUN_ASSIGN(const StepInputs inputs, feed.inputs(step));
      TWINRUN_RETURN_IF_ERROR(
          sharded->step(step, states, inputs, outputs, step == 0 ? &common : nullptr, nullptr));
      if (one) {
        TWINRUN_ASSIGN(const StepInputs given, whole_feed->inputs(step));
        const States from = whole;
        StepOutputs own, ignored;
        States moved = nudged(whole);
        const States moved_from = moved;
        TWINRUN_RETURN_IF_ERROR(one->step(step, whole, given, own, nullptr, nullptr));
        TWINRUN_RETURN_IF_ERROR(one->step(step, moved, given, ignored, nullptr, nullptr));
        const bool first = out_.other.empty();
        TWINRUN_RETURN_IF_ERROR(compare(step, before, states, from, whole, moved_from, moved));
        compare_loss(outputs, own);
        if (first && !out_.other.empty()) {
          TWINRUN_RETURN_IF_ERROR(find_causes(before, inputs, from, whole, given));
          out_.own_draws = std::erase_if(out_.causes, [](const RepairedCause& c) {
                             return c.cause == kOwnDraws;
                           }) > 0;
          if (out_.own_draws && out_.causes.empty()) {  // later steps draw as well
            out_.other.clear();
            out_.loss_ratio.reset();
            out_.steps = step + 1;
          }
        }
      }
      compare_copies(step, before, states);
    }
    out_.in_common = std::move(common.names);
    return std::move(out_);
  }

 private:
  Status spread(const States& whole, States& states) {
    const Program& one = e_.unsharded->step;
    for (size_t i = 0; i < run_.step.state.size(); ++i) {
      const StateVar& var = run_.step.state[i];
      const int at = one.state_index(var.name);
      if (at < 0)
        return Error{fmt::format("the step on one device has no state '{}'", var.name), "--whole",
                     "both steps need the same state; docs/guides/import.md#binding"};
      for (size_t core = 0; core < states.size(); ++core) {
        TWINRUN_ASSIGN(states[core].vars[i],
                       of_core(run_, var, whole[0].vars[static_cast<size_t>(at)], core));
      }
    }
    return Ok{};
  }

  Status compare(int64_t step, const States& before, const States& after, const States& from,
                 const States& to, const States& moved_from, const States& moved) {
    const Program& one = e_.unsharded->step;
    for (size_t i = 0; i < run_.step.state.size(); ++i) {
      const StateVar& var = run_.step.state[i];
      const auto at = static_cast<size_t>(one.state_index(var.name));
      Gap floor, gap;
      floor.add(change(moved_from[0].vars[at], moved[0].vars[at]),
                change(from[0].vars[at], to[0].vars[at]));
      if (floor.relative() > out_.threshold) {
        if (std::ranges::find(out_.unjudged, var.name) == out_.unjudged.end())
          out_.unjudged.push_back(var.name);
        continue;
      }
      TWINRUN_ASSIGN(gap, gap_of(i, before, after, from, to));
      const bool known =
          std::ranges::find(out_.other, var.name, &UserSharding::Other::name) != out_.other.end();
      if (known || !(gap.relative() > out_.threshold)) continue;
      UserSharding::Other& o =
          out_.other.emplace_back(UserSharding::Other{var.name, step, gap.relative(), {}, ""});
      o.factor = gap.factor(out_.threshold);
      if (o.factor) o.factor_is = name_of_factor(*o.factor, e_, out_.threshold);
    }
    return Ok{};
  }

  // Of a variable's change on all cores, to the change on one device.
  Result<Gap> gap_of(size_t i, const States& before, const States& after, const States& from,
                     const States& to) {
    const StateVar& var = run_.step.state[i];
    const auto at = static_cast<size_t>(e_.unsharded->step.state_index(var.name));
    Gap gap;
    for (size_t core = 0; core < after.size(); ++core) {
      TWINRUN_ASSIGN(const Tensor old, of_core(run_, var, from[0].vars[at], core));
      TWINRUN_ASSIGN(const Tensor expected, of_core(run_, var, to[0].vars[at], core));
      gap.add(change(before[core].vars[i], after[core].vars[i]), change(old, expected));
    }
    return gap;
  }

  Status find_causes(const States& before, const StepInputs& inputs, const States& from,
                     const States& to, const StepInputs& whole_inputs) {
    const auto same = [&](const ReplicaWalk::Values& values) {
      States after = before;
      for (size_t core = 0; core < after.size(); ++core) {
        for (size_t i = 0; i < run_.step.state.size(); ++i) {
          const ValueId next = run_.step.state[i].next;
          if (next != kNoValue) after[core].vars[i] = values[core][static_cast<size_t>(next)];
        }
      }
      for (size_t i = 0; i < run_.step.state.size(); ++i) {
        if (std::ranges::find(out_.unjudged, run_.step.state[i].name) != out_.unjudged.end())
          continue;
        const auto gap = gap_of(i, before, after, from, to);
        if (!gap || !(gap->relative() <= out_.threshold)) return false;
      }
      return true;
    };
    const Program& one = e_.unsharded->step;
    const ReplicaWalk::Values given = given_values(run_.step, before, inputs);
    const ReplicaWalk::Values alone = given_values(one, from, whole_inputs);
    TWINRUN_ASSIGN(out_.causes, repaired_causes({run_.step, given, one, alone, run_.mesh_axes,
                                                 run_.exchanges, same, threads_}));
    return Ok{};
  }

  void compare_loss(const StepOutputs& sharded, const StepOutputs& one) {
    const auto loss_of = [](const Program& p, const StepOutputs& outputs) {
      for (size_t i = 0; i < p.outputs.size(); ++i) {
        if (p.outputs[i].name == "loss") return as_doubles(outputs[0][i])[0];
      }
      return 0.0;
    };
    const double s = loss_of(run_.step, sharded), w = loss_of(e_.unsharded->step, one);
    if (!out_.loss_ratio && w != 0 && std::fabs(s / w - 1) > out_.threshold)
      out_.loss_ratio = s / w;
  }

  // Cores that are given the same part of a variable must keep it the same. Under pmap each replica
  // has a value of its own, of which nothing is declared.
  void compare_copies(int64_t step, const States& before, const States& after) {
    for (size_t i = 0; i < run_.step.state.size(); ++i) {
      const StateVar& var = run_.step.state[i];
      const auto part = run_.parts.find(var.name);
      if (part != run_.parts.end() && part->second.whole.size() > var.type.dims.size()) continue;
      if (std::ranges::find(out_.apart, var.name, &UserSharding::Apart::name) != out_.apart.end())
        continue;
      std::map<Dims, size_t> first;  // the first core with each part
      for (size_t core = 0; core < after.size(); ++core) {
        const Dims begin = part == run_.parts.end() ? Dims() : part->second.begin[core];
        const size_t other = first.try_emplace(begin, core).first->second;
        const Tensor &own = after[core].vars[i], &theirs = after[other].vars[i];
        if (own.raw() == theirs.raw() || own.same_bits(theirs)) continue;
        Gap size, gap;
        size.add(change(before[other].vars[i], theirs), change(before[other].vars[i], theirs));
        gap.add(as_doubles(own), as_doubles(theirs));
        const double drift = std::sqrt(gap.squares / (size.norm > 0 ? size.norm : gap.squares));
        if (drift > out_.threshold) {
          out_.apart.push_back({var.name, step, static_cast<int>(core), drift});
          break;
        }
      }
    }
  }

  const Experiment& e_;
  const ImportedRun& run_;
  Backend& backend_;
  int threads_;
  Experiment whole_;
  UserSharding out_;
};

}  // namespace

Result<UserSharding> judge_user_sharding(const Experiment& experiment, int threads) {
  BackendOptions options;
  options.threads = threads;
  TWINRUN_ASSIGN(const auto backend, make_backend("cpu:f64", options));
  return Judge(experiment, *backend, threads).result();
}

}  // namespace twinrun

// Proposes deals of rows to cores, from the losses of every deal that is tried.
#include "harness/identify/assignment_fit.h"

#include <algorithm>
#include <cmath>

#include "backends/registry.h"
#include "harness/run/one_step.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

using Losses = std::vector<std::vector<double>>;  // [state][core]

// In floating-point operations over all steps: some seconds of one core.
constexpr double kDealBudget = 1e11;
constexpr double kOpOverhead = 2e5;  // per op, in the same unit

bool has_draws(const Program& program) {
  return std::ranges::any_of(program.graph.ops(),
                             [](const Op& op) { return class_of(op.kind) == OpClass::kRandom; });
}

// All cores report one loss at every step, up to rounding: their losses carry no information.
bool one_loss(const Losses& losses) {
  return std::ranges::all_of(losses, [](const std::vector<double>& of) {
    const auto [low, high] = std::ranges::minmax(of);
    return high - low <= 0x1p-22 * std::fabs(high);
  });
}

class ByLosses {
 public:
  ByLosses(const Experiment& e, const Program& asked, const std::vector<ProbedState>& states,
           const Losses& losses, int threads)
      : e_(e), asked_(asked), states_(states), losses_(losses) {
    options_.threads = threads;
    cores_ = asked.sharding.cores;
    n_ = asked.batch;
    together_ = one_loss(losses);
    const double each = static_cast<double>(states.size() * static_cast<size_t>(cores_)) *
                        (step_flops(asked) + kOpOverhead * asked.graph.size());
    runs_left_ = static_cast<int64_t>(kDealBudget / each);
  }

  Result<std::vector<ShardingChange>> run(size_t most) {
    const DealtRows own = rows_in_blocks(cores_, n_, n_, 0);
    // First whole shards, from blocks of any size; then labels of other shards; then rows and
    // labels that are rolled.
    for (int64_t block = n_; block >= 1; --block) {
      if (n_ % block == 0) TWINRUN_RETURN_IF_ERROR(shards_of(rows_in_blocks(cores_, n_, block, 0)));
    }
    TWINRUN_RETURN_IF_ERROR(labels_of_shards(own));
    if (meets_others()) TWINRUN_RETURN_IF_ERROR(one_replaced(own));
    const int64_t batch = cores_ * n_;
    for (int64_t by = 1; by <= batch / 2; ++by) {
      for (const int64_t roll : {by, batch - by}) {
        const DealtRows rolled = rows_in_blocks(cores_, n_, n_, roll);
        if (roll % n_ != 0) {
          TWINRUN_RETURN_IF_ERROR(as_it_is({{}, rolled, {}}));
          TWINRUN_RETURN_IF_ERROR(shards_of(rolled));
        }
        if (2 * by == batch) break;
      }
      if (by < n_) TWINRUN_RETURN_IF_ERROR(as_it_is({{}, within_shards(by), {}}));
    }
    std::ranges::stable_sort(found_, {}, &Found::distance);
    std::vector<ShardingChange> out;
    for (Found& f : found_) {
      if (out.size() == most) break;
      out.push_back(dealt_otherwise(e_, std::move(f.deal)));
      out.back().losses_together = together_;
    }
    return out;
  }

 private:
  struct Found {
    Deal deal;
    double distance = 0;
  };

  // Whether the loss of a core depends on what the others have. A deal that leaves samples out must
  // then be run as a whole: its shards do not give its losses.
  bool meets_others() const {
    const Sharding& s = asked_.sharding;
    return std::ranges::any_of(asked_.couplings, [&](const Coupling& c) {
      return c.cause == "batch_norm"   ? s.batchnorm != BatchNormSync::kPerCore
             : c.cause == "batch_wise" ? s.batchwise == Scope::kGlobal
                                       : s.token_mean == Scope::kGlobal;
    });
  }

  // For labels: rows that are shifted by `by` places within each shard.
  DealtRows within_shards(int64_t by) const {
    DealtRows out;
    for (int64_t at = 0; at < cores_ * n_; ++at)
      out.push_back(static_cast<int32_t>(at / n_ * n_ + (at % n_ + by) % n_));
    return out;
  }

  // The reference's loss on each core; empty where the budget is spent.
  Result<Losses> losses_of(const Deal& deal) {
    Losses out;
    if (runs_left_-- <= 0) return out;
    Program program = asked_;
    program.sharding.feeding.deal = deal;
    TWINRUN_ASSIGN(const auto backend, make_backend("cpu", options_));
    TWINRUN_ASSIGN(const auto engine, backend->prepare(program));
    for (const ProbedState& state : states_) {
      TWINRUN_ASSIGN(const StepResult r, one_step(e_, *engine, state.step, state.states));
      std::vector<double> of_cores;
      for (const auto& outputs : r.outputs) {
        for (size_t o = 0; o < asked_.outputs.size(); ++o) {
          if (asked_.outputs[o].name == "loss") of_cores.push_back(as_doubles(outputs[o])[0]);
        }
      }
      out.push_back(std::move(of_cores));
    }
    return out;
  }

  // The squared distance of a core's losses from those of a shard, over all steps.
  double gap(const Losses& losses, size_t core, size_t shard) const {
    double sum = 0;
    for (size_t s = 0; s < losses.size(); ++s) {
      const double d = losses_[s][core] - losses[s][shard];
      sum += d * d;
    }
    return sum;
  }
  double gap(const Losses& losses) const {
    double sum = 0;
    for (size_t s = 0; s < losses.size(); ++s) {
      double own = 0, expected = 0;
      for (size_t core = 0; core < losses[s].size(); ++core) {
        own += losses_[s][core];
        expected += losses[s][core];
      }
      sum += together_ ? (own - expected) * (own - expected) : 0;
    }
    for (size_t core = 0; !together_ && core < losses.front().size(); ++core)
      sum += gap(losses, core, core);
    return sum;
  }

  void propose(Deal deal, double distance) {
    if (!std::isfinite(distance)) return;
    const auto drop_own = [](DealtRows& rows) {
      if (is_own(rows)) rows.clear();
    };
    drop_own(deal.features);
    drop_own(deal.labels);
    drop_own(deal.draws);
    const bool known = deal == Deal{} ||
                       std::ranges::any_of(found_, [&](const Found& f) { return f.deal == deal; });
    if (!known) found_.push_back({std::move(deal), distance});
  }

  Status as_it_is(const Deal& deal) {
    TWINRUN_ASSIGN(const Losses losses, losses_of(deal));
    if (!losses.empty()) propose(deal, gap(losses));
    return Ok{};
  }

  // Finds which of these shards each core has. What a core draws at random may follow its own place
  // or its samples', so both are tried.
  Status shards_of(const DealtRows& rows) {
    TWINRUN_RETURN_IF_ERROR(shards_of(rows, false));
    return has_draws(asked_) ? shards_of(rows, true) : Status(Ok{});
  }
  Status shards_of(const DealtRows& rows, bool draws_along) {
    const Deal whole{rows, rows, draws_along ? rows : DealtRows()};
    TWINRUN_ASSIGN(const Losses losses, losses_of(whole));
    if (losses.empty()) return Ok{};
    propose(whole, gap(losses));
    if (together_) return Ok{};
    std::vector<int> nearest;
    double distance = 0;
    for (size_t core = 0; core < static_cast<size_t>(cores_); ++core) {
      size_t best = core;
      for (size_t shard = 0; shard < static_cast<size_t>(cores_); ++shard) {
        if (gap(losses, core, shard) < gap(losses, core, best)) best = shard;
      }
      nearest.push_back(static_cast<int>(best));
      distance += gap(losses, core, best);
    }
    const DealtRows theirs = rows_of_shards(rows, nearest);
    propose({theirs, theirs, draws_along ? theirs : DealtRows()}, distance);
    return Ok{};
  }

  // Finds labels of another shard than the features, core by core.
  Status labels_of_shards(const DealtRows& own) {
    const auto cores = static_cast<size_t>(cores_);
    std::vector<Losses> by_rotation;  // with labels of the shard that is so many further on
    for (size_t rotation = 0; rotation < cores; ++rotation) {
      std::vector<int> shards;
      for (size_t core = 0; core < cores; ++core)
        shards.push_back(static_cast<int>((core + rotation) % cores));
      const DealtRows labels = rows_of_shards(own, shards);
      TWINRUN_ASSIGN(Losses losses, losses_of({own, labels, {}}));
      if (losses.empty()) return Ok{};
      propose({own, labels, {}}, gap(losses));
      by_rotation.push_back(std::move(losses));
    }
    if (together_) return Ok{};
    // First only the labels may be another shard's, then both may be.
    for (const bool both : {false, true}) {
      std::vector<int> features, labels;
      double distance = 0;
      for (size_t core = 0; core < cores; ++core) {
        double best = INFINITY;
        size_t feature = core, label = core;
        for (size_t shard = 0; shard < cores; ++shard) {
          for (size_t rotation = 0; rotation < cores; ++rotation) {
            if (!both && shard != core) continue;
            const double g = gap(by_rotation[rotation], core, shard);
            if (!(g < best)) continue;
            best = g;
            feature = shard;
            label = (shard + rotation) % cores;
          }
        }
        features.push_back(static_cast<int>(feature));
        labels.push_back(static_cast<int>(label));
        distance += best;
      }
      propose({rows_of_shards(own, features), rows_of_shards(own, labels), {}}, distance);
    }
    return Ok{};
  }

  // One core has the shard of another.
  Status one_replaced(const DealtRows& own) {
    for (int core = 0; core < cores_; ++core) {
      for (int shard = 0; shard < cores_; ++shard) {
        std::vector<int> shards(static_cast<size_t>(cores_));
        for (int k = 0; k < cores_; ++k) shards[static_cast<size_t>(k)] = k == core ? shard : k;
        const DealtRows rows = rows_of_shards(own, shards);
        if (shard != core) TWINRUN_RETURN_IF_ERROR(as_it_is({rows, rows, {}}));
      }
    }
    return Ok{};
  }

  const Experiment& e_;
  const Program& asked_;
  const std::vector<ProbedState>& states_;
  const Losses& losses_;
  BackendOptions options_;
  int64_t cores_ = 1, n_ = 1;
  bool together_ = false;
  int64_t runs_left_ = 0;
  std::vector<Found> found_;
};

}  // namespace

bool is_loss(const Compared& c) { return !c.is_state && c.tensor == "loss"; }

Observed with_mean_losses(Observed o, const std::vector<Compared>& tensors) {
  for (size_t first = 0; first < o.values.size(); first += o.replicas) {
    if (!is_loss(tensors[first / o.replicas % tensors.size()])) continue;
    double sum = 0;
    for (size_t k = 0; k < o.replicas; ++k)
      sum += static_cast<double>(o.values[first + k].data->front());
    const auto mean = static_cast<float>(sum / static_cast<double>(o.replicas));
    const Value value{std::make_shared<const std::vector<float>>(1, mean), nullptr,
                      std::fabs(static_cast<double>(mean))};
    std::fill_n(o.values.begin() + static_cast<std::ptrdiff_t>(first), o.replicas, value);
  }
  return o;
}

Result<std::vector<ShardingChange>> deals_by_losses(const Experiment& e, const Program& asked,
                                                    const std::vector<ProbedState>& states,
                                                    const std::vector<Compared>& tensors,
                                                    const Observed& subject, int threads) {
  constexpr size_t kMax = 6;
  Losses losses;
  for (size_t first = 0; first < subject.values.size(); first += subject.replicas) {
    if (!is_loss(tensors[first / subject.replicas % tensors.size()])) continue;
    losses.emplace_back();
    for (size_t k = 0; k < subject.replicas; ++k)
      losses.back().push_back(static_cast<double>(subject.values[first + k].data->front()));
  }
  if (losses.size() != states.size()) return std::vector<ShardingChange>();
  TWINRUN_ASSIGN(std::vector<ShardingChange> out,
                 ByLosses(e, asked, states, losses, threads).run(kMax));
  out.push_back(losses_together(e, one_loss(losses)));
  return out;
}

std::vector<ShardingChange> groups_like(const Experiment& e, const Program& asked,
                                        const std::vector<Compared>& tensors,
                                        const Observed& subject) {
  // A share of a gradient's size: cores that share one gradient differ by less, in any precision.
  constexpr double kDiverged = 0x1p-6;
  std::vector<ShardingChange> out = group_changes(e, asked.sharding);
  std::vector<std::string> diverged;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const std::string& name = tensors[t].tensor;
    if (tensors[t].is_state || !name.ends_with(".grad")) continue;
    bool parts = false;
    const std::vector<float>& first = *subject.values[t * subject.replicas].data;
    for (size_t k = 1; k < subject.replicas; ++k)
      parts = parts || gap2(first, *subject.values[t * subject.replicas + k].data) >
                           kDiverged * norm2(first);
    if (parts) diverged.push_back(name.substr(0, name.size() - std::string_view(".grad").size()));
  }
  if (!diverged.empty() && asked.sharding.reduce_gradients)
    out.push_back(kept_by_cores(e, diverged));
  return out;
}

}  // namespace twinrun

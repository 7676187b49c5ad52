// Runs one step in binary64 with each set of causes undone, and attributes the drift to the causes.
#include "harness/sharding/ablation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "backends/oracle/f64_engine.h"
#include "backends/oracle/replica_walk.h"
#include "backends/registry.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

constexpr size_t kKinds = kStepKinds.size();
using PerKind = std::array<double, kKinds>;
size_t at(StepKind kind) { return static_cast<size_t>(kind); }

// Replica 0's value of every state variable, copied to all replicas.
Result<States> spread(const Checkpoint& checkpoint, const Program& program) {
  ReplicaState one;
  for (const StateVar& var : program.state) {
    const auto it = checkpoint.tensors.find(var.name);
    if (it == checkpoint.tensors.end())
      return Error{"no tensor '" + var.name + "'", "probe state", ""};
    one.vars.push_back(it->second.replica_axis ? it->second.value.rows(0, 1).reshaped(var.type.dims)
                                               : it->second.value);
  }
  return States(static_cast<size_t>(program.sharding.cores), one);
}

// Every parameter times 1 + u 2^-48, u uniform in (-1, 1): sixteen roundings of binary64.
States nudged(const Program& program, const States& states) {
  ReplicaState one = states[0];
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role != StateRole::kParameter) continue;
    Tensor moved = Tensor::empty({DType::kF64, one.vars[i].dims()});
    const std::vector<double> values = as_doubles(one.vars[i]);
    for (size_t k = 0; k < values.size(); ++k) {
      const uint32_t word =
          draw({0x6e75646765, kStreamData}, 0, static_cast<uint32_t>(i), static_cast<uint64_t>(k));
      moved.as<double>()[k] =
          values[k] * (1 + 0x1p-48 * (2 * static_cast<double>(uniform(word)) - 1));
    }
    one.vars[i] = moved;
  }
  return States(states.size(), one);
}

// Runs the reference program R and any other program from one state, in binary64.
class Prober {
 public:
  static Result<Prober> make(const Experiment& e, int threads) {
    Prober p(e);
    p.threads_ = threads;
    BackendOptions options;
    options.threads = threads;
    TWINRUN_ASSIGN(p.backend_, make_backend("cpu:f64", options));
    TWINRUN_ASSIGN(p.held_out_, HeldOut::make(e, *p.backend_));
    return p;
  }

  // Runs R from the next state. Tensors that sixteen roundings of binary64 change by more than the
  // threshold are left out, because they are rounding alone: for example a gradient that is zero
  // but for rounding, divided by its own size.
  Status begin(const ProbeState& state) {
    state_ = &state;
    left_out_.clear();
    TWINRUN_ASSIGN(reference_, judge(experiment_.whole(), false));
    TWINRUN_ASSIGN(const Judged moved, judge(experiment_.whole(), true));
    const PerKind norms = squared_norms();
    for (size_t t = 0; t < moved.size(); ++t) {
      const double floor = squared_gap(moved[t], reference_[t]);
      const double threshold = meaning_threshold(experiment_.sharding.cores);
      if (floor > threshold * threshold * norms[at(moved[t].kind)]) left_out_.insert(t);
    }
    return Ok{};
  }

  // The step of each sharding. Programs that are alike are evaluated together.
  Result<std::vector<Judged>> of(const std::vector<Sharding>& shardings) {
    std::vector<Program> programs;
    for (const Sharding& sharding : shardings) programs.push_back(experiment_.sharded(sharding));
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    std::vector<Judged> judged(programs.size());
    for (const std::vector<size_t>& set : alike(all)) {
      std::vector<const Program*> some;
      std::vector<States> before;
      std::vector<StepInputs> inputs;
      for (const size_t i : set) {
        some.push_back(all[i]);
        TWINRUN_ASSIGN(States states, spread(state_->second, *all[i]));
        before.push_back(std::move(states));
        StepFeed feed(experiment_, *all[i]);
        TWINRUN_ASSIGN(StepInputs fed, feed.inputs(state_->first));
        inputs.push_back(std::move(fed));
      }
      std::vector<States> after = before;
      std::vector<StepOutputs> outputs(set.size());
      TWINRUN_RETURN_IF_ERROR(f64_steps(some, after, inputs, outputs, threads_));
      for (size_t i = 0; i < set.size(); ++i) {
        const StepResult result{std::move(before[i]), std::move(after[i]), std::move(outputs[i])};
        TWINRUN_ASSIGN(judged[set[i]], judged_of(*some[i], result));
      }
    }
    return judged;
  }

  // |a - b|^2 / |R|^2 per kind.
  PerKind squared_drift(const Judged& a, const Judged& b) const {
    PerKind gaps{};
    for (size_t t = 0; t < reference_.size(); ++t) {
      if (!left_out_.contains(t)) gaps[at(reference_[t].kind)] += squared_gap(a[t], b[t]);
    }
    const PerKind norms = squared_norms();
    for (size_t k = 0; k < kKinds; ++k) gaps[k] /= norms[k] > 0 ? norms[k] : 1;
    return gaps;
  }
  PerKind squared_drift(const Judged& a) const { return squared_drift(a, reference_); }

  std::vector<std::string> left_out() const {
    std::vector<std::string> names;
    for (size_t t : left_out_)
      names.push_back(fmt::format("{} ({})", reference_[t].name, to_string(reference_[t].kind)));
    return names;
  }

 private:
  explicit Prober(const Experiment& e) : experiment_(e) {}

  PerKind squared_norms() const {
    PerKind norms{};
    for (size_t t = 0; t < reference_.size(); ++t) {
      if (!left_out_.contains(t)) norms[at(reference_[t].kind)] += squared_norm(reference_[t]);
    }
    return norms;
  }

  Result<Judged> judge(const Program& program, bool moved) {
    TWINRUN_ASSIGN(const std::unique_ptr<Engine> engine, backend_->prepare(program));
    TWINRUN_ASSIGN(States states, spread(state_->second, program));
    if (moved) states = nudged(program, states);
    TWINRUN_ASSIGN(const StepResult r, one_step(experiment_, *engine, state_->first, states));
    return judged_of(program, r);
  }
  Result<Judged> judged_of(const Program& program, const StepResult& r) {
    Judged judged = judged_tensors(program, r);
    TWINRUN_ASSIGN(JudgedTensor loss, held_out_->loss(program, r.after));
    judged.push_back(std::move(loss));
    return judged;
  }

  const Experiment& experiment_;
  int threads_ = 1;
  std::unique_ptr<Backend> backend_;
  std::optional<HeldOut> held_out_;
  const ProbeState* state_ = nullptr;
  Judged reference_;
  std::set<size_t> left_out_;
};

double factorial(size_t n) { return n < 2 ? 1.0 : static_cast<double>(n) * factorial(n - 1); }

// A cooperative game over subsets of causes: v[mask] is the squared drift with those in `mask`
// undone.
struct Game {
  size_t n;
  std::vector<double> v;

  // How much of the squared drift undoing c removes, averaged over the orders of undoing.
  double shapley(size_t c) const {
    const size_t bit = size_t{1} << c;
    double sum = 0;
    for (size_t mask = 0; mask < v.size(); ++mask) {
      if ((mask & bit) != 0) continue;
      const auto before = static_cast<size_t>(__builtin_popcountll(mask));
      sum +=
          factorial(before) * factorial(n - before - 1) / factorial(n) * (v[mask] - v[mask | bit]);
    }
    return sum;
  }

  // Grabisch and Roubens 1999: how much larger the squared drift of both together is than the sum
  // of their separate contributions.
  double interaction(size_t a, size_t b) const {
    const size_t i = size_t{1} << a, j = size_t{1} << b;
    double sum = 0;
    for (size_t mask = 0; mask < v.size(); ++mask) {
      if ((mask & (i | j)) != 0) continue;
      const auto before = static_cast<size_t>(__builtin_popcountll(mask));
      sum += factorial(before) * factorial(n - before - 2) / factorial(n - 1) *
             (v[mask] - v[mask | i] - v[mask | j] + v[mask | i | j]);
    }
    return sum;
  }
};

std::string names_of(const std::vector<StepKind>& kinds) {
  std::string out;
  for (StepKind kind : kinds) out += fmt::format("{}{}", out.empty() ? "" : ", ", to_string(kind));
  return out;
}

// Derives the effect of each cause and of each pair of causes from the games.
void read_games(const std::vector<Game>& games, MeaningResult& m) {
  const size_t n = m.causes.size(), all = (size_t{1} << n) - 1;
  for (size_t k = 0; k < kKinds; ++k) {
    const Game& g = games[k];
    const double whole = g.v.front() > 0 ? g.v.front() : 1;
    m.kinds.push_back({kStepKinds[k], std::sqrt(g.v.front()), std::sqrt(g.v.back())});
    for (size_t c = 0; c < n; ++c) {
      const size_t bit = size_t{1} << c;
      m.effects.push_back({m.causes[c].name, kStepKinds[k], std::sqrt(g.v[bit]),
                           std::sqrt(g.v[all & ~bit]), g.shapley(c) / whole});
      for (size_t d = c + 1; d < n; ++d) {
        const size_t both = bit | size_t{1} << d;
        m.interactions.push_back({m.causes[c].name, m.causes[d].name, kStepKinds[k],
                                  g.interaction(c, d) / whole, std::sqrt(g.v[both]),
                                  std::sqrt(g.v[all & ~both])});
      }
    }
  }
  const auto differing =
      std::ranges::find_if(m.kinds, [&](const KindDrift& d) { return d.drift > m.threshold; });
  const KindDrift& headline = differing == m.kinds.end() ? m.kinds.front() : *differing;
  m.kind = headline.kind;
  m.drift = headline.drift;
  m.residual = headline.residual;
}

void tell_rows(MeaningResult& m) {
  for (const ShardingCause& cause : m.causes) {
    std::vector<StepKind> shows;
    for (const CauseEffect& e : m.effects) {
      if (e.cause == cause.name && e.alone > m.threshold) shows.push_back(e.kind);
    }
    const auto effect_on = [&](StepKind kind) -> const CauseEffect& {
      return *std::ranges::find_if(
          m.effects, [&](const CauseEffect& x) { return x.cause == cause.name && x.kind == kind; });
    };
    const CauseEffect& e = effect_on(m.kind);
    // A cause alone may show in another kind: running statistics are not part of the gradient.
    const bool here = std::ranges::find(shows, m.kind) != shows.end();
    const StepKind where = here || shows.empty() ? m.kind : shows.front();
    const double none = std::ranges::find(m.kinds, where, &KindDrift::kind)->residual;
    AblationRow in_s{
        cause.name,  "restored in S",
        m.drift,     e.restored,
        m.threshold, e.restored < m.drift && (e.restored <= m.threshold || e.share > 0.5),
        e.share,     ""};
    in_s.note = e.restored <= m.threshold ? "drift gone" : "drift remains";
    AblationRow alone{cause.name,  "introduced alone", none,    effect_on(where).alone,
                      m.threshold, !shows.empty(),     e.share, ""};
    alone.note = shows.empty() ? "no drift" : "drift appears: " + names_of(shows);
    m.rows.push_back(std::move(in_s));
    m.rows.push_back(std::move(alone));
  }
}

}  // namespace

double meaning_threshold(int cores) {
  const bool exact = (cores & (cores - 1)) == 0;
  return exact ? kMeaningThreshold : 0x1p-22;
}

bool MeaningResult::differs() const {
  return drift > threshold ||
         std::ranges::any_of(kinds, [&](const KindDrift& k) { return k.drift > threshold; });
}

bool MeaningResult::explained() const {
  return residual <= threshold &&
         std::ranges::all_of(kinds, [&](const KindDrift& k) { return k.residual <= threshold; });
}

Result<MeaningResult> probe_meaning(const Experiment& e, const std::vector<ProbeState>& states,
                                    int threads) {
  MeaningResult m;
  m.threshold = meaning_threshold(e.sharding.cores);
  m.causes = sharding_causes(e);
  TWINRUN_ASSIGN(Prober prober, Prober::make(e, threads));
  const Sharding s = with_own_statistics(e);
  const size_t n = m.causes.size(), subsets = size_t{1} << n;
  std::vector<Game> games(kKinds, {n, std::vector<double>(subsets, 0.0)});
  for (const ProbeState& state : states) {
    m.steps.push_back(state.first);
    TWINRUN_RETURN_IF_ERROR(prober.begin(state));
    for (const std::string& name : prober.left_out()) {
      if (std::ranges::find(m.unjudged, name) == m.unjudged.end()) m.unjudged.push_back(name);
    }
    std::vector<Sharding> shardings(subsets, s);
    for (size_t mask = 0; mask < subsets; ++mask) {
      for (size_t c = 0; c < n; ++c) {
        if ((mask >> c & 1) != 0) shardings[mask] = restore(e, shardings[mask], m.causes[c].name);
      }
    }
    TWINRUN_ASSIGN(const std::vector<Judged> judged, prober.of(shardings));
    for (size_t mask = 0; mask < subsets; ++mask) {
      const PerKind drift = prober.squared_drift(judged[mask]);
      for (size_t k = 0; k < kKinds; ++k)
        games[k].v[mask] += drift[k] / static_cast<double>(states.size());
    }
  }
  read_games(games, m);
  tell_rows(m);
  return m;
}

const CauseClass& Catalogue::class_of(const std::string& cause) const {
  return *std::ranges::find_if(classes, [&](const CauseClass& c) {
    return std::ranges::find(c.causes, cause) != c.causes.end();
  });
}

Result<Catalogue> catalogue(const Experiment& e, const std::vector<ProbeState>& states,
                            int threads) {
  Catalogue result;
  const std::vector<std::string> causes = possible_causes(e);
  const size_t n = causes.size();
  TWINRUN_ASSIGN(Prober prober, Prober::make(e, threads));
  const Sharding clean = faithful(e);
  // gaps[a][b]: the largest squared drift between two causes over the states; index n: no cause.
  std::vector<std::vector<PerKind>> gaps(n + 1, std::vector<PerKind>(n + 1, PerKind{}));
  for (const ProbeState& state : states) {
    TWINRUN_RETURN_IF_ERROR(prober.begin(state));
    std::vector<Sharding> shardings;
    for (size_t c = 0; c <= n; ++c)
      shardings.push_back(c < n ? introduce(e, clean, causes[c]) : clean);
    TWINRUN_ASSIGN(const std::vector<Judged> judged, prober.of(shardings));
    for (size_t a = 0; a <= n; ++a) {
      for (size_t b = a + 1; b <= n; ++b) {
        const PerKind gap = prober.squared_drift(judged[a], judged[b]);
        for (size_t k = 0; k < kKinds; ++k) gaps[a][b][k] = std::max(gaps[a][b][k], gap[k]);
      }
    }
  }
  const auto agree = [&](size_t a, size_t b, size_t k) {
    return std::sqrt(gaps[std::min(a, b)][std::max(a, b)][k]) <=
           meaning_threshold(e.sharding.cores);
  };
  const auto all_agree = [&](size_t a, size_t b) {
    for (size_t k = 0; k < kKinds; ++k) {
      if (!agree(a, b, k)) return false;
    }
    return true;
  };
  std::vector<size_t> heads;  // index of the first member of each class
  for (size_t c = 0; c < n; ++c) {
    for (size_t k = 0; k < kKinds; ++k)
      result.effects.push_back({causes[c], kStepKinds[k], 0, std::sqrt(gaps[c][n][k]), 0});
    const auto head = std::ranges::find_if(heads, [&](size_t h) { return all_agree(h, c); });
    if (head != heads.end()) {
      result.classes[static_cast<size_t>(head - heads.begin())].causes.push_back(causes[c]);
      continue;
    }
    heads.push_back(c);
    result.classes.push_back({{causes[c]}, all_agree(c, n), ""});
  }
  for (CauseClass& c : result.classes) {
    if (c.causes.size() == 1 && !c.inert) continue;
    const bool one_program = std::ranges::all_of(c.causes, [&](const std::string& cause) {
      const auto ops = [](const Program& p) { return to_text(p).substr(to_text(p).find("\n%")); };
      const Sharding a = introduce(e, clean, cause), b = introduce(e, clean, c.causes.front());
      return a.feeding == b.feeding && ops(e.sharded(a)) == ops(e.sharded(b));
    });
    if (one_program && !c.inert) {
      c.divergence = "nothing: they are one program";
      continue;
    }
    for (const std::string& cause : c.causes) {
      const std::string divergence = describe(e, cause).divergence;
      if (c.divergence.find(divergence) == std::string::npos)
        c.divergence += (c.divergence.empty() ? "" : "; ") + divergence;
    }
  }
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      Divergence p{causes[a], causes[b], {}, {}};
      for (size_t k = 0; k < kKinds; ++k) {
        const bool shows = !agree(a, n, k) || !agree(b, n, k);
        if (!shows) continue;
        (agree(a, b, k) ? p.agree : p.differ).push_back(kStepKinds[k]);
      }
      if (!p.agree.empty() && !p.differ.empty()) result.divergences.push_back(std::move(p));
    }
  }
  return result;
}

}  // namespace twinrun

// Reads changes of a program from the subject's tensors that no list of formulas has: numbers in
// formulas, and parameters that do not learn. For harness/identify/program_search.h, which tries
// them like any other change.
#pragma once

#include <fmt/format.h>

#include <set>

#include "harness/identify/formulas.h"
#include "harness/identify/identify_fit.h"

namespace twinrun {

class FormulaFit : public SubjectFit {
 protected:
  using SubjectFit::SubjectFit;
  using Parts = std::vector<Explanation::Part>;

  static void add(Parts& parts, FormulaChange change) {
    std::string setting = change.setting;
    parts.push_back({std::move(setting), true, std::move(change)});
  }

  // ---- parameters that do not learn

  // Parameters whose change, or whose gradient, is zero at every step, while that of conforming
  // engines is not.
  std::set<std::string> standing(bool gradients) const {
    std::set<std::string> out;
    if (fits_[held_].members.empty()) return out;
    const Observed& conforming = fits_[held_].members.front();
    const size_t stride = tensors_.size() * subject_.replicas;
    for (const StateVar& var : asked_.state) {
      if (var.role != StateRole::kParameter) continue;
      bool still = true, moves = false;
      for (size_t t = 0; t < tensors_.size(); ++t) {
        const Compared& c = tensors_[t];
        const bool is_gradient = !c.is_state && c.tensor == var.name + ".grad";
        if (gradients ? !is_gradient : !c.is_state || c.tensor != var.name) continue;
        for (size_t s = 0; s < subject_.states; ++s) {
          for (size_t r = 0; r < subject_.replicas; ++r) {
            const size_t v = s * stride + t * subject_.replicas + r;
            still = still && norm2(*subject_.values[v].data) == 0;
            moves = moves || norm2(*conforming.values[v].data) > 0;
          }
        }
      }
      if (still && moves) out.insert(var.name);
    }
    return whole_layers(out) ? out : std::set<std::string>();
  }

  // A script excludes whole layers, or vectors (biases, norms) of any layer. A kernel that does not
  // learn beside a bias that does is an engine's error.
  bool whole_layers(const std::set<std::string>& names) const {
    const auto layer = [](const std::string& name) { return name.substr(0, name.rfind('/')); };
    for (const StateVar& kernel : asked_.state) {
      if (kernel.type.rank() < 2 || !names.contains(kernel.name)) continue;
      for (const StateVar& beside : asked_.state) {
        if (beside.role == StateRole::kParameter && layer(beside.name) == layer(kernel.name) &&
            !names.contains(beside.name))
          return false;
      }
    }
    return true;
  }

  Parts standing_parts() const {
    Parts out;
    if (e_.imported) return out;
    const std::set<std::string> frozen = standing(false), stopped = standing(true);
    if (!frozen.empty()) add(out, of_parameters(e_, "optimizer.frozen", frozen, {}));
    if (stopped.empty()) return out;
    add(out, of_parameters(e_, "optimizer.stopped", stopped, {}));
    add(out, of_parameters(e_, "unused", stopped, {}));
    if (!frozen.empty()) add(out, of_parameters(e_, "optimizer.stopped", stopped, frozen));
    return out;
  }

  // ---- factors and rates

  // The factor of the subject along the expected values, over all gradients or all parameters on
  // replica 0 of one state.
  double along(const Observed& expected, size_t state, bool of_parameters) const {
    double product = 0, squares = 0;
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const Compared& c = tensors_[t];
      const bool gradient = c.tensor.ends_with(".grad");
      const bool parameter = c.is_state && asked_.state[c.index].role == StateRole::kParameter;
      if (of_parameters ? !parameter : !gradient) continue;
      const size_t v = (state * tensors_.size() + t) * subject_.replicas;
      const std::vector<float>&x = *subject_.values[v].data, &p = *expected.values[v].data;
      for (size_t i = 0; i < x.size(); ++i) {
        product += static_cast<double>(x[i]) * static_cast<double>(p[i]);
        squares += static_cast<double>(p[i]) * static_cast<double>(p[i]);
      }
    }
    return squares > 0 ? product / squares : 0;
  }

  // The limits to which the subject's gradients are clipped where they are smaller than expected,
  // if one number fits all steps: the norm of all gradients, the norm of each tensor, the largest
  // value. Only for a scenario that does not clip: one that does has a number to solve for.
  void clips(const Observed& expected, Parts& out) const {
    if (e_.scenario.optimizer.clip != "none") return;
    constexpr double kSmaller = 1 - 1e-4;
    struct Cut {
      double least = HUGE_VAL, most = 0;
      void at(double x) {
        least = std::min(least, x);
        most = std::max(most, x);
      }
    } global, norm, value;
    const auto largest = [](const std::vector<float>& x) {
      float most = 0;
      for (const float v : x) most = std::max(most, std::fabs(v));
      return static_cast<double>(most);
    };
    for (size_t s = 0; s < subject_.states; ++s) {
      double squares = 0;
      for (size_t t = 0; t < tensors_.size(); ++t) {
        if (!tensors_[t].tensor.ends_with(".grad")) continue;
        const size_t v = (s * tensors_.size() + t) * subject_.replicas;
        const Value &is = subject_.values[v], &was = expected.values[v];
        squares += is.size * is.size;
        if (norm2(*is.data) < kSmaller * norm2(*was.data)) norm.at(is.size);
        if (largest(*is.data) < kSmaller * largest(*was.data)) value.at(largest(*is.data));
      }
      if (along(expected, s, false) < kSmaller) global.at(std::sqrt(squares));
    }
    for (const auto& [kind, cut] :
         {std::pair{"global_norm", global}, {"norm", norm}, {"value", value}}) {
      if (cut.most > 0 && cut.most - cut.least <= 1e-4 * cut.most)
        add(out, fitted_clip(e_, kind, cut.most));
    }
  }

  static constexpr double kPlainFactor = 1.5;

  // Fits a factor of the loss or of the gradients, the limit of clipping, a learning rate, or the
  // rates of single steps.
  Result<Parts> fitted(bool update_alone) {
    Parts out;
    if (e_.imported) return out;
    const auto number = [&](const std::string& key, double value) {
      add(out, fitted_number(e_, key, value));
    };
    if (!update_alone) {
      TWINRUN_ASSIGN(const Observed expected, predict(asked_, states_));
      clips(expected, out);
      const double factor = along(expected, 0, false);
      if (!(factor > 0 && std::isfinite(factor)) || std::fabs(factor - 1) < 1e-6) return out;
      // Where roundings are drawn, tensors without a small factor would be inside with it as well.
      if (!fits_[held_].of.tight && std::max(factor, 1 / factor) < kPlainFactor) return out;
      number("loss.scale", factor);
      number("optimizer.gradient_scale", factor);
      return out;
    }
    Experiment unit = e_;
    for (const ProbedState& state : states_) unit.rates[state.step] = 1;
    TWINRUN_ASSIGN(const Observed expected, predict(asked_, states_, &unit));
    std::map<int64_t, double> rates;
    double least = HUGE_VAL, most = 0;
    for (size_t s = 0; s < states_.size(); ++s) {
      const double rate = along(expected, s, true);
      if (!(rate >= 0 && std::isfinite(rate))) return out;
      rates[states_[s].step] = rate;
      least = std::min(least, rate);
      most = std::max(most, rate);
    }
    const OptimizerConfig& o = e_.scenario.optimizer;
    const bool constant = o.schedule == "constant" && o.warmup_steps == 0;
    if (constant && most > 0 && most - least <= 1e-5 * most) {
      number("optimizer.lr", most);
    } else {
      add(out, fitted_rates(e_, rates));
    }
    return out;
  }

  // ---- any number of a formula

  // Solves for one number of the scenario: moves along the line between two predictions to the
  // point nearest to the subject, and repeats from there. nullopt: the first move does not halve
  // the residual, or there is no such program.
  Result<std::optional<double>> solve(const NumberKey& key, bool powers_anew) {
    constexpr int kTurns = 8;
    constexpr double kSettled = 1e-7, kBetter = 0.5;
    const auto to = [&](double x) {
      return key.scale == NumberKey::Scale::kLogarithm    ? std::log(x)
             : key.scale == NumberKey::Scale::kComplement ? std::log(1 - x)
                                                          : x;
    };
    const auto from = [&](double u) {
      return key.scale == NumberKey::Scale::kLogarithm    ? std::exp(u)
             : key.scale == NumberKey::Scale::kComplement ? 1 - std::exp(u)
                                                          : u;
    };
    double u = to(key.start);
    double step = key.scale == NumberKey::Scale::kLinear ? 0.05 * std::max(0.1, std::fabs(u)) : 0.1;
    std::optional<Observed> here, there;
    TWINRUN_ASSIGN(here, with_number(key, from(u), powers_anew));
    TWINRUN_ASSIGN(there, with_number(key, from(u + step), powers_anew));
    if (!there) {
      step = -step;
      TWINRUN_ASSIGN(there, with_number(key, from(u + step), powers_anew));
    }
    if (!here || !there) return std::optional<double>();
    const double first = residual(*here, key.update_only);
    for (int turn = 0; turn < kTurns; ++turn) {
      double along_line = 0, squares = 0;
      project(*here, *there, key.update_only, along_line, squares);
      if (!(squares > 0) || !std::isfinite(along_line)) break;
      const double most = key.scale == NumberKey::Scale::kLinear ? 20 * std::fabs(step) : 3;
      const double move = std::clamp(along_line / squares * step, -most, most);
      if (std::fabs(move) <= kSettled * std::max(1.0, std::fabs(u))) break;
      TWINRUN_ASSIGN(std::optional<Observed> next, with_number(key, from(u + move), powers_anew));
      if (!next) break;
      const double left = residual(*next, key.update_only);
      if (turn == 0 && !(left < kBetter * first)) return std::optional<double>();
      if (!(left < residual(*here, key.update_only))) break;
      u += move;
      // Two predictions that nearly coincide differ by their rounding only: that is no direction.
      if (std::fabs(move) > 1e-3 * std::fabs(step)) {
        there = std::move(here);
        step = -move;
      } else {
        // Too small a move to give a new direction: stop here.
        there = std::nullopt;
      }
      here = std::move(next);
      if (!there) break;
    }
    return std::optional<double>(from(u));
  }

  Result<std::optional<Observed>> with_number(const NumberKey& key, double value,
                                              bool powers_anew) {
    FormulaChange change;
    change.values = {{key.key, fmt::format("{:.17g}", value)}};
    const Result<Experiment> e = with_formula(e_, change);
    if (!e) return std::optional<Observed>();
    const Program program = step_of(*e, asked_.sharding);
    const auto map = map_states(asked_, program, e_.scenario.seed, powers_anew);
    if (!map || map->hides()) return std::optional<Observed>();
    TWINRUN_ASSIGN(Observed o, predict(program, states_, &*e, &*map));
    return std::optional<Observed>(std::move(o));
  }

 private:
  // Calls f(value, weight) for every compared value, with weight 1 / size^2. Counters are left out,
  // and so is what is rounding alone.
  template <typename F>
  void each_value(bool states_alone, F f) const {
    std::vector<bool> rounding(subject_.values.size());
    for (const Distance& d : fits_[held_].found) {
      if (d.look == Look::kDistance && !d.known) rounding[d.value] = true;
    }
    for (size_t v = 0; v < subject_.values.size(); ++v) {
      if (rounding[v]) continue;
      const Compared& c = tensors_[place_of(v)];
      if (states_alone && !c.is_state) continue;
      if (c.is_state && asked_.state[c.index].role == StateRole::kCounter) continue;
      const double size = norm2(*subject_.values[v].data);
      if (size > 0 && std::isfinite(size)) f(v, 1 / (size * size));
    }
  }
  double residual(const Observed& expected, bool states_alone) const {
    double sum = 0;
    each_value(states_alone, [&](size_t v, double weight) {
      const double gap = gap2(*subject_.values[v].data, *expected.values[v].data);
      sum += weight * gap * gap;
    });
    return sum;
  }
  void project(const Observed& here, const Observed& there, bool states_alone, double& along_line,
               double& squares) const {
    each_value(states_alone, [&](size_t v, double weight) {
      const std::vector<float>&x = *subject_.values[v].data, &a = *here.values[v].data,
            &b = *there.values[v].data;
      double product = 0, square = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double line = static_cast<double>(b[i]) - static_cast<double>(a[i]);
        product += (static_cast<double>(x[i]) - static_cast<double>(a[i])) * line;
        square += line * line;
      }
      along_line += weight * product;
      squares += weight * square;
    });
  }
};

}  // namespace twinrun

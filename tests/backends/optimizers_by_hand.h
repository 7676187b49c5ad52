// A second implementation of the optimizers, in plain code from the formulas of
// docs/reference/formulas.md, with numbers that carry their rounding bound. Tests compare the
// optimizers' graphs with it.
//
//   ByHand<24> hand(spec, program, initial_state(program, 1));
//   hand.step(gradients, learning_rate);         // by parameter name
//   hand.state["w.momentum"][0].value, .error
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program/graph/program.h"
#include "tests/backends/small_programs.h"
#include "tests/support/error_number.h"

namespace twinrun {

template <int Bits>
class ByHand {
 public:
  using N = Num<Bits>;
  using Vec = std::vector<N>;
  using Kind = OptimizerSpec::Kind;

  std::map<std::string, Vec> state;

  ByHand(const OptimizerSpec& spec, const Program& program, const std::vector<Tensor>& initial)
      : spec_(spec) {
    for (size_t i = 0; i < program.state.size(); ++i) {
      const StateVar& var = program.state[i];
      dims_[var.name] = var.type.dims;
      for (double v : small::numbers(initial[i])) state[var.name].push_back(v);
    }
  }

  void step(const std::map<std::string, std::vector<double>>& gradients, double lr) {
    for (const auto& [name, values] : gradients) {
      Vec g(values.begin(), values.end());
      rule(name, state.at(name), g, lr);
      if (spec_.ema > 0) {
        Vec& mean = state.at(name + ".ema");
        for (size_t i = 0; i < g.size(); ++i)
          mean[i] = mean[i] - (mean[i] - state.at(name)[i]) * f32(1 - spec_.ema);
      }
    }
    for (auto& [name, power] : state) {
      if (name.ends_with("/beta1_power")) power[0] = power[0] * f32(spec_.beta1);
      if (name.ends_with("/beta2_power")) power[0] = power[0] * f32(spec_.beta2);
      if (name == "adafactor/step") power[0] = power[0] + N(1);
    }
  }

 private:
  // A program stores constants as binary32.
  static N f32(double v) { return N(static_cast<float>(v)); }
  static N rsqrt(N x) { return N(1) / sqrt(x); }
  static N norm(const Vec& x) {
    Vec squares;
    for (N v : x) squares.push_back(v * v);
    return sqrt(sum(squares));
  }
  static N mean(const Vec& x) { return sum(x) / N(static_cast<double>(x.size())); }
  static N rms(const Vec& x) {
    Vec squares;
    for (N v : x) squares.push_back(v * v);
    return sqrt(mean(squares));
  }
  static N trust(N w, N step, N ratio) { return w.value > 0 && step.value > 0 ? ratio : N(1); }

  // Moves `old` toward `target`, by the formula of TensorFlow's CPU kernels or by that of XLA.
  N average(N old, N target, double keep, bool cpu) const {
    return cpu ? old + (target - old) * f32(1 - keep) : old * f32(keep) + target * f32(1 - keep);
  }

  void rule(const std::string& name, Vec& w, const Vec& g, double lr_value) {
    const N lr = lr_value, epsilon = f32(spec_.epsilon);
    const bool cpu = spec_.algebra == OptimizerSpec::Algebra::kCpu;
    const size_t n = w.size();
    switch (spec_.kind) {
      case Kind::kSgd:
        for (size_t i = 0; i < n; ++i) w[i] = w[i] - g[i] * lr;
        break;
      case Kind::kMomentum: {
        Vec& a = state.at(name + ".momentum");
        for (size_t i = 0; i < n; ++i) {
          a[i] = a[i] * f32(spec_.momentum) + g[i];
          w[i] = w[i] - (spec_.nesterov ? g[i] * lr + a[i] * f32(spec_.momentum) * lr : a[i] * lr);
        }
        break;
      }
      case Kind::kAdam:
      case Kind::kAdamw: {
        const N p1 = state.at("adam/beta1_power")[0], p2 = state.at("adam/beta2_power")[0];
        const N alpha = lr * sqrt(N(1) - p2) / (N(1) - p1);
        Vec &m = state.at(name + ".adam_m"), &v = state.at(name + ".adam_v");
        for (size_t i = 0; i < n; ++i) {
          if (spec_.kind == Kind::kAdamw) w[i] = w[i] - w[i] * f32(spec_.weight_decay) * lr;
          m[i] = m[i] + (g[i] - m[i]) * f32(1 - spec_.beta1);
          v[i] = v[i] + (g[i] * g[i] - v[i]) * f32(1 - spec_.beta2);
          w[i] = w[i] - m[i] * alpha / (sqrt(v[i]) + epsilon);
        }
        break;
      }
      case Kind::kAdamax: {
        const N rate = lr / (N(1) - state.at("adamax/beta1_power")[0]);
        Vec &m = state.at(name + ".adamax_m"), &v = state.at(name + ".adamax_v");
        for (size_t i = 0; i < n; ++i) {
          m[i] = average(m[i], g[i], spec_.beta1, cpu);
          v[i] = max(v[i] * f32(spec_.beta2), abs(g[i]));
          w[i] = w[i] - rate * (m[i] / (v[i] + epsilon));
        }
        break;
      }
      case Kind::kAdagrad: {
        Vec& a = state.at(name + ".accumulator");
        for (size_t i = 0; i < n; ++i) {
          a[i] = a[i] + g[i] * g[i];
          w[i] = w[i] - g[i] * lr / (sqrt(a[i]) + epsilon);
        }
        break;
      }
      case Kind::kAdadelta: {
        Vec &a = state.at(name + ".accum"), &au = state.at(name + ".accum_update");
        for (size_t i = 0; i < n; ++i) {
          a[i] = a[i] * f32(spec_.rho) + g[i] * g[i] * f32(1 - spec_.rho);
          const N u = sqrt(au[i] + epsilon) * rsqrt(a[i] + epsilon) * g[i];
          w[i] = w[i] - lr * u;
          au[i] = au[i] * f32(spec_.rho) + u * u * f32(1 - spec_.rho);
        }
        break;
      }
      case Kind::kRmsprop: {
        Vec &ms = state.at(name + ".rms"), &mom = state.at(name + ".momentum");
        for (size_t i = 0; i < n; ++i) {
          ms[i] = average(ms[i], g[i] * g[i], spec_.rho, cpu);
          N d = ms[i];
          if (spec_.centered) {
            N& mg = state.at(name + ".mg")[i];
            mg = average(mg, g[i], spec_.rho, cpu);
            d = d - mg * mg;
          }
          d = d + epsilon;
          mom[i] =
              mom[i] * f32(spec_.momentum) + (cpu ? g[i] * lr / sqrt(d) : g[i] * lr * rsqrt(d));
          w[i] = w[i] - mom[i];
        }
        break;
      }
      case Kind::kLars: {
        Vec& a = state.at(name + ".momentum");
        const bool layer = dims_.at(name).size() >= 2;
        const N wn = norm(w), gn = norm(g), decay = f32(spec_.weight_decay);
        const N ratio = f32(spec_.trust_coefficient) * wn / (gn + decay * wn + epsilon);
        const N rate = layer ? lr * trust(wn, gn, ratio) : lr;
        for (size_t i = 0; i < n; ++i) {
          const N step = (layer ? g[i] + decay * w[i] : g[i]) * rate;
          a[i] = a[i] * f32(spec_.momentum) + step;
          w[i] = w[i] - (spec_.nesterov ? step + a[i] * f32(spec_.momentum) : a[i]);
        }
        break;
      }
      case Kind::kLamb: {
        const N rest1 = N(1) - state.at("lamb/beta1_power")[0];
        const N rest2 = N(1) - state.at("lamb/beta2_power")[0];
        Vec &m = state.at(name + ".lamb_m"), &v = state.at(name + ".lamb_v");
        Vec u(n);
        for (size_t i = 0; i < n; ++i) {
          m[i] = m[i] * f32(spec_.beta1) + g[i] * f32(1 - spec_.beta1);
          v[i] = v[i] * f32(spec_.beta2) + g[i] * g[i] * f32(1 - spec_.beta2);
          u[i] = m[i] / rest1 / (sqrt(v[i] / rest2) + epsilon) + f32(spec_.weight_decay) * w[i];
        }
        const N wn = norm(w), un = norm(u), rate = trust(wn, un, wn / un) * lr;
        for (size_t i = 0; i < n; ++i) w[i] = w[i] - rate * u[i];
        break;
      }
      case Kind::kAdafactor:
        adafactor(name, w, g, lr);
        break;
    }
  }

  void adafactor(const std::string& name, Vec& w, const Vec& g, N lr) {
    const N t = state.at("adafactor/step")[0];
    const N decay = N(1) - exp(log(t) * f32(-0.8)), mixing = N(1) - decay;
    if (spec_.relative_step) {
      lr = min(rsqrt(t), f32(0.01));
      if (!spec_.parameter_scale) lr = lr * f32(0.05);
    }
    const size_t n = w.size();
    Vec q(n), x(n);
    for (size_t i = 0; i < n; ++i) q[i] = g[i] * g[i] + f32(1e-30);
    const Dims& dims = dims_.at(name);
    if (dims.size() >= 2) {
      // q is [lead, rows, columns]. vr [lead, rows] averages over columns, vc [lead, columns] over
      // rows.
      const auto columns = static_cast<size_t>(dims[dims.size() - 1]);
      const auto rows = static_cast<size_t>(dims[dims.size() - 2]);
      Vec &vr = state.at(name + ".vr"), &vc = state.at(name + ".vc");
      for (size_t l = 0; l < n / (rows * columns); ++l) {
        const size_t at = l * rows * columns;
        for (size_t r = 0; r < rows; ++r) {
          Vec line;
          for (size_t c = 0; c < columns; ++c) line.push_back(q[at + r * columns + c]);
          vr[l * rows + r] = vr[l * rows + r] * decay + mean(line) * mixing;
        }
        for (size_t c = 0; c < columns; ++c) {
          Vec line;
          for (size_t r = 0; r < rows; ++r) line.push_back(q[at + r * columns + c]);
          vc[l * columns + c] = vc[l * columns + c] * decay + mean(line) * mixing;
        }
        const auto first = vr.begin() + static_cast<std::ptrdiff_t>(l * rows);
        const N long_term = mean(Vec(first, first + static_cast<std::ptrdiff_t>(rows)));
        for (size_t r = 0; r < rows; ++r) {
          for (size_t c = 0; c < columns; ++c) {
            x[at + r * columns + c] = g[at + r * columns + c] *
                                      rsqrt(vr[l * rows + r] / long_term) *
                                      rsqrt(vc[l * columns + c]);
          }
        }
      }
    } else {
      Vec& v = state.at(name + ".v");
      for (size_t i = 0; i < n; ++i) {
        v[i] = v[i] * decay + q[i] * mixing;
        x[i] = g[i] * rsqrt(v[i]);
      }
    }
    const N excess = max(rms(x) / f32(spec_.clipping_threshold), N(1));
    if (spec_.parameter_scale) lr = lr * max(rms(w), f32(1e-3));
    for (size_t i = 0; i < n; ++i) {
      N step = x[i] / excess * lr;
      if (spec_.beta1 > 0) {
        N& m = state.at(name + ".m")[i];
        m = m * f32(spec_.beta1) + step * f32(1 - spec_.beta1);
        step = m;
      }
      w[i] = w[i] - step;
    }
  }

  OptimizerSpec spec_;
  std::map<std::string, Dims> dims_;
};

}  // namespace twinrun

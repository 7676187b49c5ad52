// The fused optimizers and the scaling of losses. They write their arguments: the results are the
// tensors that may be written, in the order of the arguments.
#include <fmt/format.h>

#include <cmath>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

using Arrays = Checked<Array>;

// An element of a list, after checking that the list is as long as the parameters'.
const Array& of(const Arrays& list, size_t i) {
  if (i >= list.size()) throw Undefined("lists of different lengths");
  return list[i];
}
// The results: list after list.
Expected in_order(std::initializer_list<Arrays*> lists) {
  Expected out;
  for (Arrays* list : lists) {
    for (Array& x : *list) out.results.emplace_back(std::move(x));
  }
  return out;
}
// Gradients that overflowed: the step is left out.
bool skipped(const Arguments& a) {
  return a.has(99, "found_inf") && a.number(99, "found_inf", 0) == 1;
}
// The kernels divide the gradients by the loss scale, and write them back.
void unscale(const Arguments& a, Arrays& grads) {
  if (!a.has(99, "grad_scale")) return;
  const Estimate scale = exactly(a.number(99, "grad_scale", 1));
  for (Array& g : grads) {
    g = map(
        a.m, [&](Estimate x) { return a.m.div(x, scale); }, g);
  }
}
// A number that is computed in binary64 and then taken in the kernel's arithmetic.
Estimate taken(const Arithmetic& m, double x) { return m.more(exactly(x), m.unit); }
Estimate negated(Estimate x) { return {-x.value, x.radius}; }

// Of Adam: momentum * (1 - w) + gradient * w as two products, or as momentum + w (gradient -
// momentum), which differ by the roundings of the longer terms.
Estimate moved(const Arithmetic& m, Estimate from, Estimate to, double beta) {
  const double w = 1 - beta;
  // CUDA's kernels take 1 - beta of a beta that they have rounded.
  const Estimate weight{w, m.unit * (std::fabs(w) + (m.gpu ? std::fabs(beta) : 0))};
  const Estimate sum = m.add(m.mul(from, taken(m, beta)), m.mul(to, weight));
  const double reach = std::fabs(w) < 0.5 ? std::fabs(w) : 1;
  if (!finite(sum.value)) return sum;
  const double more = 4 * m.unit * (std::fabs(from.value) + reach * std::fabs(to.value));
  return {sum.value, sum.radius + more};
}

Expected adam(const Arguments& a, bool decoupled) {
  const Arithmetic& m = a.m;
  Arrays params = a.arrays(0, "self"), grads = a.arrays(1, "grads"),
         first = a.arrays(2, "exp_avgs"), second = a.arrays(3, "exp_avg_sqs"),
         largest = a.arrays(4, "max_exp_avg_sqs");
  const Arrays steps = a.arrays(5, "state_steps");
  const double lr = a.number(99, "lr", 1e-3), beta1 = a.number(99, "beta1", 0.9),
               beta2 = a.number(99, "beta2", 0.999), decay = a.number(99, "weight_decay", 0),
               eps = a.number(99, "eps", 1e-8);
  const bool amsgrad = a.flag(99, "amsgrad", false), maximize = a.flag(99, "maximize", false);
  if (!skipped(a)) {
    unscale(a, grads);
    for (size_t i = 0; i < params.size(); ++i) {
      const double step = of(steps, i).at(0).value;
      // The kernels compute the corrections in binary64, from betas of binary64, and round them
      // when they use them. 1 - beta^t with -expm1: t is up to 10^6, beta^t near 1 for t = 1.
      const double correction1 = -std::expm1(step * std::log(beta1));
      const double correction2 = -std::expm1(step * std::log(beta2));
      // Those of CUDA compute them in binary32, from betas that they have rounded.
      const auto single = [&](double beta, double correction) {
        const double power = 1 - correction;
        return m.gpu ? m.unit * (1 + (step * beta + 4) * power) / correction : 0;
      };
      const Estimate rate =
          m.more(exactly(lr / correction1), 4 * m.unit + single(beta1, correction1));
      const Estimate root =
          m.more(exactly(std::sqrt(correction2)), 3 * m.unit + single(beta2, correction2));
      Array& p = params[i];
      const Array gradient = map(
          m,
          [&](Estimate g, Estimate x) {
            if (maximize) g = negated(g);
            if (decay != 0 && !decoupled) g = m.add(g, m.mul(exactly(decay), x));
            return g;
          },
          of(grads, i), p);
      first[i] = map(
          m, [&](Estimate e, Estimate g) { return moved(m, e, g, beta1); }, of(first, i), gradient);
      second[i] = map(
          m, [&](Estimate e, Estimate g) { return moved(m, e, m.mul(g, g), beta2); }, of(second, i),
          gradient);
      if (amsgrad) {
        largest[i] = map(
            m, [](Estimate x, Estimate y) { return Arithmetic::max(x, y); }, of(largest, i),
            second[i]);
      }
      p = map(
          m,
          [&](Estimate x, Estimate e, Estimate v) {
            if (decay != 0 && decoupled) x = m.sub(x, m.mul(taken(m, lr * decay), x));
            const Estimate below = m.add(m.div(m.sqrt(v), root), exactly(eps));
            return m.sub(x, m.more(m.div(m.mul(rate, e), below), m.unit));
          },
          p, first[i], amsgrad ? largest[i] : second[i]);
    }
  }
  return in_order({&params, &grads, &first, &second, &largest});
}
Expected fused_adam(const Arguments& a) { return adam(a, false); }
Expected fused_adamw(const Arguments& a) { return adam(a, true); }

Expected fused_sgd(const Arguments& a) {
  const Arithmetic& m = a.m;
  Arrays params = a.arrays(0, "self"), grads = a.arrays(1, "grads"),
         buffers = a.arrays(2, "momentum_buffer_list");
  const double decay = a.number(99, "weight_decay", 0), momentum = a.number(99, "momentum", 0),
               lr = a.number(99, "lr", 1e-3), dampening = a.number(99, "dampening", 0);
  const bool nesterov = a.flag(99, "nesterov", false), maximize = a.flag(99, "maximize", false),
             begins = a.flag(99, "is_first_step", false);
  if (momentum == 0 && !buffers.empty()) throw Undefined("momentum buffers without a momentum");
  if (!skipped(a)) {
    unscale(a, grads);
    for (size_t i = 0; i < params.size(); ++i) {
      Array& p = params[i];
      Array gradient = map(
          m,
          [&](Estimate g, Estimate x) {
            if (maximize) g = negated(g);
            return decay != 0 ? m.add(g, m.mul(exactly(decay), x)) : g;
          },
          of(grads, i), p);
      if (momentum != 0) {
        buffers[i] = begins ? gradient
                            : map(
                                  m,
                                  [&](Estimate b, Estimate g) {
                                    return m.add(m.mul(exactly(momentum), b),
                                                 m.mul(taken(m, 1 - dampening), g));
                                  },
                                  of(buffers, i), gradient);
        gradient =
            nesterov
                ? map(
                      m,
                      [&](Estimate g, Estimate b) { return m.add(g, m.mul(exactly(momentum), b)); },
                      gradient, of(buffers, i))
                : of(buffers, i);
      }
      p = map(
          m, [&](Estimate x, Estimate g) { return m.sub(x, m.mul(exactly(lr), g)); }, p, gradient);
    }
  }
  return in_order({&params, &grads, &buffers});
}

Expected fused_adagrad(const Arguments& a) {
  const Arithmetic& m = a.m;
  Arrays params = a.arrays(0, "self"), grads = a.arrays(1, "grads"),
         sums = a.arrays(2, "state_sums"), steps = a.arrays(3, "state_steps");
  const double lr = a.number(99, "lr", 1e-2), lr_decay = a.number(99, "lr_decay", 0),
               decay = a.number(99, "weight_decay", 0), eps = a.number(99, "eps", 1e-10);
  const bool maximize = a.flag(99, "maximize", false);
  if (!skipped(a)) {
    unscale(a, grads);
    for (size_t i = 0; i < params.size(); ++i) {
      const double step = of(steps, i).at(0).value;
      const Estimate rate = m.more(exactly(lr / (1 + (step - 1) * lr_decay)), 4 * m.unit);
      Array& p = params[i];
      const Array gradient = map(
          m,
          [&](Estimate g, Estimate x) {
            if (maximize) g = negated(g);
            return decay != 0 ? m.add(g, m.mul(exactly(decay), x)) : g;
          },
          of(grads, i), p);
      sums[i] = map(
          m, [&](Estimate s, Estimate g) { return m.add(s, m.mul(g, g)); }, of(sums, i), gradient);
      p = map(
          m,
          [&](Estimate x, Estimate g, Estimate s) {
            const Estimate below = m.add(m.sqrt(s), exactly(eps));
            return m.sub(x, m.more(m.div(m.mul(rate, g), below), m.unit));
          },
          p, gradient, sums[i]);
    }
  }
  // The schema of the overload with a number as the learning rate says that the steps are written
  // too, which they are not.
  if (a.call().op.ends_with(".tensor_lr")) steps.clear();
  return in_order({&params, &grads, &sums, &steps});
}

Expected check_and_unscale(const Arguments& a) {
  Arrays grads = a.arrays(0, "self");
  Array found = a.array(1, "found_inf");
  const double inverse = a.number(2, "inv_scale", 1);
  bool bad = false;
  for (Array& g : grads) {
    for (const double x : g.value) bad = bad || !std::isfinite(x);
    if (inverse == 1) continue;
    g = map(
        a.m, [&](Estimate x) { return a.m.mul(x, exactly(inverse)); }, g);
  }
  if (bad) found = filled(found.dims, 1);
  Arrays last{std::move(found)};
  return in_order({&grads, &last});
}
Expected update_scale(const Arguments& a) {
  Array scale = a.array(0, "self"), tracker = a.array(1, "growth_tracker");
  const double found = a.number(2, "found_inf", 0), growth = a.number(3, "scale_growth_factor", 2),
               backoff = a.number(4, "scale_backoff_factor", 0.5);
  const int64_t interval = a.integer(5, "growth_interval", 2000);
  const auto multiplied = [&](double factor) {
    return map(
        a.m, [&](Estimate x) { return a.m.mul(x, exactly(factor)); }, scale);
  };
  double steps = 0;
  if (found != 0) {
    scale = multiplied(backoff);
  } else {
    steps = tracker.at(0).value + 1;
    if (steps == static_cast<double>(interval)) {
      steps = 0;
      // A scale that would overflow stays.
      Array grown = multiplied(growth);
      if (finite(grown.at(0).value)) scale = std::move(grown);
    }
  }
  Expected out(std::move(scale));
  out.results.emplace_back(filled(tracker.dims, steps));
  return out;
}

constexpr Definition kOptimizerDefinitions[] = {
    {"aten._fused_adam", fused_adam},
    {"aten._fused_adamw", fused_adamw},
    {"aten._fused_sgd", fused_sgd},
    {"aten._fused_adagrad", fused_adagrad},
    {"aten._amp_foreach_non_finite_check_and_unscale", check_and_unscale},
    {"aten._amp_update_scale", update_scale},
};

}  // namespace

std::span<const Definition> optimizer_definitions() { return kOptimizerDefinitions; }

}  // namespace twinrun::aten

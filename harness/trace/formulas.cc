// Each formula as the page of its optimizer gives it: docs.pytorch.org, torch.optim.
#include "harness/trace/formulas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "backends/aten/definitions.h"

namespace twinrun {
namespace {

using aten::Undefined;
using Numbers = std::vector<double>;

// What most formulas begin with, and the numbers that they share.
class Update {
 public:
  Update(const Settings& settings, Departure departure, Slot& slot)
      : settings_(settings), departure_(departure), slot_(slot), rate(settings.number("lr")) {
    if (settings.flag("maximize"))
      for (double& g : slot.gradient) g = -g;
    double& count = state("step", 0, 1)[0];
    count += 1;
    t = count + (is(Departure::kStepAhead) ? 1 : is(Departure::kStepBehind) ? -1 : 0);
  }

  bool is(Departure d) const { return departure_ == d; }

  // A state, and what it begins with. `size`: -1: as many elements as the weight.
  Numbers& state(const char* name, double begins = 0, int64_t size = -1) const {
    const size_t n = size < 0 ? slot_.weight.size() : static_cast<size_t>(size);
    Numbers& x = slot_.state.try_emplace(name, n, begins).first->second;
    if (x.size() != n) throw Undefined(fmt::format("its state {} has {} elements", name, x.size()));
    return x;
  }

  // Decoupled: taken off the weight. Otherwise it belongs to the gradient.
  void decay(bool decoupled) const {
    const double by = settings_.number_or("weight_decay", 0);
    if (by == 0 || is(Departure::kNoDecay)) return;
    if (is(Departure::kOtherDecay)) decoupled = !decoupled;
    for (size_t i = 0; i < slot_.weight.size(); ++i) {
      if (decoupled)
        slot_.weight[i] -= rate * by * slot_.weight[i];
      else
        slot_.gradient[i] += by * slot_.weight[i];
    }
  }

  double beta(size_t which) const { return settings_.number("betas", which); }
  // 1 - beta^t
  double correction(double beta) const {
    return is(Departure::kNoCorrection) ? 1 : 1 - std::pow(beta, t);
  }
  double root(double x, double epsilon) const {
    return is(Departure::kEpsilonInside) ? std::sqrt(x + epsilon) : std::sqrt(x) + epsilon;
  }
  template <typename F>
  void each(F f) const {
    for (size_t i = 0; i < slot_.weight.size(); ++i) f(i, slot_.weight[i], slot_.gradient[i]);
  }

 private:
  const Settings& settings_;
  Departure departure_;
  Slot& slot_;

 public:
  double rate, t = 0;
};

void sgd(const Settings& s, Departure d, Slot& slot) {
  const bool first = !slot.state.contains("momentum_buffer");
  const Update step(s, d, slot);
  step.decay(false);
  const double momentum = s.number_or("momentum", 0), dampening = s.number_or("dampening", 0);
  if (momentum == 0) return step.each([&](size_t, double& w, double g) { w -= step.rate * g; });
  Numbers& b = step.state("momentum_buffer");
  step.each([&](size_t i, double& w, double g) {
    b[i] = first ? g : momentum * b[i] + (1 - dampening) * g;
    w -= step.rate * (s.flag("nesterov") ? g + momentum * b[i] : b[i]);
  });
}

void adam_of(const Settings& s, Departure d, Slot& slot, bool decoupled) {
  const Update step(s, d, slot);
  step.decay(decoupled);
  Numbers& m = step.state("exp_avg");
  Numbers& v = step.state("exp_avg_sq");
  const double b1 = step.beta(0), b2 = step.beta(1), epsilon = s.number("eps");
  const double c1 = step.correction(b1), c2 = step.correction(b2);
  Numbers* most = s.flag("amsgrad") ? &step.state("max_exp_avg_sq") : nullptr;
  step.each([&](size_t i, double& w, double g) {
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    double second = v[i];
    if (most != nullptr) {
      second = std::max((*most)[i], v[i]);
      if (!step.is(Departure::kMaximumNotKept)) (*most)[i] = second;
    }
    w -= step.rate / c1 * m[i] / step.root(second / c2, epsilon);
  });
}
void adam(const Settings& s, Departure d, Slot& slot) {
  adam_of(s, d, slot, s.flag("decoupled_weight_decay"));
}
void adamw(const Settings& s, Departure d, Slot& slot) { adam_of(s, d, slot, true); }

void adamax(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  step.decay(false);
  Numbers& m = step.state("exp_avg");
  Numbers& u = step.state("exp_inf");
  const double b1 = step.beta(0), b2 = step.beta(1), epsilon = s.number("eps");
  const double c1 = step.correction(b1);
  step.each([&](size_t i, double& w, double g) {
    m[i] = b1 * m[i] + (1 - b1) * g;
    u[i] = std::max(b2 * u[i], std::fabs(g) + epsilon);
    w -= step.rate / c1 * m[i] / u[i];
  });
}

void nadam(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  step.decay(s.flag("decoupled_weight_decay"));
  Numbers& m = step.state("exp_avg");
  Numbers& v = step.state("exp_avg_sq");
  double& product = step.state("mu_product", 1, 1)[0];
  const double b1 = step.beta(0), b2 = step.beta(1), epsilon = s.number("eps");
  const auto momentum = [&](double t) {
    return b1 * (1 - 0.5 * std::pow(0.96, t * s.number("momentum_decay")));
  };
  const double now = momentum(step.t), next = momentum(step.t + 1), c2 = step.correction(b2);
  product *= now;
  const double after = product * next * (step.is(Departure::kProductTwice) ? now : 1);
  step.each([&](size_t i, double& w, double g) {
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    w -= step.rate * ((1 - now) / (1 - product) * g + next / (1 - after) * m[i]) /
         step.root(v[i] / c2, epsilon);
  });
}

void radam(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  step.decay(s.flag("decoupled_weight_decay"));
  Numbers& m = step.state("exp_avg");
  Numbers& v = step.state("exp_avg_sq");
  const double b1 = step.beta(0), b2 = step.beta(1), epsilon = s.number("eps");
  const double c1 = step.correction(b1), c2 = step.correction(b2);
  const double limit = 2 / (1 - b2) - 1;
  const double length = limit - 2 * step.t * std::pow(b2, step.t) / (1 - std::pow(b2, step.t));
  const bool rectifies = length > 5;
  const double r =
      rectifies
          ? std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length))
          : 1;
  step.each([&](size_t i, double& w, double g) {
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    const double adapted = rectifies ? r * std::sqrt(c2) / step.root(v[i], epsilon) : 1;
    w -= step.rate * m[i] / c1 * adapted;
  });
}

void adagrad(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  step.decay(false);
  Numbers& sum = step.state("sum", s.number_or("initial_accumulator_value", 0));
  const double rate = step.rate / (1 + (step.t - 1) * s.number_or("lr_decay", 0));
  const double epsilon = s.number("eps");
  step.each([&](size_t i, double& w, double g) {
    sum[i] += g * g;
    w -= rate * g / step.root(sum[i], epsilon);
  });
}

void adadelta(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  step.decay(false);
  Numbers& v = step.state("square_avg");
  Numbers& u = step.state("acc_delta");
  const double rho = s.number("rho"), epsilon = s.number("eps");
  step.each([&](size_t i, double& w, double g) {
    v[i] = rho * v[i] + (1 - rho) * g * g;
    const double delta = std::sqrt(u[i] + epsilon) / std::sqrt(v[i] + epsilon) * g;
    u[i] = rho * u[i] + (1 - rho) * delta * delta;
    w -= step.rate * delta;
  });
}

void rmsprop(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  step.decay(false);
  Numbers& v = step.state("square_avg");
  Numbers* mean = s.flag("centered") ? &step.state("grad_avg") : nullptr;
  const double momentum = s.number_or("momentum", 0), alpha = s.number("alpha");
  Numbers* b = momentum > 0 ? &step.state("momentum_buffer") : nullptr;
  const double epsilon = s.number("eps");
  step.each([&](size_t i, double& w, double g) {
    v[i] = alpha * v[i] + (1 - alpha) * g * g;
    double square = v[i];
    if (mean != nullptr) {
      (*mean)[i] = alpha * (*mean)[i] + (1 - alpha) * g;
      square -= (*mean)[i] * (*mean)[i];
    }
    double change = g / step.root(square, epsilon);
    if (b != nullptr) change = (*b)[i] = momentum * (*b)[i] + change;
    w -= step.rate * change;
  });
}

void rprop(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  Numbers& before = step.state("prev");
  Numbers& size = step.state("step_size", step.rate);
  const double less = s.number("etas", 0), more = s.number("etas", 1);
  const double least = s.number("step_sizes", 0), most = s.number("step_sizes", 1);
  step.each([&](size_t i, double& w, double g) {
    const double turned = g * before[i];
    const double factor = turned > 0 ? more : turned < 0 ? less : 1;
    size[i] = std::clamp(size[i] * factor, least, most);
    if (turned < 0) g = 0;
    w -= size[i] * static_cast<double>((g > 0) - (g < 0));
    before[i] = g;
  });
}

void asgd(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  step.decay(false);
  double& eta = step.state("eta", step.rate, 1)[0];
  double& mu = step.state("mu", 1, 1)[0];
  Numbers& mean = step.state("ax");
  const double lambda = s.number("lambd");
  step.each([&](size_t i, double& w, double g) {
    w = w * (1 - lambda * eta) - eta * g;
    mean[i] = mu == 1 ? w : mean[i] + (w - mean[i]) * mu;
  });
  eta = step.rate / std::pow(1 + lambda * step.rate * step.t, s.number("alpha"));
  mu = 1 / std::max(1.0, step.t - s.number("t0"));
}

double root_mean_square(const Numbers& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(x.size(), 1)));
}

void adafactor(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  const size_t n = slot.weight.size(), rank = slot.dims.size();
  const double beta = std::pow(step.t, s.number("beta2_decay"));
  // The default of the first epsilon is that of the weight's type, which the caller gives.
  const double least = s.number("eps", 0);
  const double rate = std::max(s.number("eps", 1), root_mean_square(slot.weight)) *
                      std::min(step.rate, 1 / std::sqrt(step.t));
  step.decay(true);
  Numbers estimate(n);
  if (rank > 1) {
    const auto rows = static_cast<size_t>(slot.dims[rank - 2]);
    const auto columns = static_cast<size_t>(slot.dims[rank - 1]);
    const size_t planes = n / std::max<size_t>(rows * columns, 1);
    Numbers& row = step.state("row_var", 0, static_cast<int64_t>(planes * rows));
    Numbers& column = step.state("col_var", 0, static_cast<int64_t>(planes * columns));
    for (size_t p = 0; p < planes; ++p) {
      Numbers of_row(rows, 0), of_column(columns, 0);
      for (size_t i = 0; i < rows * columns; ++i) {
        const double g = slot.gradient[p * rows * columns + i];
        of_row[i / columns] += g * g / static_cast<double>(columns);
        of_column[i % columns] += g * g / static_cast<double>(rows);
      }
      double mean = 0;
      for (size_t r = 0; r < rows; ++r) {
        double& x = row[p * rows + r];
        x += beta * (of_row[r] - x);
        mean += x / static_cast<double>(rows);
      }
      for (size_t c = 0; c < columns; ++c) {
        double& x = column[p * columns + c];
        x += beta * (of_column[c] - x);
      }
      for (size_t i = 0; i < rows * columns; ++i)
        estimate[p * rows * columns + i] =
            row[p * rows + i / columns] * column[p * columns + i % columns] / std::max(mean, least);
    }
  } else {
    Numbers& v = step.state("variance");
    for (size_t i = 0; i < n; ++i) {
      v[i] += beta * (slot.gradient[i] * slot.gradient[i] - v[i]);
      estimate[i] = v[i];
    }
  }
  for (size_t i = 0; i < n; ++i)
    estimate[i] = slot.gradient[i] / std::sqrt(std::max(estimate[i], least * least));
  const double clipped = std::max(1.0, root_mean_square(estimate) / s.number("d"));
  for (size_t i = 0; i < n; ++i) slot.weight[i] -= rate / clipped * estimate[i];
}

void muon(const Settings& s, Departure d, Slot& slot) {
  const Update step(s, d, slot);
  if (slot.dims.size() != 2) throw Undefined("a weight that is no matrix");
  Numbers& b = step.state("momentum_buffer");
  const double momentum = s.number("momentum");
  aten::Array x = aten::empty_array(slot.dims, true);
  double squares = 0;
  step.each([&](size_t i, double&, double g) {
    b[i] = momentum * b[i] + (1 - momentum) * g;
    x.value[i] = s.flag("nesterov") ? (1 - momentum) * g + momentum * b[i] : b[i];
    squares += x.value[i] * x.value[i];
  });
  for (double& v : x.value) v /= std::max(std::sqrt(squares), s.number("eps"));
  // Newton and Schulz's iteration, of the shorter side.
  const bool turned = slot.dims[0] > slot.dims[1];
  if (turned) x = aten::permuted(x, {1, 0});
  const aten::Arithmetic m;
  const auto iterations = static_cast<int>(std::clamp(s.number("ns_steps"), 0.0, 100.0));
  for (int k = 0; k < iterations; ++k) {
    aten::Array gram = aten::matmul(m, x, aten::permuted(x, {1, 0}));
    const aten::Array square = aten::matmul(m, gram, gram);
    for (size_t i = 0; i < gram.value.size(); ++i)
      gram.value[i] = s.number("ns_coefficients", 1) * gram.value[i] +
                      s.number("ns_coefficients", 2) * square.value[i];
    const aten::Array change = aten::matmul(m, gram, x);
    for (size_t i = 0; i < x.value.size(); ++i)
      x.value[i] = s.number("ns_coefficients", 0) * x.value[i] + change.value[i];
  }
  if (turned) x = aten::permuted(x, {1, 0});
  const auto named = s.texts.find("adjust_lr_fn");
  const std::string form = named == s.texts.end() ? "original" : named->second;
  const auto a = static_cast<double>(slot.dims[0]);
  const auto c = static_cast<double>(slot.dims[1]);
  double factor = 1;
  if (form == "original")
    factor = std::sqrt(std::max(1.0, a / c));
  else if (form == "match_rms_adamw")
    factor = 0.2 * std::sqrt(std::max(a, c));
  else
    throw Undefined(fmt::format("adjust_lr_fn = {}", form));
  step.decay(true);
  step.each([&](size_t i, double& w, double) { w -= step.rate * factor * x.value[i]; });
}

// Of formulas that agree on a step the first is meant.
constexpr std::array kFormulas = {
    Formula{"torch.optim.SGD", sgd},           Formula{"torch.optim.Adam", adam},
    Formula{"torch.optim.AdamW", adamw},       Formula{"torch.optim.RMSprop", rmsprop},
    Formula{"torch.optim.Adagrad", adagrad},   Formula{"torch.optim.Adamax", adamax},
    Formula{"torch.optim.NAdam", nadam},       Formula{"torch.optim.RAdam", radam},
    Formula{"torch.optim.Adadelta", adadelta}, Formula{"torch.optim.Adafactor", adafactor, true},
    Formula{"torch.optim.ASGD", asgd},         Formula{"torch.optim.Rprop", rprop},
    Formula{"torch.optim.Muon", muon},
};

constexpr std::array<std::string_view, static_cast<size_t>(Departure::kCount)> kWords = {
    "",
    "without its weight decay",
    "with the other form of weight decay (decoupled instead of coupled, or the reverse)",
    "with a step count that is one behind",
    "with a step count that is one ahead",
    "without bias correction",
    "with epsilon under the square root",
    "with the step's momentum twice in the product of momenta",
    "without keeping the largest second moment for the next step",
};

}  // namespace

double Settings::number_or(const std::string& name, double otherwise, size_t item) const {
  const auto at = numbers.find(name);
  return at == numbers.end() || item >= at->second.size() ? otherwise : at->second[item];
}

double Settings::number(const std::string& name, size_t item) const {
  const double found = number_or(name, NAN, item);
  if (std::isnan(found)) throw Undefined(fmt::format("its setting {} was not recorded", name));
  return found;
}

std::string_view words_of(Departure departure) { return kWords[static_cast<size_t>(departure)]; }

std::span<const Formula> formulas() { return kFormulas; }
const Formula* formula_of(std::string_view optimizer) {
  const auto* at = std::ranges::find(kFormulas, optimizer, &Formula::optimizer);
  return at == kFormulas.end() ? nullptr : at;
}

}  // namespace twinrun

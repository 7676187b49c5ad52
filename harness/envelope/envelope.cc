// Collects the tensors of a step, forms the envelope of the members, and measures the subject's
// distances from it.
#include "harness/envelope/envelope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backends/exec/messages.h"
#include "backends/oracle/rounding.h"
#include "harness/run/one_step.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

// A common factor by which conforming engines may differ: they compute constants (1 - beta, a rate
// times a correction) in binary32 in another order, with up to eight roundings. Along what a state
// holds, a quarter of that is allowed, because such constants affect only its change. Measured on
// three frameworks: at most four.
constexpr double kOfConstants = 8 * oracle::kUnit;

// Multiplies every parameter by 1 + u move, u uniform in (-1, 1) and different for each member.
// Replicas that hold the same bits get the same result.
States moved(const Program& program, const States& states, int64_t step, uint64_t member,
             double move) {
  States out = states;
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role != StateRole::kParameter) continue;
    for (size_t r = 0; r < out.size(); ++r) {
      Tensor& var = out[r].vars[i];
      if (r > 0 && states[r].vars[i].same_bits(states[0].vars[i])) {
        var = out[0].vars[i];
        continue;
      }
      var = var.clone();
      const RandomKey key{0x656e76656c6f70 + member, kStreamData + static_cast<uint32_t>(i)};
      for (size_t k = 0; k < var.as<float>().size(); ++k) {
        float& w = var.as<float>()[k];
        const double u =
            2 * static_cast<double>(uniform(draw(key, static_cast<uint32_t>(step), 0, k))) - 1;
        w = static_cast<float>(static_cast<double>(w) * (1 + move * u));
      }
    }
  }
  return out;
}

std::vector<float> rounded(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// Indices of the elements that are compared at a step; empty: all elements.
std::vector<int64_t> sample_of(const Compared& c, uint64_t seed, int64_t step) {
  if (c.kept == c.elements) return {};
  std::vector<int64_t> at(static_cast<size_t>(c.kept));
  const RandomKey key{seed, kStreamSample + static_cast<uint32_t>(c.id)};
  // The first `longer` stretches have one element more than the others.
  const int64_t width = c.elements / c.kept, longer = c.elements % c.kept;
  const auto stretch = [&](int64_t i) { return i * width + std::min(i, longer); };
  for (int64_t i = 0; i < c.kept; ++i) {
    const uint32_t drawn = draw(key, static_cast<uint32_t>(step), 0, static_cast<uint64_t>(i));
    const auto choices = static_cast<uint32_t>(stretch(i + 1) - stretch(i));
    at[static_cast<size_t>(i)] = stretch(i) + bounded(drawn, choices);
  }
  return at;
}

Tensor elements_of(const Tensor& t, const std::vector<int64_t>& at) {
  if (at.empty()) return t;
  Tensor out = Tensor::empty({t.dtype(), {static_cast<int64_t>(at.size())}});
  const size_t bytes = size_of(t.dtype());
  for (size_t i = 0; i < at.size(); ++i)
    std::memcpy(out.raw() + i * bytes, t.raw() + static_cast<size_t>(at[i]) * bytes, bytes);
  return out;
}

double norm_of(const Tensor& t) {
  double sum = 0;
  for (double v : as_doubles(t)) sum += v * v;
  return std::sqrt(sum);
}

bool all_finite(const std::vector<float>& a) {
  return std::ranges::all_of(a, [](float v) { return std::isfinite(v); });
}

// Adds the effect of keeping beta in binary32 (beta'): |beta' - beta|, and its share of 1 - beta.
void add_slack(double beta, SettingsSlack& slack) {
  if (!(beta > 0 && beta < 1)) return;
  const double off = std::fabs(static_cast<double>(static_cast<float>(beta)) - beta);
  slack.change += off / (1 - beta);
  slack.held += off;
}

constexpr Look kLooks[] = {Look::kDistance, Look::kSize, Look::kStored};
constexpr std::pair<Look, Look> kTogether[] = {{Look::kSize, Look::kSizes},
                                               {Look::kStored, Look::kStoreds}};

Envelope::Range& range(Envelope::Around& around, Look look) {
  return around.looks[static_cast<size_t>(look)];
}
const Envelope::Range& range(const Envelope::Around& around, Look look) {
  return around.looks[static_cast<size_t>(look)];
}

const std::vector<float>& direction(const Envelope::Around& around, Look look) {
  return look == Look::kSize ? *around.mean : *around.stored;
}

// Whether a look says anything about a value. A single number has a distance only. A value that is
// rounding alone (the gradient of a bias before batch norm, and the squares that Adam forms of it)
// has no direction: an engine with larger errors merely has more of it.
bool meaningful(const Envelope::Around& around, Look look) {
  constexpr double kKnown = 0.05;
  if (look == Look::kDistance) return true;
  if (around.mean->size() < 2 || (look == Look::kStored && !around.stored)) return false;
  const double length = norm2(direction(around, look));
  return length > 0 && std::isfinite(length) && around.known(kKnown);
}

double seen(const std::vector<float>& x, const Envelope::Around& around, Look look) {
  if (look == Look::kDistance) return gap2(x, *around.mean);
  double along = 0, squares = 0;
  const std::vector<float>&mean = *around.mean, &expected = direction(around, look);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto w = static_cast<double>(expected[i]);
    along += w * (static_cast<double>(x[i]) - static_cast<double>(mean[i]));
    squares += w * w;
  }
  return along / squares;
}

// How far a look may be off because of settings. Over all steps, the order in which constants are
// computed counts as well: a factor of the gradient is the same factor of the change, and appears
// twice in an average of squares.
double allowed_by_settings(const Envelope::Around& around, Look look) {
  if (look == Look::kDistance) return around.allowed;
  const double length = norm2(direction(around, look));
  return length > 0 ? around.allowed / length : 0;
}
double allowed_in_all_steps(const Envelope::Around& around, Look look) {
  const double settings = allowed_by_settings(around, look);
  if (!around.stored) return settings + kOfConstants;
  if (look == Look::kSize) return settings + 2 * kOfConstants;
  const double held = norm2(*around.stored);
  return settings + kOfConstants / 4 +
         (held > 0 ? 2 * kOfConstants * norm2(*around.mean) / held : 0);
}
double beyond(double shown, double allowed) { return std::max(0.0, std::fabs(shown) - allowed); }

// The effect along a direction of half an ulp in each element, either way: root of the sum of
// squares.
double rounding_along(const Envelope::Around& around, Look look) {
  const std::vector<float>& expected = direction(around, look);
  const std::vector<float>& held = around.stored ? *around.stored : *around.mean;
  double errors = 0, squares = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto w = static_cast<double>(expected[i]);
    const double error = w * static_cast<double>(held[i]);
    errors += error * error;
    squares += w * w;
  }
  return oracle::kUnit * std::sqrt(errors) / squares;
}

size_t values_per_state(const Envelope& envelope) {
  return envelope.values.size() / envelope.states;
}

// Sums a look over all states, in units of its spread at each state. The range of the sum is kept
// with the first state.
void add_ranges_over_states(Envelope& envelope) {
  if (envelope.states < 2) return;
  const auto n = static_cast<double>(envelope.members);
  const size_t stride = values_per_state(envelope);
  for (size_t v = 0; v < stride; ++v) {
    for (const auto& [look, together] : kTogether) {
      std::vector<double> sums(envelope.members, 0.0);
      bool all = true;
      for (size_t at = v; at < envelope.values.size(); at += stride) {
        const Envelope::Around& around = envelope.values[at];
        const double spread = range(around, look).spread;
        all = all && around.finite && spread > 0;
        for (size_t m = 0; all && m < sums.size(); ++m)
          sums[m] += around.seen[static_cast<size_t>(look)][m] / spread;
      }
      if (!all) continue;
      double squares = 0, largest = 0;
      for (const double sum : sums) {
        squares += sum * sum;
        largest = std::max(largest, std::fabs(sum));
      }
      // Sums over independent states grow like the root of their number: half of that is a floor,
      // for members that happen to agree.
      const double floor = std::sqrt(static_cast<double>(envelope.states)) / 2;
      range(envelope.values[v], together) = {
          std::max(floor, std::sqrt(squares / (n - 1) * (1 + 1 / n))), std::max(largest, floor)};
    }
  }
}

}  // namespace

bool Envelope::Around::known(double share) const { return looks[0].spread < share * norm2(*mean); }

double norm2(const std::vector<float>& a) {
  double sum = 0;
  for (float v : a) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

double gap2(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

std::vector<Compared> compared_tensors(const Program& program, int64_t most) {
  std::vector<Compared> out;
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const Output& output = program.outputs[o];
    if (!exec::is_asked_for(output)) continue;
    const int64_t elements = program.graph.type(output.id).elements();
    out.push_back({output.name, false, o, output.id, elements, elements});
  }
  for (size_t i = 0; i < program.state.size(); ++i) {
    const StateVar& var = program.state[i];
    if (var.next != kNoValue && var.type.dtype == DType::kF32)
      out.push_back({var.name, true, i, var.next, var.type.elements(), var.type.elements()});
  }
  share_elements(out, most);
  return out;
}

// Tensors that do not fit share equally what the smaller ones leave.
void share_elements(std::vector<Compared>& tensors, int64_t most) {
  std::vector<int64_t> sizes;
  for (const Compared& c : tensors) sizes.push_back(c.elements);
  std::ranges::sort(sizes);
  int64_t share = kAllElements;
  for (size_t i = 0; i < sizes.size(); ++i) {
    share = most / static_cast<int64_t>(sizes.size() - i);
    if (sizes[i] > share) break;
    most -= sizes[i];
    share = kAllElements;
  }
  for (Compared& c : tensors) c.kept = std::min(c.elements, std::max<int64_t>(1, share));
}

double weight_move(const Program& program, int operand_bits) {
  constexpr double kFourUlps = 0x1p-22;
  if (operand_bits >= kF32Bits) return kFourUlps;
  double weights = 0;
  for (const StateVar& var : program.state) {
    if (var.role == StateRole::kParameter) weights += static_cast<double>(var.type.elements());
  }
  const double crosses = 85 * std::exp2(operand_bits - kBf16Bits);
  return std::clamp(8 / (crosses * weights), kFourUlps, std::exp2(-1 - operand_bits));
}

SettingsSlack settings_slack(const Experiment& e) {
  using Kind = OptimizerSpec::Kind;
  const OptimizerSpec& o = e.forward.optimizer;
  SettingsSlack slack;
  switch (o.kind) {
    case Kind::kAdam:
    case Kind::kAdamw:
    case Kind::kAdamax:
    case Kind::kLamb:
      add_slack(o.beta1, slack);
      add_slack(o.beta2, slack);
      break;
    case Kind::kAdadelta:
    case Kind::kRmsprop:
      add_slack(o.rho, slack);
      break;
    default:
      break;
  }
  add_slack(o.ema, slack);
  SettingsSlack statistics;
  for (const LayerSpec& layer : e.scenario.model.layers) {
    SettingsSlack own;
    if (layer.kind == "batch_norm") add_slack(layer.momentum, own);
    statistics.change = std::max(statistics.change, own.change);
    statistics.held = std::max(statistics.held, own.held);
  }
  return {std::max(slack.change, statistics.change), std::max(slack.held, statistics.held)};
}

Result<Observed> observe(const Experiment& e, Engine* engine, const Program& asked,
                         const std::vector<Compared>& tensors,
                         const std::vector<ProbedState>& states, uint64_t member, double move) {
  Observed out;
  out.states = states.size();
  out.replicas = static_cast<size_t>(asked.sharding.cores);
  for (const ProbedState& at : states) {
    StepResult r{at.states, at.after, at.outputs};
    if (engine != nullptr) {
      TWINRUN_ASSIGN(r, one_step(e, *engine, at.step,
                                 member % 2 == 0 ? at.states
                                                 : moved(asked, at.states, at.step, member, move)));
    }
    for (const Compared& c : tensors) {
      const size_t first = out.values.size();
      const std::vector<int64_t> sample = sample_of(c, e.scenario.seed, at.step);
      for (size_t k = 0; k < out.replicas; ++k) {
        const auto value = [&](size_t replica) -> const Tensor& {
          return c.is_state ? r.after[replica].vars[c.index] : r.outputs[replica][c.index];
        };
        const bool shared =
            k > 0 && value(k).same_bits(value(0)) &&
            (!c.is_state || r.before[k].vars[c.index].same_bits(r.before[0].vars[c.index]));
        if (shared) {
          out.values.push_back(out.values[first]);
          continue;
        }
        const auto floats = [](const std::vector<double>& of) {
          return std::make_shared<const std::vector<float>>(of.begin(), of.end());
        };
        const Tensor after = elements_of(value(k), sample);
        const std::vector<double> now = as_doubles(after);
        out.values.push_back(
            {c.is_state ? floats(change(elements_of(r.before[k].vars[c.index], sample), after))
                        : floats(now),
             c.is_state && member <= 1 ? floats(now) : nullptr, norm_of(after)});
      }
    }
  }
  return out;
}

Envelope envelope_of(const std::vector<Observed>& members, const SettingsSlack& slack) {
  Envelope out;
  out.members = members.size();
  out.states = members.front().states;
  const auto n = static_cast<double>(members.size());
  const Observed& one = members.front();
  for (size_t v = 0; v < one.values.size(); ++v) {
    const size_t first = v - v % one.replicas;
    const bool shared = v != first && std::ranges::all_of(members, [&](const Observed& m) {
                          return m.values[v].data == m.values[first].data;
                        });
    if (shared) {
      out.values.push_back(out.values[first]);
      continue;
    }
    std::vector<double> sum(one.values[v].data->size(), 0.0);
    double size = 0;
    Envelope::Around around;
    for (const Observed& m : members) {
      const std::vector<float>& x = *m.values[v].data;
      for (size_t i = 0; i < x.size(); ++i) sum[i] += static_cast<double>(x[i]);
      size = std::max(size, m.values[v].size);
      around.finite = around.finite && all_finite(x);
    }
    for (double& s : sum) s /= n;
    around.mean = std::make_shared<const std::vector<float>>(rounded(sum));
    around.stored = one.values[v].stored;
    if (around.stored)
      around.allowed = slack.change * norm2(*around.mean) + slack.held * norm2(*around.stored);
    for (const Look look : kLooks) {
      if (!meaningful(around, look)) continue;
      double squares = 0, largest = 0;
      std::vector<double>& shown = around.seen[static_cast<size_t>(look)];
      for (const Observed& m : members) {
        const double d = seen(*m.values[v].data, around, look);
        shown.push_back(d);
        squares += d * d;
        largest = std::max(largest, std::fabs(d));
      }
      // Another engine's distance from the mean of n members has 1 + 1/n times a member's variance.
      // The floor covers engines that round differently where all members round alike.
      const double floor = look == Look::kDistance ? oracle::kUnit * size
                           : look == Look::kSize
                               ? std::max(kOfConstants, rounding_along(around, look))
                               : std::max(kOfConstants / 4, rounding_along(around, look));
      range(around, look) = {std::sqrt(squares / (n - 1) * (1 + 1 / n) + floor * floor),
                             std::max(largest, floor)};
    }
    out.values.push_back(std::move(around));
  }
  add_ranges_over_states(out);
  return out;
}

std::vector<Distance> distances(const Observed& subject, const Envelope& envelope) {
  std::vector<Distance> out;
  for (size_t v = 0; v < subject.values.size(); ++v) {
    const size_t first = v - v % subject.replicas;
    const Envelope::Around& around = envelope.values[v];
    if (v != first && subject.values[v].data == subject.values[first].data &&
        around.mean == envelope.values[first].mean)
      continue;
    if (!around.finite) continue;
    const std::vector<float>& x = *subject.values[v].data;
    const bool finite = all_finite(x), known = around.known(0.5);
    for (const Look look : kLooks) {
      if (look != Look::kDistance && (!finite || !meaningful(around, look))) continue;
      const Envelope::Range& conforming = range(around, look);
      Distance d{v, look, 0, conforming.spread, 0, 0, known};
      if (!finite) {
        d.distance = d.ratio = d.of_largest = std::numeric_limits<double>::infinity();
      } else if (d.distance = seen(x, around, look); d.distance != 0) {
        const double excess = beyond(d.distance, allowed_by_settings(around, look));
        d.ratio = excess / conforming.spread;
        d.of_largest = excess / conforming.largest;
      }
      out.push_back(d);
    }
    for (const auto& [look, together] : kTogether) {
      const Envelope::Range& conforming = range(around, together);
      if (conforming.spread == 0) continue;
      Distance d{v, together, 0, 0, 0, 0};
      double sum = 0, allowed = 0;
      for (size_t at = v; at < subject.values.size(); at += values_per_state(envelope)) {
        const Envelope::Around& there = envelope.values[at];
        if (!all_finite(*subject.values[at].data)) continue;
        const double shown = seen(*subject.values[at].data, there, look);
        sum += shown / range(there, look).spread;
        allowed += allowed_in_all_steps(there, look) / range(there, look).spread;
        d.distance += shown / static_cast<double>(envelope.states);
      }
      d.ratio = beyond(sum, allowed) / conforming.spread;
      d.of_largest = beyond(sum, allowed) / conforming.largest;
      d.spread = d.ratio > 0 ? std::fabs(d.distance) / d.ratio : 0;
      out.push_back(d);
    }
  }
  return out;
}

}  // namespace twinrun

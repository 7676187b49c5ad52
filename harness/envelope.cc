#include "harness/envelope.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/one_step.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

constexpr double kUnit = 0x1p-24;  // of binary32's rounding

// Every parameter times 1 + u move, u uniform in (-1, 1), another u for each member; the same on replicas that are the same.
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

double norm_of(const Tensor& t) {
  double sum = 0;
  for (double v : as_doubles(t)) sum += v * v;
  return std::sqrt(sum);
}

bool all_finite(const std::vector<float>& a) {
  return std::ranges::all_of(a, [](float v) { return std::isfinite(v); });
}

}  // namespace

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

std::vector<Compared> compared_tensors(const Program& program) {
  std::vector<Compared> out;
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const Output& output = program.outputs[o];
    if (output.name.ends_with("loss") || output.name.ends_with(".grad"))
      out.push_back({output.name, false, o, output.id});
  }
  for (size_t i = 0; i < program.state.size(); ++i) {
    const StateVar& var = program.state[i];
    if (var.next != kNoValue && var.type.dtype == DType::kF32)
      out.push_back({var.name, true, i, var.next});
  }
  return out;
}

double weight_move(const Program& program, DotPrecision precision) {
  constexpr double kFourUlps = 0x1p-22, kOfBf16 = 0x1p-9;
  if (precision != DotPrecision::kBf16) return kFourUlps;
  double weights = 0;
  for (const StateVar& var : program.state) {
    if (var.role == StateRole::kParameter) weights += static_cast<double>(var.type.elements());
  }
  return std::clamp(8 / (85 * weights), kFourUlps, kOfBf16);
}

Result<Observed> observe(const Experiment& e, Engine* engine, const Program& asked,
                         const std::vector<MatchState>& states, uint64_t member, double move) {
  const std::vector<Compared> tensors = compared_tensors(asked);
  Observed out;
  out.replicas = static_cast<size_t>(asked.sharding.cores);
  for (const MatchState& at : states) {
    StepResult r{at.states, at.after, at.outputs};
    if (engine != nullptr) {
      TWINRUN_ASSIGN(
          r, one_step(e, *engine, at.step,
                      member % 2 == 0 ? at.states : moved(asked, at.states, at.step, member, move)));
    }
    for (const Compared& c : tensors) {
      const size_t first = out.values.size();
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
        const std::vector<double> v =
            c.is_state ? change(r.before[k].vars[c.index], value(k)) : as_doubles(value(k));
        out.values.push_back(
            {std::make_shared<const std::vector<float>>(rounded(v)), norm_of(value(k))});
      }
    }
  }
  return out;
}

Envelope envelope_of(const std::vector<Observed>& members) {
  Envelope out;
  out.members = members.size();
  const auto n = static_cast<double>(members.size());
  const size_t replicas = members.front().replicas;
  for (size_t v = 0; v < members.front().values.size(); ++v) {
    const size_t first = v - v % replicas;
    const bool shared = v != first && std::ranges::all_of(members, [&](const Observed& m) {
                          return m.values[v].data == m.values[first].data;
                        });
    if (shared) {
      out.mean.push_back(out.mean[first]);
      out.spread.push_back(out.spread[first]);
      out.largest.push_back(out.largest[first]);
      out.finite.push_back(out.finite[first]);
      continue;
    }
    std::vector<double> sum(members.front().values[v].data->size(), 0.0);
    double size = 0;
    bool finite = true;
    for (const Observed& m : members) {
      const std::vector<float>& x = *m.values[v].data;
      for (size_t i = 0; i < x.size(); ++i) sum[i] += static_cast<double>(x[i]);
      size = std::max(size, m.values[v].size);
      finite = finite && all_finite(x);
    }
    for (double& s : sum) s /= n;
    const auto mean = std::make_shared<const std::vector<float>>(rounded(sum));
    double squares = 0, largest = 0;
    for (const Observed& m : members) {
      const double d = gap2(*m.values[v].data, *mean);
      squares += d * d;
      largest = std::max(largest, d);
    }
    // Another engine's distance from the mean of n has 1 + 1/n times a member's variance; and where all members round alike,
    // another one may still round otherwise.
    const double floor = kUnit * size;
    out.mean.push_back(mean);
    out.spread.push_back(std::sqrt(squares / (n - 1) * (1 + 1 / n) + floor * floor));
    out.largest.push_back(std::max(largest, floor));
    out.finite.push_back(finite);
  }
  return out;
}

std::vector<Distance> distances(const Observed& subject, const Envelope& around) {
  std::vector<Distance> out;
  for (size_t v = 0; v < subject.values.size(); ++v) {
    const size_t first = v - v % subject.replicas;
    if (v != first && subject.values[v].data == subject.values[first].data &&
        around.mean[v] == around.mean[first])
      continue;
    if (!around.finite[v]) continue;
    const std::vector<float>& x = *subject.values[v].data;
    Distance d{v, gap2(x, *around.mean[v]), 0, 0};
    if (!all_finite(x)) {
      d.distance = d.ratio = d.of_largest = std::numeric_limits<double>::infinity();
    } else if (d.distance > 0) {
      d.ratio = d.distance / around.spread[v];
      d.of_largest = d.distance / around.largest[v];
    }
    out.push_back(d);
  }
  return out;
}

}  // namespace twinrun

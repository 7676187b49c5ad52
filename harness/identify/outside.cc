// Describes tensors outside the envelope: signatures of their elements, cores, and whether updates
// follow from the reported gradients.
#include "harness/identify/outside.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/oracle/rounding.h"
#include "harness/envelope/screen_steps.h"
#include "harness/identify/identify_fit.h"
#include "harness/run/one_step.h"
#include "harness/tensors/signatures.h"
#include "program/base/distributions.h"

namespace twinrun {
namespace {

// As a share of what a state holds; more is no rounding of binary32 (an update's constants may be
// as far off).
constexpr double kRoundingToOneSide = 0x1p-16;
constexpr size_t kMaxDescribed = 48;  // a signature looks at every element
constexpr size_t kMaxOthers = 24;
// What constants computed in another order change in an update, and the rounding of what is stored:
// as in envelope.cc.
constexpr double kOfChange = 16 * oracle::kUnit, kOfStored = 4 * oracle::kUnit;
// An update that is farther than this from what follows from its gradient is itself wrong, too.
constexpr double kFarFromReported = 1e-2;

class Describer {
 public:
  explicit Describer(const OutsideView& v) : v_(v) {}

  TensorMismatch mismatch(const Distance& d) const {
    const Compared& c = v_.tensors[place_of(d.value)];
    const std::vector<float>& expected = *v_.conforming.values[d.value].mean;
    TensorMismatch m;
    m.tensor = c.tensor;
    m.is_state = c.is_state;
    m.replica = static_cast<int>(d.value % v_.subject.replicas);
    const size_t first = d.value - static_cast<size_t>(m.replica);
    for (size_t k = static_cast<size_t>(m.replica); k < v_.subject.replicas; ++k) {
      if (v_.subject.values[first + k].data == v_.subject.values[d.value].data)
        m.cores.push_back(static_cast<int>(k));
    }
    m.step = step_of(d.value);
    m.distance = std::fabs(d.distance);
    m.spread = d.spread;
    m.ratio = d.ratio;
    m.known = d.known;
    m.all_steps = of_all_steps(d.look);
    m.expected = norm2(expected);
    m.relative = d.look != Look::kDistance ? m.distance
                 : m.expected > 0          ? d.distance / m.expected
                                           : std::numeric_limits<double>::infinity();
    return m;
  }

  // Finds the signature of the tensor. Returns whether any element is outside by itself.
  bool signature(const Distance& d, TensorMismatch& m) const {
    const Compared& c = v_.tensors[place_of(d.value)];
    const Value &is = v_.subject.values[d.value], &exact = v_.exact.values[d.value];
    const std::vector<float>& expected = *v_.conforming.values[d.value].mean;
    const size_t n = is.data->size();
    std::vector<double> allowed(n), from_exact(n);
    reach(d.value, allowed, from_exact);
    WrongTensor w;
    if (c.kept == c.elements)
      w.dims = c.is_state ? v_.asked.state[c.index].type.dims : v_.asked.graph.type(c.id).dims;
    w.axes = axis_names(c.tensor, w.dims);
    const std::vector<double> got(is.data->begin(), is.data->end()),
        mean(expected.begin(), expected.end());
    for (size_t i = 0; i < n; ++i) {
      if (oracle::ratio(got[i], {mean[i], allowed[i]}) > 1)
        w.wrong.push_back(static_cast<int64_t>(i));
    }
    w.got = got;
    w.expected = mean;
    w.allowed = allowed;
    w.from_exact = from_exact;
    std::vector<float> left_expected;
    if (is.stored && exact.stored) {
      w.left = *is.stored;
      // Where the mean of conforming engines would leave the state, from the subject's start.
      left_expected.resize(n);
      for (size_t i = 0; i < n; ++i)
        left_expected[i] = (*is.stored)[i] - (*is.data)[i] + expected[i];
      w.left_expected = left_expected;
    }
    const size_t core = d.value % v_.subject.replicas, first = d.value - core;
    if (v_.parts != nullptr && !c.is_state && n > 1) {
      for (size_t k = 0; k < v_.subject.replicas; ++k)
        w.parts.push_back(*v_.parts->values[first + k].data);
    }
    std::vector<std::vector<float>> kept;
    kept.reserve(kMaxOthers);
    others(d.value, w, kept);
    const Signature s = signature_of(w);
    m.pattern = s.signature;
    m.elements = s.elements;
    return !w.wrong.empty();
  }

  // Describes a tensor of which no element is outside by itself.
  static void along(const Distance& d, TensorMismatch& m) {
    if (d.look == Look::kSize || d.look == Look::kSizes) {
      m.pattern = fmt::format("{:.8g} times what was expected", 1 + d.distance);
    } else if (d.look != Look::kDistance) {
      m.pattern = fmt::format("{}values that lie {:.2g} of their size {} zero",
                              m.distance < kRoundingToOneSide ? "rounding to one side: " : "",
                              m.distance, d.distance < 0 ? "nearer to" : "farther from");
    }
  }

  // Where a tensor is computed; a gradient, before it is reduced and clipped (those ops follow the
  // order of parameters, not of the backward pass).
  ValueId order(const Distance& d) const {
    const Compared& c = v_.tensors[place_of(d.value)];
    const ValueId own = c.tensor.ends_with(".grad") ? v_.asked.graph.find(c.tensor) : kNoValue;
    return own == kNoValue ? c.id : own;
  }
  int64_t step_of(size_t value) const {
    return v_.states[value / v_.subject.replicas / v_.tensors.size()].step;
  }
  size_t place_of(size_t value) const { return value / v_.subject.replicas % v_.tensors.size(); }

 private:
  // How far each element of a conforming engine may be from the mean of the members, by the same
  // rule as for a whole tensor. A sum is rounded like its terms, and the terms of one tensor's
  // elements are alike: each element may be off by their root mean square.
  void reach(size_t value, std::vector<double>& allowed, std::vector<double>& from_exact) const {
    const size_t n = allowed.size();
    const auto members = static_cast<double>(v_.members.size());
    const Envelope::Around& around = v_.conforming.values[value];
    const std::vector<float>&mean = *around.mean, &exact = *v_.exact.values[value].data;
    const double quantile = student_upper(members - 1, v_.false_alarm / 2 / static_cast<double>(n));
    std::vector<double> squares(n, 0), largest(n, 0), off(n, 0);
    double all = 0, all_off = 0;
    for (const Observed& m : v_.members) {
      const std::vector<float>& x = *m.values[value].data;
      for (size_t i = 0; i < n; ++i) {
        const double d = static_cast<double>(x[i]) - static_cast<double>(mean[i]);
        squares[i] += d * d;
        largest[i] = std::max(largest[i], std::fabs(d));
        off[i] =
            std::max(off[i], std::fabs(static_cast<double>(x[i]) - static_cast<double>(exact[i])));
        all += d * d;
      }
    }
    for (const double x : off) all_off += x * x;
    const double scale = (1 + 1 / members) / (members - 1);
    const double typical = all * scale / static_cast<double>(n),
                 typical_off = std::sqrt(all_off / static_cast<double>(n));
    const double size = norm2(mean), settings = size > 0 ? around.allowed / size : 0;
    for (size_t i = 0; i < n; ++i) {
      const double held =
          std::fabs(static_cast<double>(around.stored ? (*around.stored)[i] : mean[i]));
      const double spread =
          std::sqrt(squares[i] * scale + typical + oracle::kUnit * held * oracle::kUnit * held);
      allowed[i] = std::max(quantile * spread, kBeyondMembers * largest[i]) +
                   settings * std::fabs(static_cast<double>(mean[i]));
      // The parts of a sum have errors of their own, even where those of the sum cancel.
      from_exact[i] = allowed[i] + kBeyondMembers * off[i] + quantile * typical_off;
    }
  }

  // Tensors that may stand in its place: those of the step before, and others of the same shape.
  void others(size_t value, WrongTensor& w, std::vector<std::vector<float>>& kept) const {
    const size_t place = place_of(value), core = value % v_.subject.replicas;
    const size_t one_step = v_.tensors.size() * v_.subject.replicas;
    const Compared& c = v_.tensors[place];
    const auto add = [&](std::string text, const std::vector<float>& values) {
      if (w.others.size() < kMaxOthers) w.others.push_back({std::move(text), values});
    };
    const int64_t step = step_of(value);
    if (!c.is_state && c.kept == c.elements) {
      if (const auto was = v_.before.find(step); was != v_.before.end())
        add("what was expected at the step before (stale)",
            *was->second.values[value % one_step].data);
      if (const auto was = v_.gave.find(step); was != v_.gave.end())
        add("what it was at the step before (stale)", *was->second.values[value % one_step].data);
      if (const auto was = v_.gave.find(step); was != v_.gave.end()) {
        const std::vector<float>& earlier = *was->second.values[value % one_step].data;
        std::vector<float>& sum = kept.emplace_back(*v_.exact.values[value].data);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += earlier[i];
        add("what was expected plus what it was at the step before: gradients add up over steps, "
            "as without zero_grad()",
            sum);
      }
    }
    for (size_t other = 0; other < v_.tensors.size(); ++other) {
      const Compared& u = v_.tensors[other];
      if (other == place || u.is_state != c.is_state || u.kept != u.elements ||
          c.kept != c.elements || w.dims.empty())
        continue;
      const Dims& dims =
          u.is_state ? v_.asked.state[u.index].type.dims : v_.asked.graph.type(u.id).dims;
      if (dims != w.dims) continue;
      const size_t there = value / one_step * one_step + other * v_.subject.replicas + core;
      const Value& expected = v_.exact.values[there];
      if (!c.is_state) {
        add("what was expected of " + u.tensor, *expected.data);
        continue;
      }
      if (!expected.stored || w.left.empty() || kept.size() == kept.capacity()) continue;
      std::vector<float>& change = kept.emplace_back(w.left.size());
      for (size_t i = 0; i < change.size(); ++i)
        change[i] = (*expected.stored)[i] - (w.left[i] - static_cast<float>(w.got[i]));
      add("what was expected of " + u.tensor, change);
    }
  }

  const OutsideView& v_;
};

}  // namespace

std::vector<TensorMismatch> describe(const OutsideView& v, const std::vector<Distance>& outside) {
  const Describer describer(v);
  // What a step shows by itself is reported for that step; a look over all steps only where none
  // does.
  const size_t stride = v.tensors.size() * v.subject.replicas;
  std::vector<bool> alone(stride);
  for (const Distance& d : outside) {
    if (!of_all_steps(d.look)) alone[d.value % stride] = true;
  }
  std::vector<Distance> reported;
  for (const Distance& d : outside) {
    if (of_all_steps(d.look) && alone[d.value % stride]) continue;
    // Of the looks at one value, keep the one with the largest ratio.
    if (!reported.empty() && reported.back().value == d.value) {
      if (d.ratio > reported.back().ratio) reported.back() = d;
    } else {
      reported.push_back(d);
    }
  }
  // Sort by step, then by the order of computation: later values may follow from earlier ones.
  std::ranges::stable_sort(reported, [&](const Distance& a, const Distance& b) {
    return std::pair(describer.step_of(a.value), describer.order(a)) <
           std::pair(describer.step_of(b.value), describer.order(b));
  });
  std::vector<TensorMismatch> out;
  for (const Distance& d : reported) {
    out.push_back(describer.mismatch(d));
    const bool described = out.size() <= kMaxDescribed && describer.signature(d, out.back());
    if (!described) Describer::along(d, out.back());
  }
  return out;
}

namespace {

// Replaces each gradient that an update takes by the one that the subject reported.
class Reported : public OpHooks {
 public:
  // `outputs` in the order of `asked`.
  Reported(const Program& program, const Program& asked, const StepOutputs& outputs)
      : outputs_(outputs) {
    for (size_t o = 0; o < asked.outputs.size(); ++o) {
      const Output* own = program.find_output(asked.outputs[o].name);
      if (own != nullptr && own->name.ends_with(".grad")) at_[own->id] = o;
    }
  }
  bool watches(const Program&, ValueId id, int64_t) override { return at_.contains(id); }
  void after(const OpSite& site, const std::vector<Tensor>&, Tensor& output) override {
    put(site, std::max(0, site.replica), output);
  }
  void after_copy(const OpSite& site, const std::vector<Tensor>&, Tensor& copy) override {
    put(site, site.replica, copy);
  }

 private:
  void put(const OpSite& site, int replica, Tensor& output) const {
    const Tensor& given = outputs_[static_cast<size_t>(replica)][at_.at(site.id)];
    if (given.valid() && given.type() == output.type()) output = given.clone();
  }
  const StepOutputs& outputs_;
  std::map<ValueId, size_t> at_;
};

}  // namespace

Result<ProbedState> updated_as_reported(const Experiment& e, const Program& program,
                                        const Program& asked, const Capabilities& declared,
                                        const ProbedState& state, int threads) {
  TWINRUN_ASSIGN(const auto engine, reference_of(e, program, declared, threads));
  StepFeed feed(e, program);
  TWINRUN_ASSIGN(const StepInputs inputs, feed.inputs(state.step));
  ProbedState out{state.step, state.states, state.states, {}};
  Reported hooks(program, asked, state.outputs);
  TWINRUN_RETURN_IF_ERROR(
      engine->step(state.step, out.after, inputs, out.outputs, nullptr, &hooks));
  return out;
}

namespace {

// The distance of an update from the one that follows from the reported gradients, in units of what
// rounding and binary32 settings allow: up to 1 it is that update.
double off_from_reported(const Value& is, const std::vector<float>& expected, double settings) {
  if (!std::ranges::all_of(*is.data, [](float x) { return std::isfinite(x); }))
    return std::numeric_limits<double>::infinity();
  const double allowed =
      kOfChange * norm2(expected) + (is.stored ? kOfStored * norm2(*is.stored) : 0) + settings;
  const double gap = gap2(*is.data, expected);
  return gap == 0 ? 0 : gap / allowed;
}

}  // namespace

void tell_updates(const OutsideView& v, const Observed& updated, int64_t step,
                  std::vector<TensorMismatch>& reported) {
  const size_t stride = v.tensors.size() * v.subject.replicas;
  // Whether the gradient that a state's update takes is wrong itself.
  const auto gradient_is_outside = [&](const std::string& state) {
    return std::ranges::any_of(reported, [&](const TensorMismatch& g) {
      if (g.step != step || !g.tensor.ends_with(".grad")) return false;
      const std::string of = g.tensor.substr(0, g.tensor.size() - 5);
      return state == of || state.starts_with(of + ".");
    });
  };
  for (TensorMismatch& m : reported) {
    if (m.step != step || !m.is_state) continue;
    const auto at = std::ranges::find(v.states, step, &ProbedState::step);
    const auto place = std::ranges::find(v.tensors, m.tensor, &Compared::tensor);
    const size_t here = static_cast<size_t>(place - v.tensors.begin()) * v.subject.replicas +
                        static_cast<size_t>(m.replica);
    const size_t value = static_cast<size_t>(at - v.states.begin()) * stride + here;
    const std::vector<float>& expected = *updated.values[here].data;
    const double off =
        off_from_reported(v.subject.values[value], expected, v.conforming.values[value].allowed);
    m.follows = off <= 1;
    m.wrong_besides =
        !m.follows && std::isfinite(off) &&
        gap2(*v.subject.values[value].data, expected) > kFarFromReported * norm2(expected) &&
        gradient_is_outside(m.tensor);
  }
}

double updates_off(const Program& asked, const std::vector<Compared>& tensors,
                   const Observed& subject, size_t state, const Observed& updated,
                   const SettingsSlack& slack) {
  double most = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Compared& c = tensors[t];
    if (!c.is_state) continue;
    const StateRole role = asked.state[c.index].role;
    if (role != StateRole::kParameter && role != StateRole::kSlot) continue;
    for (size_t k = 0; k < subject.replicas; ++k) {
      const size_t here = t * subject.replicas + k;
      const Value& is = subject.values[state * tensors.size() * subject.replicas + here];
      const std::vector<float>& expected = *updated.values[here].data;
      const double settings =
          slack.change * norm2(expected) + (is.stored ? slack.held * norm2(*is.stored) : 0);
      const double off = off_from_reported(is, expected, settings);
      // NaN: the expected update is not finite, and the subject's is.
      most = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(most, off);
    }
  }
  return most;
}

}  // namespace twinrun

// Connectionist temporal classification: the loss by the recursion over the extended target, in
// logarithms, and its gradient.
#include <algorithm>
#include <array>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

// log(exp(a) + exp(b) + ...) as max + log(sum of exp(x - max)). A weight is the exponential's share
// in the sum. To first order in the unit, the differences err by their own size times the weight,
// the exponentials together by that of one, and the sum of three by two units; the logarithm and
// the addition of the maximum err by their results.
template <size_t N>
Estimate log_sum(const Arithmetic& m, const std::array<Estimate, N>& of) {
  double top = -kInfinity;
  for (const Estimate& e : of) {
    if (e.value != e.value || e.value == kInfinity) return {std::nan(""), kInfinity};
    top = std::fmax(top, e.value);
  }
  if (top == -kInfinity) return {top, 0};
  double total = 0;
  for (const Estimate& e : of) total += std::exp(e.value - top);
  double given = 0, differences = 0;
  for (const Estimate& e : of) {
    const double weight = std::exp(e.value - top) / total;
    if (e.value == -kInfinity) continue;
    given = std::fmax(given, e.radius);
    differences += weight * (top - e.value);
  }
  const double log = std::log(total), value = top + log;
  // One term alone is 0 + max.
  if (total == 1 && given == 0 && m.holds(value)) return {value, N * m.smallest};
  const double units = differences + m.elementary + (N - 1) + m.elementary * log + std::fabs(value);
  return {value, given + units * m.unit * oracle::kOutward + N * m.smallest};
}

// One sample: its target between blanks, and the scores of the labels at each time.
struct Sample {
  const Array* scores = nullptr;  // [time, samples, classes]
  int64_t index = 0, times = 0, labels = 0;
  Checked<int64_t> extended;  // blank, label, blank, ..., label, blank
  int64_t places() const { return 2 * labels + 1; }
  int64_t label(int64_t place) const { return extended[static_cast<size_t>(place)]; }
  int64_t at(int64_t t, int64_t c) const {
    return (t * scores->dims[1] + index) * scores->dims[2] + c;
  }
  Estimate score(int64_t t, int64_t place) const { return scores->at(at(t, label(place))); }
  // Whether a path may go from `place` to the label after next.
  bool skips(int64_t place) const {
    return place + 2 < places() && label(place) != label(place + 2);
  }
};
Checked<int64_t> lengths_of(const Arguments& a, size_t position, int64_t samples) {
  const Value* v = a.find(position);
  Checked<int64_t> out = v != nullptr && v->kind == Value::Kind::kTensor
                             ? integers_of(v->tensor)
                             : a.integers(position, {}, {});
  if (std::ssize(out) != samples) throw Undefined("lengths of another number of samples");
  return out;
}
// Arguments log_probs, targets, input_lengths and target_lengths from `first` on.
Checked<Sample> samples_of(const Arguments& a, size_t first, const Array& scores, int64_t blank) {
  if (a.view(first).element != Element::kF32 && a.view(first).element != Element::kF64)
    throw Undefined("a CTC loss of half precision");
  if (scores.dims.size() != 3) throw Undefined("scores of another rank");
  const int64_t samples = scores.dims[1], classes = scores.dims[2];
  const TensorView& view = a.view(first + 1);
  const Checked<int64_t> targets = integers_of(view);
  const Checked<int64_t> times = lengths_of(a, first + 2, samples);
  const Checked<int64_t> labels = lengths_of(a, first + 3, samples);
  const bool padded = view.dims.size() == 2;
  if (view.dims.size() > 2 || (padded && view.dims[0] != samples))
    throw Undefined("targets of another shape");
  Checked<Sample> out;
  int64_t next = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const auto u = static_cast<size_t>(i);
    Sample s{&scores, i, times[u], labels[u], {blank}};
    const int64_t begin = padded ? i * view.dims[1] : next;
    if (s.times < 0 || s.times > scores.dims[0] || s.labels < 0 || blank < 0 || blank >= classes ||
        begin + s.labels > std::ssize(targets) || (padded && s.labels > view.dims[1])) {
      throw Undefined("lengths beyond the scores or targets");
    }
    next += s.labels;
    for (int64_t k = begin; k < begin + s.labels; ++k) {
      const int64_t label = targets[static_cast<size_t>(k)];
      if (label < 0 || label >= classes) throw Undefined("a target that is no class");
      s.extended.push_back(label);
      s.extended.push_back(blank);
    }
    out.push_back(std::move(s));
  }
  return out;
}

constexpr Estimate kNever{-kInfinity, 0};  // the logarithm of a probability of 0

// alpha at time t and each place: the logarithm of the probability of all paths to there.
using Paths = Checked<Estimate>;
Paths forward(const Arithmetic& m, const Sample& s, int64_t t, const Paths& before) {
  Paths out(static_cast<size_t>(s.places()), kNever);
  for (int64_t p = 0; p < s.places(); ++p) {
    const auto u = static_cast<size_t>(p);
    if (t == 0) {
      if (p < 2) out[u] = s.score(0, p);
      continue;
    }
    const bool skip = p > 1 && s.skips(p - 2);
    out[u] = m.add(
        log_sum<3>(m, {before[u], p > 0 ? before[u - 1] : kNever, skip ? before[u - 2] : kNever}),
        s.score(t, p));
  }
  return out;
}
Paths backward(const Arithmetic& m, const Sample& s, int64_t t, const Paths& after) {
  Paths out(static_cast<size_t>(s.places()), kNever);
  for (int64_t p = 0; p < s.places(); ++p) {
    const auto u = static_cast<size_t>(p);
    if (t == s.times - 1) {
      if (p + 2 >= s.places()) out[u] = s.score(t, p);
      continue;
    }
    out[u] = m.add(log_sum<3>(m, {after[u], p + 1 < s.places() ? after[u + 1] : kNever,
                                  s.skips(p) ? after[u + 2] : kNever}),
                   s.score(t, p));
  }
  return out;
}

Expected ctc_loss(const Arguments& a) {
  const Array scores = a.array(0, "log_probs");
  const Checked<Sample> samples = samples_of(a, 0, scores, a.integer(4, "blank", 0));
  Array loss = empty_array({std::ssize(samples)});
  // What belongs to no path is not initialised, and taken as given.
  Array alpha = a.result(1).data != nullptr ? a.result_array(1) : filled(a.result(1).dims, 0);
  alpha.radius = Plane(alpha.value.size(), 0.0);
  if (alpha.dims.size() != 3 || alpha.dims[0] != loss.size() || alpha.dims[1] < scores.dims[0])
    throw Undefined("probabilities of another shape");
  for (const Sample& s : samples) {
    if (s.places() > alpha.dims[2]) throw Undefined("probabilities of another shape");
    Paths now;
    for (int64_t t = 0; t < s.times; ++t) {
      now = forward(a.m, s, t, now);
      for (int64_t p = 0; p < s.places(); ++p) {
        alpha.set((s.index * alpha.dims[1] + t) * alpha.dims[2] + p, now[static_cast<size_t>(p)]);
      }
    }
    Estimate all = s.labels == 0 ? exactly(0) : kNever;
    if (s.times > 0) {
      const auto last = static_cast<size_t>(s.places() - 1);
      all = log_sum<2>(a.m, {now[last], last > 0 ? now[last - 1] : kNever});
    }
    loss.set(s.index, {-all.value, all.radius});
  }
  Expected e(std::move(loss));
  e.results.emplace_back(std::move(alpha));
  return e;
}

// Whether the scores of a time are the logarithms of numbers that add up to 1, as far as the
// roundings of a logarithm of a softmax allow; in half precision, if it holds all of them.
bool normalised(const Arithmetic& m, const Sample& s, int64_t t) {
  double total = 0, entropy = 0;
  bool bf16 = true, f16 = true;
  const int64_t classes = s.scores->dims[2];
  for (int64_t c = 0; c < classes; ++c) {
    const double x = s.scores->at(s.at(t, c)).value, p = std::exp(x);
    total += p;
    if (p > 0) entropy += p * std::fabs(x);
    bf16 = bf16 && nearest(x, Element::kBF16) == x;
    f16 = f16 && nearest(x, Element::kF16) == x;
  }
  // Most numbers that bfloat16 holds, binary16 holds, too.
  const double half = bf16 ? half_unit(Element::kBF16) : f16 ? half_unit(Element::kF16) : 0;
  const double logarithm = std::log(static_cast<double>(classes));
  return std::fabs(total - 1) <= m.of_sum(classes) + (m.fast_exp + 16 + 4 * entropy) * m.unit +
                                     half * (2 + logarithm + 4 * entropy);
}
// Whether the recorded gradients of a time add up to about 0 and not to the share of all paths.
bool adds_up_to_none(const Array& given, const Sample& s, int64_t t, double dy) {
  double total = 0;
  for (int64_t c = 0; c < s.scores->dims[2]; ++c) total += given.at(s.at(t, c)).value;
  return std::fabs(total) <= std::fabs(total + dy);
}

// The derivative of the loss by a score x is -exp(log of the paths through the class + loss - x), a
// share of all paths. Where the scores are normalised, a kernel may add any multiple of exp(x),
// because no change that leaves them normalised has a part in that direction: PyTorch adds one. Its
// formula holds there only.
Expected ctc_loss_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array dy = a.array(0, "grad"), scores = a.array(1, "log_probs");
  const int64_t blank = a.integer(7, "blank", 0);
  const Checked<Sample> samples = samples_of(a, 1, scores, blank);
  const Array loss = a.array(5, "neg_log_likelihood"), alpha = a.array(6, "log_alpha");
  const bool zero_infinity = a.flag(8, "zero_infinity", false);
  if (dy.size() != std::ssize(samples) || loss.size() != dy.size() || alpha.dims.size() != 3 ||
      alpha.dims[0] != dy.size()) {
    throw Undefined("a gradient of another shape");
  }
  Array out = filled(scores.dims, 0);
  out.radius = Plane(out.value.size(), 0.0);
  std::optional<Array> given;
  if (a.result(0).data != nullptr) given = a.result_array(0);
  if (given && given->dims != scores.dims) throw Undefined("a gradient of another shape");
  for (const Sample& s : samples) {
    const Estimate total = loss.at(s.index);
    if (zero_infinity && total.value == kInfinity) continue;
    if (s.times > alpha.dims[1] || s.places() > alpha.dims[2])
      throw Undefined("probabilities of another shape");
    Paths beta;
    for (int64_t t = s.times - 1; t >= 0; --t) {
      beta = backward(m, s, t, beta);
      Checked<Estimate> through(static_cast<size_t>(scores.dims[2]), kNever);
      for (int64_t p = s.places() - 1; p >= 0; --p) {
        Estimate& sum = through[static_cast<size_t>(s.label(p))];
        const int64_t i = (s.index * alpha.dims[1] + t) * alpha.dims[2] + p;
        const Estimate both = m.add(alpha.at(i), beta[static_cast<size_t>(p)]);
        sum = sum.value == -kInfinity ? both : log_sum<2>(m, {sum, both});
      }
      const bool plus =
          normalised(m, s, t) && (!given || adds_up_to_none(*given, s, t, dy.at(s.index).value));
      for (int64_t c = 0; c < scores.dims[2]; ++c) {
        const Estimate x = scores.at(s.at(t, c));
        const Estimate share = m.exp(m.sub(m.add(through[static_cast<size_t>(c)], total), x));
        Estimate g = m.mul(m.sub(plus ? m.exp(x) : exactly(0), share), dy.at(s.index));
        if (!finite(g.value)) g.radius = kInfinity;  // no path, or a probability of 0
        out.set(s.at(t, c), g);
      }
    }
  }
  return out;
}

constexpr Definition kCtcDefinitions[] = {
    {"aten._ctc_loss", ctc_loss},
    {"aten._ctc_loss_backward", ctc_loss_backward},
};

}  // namespace

std::span<const Definition> ctc_definitions() { return kCtcDefinitions; }

}  // namespace twinrun::aten

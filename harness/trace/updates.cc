// Compares the updates of parameters.
#include "harness/trace/updates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

struct Norms {
  double a = 0, b = 0, difference = 0;
  int64_t parameters = 0;
  void add(const Moved& x, const Moved& y) {
    if (x.after == nullptr || y.after == nullptr || x.before->dims != y.before->dims ||
        x.after->dims != x.before->dims || y.after->dims != y.before->dims)
      return;
    ++parameters;
    for (int64_t i = 0; i < x.before->elements(); ++i) {
      const double da = x.after->at(i) - x.before->at(i), db = y.after->at(i) - y.before->at(i);
      a += da * da;
      b += db * db;
      difference += (da - db) * (da - db);
    }
  }
};

double gradient_difference(const Optimized& a, const Optimized& b) {
  if (!same_sizes(a.gradients, b.gradients)) return NAN;
  double x = 0, y = 0, difference = 0;
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    for (int64_t n = 0; n < a.gradients[i]->elements(); ++n) {
      const double p = a.gradients[i]->at(n), q = b.gradients[i]->at(n);
      x += p * p;
      y += q * q;
      difference += (p - q) * (p - q);
    }
  }
  const double larger = std::fmax(x, y);
  return larger > 0 ? std::sqrt(difference / larger) : 0;
}

// Half a unit in the last place of a value.
double half_ulp(double value, aten::Element element) {
  const int digits = element == aten::Element::kBF16  ? 8
                     : element == aten::Element::kF16 ? 11
                     : element == aten::Element::kF64 ? 53
                                                      : 24;
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(0.5, exponent - digits);
}

// An optimizer moves each element by a function of its gradient alone, but for a common factor, and
// in its first step this function is no steeper than its value: a gradient that differs by a part d
// moves the update by a part d (SGD) or less (Adam and its kin, which divide by the size). A norm that
// scales all elements adds as much once more. Each call rounds once, and so does each write.
double unlike_part(const Optimized& a, const Optimized& b, const std::map<uint64_t, Moved>& moved_a,
                   const std::map<uint64_t, Moved>& moved_b, double gradients) {
  if (!same_sizes(a.gradients, b.gradients) || a.parameters.size() != a.gradients.size() ||
      b.parameters.size() != b.gradients.size())
    return NAN;
  int64_t moved = 0, unlike = 0;
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    const auto at_a = moved_a.find(a.parameters[i]), at_b = moved_b.find(b.parameters[i]);
    if (at_a == moved_a.end() || at_b == moved_b.end()) continue;
    const Moved &x = at_a->second, &y = at_b->second;
    const TensorView &g = *a.gradients[i], &h = *b.gradients[i];
    if (x.after == nullptr || y.after == nullptr || x.before->dims != g.dims ||
        y.before->dims != g.dims || x.after->dims != g.dims || y.after->dims != g.dims)
      continue;
    for (int64_t n = 0; n < g.elements(); ++n) {
      const double from = x.before->at(n), da = x.after->at(n) - from,
                   db = y.after->at(n) - y.before->at(n), ga = g.at(n), gb = h.at(n);
      const double size = std::fmax(std::fabs(da), std::fabs(db));
      const double larger = std::fmax(std::fabs(ga), std::fabs(gb));
      if (size == 0 || larger == 0 || from != y.before->at(n)) continue;
      const aten::Element element = x.after->element;
      const double unit = 2 * half_ulp(1, element);
      const double calls = static_cast<double>(a.calls + b.calls);
      const double explained =
          size * (std::fabs(ga - gb) / larger + 2 * gradients + calls * unit) +
          static_cast<double>(a.calls) * half_ulp(std::fmax(std::fabs(from), size), element) +
          static_cast<double>(b.calls) * half_ulp(std::fmax(std::fabs(from), size), element);
      // Where rounding is all that can be seen, nothing can be said.
      if (explained > size / 2) continue;
      ++moved;
      if (std::fabs(da - db) > explained) ++unlike;
    }
  }
  return moved > 0 ? static_cast<double>(unlike) / static_cast<double>(moved) : NAN;
}

std::map<uint64_t, Moved> moved_in(const std::vector<Parameter>& all, int32_t step) {
  std::map<uint64_t, Moved> out;
  for (const Parameter& p : all) {
    const auto at = p.steps.find(step);
    if (at != p.steps.end()) out.emplace(p.storage, at->second);
  }
  return out;
}

}  // namespace

std::map<int32_t, Optimized> optimized_by(const TraceFile& trace) {
  std::map<int32_t, Optimized> out;
  std::unordered_map<uint64_t, int32_t> computed;  // storage: the step, by no optimizer
  std::set<std::pair<int32_t, uint64_t>> seen;
  for (const Call& call : trace.calls) {
    if (call.failed || call.composed) continue;
    if (call.optimizer) {
      Optimized& o = out[call.step];
      if (o.calls++ == 0) o.first_call = call.index;
      for (const TensorView* t : read_by(call)) {
        if (t->data == nullptr || !aten::is_float(t->element)) continue;
        const auto at = computed.find(t->storage);
        const bool gradient =
            !t->parameter && !t->dims.empty() && at != computed.end() && at->second == call.step;
        if ((!gradient && !t->parameter) || !seen.emplace(call.step, t->storage).second) continue;
        if (gradient) {
          o.gradients.push_back(t);
        } else {
          o.parameters.push_back(t->storage);
        }
      }
    }
    std::vector<const TensorView*> given;
    aten::collect(call.result, given);
    for (const TensorView& w : call.written) given.push_back(&w);
    for (const TensorView* t : given) {
      if (call.optimizer) {
        computed.erase(t->storage);
      } else {
        computed[t->storage] = call.step;
      }
    }
  }
  return out;
}

bool same_sizes(const std::vector<const TensorView*>& a, const std::vector<const TensorView*>& b) {
  return !a.empty() && std::ranges::equal(a, b, {}, &TensorView::dims, &TensorView::dims);
}

std::vector<Parameter> parameters_of(const TraceFile& trace) {
  std::vector<Parameter> out;
  std::map<uint64_t, size_t> known;
  for (const Call& call : trace.calls) {
    std::vector<const TensorView*> read;
    for (const Value& v : call.args) aten::collect(v, read);
    for (const TensorView* t : read) {
      // What initialises a parameter reads memory without a meaning.
      const bool initialised =
          call.optimizer || std::ranges::none_of(call.written, [&](const auto& w) {
            return w.storage == t->storage;
          });
      if (!initialised || !t->parameter || t->data == nullptr || !aten::is_float(t->element))
        continue;
      const auto [at, fresh] = known.try_emplace(t->storage, out.size());
      if (fresh) out.push_back({t->storage, {}});
      Moved& moved = out[at->second].steps[call.step];
      if (moved.before == nullptr) moved.before = t;
    }
    for (const TensorView& w : call.written) {
      const auto at = known.find(w.storage);
      if (at == known.end() || w.data == nullptr) continue;
      const auto moved = out[at->second].steps.find(call.step);
      if (moved != out[at->second].steps.end()) moved->second.after = &w;
    }
  }
  return out;
}

std::vector<UpdateDifference> compare_updates(const TraceFile& a, const TraceFile& b) {
  const auto ours = parameters_of(a), theirs = parameters_of(b);
  std::multimap<Digest, const Parameter*> by_value;
  const auto first = [](const Parameter& p) { return digest_of(*p.steps.begin()->second.before); };
  for (const Parameter& p : theirs) by_value.emplace(first(p), &p);
  std::map<int32_t, Norms> norms;
  for (const Parameter& p : ours) {
    const auto at = by_value.find(first(p));
    if (at == by_value.end()) continue;
    for (const auto& [step, moved] : p.steps) {
      const auto other = at->second->steps.find(step);
      if (other != at->second->steps.end()) norms[step].add(moved, other->second);
    }
    by_value.erase(at);
  }
  const auto optimized_a = optimized_by(a), optimized_b = optimized_by(b);
  std::vector<UpdateDifference> out;
  for (const auto& [step, n] : norms) {
    const double larger = std::fmax(n.a, n.b);
    UpdateDifference d{step, n.parameters, larger > 0 ? std::sqrt(n.difference / larger) : 0};
    const auto x = optimized_a.find(step), y = optimized_b.find(step);
    if (x != optimized_a.end() && y != optimized_b.end()) {
      d.gradients = gradient_difference(x->second, y->second);
      if (out.empty() && d.gradients == d.gradients)
        d.unlike = unlike_part(x->second, y->second, moved_in(ours, step), moved_in(theirs, step),
                               d.gradients);
    }
    out.push_back(d);
  }
  return out;
}

}  // namespace twinrun

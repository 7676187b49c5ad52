// Compares what comes into two steps from outside.
#include "harness/trace/other_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

// Two draws that agree to this part of their largest value in every element are one draw, rounded
// otherwise: independent ones do so with a probability below 2^-15 for each element.
constexpr double kSameDraw = 0x1p-16;
// Numbers that differ by less than a unit of binary32 are the same number to a kernel.
constexpr double kSameNumber = 0x1p-23;

double apart(double x, double y) {
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  const double d = std::fabs(x - y);
  return std::isfinite(d) ? d / std::fmax(std::fabs(x), std::fabs(y)) : INFINITY;
}

struct Number {
  std::string name;
  double value = 0;
  bool is_float = false;
};
void collect_numbers(const Value& v, const std::string& name, std::vector<Number>& to) {
  if (v.kind == Value::Kind::kNumber) to.push_back({name, v.number, true});
  if (v.kind == Value::Kind::kInteger) to.push_back({name, static_cast<double>(v.integer), false});
  for (size_t i = 0; i < v.items.size(); ++i)
    collect_numbers(v.items[i], fmt::format("{}[{}]", name, i), to);
}
std::vector<Number> numbers_of(const Call& call) {
  std::vector<Number> out;
  for (size_t i = 0; i < call.args.size(); ++i)
    collect_numbers(call.args[i], fmt::format("argument {}", i + 1), out);
  for (const auto& [name, v] : call.kwargs) collect_numbers(v, name, out);
  return out;
}

class Finder {
 public:
  explicit Finder(const Sides& s) : s_(s) {
    complete_ = sees_all(s.trace_a) && sees_all(s.trace_b);
    for (size_t k = 0; k < s.aligned.pairs.size(); ++k) {
      const AlignedPair& p = s.aligned.pairs[k];
      if (s_.differences[k].differing > 0)
        first_change_ = std::min(first_change_, s.a.results[p.a].call->index);
    }
    const auto read_a = read_into_python(s.trace_a), read_b = read_into_python(s.trace_b);
    for (size_t i = 0; i < std::min(read_a.size(), read_b.size()); ++i)
      told_.emplace_back(read_a[i].first, apart(read_a[i].second, read_b[i].second));
  }

  std::vector<OtherInput> find() {
    tensors();
    for (size_t k = 0; k < s_.aligned.pairs.size(); ++k) {
      draws(k);
      numbers(k);
      types(k);
    }
    lone_draws();
    std::ranges::stable_sort(found_, {}, [](const OtherInput& o) { return o.a.call; });
    return std::move(found_);
  }

 private:
  static std::vector<std::pair<int64_t, double>> read_into_python(const TraceFile& trace) {
    std::vector<std::pair<int64_t, double>> out;
    for (const Call& c : trace.calls) {
      if (base_name(c.op) != "aten._local_scalar_dense") continue;
      const bool whole = c.result.kind == Value::Kind::kInteger;
      out.emplace_back(c.index, whole ? static_cast<double>(c.result.integer) : c.result.number);
    }
    return out;
  }
  // A value from Python can differ as much as what the script has read from tensors before.
  double explained(const Call& call) const {
    double out = 0;
    for (const auto& [index, relative] : told_) {
      if (index < call.index && relative < INFINITY) out = std::fmax(out, relative);
    }
    return out;
  }

  void add(OtherInput::Kind kind, const Call& a, const Call& b, std::string a_has,
           std::string b_has, const ViewDifference& d = {}) {
    OtherInput o;
    o.kind = kind;
    o.a = side_of(a);
    o.b = side_of(b);
    o.a_has = std::move(a_has);
    o.b_has = std::move(b_has);
    o.elements = d.elements;
    o.differing = d.differing;
    o.relative = d.relative();
    found_.push_back(std::move(o));
  }

  void tensors() {
    using Same = std::tuple<aten::Element, Dims, Digest>;
    std::map<Same, std::vector<size_t>> by_value;
    const auto value_of = [](const TraceInput& i) {
      return Same{i.view->element, i.view->dims, i.digest};
    };
    for (size_t j = 0; j < s_.b.inputs.size(); ++j) by_value[value_of(s_.b.inputs[j])].push_back(j);
    std::vector<bool> taken(s_.b.inputs.size(), false);
    std::vector<size_t> left;
    for (size_t i = 0; i < s_.a.inputs.size(); ++i) {
      auto& js = by_value[value_of(s_.a.inputs[i])];
      if (js.empty()) {
        left.push_back(i);
      } else {
        taken[js.front()] = true;
        js.erase(js.begin());
      }
    }
    // Those without an equal are compared with what the same call of the other side reads.
    using Place = std::tuple<int32_t, std::string, std::string, size_t>;
    const auto place_of = [](const TraceInput& i) {
      return Place{i.call->step, base_name(i.call->op), i.call->module, i.argument};
    };
    std::map<Place, std::vector<size_t>> by_place;
    for (size_t j = 0; j < taken.size(); ++j) {
      if (!taken[j]) by_place[place_of(s_.b.inputs[j])].push_back(j);
    }
    for (const size_t i : left) {
      auto& js = by_place[place_of(s_.a.inputs[i])];
      if (js.empty()) continue;
      const size_t j = js.front();
      js.erase(js.begin());
      tensor(s_.a.inputs[i], s_.b.inputs[j]);
    }
  }
  void tensor(const TraceInput& a, const TraceInput& b) {
    const TensorView &x = *a.view, &y = *b.view;
    const ViewDifference d = difference_of(x, y);
    double allowed = explained(*a.call);
    if (!complete_ && !x.parameter && aten::is_float(x.element)) {
      // It may be what a call computed that was not recorded.
      if (x.dims != y.dims || a.call->index > first_change_) return;
      allowed = std::fmax(allowed, half_of_the_digits(x.element));
    }
    if (a.copied && b.copied && a.call->index > first_change_)
      allowed = std::fmax(allowed, half_of_the_digits(x.element));
    if (x.dims == y.dims && d.relative() <= allowed) return;
    add(OtherInput::Kind::kTensor, *a.call, *b.call, x.type(), y.type(), d);
  }

  void draws(size_t k) {
    const AlignedPair& p = s_.aligned.pairs[k];
    const TraceResult &x = s_.a.results[p.a], &y = s_.b.results[p.b];
    const ViewDifference& d = s_.differences[k];
    if (!x.draw || !y.draw || d.differing == 0 || !same_reads(s_, *x.call, *y.call)) return;
    if (aten::is_float(x.view->element) && d.relative() <= kSameDraw) return;
    add(OtherInput::Kind::kDraw, *x.call, *y.call, x.view->type(), y.view->type(), d);
  }

  // Draws of other sizes: the same operation of the same module, in order.
  void lone_draws() {
    using Place = std::tuple<int32_t, std::string, std::string>;
    const auto place_of = [](const TraceResult& r) {
      return Place{r.call->step, base_name(r.call->op), r.call->module};
    };
    std::map<Place, std::vector<const TraceResult*>> lone;
    for (size_t j = 0; j < s_.b.results.size(); ++j) {
      const TraceResult& r = s_.b.results[j];
      if (r.draw && !s_.aligned.pair_of_b[j]) lone[place_of(r)].push_back(&r);
    }
    for (size_t i = 0; i < s_.a.results.size(); ++i) {
      const TraceResult& r = s_.a.results[i];
      if (!r.draw || s_.aligned.pair_of_a[i]) continue;
      auto& there = lone[place_of(r)];
      if (there.empty()) continue;
      add(OtherInput::Kind::kDraw, *r.call, *there.front()->call, r.view->type(),
          there.front()->view->type());
      there.erase(there.begin());
    }
  }

  void numbers(size_t k) {
    const AlignedPair& p = s_.aligned.pairs[k];
    const Call &a = *s_.a.results[p.a].call, &b = *s_.b.results[p.b].call;
    if (s_.differences[k].differing == 0 || a.op != b.op || !seen_.insert(a.index).second) return;
    const auto xs = numbers_of(a), ys = numbers_of(b);
    // Calls of other optimizers may have the same name, and be given other numbers.
    if (!std::ranges::equal(xs, ys, {}, &Number::name, &Number::name)) return;
    for (size_t i = 0; i < xs.size(); ++i) {
      if (!xs[i].is_float && !ys[i].is_float) continue;
      if (apart(xs[i].value, ys[i].value) <= std::fmax(kSameNumber, explained(a))) continue;
      add(OtherInput::Kind::kNumber, a, b, fmt::format("{} = {:.9g}", xs[i].name, xs[i].value),
          fmt::format("{} = {:.9g}", ys[i].name, ys[i].value));
      return;
    }
  }

  void types(size_t k) {
    const AlignedPair& p = s_.aligned.pairs[k];
    const TraceResult &x = s_.a.results[p.a], &y = s_.b.results[p.b];
    if (x.view->element == y.view->element || base_name(x.call->op) != base_name(y.call->op) ||
        x.which != y.which)
      return;
    add(OtherInput::Kind::kType, *x.call, *y.call, x.view->type(), y.view->type());
  }

  const Sides& s_;
  bool complete_ = true;
  int64_t first_change_ = std::numeric_limits<int64_t>::max();  // call of A
  // Numbers that the script has read from tensors: call of A, relative difference.
  std::vector<std::pair<int64_t, double>> told_;
  std::set<int64_t> seen_;
  std::vector<OtherInput> found_;
};

}  // namespace

bool sees_all(const TraceFile& trace) {
  int major = 0, minor = 0;
  return std::sscanf(trace.version.c_str(), "%d.%d", &major, &minor) == 2 &&
         (major > 1 || minor >= 13);
}

SideCall side_of(const Call& call) {
  SideCall s;
  s.call = call.index;
  s.step = call.step;
  s.op = call.op;
  s.place = call.place;
  s.module = call.module;
  s.phase = call.phase();
  return s;
}

bool same_reads(const Sides& sides, const Call& a, const Call& b) {
  auto x = sides.a.reads[static_cast<size_t>(a.index)];
  auto y = sides.b.reads[static_cast<size_t>(b.index)];
  std::ranges::sort(x);
  std::ranges::sort(y);
  return x == y;
}

std::vector<OtherInput> other_inputs(const Sides& sides) { return Finder(sides).find(); }

}  // namespace twinrun

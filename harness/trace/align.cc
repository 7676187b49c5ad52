// Aligns the results of two traces.
#include "harness/trace/align.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace twinrun {
namespace {

using aten::Call;
using aten::Element;
using aten::TensorView;

constexpr int64_t kSketch = 64;          // elements that a first comparison looks at
constexpr int64_t kMostPairs = 1 << 20;  // of one shape; beyond, only neighbours are compared
constexpr int64_t kNeighbours = 200;

bool same_phase(const Call& a, const Call& b) {
  return a.optimizer == b.optimizer && a.node.empty() == b.node.empty();
}

class Aligner {
 public:
  Aligner(const TraceValues& a, const TraceValues& b) : a_(a), b_(b) {
    out_.pair_of_a.resize(a.results.size());
    out_.pair_of_b.resize(b.results.size());
    nodes_ = a.has_nodes && b.has_nodes;
  }

  Alignment align() {
    by_bits();
    by_values();
    by_order();
    for (size_t i = 0; i < a_.results.size(); ++i) {
      if (out_.pair_of_a[i]) out_.pairs.push_back({i, *out_.pair_of_a[i], by_[i]});
    }
    for (size_t k = 0; k < out_.pairs.size(); ++k) {
      out_.pair_of_a[out_.pairs[k].a] = k;
      out_.pair_of_b[out_.pairs[k].b] = k;
    }
    return std::move(out_);
  }

 private:
  // The same operation of the same module in the same pass.
  bool same_structure(size_t i, size_t j) const {
    const Call &x = *a_.results[i].call, &y = *b_.results[j].call;
    return base_name(x.op) == base_name(y.op) && x.module == y.module &&
           a_.results[i].which == b_.results[j].which && (!nodes_ || same_phase(x, y));
  }
  bool may_be_same(size_t i, size_t j) const {
    const Call &x = *a_.results[i].call, &y = *b_.results[j].call;
    return modules_agree(x.module, y.module) && (!nodes_ || x.node.empty() == y.node.empty());
  }
  void pair(size_t i, size_t j, AlignedBy by) {
    out_.pair_of_a[i] = j;
    out_.pair_of_b[j] = i;
    by_.resize(a_.results.size());
    by_[i] = by;
  }

  template <typename Key, typename KeyOf>
  static std::map<Key, std::vector<size_t>> grouped(const std::vector<TraceResult>& results,
                                                    const std::vector<std::optional<size_t>>& taken,
                                                    KeyOf key_of) {
    std::map<Key, std::vector<size_t>> out;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!taken[i]) out[key_of(results[i])].push_back(i);
    }
    return out;
  }

  void by_bits() {
    using Key = std::tuple<int32_t, Element, Dims, Digest>;
    const auto key = [](const TraceResult& r) {
      return Key{r.call->step, r.view->element, r.view->dims, r.digest};
    };
    const auto from = grouped<Key>(a_.results, out_.pair_of_a, key);
    auto to = grouped<Key>(b_.results, out_.pair_of_b, key);
    for (const auto& [k, is] : from) {
      const auto found = to.find(k);
      if (found == to.end()) continue;
      // Equal values occur more than once: structure tells them apart, then the order does.
      for (const bool strict : {true, false}) {
        size_t next = 0;
        for (const size_t i : is) {
          if (out_.pair_of_a[i]) continue;
          for (size_t n = next; n < found->second.size(); ++n) {
            const size_t j = found->second[n];
            if (out_.pair_of_b[j] || !(strict ? same_structure(i, j) : may_be_same(i, j))) continue;
            pair(i, j, AlignedBy::kBits);
            next = n + 1;
            break;
          }
        }
      }
    }
  }

  static std::vector<double> sketch_of(const TensorView& t) {
    const int64_t n = t.elements(), step = std::max<int64_t>(1, n / kSketch);
    std::vector<double> out;
    for (int64_t i = step / 2; i < n; i += step) out.push_back(t.at(i));
    return out;
  }
  static double distance(const std::vector<double>& x, const std::vector<double>& y) {
    double largest = 0, size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) && std::isnan(y[i])) continue;
      const double d = std::fabs(x[i] - y[i]);
      if (!(d < INFINITY)) return INFINITY;
      largest = std::fmax(largest, d);
      size = std::fmax(size, std::fmax(std::fabs(x[i]), std::fabs(y[i])));
    }
    return largest == 0 ? 0 : largest / size;
  }

  void by_values() {
    using Key = std::tuple<int32_t, Dims>;
    const auto key = [](const TraceResult& r) { return Key{r.call->step, r.view->dims}; };
    const auto from = grouped<Key>(a_.results, out_.pair_of_a, key);
    const auto to = grouped<Key>(b_.results, out_.pair_of_b, key);
    for (const auto& [k, is] : from) {
      const auto found = to.find(k);
      if (found != to.end()) nearest(is, found->second);
    }
  }
  void nearest(const std::vector<size_t>& is, const std::vector<size_t>& js) {
    const auto n = static_cast<int64_t>(is.size()), m = static_cast<int64_t>(js.size());
    const bool all = n * m <= kMostPairs;
    std::vector<std::vector<double>> sketches;
    for (const size_t j : js) sketches.push_back(sketch_of(*b_.results[j].view));
    // Structure first, then how near the values are, then how near the places in the order are.
    std::vector<std::tuple<bool, double, int64_t, size_t, size_t>> near;
    for (int64_t x = 0; x < n; ++x) {
      const size_t i = is[static_cast<size_t>(x)];
      const TensorView& one = *a_.results[i].view;
      if (!aten::is_float(one.element)) continue;
      const auto sketch = sketch_of(one);
      const int64_t begin = all ? 0 : std::max<int64_t>(0, x - kNeighbours);
      const int64_t end = all ? m : std::min(m, x + kNeighbours);
      for (int64_t y = begin; y < end; ++y) {
        const size_t j = js[static_cast<size_t>(y)];
        const TensorView& other = *b_.results[j].view;
        if (!aten::is_float(other.element) || !may_be_same(i, j)) continue;
        const double d = distance(sketch, sketches[static_cast<size_t>(y)]);
        const double allowed =
            std::fmax(half_of_the_digits(one.element), half_of_the_digits(other.element));
        if (d <= allowed) near.emplace_back(!same_structure(i, j), d, std::abs(x - y), i, j);
      }
    }
    std::ranges::sort(near);
    for (const auto& [other, d, apart, i, j] : near) {
      if (out_.pair_of_a[i] || out_.pair_of_b[j]) continue;
      const TensorView &x = *a_.results[i].view, &y = *b_.results[j].view;
      const double allowed =
          std::fmax(half_of_the_digits(x.element), half_of_the_digits(y.element));
      if (difference_of(x, y).relative() <= allowed) pair(i, j, AlignedBy::kValues);
    }
  }

  // What is left of an operation, module and pass is paired in order, where both sides have it
  // equally often.
  void by_order() {
    using Key = std::tuple<int32_t, std::string, std::string, std::string, size_t, bool, Dims>;
    const auto key = [&](const TraceResult& r) {
      return Key{r.call->step, base_name(r.call->op), r.call->module, nodes_ ? r.call->node : "",
                 r.which,      r.call->optimizer,     r.view->dims};
    };
    const std::vector<std::optional<size_t>> none_a(a_.results.size()), none_b(b_.results.size());
    const auto from = grouped<Key>(a_.results, none_a, key);
    const auto to = grouped<Key>(b_.results, none_b, key);
    for (const auto& [k, is] : from) {
      const auto found = to.find(k);
      if (found == to.end() || found->second.size() != is.size()) continue;
      // The n-th with the n-th alone: an optimizer makes calls of one name with several meanings.
      for (size_t n = 0; n < is.size(); ++n) {
        const size_t i = is[n], j = found->second[n];
        if (!out_.pair_of_a[i] && !out_.pair_of_b[j]) pair(i, j, AlignedBy::kOrder);
      }
    }
  }

  const TraceValues &a_, &b_;
  Alignment out_;
  std::vector<AlignedBy> by_;
  bool nodes_ = false;
};

}  // namespace

double ViewDifference::relative() const {
  if (largest == 0) return 0;
  return largest < INFINITY ? largest / size : INFINITY;
}

ViewDifference difference_of(const TensorView& a, const TensorView& b) {
  ViewDifference out;
  out.elements = a.elements();
  if (a.dims != b.dims) {
    out.largest = INFINITY;
    out.differing = out.elements;
    return out;
  }
  for (int64_t i = 0; i < out.elements; ++i) {
    const double x = a.at(i), y = b.at(i);
    if (std::isfinite(x)) out.size = std::fmax(out.size, std::fabs(x));
    if (std::isfinite(y)) out.size = std::fmax(out.size, std::fabs(y));
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    ++out.differing;
    const double d = std::fabs(x - y);
    const double shown = std::isfinite(d) ? d : INFINITY;
    if (out.at < 0 || shown > out.largest) out.largest = shown, out.at = i;
  }
  return out;
}

double half_of_the_digits(Element element) {
  switch (element) {
    case Element::kF16:
      return 0x1p-5;
    case Element::kBF16:
      return 0x1p-4;
    case Element::kF32:
      return 0x1p-12;
    case Element::kF64:
      return 0x1p-26;
    default:
      return 0;
  }
}

bool modules_agree(const std::string& a, const std::string& b) {
  const auto inside = [](const std::string& outer, const std::string& inner) {
    return outer.empty() || inner == outer || inner.starts_with(outer + ".");
  };
  return inside(a, b) || inside(b, a);
}

Alignment align(const TraceValues& a, const TraceValues& b) { return Aligner(a, b).align(); }

}  // namespace twinrun

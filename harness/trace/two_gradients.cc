// Evaluates the gradients of two sides in binary64, and looks for what makes them differ: a factor, or
// how the backward passes of micro-batches are weighed.
#include "harness/trace/two_gradients.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "backends/aten/definitions.h"
#include "harness/trace/again.h"
#include "harness/trace/backward_passes.h"
#include "harness/trace/updates.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::Undefined;

constexpr size_t kMostPasses = 64;
// Of a gradient: what a factor, or weights of passes, leave over where they are the explanation.
// Binary64 leaves 10^-8 of sums over passes.
constexpr double kLeft = 0x1p-20;

// The numbers of all gradients, one after the other.
using Numbers = std::vector<double>;
double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

struct Side {
  Numbers gradient;             // as the optimizer reads it
  std::vector<Numbers> passes;  // what each backward pass adds; none where that is not known
  bool has_half = false;
  int64_t first_pass = -1;  // the call with which it begins
};

class Evaluation {
 public:
  Evaluation(const TraceFile& trace, int32_t number, const Optimized& optimized, ThreadPool* pool,
             const StopFlag* stop)
      : optimized_(optimized), stop_(stop), step_(calls_of(trace, number)) {
    if (!step_.why.empty()) throw Undefined(step_.why);
    if (size_of_step(trace, step_) > kLargestStep) throw Undefined("the step is too large");
    for (size_t i = 0; i < optimized.parameters.size(); ++i) place_[optimized.parameters[i]] = i;
    std::unordered_set<uint64_t> leaves;
    std::vector<uint64_t> needed;
    for (size_t p = 0; p < step_.passes.size(); ++p) {
      for (const Contribution& c : step_.passes[p].contributions) {
        leaves.insert(c.leaf);
        needed.push_back(c.view->storage);
        at_[c.call] = {p, &c};
      }
    }
    for (const aten::TensorView* g : optimized.gradients) needed.push_back(g->storage);
    Again again(trace, step_.begin, step_.end, leaves, pool, Again::What::kValues);
    again.need(needed, optimized.first_call);
    find_places();
    again.run(optimized.first_call, {}, 0, -1, [&](const Call& call) { see(again, call); });
    for (size_t i = 0; i < optimized.gradients.size(); ++i)
      put(again.read(*optimized.gradients[i]).value, i, side_.gradient);
    for (const double x : side_.gradient)
      if (!std::isfinite(x)) throw Undefined("a gradient is not finite");
  }
  Side take() {
    side_.has_half = step_.has_half;
    if (!step_.passes.empty()) side_.first_pass = step_.passes.front().seeds.front();
    if (!all_placed_) side_.passes.clear();
    return std::move(side_);
  }

 private:
  static Step calls_of(const TraceFile& trace, int32_t number) {
    const auto is_of = [&](const Call& call) { return call.step == number; };
    const auto begin = std::ranges::find_if(trace.calls, is_of);
    const auto end = std::find_if_not(begin, trace.calls.end(), is_of);
    return step_of(trace, begin - trace.calls.begin(), end - trace.calls.begin());
  }
  void find_places() {
    const auto& gradients = optimized_.gradients;
    for (const aten::TensorView* g : gradients) {
      begin_.push_back(total_);
      total_ += static_cast<size_t>(g->elements());
    }
    side_.gradient.assign(total_, 0);
    all_placed_ = place_.size() == gradients.size() && step_.passes.size() <= kMostPasses;
    if (all_placed_) side_.passes.assign(step_.passes.size(), Numbers(total_, 0));
  }
  void see(const Again& again, const Call& call) {
    if (stop_ != nullptr && stop_->load()) throw Undefined("it was interrupted");
    const auto at = at_.find(call.index);
    if (at == at_.end() || !all_placed_) return;
    const auto& [pass, contribution] = at->second;
    const auto place = place_.find(contribution->leaf);
    if (place == place_.end()) return;  // no optimizer reads it
    put(again.read(*contribution->view).value, place->second, side_.passes[pass]);
  }
  void put(const aten::Plane& x, size_t gradient, Numbers& to) {
    const size_t begin = begin_[gradient];
    const size_t end = gradient + 1 < begin_.size() ? begin_[gradient + 1] : total_;
    if (x.size() != end - begin) {
      all_placed_ = false;
      return;
    }
    for (size_t i = 0; i < x.size(); ++i) to[begin + i] += x[i];
  }

  const Optimized& optimized_;
  const StopFlag* stop_;
  const Step step_;
  std::map<uint64_t, size_t> place_;  // of a parameter: which gradient
  std::map<int64_t, std::pair<size_t, const Contribution*>> at_;
  std::vector<size_t> begin_;
  size_t total_ = 0;
  bool all_placed_ = false;
  Side side_;
};

// The weights with which the passes add up to `sum`; none if they do not, or in more ways than one.
std::vector<double> weights(const std::vector<Numbers>& passes, const Numbers& sum) {
  const size_t n = passes.size();
  std::vector<std::vector<double>> m(n, std::vector<double>(n + 1));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) m[i][j] = dot(passes[i], passes[j]);
    m[i][n] = dot(passes[i], sum);
  }
  // Gauss and Jordan, of a matrix that is positive definite where the passes are independent.
  for (size_t k = 0; k < n; ++k) {
    if (!(m[k][k] > 0x1p-30 * dot(passes[k], passes[k]))) return {};
    for (size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const double by = m[i][k] / m[k][k];
      for (size_t j = k; j <= n; ++j) m[i][j] -= by * m[k][j];
    }
  }
  std::vector<double> out(n);
  Numbers left = sum;
  for (size_t k = 0; k < n; ++k) {
    out[k] = m[k][n] / m[k][k];
    for (size_t i = 0; i < left.size(); ++i) left[i] -= out[k] * passes[k][i];
  }
  return dot(left, left) <= kLeft * kLeft * dot(sum, sum) ? out : std::vector<double>();
}

void explain(const Side& a, const Side& b, MeantGradients& out) {
  const double factor = dot(a.gradient, b.gradient) / dot(b.gradient, b.gradient);
  Numbers left = a.gradient;
  for (size_t i = 0; i < left.size(); ++i) left[i] -= factor * b.gradient[i];
  out.passes = static_cast<int64_t>(std::max(a.passes.size(), b.passes.size()));
  out.of_a = a.passes.size() > b.passes.size();
  if (dot(left, left) <= kLeft * kLeft * dot(a.gradient, a.gradient)) {
    out.factor = factor;
    return;
  }
  const Side &many = out.of_a ? a : b, &few = out.of_a ? b : a;
  if (many.passes.size() < 2) return;
  out.own = weights(many.passes, many.gradient);
  out.other = weights(many.passes, few.gradient);
}

}  // namespace

MeantGradients compare_gradients(const TraceFile& a, const TraceFile& b, ThreadPool* pool,
                                 const StopFlag* stop) {
  MeantGradients out;
  const auto of_a = optimized_by(a), of_b = optimized_by(b);
  if (of_a.empty() || of_b.empty() || of_a.begin()->first != of_b.begin()->first ||
      !same_sizes(of_a.begin()->second.gradients, of_b.begin()->second.gradients)) {
    out.why = "the optimizers do not read the same gradients";
    return out;
  }
  out.step = of_a.begin()->first;
  out.why = why_not([&] {
    const Side x = Evaluation(a, out.step, of_a.begin()->second, pool, stop).take();
    const Side y = Evaluation(b, out.step, of_b.begin()->second, pool, stop).take();
    out.has_half = x.has_half || y.has_half;
    out.call_a = x.first_pass, out.call_b = y.first_pass;
    const double larger = std::fmax(dot(x.gradient, x.gradient), dot(y.gradient, y.gradient));
    Numbers apart = x.gradient;
    for (size_t i = 0; i < apart.size(); ++i) apart[i] -= y.gradient[i];
    out.relative = larger > 0 ? std::sqrt(dot(apart, apart) / larger) : 0;
    out.asked = true;
    if (out.differ()) explain(x, y, out);
  });
  return out;
}

}  // namespace twinrun

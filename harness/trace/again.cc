// Follows memory through the calls of a trace, and evaluates what depends on the leaves.
#include "harness/trace/again.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "backends/aten/definitions.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Array;
using aten::Call;
using aten::TensorView;
using aten::Undefined;
using aten::Value;

// Kernels round; this arithmetic is for values, and its radii are not looked at.
aten::Arithmetic binary64(ThreadPool* pool) {
  aten::Arithmetic m;
  m.unit = 0x1p-52;
  m.smallest = 0x1p-1022;
  m.overflow = 0x1.fffffffffffffp1023;
  m.pool = pool;
  return m;
}

// Calls f(i, cell) for the elements of a view in row-major order.
template <typename F>
void each_cell(const TensorView& view, F f) {
  const int64_t n = view.elements(), first = view.first / aten::size_of(view.element);
  const size_t rank = view.dims.size();
  std::vector<int64_t> index(rank, 0);
  int64_t cell = first;
  for (int64_t i = 0; i < n; ++i) {
    f(i, cell);
    for (size_t d = rank; d-- > 0;) {
      cell += view.strides[d];
      if (++index[d] < view.dims[d]) break;
      cell -= view.strides[d] * view.dims[d];
      index[d] = 0;
    }
  }
}

bool has_place(const TensorView& view) {
  const int64_t size = aten::size_of(view.element);
  return view.storage != 0 && size > 0 && view.first >= 0 && view.first % size == 0;
}

int64_t reach_of(const TensorView& view) {
  int64_t last = view.first / aten::size_of(view.element);
  for (size_t d = 0; d < view.dims.size(); ++d) last += (view.dims[d] - 1) * view.strides[d];
  return last + 1;
}

bool is_forward(const Call& call) { return call.node.empty() && !call.optimizer; }

}  // namespace

Again::Again(const TraceFile& trace, int64_t begin, int64_t end,
             std::unordered_set<uint64_t> leaves, ThreadPool* pool)
    : trace_(trace), begin_(begin), end_(end), leaves_(std::move(leaves)), pool_(pool) {
  find_hidden();
  needed_.assign(static_cast<size_t>(end_ - begin_), true);
}

// Walks back: what is read with a gradient, and was given without autograd, was given by a Function.
void Again::find_hidden() {
  hidden_.assign(static_cast<size_t>(end_ - begin_), false);
  std::unordered_set<uint64_t> with_gradient;
  for (int64_t i = end_; i-- > begin_;) {
    const Call& call = trace_.calls[static_cast<size_t>(i)];
    if (!is_forward(call) || call.composed) continue;
    if (call.without_gradient) {
      const auto gives = [&](const TensorView* t) {
        return with_gradient.contains(t->storage) && !is_leaf(t->storage);
      };
      if (std::ranges::none_of(computed_by(call, read_by(call)), gives)) continue;
      hidden_[static_cast<size_t>(i - begin_)] = true;
      for (const TensorView* t : read_by(call)) with_gradient.insert(t->storage);
    } else {
      for (const TensorView* t : read_by(call))
        if (t->requires_gradient) with_gradient.insert(t->storage);
    }
  }
}

bool Again::follows(const Call& call, const TensorView& view) const {
  if (!is_forward(call)) return true;
  return call.without_gradient
             ? static_cast<bool>(hidden_[static_cast<size_t>(call.index - begin_)])
             : view.requires_gradient;
}

void Again::need(const std::vector<uint64_t>& storages, int64_t end) {
  needed_.assign(needed_.size(), false);
  std::unordered_set<uint64_t> live(storages.begin(), storages.end());
  for (int64_t i = end; i-- > begin_;) {
    const Call& call = trace_.calls[static_cast<size_t>(i)];
    if (call.failed || call.composed || call.optimizer) continue;
    const auto gives = computed_by(call, read_by(call));
    if (std::ranges::none_of(gives, [&](const TensorView* t) { return live.contains(t->storage); }))
      continue;
    needed_[static_cast<size_t>(i - begin_)] = true;
    for (const TensorView* t : read_by(call))
      if (follows(call, *t)) live.insert(t->storage);
  }
}

void Again::seed(const TensorView& view) {
  Cells& cells = memory_[view.storage];
  const int64_t unit = aten::size_of(view.element), reach = reach_of(view);
  if (cells.unit != unit) cells = {unit, {}, {}};
  if (static_cast<int64_t>(cells.value.size()) < reach) {
    cells.value.resize(static_cast<size_t>(reach), 0);
    cells.known.resize(static_cast<size_t>(reach), 0);
  }
  const Array recorded = aten::array_of(view, pool_);
  const auto moved = moves_->find(view.storage);
  each_cell(view, [&](int64_t i, int64_t cell) {
    const auto c = static_cast<size_t>(cell);
    if (cells.known[c] != 0) return;
    cells.value[c] = recorded.value[static_cast<size_t>(i)];
    if (moved != moves_->end() && c < moved->second.size())
      cells.value[c] += by_ * moved->second[c];
    cells.known[c] = 1;
  });
}

Array Again::read(const TensorView& view) const {
  const auto at = memory_.find(view.storage);
  if (at == memory_.end() || !has_place(view) || view.elements() == 0 ||
      at->second.unit != aten::size_of(view.element))
    return aten::array_of(view, pool_);
  const Cells& cells = at->second;
  Array out = aten::empty_array(view.dims, true);
  Array recorded;
  each_cell(view, [&](int64_t i, int64_t cell) {
    const auto c = static_cast<size_t>(cell);
    double& to = out.value[static_cast<size_t>(i)];
    if (c < cells.known.size() && cells.known[c] != 0) {
      to = cells.value[c];
      return;
    }
    if (recorded.value.empty()) recorded = aten::array_of(view, pool_);
    to = recorded.value[static_cast<size_t>(i)];
  });
  return out;
}

bool Again::add(const TensorView& view, const Array& x, double by, Moves& to) {
  if (!has_place(view) || x.size() != view.elements()) return false;
  if (x.size() == 0) return true;
  std::vector<double>& cells = to[view.storage];
  const auto reach = static_cast<size_t>(reach_of(view));
  if (cells.size() < reach) cells.resize(reach, 0);
  each_cell(view, [&](int64_t i, int64_t cell) {
    cells[static_cast<size_t>(cell)] += by * x.value[static_cast<size_t>(i)];
  });
  return true;
}

void Again::write(const TensorView& view, const Array& x) {
  if (view.elements() == 0) return;
  if (!has_place(view)) throw Undefined("a result whose place in its storage is not known");
  Cells& cells = memory_[view.storage];
  const int64_t unit = aten::size_of(view.element), reach = reach_of(view);
  if (cells.unit != unit) cells = {unit, {}, {}};
  if (static_cast<int64_t>(cells.value.size()) < reach) {
    cells.value.resize(static_cast<size_t>(reach), 0);
    cells.known.resize(static_cast<size_t>(reach), 0);
  }
  each_cell(view, [&](int64_t i, int64_t cell) {
    cells.value[static_cast<size_t>(cell)] = x.value[static_cast<size_t>(i)];
    cells.known[static_cast<size_t>(cell)] = 1;
  });
}

// What a call gave that was not evaluated is as it was recorded.
void Again::forget(const Call& call) {
  for (const TensorView* t : computed_by(call, read_by(call))) memory_.erase(t->storage);
}

void Again::evaluate(const Call& call) {
  Call again = call;
  std::vector<std::unique_ptr<Array>> held;
  bool depends = false;
  const std::function<void(Value&)> fill = [&](Value& v) {
    for (Value& item : v.items) fill(item);
    TensorView& t = v.tensor;
    if (v.kind != Value::Kind::kTensor || !aten::is_float(t.element) || t.data == nullptr ||
        !follows(call, t))
      return;
    if (is_leaf(t.storage) && has_place(t) && t.elements() > 0) seed(t);
    if (!memory_.contains(t.storage)) return;
    depends = true;
    held.push_back(std::make_unique<Array>(read(t)));
    t.estimate = held.back().get();
  };
  for (Value& v : again.args) fill(v);
  for (auto& [name, v] : again.kwargs) fill(v);
  if (!depends) return forget(call);
  const std::vector<const TensorView*> given = computed_by(call, read_by(call));
  if (std::ranges::none_of(given, [](const TensorView* t) { return aten::is_float(t->element); }))
    return forget(call);
  try {
    const aten::Expected expected = aten::expected_of(again, binary64(pool_));
    const std::vector<const TensorView*> views = compared_views(call, expected.results.size());
    for (size_t i = 0; i < views.size(); ++i) {
      if (views[i] == nullptr) continue;
      const bool defined = i < expected.results.size() && expected.results[i].has_value();
      if (defined && aten::is_float(views[i]->element) &&
          expected.results[i]->dims == views[i]->dims) {
        write(*views[i], *expected.results[i]);
      } else {
        memory_.erase(views[i]->storage);
      }
    }
  } catch (const Undefined& e) {
    throw Undefined(fmt::format("{}: {}", call.op, e.what()));
  }
}

void Again::run(int64_t end, const Moves& moves, double by, int64_t at,
                const std::function<void(const Call&)>& seen) {
  static const Moves kNone;
  memory_.clear();
  moves_ = at < 0 ? &moves : &kNone;
  by_ = by;
  for (int64_t i = begin_; i < std::min(end, end_); ++i) {
    const Call& call = trace_.calls[static_cast<size_t>(i)];
    if (call.failed || call.composed) continue;
    for (const TensorView* t : read_by(call))
      if (t->changed_unseen) memory_.erase(t->storage);
    const bool to_leaf =
        is_forward(call) && call.without_gradient &&
        std::ranges::any_of(call.written, [&](const TensorView& w) { return is_leaf(w.storage); });
    if (call.optimizer || to_leaf || !needed_[static_cast<size_t>(i - begin_)]) {
      forget(call);
    } else if (!computed_by(call, read_by(call)).empty()) {
      evaluate(call);
    }
    if (i == at) {
      for (const auto& [storage, cells] : moves) {
        for (const TensorView* t : computed_by(call, read_by(call))) {
          if (t->storage != storage || !has_place(*t)) continue;
          moves_ = &kNone;
          Array x = read(*t);
          each_cell(*t, [&](int64_t k, int64_t cell) {
            if (static_cast<size_t>(cell) < cells.size())
              x.value[static_cast<size_t>(k)] += by * cells[static_cast<size_t>(cell)];
          });
          write(*t, x);
          break;
        }
      }
    }
    if (seen) seen(call);
  }
}

}  // namespace twinrun

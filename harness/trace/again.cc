// Follows memory through the calls of a trace, and evaluates what depends on the leaves.
#include "harness/trace/again.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <optional>

#include "backends/aten/definitions.h"
#include "backends/aten/graph.h"
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

// What a call selects of its first argument where its recorded indices say: so that a choice that
// the step's own rounding made stays the choice. nullopt: it is no such call.
std::optional<Array> selected(const Call& call, const Array& from) {
  const std::string name = base_name(call.op);
  static constexpr std::array<std::string_view, 4> kPools = {
      "aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices", "aten.adaptive_max_pool2d",
      "aten.adaptive_max_pool3d"};
  static constexpr std::array<std::string_view, 7> kAlong = {
      "aten.max",      "aten.min",    "aten.topk", "aten.sort",
      "aten.kthvalue", "aten.median", "aten.mode"};
  const bool pools = std::ranges::find(kPools, name) != kPools.end();
  if (!pools && std::ranges::find(kAlong, name) == kAlong.end()) return std::nullopt;
  std::vector<const TensorView*> given;
  aten::collect(call.result, given);
  if (given.size() != 2 || given[1]->element != aten::Element::kI64) return std::nullopt;
  const aten::Checked<int64_t> index = aten::integers_of(*given[1]);
  const TensorView& out = *given[0];
  const auto rank = static_cast<int64_t>(from.dims.size());
  aten::Checked<int64_t> at(index.size());
  if (pools) {
    const int64_t kept = name.find("3d") != std::string::npos ? rank - 3 : rank - 2;
    int64_t plane = 1, planes = 1;
    for (int64_t d = 0; d < rank; ++d)
      (d < kept ? planes : plane) *= from.dims[static_cast<size_t>(d)];
    const int64_t each = out.elements() / std::max<int64_t>(planes, 1);
    for (size_t i = 0; i < index.size(); ++i)
      at[i] = static_cast<int64_t>(i) / std::max<int64_t>(each, 1) * plane + index[i];
  } else {
    // kthvalue and topk have a number before the dimension; sort.stable names it.
    const std::string_view op = call.op;
    size_t position = name == "aten.topk" || name == "aten.kthvalue" ? 2 : 1;
    if (op.ends_with(".stable")) position = 2;
    const aten::Arithmetic m;
    const int64_t axis = aten::axis_of(aten::Arguments(call, m).integer(position, "dim", -1), rank);
    const bool keeps = out.dims.size() == from.dims.size();
    int64_t inner = 1;
    for (int64_t d = axis + 1; d < rank; ++d) inner *= from.dims[static_cast<size_t>(d)];
    const int64_t along = rank == 0 ? 1 : from.dims[static_cast<size_t>(axis)];
    const int64_t mine = keeps && rank > 0 ? out.dims[static_cast<size_t>(axis)] : 1;
    for (size_t i = 0; i < index.size(); ++i) {
      const int64_t flat = static_cast<int64_t>(i), low = flat % inner, high = flat / inner / mine;
      at[i] = (high * along + index[i]) * inner + low;
    }
  }
  return aten::gathered(from, at, out.dims);
}

// PyTorch's own functions whose gradient is meant to be no derivative.
void refuse_what_is_meant(const Call& call, const aten::Arithmetic& m) {
  const std::string name = base_name(call.op);
  const bool bag = name == "aten._embedding_bag" || name == "aten._embedding_bag_forward_only";
  if ((bag || name == "aten.embedding") &&
      aten::Arguments(call, m).flag(3, "scale_grad_by_freq", false))
    throw Undefined(
        "its gradient is scaled by the frequency of indices, as scale_grad_by_freq asks");
  if (name.find("fake_quantize") != std::string::npos)
    throw Undefined("its gradient is that of a straight-through estimator");
}
// The padding row of an embedding has no gradient: what is read of it is as it was recorded.
void keep_padding(const Call& call, const aten::Arithmetic& m, ThreadPool* pool, Array& result) {
  if (base_name(call.op) != "aten.embedding") return;
  const aten::Arguments a(call, m);
  const int64_t padding = a.integer(2, "padding_idx", -1);
  if (padding < 0) return;
  const aten::Checked<int64_t> index = aten::integers_of(a.view(1, "indices"));
  const Array recorded = aten::array_of(a.result(0), pool);
  const size_t width = index.empty() ? 0 : result.value.size() / index.size();
  for (size_t i = 0; i < index.size(); ++i) {
    if (index[i] != padding) continue;
    for (size_t k = i * width; k < (i + 1) * width; ++k) result.value[k] = recorded.value[k];
  }
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

bool is_forward(const Call& call) { return call.node.empty() && !call.optimizer; }

// Elements that the storages of a step may have in all: what was recorded of them, or a part.
constexpr int64_t kFewestCells = int64_t{1} << 24, kCellsForEachByte = 4;

}  // namespace

std::string why_not(const std::function<void()>& evaluates) {
  try {
    evaluates();
    return "";
  } catch (const Undefined& e) {
    return e.what();
  } catch (const std::bad_alloc&) {
    return "it takes more memory than there is";
  }
}

Again::Again(const TraceFile& trace, int64_t begin, int64_t end,
             std::unordered_set<uint64_t> leaves, ThreadPool* pool, What what)
    : trace_(trace),
      begin_(begin),
      end_(end),
      what_(what),
      most_cells_(kFewestCells + kCellsForEachByte * trace.bytes),
      leaves_(std::move(leaves)),
      pool_(pool) {
  const auto n = static_cast<size_t>(end_ - begin_);
  read_.reserve(n);
  given_.reserve(n);
  for (int64_t i = begin_; i < end_; ++i) {
    const Call& call = trace_.calls[static_cast<size_t>(i)];
    read_.push_back(read_by(call));
    given_.push_back(computed_by(call, read_.back()));
  }
  find_hidden();
  last_read_.resize(n);
  // What an update leaves is looked at when it is over.
  std::unordered_set<uint64_t> read;
  if (what_ == What::kUpdate) read = leaves_;
  // So is all that one pass of a Function gives.
  for (size_t i = what_ == What::kFunction ? 0 : n; i-- > 0;) {
    for (const TensorView* t : read_[i])
      if (read.insert(t->storage).second) last_read_[i].push_back(t->storage);
  }
  needed_.assign(n, true);
}

bool Again::has_place(const TensorView& view) const {
  const int64_t size = aten::size_of(view.element);
  return view.storage != 0 && size > 0 && view.first >= 0 && view.first % size == 0 &&
         view.elements() <= most_cells_ && reach_of(view) <= most_cells_;
}

// Walks back: what is read with a gradient, and was given without autograd, was given by a Function.
void Again::find_hidden() {
  hidden_.assign(static_cast<size_t>(end_ - begin_), false);
  use_of_.assign(static_cast<size_t>(end_ - begin_), nullptr);
  uses_ = forward_uses(trace_, begin_, end_);
  // Of several within each other the outermost is the last.
  for (size_t k = uses_.size(); k-- > 0;) {
    const int64_t end = std::min(uses_[k].end, end_);
    for (int64_t i = std::max(uses_[k].first, begin_); i < end; ++i) {
      const ForwardUse*& use = use_of_[static_cast<size_t>(i - begin_)];
      if (use != nullptr) break;
      use = &uses_[k];
    }
  }
  std::unordered_set<uint64_t> with_gradient;
  for (int64_t i = end_; i-- > begin_;) {
    const Call& call = trace_.calls[static_cast<size_t>(i)];
    if (!is_forward(call) || call.composed) continue;
    if (call.without_gradient) {
      const auto gives = [&](const TensorView* t) {
        return with_gradient.contains(t->storage) && !is_leaf(t->storage);
      };
      const ForwardUse* use = use_of(call);
      if (use == nullptr && std::ranges::none_of(given_by(call), gives)) continue;
      hidden_[static_cast<size_t>(i - begin_)] = true;
      for (const TensorView* t : given_by(call)) of_functions_.insert(t->storage);
      // What a Function is given without a gradient, no_grad may have computed.
      for (const TensorView* t : read_of(call))
        if (use == nullptr || t->requires_gradient || use->followed.contains(t->storage))
          with_gradient.insert(t->storage);
    } else {
      for (const TensorView* t : read_of(call))
        if (t->requires_gradient) with_gradient.insert(t->storage);
    }
  }
}

// Of an operand and of another one without a gradient in the same memory, as h and h.detach() are, the
// reads of the former have the mark, also of views of it.
bool Again::is_stopped(const ForwardUse& use, const TensorView& view) {
  return !view.requires_gradient && use.stopped.contains(view.storage);
}

// The script's Function whose forward pass makes a call; nullptr: none does.
const ForwardUse* Again::use_of(const Call& call) const {
  const ForwardUse* use = use_of_[static_cast<size_t>(call.index - begin_)];
  return use == nullptr || use->is_of_pytorch() ? nullptr : use;
}

bool Again::follows(const Call& call, const TensorView& view) const {
  const ForwardUse* use = use_of(call);
  if (use != nullptr && what_ != What::kValues && is_stopped(*use, view)) return false;
  if (!is_forward(call) || what_ == What::kFunction || what_ == What::kValues) return true;
  if (!call.without_gradient) return view.requires_gradient;
  if (!is_hidden(call)) return false;
  // What runs below autograd and is no Function of Python does not say what it is given.
  return use == nullptr || view.requires_gradient || of_functions_.contains(view.storage) ||
         use->followed.contains(view.storage);
}

void Again::need(const std::vector<uint64_t>& storages, int64_t end) {
  needed_.assign(needed_.size(), false);
  std::unordered_set<uint64_t> live(storages.begin(), storages.end());
  for (int64_t i = end; i-- > begin_;) {
    const Call& call = trace_.calls[static_cast<size_t>(i)];
    if (call.failed || call.composed || call.optimizer) continue;
    if (std::ranges::none_of(given_by(call),
                             [&](const TensorView* t) { return live.contains(t->storage); }))
      continue;
    needed_[static_cast<size_t>(i - begin_)] = true;
    for (const TensorView* t : read_of(call))
      if (follows(call, *t)) live.insert(t->storage);
  }
}

Again::Cells& Again::cells_of(const TensorView& view) {
  Cells& cells = memory_[view.storage];
  const int64_t unit = aten::size_of(view.element);
  const auto reach = static_cast<size_t>(reach_of(view));
  if (cells.unit != unit) {
    cells_ -= static_cast<int64_t>(cells.value.size());
    cells = {unit, {}, {}};
  }
  if (cells.value.size() < reach) {
    cells_ += static_cast<int64_t>(reach - cells.value.size());
    if (cells_ > most_cells_) throw Undefined("the step's memory is larger than what was recorded");
    cells.value.resize(reach, 0);
    cells.known.resize(reach, 0);
  }
  return cells;
}

void Again::seed(const TensorView& view) {
  Cells& cells = cells_of(view);
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
  if (view.elements() > most_cells_) throw Undefined("a tensor of too many elements");
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

bool Again::add(const TensorView& view, const Array& x, double by, Moves& to) const {
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
  lost_.erase(view.storage);
  Cells& cells = cells_of(view);
  each_cell(view, [&](int64_t i, int64_t cell) {
    cells.value[static_cast<size_t>(cell)] = x.value[static_cast<size_t>(i)];
    cells.known[static_cast<size_t>(cell)] = 1;
  });
}

void Again::drop(uint64_t storage) {
  const auto at = memory_.find(storage);
  if (at == memory_.end()) return;
  cells_ -= static_cast<int64_t>(at->second.value.size());
  memory_.erase(at);
}

// What a call gave that was not evaluated is as it was recorded.
void Again::forget(const Call& call) {
  for (const TensorView* t : given_by(call)) {
    drop(t->storage);
    lost_.erase(t->storage);
  }
}

void Again::evaluate_region(const Call& call, const std::vector<Value>& inputs) {
  std::vector<const TensorView*> given;
  for (const Value& v : call.result.items)
    given.push_back(v.kind == Value::Kind::kTensor ? &v.tensor : nullptr);
  for (const TensorView& w : call.written) given.push_back(&w);
  const auto found = aten::evaluated(*call.graph, inputs, given, binary64(pool_));
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == nullptr || !aten::is_float(given[i]->element)) continue;
    if (i < found.size() && found[i].has_value() && found[i]->dims == given[i]->dims) {
      write(*given[i], *found[i]);
    } else {
      drop(given[i]->storage);
      lost_[given[i]->storage] = "a region of torch.compile";
    }
  }
}

void Again::evaluate(const Call& call) {
  Call again = call;
  std::vector<std::unique_ptr<Array>> held;
  bool depends = false;
  const std::function<void(Value&)> fill = [&](Value& v) {
    for (Value& item : v.items) fill(item);
    TensorView& t = v.tensor;
    if (v.kind != Value::Kind::kTensor || !follows(call, t)) return;
    if (const auto lost = lost_.find(t.storage); lost != lost_.end() && is_forward(call))
      throw Undefined(fmt::format("{} has a result that no definition gives", lost->second));
    if (!aten::is_float(t.element) || t.data == nullptr || (t.parameter && !is_leaf(t.storage)))
      return;
    if (is_leaf(t.storage) && has_place(t) && t.elements() > 0) seed(t);
    if (!memory_.contains(t.storage)) return;
    depends = true;
    held.push_back(std::make_unique<Array>(read(t)));
    t.estimate = held.back().get();
  };
  for (Value& v : again.args) fill(v);
  for (auto& [name, v] : again.kwargs) fill(v);
  if (const auto other = draws_.find(call.index); other != draws_.end()) {
    const Call& drawn = trace_.calls[static_cast<size_t>(other->second)];
    const auto numbers = computed_by(drawn, read_by(drawn));
    const auto& mine = given_by(call);
    // A dropout by itself gives its mask, and what is left of its argument.
    if (base_name(call.op) == "aten.native_dropout")
      throw Undefined("a dropout that draws other numbers");
    for (size_t i = 0; i < std::min(mine.size(), numbers.size()); ++i)
      if (mine[i]->dims == numbers[i]->dims) write(*mine[i], aten::array_of(*numbers[i], pool_));
    return;
  }
  if (!depends || gives_no_values(base_name(call.op))) return forget(call);
  if (call.graph != nullptr) {
    if (again.args.empty()) throw Undefined("a region without its inputs");
    return evaluate_region(call, again.args[0].items);
  }
  // No definition may take what was recorded for the result, but for draws and choices.
  if (!draws_at_random(call.op)) {
    const std::function<void(Value&)> hide = [&](Value& v) {
      for (Value& item : v.items) hide(item);
      if (aten::is_float(v.tensor.element)) v.tensor.data = nullptr;
    };
    hide(again.result);
    for (TensorView& w : again.written)
      if (aten::is_float(w.element)) w.data = nullptr;
  }
  const std::vector<const TensorView*>& given = given_by(call);
  for (const TensorView* t : given) {
    if (!aten::is_float(t->element) && !aten::is_integer(t->element)) lost_[t->storage] = call.op;
  }
  if (std::ranges::none_of(given, [](const TensorView* t) { return aten::is_float(t->element); }))
    return;
  try {
    if (!again.args.empty() && again.args[0].tensor.estimate != nullptr) {
      if (const auto chosen = selected(call, *again.args[0].tensor.estimate)) {
        std::vector<const TensorView*> returned;
        aten::collect(call.result, returned);
        return write(*returned.front(), *chosen);
      }
    }
    const aten::Arithmetic m = binary64(pool_);
    if (is_forward(call)) refuse_what_is_meant(call, m);
    aten::Expected expected = aten::expected_of(again, m);
    if (expected.results.size() == 1 && expected.results[0].has_value())
      keep_padding(call, m, pool_, *expected.results[0]);
    const std::vector<const TensorView*> views = compared_views(call, expected.results.size());
    for (size_t i = 0; i < views.size(); ++i) {
      if (views[i] == nullptr) continue;
      const bool defined = i < expected.results.size() && expected.results[i].has_value();
      if (defined && aten::is_float(views[i]->element) &&
          expected.results[i]->dims == views[i]->dims) {
        write(*views[i], *expected.results[i]);
      } else {
        drop(views[i]->storage);
        if (aten::is_float(views[i]->element) && !draws_at_random(call.op))
          lost_[views[i]->storage] = call.op;
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
  lost_.clear();
  cells_ = 0;
  moves_ = at < 0 ? &moves : &kNone;
  by_ = by;
  for (const auto& [view, x] : held_)
    if (has_place(*view)) write(*view, x);
  for (const TensorView* view : first_)
    if (has_place(*view) && view->elements() > 0) seed(*view);
  for (int64_t i = begin_; i < std::min(end, end_); ++i) {
    const Call& call = trace_.calls[static_cast<size_t>(i)];
    if (call.failed || call.composed) continue;
    for (const TensorView* t : read_of(call))
      if (t->changed_unseen) drop(t->storage);
    // A weight is none of what is computed, however it got its first values.
    const auto& given = given_by(call);
    const bool to_leaf = is_forward(call) && std::ranges::any_of(given, [&](const TensorView* t) {
                           return is_leaf(t->storage);
                         });
    if (to_leaf && what_ == What::kFunction) throw Undefined("it writes what it is given");
    if ((call.optimizer && what_ != What::kUpdate) || to_leaf ||
        !needed_[static_cast<size_t>(i - begin_)]) {
      forget(call);
    } else if (!given.empty()) {
      evaluate(call);
    }
    if (i == at) {
      for (const auto& moved : moves) {
        const std::vector<double>& cells = moved.second;
        for (const TensorView* t : given_by(call)) {
          if (t->storage != moved.first || !has_place(*t)) continue;
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
    for (const uint64_t storage : last_read_[static_cast<size_t>(i - begin_)]) drop(storage);
  }
}

}  // namespace twinrun

// Evaluates recorded calls again, in binary64 and without the roundings of the step's own types: each
// on what the calls before it gave, not on what was recorded of them. Memory is that of the step:
// views and writes in place are followed element by element. What does not depend on the leaves that
// are asked for, integers, and what no definition gives (random draws) stay as they were recorded.
//
//   Again again(trace, begin, end, leaves, pool);
//   again.run(end, moved, [&](const Call& call) { ... again.read(view) ... });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backends/aten/array.h"
#include "harness/trace/function_uses.h"
#include "harness/trace/moves.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"

namespace twinrun {

// Runs what evaluates calls again; returns why that could not be done, "" if it was.
std::string why_not(const std::function<void()>& evaluates);

class Again {
 public:
  // A backward pass with its forward pass; an optimizer's update, whose leaves are written; one pass
  // of a Function of the script, which autograd does not follow; all that is computed of the leaves,
  // detached or not, which is for values and not for slopes.
  enum class What : uint8_t { kGradient, kUpdate, kFunction, kValues };

  // Calls `begin` to `end` of the trace. `leaves`: storages whose values are varied, and what
  // depends on them is evaluated.
  Again(const TraceFile& trace, int64_t begin, int64_t end, std::unordered_set<uint64_t> leaves,
        ThreadPool* pool, What what = What::kGradient);

  // Calls that draw at random, each with the call whose numbers it gives instead.
  void draw_as(std::map<int64_t, int64_t> draws) { draws_ = std::move(draws); }

  // In each run a view holds these values at first, instead of what was recorded of it.
  void hold(const aten::TensorView& view, aten::Array x) {
    held_.emplace_back(&view, std::move(x));
  }

  // A view of a leaf that has its values from the start: a result may be a view of it, which no call
  // reads.
  void begin_with(const aten::TensorView& view) { first_.push_back(&view); }
  // Uses of Functions that these calls belong to.
  const std::vector<ForwardUse>& uses() const { return uses_; }

  // Of the calls before `end` only those on which one of these storages depends, as it is then.
  void need(const std::vector<uint64_t>& storages, int64_t end);

  // Evaluates what is needed, up to call `end`, with `by` times `moves` added to the leaves; or, if
  // `at` >= 0, to memory that call `at` gave. `seen` is called after each call, whether or not it was
  // evaluated. Throws aten::Undefined where a call that depends on a leaf cannot be evaluated.
  void run(int64_t end, const Moves& moves, double by, int64_t at,
           const std::function<void(const aten::Call&)>& seen);

  // What a view holds now.
  aten::Array read(const aten::TensorView& view) const;
  // Adds `x`, elements of `view`, to `to`. False where the place of the view is not known.
  bool add(const aten::TensorView& view, const aten::Array& x, double by, Moves& to) const;

 private:
  struct Cells {
    int64_t unit = 0;  // bytes of an element
    std::vector<double> value;
    std::vector<uint8_t> known;
  };
  // Whether a view can be followed: a trace may name memory of any size.
  bool has_place(const aten::TensorView& view) const;
  bool is_leaf(uint64_t storage) const { return leaves_.contains(storage); }
  bool is_hidden(const aten::Call& call) const {
    return hidden_[static_cast<size_t>(call.index - begin_)];
  }
  bool follows(const aten::Call& call, const aten::TensorView& view) const;
  const ForwardUse* use_of(const aten::Call& call) const;
  static bool is_stopped(const ForwardUse& use, const aten::TensorView& view);
  void find_hidden();
  void evaluate(const aten::Call& call);
  void evaluate_region(const aten::Call& call, const std::vector<aten::Value>& inputs);
  void write(const aten::TensorView& view, const aten::Array& x);
  void forget(const aten::Call& call);
  void drop(uint64_t storage);
  void seed(const aten::TensorView& view);
  Cells& cells_of(const aten::TensorView& view);

  const std::vector<const aten::TensorView*>& read_of(const aten::Call& call) const {
    return read_[static_cast<size_t>(call.index - begin_)];
  }
  const std::vector<const aten::TensorView*>& given_by(const aten::Call& call) const {
    return given_[static_cast<size_t>(call.index - begin_)];
  }

  const TraceFile& trace_;
  int64_t begin_, end_;
  What what_;
  int64_t most_cells_, cells_ = 0;  // of all storages together
  std::unordered_set<uint64_t> leaves_;
  ThreadPool* pool_;
  // Calls without autograd whose results have a gradient later: the forward pass of a Function.
  std::vector<bool> hidden_;
  std::unordered_set<uint64_t> of_functions_;  // storages that those give
  std::vector<ForwardUse> uses_;               // of Functions
  std::vector<const ForwardUse*> use_of_;      // of each call: the one of those that makes it
  std::vector<bool> needed_;
  // Of each call: the tensors that it reads, and those that it computes.
  std::vector<std::vector<const aten::TensorView*>> read_, given_;
  std::vector<std::vector<uint64_t>>
      last_read_;  // for each call: storages that none reads after it
  std::vector<std::pair<const aten::TensorView*, aten::Array>> held_;  // hold()
  std::vector<const aten::TensorView*> first_;                         // begin_with()
  std::map<int64_t, int64_t> draws_;                                   // draw_as()
  std::unordered_map<uint64_t, Cells> memory_;
  std::unordered_map<uint64_t, std::string>
      lost_;  // storages that depend on a leaf: what gave them
  const Moves* moves_ = nullptr;
  double by_ = 0;
};

}  // namespace twinrun

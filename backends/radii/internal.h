// Shared by the files of this folder: a value of the walk, the op that is evaluated, and one
// function per class of ops.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "backends/oracle/internal.h"
#include "backends/radii/interval.h"

namespace twinrun::radii {

// A value during the walk; `type` is not set.
struct Known : Bounded {
  // Of a sum of `terms` that were added one by one: the sum of their sizes (f64). A compiler may add
  // them in another order.
  Tensor mass;
  double terms = 1;
  // The sum is a reduction. The importer makes sums of windows from reductions along some axes and
  // additions along others, whose names have this stem; only those are one sum.
  bool reduced = false;
  std::string stem;
  bool one_sum_with(const Op& op) const;
};

inline Interval at(const Bounded& x, int64_t i) {
  const double v = number_at(x.value, i);
  if (x.exact()) return exactly(v);
  return {v, number_at(x.low, i), number_at(x.high, i)};
}

// Values that the rule of an op reads besides its operands, because the operands depend on each
// other: of x == maximum(x, y) the y.
std::vector<ValueId> also_read(const Graph& graph, const Op& op);

// An op's name without the numbers at its end: ops that the importer made of one instruction share
// it, and so may others.
std::string stem_of(const Op& op);

struct Site {
  const Graph& graph;
  const Op& op;
  const FusedArithmetic& may;
  ThreadPool* pool;
  std::vector<const Known*> x;  // operands, then what is also read
  // How many sums of this op's size later sums may add up, if a compiler makes them one sum.
  double later = 1;
  // Of a product of exact operands: its error per element, from an earlier product of nearly the
  // same numbers; filled in where it is not valid. nullptr: not wanted.
  Tensor* error = nullptr;

  const Op& operand(size_t i) const { return graph.op(op.operands[i]); }
  Rules rules() const { return {may, op.type.dtype}; }
  bool floats() const { return is_floating(op.type.dtype); }
  bool all_exact() const {
    return std::ranges::all_of(x, [](const Known* k) { return k->exact(); });
  }
};

// Where an op writes its intervals.
struct Planes {
  double *value, *low, *high;
  void set(int64_t i, Interval e) const { value[i] = e.value, low[i] = e.low, high[i] = e.high; }
};
Known fresh(const Op& op);  // f64 planes of the op's sizes, uninitialised
inline Planes planes_of(Known& k) {
  return {k.value.as<double>().data(), k.low.as<double>().data(), k.high.as<double>().data()};
}

// The result of an op on exact operands, by the oracle; for ops that never round.
Known by_oracle(const Site& site);

Known eval_move(const Site& site);       // broadcast ... pad, and gather
Known eval_pointwise(const Site& site);  // elementwise ops, select, negate, abs
Known eval_product(const Site& site);    // dots, convolutions and their gradients
Known eval_sum(const Site& site);        // reduce, scatter_add
Known eval_window(const Site& site);     // pooling and its gradients

}  // namespace twinrun::radii

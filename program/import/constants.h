// Values of a graph that are known before it runs, because they follow from constants: the counters
// and conditions of loops, starts of slices, indices. Between lowering rules and the graph.
//
//   Constants constants(graph);
//   constants.integer(start);          // 3, or nothing if it depends on a parameter
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "program/base/tensor.h"
#include "program/ops/graph.h"

namespace twinrun {

// The elements of a known value; all of them if there is only one number.
struct KnownValue {
  TensorType type;
  std::vector<double> numbers;  // every i32, pred and f32 is exact in binary64
  bool splat() const { return numbers.size() == 1; }
  double at(int64_t i) const { return splat() ? numbers[0] : numbers[static_cast<size_t>(i)]; }
};

inline constexpr int64_t kMaxKnownElements = 1 << 16;  // of one array, unless all are equal

class Constants {
 public:
  explicit Constants(const Graph& graph) : graph_(graph) {}

  // The value, or nullptr if it is not known. Computes it from its operands, each only once. The
  // pointer stays valid.
  const KnownValue* of(ValueId id);
  std::optional<int64_t> integer(ValueId id);  // of an i32 or pred with one element
  // Declares what a parameter of the graph is fed with at every step.
  void declare(ValueId id, const Tensor& value);

 private:
  std::optional<KnownValue> computed(const Op& op);
  const KnownValue* found(ValueId id) const;

  const Graph& graph_;
  std::unordered_map<ValueId, std::optional<KnownValue>> known_;
  // Limits the work for a hostile text. Beyond it, only values with one number are computed.
  int64_t budget_ = int64_t{1} << 23;
};

}  // namespace twinrun

// A graph in static single-assignment form: value i is the result of op i, and operands come
// earlier. Layers, import and autodiff build graphs; a Program holds one.
//
//   Graph g;
//   GraphBuilder b(g);
//   ValueId x = b.parameter("images", {DType::kF32, {8, 4}});
//   ValueId y = b.scope("dense1").dot(x, w);          // named "dense1/dot_general"
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "program/base/result.h"
#include "program/ops/op.h"

namespace twinrun {

// Thrown by graph construction on ill-typed ops. The callers that face the user (scenarios, import)
// turn it into an Error with a location. Its text: "dense1/dot_general: contracted sizes 784 and
// 100 differ".
class GraphError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The dimensions 0 .. rank - 1 without those in `left_out`, ascending: those that a reduction
// keeps, or all.
Dims other_dims(int64_t rank, const Dims& left_out = {});

class Graph {
 public:
  // Infers the op's type and makes its name unique (":2", ":3", ...). Throws GraphError.
  ValueId add(Op op);
  const Op& op(ValueId id) const { return ops_[static_cast<size_t>(id)]; }
  const TensorType& type(ValueId id) const { return op(id).type; }
  ValueId size() const { return static_cast<ValueId>(ops_.size()); }
  std::span<const Op> ops() const { return ops_; }
  ValueId find(std::string_view name) const;  // kNoValue if absent
  void rename(ValueId id, std::string name);  // GraphError if the name is in use

 private:
  std::vector<Op> ops_;
  std::unordered_map<std::string, ValueId> by_name_;
};

// Adds ops to a graph under a scope prefix and a phase. `local` is the op's name in the scope
// (default: the name of its kind).
class GraphBuilder {
 public:
  explicit GraphBuilder(Graph& graph, std::string scope = "", Phase phase = Phase::kForward)
      : graph_(&graph), scope_(std::move(scope)), phase_(phase) {}

  GraphBuilder scope(std::string_view name) const;  // nested with '/'
  // Names become "<base>.<local>", as gradients and updates need.
  GraphBuilder derived(std::string base, Phase phase) const;
  Graph& graph() const { return *graph_; }
  const TensorType& type(ValueId id) const { return graph_->type(id); }

  ValueId parameter(std::string name, TensorType type);
  ValueId constant(double value, DType dtype = DType::kF32, std::string_view local = "constant");
  ValueId iota(Dims shape, int64_t dim, DType dtype = DType::kI32, std::string_view local = "iota");
  ValueId broadcast(ValueId x, Dims shape, Dims dims, std::string_view local = "broadcast");
  ValueId broadcast_scalar(ValueId x, ValueId like, std::string_view local = "broadcast");
  // x is a vector along the last dimension of `like` (a bias, a per-channel scale).
  ValueId broadcast_trailing(ValueId x, ValueId like, std::string_view local = "broadcast");
  ValueId reshape(ValueId x, Dims shape, std::string_view local = "reshape");
  ValueId transpose(ValueId x, Dims permutation, std::string_view local = "transpose");
  ValueId concatenate(ValueId a, ValueId b, int64_t axis, std::string_view local = "concatenate");
  ValueId slice(ValueId x, int64_t axis, int64_t begin, int64_t end,
                std::string_view local = "slice");
  ValueId pad(ValueId x, int64_t axis, int64_t low, int64_t high, std::string_view local = "pad");
  ValueId gather(ValueId x, ValueId ids, std::string_view local = "gather");
  ValueId scatter_add(ValueId ids, ValueId dy, Dims shape, std::string_view local = "scatter_add");
  ValueId select(ValueId p, ValueId a, ValueId b, std::string_view local = "select");
  ValueId convert(ValueId x, DType dtype, std::string_view local = "convert");
  ValueId bitcast(ValueId x, DType dtype, std::string_view local = "bitcast_convert");
  ValueId sort_order(ValueId x, std::string_view local = "sort_order");
  ValueId unary(OpKind kind, ValueId x, std::string_view local = "");
  ValueId binary(OpKind kind, ValueId a, ValueId b, std::string_view local = "");
  ValueId add(ValueId a, ValueId b, std::string_view l = "") {
    return binary(OpKind::kAdd, a, b, l);
  }
  ValueId sub(ValueId a, ValueId b, std::string_view l = "") {
    return binary(OpKind::kSubtract, a, b, l);
  }
  ValueId mul(ValueId a, ValueId b, std::string_view l = "") {
    return binary(OpKind::kMultiply, a, b, l);
  }
  ValueId div(ValueId a, ValueId b, std::string_view l = "") {
    return binary(OpKind::kDivide, a, b, l);
  }
  // x times (or plus, ...) a constant.
  ValueId binary_scalar(OpKind kind, ValueId x, double value, std::string_view local = "");
  ValueId compare(CompareKind kind, ValueId a, ValueId b, std::string_view local = "compare");
  ValueId dot(ValueId a, ValueId b, int lhs_contract = 1, int rhs_contract = 0,
              std::string_view local = "dot_general", int batch_dims = 0);
  ValueId convolution(ValueId x, ValueId w, const Window& window,
                      std::string_view local = "convolution", int64_t groups = 1);
  ValueId convolution_input_grad(ValueId dy, ValueId w, Dims x_dims, const Window&,
                                 std::string_view local, int64_t groups = 1);
  ValueId convolution_kernel_grad(ValueId x, ValueId dy, Dims w_dims, const Window&,
                                  std::string_view local, int64_t groups = 1);
  ValueId reduce(ValueId x, Dims dims, Reducer reducer, std::string_view local = "reduce",
                 bool stop_gradient = false);
  ValueId reduce_window(ValueId x, const Window& window, Reducer reducer,
                        std::string_view local = "reduce_window");
  ValueId select_and_scatter(ValueId x, ValueId dy, const Window& window, std::string_view local);
  ValueId avg_pool_grad(ValueId dy, Dims x_dims, const Window& window, std::string_view local);
  ValueId rng_uniform(ValueId step, ValueId sample_ids, Dims shape, uint64_t seed, uint32_t stream,
                      std::string_view local = "rng_uniform");
  ValueId all_reduce(ValueId x, std::string_view local = "all_reduce");

 private:
  ValueId emit(OpKind kind, std::vector<ValueId> operands, Attrs attrs, std::string_view local);

  Graph* graph_;
  std::string scope_;
  Phase phase_;
  bool dotted_ = false;  // joins scope and local name by '.' instead of '/'
};

}  // namespace twinrun

// Adding ops to a graph with checked types and unique names, and the builder's methods.
#include "program/ops/graph.h"

#include <algorithm>

#include "program/ops/op_def.h"

namespace twinrun {

Dims other_dims(int64_t rank, const Dims& left_out) {
  Dims out;
  for (int64_t i = 0; i < rank; ++i) {
    if (std::find(left_out.begin(), left_out.end(), i) == left_out.end()) out.push_back(i);
  }
  return out;
}

ValueId Graph::add(Op op) {
  if (static_cast<int>(op.operands.size()) != operand_count(op.kind)) {
    throw GraphError(op.name + ": " + std::string(name_of(op.kind)) + " takes " +
                     std::to_string(operand_count(op.kind)) + " operands");
  }
  std::vector<TensorType> in;
  in.reserve(op.operands.size());
  for (ValueId id : op.operands) {
    if (id < 0 || id >= size()) throw GraphError(op.name + ": operand does not exist");
    in.push_back(type(id));
  }
  op.type = op_def(op.kind).infer(op, in);
  if (by_name_.contains(op.name)) {
    int n = 2;
    while (by_name_.contains(op.name + ":" + std::to_string(n))) ++n;
    op.name += ":" + std::to_string(n);
  }
  const ValueId id = size();
  by_name_[op.name] = id;
  ops_.push_back(std::move(op));
  return id;
}

ValueId Graph::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? kNoValue : it->second;
}

void Graph::rename(ValueId id, std::string name) {
  if (by_name_.contains(name)) throw GraphError(name + ": this name is already in use");
  by_name_.erase(ops_[static_cast<size_t>(id)].name);
  by_name_[name] = id;
  ops_[static_cast<size_t>(id)].name = std::move(name);
}

GraphBuilder GraphBuilder::scope(std::string_view name) const {
  return GraphBuilder(
      *graph_, scope_.empty() ? std::string(name) : scope_ + "/" + std::string(name), phase_);
}

GraphBuilder GraphBuilder::derived(std::string base, Phase phase) const {
  GraphBuilder b(*graph_, std::move(base), phase);
  b.dotted_ = true;
  return b;
}

ValueId GraphBuilder::emit(OpKind kind, std::vector<ValueId> operands, Attrs attrs,
                           std::string_view local) {
  Op op;
  op.kind = kind;
  op.operands = std::move(operands);
  op.attrs = std::move(attrs);
  op.phase = kind == OpKind::kAllReduce ? Phase::kCollective : phase_;
  const std::string name(local.empty() ? name_of(kind) : local);
  op.name = scope_.empty() ? name : scope_ + (dotted_ ? "." : "/") + name;
  return graph_->add(std::move(op));
}

ValueId GraphBuilder::parameter(std::string name, TensorType type) {
  Op op;
  op.kind = OpKind::kParameter;
  op.type = std::move(type);
  op.phase = phase_;
  op.name = std::move(name);
  return graph_->add(std::move(op));
}
ValueId GraphBuilder::constant(double value, DType dtype, std::string_view local) {
  Attrs a;
  a.value = value;
  a.dtype = dtype;
  return emit(OpKind::kConstant, {}, a, local);
}
ValueId GraphBuilder::iota(Dims shape, int64_t dim, DType dtype, std::string_view local) {
  Attrs a;
  a.shape = std::move(shape);
  a.dims = {dim};
  a.dtype = dtype;
  return emit(OpKind::kIota, {}, a, local);
}
ValueId GraphBuilder::broadcast(ValueId x, Dims shape, Dims dims, std::string_view local) {
  Attrs a;
  a.shape = std::move(shape);
  a.dims = std::move(dims);
  return emit(OpKind::kBroadcastInDim, {x}, a, local);
}
ValueId GraphBuilder::broadcast_scalar(ValueId x, ValueId like, std::string_view local) {
  const Op& target = graph_->op(like);
  if (target.type.dims.empty()) return x;
  return broadcast(x, target.type.dims, {}, local);
}
ValueId GraphBuilder::broadcast_trailing(ValueId x, ValueId like, std::string_view local) {
  const Op& target = graph_->op(like);
  return broadcast(x, target.type.dims, {target.type.rank() - 1}, local);
}
ValueId GraphBuilder::reshape(ValueId x, Dims shape, std::string_view local) {
  Attrs a;
  a.shape = std::move(shape);
  return emit(OpKind::kReshape, {x}, a, local);
}
ValueId GraphBuilder::transpose(ValueId x, Dims permutation, std::string_view local) {
  Attrs a;
  a.dims = std::move(permutation);
  return emit(OpKind::kTranspose, {x}, a, local);
}
ValueId GraphBuilder::concatenate(ValueId a, ValueId b, int64_t axis, std::string_view local) {
  Attrs attrs;
  attrs.dims = {axis};
  return emit(OpKind::kConcatenate, {a, b}, attrs, local);
}
ValueId GraphBuilder::slice(ValueId x, int64_t axis, int64_t begin, int64_t end,
                            std::string_view local) {
  Attrs a;
  a.dims = {axis, begin, end};
  return emit(OpKind::kSlice, {x}, a, local);
}
ValueId GraphBuilder::pad(ValueId x, int64_t axis, int64_t low, int64_t high,
                          std::string_view local) {
  Attrs a;
  a.dims = {axis, low, high};
  return emit(OpKind::kPad, {x}, a, local);
}
ValueId GraphBuilder::gather(ValueId x, ValueId ids, std::string_view local) {
  return emit(OpKind::kGather, {x, ids}, {}, local);
}
ValueId GraphBuilder::scatter_add(ValueId ids, ValueId dy, Dims shape, std::string_view local) {
  Attrs a;
  a.shape = std::move(shape);
  return emit(OpKind::kScatterAdd, {ids, dy}, a, local);
}
ValueId GraphBuilder::select(ValueId p, ValueId a, ValueId b, std::string_view local) {
  return emit(OpKind::kSelect, {p, a, b}, {}, local);
}
ValueId GraphBuilder::convert(ValueId x, DType dtype, std::string_view local) {
  Attrs a;
  a.dtype = dtype;
  return emit(OpKind::kConvert, {x}, a, local);
}
ValueId GraphBuilder::bitcast(ValueId x, DType dtype, std::string_view local) {
  Attrs a;
  a.dtype = dtype;
  return emit(OpKind::kBitcastConvert, {x}, a, local);
}
ValueId GraphBuilder::sort_order(ValueId x, std::string_view local) {
  return emit(OpKind::kSortOrder, {x}, {}, local);
}
ValueId GraphBuilder::unary(OpKind kind, ValueId x, std::string_view local) {
  return emit(kind, {x}, {}, local);
}
ValueId GraphBuilder::binary(OpKind kind, ValueId a, ValueId b, std::string_view local) {
  return emit(kind, {a, b}, {}, local);
}
ValueId GraphBuilder::binary_scalar(OpKind kind, ValueId x, double value, std::string_view local) {
  const std::string name(local.empty() ? name_of(kind) : local);
  const ValueId c = constant(value, type(x).dtype, name + "_constant");
  return binary(kind, x, broadcast_scalar(c, x, name + "_constants"), name);
}
ValueId GraphBuilder::compare(CompareKind kind, ValueId a, ValueId b, std::string_view local) {
  Attrs attrs;
  attrs.compare = kind;
  return emit(OpKind::kCompare, {a, b}, attrs, local);
}
ValueId GraphBuilder::dot(ValueId a, ValueId b, int lhs_contract, int rhs_contract,
                          std::string_view local, int batch_dims) {
  Attrs attrs;
  attrs.lhs_contract = lhs_contract;
  attrs.rhs_contract = rhs_contract;
  attrs.batch_dims = batch_dims;
  return emit(OpKind::kDotGeneral, {a, b}, attrs, local);
}
ValueId GraphBuilder::convolution(ValueId x, ValueId w, const Window& window,
                                  std::string_view local, int64_t groups) {
  Attrs attrs;
  attrs.window = window;
  attrs.groups = groups;
  return emit(OpKind::kConvolution, {x, w}, attrs, local);
}
ValueId GraphBuilder::convolution_input_grad(ValueId dy, ValueId w, Dims x_dims,
                                             const Window& window, std::string_view local,
                                             int64_t groups) {
  Attrs attrs;
  attrs.window = window;
  attrs.groups = groups;
  attrs.shape = std::move(x_dims);
  return emit(OpKind::kConvolutionInputGrad, {dy, w}, attrs, local);
}
ValueId GraphBuilder::convolution_kernel_grad(ValueId x, ValueId dy, Dims w_dims,
                                              const Window& window, std::string_view local,
                                              int64_t groups) {
  Attrs attrs;
  attrs.window = window;
  attrs.groups = groups;
  attrs.shape = std::move(w_dims);
  return emit(OpKind::kConvolutionKernelGrad, {x, dy}, attrs, local);
}
ValueId GraphBuilder::reduce(ValueId x, Dims dims, Reducer reducer, std::string_view local,
                             bool stop_gradient) {
  Attrs attrs;
  attrs.dims = std::move(dims);
  attrs.reducer = reducer;
  attrs.stop_gradient = stop_gradient;
  return emit(OpKind::kReduce, {x}, attrs, local);
}
ValueId GraphBuilder::reduce_window(ValueId x, const Window& window, Reducer reducer,
                                    std::string_view local) {
  Attrs attrs;
  attrs.window = window;
  attrs.reducer = reducer;
  return emit(OpKind::kReduceWindow, {x}, attrs, local);
}
ValueId GraphBuilder::select_and_scatter(ValueId x, ValueId dy, const Window& window,
                                         std::string_view local) {
  Attrs attrs;
  attrs.window = window;
  return emit(OpKind::kSelectAndScatter, {x, dy}, attrs, local);
}
ValueId GraphBuilder::avg_pool_grad(ValueId dy, Dims x_dims, const Window& window,
                                    std::string_view local) {
  Attrs attrs;
  attrs.window = window;
  attrs.shape = std::move(x_dims);
  return emit(OpKind::kAvgPoolGrad, {dy}, attrs, local);
}
ValueId GraphBuilder::rng_uniform(ValueId step, ValueId sample_ids, Dims shape, uint64_t seed,
                                  uint32_t stream, std::string_view local) {
  Attrs attrs;
  attrs.shape = std::move(shape);
  attrs.seed = seed;
  attrs.stream = stream;
  attrs.stop_gradient = true;
  return emit(OpKind::kRngUniform, {step, sample_ids}, attrs, local);
}
ValueId GraphBuilder::all_reduce(ValueId x, std::string_view local) {
  return emit(OpKind::kAllReduce, {x}, {}, local);
}

}  // namespace twinrun

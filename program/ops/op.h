// One operation of a program: kind, operands, attributes, the type of its one result, its stable
// name. Ops make up a Graph (graph.h). Bits: docs/method/numerics.md.
//
// Semantics per kind. Types are f32 or bf16 unless noted; an elementwise op on bf16 converts to
// f32, computes, and rounds once.
//   parameter              an input or a state variable; no attributes
//   constant               scalar if attrs.shape is {}, else a splat of it; attrs.value,
//                          attrs.dtype
//   iota                   attrs.shape, attrs.dtype (i32|f32): the index along attrs.dims[0]
//   broadcast_in_dim(x)    result attrs.shape; operand dimension i becomes result dimension
//                          attrs.dims[i]; a dimension of size 1 repeats
//   reshape(x)             attrs.shape, the same elements in row-major order
//   transpose(x)           result dimension i is operand dimension attrs.dims[i]
//   select(p, a, b)        p is pred with the same dims; p ? a : b, bits moved
//   concatenate(a, b)      along attrs.dims[0]: a's elements, then b's
//   slice(x)               along attrs.dims[0]: elements [attrs.dims[1], attrs.dims[2])
//   pad(x)                 along attrs.dims[0]: attrs.dims[1] zeros before, attrs.dims[2] after
//                          (+0, 0, false)
//   gather(x, ids)         ids i32 of any dims: row ids[i] of x along its outermost dimension;
//                          result dims(ids) + dims(x)[1:]. An index out of range becomes the
//                          nearest valid one (StableHLO clamps too)
//   negate, abs            change the sign bit only (NaN becomes canonical)
//   convert(x)             to attrs.dtype: i32->f32 nearest even; pred->f32 0/1; f32->bf16 nearest
//                          even; bf16->f32 exact; f32->i32 toward zero, saturating, NaN -> 0
//   add subtract multiply divide  f32 or i32 (i32 wraps; its quotient is cut toward zero, x / 0 is
//                          -1 and -2^31 / -1 is -2^31)
//   remainder(a, b)        i32 with the sign of a: a - b * (a / b); a where b is 0
//   and, or, xor           i32, bit by bit
//   shift_left, shift_right_logical, shift_right_arithmetic  i32 by b bits; by fewer than 0 or more
//                          than 31 bits 0, or the sign everywhere (arithmetic)
//   bitcast_convert(x)     f32 -> i32 or i32 -> f32 (attrs.dtype): the same bits, never flushed; a
//                          NaN becomes canonical
//   maximum minimum        IEEE 754-2019 maximum/minimum: NaN propagates, +0 > -0
//   compare(a, b)          attrs.compare; f32 or i32 -> pred; comparisons with NaN are false,
//                          except ne
//   sqrt                   correctly rounded; rsqrt = 1 / sqrt(x), each rounded; exponential, log
//                          and tanh correctly rounded
//   logistic               1 / (1 + exp(-x)), each node rounded
//   sine, cosine           correctly rounded, for all finite arguments; NaN for infinite ones
//   erf, log1p             the error function and log(1 + x), correctly rounded
//   dot_general(a, b)      attrs.batch_dims leading dimensions in common, then two more of each.
//                          Contracts a's dimension batch_dims + attrs.lhs_contract with b's
//                          dimension batch_dims + attrs.rhs_contract; result [batch dims, a's
//                          other, b's other]; k ascending
//   convolution(x, w)      x [n,h,w,ci], w [kh,kw,ci,co] -> [n,oh,ow,co]; attrs.window; no flip
//                          (cross-correlation); flat k = (kh, kw, ci); taps outside the image
//                          multiply +0. attrs.groups = G: group g of co/G outputs reads group g of
//                          the inputs, w is [kh,kw,ci/G,co], and each group is a separate
//                          convolution
//   convolution_input_grad(dy, w)  attrs.shape = x's dims; k = (kh, kw, co) in the forward kernel's
//                          order; taps that meet no dy (border, stride) multiply +0
//   convolution_kernel_grad(x, dy)  attrs.shape = w's dims; k = (n, oh, ow); segments of 4096
//   reduce(x)              removes attrs.dims; attrs.reducer sum | max | mean (mean = sum / N, one
//                          division); the flat reduced index is row-major over the reduced
//                          dimensions in ascending order
//   scatter_add(ids, dy)   attrs.shape = [rows, ...]; y[ids[i]] += dy[i] in ascending i, starting
//                          from the first contribution; rows without any are +0; indices clamp as
//                          in gather
//   reduce_window(x)       NHWC pooling, attrs.window, reducer max | mean (mean over the taps
//                          inside the image: taps in (kh, kw) order, summed sequentially, then one
//                          division by their count)
//   select_and_scatter(x, dy)  gradient of max pooling: dx[first maximum of each window] += dy.
//                          Several windows that select the same x add in ascending (oh, ow) order,
//                          starting from the first contribution; elements without any are +0; a
//                          window with NaN selects its first NaN
//   avg_pool_grad(dy)      attrs.shape = x's dims; dx = sum of dy / count over the windows that
//                          contain x, in ascending (oh, ow), each quotient rounded, starting from
//                          the first contribution; elements without any are +0
//   rng_uniform(step, sample_ids)  f32 attrs.shape = [n, ...]; element e of sample s is
//                          uniform(draw({attrs.seed, kStreamOps + attrs.stream}, step,
//                          sample_ids[s], e)) (program/base/philox.h)
//   sort_order(x)          i32: the positions along the last dimension in ascending order of x, i32;
//                          equal elements keep their order. (JAX sorts floats by such a key.)
//   all_reduce(x)          sum over replicas in the ring order of docs/method/numerics.md (rule
//                          7); every replica has the result
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/base/types.h"

namespace twinrun {

enum class OpKind : uint8_t {
#define X(Enumerator, name, operands, cls, shown, degree) k##Enumerator,
#include "program/ops.def"
#undef X
};
inline constexpr int kOpKinds = 0
#define X(Enumerator, name, operands, cls, shown, degree) +1
#include "program/ops.def"
#undef X
    ;

enum class OpClass : uint8_t {
  kSource,
  kMove,
  kElementwise,
  kDot,
  kReduce,
  kWindow,
  kRandom,
  kCollective
};

// Columns of the table, explained there.
enum class ShownAttributes : uint8_t {
  kNone,
  kValue,
  kDim,
  kDims,
  kReducerAndDims,
  kReducerAndWindow,
  kCompare,
  kContraction,
  kWindow,
  kWindowAndGroups,
  kSeed
};
enum class Degree : uint8_t { kMost, kSum, kQuotient, kOneMore, kChoice, kVariable, kFunction };

std::string_view name_of(OpKind kind);  // "dot_general"
int operand_count(OpKind kind);
OpClass class_of(OpKind kind);
// exp, log, tanh and the like, whose results an engine may declare to be some ulps off.
bool is_elementary(OpKind kind);
// These and rsqrt, which rounds twice. Moves and ops that round once have the same bits in every
// engine.
inline bool has_ulps(OpKind kind) { return is_elementary(kind) || kind == OpKind::kRsqrt; }
ShownAttributes shown_attributes_of(OpKind kind);
Degree degree_of(OpKind kind);

enum class Phase : uint8_t { kForward, kGradient, kCollective, kUpdate };
std::string_view to_string(Phase phase);  // "forward", ...

enum class Reducer : uint8_t { kSum, kMax, kMean };
enum class CompareKind : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };

// A 2-D window over [n, h, w, c]; index 0 is h, 1 is w. Padding may not be negative.
struct Window {
  int64_t size[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t pad_low[2] = {0, 0};
  int64_t pad_high[2] = {0, 0};
  int64_t dilation[2] = {1, 1};  // convolution only
  // Output size along axis i for an input of `in`; 0 where the window does not fit.
  int64_t out(int64_t in, int i) const {
    const int64_t room = in + pad_low[i] + pad_high[i] - (dilation[i] * (size[i] - 1) + 1);
    return room < 0 ? 0 : room / stride[i] + 1;
  }
  bool operator==(const Window&) const = default;
};

struct Attrs {
  // The meaning depends on the op. broadcast: the dimension of the result for each dimension of the
  // operand; transpose: the permutation; reductions: the reduced dimensions; iota: its dimension;
  // concatenate: {axis}; slice: {axis, begin, end}; pad: {axis, low, high}.
  Dims dims;
  Dims shape;                 // the result's sizes, where they do not follow from the operands
  DType dtype = DType::kF32;  // constant, iota, convert
  double value = 0;           // constant
  Reducer reducer = Reducer::kSum;
  CompareKind compare = CompareKind::kEq;
  int lhs_contract = 1, rhs_contract = 0;
  int batch_dims = 0;  // dot_general
  int64_t groups = 1;  // the convolutions
  Window window;
  uint64_t seed = 0;  // rng_uniform
  uint32_t stream = 0;
  bool stop_gradient = false;
};

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct Op {
  OpKind kind = OpKind::kParameter;
  std::vector<ValueId> operands;
  Attrs attrs;
  TensorType type;  // of the result
  Phase phase = Phase::kForward;
  std::string name;  // unique in its graph: "conv1/convolution", "conv1/kernel.grad"
};

}  // namespace twinrun

// Tests of graph construction: the type that each op infers, the operands that it refuses, and its
// name.
#include "program/ops/graph.h"

#include <gtest/gtest.h>

#include <functional>

#include "program/ops/op_def.h"

namespace twinrun {
namespace {

struct Fixture {
  Graph graph;
  GraphBuilder b{graph, "layer1"};
  ValueId f32(Dims dims) { return of(DType::kF32, std::move(dims)); }
  ValueId of(DType dtype, Dims dims) {
    return b.parameter("p" + std::to_string(graph.size()), {dtype, std::move(dims)});
  }
  Dims dims(ValueId id) const { return graph.type(id).dims; }
};

std::string refusal(const std::function<void(Fixture&)>& build) {
  Fixture f;
  try {
    build(f);
  } catch (const GraphError& e) {
    return e.what();
  }
  return "accepted";
}
Window window(int64_t size, int64_t stride = 1, int64_t pad = 0) {
  return {{size, size}, {stride, stride}, {pad, pad}, {pad, pad}};
}

TEST(Infer, ErrorsNameTheOpAndTheTypes) {
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.dot(f.f32({128, 784}), f.f32({100, 10}));
            }),
            "layer1/dot_general: contracted sizes 784 and 100 differ");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.dot(f.f32({2, 3, 4}), f.f32({4, 2}));
            }),
            "layer1/dot_general: dot_general of f32[2,3,4] and f32[4,2] (allowed: two matrices of "
            "one dtype)");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.dot(f.f32({2, 3}), f.of(DType::kBF16, {3, 2}));
            }),
            "layer1/dot_general: dot_general of f32[2,3] and bf16[3,2] (allowed: two matrices of "
            "one dtype)");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.add(f.f32({2, 3}), f.f32({3, 2}));
            }),
            "layer1/add: add of f32[2,3] and f32[3,2]");
  EXPECT_EQ(refusal([](Fixture& f) { f.b.div(f.of(DType::kI32, {2}), f.of(DType::kI32, {2})); }),
            "layer1/divide: divide of i32");
  EXPECT_EQ(refusal([](Fixture& f) { f.b.unary(OpKind::kExponential, f.of(DType::kI32, {2})); }),
            "layer1/exponential: exponential of i32[2] (allowed: f32, bf16)");
  EXPECT_EQ(refusal([](Fixture& f) { f.b.compare(CompareKind::kLt, f.f32({2}), f.f32({3})); }),
            "layer1/compare: compare of f32[2] and f32[3]");
  EXPECT_EQ(refusal([](Fixture& f) { f.b.select(f.f32({2}), f.f32({2}), f.f32({2})); }),
            "layer1/select: select of f32[2], f32[2] and f32[2]");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.reshape(f.f32({2, 3}), {4});
            }),
            "layer1/reshape: cannot reshape f32[2,3] to [4]");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.transpose(f.f32({2, 3}), {0, 0});
            }),
            "layer1/transpose: [0,0] is not a permutation");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.broadcast(f.f32({3}), {3, 2}, {1});
            }),
            "layer1/broadcast: cannot broadcast f32[3] to [3,2]");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.broadcast(f.f32({3}), {3, 2}, {});
            }),
            "layer1/broadcast: broadcast of f32[3] names 0 dimensions");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.reduce(f.f32({2, 3}), {2}, Reducer::kSum);
            }),
            "layer1/reduce: reduce of f32[2,3] over [2]");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.reduce(f.f32({2, 3}), {0, 0}, Reducer::kSum);
            }),
            "layer1/reduce: reduce of f32[2,3] over [0,0]");
  EXPECT_EQ(refusal([](Fixture& f) { f.b.iota({3}, 1); }),
            "layer1/iota: iota needs one dimension inside its shape");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.convolution(f.f32({1, 8, 8, 3}), f.f32({3, 3, 4, 5}), window(3));
            }),
            "layer1/convolution: convolution of f32[1,8,8,3] with f32[3,3,4,5]");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.convolution(f.f32({1, 2, 2, 3}), f.f32({3, 3, 3, 5}), window(3));
            }),
            "layer1/convolution: a 3x3 kernel does not fit into f32[1,2,2,3]");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.convolution(f.f32({8, 8, 3}), f.f32({3, 3, 3, 5}), window(3));
            }),
            "layer1/convolution: input is f32[8,8,3] (allowed: rank 4)");
  EXPECT_EQ(refusal([](Fixture& f) {
              f.b.reduce_window(f.f32({1, 2, 2, 3}), window(3), Reducer::kMax);
            }),
            "layer1/reduce_window: a 3x3 window does not fit into f32[1,2,2,3]");
  EXPECT_EQ(
      refusal([](Fixture& f) {
        f.b.rng_uniform(f.of(DType::kI32, {}), f.of(DType::kI32, {4}), {5, 2}, 1, 0);
      }),
      "layer1/rng_uniform: rng_uniform needs i32[] step and i32[n] sample_ids for shape [n, ...]");
}

TEST(Infer, OperandsMustExistAndBeAsMany) {
  EXPECT_EQ(refusal([](Fixture& f) { f.b.unary(OpKind::kAbs, 7); }),
            "layer1/abs: operand does not exist");
  EXPECT_EQ(refusal([](Fixture& f) { f.b.unary(OpKind::kAbs, kNoValue); }),
            "layer1/abs: operand does not exist");
  EXPECT_EQ(refusal([](Fixture& f) { f.b.unary(OpKind::kAdd, f.f32({1})); }),
            "layer1/add: add takes 2 operands");
}

TEST(Infer, Shapes) {
  Fixture f;
  EXPECT_EQ(f.dims(f.b.dot(f.f32({2, 3}), f.f32({3, 5}), 1, 0)), (Dims{2, 5}));
  EXPECT_EQ(f.dims(f.b.dot(f.f32({3, 2}), f.f32({3, 5}), 0, 0)), (Dims{2, 5}));
  EXPECT_EQ(f.dims(f.b.dot(f.f32({2, 3}), f.f32({5, 3}), 1, 1)), (Dims{2, 5}));
  EXPECT_EQ(f.dims(f.b.dot(f.f32({3, 2}), f.f32({5, 3}), 0, 1)), (Dims{2, 5}));
  EXPECT_EQ(f.dims(f.b.transpose(f.f32({2, 3, 4}), {2, 0, 1})), (Dims{4, 2, 3}));
  EXPECT_EQ(f.dims(f.b.reduce(f.f32({2, 3, 4}), {0, 2}, Reducer::kMean)), (Dims{3}));
  Window w{{3, 2}, {2, 1}, {1, 0}, {0, 1}, {2, 1}};
  // (9 + 1 + 0 - 5) / 2 + 1 = 3; (7 + 0 + 1 - 2) / 1 + 1 = 7
  EXPECT_EQ(f.dims(f.b.convolution(f.f32({4, 9, 7, 3}), f.f32({3, 2, 3, 6}), w)),
            (Dims{4, 3, 7, 6}));
  EXPECT_EQ(f.dims(f.b.reduce_window(f.f32({4, 9, 7, 3}), window(2, 2), Reducer::kMax)),
            (Dims{4, 4, 3, 3}));
  const ValueId p = f.b.compare(CompareKind::kLt, f.f32({2}), f.f32({2}));
  EXPECT_EQ(f.graph.type(p), (TensorType{DType::kPred, {2}}));
  EXPECT_EQ(f.graph.type(f.b.convert(p, DType::kF32)), (TensorType{DType::kF32, {2}}));
}

TEST(Graph, NamesAreUnique) {
  Fixture f;
  const ValueId x = f.f32({2});
  EXPECT_EQ(f.graph.op(f.b.add(x, x)).name, "layer1/add");
  const ValueId second = f.b.add(x, x);
  EXPECT_EQ(f.graph.op(second).name, "layer1/add:2");
  EXPECT_EQ(f.graph.op(f.b.add(x, x)).name, "layer1/add:3");
  EXPECT_EQ(f.graph.find("layer1/add:2"), second);
  EXPECT_EQ(f.graph.find("layer1/sub"), kNoValue);
  f.graph.rename(second, "layer1/sum");
  EXPECT_EQ(f.graph.find("layer1/add:2"), kNoValue);
  EXPECT_EQ(f.graph.find("layer1/sum"), second);
  EXPECT_THROW(f.graph.rename(second, "layer1/add"), GraphError);
}

TEST(Builder, ScopesAndDerivedNames) {
  Graph g;
  GraphBuilder b(g);
  const ValueId x = b.parameter("x", {DType::kF32, {2}});
  const auto name = [&](ValueId id) { return g.op(id).name; };
  EXPECT_EQ(name(b.unary(OpKind::kAbs, x)), "abs");
  EXPECT_EQ(name(b.scope("a").scope("b").unary(OpKind::kAbs, x)), "a/b/abs");
  const ValueId d =
      b.scope("a").derived("conv1/kernel", Phase::kGradient).unary(OpKind::kAbs, x, "grad");
  EXPECT_EQ(name(d), "conv1/kernel.grad");
  EXPECT_EQ(g.op(d).phase, Phase::kGradient);
  const ValueId r = b.scope("a").all_reduce(x);
  EXPECT_EQ(g.op(r).phase, Phase::kCollective) << "an all-reduce is one in any phase";
}

TEST(Builder, ScalarNeedsNoBroadcast) {
  Fixture f;
  const ValueId s = f.f32({}), like = f.f32({});
  EXPECT_EQ(f.b.broadcast_scalar(s, like), s);
}

// Every kind of ops.def has type inference, and a gradient exactly where op.h defines one.
TEST(OpTable, EveryKindHasARow) {
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    EXPECT_NE(op_def(kind).infer, nullptr) << name_of(kind);
    const bool expected = [&] {
      switch (kind) {
        case OpKind::kParameter:
        case OpKind::kConstant:
        case OpKind::kIota:
        case OpKind::kCompare:
        case OpKind::kConvolutionKernelGrad:
        case OpKind::kSelectAndScatter:
        case OpKind::kAvgPoolGrad:
        case OpKind::kRngUniform:
        case OpKind::kAnd:
        case OpKind::kOr:
        case OpKind::kXor:
        case OpKind::kShiftLeft:
        case OpKind::kShiftRightLogical:
        case OpKind::kShiftRightArithmetic:
        case OpKind::kRemainder:
        case OpKind::kBitcastConvert:
        case OpKind::kSortOrder:
          return false;
        default:
          return true;
      }
    }();
    EXPECT_EQ(op_def(kind).gradient != nullptr, expected) << name_of(kind);
  }
}

TEST(Flops, CountMultiplyAddsAsTwo) {
  Fixture f;
  const auto count = [&](ValueId id) { return flops(f.graph, id); };
  EXPECT_EQ(count(f.b.dot(f.f32({2, 3}), f.f32({3, 5}))), 2.0 * 2 * 3 * 5);
  EXPECT_EQ(count(f.b.dot(f.f32({3, 2}), f.f32({5, 3}), 0, 1)), 2.0 * 2 * 3 * 5);
  const ValueId x = f.f32({4, 8, 8, 3}), w = f.f32({3, 3, 3, 6});
  const ValueId y = f.b.convolution(x, w, window(3, 2, 1));
  const double taps = 2.0 * (4 * 4 * 4 * 6) * (3 * 3 * 3);
  EXPECT_EQ(count(y), taps);
  // All three convolutions of one layer cost the same.
  EXPECT_EQ(count(f.b.convolution_input_grad(y, w, {4, 8, 8, 3}, window(3, 2, 1), "dx")), taps);
  EXPECT_EQ(count(f.b.convolution_kernel_grad(x, y, {3, 3, 3, 6}, window(3, 2, 1), "dw")), taps);
  EXPECT_EQ(count(f.b.reduce(x, {0, 1, 2}, Reducer::kMean)), 4 * 8 * 8 * 3);
  EXPECT_EQ(count(f.b.reduce_window(x, window(2, 2), Reducer::kMax)), 4 * 4 * 4 * 3 * 4);
  EXPECT_EQ(count(f.b.unary(OpKind::kTanh, w)), 3 * 3 * 3 * 6);
  EXPECT_EQ(count(f.b.transpose(w, {3, 2, 1, 0})), 0);
  EXPECT_EQ(count(x), 0);
}

}  // namespace
}  // namespace twinrun

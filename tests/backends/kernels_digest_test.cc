// Tests that instruction set, threads, alignment and poisoned padding change no bit: each op kind
// has one digest for all of them.
#include <gtest/gtest.h>

#include "program/base/digest.h"
#include "tests/backends/kernels_naive.h"

namespace twinrun::kernels_digest_test {
namespace {

using namespace naive;

struct Case {
  const char* name;
  Op op;
  std::vector<Tensor> inputs;
};

Op make(OpKind kind, Dims dims, DType dtype = DType::kF32) {
  Op op;
  op.kind = kind;
  op.type = {dtype, std::move(dims)};
  op.attrs.shape = op.type.dims;
  return op;
}

// Every op kind on odd sizes, large enough for the work to be split over threads.
std::vector<Case> cases(int64_t shift) {
  const auto f = [&](Dims dims, uint32_t seed) {
    return tensor(std::move(dims), Data::kUniform, seed, shift);
  };
  std::vector<Case> list;
  const Dims image = {5, 19, 17, 13}, big = {3, 77, 301};
  for (OpKind kind :
       {OpKind::kNegate, OpKind::kAbs, OpKind::kSqrt, OpKind::kRsqrt, OpKind::kExponential,
        OpKind::kLog, OpKind::kTanh, OpKind::kLogistic, OpKind::kErf, OpKind::kLog1p}) {
    list.push_back({"unary", make(kind, big), {f(big, 1)}});
  }
  for (OpKind kind : {OpKind::kAdd, OpKind::kSubtract, OpKind::kMultiply, OpKind::kDivide,
                      OpKind::kMaximum, OpKind::kMinimum}) {
    list.push_back({"binary", make(kind, big), {f(big, 1), f(big, 2)}});
  }
  list.push_back({"compare", make(OpKind::kCompare, big, DType::kPred), {f(big, 1), f(big, 2)}});
  list.back().op.attrs.compare = CompareKind::kLt;
  const Tensor p = run({}, list.back().op, list.back().inputs);
  list.push_back({"select", make(OpKind::kSelect, big), {p, f(big, 1), f(big, 2)}});
  list.push_back({"convert", make(OpKind::kConvert, big, DType::kBF16), {f(big, 1)}});
  list.push_back({"reshape", make(OpKind::kReshape, {77, 903}), {f(big, 1)}});
  list.push_back({"constant", make(OpKind::kConstant, big), {}});
  list.push_back({"iota", make(OpKind::kIota, big), {}});
  list.back().op.attrs.dims = {1};
  list.push_back({"transpose", make(OpKind::kTranspose, {301, 3, 77}), {f(big, 1)}});
  list.back().op.attrs.dims = {2, 0, 1};
  list.push_back({"broadcast", make(OpKind::kBroadcastInDim, big), {f({77}, 1)}});
  list.back().op.attrs.dims = {1};
  for (int lc : {0, 1}) {
    for (int rc : {0, 1}) {
      list.push_back({"dot",
                      make(OpKind::kDotGeneral, {61, 75}),
                      {f(lc == 1 ? Dims{61, 4500} : Dims{4500, 61}, 1),
                       f(rc == 0 ? Dims{4500, 75} : Dims{75, 4500}, 2)}});
      list.back().op.attrs.lhs_contract = lc;
      list.back().op.attrs.rhs_contract = rc;
    }
  }
  Window w{{3, 5}, {2, 1}, {1, 2}, {1, 2}, {1, 1}};
  const Dims weights = {3, 5, 13, 37}, out = {5, w.out(19, 0), w.out(17, 1), 37};
  list.push_back({"convolution", make(OpKind::kConvolution, out), {f(image, 1), f(weights, 2)}});
  list.back().op.attrs.window = w;
  list.push_back(
      {"input grad", make(OpKind::kConvolutionInputGrad, image), {f(out, 1), f(weights, 2)}});
  list.back().op.attrs.window = w;
  const Dims deep = {30, 19, 17, 3}, deep_out = {30, w.out(19, 0), w.out(17, 1), 7};
  list.push_back({"kernel grad",
                  make(OpKind::kConvolutionKernelGrad, {3, 5, 3, 7}),
                  {f(deep, 1), f(deep_out, 2)}});
  list.back().op.attrs.window = w;
  for (const Dims& dims : {Dims{0}, Dims{2}, Dims{0, 1}, Dims{0, 2}, Dims{0, 1, 2}}) {
    for (Reducer reducer : {Reducer::kSum, Reducer::kMean, Reducer::kMax}) {
      Dims kept;
      for (int64_t d = 0; d < 3; ++d) {
        if (std::find(dims.begin(), dims.end(), d) == dims.end())
          kept.push_back(big[static_cast<size_t>(d)]);
      }
      list.push_back({"reduce", make(OpKind::kReduce, kept), {f(big, 1)}});
      list.back().op.attrs.dims = dims;
      list.back().op.attrs.reducer = reducer;
    }
  }
  const Window pool{{3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}};
  const Dims pooled = {5, pool.out(19, 0), pool.out(17, 1), 13};
  for (Reducer reducer : {Reducer::kMax, Reducer::kMean}) {
    list.push_back({"reduce_window", make(OpKind::kReduceWindow, pooled), {f(image, 1)}});
    list.back().op.attrs.window = pool;
    list.back().op.attrs.reducer = reducer;
  }
  list.push_back(
      {"select_and_scatter", make(OpKind::kSelectAndScatter, image), {f(image, 1), f(pooled, 2)}});
  list.back().op.attrs.window = pool;
  list.push_back({"avg_pool_grad", make(OpKind::kAvgPoolGrad, image), {f(pooled, 1)}});
  list.back().op.attrs.window = pool;
  Tensor ids = Tensor::zeros({DType::kI32, {100}});
  for (size_t i = 0; i < 100; ++i) ids.as<int32_t>()[i] = static_cast<int32_t>(i * 7);
  list.push_back(
      {"rng_uniform", make(OpKind::kRngUniform, {100, 77}), {Tensor::scalar_i32(2), ids}});
  list.push_back({"all_reduce", make(OpKind::kAllReduce, big), {f(big, 1), f(big, 2), f(big, 3)}});
  return list;
}

TEST(Digest, SameForEveryIsaThreadCountAndAlignment) {
  const std::vector<Case> aligned = cases(0), shifted = cases(3);
  for (const Arithmetic& arithmetic :
       {Arithmetic{}, Arithmetic{.dot = DotArithmetic::kBf16, .flush = true},
        Arithmetic{.dot = DotArithmetic::kBf16x3, .flush = true},
        Arithmetic{.dot = DotArithmetic::kBf16x6, .flush = true}}) {
    for (size_t i = 0; i < aligned.size(); ++i) {
      const bool dot = class_of(aligned[i].op.kind) == OpClass::kDot;
      if (!dot && arithmetic.dot > DotArithmetic::kBf16) continue;
      std::string first;
      for (Isa isa : isas(dot ? arithmetic.dot : DotArithmetic::kF32)) {
        const IsaScope scope(isa);
        for (int threads : {1, 2, 3, 8}) {
          // The model is slow, and the code that joins its passes is the same for all instruction
          // sets.
          if (isa == Isa::kAmxModel && arithmetic.dot > DotArithmetic::kBf16 && threads != 3)
            continue;
          for (bool poison : {false, true}) {
            if (poison && !dot) continue;
            ThreadPool pool(threads);
            Arithmetic a = arithmetic;
            a.poison = poison;
            const Case& c = poison ? shifted[i] : aligned[i];
            const std::string hex = digest(run({&pool, a}, c.op, c.inputs, poison ? 3 : 0)).hex();
            const std::string moved =
                digest(run({&pool, arithmetic}, shifted[i].op, shifted[i].inputs, 1)).hex();
            if (first.empty()) first = hex;
            ASSERT_EQ(first, hex) << c.name << " #" << i << " " << to_string(isa) << " threads "
                                  << threads << " poison " << poison;
            ASSERT_EQ(first, moved) << c.name << " #" << i << " " << to_string(isa) << " threads "
                                    << threads << " shifted";
          }
        }
      }
    }
  }
}

// A replica runs as a piece of the thread pool. Kernels inside it run in the same thread and must
// give the same bits.
TEST(Digest, SameInsideAPiece) {
  const std::vector<Case> list = cases(0);
  ThreadPool pool(2);
  const KernelContext context{&pool, {.dot = DotArithmetic::kBf16, .flush = true}};
  std::vector<Digest> outside, inside(2 * list.size());
  for (const Case& c : list) outside.push_back(digest(run(context, c.op, c.inputs)));
  pool.parallel_for(static_cast<int64_t>(inside.size()), [&](int64_t i) {
    const Case& c = list[static_cast<size_t>(i) % list.size()];
    inside[static_cast<size_t>(i)] = digest(run(context, c.op, c.inputs));
  });
  for (size_t i = 0; i < inside.size(); ++i)
    EXPECT_EQ(inside[i], outside[i % list.size()]) << list[i % list.size()].name;
}

TEST(Digest, ForcedIsaIsTheActiveOne) {
  for (Isa isa : {Isa::kScalar, vector_isas().front(), Isa::kAmxModel}) {
    const IsaScope scope(isa);
    EXPECT_EQ(active_isa(), isa);
  }
  EXPECT_EQ(to_string(Isa::kAvx512), "avx512");
}

}  // namespace
}  // namespace twinrun::kernels_digest_test

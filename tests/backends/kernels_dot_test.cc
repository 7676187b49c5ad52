// Tests dot_general bit for bit against a scalar loop, for every arithmetic, transposition and
// instruction set.
#include <gtest/gtest.h>

#include "tests/backends/kernels_naive.h"

namespace twinrun::kernels_dot_test {
namespace {

using namespace naive;

struct Shape {
  int64_t m, n, k;
};

Op dot_op(const Shape& s, int lc, int rc) {
  Op op;
  op.kind = OpKind::kDotGeneral;
  op.attrs.lhs_contract = lc;
  op.attrs.rhs_contract = rc;
  op.type = {DType::kF32, {s.m, s.n}};
  return op;
}

Tensor expected(const Shape& s, const Tensor& a, const Tensor& b, int lc, int rc,
                const Arithmetic& arithmetic) {
  Tensor c = Tensor::empty({DType::kF32, {s.m, s.n}});
  const float *pa = a.as<float>().data(), *pb = b.as<float>().data();
  const int64_t segment = lc == 0 && rc == 0 ? 4096 : std::max<int64_t>(s.k, 1);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      c.as<float>()[static_cast<size_t>(i * s.n + j)] = dot(
          arithmetic.dot, [&](int64_t q) { return lc == 1 ? pa[i * s.k + q] : pa[q * s.m + i]; },
          [&](int64_t q) { return rc == 0 ? pb[q * s.n + j] : pb[j * s.k + q]; }, s.k, segment,
          arithmetic.flush);
    }
  }
  return c;
}

void check(const Shape& s, Data data, const Arithmetic& arithmetic) {
  for (int lc : {0, 1}) {
    for (int rc : {0, 1}) {
      const Tensor a = tensor(lc == 1 ? Dims{s.m, s.k} : Dims{s.k, s.m}, data, 1);
      const Tensor b = tensor(rc == 0 ? Dims{s.k, s.n} : Dims{s.n, s.k}, data, 2);
      const Tensor want = expected(s, a, b, lc, rc, arithmetic);
      for (Isa isa : isas(arithmetic.dot)) {
        const IsaScope scope(isa);
        ThreadPool pool(2);
        const KernelContext context{&pool, arithmetic};
        const Tensor got = run(context, dot_op(s, lc, rc), {a, b});
        const int64_t at = first_difference(want, got);
        ASSERT_EQ(at, -1) << to_string(isa) << " " << s.m << "x" << s.n << "x" << s.k
                          << " contract " << lc << rc << " data " << static_cast<int>(data)
                          << ": want " << want.as<float>()[static_cast<size_t>(at)] << " got "
                          << got.as<float>()[static_cast<size_t>(at)];
      }
    }
  }
}

constexpr Data kAllData[] = {Data::kUniform, Data::kSmall, Data::kTiny, Data::kWide,
                             Data::kSpecial};
const Shape kShapes[] = {{1, 1, 1},     {1, 10, 33},  {7, 17, 31}, {15, 33, 300},
                         {29, 40, 257}, {64, 64, 64}, {13, 1, 100}};

TEST(Dot, F32EqualsOneChain) {
  for (Data data : kAllData) {
    for (const Shape& s : kShapes) {
      check(s, data, {});
      check(s, data, {.flush = true});
    }
  }
}

TEST(Dot, Bf16EqualsAmxOrder) {
  for (Data data : kAllData) {
    for (const Shape& s : kShapes) {
      check(s, data, {.dot = DotArithmetic::kBf16, .flush = true});
      check(s, data, {.dot = DotArithmetic::kBf16, .flush = false, .poison = true});
    }
  }
}

TEST(Dot, SplittingsEqualTheirPasses) {
  for (Data data : kAllData) {
    for (const Shape& s : {Shape{3, 5, 7}, Shape{15, 33, 70}}) {
      check(s, data, {.dot = DotArithmetic::kBf16x3, .flush = true});
      check(s, data, {.dot = DotArithmetic::kBf16x6, .flush = true});
    }
  }
}

TEST(Dot, KernelGradientsAreCutAt4096) {
  for (int64_t k : {4096, 4097, 8200, 9000}) {
    check({3, 5, k}, Data::kUniform, {});
    check({3, 5, k}, Data::kUniform, {.dot = DotArithmetic::kBf16, .flush = true});
  }
}

TEST(Dot, EmptyKGivesZero) { check({3, 5, 0}, Data::kUniform, {}); }

TEST(Dot, ARowHasTheSameBitsInAnyBatch) {
  const int64_t n = 70, k = 333;
  const Tensor x = tensor({128, k}, Data::kUniform, 5), w = tensor({k, n}, Data::kUniform, 6);
  for (DotArithmetic dot : {DotArithmetic::kF32, DotArithmetic::kBf16, DotArithmetic::kBf16x3}) {
    ThreadPool pool(2);
    const KernelContext context{&pool, {.dot = dot, .flush = dot != DotArithmetic::kF32}};
    const Tensor all = run(context, dot_op({128, n, k}, 1, 0), {x, w});
    for (int64_t batch : {1, 7}) {
      for (int64_t row : {int64_t{0}, int64_t{50}, 128 - batch}) {
        const Tensor part =
            run(context, dot_op({batch, n, k}, 1, 0), {x.rows(row, row + batch), w});
        EXPECT_EQ(first_difference(part, all.rows(row, row + batch)), -1)
            << "batch " << batch << " row " << row;
      }
    }
  }
}

TEST(Dot, Bf16TensorsAreWidenedAndRounded) {
  const Shape s{9, 20, 50};
  const Tensor a = to_bf16(tensor({s.m, s.k}, Data::kUniform, 1)),
               b = to_bf16(tensor({s.k, s.n}, Data::kUniform, 2));
  const auto wide = [](const Tensor& t) {
    Tensor w = Tensor::empty({DType::kF32, t.dims()});
    for (size_t i = 0; i < w.as<float>().size(); ++i)
      w.as<float>()[i] = bf16_to_f32(t.as<uint16_t>()[i]);
    return w;
  };
  const Tensor want = to_bf16(expected(s, wide(a), wide(b), 1, 0, {}));
  Op op = dot_op(s, 1, 0);
  op.type.dtype = DType::kBF16;
  EXPECT_EQ(first_difference(want, run({nullptr, {}}, op, {a, b})), -1);
}

}  // namespace
}  // namespace twinrun::kernels_dot_test

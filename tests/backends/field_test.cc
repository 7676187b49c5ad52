// Tests of ops over the prime field: on small integers they agree with binary64, which is exact
// there; on large elements they keep the laws of the field.
#include "backends/oracle/field.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backends/oracle/oracle.h"
#include "program/ops/op_def.h"
#include "tests/reference/op_cases.h"

namespace twinrun {
namespace {

const FieldPoint kPoint(5);

bool of_uninterpreted(OpKind kind) {
  switch (kind) {
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kExponential:
    case OpKind::kLog:
    case OpKind::kTanh:
    case OpKind::kLogistic:
    case OpKind::kErf:
    case OpKind::kLog1p:
    case OpKind::kSine:
    case OpKind::kCosine:
    case OpKind::kBitcastConvert:
    case OpKind::kRngUniform:
      return true;
    default:
      return false;
  }
}

Tensor elements_of(const Tensor& doubles) {
  Tensor out = Tensor::empty({DType::kF64, doubles.dims()});
  for (size_t i = 0; i < static_cast<size_t>(out.elements()); ++i)
    out.as<Field61>()[i] = Field61::of(static_cast<int64_t>(doubles.as<double>()[i]));
  return out;
}

// Element i as a number: a field element as the fraction that it stands for, NaN if there is none.
double number(const Tensor& t, size_t i) {
  if (t.dtype() == DType::kI32) return t.as<int32_t>()[i];
  if (t.dtype() == DType::kPred) return t.as<uint8_t>()[i];
  const auto fraction = t.as<Field61>()[i].fraction();
  if (!fraction) return NAN;
  return static_cast<double>(fraction->first) / static_cast<double>(fraction->second);
}

double expected(const Tensor& t, size_t i) {
  if (t.dtype() == DType::kI32) return t.as<int32_t>()[i];
  if (t.dtype() == DType::kPred) return t.as<uint8_t>()[i];
  return t.as<double>()[i];
}

TEST(Field, OpsOfSmallIntegersAreThoseOfBinary64) {
  int compared = 0;
  for (int k = 0; k < kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    if (of_uninterpreted(kind) || kind == OpKind::kParameter) continue;
    for (const OpCase& c : op_cases(kind, DataClass::kNormal, 3)) {
      if (c.op.type.dtype == DType::kBF16 || kind == OpKind::kConvert) continue;
      std::mt19937_64 random(static_cast<uint64_t>(k));
      std::vector<Tensor> doubles, elements;
      for (const Tensor& t : c.inputs) {
        if (t.dtype() != DType::kF32) {
          doubles.push_back(t);
          elements.push_back(t);
          continue;
        }
        Tensor integers = Tensor::empty({DType::kF64, t.dims()});
        for (double& x : integers.as<double>()) {
          x = static_cast<double>(random() % 9) - 4;
          if (kind == OpKind::kDivide && x == 0) x = 3;
        }
        doubles.push_back(integers);
        elements.push_back(elements_of(integers));
      }
      const Tensor want = eval_value({}, c.op, doubles, nullptr);
      const Result<Tensor> found = field_value(kPoint, c.op, elements, nullptr);
      ASSERT_TRUE(found.ok()) << c.name;
      ASSERT_EQ(found->dims(), want.dims()) << c.name;
      if (kind == OpKind::kConstant && !Field61::constant(c.op.attrs.value).fraction()) continue;
      for (size_t i = 0; i < static_cast<size_t>(want.elements()); ++i) {
        const double x = expected(want, i), scale = std::max(std::fabs(x), 1.0);
        ASSERT_NEAR(number(*found, i), x, 1e-7 * scale) << c.name << " element " << i;
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 100);
}

// Elements whose limbs are as large as possible with one sign: 2^20 - 1, 2^20 - 1, 2^18 - 1, and
// -2^20, -2^20, 1 - 2^18.
constexpr Field61 kLargest{0xffffdffffefffff}, kSmallest{0x100001ffffefffff};

Tensor random_elements(Dims dims, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tensor t = Tensor::empty({DType::kF64, std::move(dims)});
  for (Field61& x : t.as<Field61>()) {
    x = {random() % Field61::kPrime};
    if (random() % 8 == 0) x = {Field61::kPrime - 1};
    if (random() % 8 == 0) x = kLargest;
  }
  return t;
}

// Dots longer than a sum that binary64 holds exactly, with enough columns to be computed by limbs
// and with fewer.
TEST(Field, DotsOfLargeElementsAreSumsOfProducts) {
  for (const int64_t n : {3, 7}) {
    for (const int contract : {0, 1, 2, 3}) {
      const int64_t m = 5, k = 1300;
      Op op;
      op.kind = OpKind::kDotGeneral;
      op.attrs.lhs_contract = contract % 2;
      op.attrs.rhs_contract = contract / 2;
      const bool lt = contract % 2 == 0, rt = contract / 2 == 1;
      const Tensor a = random_elements(lt ? Dims{k, m} : Dims{m, k}, 1);
      const Tensor b = random_elements(rt ? Dims{n, k} : Dims{k, n}, 2);
      op.type = {DType::kF32, {m, n}};
      const Tensor inputs[] = {a, b};
      const Result<Tensor> found = field_value(kPoint, op, inputs, nullptr);
      ASSERT_TRUE(found.ok());
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          Field61 sum;
          for (int64_t q = 0; q < k; ++q)
            sum = sum + a.as<Field61>()[static_cast<size_t>(lt ? q * m + i : i * k + q)] *
                            b.as<Field61>()[static_cast<size_t>(rt ? j * k + q : q * n + j)];
          ASSERT_EQ(found->as<Field61>()[static_cast<size_t>(i * n + j)], sum)
              << n << " columns, " << contract;
        }
      }
    }
  }
}

// Sums of limbs are exact even if every term is as large as possible.
TEST(Field, SumsOfTheLargestLimbsAreExact) {
  const int64_t k = 1300, n = 8;
  Op op;
  op.kind = OpKind::kDotGeneral;
  op.attrs.lhs_contract = 1;
  op.type = {DType::kF32, {1, n}};
  for (const Field61 a : {kLargest, kSmallest}) {
    for (const Field61 b : {kLargest, kSmallest}) {
      Tensor inputs[] = {Tensor::empty({DType::kF64, {1, k}}),
                         Tensor::empty({DType::kF64, {k, n}})};
      std::ranges::fill(inputs[0].as<Field61>(), a);
      std::ranges::fill(inputs[1].as<Field61>(), b);
      const Result<Tensor> found = field_value(kPoint, op, inputs, nullptr);
      ASSERT_TRUE(found.ok());
      EXPECT_EQ(found->as<Field61>()[0], Field61::of(k) * a * b);
    }
  }
}

// The gradients of a convolution are its adjoints: <conv(x, w), dy> = <x, dx> = <w, dw>.
TEST(Field, GradientsOfAConvolutionAreItsAdjoints) {
  Window window;
  window.size[0] = window.size[1] = 3;
  window.stride[0] = 2;
  window.pad_low[0] = window.pad_high[1] = 1;
  const Dims image{2, 9, 8, 6}, kernel{3, 3, 6, 8},
      result{2, window.out(9, 0), window.out(8, 1), 8};
  const auto op_of = [&](OpKind kind, const Dims& dims) {
    Op op;
    op.kind = kind;
    op.attrs.window = window;
    op.attrs.shape = dims;
    op.type = {DType::kF32, dims};
    return op;
  };
  const auto run = [&](const Op& op, const Tensor& a, const Tensor& b) {
    const Tensor inputs[] = {a, b};
    return *field_value(kPoint, op, inputs, nullptr);
  };
  const auto inner = [](const Tensor& a, const Tensor& b) {
    Field61 sum;
    for (size_t i = 0; i < static_cast<size_t>(a.elements()); ++i)
      sum = sum + a.as<const Field61>()[i] * b.as<const Field61>()[i];
    return sum;
  };
  const Tensor x = random_elements(image, 1), w = random_elements(kernel, 2),
               dy = random_elements(result, 3);
  const Field61 forward = inner(run(op_of(OpKind::kConvolution, result), x, w), dy);
  EXPECT_EQ(inner(x, run(op_of(OpKind::kConvolutionInputGrad, image), dy, w)), forward);
  EXPECT_EQ(inner(w, run(op_of(OpKind::kConvolutionKernelGrad, kernel), x, dy)), forward);
}

TEST(Field, OneOfTwoIsGreater) {
  const Tensor some = random_elements({40}, 7);
  for (const Field61 a : some.as<const Field61>()) {
    EXPECT_EQ(kPoint.greater(a, a), Field61{0});
    for (const Field61 b : some.as<const Field61>()) {
      if (a == b) continue;
      EXPECT_EQ(kPoint.greater(a, b) + kPoint.greater(b, a), Field61{1});
    }
  }
  EXPECT_EQ(kPoint.greater(Field61::of(3), Field61::of(-2)), Field61{1});
  EXPECT_EQ(kPoint.greater(Field61::of(-1000000000), Field61{0}), Field61{0});
}

TEST(Field, UninterpretedFunctionsDependOnArgumentAndPointAlone) {
  const Tensor x = random_elements({64}, 9);
  for (const OpKind kind : {OpKind::kExponential, OpKind::kLog, OpKind::kSqrt, OpKind::kTanh}) {
    Op op;
    op.kind = kind;
    op.type = {DType::kF32, {64}};
    const Tensor inputs[] = {x};
    const Tensor once = *field_value(kPoint, op, inputs, nullptr);
    EXPECT_TRUE(once.same_bits(*field_value(kPoint, op, inputs, nullptr)));
    EXPECT_FALSE(once.same_bits(*field_value(FieldPoint(6), op, inputs, nullptr)));
    op.kind = OpKind::kErf;
    EXPECT_FALSE(once.same_bits(*field_value(kPoint, op, inputs, nullptr)));
  }
}

TEST(Field, AnIntegerOfDataHasNoValue) {
  Op op;
  op.kind = OpKind::kConvert;
  op.name = "rounded";
  op.type = {DType::kI32, {2}};
  Tensor x = Tensor::zeros({DType::kF64, {2}});
  x.as<Field61>()[0] = Field61::constant(-2.5);
  const Tensor inputs[] = {x};
  EXPECT_EQ(field_value(kPoint, op, inputs, nullptr)->as<int32_t>()[0], -2);
  x.as<Field61>()[1] = {0x1d4c9a07e36b5f2u};
  EXPECT_FALSE(field_value(kPoint, op, inputs, nullptr).ok());
}

}  // namespace
}  // namespace twinrun

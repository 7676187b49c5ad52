// Tests that the oracle accepts conforming engines and rejects planted errors, and that its
// elementary functions agree with MPFR.
#include "backends/oracle/oracle.h"

#include <gtest/gtest.h>
#include <mpfr.h>

#include <cmath>
#include <map>
#include <random>

#include "backends/oracle/elementary.h"
#include "program/base/bits.h"
#include "tests/reference/interpreter.h"
#include "tests/reference/op_cases.h"

namespace twinrun::oracle_test {
namespace {

struct Mode {
  Capabilities declared;
  ReferenceArithmetic arithmetic;
};

Mode mode(DotPrecision precision, bool flush) {
  using Dot = ReferenceArithmetic::Dot;
  Mode m;
  m.declared.precision = precision;
  m.declared.flush = flush;
  m.declared.block32_order = precision != DotPrecision::kF32;
  m.arithmetic.flush = flush;
  m.arithmetic.dot = precision == DotPrecision::kF32      ? Dot::kF32
                     : precision == DotPrecision::kBf16   ? Dot::kBf16
                     : precision == DotPrecision::kBf16x3 ? Dot::kBf16x3
                                                          : Dot::kBf16x6;
  return m;
}

std::vector<Mode> modes() {
  return {mode(DotPrecision::kF32, false), mode(DotPrecision::kF32, true),
          mode(DotPrecision::kBf16, true), mode(DotPrecision::kBf16x3, true),
          mode(DotPrecision::kBf16x6, true)};
}

bool is_dot(OpKind kind) { return class_of(kind) == OpClass::kDot; }

Tensor conforming(const OpCase& c, ReferenceArithmetic arithmetic) {
  if (c.op.kind == OpKind::kAllReduce) return reference_all_reduce(c.inputs, arithmetic);
  return reference_op(c.op, c.inputs, arithmetic);
}

OpCase matrix_case(int64_t m, int64_t k, int64_t n, DataClass data, uint64_t seed,
                   int contract = 0) {
  OpCase c;
  c.op.kind = OpKind::kDotGeneral;
  c.op.type = {DType::kF32, {m, n}};
  c.op.attrs.lhs_contract = contract == 0 ? 1 : 0;
  c.op.attrs.rhs_contract = 0;
  c.inputs = {random_tensor({DType::kF32, contract == 0 ? Dims{m, k} : Dims{k, m}}, data, seed),
              random_tensor({DType::kF32, {k, n}}, data, seed + 1)};
  return c;
}

OracleVerdict verdict_of(const Mode& m, const OpCase& c, const Tensor& subject) {
  return judge(eval_op(m.declared, c.op, c.inputs, nullptr), subject);
}

class ConformingOp : public testing::TestWithParam<int> {};

// Twenty seeds of ordinary data and three of every other class, in every arithmetic.
TEST_P(ConformingOp, IsInside) {
  const auto kind = static_cast<OpKind>(GetParam());
  double worst = 0;
  int64_t untestable = 0, elements = 0;
  for (DataClass data : kDataClasses) {
    for (uint64_t seed = 0; seed < (data == DataClass::kNormal ? 20u : 3u); ++seed) {
      const auto cases = op_cases(kind, data, seed);
      ASSERT_EQ(cases.empty(), kind == OpKind::kParameter);
      for (const OpCase& c : cases) {
        // Long dots are slow in the reference; two seeds of them are enough.
        if (is_dot(kind) && c.inputs[0].elements() > 3000 && seed > 1) continue;
        for (const Mode& m : modes()) {
          if (!is_dot(kind) && m.declared.precision != DotPrecision::kF32) continue;
          const OracleVerdict v = verdict_of(m, c, conforming(c, m.arithmetic));
          ASSERT_EQ(v.outside, 0) << c.name << " flush " << m.declared.flush << " precision "
                                  << static_cast<int>(m.declared.precision) << " element "
                                  << v.worst_element << " subject " << v.subject << " value "
                                  << v.value << " radius " << v.radius << " seed " << seed;
          worst = std::max(worst, v.worst);
          untestable += v.untestable;
          elements += v.elements;
          if (data == DataClass::kNormal) {
            ASSERT_EQ(v.untestable, 0) << c.name;
          }
          // A foreign engine declares less, so its bounds must include the result, too.
          Mode foreign = m;
          foreign.declared.ours = false;
          ASSERT_EQ(verdict_of(foreign, c, conforming(c, m.arithmetic)).outside, 0) << c.name;
        }
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
  std::printf(
      "%-28s worst ratio %.3f, untestable %.2f %% of %lld\n", std::string(name_of(kind)).c_str(),
      worst,
      elements > 0 ? 100.0 * static_cast<double>(untestable) / static_cast<double>(elements) : 0.0,
      static_cast<long long>(elements));
}
INSTANTIATE_TEST_SUITE_P(Kinds, ConformingOp, testing::Range(0, kOpKinds),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(name_of(static_cast<OpKind>(info.param)));
                         });

// ---- planted errors

TEST(OraclePlanted, TruncatedBf16Operands) {
  const Mode m = mode(DotPrecision::kBf16, true);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const OpCase c = matrix_case(32, 784, 32, DataClass::kNormal, 10 * seed);
    OpCase truncated = c;
    for (Tensor& t : truncated.inputs) {
      t = t.clone();
      for (float& x : t.as<float>()) x = bf16_to_f32(bf16_truncate(x));
    }
    const Tensor subject = conforming(truncated, m.arithmetic);
    const OracleVerdict v = verdict_of(m, c, subject);
    EXPECT_GT(v.worst, 10) << seed;
    EXPECT_GT(v.outside, v.elements / 2);
    // The residual of the operands is 2^-9 when they are rounded to nearest, twice that when they
    // are truncated.
    const double rounded = operand_residual(c.op, c.inputs, conforming(c, m.arithmetic), nullptr);
    const double cut = operand_residual(c.op, c.inputs, subject, nullptr);
    EXPECT_GT(rounded, 0x1p-10);
    EXPECT_LT(rounded, 0x1p-8);
    EXPECT_GT(cut, 1.5 * rounded);
  }
}

TEST(OraclePlanted, RoundedBf16WhereF32IsDeclared) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const OpCase c = matrix_case(16, 256, 16, DataClass::kNormal, 10 * seed);
    const Tensor subject = conforming(c, {ReferenceArithmetic::Dot::kBf16, true});
    EXPECT_GT(verdict_of(mode(DotPrecision::kF32, false), c, subject).worst, 10);
    EXPECT_GT(verdict_of(mode(DotPrecision::kBf16x3, true), c, subject).worst, 10);
    // Three passes instead of six show in short dots; in long ones the bound of accumulation hides
    // them.
    const OpCase brief = matrix_case(64, 4, 64, DataClass::kNormal, 10 * seed);
    const Tensor three = conforming(brief, {ReferenceArithmetic::Dot::kBf16x3, true});
    EXPECT_EQ(verdict_of(mode(DotPrecision::kBf16x3, true), brief, three).outside, 0);
    EXPECT_GT(verdict_of(mode(DotPrecision::kBf16x6, true), brief, three).worst, 1);
  }
}

TEST(OraclePlanted, DroppedTail) {
  for (const Mode& m : modes()) {
    for (int contract : {0, 1}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const OpCase c = matrix_case(8, 300, 8, DataClass::kNormal, 10 * seed, contract);
        OpCase dropped = c;
        Tensor& t = dropped.inputs[1];
        t = t.clone();
        for (size_t i = 299 * 8; i < 300 * 8; ++i) t.as<float>()[i] = 0;
        EXPECT_GT(verdict_of(m, c, conforming(dropped, m.arithmetic)).worst, 10);
      }
    }
  }
}

TEST(OraclePlanted, ScaledByOnePlusTwoToTheMinusTen) {
  for (OpKind kind : {OpKind::kDotGeneral, OpKind::kConvolution, OpKind::kConvolutionInputGrad,
                      OpKind::kConvolutionKernelGrad, OpKind::kReduce, OpKind::kReduceWindow,
                      OpKind::kSelectAndScatter, OpKind::kAvgPoolGrad, OpKind::kAllReduce,
                      OpKind::kExponential, OpKind::kLogistic, OpKind::kTanh, OpKind::kErf,
                      OpKind::kLog1p, OpKind::kSine, OpKind::kCosine}) {
    for (const Mode& m : modes()) {
      if (!is_dot(kind) && m.declared.precision != DotPrecision::kF32) continue;
      for (uint64_t seed = 0; seed < 20; ++seed) {
        for (const OpCase& c : op_cases(kind, DataClass::kNormal, seed)) {
          if (c.op.type.dtype != DType::kF32 || c.op.type.elements() < 8 ||
              c.inputs[0].elements() > 3000)
            continue;
          Tensor subject = conforming(c, m.arithmetic);
          for (float& x : subject.as<float>()) x *= 1 + 0x1p-10f;
          ASSERT_GT(verdict_of(m, c, subject).worst, 1) << c.name;
        }
      }
    }
  }
}

TEST(OraclePlanted, OneUlp) {
  for (OpKind kind : {OpKind::kAdd,
                      OpKind::kSubtract,
                      OpKind::kMultiply,
                      OpKind::kDivide,
                      OpKind::kSqrt,
                      OpKind::kMaximum,
                      OpKind::kMinimum,
                      OpKind::kNegate,
                      OpKind::kAbs,
                      OpKind::kTranspose,
                      OpKind::kBroadcastInDim,
                      OpKind::kReshape,
                      OpKind::kSelect,
                      OpKind::kConvert,
                      OpKind::kExponential,
                      OpKind::kLog,
                      OpKind::kTanh,
                      OpKind::kErf,
                      OpKind::kLog1p,
                      OpKind::kSine,
                      OpKind::kCosine,
                      OpKind::kBitcastConvert,
                      OpKind::kRngUniform,
                      OpKind::kSelectAndScatter}) {
    for (const Mode& m : {mode(DotPrecision::kF32, false), mode(DotPrecision::kF32, true)}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        for (const OpCase& c : op_cases(kind, DataClass::kPositive, seed)) {
          if (c.op.type.dtype != DType::kF32) continue;
          if (kind == OpKind::kSelectAndScatter &&
              c.op.attrs.window.stride[0] != c.op.attrs.window.size[0])
            continue;
          const Tensor right = conforming(c, m.arithmetic);
          const OracleResult oracle = eval_op(m.declared, c.op, c.inputs, nullptr);
          ASSERT_EQ(judge(oracle, right).outside, 0);
          for (size_t i = 0; i < static_cast<size_t>(right.elements()); i += 13) {
            const float x = right.as<float>()[i];
            if (!std::isfinite(x) || x == 0) continue;
            for (int step : {-1, 1}) {
              Tensor wrong = right.clone();
              wrong.as<float>()[i] = from_bits(to_bits(x) + static_cast<uint32_t>(step));
              const OracleVerdict v = judge(oracle, wrong);
              ASSERT_EQ(v.outside, 1) << c.name << " " << i << " " << x;
              ASSERT_EQ(v.worst_element, static_cast<int64_t>(i));
            }
          }
        }
      }
    }
  }
}

TEST(OraclePlanted, OneSidedNanAndInfinity) {
  const OpCase c = matrix_case(4, 8, 4, DataClass::kNormal, 1);
  const Mode m = mode(DotPrecision::kF32, false);
  for (float bad : {from_bits(kCanonicalNaN), std::numeric_limits<float>::infinity()}) {
    Tensor subject = conforming(c, m.arithmetic).clone();
    subject.as<float>()[5] = bad;
    const OracleVerdict v = verdict_of(m, c, subject);
    EXPECT_EQ(v.outside, 1);
    EXPECT_EQ(v.worst_element, 5);
    EXPECT_TRUE(std::isinf(v.worst));
  }
}

TEST(OraclePlanted, KeptDenormalsWhereFlushIsDeclared) {
  OpCase c;
  c.op.kind = OpKind::kMaximum;
  c.op.type = {DType::kF32, {1}};
  c.inputs = {Tensor::zeros({DType::kF32, {1}}), Tensor::zeros({DType::kF32, {1}})};
  c.inputs[0].as<float>()[0] = 0x1p-130f;
  EXPECT_EQ(verdict_of(mode(DotPrecision::kF32, true), c, c.inputs[0]).outside, 1);
  EXPECT_EQ(verdict_of(mode(DotPrecision::kF32, false), c, c.inputs[0]).outside, 0);
}

TEST(Oracle, ThreadsDoNotChangeADigit) {
  ThreadPool pool(3);
  for (OpKind kind : {OpKind::kDotGeneral, OpKind::kConvolution, OpKind::kConvolutionKernelGrad,
                      OpKind::kReduceWindow, OpKind::kLogistic}) {
    for (const OpCase& c : op_cases(kind, DataClass::kNormal, 5)) {
      const Mode m = mode(DotPrecision::kBf16x3, true);
      const OracleResult one = eval_op(m.declared, c.op, c.inputs, nullptr);
      const OracleResult three = eval_op(m.declared, c.op, c.inputs, &pool);
      EXPECT_EQ(one.value, three.value);
      EXPECT_EQ(one.radius, three.radius);
    }
  }
}

// ---- elementary functions

double error_against_mpfr(double computed, float x,
                          int (*function)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t)) {
  mpfr_t in, out, difference;
  mpfr_inits2(200, in, out, difference, static_cast<mpfr_ptr>(nullptr));
  mpfr_set_flt(in, x, MPFR_RNDN);
  function(out, in, MPFR_RNDN);
  double error = 0;
  if (mpfr_regular_p(out)) {
    mpfr_d_sub(difference, computed, out, MPFR_RNDN);
    mpfr_div(difference, difference, out, MPFR_RNDN);
    error = std::fabs(mpfr_get_d(difference, MPFR_RNDU));
  } else if (mpfr_get_d(out, MPFR_RNDN) != computed) {
    error = 1;
  }
  mpfr_clears(in, out, difference, static_cast<mpfr_ptr>(nullptr));
  return error;
}

// Vector code and scalar code must give the same estimates. One NaN in a stretch makes the oracle
// use the scalar code for the whole stretch.
TEST(Oracle, VectorsAreWhatElementsAre) {
  constexpr int64_t kSize = 5000, kStride = 256;
  std::mt19937_64 random(3);
  Tensor a = Tensor::empty({DType::kF32, {kSize}}), b = a.clone();
  for (size_t i = 0; i < kSize; ++i) {
    // Any sign, sizes over 40 binades, sometimes numbers of few bits (for ties and exact results),
    // zeros.
    const auto draw = [&] {
      const uint64_t r = random();
      const auto exponent = static_cast<uint32_t>(107 + r % 40) << 23;
      const auto fraction = static_cast<uint32_t>(r >> 32) & (r % 3 == 0 ? 0x7FF000u : 0x7FFFFFu);
      const float x = from_bits(static_cast<uint32_t>(r >> 31 & 1) << 31 | exponent | fraction);
      return r % 11 == 0 ? 0.0f : x;
    };
    a.as<float>()[i] = draw();
    do b.as<float>()[i] = draw();
    while (b.as<float>()[i] == 0);  // a division by zero would make its stretch use scalar code
  }
  for (OpKind kind : {OpKind::kAdd, OpKind::kSubtract, OpKind::kMultiply, OpKind::kDivide,
                      OpKind::kMaximum, OpKind::kMinimum, OpKind::kSqrt, OpKind::kCompare}) {
    for (const Mode& m : {mode(DotPrecision::kF32, false), mode(DotPrecision::kBf16, true)}) {
      for (int compare = 0; compare < (kind == OpKind::kCompare ? 6 : 1); ++compare) {
        Op op;
        op.kind = kind;
        op.attrs.compare = static_cast<CompareKind>(compare);
        op.type = {kind == OpKind::kCompare ? DType::kPred : DType::kF32, {kSize}};
        std::vector<Tensor> in = {a.clone()}, spoilt;
        if (kind != OpKind::kSqrt) in.push_back(b);
        if (kind == OpKind::kSqrt) {
          for (float& x : in[0].as<float>()) x = std::fabs(x);
        }
        spoilt = in;
        spoilt[0] = in[0].clone();
        for (size_t i = 0; i < kSize; i += kStride) spoilt[0].as<float>()[i] = NAN;
        const OracleResult fast = eval_op(m.declared, op, in, nullptr);
        const OracleResult slow = eval_op(m.declared, op, spoilt, nullptr);
        for (size_t i = 0; i < kSize; ++i) {
          if (i % kStride == 0) continue;
          ASSERT_EQ(fast.value[i], slow.value[i]) << name_of(kind) << " " << i;
          ASSERT_EQ(fast.radius[i], slow.radius[i]) << name_of(kind) << " " << i;
        }
      }
    }
  }
}

// replay() must give the same verdict as judge(eval_op()), down to the element; it only makes fewer
// passes over memory.
TEST(Oracle, ReplayIsTheJudgeOfTheValues) {
  std::mt19937_64 random(5);
  for (int kind = 0; kind < kOpKinds; ++kind) {
    for (DataClass data : kDataClasses) {
      for (const OpCase& c : op_cases(static_cast<OpKind>(kind), data, 4)) {
        const Mode m = modes()[random() % modes().size()];
        Tensor subject = conforming(c, m.arithmetic).clone();
        if (subject.elements() > 0 && subject.dtype() == DType::kF32) {
          float& x = subject.as<float>()[random() % static_cast<size_t>(subject.elements())];
          x = from_bits(to_bits(x) ^ (1u << (random() % 24)));
        }
        const OracleVerdict one = judge(eval_op(m.declared, c.op, c.inputs, nullptr), subject);
        const OracleVerdict two = replay(m.declared, c.op, c.inputs, subject, nullptr);
        EXPECT_EQ(one.worst, two.worst) << name_of(c.op.kind);
        EXPECT_EQ(one.worst_element, two.worst_element) << name_of(c.op.kind);
        EXPECT_EQ(one.outside, two.outside) << name_of(c.op.kind);
        EXPECT_EQ(one.untestable, two.untestable) << name_of(c.op.kind);
        EXPECT_EQ(one.elements, two.elements) << name_of(c.op.kind);
      }
    }
  }
}

TEST(OracleElementary, AgreesWithMpfr) {
  std::mt19937_64 random(7);
  double worst[5] = {};
  for (int i = 0; i < 100000; ++i) {
    const float x = from_bits(static_cast<uint32_t>(random()));
    const auto unit = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-53);
    for (float v : {x, unit, 200 * unit - 100, 1 + (unit - 0.5f) * 0.01f}) {
      if (!std::isfinite(v)) continue;
      if (std::fabs(v) < 200)
        worst[0] = std::max(worst[0], error_against_mpfr(oracle::exponential(v), v, mpfr_exp));
      if (v > 0)
        worst[1] = std::max(worst[1], error_against_mpfr(oracle::logarithm(v), v, mpfr_log));
      if (i % 16 == 0) {  // MPFR's erf is slow
        worst[3] = std::max(worst[3], error_against_mpfr(oracle::error_function(v), v, mpfr_erf));
      }
      if (v > -1) {
        worst[4] =
            std::max(worst[4], error_against_mpfr(oracle::logarithm_of_1_plus(v), v, mpfr_log1p));
      }
      worst[2] =
          std::max(worst[2], error_against_mpfr(oracle::hyperbolic_tangent(v), v, mpfr_tanh));
    }
  }
  for (double w : worst) EXPECT_LT(w, oracle::kElementaryError);
  std::printf("exp 2^%.1f  log 2^%.1f  tanh 2^%.1f  erf 2^%.1f  log1p 2^%.1f\n",
              std::log2(worst[0]), std::log2(worst[1]), std::log2(worst[2]), std::log2(worst[3]),
              std::log2(worst[4]));
}

TEST(OracleElementary, Edges) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(oracle::exponential(inf), inf);
  EXPECT_EQ(oracle::exponential(-inf), 0);
  EXPECT_EQ(oracle::exponential(0), 1);
  EXPECT_EQ(oracle::logarithm(0), -inf);
  EXPECT_EQ(oracle::logarithm(inf), inf);
  EXPECT_EQ(oracle::logarithm(1), 0);
  EXPECT_TRUE(std::isnan(oracle::logarithm(-1)));
  EXPECT_EQ(oracle::hyperbolic_tangent(inf), 1);
  EXPECT_EQ(oracle::hyperbolic_tangent(-inf), -1);
  EXPECT_TRUE(std::signbit(oracle::hyperbolic_tangent(-0.0)));
  EXPECT_EQ(oracle::error_function(inf), 1);
  EXPECT_EQ(oracle::error_function(-inf), -1);
  EXPECT_TRUE(std::signbit(oracle::error_function(-0.0)));
  EXPECT_EQ(oracle::logarithm_of_1_plus(inf), inf);
  EXPECT_EQ(oracle::logarithm_of_1_plus(-1), -inf);
  EXPECT_TRUE(std::isnan(oracle::logarithm_of_1_plus(-2)));
  EXPECT_TRUE(std::signbit(oracle::logarithm_of_1_plus(-0.0)));
}

}  // namespace
}  // namespace twinrun::oracle_test

// Tests that the screen accepts conforming engines, detects planted errors, and costs little.
#include "backends/oracle/screen.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <random>

#include "backends/kernels/kernels.h"
#include "backends/oracle/screen_internal.h"
#include "program/base/bits.h"
#include "program/ops/op_def.h"
#include "tests/reference/op_cases.h"

namespace twinrun::screen_test {
namespace {

struct Mode {
  Capabilities declared;
  Arithmetic arithmetic;
};

Mode mode(DotPrecision precision, bool flush) {
  Mode m;
  m.declared.precision = precision;
  m.declared.flush = flush;
  m.declared.block32_order = precision != DotPrecision::kF32;
  m.arithmetic.flush = flush;
  m.arithmetic.dot = precision == DotPrecision::kF32      ? DotArithmetic::kF32
                     : precision == DotPrecision::kBf16   ? DotArithmetic::kBf16
                     : precision == DotPrecision::kBf16x3 ? DotArithmetic::kBf16x3
                                                          : DotArithmetic::kBf16x6;
  return m;
}

std::vector<Mode> modes(OpKind kind) {
  if (class_of(kind) != OpClass::kDot)
    return {mode(DotPrecision::kF32, false), mode(DotPrecision::kF32, true)};
  return {mode(DotPrecision::kF32, false), mode(DotPrecision::kF32, true),
          mode(DotPrecision::kBf16, true), mode(DotPrecision::kBf16x3, true),
          mode(DotPrecision::kBf16x6, true)};
}

Tensor conforming(const Op& op, std::span<const Tensor> inputs, Arithmetic arithmetic) {
  const KernelContext context{nullptr, arithmetic};
  Tensor out = Tensor::zeros(op.type);
  if (op.kind == OpKind::kAllReduce) {
    all_reduce_sum(context, inputs, out);
  } else {
    run_kernel(context, op, inputs, out);
  }
  return out;
}

double ratio(const Mode& m, const OpCase& c, const Tensor& output) {
  return screen::worst_row({m.declared, c.op, c.inputs, output, nullptr});
}

OpCase matrix_case(int64_t m, int64_t k, int64_t n, DataClass data, uint64_t seed,
                   bool first_dimensions = false) {
  OpCase c;
  c.op.kind = OpKind::kDotGeneral;
  c.op.type = {DType::kF32, {m, n}};
  c.op.attrs.lhs_contract = first_dimensions ? 0 : 1;
  c.op.attrs.rhs_contract = 0;
  c.inputs = {random_tensor({DType::kF32, first_dimensions ? Dims{k, m} : Dims{m, k}}, data, seed),
              random_tensor({DType::kF32, {k, n}}, data, seed + 1)};
  return c;
}

OpCase convolution_case(OpKind kind, Dims x, int64_t co, DataClass data, uint64_t seed) {
  const Dims w{3, 3, x[3], co}, y{x[0], x[1], x[2], co};
  OpCase c;
  c.op.kind = kind;
  c.op.attrs.window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}};
  const Dims& result = kind == OpKind::kConvolution            ? y
                       : kind == OpKind::kConvolutionInputGrad ? x
                                                               : w;
  c.op.attrs.shape = result;
  c.op.type = {DType::kF32, result};
  c.inputs = {
      random_tensor({DType::kF32, kind == OpKind::kConvolutionInputGrad ? y : x}, data, seed),
      random_tensor({DType::kF32, kind == OpKind::kConvolutionKernelGrad ? y : w}, data, seed + 1)};
  return c;
}

class ConformingScreen : public testing::TestWithParam<int> {};

// Fifty seeds over all data classes, in every arithmetic: there must be no false alarm.
TEST_P(ConformingScreen, IsPlausible) {
  const auto kind = static_cast<OpKind>(GetParam());
  int64_t results = 0, alarms = 0;
  double worst = 0;
  for (DataClass data : kDataClasses) {
    for (uint64_t seed = 0; seed < (data == DataClass::kNormal ? 14u : 6u); ++seed) {
      for (const OpCase& c : op_cases(kind, data, 100 + seed)) {
        for (const Mode& m : modes(kind)) {
          const Tensor out = conforming(c.op, c.inputs, m.arithmetic);
          ++results;
          if (!plausible(m.declared, c.op, c.inputs, out, nullptr)) {
            ++alarms;
            ADD_FAILURE() << c.name << " flush " << m.declared.flush << " precision "
                          << static_cast<int>(m.declared.precision) << " seed " << seed;
          }
          Mode foreign = m;  // declares less, so that it must pass, too
          foreign.declared.ours = false;
          EXPECT_TRUE(plausible(foreign.declared, c.op, c.inputs, out, nullptr)) << c.name;
          if (class_of(kind) == OpClass::kDot) worst = std::max(worst, ratio(m, c, out));
          if (alarms > 5) return;
        }
      }
    }
  }
  std::printf("%-28s %lld results, %lld false alarms", std::string(name_of(kind)).c_str(),
              static_cast<long long>(results), static_cast<long long>(alarms));
  if (class_of(kind) == OpClass::kDot) std::printf(", worst ratio %.3f", worst);
  std::printf("\n");
}
INSTANTIATE_TEST_SUITE_P(Kinds, ConformingScreen, testing::Range(0, kOpKinds),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(name_of(static_cast<OpKind>(info.param)));
                         });

TEST(ConformingScreenLong, IsPlausible) {
  double worst = 0;
  for (DataClass data : kDataClasses) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      std::vector<OpCase> cases{matrix_case(37, 784, 65, data, seed),
                                matrix_case(33, 5000, 10, data, seed, true)};
      for (OpKind kind :
           {OpKind::kConvolution, OpKind::kConvolutionInputGrad, OpKind::kConvolutionKernelGrad}) {
        cases.push_back(convolution_case(kind, {7, 13, 14, 5}, 19, data, seed));
      }
      for (const OpCase& c : cases) {
        for (const Mode& m : modes(c.op.kind)) {
          const double r = ratio(m, c, conforming(c.op, c.inputs, m.arithmetic));
          EXPECT_LE(r, 1) << name_of(c.op.kind) << " " << to_string(data) << " precision "
                          << static_cast<int>(m.declared.precision);
          if (data == DataClass::kNormal || data == DataClass::kPositive)
            worst = std::max(worst, r);
        }
      }
    }
  }
  std::printf("worst ratio of ordinary data, long dots: %.3f\n", worst);
}

// With equal numbers everywhere, all roundings err to the same side.
TEST(ConformingScreenLong, Constant) {
  for (float value : {0.1f, 1.0f / 3, 1.00390625f, 1.0f}) {
    for (bool first : {false, true}) {
      OpCase c = matrix_case(5, 6000, 11, DataClass::kNormal, 1, first);
      for (Tensor& t : c.inputs) std::ranges::fill(t.as<float>(), value);
      for (const Mode& m : modes(c.op.kind)) {
        EXPECT_LE(ratio(m, c, conforming(c.op, c.inputs, m.arithmetic)), 1)
            << value << " " << first << " precision " << static_cast<int>(m.declared.precision);
      }
    }
  }
}

TEST(ScreenThreads, DoNotChangeTheAnswer) {
  ThreadPool pool(3);
  for (OpKind kind : {OpKind::kDotGeneral, OpKind::kConvolution, OpKind::kConvolutionInputGrad,
                      OpKind::kConvolutionKernelGrad, OpKind::kReduce, OpKind::kAdd,
                      OpKind::kTranspose, OpKind::kBroadcastInDim, OpKind::kReduceWindow,
                      OpKind::kSelectAndScatter, OpKind::kRngUniform}) {
    for (const OpCase& c : op_cases(kind, DataClass::kNormal, 5)) {
      for (const Mode& m : modes(kind)) {
        Tensor out = conforming(c.op, c.inputs, m.arithmetic);
        EXPECT_TRUE(plausible(m.declared, c.op, c.inputs, out, &pool)) << c.name;
        if (class_of(kind) == OpClass::kDot) {
          EXPECT_EQ(screen::worst_row({m.declared, c.op, c.inputs, out, &pool}), ratio(m, c, out))
              << c.name;
        }
        if (out.bytes() < 4) continue;
        out.raw()[out.bytes() - 1] ^= std::byte{0xFF};
        EXPECT_EQ(plausible(m.declared, c.op, c.inputs, out, &pool),
                  plausible(m.declared, c.op, c.inputs, out, nullptr));
      }
    }
  }
}

// ---- planted errors

// Flips one bit of one element, which has 16 or 32 bits.
void flip(Tensor& t, int64_t element, int bit) {
  const size_t size = size_of(t.dtype());
  const int64_t at = element * static_cast<int64_t>(size) + bit / 8;
  t.raw()[at] ^= static_cast<std::byte>(1 << bit % 8);
}

struct Count {
  int64_t caught = 0, planted = 0;
  double share() const {
    return planted > 0 ? static_cast<double>(caught) / static_cast<double>(planted) : 1;
  }
};

// Flips one of bits 22 to 31 of random elements of an f32 result, or of bits 6 to 15 of a bf16 one,
// and counts how many flips the screen detects.
void flip_bits(const Mode& m, const OpCase& c, std::mt19937_64& random, int each, Count& count) {
  Tensor out = conforming(c.op, c.inputs, m.arithmetic);
  const bool narrow = out.dtype() == DType::kBF16;
  for (int i = 0; i < each; ++i) {
    const auto element = static_cast<int64_t>(random() % static_cast<uint64_t>(out.elements()));
    const int bit = static_cast<int>((narrow ? 6 : 22) + random() % 10);
    // Leave out zeros and NaN: the sign of a zero and the bits of a NaN are no numeric error.
    const float x = narrow ? bf16_to_f32(out.as<uint16_t>()[static_cast<size_t>(element)])
                           : out.as<float>()[static_cast<size_t>(element)];
    if (x == 0 || x != x) continue;
    flip(out, element, bit);
    ++count.planted;
    count.caught += plausible(m.declared, c.op, c.inputs, out, nullptr) ? 0 : 1;
    flip(out, element, bit);
  }
}

TEST(ScreenPlanted, FlippedBitsElementwise) {
  std::mt19937_64 random(1);
  for (int k = 0; k < kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    if (class_of(kind) == OpClass::kDot) continue;
    Count count;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      for (const OpCase& c : op_cases(kind, DataClass::kNormal, seed)) {
        if (c.op.type.dtype != DType::kF32 && c.op.type.dtype != DType::kBF16) continue;
        for (const Mode& m : modes(kind)) flip_bits(m, c, random, 20, count);
      }
    }
    if (count.planted == 0) continue;
    std::printf("%-28s %5.2f %% of %lld flips\n", std::string(name_of(kind)).c_str(),
                100 * count.share(), static_cast<long long>(count.planted));
    EXPECT_GE(count.share(), 0.99) << name_of(kind);
  }
}

TEST(ScreenPlanted, FlippedBitsDots) {
  std::mt19937_64 random(2);
  std::vector<std::pair<const char*, OpCase>> cases;
  cases.emplace_back("dot 64x784x64", matrix_case(64, 784, 64, DataClass::kNormal, 1));
  cases.emplace_back("dot 64x784x64 positive", matrix_case(64, 784, 64, DataClass::kPositive, 1));
  cases.emplace_back("dot 784x64x64, first dims",
                     matrix_case(784, 64, 64, DataClass::kNormal, 3, true));
  cases.emplace_back("dot 64x64x10", matrix_case(64, 64, 10, DataClass::kNormal, 5));
  cases.emplace_back("dot 16x64x1024", matrix_case(16, 64, 1024, DataClass::kNormal, 5));
  for (OpKind kind :
       {OpKind::kConvolution, OpKind::kConvolutionInputGrad, OpKind::kConvolutionKernelGrad}) {
    cases.emplace_back("4x14x14, 16->32, 3x3",
                       convolution_case(kind, {4, 14, 14, 16}, 32, DataClass::kNormal, 7));
  }
  cases.emplace_back(
      "64x28x28, 4->8, 3x3",
      convolution_case(OpKind::kConvolutionKernelGrad, {64, 28, 28, 4}, 8, DataClass::kNormal, 9));
  for (const auto& [name, c] : cases) {
    std::printf("%-24s %-26s", std::string(name_of(c.op.kind)).c_str(), name);
    for (const Mode& m : modes(c.op.kind)) {
      Count count;
      flip_bits(m, c, random, c.inputs[0].elements() > 100000 ? 20 : 150, count);
      std::printf(" %6.2f %%", 100 * count.share());
      EXPECT_GE(count.share(), 0.95)
          << name << " precision " << static_cast<int>(m.declared.precision);
    }
    std::printf("   (f32, f32 flush, bf16, bf16x3, bf16x6)\n");
  }
}

TEST(ScreenPlanted, WrongDots) {
  Count truncated, dropped, scaled, rounded;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (OpKind kind : {OpKind::kDotGeneral, OpKind::kConvolution, OpKind::kConvolutionInputGrad,
                        OpKind::kConvolutionKernelGrad}) {
      const OpCase c = kind == OpKind::kDotGeneral
                           ? matrix_case(32, 784, 32, DataClass::kNormal, 10 * seed)
                           : convolution_case(kind, {2, 14, 14, 8}, 16, DataClass::kNormal, seed);
      for (const Mode& m : modes(kind)) {
        auto plant = [&](Count& count, const OpCase& wrong, float factor) {
          Tensor out = conforming(c.op, wrong.inputs, m.arithmetic);
          for (float& x : out.as<float>()) x *= factor;
          ++count.planted;
          count.caught += plausible(m.declared, c.op, c.inputs, out, nullptr) ? 0 : 1;
        };
        OpCase wrong = c;
        for (Tensor& t : wrong.inputs) {
          t = t.clone();
          for (float& x : t.as<float>()) x = bf16_to_f32(bf16_truncate(x));
        }
        plant(truncated, wrong, 1);
        wrong = c;
        // Drop a tail of k: the last row or pixel.
        Tensor& t = wrong.inputs[kind == OpKind::kDotGeneral ? 1 : 0];
        t = t.clone();
        const int64_t tail = t.dims().back();
        std::ranges::fill(t.as<float>().last(static_cast<size_t>(tail)), 0.0f);
        plant(dropped, wrong, 1);
        plant(scaled, c, 1.001f);
        if (m.declared.precision != DotPrecision::kBf16) {
          Tensor low = conforming(c.op, c.inputs, mode(DotPrecision::kBf16, true).arithmetic);
          ++rounded.planted;
          rounded.caught += plausible(m.declared, c.op, c.inputs, low, nullptr) ? 0 : 1;
        }
      }
    }
  }
  std::printf(
      "dots: truncated operands %.1f %%, dropped tail %.1f %%, scaled by 1.001 %.1f %%, bf16 for "
      "more %.1f %% caught\n",
      100 * truncated.share(), 100 * dropped.share(), 100 * scaled.share(), 100 * rounded.share());
  for (const Count* count : {&truncated, &dropped, &scaled, &rounded})
    EXPECT_EQ(count->caught, count->planted);
}

TEST(ScreenPlanted, ScaledResults) {
  for (OpKind kind :
       {OpKind::kReduce, OpKind::kReduceWindow, OpKind::kSelectAndScatter, OpKind::kAvgPoolGrad,
        OpKind::kAllReduce, OpKind::kExponential, OpKind::kLog, OpKind::kTanh, OpKind::kErf,
        OpKind::kLog1p, OpKind::kLogistic, OpKind::kRsqrt, OpKind::kSqrt, OpKind::kAdd,
        OpKind::kSine, OpKind::kCosine, OpKind::kMultiply, OpKind::kConvert, OpKind::kRngUniform}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      for (const OpCase& c : op_cases(kind, DataClass::kNormal, seed)) {
        if (c.op.type.dtype != DType::kF32 || c.op.type.elements() < 8) continue;
        for (const Mode& m : modes(kind)) {
          Tensor out = conforming(c.op, c.inputs, m.arithmetic);
          for (float& x : out.as<float>()) x *= 1.001f;
          EXPECT_FALSE(plausible(m.declared, c.op, c.inputs, out, nullptr)) << c.name;
        }
      }
    }
  }
}

TEST(ScreenPlanted, OneSidedNanAndInfinity) {
  for (int k = 0; k < kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    for (const OpCase& c : op_cases(kind, DataClass::kPositive, 3)) {
      if (c.op.type.dtype != DType::kF32) continue;
      for (const Mode& m : modes(kind)) {
        for (float bad : {from_bits(kCanonicalNaN), std::numeric_limits<float>::infinity()}) {
          Tensor out = conforming(c.op, c.inputs, m.arithmetic).clone();
          if (!std::isfinite(out.as<float>()[0])) continue;
          out.as<float>()[0] = bad;
          EXPECT_FALSE(plausible(m.declared, c.op, c.inputs, out, nullptr)) << c.name << " " << bad;
        }
      }
    }
  }
}

TEST(ScreenPlanted, WrongPredicatesAndIntegers) {
  for (OpKind kind :
       {OpKind::kCompare, OpKind::kAdd, OpKind::kMultiply, OpKind::kConvert, OpKind::kSelect,
        OpKind::kTranspose, OpKind::kIota, OpKind::kConstant, OpKind::kBroadcastInDim}) {
    for (const OpCase& c : op_cases(kind, DataClass::kNormal, 3)) {
      if (c.op.type.dtype != DType::kI32 && c.op.type.dtype != DType::kPred) continue;
      Tensor out = conforming(c.op, c.inputs, {});
      for (int64_t i = 0; i < out.elements(); i += 7) {
        flip(out, i, 0);
        EXPECT_FALSE(plausible({}, c.op, c.inputs, out, nullptr)) << c.name;
        flip(out, i, 0);
      }
    }
  }
}

// Measures which smaller errors in one element of a dot the screen detects, bit by bit.
TEST(ScreenSensitivitySlow, Bits) {
  std::mt19937_64 random(3);
  for (OpKind kind : {OpKind::kDotGeneral, OpKind::kConvolution, OpKind::kConvolutionInputGrad,
                      OpKind::kConvolutionKernelGrad}) {
    const OpCase c = kind == OpKind::kDotGeneral
                         ? matrix_case(64, 784, 64, DataClass::kNormal, 1)
                         : convolution_case(kind, {4, 14, 14, 16}, 32, DataClass::kNormal, 7);
    for (const auto& [label, m] : {std::pair{"f32", mode(DotPrecision::kF32, false)},
                                   std::pair{"bf16", mode(DotPrecision::kBf16, true)},
                                   std::pair{"bf16x3", mode(DotPrecision::kBf16x3, true)}}) {
      Tensor out = conforming(c.op, c.inputs, m.arithmetic);
      std::printf("%-24s %-6s bits 10-22, %% caught:", std::string(name_of(kind)).c_str(), label);
      for (int bit = 10; bit <= 22; ++bit) {
        Count count;
        for (int i = 0; i < 200; ++i) {
          const auto e = static_cast<int64_t>(random() % static_cast<uint64_t>(out.elements()));
          flip(out, e, bit);
          ++count.planted;
          count.caught += plausible(m.declared, c.op, c.inputs, out, nullptr) ? 0 : 1;
          flip(out, e, bit);
        }
        std::printf(" %.0f", 100 * count.share());
      }
      std::printf("\n");
    }
  }
}

// ---- cost

double seconds(const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

Op op_of(OpKind kind, std::span<const Tensor> inputs, Attrs attrs = {}) {
  Op op;
  op.kind = kind;
  op.attrs = std::move(attrs);
  std::vector<TensorType> types;
  for (const Tensor& t : inputs) types.push_back(t.type());
  op.type = op_def(kind).infer(op, types);
  return op;
}

void print_cost(const char* name, const Mode& m, const Op& op, std::span<const Tensor> inputs) {
  Tensor out = conforming(op, inputs, m.arithmetic);
  bool good = true;
  const double kernel = seconds([&] {
    const KernelContext context{nullptr, m.arithmetic};
    run_kernel(context, op, inputs, out);
  });
  const double screen =
      seconds([&] { good = plausible(m.declared, op, inputs, out, nullptr) && good; });
  EXPECT_TRUE(good) << name;
  int64_t elements = out.elements();
  for (const Tensor& t : inputs) elements += t.elements();
  std::printf(
      "%-36s screen %8.3f ms, %6.3f ns per element in or out, %6.3f per result; kernel %8.3f ms: "
      "%5.1f %%\n",
      name, 1e3 * screen, 1e9 * screen / static_cast<double>(elements),
      1e9 * screen / static_cast<double>(out.elements()), 1e3 * kernel, 100 * screen / kernel);
}

TEST(ScreenCostSlow, OneThread) {
  const Mode f32 = mode(DotPrecision::kF32, false), bf16 = mode(DotPrecision::kBf16, true),
             x3 = mode(DotPrecision::kBf16x3, true);
  for (const auto& [label, m] :
       {std::pair{"f32", f32}, std::pair{"bf16", bf16}, std::pair{"bf16x3", x3}}) {
    for (OpKind kind :
         {OpKind::kConvolution, OpKind::kConvolutionInputGrad, OpKind::kConvolutionKernelGrad}) {
      const OpCase c = convolution_case(kind, {256, 28, 28, 16}, 32, DataClass::kNormal, 1);
      print_cost((std::string(name_of(kind)) + " " + label).c_str(), m, c.op, c.inputs);
    }
    const OpCase forward = matrix_case(256, 784, 64, DataClass::kNormal, 1);
    print_cost((std::string("dense 256x784x64 ") + label).c_str(), m, forward.op, forward.inputs);
    const OpCase gradient = matrix_case(784, 256, 64, DataClass::kNormal, 1, true);
    print_cost((std::string("its kernel gradient ") + label).c_str(), m, gradient.op,
               gradient.inputs);
  }
  const OpCase first =
      convolution_case(OpKind::kConvolution, {256, 28, 28, 1}, 16, DataClass::kNormal, 1);
  print_cost("convolution 1->16 f32", f32, first.op, first.inputs);
  const TensorType image{DType::kF32, {256, 28, 28, 16}};
  const Tensor a = random_tensor(image, DataClass::kNormal, 1),
               b = random_tensor(image, DataClass::kNormal, 2);
  Tensor positive = a.clone();
  for (float& x : positive.as<float>()) x = std::fabs(x) + 0x1p-20f;
  for (const auto& [label, m] : {std::pair{"f32", f32}, std::pair{"flush", bf16}}) {
    for (OpKind kind :
         {OpKind::kAdd, OpKind::kMultiply, OpKind::kDivide, OpKind::kMaximum, OpKind::kCompare,
          OpKind::kSqrt, OpKind::kRsqrt, OpKind::kExponential, OpKind::kLog, OpKind::kTanh,
          OpKind::kLogistic, OpKind::kErf, OpKind::kNegate}) {
      std::vector<Tensor> in{
          kind == OpKind::kSqrt || kind == OpKind::kLog || kind == OpKind::kRsqrt ? positive : a};
      if (operand_count(kind) == 2) in.push_back(b);
      print_cost((std::string(name_of(kind)) + " " + label).c_str(), m, op_of(kind, in), in);
    }
  }
  auto one = [&](const char* name, OpKind kind, std::vector<Tensor> in, Attrs attrs) {
    print_cost(name, f32, op_of(kind, in, std::move(attrs)), in);
  };
  Attrs channels;
  channels.dims = {3};
  channels.shape = image.dims;
  one("broadcast of channels", OpKind::kBroadcastInDim,
      {random_tensor({DType::kF32, {16}}, DataClass::kNormal, 1)}, channels);
  Attrs permute;
  permute.dims = {0, 3, 1, 2};
  one("transpose to NCHW", OpKind::kTranspose, {a}, permute);
  Tensor mask = Tensor::zeros({DType::kPred, image.dims});
  for (size_t i = 0; i < static_cast<size_t>(mask.elements()); ++i)
    mask.as<uint8_t>()[i] = a.as<float>()[i] > 0;
  one("select", OpKind::kSelect, {mask, a, b}, {});
  Attrs over;
  over.dims = {0, 1, 2};
  one("reduce sum to channels", OpKind::kReduce, {a}, over);
  over.reducer = Reducer::kMax;
  one("reduce max to channels", OpKind::kReduce, {a}, over);
  over.dims = {3};
  over.reducer = Reducer::kMean;
  one("reduce mean of channels", OpKind::kReduce, {a}, over);
  Attrs pool;
  pool.window = {{2, 2}, {2, 2}, {0, 0}, {0, 0}, {1, 1}};
  pool.reducer = Reducer::kMax;
  one("max pooling 2x2", OpKind::kReduceWindow, {a}, pool);
  pool.reducer = Reducer::kMean;
  one("mean pooling 2x2", OpKind::kReduceWindow, {a}, pool);
  const Tensor dy = random_tensor({DType::kF32, {256, 14, 14, 16}}, DataClass::kNormal, 3);
  one("select_and_scatter 2x2", OpKind::kSelectAndScatter, {a, dy}, pool);
  pool.shape = image.dims;
  one("avg_pool_grad 2x2", OpKind::kAvgPoolGrad, {dy}, pool);
  Attrs random;
  random.shape = {256, 12544};
  Tensor samples = Tensor::empty({DType::kI32, {256}});
  for (size_t i = 0; i < 256; ++i) samples.as<int32_t>()[i] = static_cast<int32_t>(i);
  one("rng_uniform", OpKind::kRngUniform, {Tensor::scalar_i32(3), samples}, random);
}

}  // namespace
}  // namespace twinrun::screen_test

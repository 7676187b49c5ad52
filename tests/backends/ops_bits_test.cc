// Tests every kernel against the naive interpreter, bit for bit: all kinds, data classes and
// arithmetics, and for dots every instruction set of this machine.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "backends/kernels/kernels.h"
#include "program/base/bits.h"
#include "tests/reference/interpreter.h"
#include "tests/reference/op_cases.h"
#include "tests/support/isa_scope.h"
#include "tests/support/sanitized.h"

namespace twinrun::ops_bits_test {
namespace {

struct Mode {
  const char* name;
  Arithmetic kernel;
  ReferenceArithmetic reference;
};
using Dot = ReferenceArithmetic::Dot;
constexpr Mode kModes[] = {
    {"f32", {DotArithmetic::kF32, false}, {Dot::kF32, false}},
    {"f32 flush", {DotArithmetic::kF32, true}, {Dot::kF32, true}},
    {"bf16", {DotArithmetic::kBf16, true}, {Dot::kBf16, true}},
    {"bf16 poison", {DotArithmetic::kBf16, true, true}, {Dot::kBf16, true}},
    {"bf16x3", {DotArithmetic::kBf16x3, true}, {Dot::kBf16x3, true}},
    {"bf16x6", {DotArithmetic::kBf16x6, true}, {Dot::kBf16x6, true}},
};

Tensor kernel_result(ThreadPool& pool, const OpCase& c, Arithmetic arithmetic) {
  Tensor out = Tensor::empty(c.op.type);
  // Fill the output with a pattern, so that elements that are not written show.
  for (std::byte& b : std::span(out.raw(), out.bytes())) b = std::byte{0xA5};
  const KernelContext context{&pool, arithmetic};
  if (c.op.kind == OpKind::kAllReduce) {
    all_reduce_sum(context, c.inputs, out);
  } else {
    run_kernel(context, c.op, c.inputs, out);
  }
  return out;
}

Tensor reference_result(const OpCase& c, ReferenceArithmetic arithmetic) {
  if (c.op.kind == OpKind::kAllReduce) return reference_all_reduce(c.inputs, arithmetic);
  return reference_op(c.op, c.inputs, arithmetic);
}

// "element 7: kernel 3f800001, reference 3f800000 (3 of 64 differ)", or "" if equal.
std::string difference(const Tensor& got, const Tensor& want) {
  if (got.same_bits(want)) return "";
  const size_t size = size_of(want.dtype());
  int64_t first = -1, count = 0;
  auto word = [&](const Tensor& t, int64_t i) {
    uint32_t u = 0;
    std::copy_n(t.raw() + static_cast<size_t>(i) * size, size, reinterpret_cast<std::byte*>(&u));
    return u;
  };
  for (int64_t i = 0; i < want.elements(); ++i) {
    if (word(got, i) == word(want, i)) continue;
    if (first < 0) first = i;
    ++count;
  }
  char text[160];
  std::snprintf(text, sizeof text,
                "element %lld: kernel %08x, reference %08x (%lld of %lld differ)",
                static_cast<long long>(first), word(got, first), word(want, first),
                static_cast<long long>(count), static_cast<long long>(want.elements()));
  return text;
}

class OpBits : public testing::TestWithParam<int> {};

TEST_P(OpBits, KernelEqualsReference) {
  const auto kind = static_cast<OpKind>(GetParam());
  const bool dot = class_of(kind) == OpClass::kDot;
  ThreadPool pool(2);
  int64_t compared = 0;
  int failures = 0;
  for (DataClass data : kDataClasses) {
    for (uint64_t seed = 1; seed <= (kSanitized ? 1 : 2); ++seed) {
      const auto cases = op_cases(kind, data, seed);
      ASSERT_FALSE(cases.empty()) << "no cases for " << name_of(kind);
      for (const OpCase& c : cases) {
        for (const Mode& mode : kModes) {
          if (!dot && mode.kernel.dot != DotArithmetic::kF32) continue;
          const Tensor want = reference_result(c, mode.reference);
          for (Isa isa : {Isa::kScalar, Isa::kNeon, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16,
                          Isa::kAmxModel, Isa::kAmx}) {
            if (!dot && isa != Isa::kAmx) continue;
            const IsaScope scope(isa);
            // Without AMX, the loop's kAmx runs the best instruction set of this machine.
            if (!scope.there() && isa != Isa::kAmx) continue;
            const std::string d = difference(kernel_result(pool, c, mode.kernel), want);
            EXPECT_EQ(d, "") << c.name << ", " << mode.name << ", " << to_string(active_isa())
                             << ", seed " << seed;
            compared += want.elements();
            if (!d.empty() && ++failures >= 12) FAIL() << "more left out";
          }
        }
      }
    }
  }
  std::printf("%-28s %lld elements equal\n", std::string(name_of(kind)).c_str(),
              static_cast<long long>(compared));
}

// Kind 0 is a parameter, which is given and not computed.
static_assert(static_cast<int>(OpKind::kParameter) == 0);
INSTANTIATE_TEST_SUITE_P(Kinds, OpBits, testing::Range(1, kOpKinds),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(name_of(static_cast<OpKind>(info.param)));
                         });

// Views that start off a 64-byte boundary, and other thread counts, change no bit of the kinds that
// use blocks or vectors.
TEST(OpBits, AlignmentAndThreadsDoNotShow) {
  for (OpKind kind : {OpKind::kAdd, OpKind::kExponential, OpKind::kDotGeneral, OpKind::kConvolution,
                      OpKind::kConvolutionKernelGrad, OpKind::kReduce, OpKind::kReduceWindow,
                      OpKind::kTranspose}) {
    for (const OpCase& c : op_cases(kind, DataClass::kNormal, 9)) {
      OpCase shifted = c;
      for (Tensor& t : shifted.inputs) {
        const int64_t n = t.elements();
        Tensor wide = Tensor::zeros({t.dtype(), {n + 1}});
        std::copy_n(t.raw(), t.bytes(), wide.raw() + size_of(t.dtype()));
        t = wide.rows(1, n + 1).reshaped(t.dims());
      }
      for (const Mode& mode : {kModes[0], kModes[2]}) {
        ThreadPool one(1);
        const Tensor want = kernel_result(one, c, mode.kernel);
        for (int threads : {1, 2, 3, 8}) {
          ThreadPool pool(threads);
          EXPECT_EQ(difference(kernel_result(pool, shifted, mode.kernel), want), "")
              << c.name << " threads " << threads;
        }
      }
    }
  }
}

}  // namespace
}  // namespace twinrun::ops_bits_test

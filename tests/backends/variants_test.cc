// Honest variants keep what they declare (the oracle finds none of their results outside), use their freedom, and are the same
// element by element, on any number of threads, and again.
#include "backends/variants/variant.h"

#include <gtest/gtest.h>
#include <mpfr.h>

#include <cmath>
#include <numeric>
#include <set>

#include "backends/kernels/kernels.h"
#include "backends/oracle.h"
#include "backends/oracle/screen.h"
#include "program/base/bits.h"
#include "tests/reference/op_cases.h"

namespace twinrun {
namespace {

constexpr DotPrecision kPrecisions[] = {DotPrecision::kF32, DotPrecision::kBf16,
                                        DotPrecision::kBf16x3, DotPrecision::kBf16x6};

Arithmetic contract_of(const Capabilities& d) {
  Arithmetic a;
  a.dot = static_cast<DotArithmetic>(d.precision);
  a.flush = d.flush;
  return a;
}

// As the contract's kernels compute it at the declared precision.
Tensor by_contract(const Variant& v, const OpCase& c) {
  Tensor out = Tensor::empty(c.op.type);
  const KernelContext context{nullptr, contract_of(v.declared)};
  if (c.op.kind == OpKind::kAllReduce) {
    all_reduce_sum(context, c.inputs, out);
  } else {
    run_kernel(context, c.op, c.inputs, out);
  }
  return out;
}
Tensor by_variant(const Variant& v, const OpCase& c) {
  if (!variants::replaces(v, c.op)) return by_contract(v, c);
  Tensor out = Tensor::empty(c.op.type);
  variants::run_op(v, c.op, c.inputs, out);
  return out;
}
bool in_replaced_class(OpKind kind) {
  const OpClass c = class_of(kind);
  return c == OpClass::kDot || c == OpClass::kReduce || c == OpClass::kWindow ||
         c == OpClass::kCollective || kind == OpKind::kExponential || kind == OpKind::kLog ||
         kind == OpKind::kTanh || kind == OpKind::kErf || kind == OpKind::kLog1p ||
         kind == OpKind::kLogistic || kind == OpKind::kRsqrt;
}

// What a subject may declare: a foreign engine of its own making, or one of ours.
std::vector<Variant> family(uint64_t seed) {
  std::vector<Variant> all;
  for (const DotPrecision precision : kPrecisions) {
    all.push_back(draw_variant(seed, precision));
    Capabilities ours;
    ours.precision = precision;
    ours.flush = seed % 2 == 0;
    ours.elementary_ulps = seed % 3 == 0 ? 0.5 : 2;
    ours.block32_order = seed % 4 < 2;
    all.push_back(variant_within(seed, ours));
  }
  return all;
}

class VariantOp : public testing::TestWithParam<int> {
 protected:
  OpKind kind() const { return static_cast<OpKind>(GetParam()); }
  // Cases of all data classes for seeds [0, seeds); long dots of few seeds.
  template <typename F>
  void for_cases(uint64_t seeds, F f) const {
    if (!in_replaced_class(kind())) GTEST_SKIP() << "the contract's in every variant";
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      const DataClass data = kDataClasses[seed % std::size(kDataClasses)];
      for (const OpCase& c : op_cases(kind(), data, seed)) {
        const bool dot = class_of(kind()) == OpClass::kDot;
        if (dot && c.inputs[0].elements() > 3000 && seed >= 2 * std::size(kDataClasses)) continue;
        for (const Variant& v : family(seed)) {
          if (!dot && v.declared.precision != DotPrecision::kF32) continue;
          f(v, c, seed);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

TEST_P(VariantOp, StaysInsideItsDeclaration) {
  int64_t elements = 0, screened = 0, accused = 0;
  double worst = 0;
  for_cases(210, [&](const Variant& v, const OpCase& c, uint64_t seed) {
    const Tensor out = by_variant(v, c);
    const OracleVerdict verdict = replay(v.declared, c.op, c.inputs, out, nullptr);
    ASSERT_EQ(verdict.outside, 0) << c.name << " seed " << seed << " " << v.declared.settings
                                  << " ours " << v.declared.ours << " element "
                                  << verdict.worst_element << " subject " << verdict.subject
                                  << " value " << verdict.value << " radius " << verdict.radius;
    elements += verdict.elements;
    worst = std::max(worst, verdict.worst);
    ++screened;
    accused += plausible(v.declared, c.op, c.inputs, out, nullptr) ? 0 : 1;
  });
  if (IsSkipped()) return;
  std::printf("%-28s worst ratio %.3f of %lld elements; the screen accuses %lld of %lld results\n",
              std::string(name_of(kind())).c_str(), worst, static_cast<long long>(elements),
              static_cast<long long>(accused), static_cast<long long>(screened));
  EXPECT_LE(accused * 1000, screened);
}

TEST_P(VariantOp, ElementsAreTheResults) {
  for_cases(21, [&](const Variant& v, const OpCase& c, uint64_t seed) {
    const Tensor out = by_variant(v, c);
    std::vector<int64_t> some;
    for (int64_t i = static_cast<int64_t>(seed % 3); i < out.elements(); i += 1 + out.elements() / 50)
      some.push_back(i);
    const std::vector<float> elements = variant_elements(v, c.op, c.inputs, some);
    ASSERT_EQ(elements.size(), some.size());
    for (size_t i = 0; i < some.size(); ++i) {
      const auto at = static_cast<size_t>(some[i]);
      if (out.dtype() == DType::kI32) continue;
      const float x = out.dtype() == DType::kBF16 ? bf16_to_f32(out.as<uint16_t>()[at])
                                                  : out.as<float>()[at];
      ASSERT_EQ(to_bits(elements[i]), to_bits(x)) << c.name << " element " << at << " seed " << seed;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, VariantOp, testing::Range(0, kOpKinds),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(name_of(static_cast<OpKind>(info.param)));
                         });

}  // namespace
}  // namespace twinrun

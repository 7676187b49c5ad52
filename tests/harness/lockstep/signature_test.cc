// Tests the description of wrong results, with faults of the catalogue seen through lockstep: their
// signature, the wrong elements, and the last op that was right. The instrument does not know the
// catalogue: a signature is a computation that agrees with the engine's values.
#include <gtest/gtest.h>

#include <ostream>

#include "tests/harness/watched.h"

namespace twinrun {
namespace {

using tiny::watch;
using tiny::Watched;

struct Alike {
  const char* name;
  DotPrecision precision;
  int cores;
  const char* fault;
  const char* op;
  int64_t step;
  const char* fingerprint;  // a part of the violation's fingerprint
  const char* pattern;      // a part of the violation's pattern
};
std::ostream& operator<<(std::ostream& out, const Alike& l) { return out << l.fault; }

class OpSignatures : public testing::TestWithParam<Alike> {};

TEST_P(OpSignatures, IsRecognised) {
  const Alike& l = GetParam();
  const Watched w =
      watch(tiny::backend("tpu", 1, l.precision), tiny::kDense, l.cores, 5, {}, l.fault);
  ASSERT_FALSE(w.log->runs.front().empty()) << "inert fault";
  ASSERT_FALSE(w.probe->violations().empty());
  const Violation& v = w.probe->violations().front();
  EXPECT_EQ(v.op, l.op) << w.all();
  EXPECT_EQ(v.step, l.step) << w.all();
  EXPECT_NE(v.fingerprint.find(l.fingerprint), std::string::npos) << v.fingerprint;
  EXPECT_NE(v.pattern.find(l.pattern), std::string::npos) << v.pattern;
  EXPECT_NE(v.last_good, v.op);
}

INSTANTIATE_TEST_SUITE_P(
    All, OpSignatures,
    testing::Values(
        Alike{"OnePassForSix", tiny::kSixTimes, 1, "one_pass@dense1/dot_general,from=1",
              "dense1/dot_general", 1,
              "computed at precision 'default' where 'highest' is declared", ""},
        Alike{"StaleOperand", tiny::kOnce, 8, "stale_operand@dense2/dot_general,step=3,magnitude=1",
              "dense2/dot_general", 3, "operand 1 of the step before (stale)", ""},
        Alike{"RowByColumn", tiny::kOnce, 1, "wrong_stride@dense2/dot_general,from=2",
              "dense2/dot_general", 2, "read in transposed order", ""},
        Alike{"NumberOfCores", tiny::kOnce, 8, "scale@dense2/kernel.grad,magnitude=8",
              "dense2/kernel.grad", 0, "8 times what was expected (the number of cores)",
              "all elements"},
        Alike{"OppositeSign", tiny::kOnce, 1, "scale@dense2/kernel.grad,magnitude=-1",
              "dense2/kernel.grad", 0, "what was expected with its sign turned", ""},
        Alike{"CountedTwice", tiny::kOnce, 8, "double_core@dense1/kernel.grad.all_reduce,core=2",
              "dense1/kernel.grad.all_reduce", 0, "the sum with core 2 counted twice", ""},
        Alike{"Hoisted", tiny::kOnce, 8, "first_core_only@dense1/kernel.grad.all_reduce,from=1",
              "dense1/kernel.grad.all_reduce", 1, "core 0's own contribution: not reduced", ""},
        Alike{"Wire", tiny::kOnce, 8, "wire_bf16@dense1/kernel.grad.all_reduce",
              "dense1/kernel.grad.all_reduce", 0, "bfloat16 on the wire", ""},
        Alike{"ZeroRows", tiny::kOnce, 1, "zero_rows@dense2/kernel.grad,magnitude=0",
              "dense2/kernel.grad", 0, "zero", "along dimension 0"},
        Alike{"Lanes", tiny::kOnce, 1, "lane@dense2/kernel.grad,magnitude=4", "dense2/kernel.grad",
              0, "what was expected 1 place", "every 4th element"},
        Alike{"Bit", tiny::kOnce, 8, "bit_flip@dense1/kernel.grad,step=2,core=2,magnitude=30",
              "dense1/kernel.grad", 2, "(bit 30 flipped)", "one element"},
        Alike{"TowardZero", tiny::kOnce, 1, "round_toward_zero@dense1/kernel.update,from=1",
              "dense1/kernel.update", 1, "rounded toward zero instead of to nearest", ""},
        Alike{"PaddingCells", tiny::kOnce, 1, "padding_leak@dense1/dot_general,from=1",
              "dense1/dot_general", 1, "counted twice (a tile of", ""},
        Alike{"FirstTerm", tiny::kOnce, 1, "lost_term@dense2/bias.grad,from=1", "dense2/bias.grad",
              1, "the first term of the sum is missing", ""},
        Alike{"StaleCore", tiny::kOnce, 8, "stale_core@dense1/kernel.grad.all_reduce,step=3,core=5",
              "dense1/kernel.grad.all_reduce", 3, "core 5's part of the step before", ""},
        Alike{"AnotherStep", tiny::kOnce, 8, "untied@dense1/kernel.update,core=3,magnitude=0.5",
              "dense1/kernel.update", 0, "its second input times 0.5", ""},
        Alike{"NarrowSums", tiny::kOnce, 1, "bf16_accumulator@dense1/dot_general",
              "dense1/dot_general", 0, "summed in bfloat16", ""},
        Alike{"NotANumber", tiny::kOnce, 1, "nan@dense1/kernel.grad,step=4", "dense1/kernel.grad",
              4, "NaN or Inf", "one element"},
        Alike{"Truncated", tiny::kOnce, 1, "truncate_bf16@dense1/bias.grad", "dense1/bias.grad", 0,
              "what was expected cut to bfloat16", ""}),
    [](const auto& info) { return std::string(info.param.name); });

// The last op upstream that was checked and inside its bound.
TEST(OpSignature, TheLastGoodNeighbour) {
  const Watched w =
      watch(tiny::backend("tpu"), tiny::kDense, 8, 3, {}, "scale@dense2/dot_general,from=1");
  ASSERT_FALSE(w.probe->violations().empty());
  const std::string good = w.probe->violations().front().last_good;
  EXPECT_TRUE(good.starts_with("relu") || good.starts_with("dense1/")) << good;
}

}  // namespace
}  // namespace twinrun

// Tests of variants, the conforming engines drawn from a seed: the oracle finds all their results
// within what they declare, they use the freedom that this leaves, and they give the same bits
// element by element, on any number of threads, and in a second run.
#include <gtest/gtest.h>
#include <mpfr.h>

#include <cmath>
#include <numeric>
#include <set>

#include "backends/faults/faulty_backend.h"
#include "backends/kernels/kernels.h"
#include "backends/oracle/oracle.h"
#include "backends/oracle/screen.h"
#include "backends/registry.h"
#include "backends/variants/variant.h"
#include "program/base/bits.h"
#include "tests/backends/small_programs.h"
#include "tests/reference/op_cases.h"

namespace twinrun::variants_test {
namespace {

constexpr DotPrecision kPrecisions[] = {DotPrecision::kF32, DotPrecision::kBf16,
                                        DotPrecision::kBf16x3, DotPrecision::kBf16x6};

Arithmetic contract_of(const Capabilities& d) {
  Arithmetic a;
  a.dot = static_cast<DotArithmetic>(d.precision);
  a.flush = d.flush;
  return a;
}

// The result of the contract's kernels at the declared precision.
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
         kind == OpKind::kLogistic || kind == OpKind::kRsqrt || kind == OpKind::kSine ||
         kind == OpKind::kCosine;
}

// Variants within declarations of a foreign engine and of an engine of ours, at all precisions.
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
  // Calls f for cases of all data classes and the seeds [0, seeds); long dots have only few seeds.
  template <typename F>
  void for_cases(uint64_t seeds, F f) const {
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      const DataClass data = kDataClasses[seed % std::size(kDataClasses)];
      for (const OpCase& c : op_cases(kind(), data, seed)) {
        const bool dot = class_of(kind()) == OpClass::kDot;
        if (dot && c.inputs[0].elements() > 3000 && seed != 14 && seed != 18) continue;
        for (const Variant& v : family(seed)) {
          if (!dot && v.declared.precision != DotPrecision::kF32) continue;
          f(v, c, seed);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  void stays_inside(uint64_t seeds) const {
    int64_t elements = 0, screened = 0, accused = 0;
    double worst = 0;
    for_cases(seeds, [&](const Variant& v, const OpCase& c, uint64_t seed) {
      const Tensor out = by_variant(v, c);
      const OracleVerdict verdict = replay(v.declared, c.op, c.inputs, out, nullptr);
      ASSERT_EQ(verdict.outside, 0)
          << c.name << " seed " << seed << " " << v.declared.settings << " ours " << v.declared.ours
          << " element " << verdict.worst_element << " subject " << verdict.subject << " value "
          << verdict.value << " radius " << verdict.radius;
      elements += verdict.elements;
      worst = std::max(worst, verdict.worst);
      ++screened;
      accused += plausible(v.declared, c.op, c.inputs, out, nullptr) ? 0 : 1;
    });
    std::printf(
        "%-28s worst ratio %.3f of %lld elements; the screen accuses %lld of %lld results\n",
        std::string(name_of(kind())).c_str(), worst, static_cast<long long>(elements),
        static_cast<long long>(accused), static_cast<long long>(screened));
    EXPECT_LE(accused * 1000, screened + 1000);  // a false alarm costs no more than a replay
  }
};

TEST_P(VariantOp, StaysInsideItsDeclaration) { stays_inside(28); }
TEST_P(VariantOp, SlowStaysInsideItsDeclaration) { stays_inside(420); }

TEST_P(VariantOp, ElementsAreTheResults) {
  for_cases(21, [&](const Variant& v, const OpCase& c, uint64_t seed) {
    const Tensor out = by_variant(v, c);
    std::vector<int64_t> some;
    for (int64_t i = static_cast<int64_t>(seed % 3); i < out.elements();
         i += 1 + out.elements() / 50)
      some.push_back(i);
    const std::vector<float> elements = variant_elements(v, c.op, c.inputs, some);
    ASSERT_EQ(elements.size(), some.size());
    for (size_t i = 0; i < some.size(); ++i) {
      const auto at = static_cast<size_t>(some[i]);
      if (out.dtype() == DType::kI32) continue;
      const float x =
          out.dtype() == DType::kBF16 ? bf16_to_f32(out.as<uint16_t>()[at]) : out.as<float>()[at];
      ASSERT_EQ(to_bits(elements[i]), to_bits(x))
          << c.name << " element " << at << " seed " << seed;
    }
  });
}

// Of the other kinds every variant computes the bits of the contract.
std::vector<int> replaced_kinds() {
  std::vector<int> kinds;
  for (int kind = 0; kind < kOpKinds; ++kind) {
    if (in_replaced_class(static_cast<OpKind>(kind))) kinds.push_back(kind);
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Kinds, VariantOp, testing::ValuesIn(replaced_kinds()),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(name_of(static_cast<OpKind>(info.param)));
                         });

// ---- variants use the freedom of their declaration

OpCase one_case(OpKind kind, Attrs attrs, TensorType type, std::vector<Dims> operands,
                DataClass data = DataClass::kNormal) {
  OpCase c;
  c.op.kind = kind;
  c.op.attrs = attrs;
  c.op.type = std::move(type);
  uint64_t seed = 100;
  for (const Dims& d : operands) c.inputs.push_back(random_tensor({DType::kF32, d}, data, seed++));
  return c;
}
std::vector<OpCase> long_sums() {
  const TensorType eight{DType::kF32, {8, 8}};
  Attrs both_first, sum, convolution, kernel;
  both_first.lhs_contract = 0;
  sum.dims = {0};
  convolution.window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}};
  kernel = convolution;
  kernel.shape = {3, 3, 4, 5};
  std::vector<OpCase> all = {
      one_case(OpKind::kDotGeneral, {}, eight, {{8, 600}, {600, 8}}),
      one_case(OpKind::kDotGeneral, both_first, eight, {{600, 8}, {600, 8}}),
      one_case(OpKind::kConvolution, convolution, {DType::kF32, {2, 6, 6, 5}},
               {{2, 6, 6, 40}, {3, 3, 40, 5}}),
      one_case(OpKind::kConvolutionKernelGrad, kernel, {DType::kF32, {3, 3, 4, 5}},
               {{4, 12, 12, 4}, {4, 12, 12, 5}}),
      one_case(OpKind::kReduce, sum, {DType::kF32, {30}}, {{500, 30}}),
      one_case(OpKind::kAllReduce, {}, {DType::kF32, {200}},
               {{200}, {200}, {200}, {200}, {200}, {200}, {200}, {200}})};
  return all;
}

TEST(Variants, OfOneDeclarationSpread) {
  Capabilities declared = draw_variant(1, DotPrecision::kF32).declared;
  declared.flush = false;
  for (const DotPrecision precision : kPrecisions) {
    declared.precision = precision;
    for (const OpCase& c : long_sums()) {
      std::set<std::vector<uint32_t>> seen;
      int contract = 0;
      for (uint64_t seed = 0; seed < 64; ++seed) {
        const Variant v = variant_within(seed, declared);
        const Tensor out = by_variant(v, c);
        const auto bits = out.as<uint32_t>();
        seen.emplace(bits.begin(), bits.end());
        contract += out.same_bits(by_contract(v, c)) ? 1 : 0;
      }
      // The all-reduce of 8 has fewer orders than 64.
      EXPECT_GE(seen.size(), c.op.kind == OpKind::kAllReduce ? 9u : 20u) << name_of(c.op.kind);
      EXPECT_LE(contract, 12) << name_of(c.op.kind);
    }
  }
}

TEST(Variants, KeepADeclaredOrder) {
  Capabilities tpu;
  tpu.precision = DotPrecision::kBf16x3;
  tpu.block32_order = tpu.flush = true;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Variant v = variant_within(seed, tpu);
    for (const OpCase& c : long_sums()) {
      if (class_of(c.op.kind) != OpClass::kDot) continue;
      EXPECT_TRUE(by_variant(v, c).same_bits(by_contract(v, c))) << name_of(c.op.kind);
    }
  }
}

// Three passes leave out the product of the low terms, which depends on how operands are split.
TEST(Variants, ASplitThatIsNotDeclaredIsOutside) {
  const OpCase c = one_case(OpKind::kDotGeneral, {}, {DType::kF32, {16, 16}}, {{16, 8}, {8, 16}});
  Capabilities cut, nearest;
  cut.precision = nearest.precision = DotPrecision::kBf16x3;
  cut.ours = nearest.ours = false;
  cut.split = DotSplit::kTruncated;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Tensor out = by_variant(variant_within(seed, cut), c);
    EXPECT_EQ(replay(cut, c.op, c.inputs, out, nullptr).outside, 0);
    EXPECT_GT(replay(nearest, c.op, c.inputs, out, nullptr).outside, 16);
    const Tensor other = by_variant(variant_within(seed, nearest), c);
    EXPECT_GT(replay(cut, c.op, c.inputs, other, nullptr).outside, 16);
  }
}

TEST(Variants, OfARunDifferOnlyWhereDeclared) {
  Variant v = draw_variant(5, DotPrecision::kF32);
  v.declared.deterministic = true;
  EXPECT_EQ(variant_of_run(v, 0).dot, variant_of_run(v, 3).dot);
  v.declared.deterministic = false;
  std::set<std::vector<uint32_t>> seen;
  const OpCase c = long_sums()[0];
  for (uint64_t run = 0; run < 8; ++run) {
    const Tensor out = by_variant(variant_of_run(v, run), c);
    seen.emplace(out.as<uint32_t>().begin(), out.as<uint32_t>().end());
  }
  EXPECT_GE(seen.size(), 4u);
}

TEST(Variants, BatchesOfElementsAreWhatOneByOneGives) {
  const OpCase c = long_sums()[2];
  std::vector<Variant> several;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Capabilities d;
    d.precision = DotPrecision::kBf16x3;
    d.ours = false;
    several.push_back(variant_within(seed, d));
  }
  const std::vector<int64_t> elements = {0, 7, 100, 359};
  const auto all = variants_elements(several, c.op, c.inputs, elements);
  for (size_t i = 0; i < several.size(); ++i)
    EXPECT_EQ(all[i], variant_elements(several[i], c.op, c.inputs, elements));
}

// ---- elementary functions

double true_value(OpKind kind, float x, double& ulp) {
  mpfr_t in, out;
  mpfr_inits2(120, in, out, static_cast<mpfr_ptr>(nullptr));
  mpfr_set_flt(in, x, MPFR_RNDN);
  (kind == OpKind::kExponential ? mpfr_exp
   : kind == OpKind::kLog       ? mpfr_log
   : kind == OpKind::kTanh      ? mpfr_tanh
   : kind == OpKind::kErf       ? mpfr_erf
   : kind == OpKind::kSine      ? mpfr_sin
   : kind == OpKind::kCosine    ? mpfr_cos
                                : mpfr_log1p)(out, in, MPFR_RNDN);
  ulp = std::ldexp(1.0, std::max(static_cast<int>(mpfr_get_exp(out)) - 24, -149));
  const double value = mpfr_get_d(out, MPFR_RNDN);
  mpfr_clears(in, out, static_cast<mpfr_ptr>(nullptr));
  return value;
}

TEST(Variants, ElementaryFunctionsAreWithinTheirUlpsAndUseThem) {
  for (OpKind kind : {OpKind::kExponential, OpKind::kLog, OpKind::kTanh, OpKind::kErf,
                      OpKind::kLog1p, OpKind::kSine, OpKind::kCosine}) {
    OpCase c = one_case(kind, {}, {DType::kF32, {3000}}, {{3000}});
    auto x = c.inputs[0].as<float>();
    for (size_t i = 0; i < x.size(); ++i) {  // a wide range, and near 0 and 1
      const float u = uniform(draw({9, 9}, 0, 0, i)) * (i % 2 == 0 ? 1.0f : -1.0f);
      x[i] = i % 3 == 0 ? u : u * 60;
      if (kind == OpKind::kLog || (kind == OpKind::kLog1p && x[i] <= -1))
        x[i] = std::fabs(x[i]) + 1e-3f;
    }
    std::vector<double> truth(x.size()), spacing(x.size());
    for (size_t i = 0; i < x.size(); ++i) truth[i] = true_value(kind, x[i], spacing[i]);
    for (const double ulps : {1.0, 2.0, 4.0}) {
      double worst = 0;
      bool one_sided = false;
      for (uint64_t seed = 0; seed < 40; ++seed) {
        Capabilities d;
        d.elementary_ulps = ulps;
        d.ours = false;
        const Variant v = variant_within(seed, d);
        const Tensor out = by_variant(v, c);
        double mean = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          const double error = (static_cast<double>(out.as<float>()[i]) - truth[i]) / spacing[i];
          // MPFR's value was rounded to binary64: an error of 2^-53 of it, or 2^-29 ulp.
          ASSERT_LE(std::fabs(error), ulps + 0x1p-28)
              << name_of(kind) << " " << x[i] << " seed " << seed;
          worst = std::max(worst, std::fabs(error));
          mean += error / static_cast<double>(x.size());
        }
        if (v.side != 0) one_sided = one_sided || mean * v.side > 0.05;
      }
      EXPECT_GT(worst, 0.8 * ulps) << name_of(kind);
      EXPECT_TRUE(one_sided);
    }
  }
}

// ---- engines

using small::f32;
using small::Hand;
using small::numbers;
using small::Recorder;
using small::Trial;

// Two dense layers with tanh and momentum.
Program dense_program(int cores) {
  const Program forward = build_forward(Mode::kTraining, 16, {.features = {40}, .classes = 10}, 3,
                                        {.kind = OptimizerSpec::Kind::kMomentum}, [](Layers& net) {
                                          net.dense("dense1", 24);
                                          net.unary("tanh1", OpKind::kTanh);
                                          net.dense("dense2", 10);
                                          net.softmax_cross_entropy(10, {});
                                        });
  return training_step(cores == 1 ? forward : shard(forward, {.cores = cores}));
}
std::string trained(const std::string& engine, int threads, int runs_before = 0) {
  const Program program = dense_program(2);
  BackendOptions options;
  options.threads = threads;
  options.poison_memory = threads > 1;
  auto backend = *make_backend(engine, options);
  for (int i = 0; i < runs_before; ++i) EXPECT_TRUE(backend->prepare(program).ok());
  Trial t(*backend, program);
  t.split("images", small::generic_f32({16, 40}, -1, 1, 5));
  std::vector<int32_t> labels(16);
  std::iota(labels.begin(), labels.end(), -3);
  for (int32_t& l : labels) l = (l + 10) % 10;
  t.split("labels", small::i32({16}, labels));
  std::vector<int32_t> ids(16);
  std::iota(ids.begin(), ids.end(), 0);
  t.split("sample_ids", small::i32({16}, ids));
  for (int step = 0; step < 3; ++step) t.step(step);
  return t.digest();
}

TEST(VariantEngines, HaveTheSameBitsAgainAndOnAnyNumberOfThreads) {
  std::set<std::string> digests;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const std::string name = "honest:" + std::to_string(seed);
    const std::string once = trained(name, 1);
    EXPECT_EQ(once, trained(name, 1));
    EXPECT_EQ(once, trained(name, 3));
    const bool deterministic = draw_variant(seed, DotPrecision::kBf16).declared.deterministic;
    if (deterministic) {
      EXPECT_EQ(once, trained(name, 1, 2)) << "a later run of the same backend";
    } else {
      EXPECT_NE(once, trained(name, 1, 2)) << "it draws its orders anew";
    }
    digests.insert(once);
  }
  EXPECT_GE(digests.size(), 20u) << "engines that differ";
}

TEST(VariantEngines, AreFoundByName) {
  const auto backend = make_backend("honest:17", {.tpu = {.precision = DotPrecision::kBf16x6}});
  ASSERT_TRUE(backend.ok());
  const Capabilities c = (*backend)->capabilities();
  EXPECT_EQ(c.name, "honest:17");
  EXPECT_EQ(c.precision, DotPrecision::kBf16x6);
  EXPECT_FALSE(c.ours);
  for (const char* name : {"honest:", "honest:x", "honest:1.5", "honest:-1"}) {
    const auto wrong = make_backend(name, {});
    ASSERT_FALSE(wrong.ok()) << name;
    EXPECT_NE(wrong.error().message().find("honest:17"), std::string::npos)
        << wrong.error().message();
  }
  EXPECT_NE(make_backend("honst:17", {}).error().message().find("honest"), std::string::npos);
}

// A variant that fuses a product into the add or subtract that reads it.
Variant contracting(uint64_t seed) {
  Capabilities d;
  d.contracts = true;
  d.ours = false;
  Variant v = variant_within(seed, d);
  v.fuses = true;
  return v;
}

TEST(VariantEngines, ContractWhatTheyDeclare) {
  Hand h;
  const Dims dims{2000};
  const ValueId a = h.input("a", {DType::kF32, dims}), b = h.input("b", {DType::kF32, dims});
  const ValueId product = h.b.mul(a, b, "product");
  const ValueId sum = h.b.add(product, a, "sum"), less = h.b.sub(product, a, "less"),
                more = h.b.sub(a, product, "more"),
                both = h.b.add(product, h.b.mul(b, b, "square"), "both");
  h.p.outputs = {{"sum", sum}, {"less", less}, {"more", more}, {"both", both}};
  const Variant v = contracting(3);
  const auto backend = make_variant_backend(v, {});
  Trial t(*backend, h.p);
  t.set("a", random_tensor({DType::kF32, dims}, DataClass::kNormal, 1));
  t.set("b", random_tensor({DType::kF32, dims}, DataClass::kNormal, 2));
  Recorder seen;
  t.step(0, &seen);
  for (const ValueId id : {sum, less, more, both}) {
    const Op& op = h.p.graph.op(id);
    const auto& event = seen.seen.at(op.name);
    const unsigned unrounded = unrounded_operands(v.declared, h.p.graph, id);
    EXPECT_EQ(unrounded, id == sum || id == less ? 1u : id == more ? 2u : 3u);
    const auto outside = [&](unsigned which) {
      return replay(v.declared, op, event.inputs[0], event.outputs[0], nullptr, which).outside;
    };
    EXPECT_EQ(outside(unrounded), 0) << op.name;
    EXPECT_GT(outside(0), 200) << op.name << ": of rounded products it is another sum";
    EXPECT_TRUE(plausible(v.declared, op, event.inputs[0], event.outputs[0], nullptr, unrounded));
    const auto x = numbers(event.inputs[0][0]), y = numbers(event.inputs[0][1]);
    // An error of four times what contraction may change.
    Tensor wrong = event.outputs[0].clone();
    const double room = 4 * 0x1p-24 * (std::fabs(x[77]) + std::fabs(y[77]));
    wrong.as<float>()[77] += static_cast<float>(room);
    EXPECT_EQ(replay(v.declared, op, event.inputs[0], wrong, nullptr, unrounded).outside, 1);
    EXPECT_FALSE(plausible(v.declared, op, event.inputs[0], wrong, nullptr, unrounded));
  }
}

TEST(VariantEngines, TakeFaultsOnTop) {
  const Program program = dense_program(1);
  const Variant v = contracting(4);
  const auto result = [&](const char* fault) {
    auto backend = make_variant_backend(v, {});
    std::vector<FaultSpec> faults;
    if (fault != nullptr) faults.push_back(*parse_fault(fault));
    backend = with_faults(std::move(backend), faults, 1);
    Trial t(*backend, program);
    t.set("images", small::generic_f32({16, 40}, -1, 1, 5));
    t.set("labels", small::i32({16}, std::vector<int32_t>(16, 3)));
    t.set("sample_ids", small::i32({16}, std::vector<int32_t>(16, 3)));
    Recorder seen;
    t.step(0, &seen);
    return seen;
  };
  const Recorder conforming = result(nullptr),
                 scaled = result("scale@dense1/dot_general,magnitude=4"),
                 rounded = result("truncate_bf16@dense1/dot_general");
  const std::string dot = "dense1/dot_general";
  ASSERT_TRUE(conforming.seen.contains(dot)) << "the op's name has changed";
  std::vector<double> four = numbers(conforming.output(dot));
  for (double& x : four) x *= 4;
  EXPECT_EQ(numbers(scaled.output(dot)), four) << "the variant's own bits, then the fault";
  // With a fault on operands the variant still computes the dot, in its own order.
  std::vector<Tensor> cut = conforming.seen.at(dot).inputs[0];
  for (Tensor& t : cut) {
    t = t.clone();
    for (float& x : t.as<float>()) x = bf16_to_f32(bf16_truncate(x));
  }
  ValueId id = 0;
  while (program.graph.op(id).name != dot) ++id;
  Tensor expected = Tensor::empty(program.graph.type(id));
  variants::run_op(v, program.graph.op(id), cut, expected);
  EXPECT_TRUE(rounded.output(dot).same_bits(expected));
}
}  // namespace
}  // namespace twinrun::variants_test

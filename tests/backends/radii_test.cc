// Tests of the replay of whole programs with intervals: conforming engines stay inside, for single
// ops of all kinds and for random programs; errors beyond a radius are outside; rewrites that a
// compiler may do are inside; what is hostile is either known or said not to be.
#include "backends/radii/radii.h"

#include <gtest/gtest.h>

#include <random>

#include "backends/kernels/kernels.h"
#include "backends/variants/variant.h"
#include "tests/backends/small_programs.h"
#include "tests/reference/op_cases.h"

namespace twinrun::radii_test {
namespace {

using small::f32;

std::string text_of(const FoundVerdict& v) {
  if (v.worst_element < 0) return "";
  return "element " + std::to_string(v.worst_element) + " found " + std::to_string(v.subject) +
         " expected " + std::to_string(v.value) + " radius " + std::to_string(v.radius);
}

// The program of one op, whose operands are inputs.
Program program_of(const OpCase& c) {
  Program p;
  GraphBuilder b(p.graph);
  Op op = c.op;
  op.operands.clear();
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const std::string name = "x" + std::to_string(i);
    op.operands.push_back(b.parameter(name, c.inputs[i].type()));
    p.inputs.push_back({name, op.operands.back()});
  }
  op.name = "op";
  p.outputs.push_back({"y", p.graph.add(op)});
  return p;
}

std::vector<ValueId> outputs_of(const Program& p) {
  std::vector<ValueId> out;
  for (const Output& o : p.outputs) out.push_back(o.id);
  return out;
}

class RadiiOp : public testing::TestWithParam<int> {};

TEST_P(RadiiOp, ConformingEnginesAreInside) {
  const auto kind = static_cast<OpKind>(GetParam());
  int64_t elements = 0, unknown = 0;
  double worst = 0;
  for (uint64_t seed = 0; seed < 28; ++seed) {
    for (const OpCase& c : op_cases(kind, kDataClasses[seed % std::size(kDataClasses)], seed)) {
      if (c.inputs.size() > 0 && c.inputs[0].elements() > 3000) continue;
      const Program p = program_of(c);
      for (const DotPrecision dots : {DotPrecision::kF32, DotPrecision::kBf16,
                                      DotPrecision::kBf16x3, DotPrecision::kBf16x6}) {
        if (dots != DotPrecision::kF32 && class_of(kind) != OpClass::kDot) continue;
        const Variant v = draw_variant(seed, dots);
        Tensor found = Tensor::empty(c.op.type);
        if (variants::replaces(v, c.op)) {
          variants::run_op(v, c.op, c.inputs, found);
        } else {
          Arithmetic contract;
          contract.dot = static_cast<DotArithmetic>(dots);
          contract.flush = v.declared.flush;
          run_kernel({nullptr, contract}, c.op, c.inputs, found);
        }
        const auto r = replay_values(p, {{}, c.inputs, {}}, outputs_of(p), {.dots = dots}, nullptr);
        ASSERT_TRUE(r) << r.error().message();
        const FoundVerdict verdict = compare((*r)[0], found);
        ASSERT_EQ(verdict.outside, 0) << c.name << " seed " << seed << " " << text_of(verdict);
        elements += verdict.elements, unknown += verdict.untestable;
        worst = std::max(worst, verdict.worst);
      }
    }
  }
  std::printf("%-28s worst ratio %.3f of %lld elements, %lld of them not known\n",
              std::string(name_of(kind)).c_str(), worst, static_cast<long long>(elements),
              static_cast<long long>(unknown));
}

std::vector<int> kinds() {
  std::vector<int> all;
  for (int k = 0; k < kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    if (kind != OpKind::kParameter && kind != OpKind::kAllReduce) all.push_back(k);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kinds, RadiiOp, testing::ValuesIn(kinds()), [](const auto& info) {
  return std::string(name_of(static_cast<OpKind>(info.param)));
});

// A random program of f32[6, 5] values. Every value is an output.
class RandomProgram {
 public:
  explicit RandomProgram(uint64_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) pool_.push_back(input(random_tensor(kType, kData, seed * 7 + i)));
    w_ = input(random_tensor({DType::kF32, {5, 5}}, kData, seed * 7 + 3));
    kernel_ = input(random_tensor({DType::kF32, {3, 3, 1, 1}}, kData, seed * 7 + 4));
    Tensor ids = Tensor::empty({DType::kI32, {6}});
    for (int32_t& id : ids.as<int32_t>()) id = static_cast<int32_t>(random_() % 8) - 1;
    ids_ = input(ids);
    for (int i = 0; i < 24; ++i) pool_.push_back(op());
    for (ValueId id = 0; id < p.graph.size(); ++id) {
      if (p.graph.op(id).kind != OpKind::kParameter)
        p.outputs.push_back({"y" + std::to_string(id), id});
    }
    p.batch = 1;
  }
  Program p;
  std::vector<Tensor> inputs;

 private:
  static constexpr DataClass kData = DataClass::kNormal;
  inline static const TensorType kType{DType::kF32, {6, 5}};
  inline static const Dims kImage{1, 6, 5, 1};

  ValueId input(const Tensor& t) {
    const std::string name = "x" + std::to_string(inputs.size());
    const ValueId id = b_.parameter(name, t.type());
    p.inputs.push_back({name, id});
    inputs.push_back(t);
    return id;
  }
  ValueId any() { return pool_[random_() % pool_.size()]; }
  ValueId positive(ValueId x) {
    return b_.binary_scalar(OpKind::kAdd, b_.unary(OpKind::kAbs, x), 0.25);
  }
  ValueId small(ValueId x) { return b_.unary(OpKind::kTanh, x); }
  ValueId image(ValueId x) { return b_.reshape(x, kImage); }
  ValueId back(ValueId x) { return b_.reshape(x, kType.dims); }

  ValueId op() {
    const ValueId x = any(), y = any();
    Window pool{{2, 2}, {1, 2}, {1, 1}, {0, 1}}, three{{3, 3}, {1, 1}, {1, 1}, {1, 1}};
    switch (random_() % 28) {
      case 0:
        return b_.add(x, y);
      case 1:
        return b_.sub(x, b_.add(y, any()));
      case 2:
        return b_.mul(x, y);
      case 3:
        return b_.div(x, positive(y));
      case 4:
        return b_.binary(OpKind::kMaximum, x, y);
      case 5:
        return b_.binary(OpKind::kMinimum, x, y);
      case 6:
        return b_.unary(OpKind::kSqrt, positive(x));
      case 7:
        return b_.unary(OpKind::kRsqrt, positive(x));
      case 8:
        return b_.unary(OpKind::kExponential, small(x));
      case 9:
        return b_.unary(OpKind::kLog, positive(x));
      case 10:
        return b_.unary(OpKind::kLogistic, x);
      case 11:
        return b_.unary(OpKind::kErf, b_.unary(OpKind::kNegate, x));
      case 12:
        return b_.unary(OpKind::kLog1p, b_.unary(OpKind::kAbs, x));
      case 13:
        return b_.dot(x, w_);
      case 14:
        return b_.dot(b_.dot(x, y, 1, 1), small(any()));
      case 15: {
        const auto how = static_cast<Reducer>(random_() % 3);
        return b_.broadcast(b_.reduce(x, {1}, how), kType.dims, {0});
      }
      case 16:
        return b_.broadcast(b_.reduce(b_.reduce(x, {0}, Reducer::kSum), {0}, Reducer::kSum),
                            kType.dims, {});
      case 17:
        return b_.select(b_.compare(static_cast<CompareKind>(random_() % 6), x, y), y, any());
      case 18:
        return b_.convert(b_.convert(x, DType::kBF16), DType::kF32);
      case 19:
        return b_.gather(x, ids_);
      case 20: {  // by indices that may not be known
        const ValueId row = b_.reduce(small(y), {1}, Reducer::kSum);
        return b_.gather(x, b_.convert(row, DType::kI32));
      }
      case 21:
        return b_.scatter_add(ids_, x, kType.dims);
      case 22:
        return b_.concatenate(b_.slice(x, 0, 0, 2), b_.slice(b_.pad(y, 0, 1, 0), 0, 2, 6), 0);
      case 23:
        return back(b_.convolution(image(x), kernel_, three));
      case 24: {
        const Reducer how = random_() % 2 == 0 ? Reducer::kMax : Reducer::kMean;
        const ValueId pooled = b_.reduce_window(image(x), pool, how);
        if (random_() % 2 == 0)
          return back(b_.avg_pool_grad(pooled, kImage, pool, "avg_pool_grad"));
        return back(b_.select_and_scatter(image(y), pooled, pool, "select_and_scatter"));
      }
      case 25:
        return back(b_.convolution_input_grad(image(x), kernel_, kImage, three, "input_grad"));
      case 26: {
        const ValueId g =
            b_.convolution_kernel_grad(image(x), image(y), {3, 3, 1, 1}, three, "kernel_grad");
        return back(b_.convolution(image(small(any())), g, three));
      }
      default:  // x == max(x) picks the places of the largest
        return b_.mul(
            x,
            b_.convert(b_.compare(CompareKind::kEq, x,
                                  b_.broadcast(b_.reduce(x, {1}, Reducer::kMax), kType.dims, {0})),
                       DType::kF32));
    }
  }

  std::mt19937_64 random_;
  GraphBuilder b_{p.graph};
  std::vector<ValueId> pool_;
  ValueId w_ = kNoValue, kernel_ = kNoValue, ids_ = kNoValue;
};

std::vector<Tensor> run(const std::string& engine, const Program& p,
                        const std::vector<Tensor>& inputs, DotPrecision dots) {
  BackendOptions options;
  options.tpu.precision = dots;
  const auto backend = make_backend(engine, options);
  EXPECT_TRUE(backend) << engine;
  auto prepared = (*backend)->prepare(p);
  EXPECT_TRUE(prepared) << prepared.error().message();
  States states(1);
  StepOutputs outputs;
  const Status done = (*prepared)->step(0, states, {inputs}, outputs);
  EXPECT_TRUE(done) << done.error().message();
  return outputs[0];
}

void random_programs(uint64_t first, uint64_t seeds) {
  int64_t elements = 0, unknown = 0;
  double worst = 0, most = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const RandomProgram random(seed);
    const auto hold = [&](const std::string& engine, DotPrecision dots) {
      const std::vector<ValueId> all = outputs_of(random.p);
      const auto r = replay_values(random.p, {{}, random.inputs, {}}, all, {.dots = dots}, nullptr);
      ASSERT_TRUE(r) << r.error().message();
      const std::vector<Tensor> found = run(engine, random.p, random.inputs, dots);
      const auto likely =
          likely_values(random.p, {{}, random.inputs, {}}, all, {.dots = dots}, nullptr);
      ASSERT_TRUE(likely) << likely.error().message();
      for (size_t i = 0; i < found.size(); ++i) {
        const FoundVerdict l = compare((*likely)[i], found[i]);
        ASSERT_EQ(l.outside, 0) << "likely: " << engine << " seed " << seed << " "
                                << random.p.graph.op(random.p.outputs[i].id).name << " "
                                << text_of(l);
        most = std::max(most, l.worst);
        const FoundVerdict v = compare((*r)[i], found[i]);
        ASSERT_EQ(v.outside, 0) << engine << " seed " << seed << " "
                                << random.p.graph.op(random.p.outputs[i].id).name << " "
                                << text_of(v);
        ASSERT_TRUE(v.untestable == 0 || !(*r)[i].why.empty());
        elements += v.elements, unknown += v.untestable;
        worst = std::max(worst, v.worst);
      }
    };
    hold("cpu", DotPrecision::kF32);
    hold("honest:" + std::to_string(seed), DotPrecision::kBf16);
    hold("tpu", DotPrecision::kF32);
    hold("tpu", DotPrecision::kBf16);
    if (testing::Test::HasFatalFailure()) return;
  }
  std::printf("worst ratio %.3f, likely values %.3f, of %lld elements, %lld of them not known\n",
              worst, most, static_cast<long long>(elements), static_cast<long long>(unknown));
  EXPECT_LT(unknown * 10, elements);
}

TEST(Radii, RandomProgramsOfConformingEnginesAreInside) { random_programs(0, 15); }
TEST(Radii, SlowRandomProgramsOfConformingEnginesAreInside) { random_programs(1000, 2000); }

// An error in one element of an intermediate, of four times what that element's radius allows, is
// outside there; and the exact result that does not know of it is inside.
TEST(Radii, PlantedErrorsAreOutside) {
  int64_t planted = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RandomProgram random(seed);
    std::vector<Tensor> found = run("cpu", random.p, random.inputs, DotPrecision::kF32);
    const auto r =
        replay_values(random.p, {{}, random.inputs, {}}, outputs_of(random.p), {}, nullptr);
    ASSERT_TRUE(r);
    for (size_t i = 0; i < found.size(); ++i) {
      const Bounded& b = (*r)[i];
      if (b.type.dtype != DType::kF32) continue;
      const auto at = static_cast<int64_t>(seed % static_cast<uint64_t>(found[i].elements()));
      const double radius = b.radius(at);
      if (!(radius < 1e30)) continue;
      float& x = found[i].as<float>()[static_cast<size_t>(at)];
      const double wrong = b.value.as<const double>()[static_cast<size_t>(at)] + 4 * radius;
      x = std::nextafter(static_cast<float>(wrong), INFINITY);
      const FoundVerdict v = compare(b, found[i]);
      ASSERT_EQ(v.wrong, std::vector<int64_t>{at}) << random.p.outputs[i].name;
      ASSERT_EQ(v.worst_element, at);
      ++planted;
    }
  }
  EXPECT_GT(planted, 500);
}

// Of a fused module only the results are seen: an error in the hidden layer shows in them.
TEST(Radii, AnErrorInAHiddenElementShowsInTheResult) {
  small::Hand h;
  const ValueId x = h.input("x", {DType::kF32, {16, 32}}), v = h.param("v", {32, 24}, -1, 1),
                w = h.param("w", {24, 8}, -1, 1);
  const ValueId hidden = h.b.unary(OpKind::kTanh, h.b.dot(x, v), "hidden");
  const ValueId y = h.b.dot(hidden, w, 1, 0, "result");
  h.p.outputs.push_back({"y", y});
  h.p.batch = 16;
  const Tensor data = small::generic_f32({16, 32}, -1, 1, 1),
               left = small::generic_f32({32, 24}, -1, 1, 2),
               right = small::generic_f32({24, 8}, -1, 1, 3);
  const ReplayArguments given{{left, right}, {Tensor::scalar(0), data}, {}};
  const auto r = replay_values(h.p, given, {hidden, y}, {}, nullptr);
  ASSERT_TRUE(r);
  Tensor wrong = Tensor::empty({DType::kF32, {16, 24}});
  for (size_t i = 0; i < wrong.as<float>().size(); ++i)
    wrong.as<float>()[i] = static_cast<float>((*r)[0].value.as<double>()[i]);
  small::Hand second;
  const ValueId from = second.input("hidden", {DType::kF32, {16, 24}}),
                last = second.b.dot(from, second.param("w", {24, 8}, -1, 1), 1, 0, "result");
  second.p.batch = 16;
  const auto result = [&] {
    const auto after =
        replay_values(second.p, {{right}, {Tensor::scalar(0), wrong}, {}}, {last}, {}, nullptr);
    EXPECT_TRUE(after);
    Tensor found = Tensor::empty({DType::kF32, {16, 8}});
    for (size_t i = 0; i < found.as<float>().size(); ++i)
      found.as<float>()[i] = static_cast<float>((*after)[0].value.as<double>()[i]);
    return compare((*r)[1], found);
  };
  EXPECT_EQ(result().outside, 0);
  wrong.as<float>()[5 * 24 + 7] += 1e-3f;
  const FoundVerdict v1 = result();
  EXPECT_GE(v1.outside, 4);
  for (const int64_t at : v1.wrong) EXPECT_EQ(at / 8, 5) << "only the fifth row depends on it";
  EXPECT_LT(v1.median_relative_radius, 1e-4);
}

// A program of elementwise ops on one vector.
struct Line {
  Program p;
  GraphBuilder b{p.graph};
  std::vector<Tensor> inputs;
  ValueId input(const std::vector<float>& values) {
    const Tensor t = f32({static_cast<int64_t>(values.size())}, values);
    const std::string name = "x" + std::to_string(inputs.size());
    p.inputs.push_back({name, b.parameter(name, t.type())});
    inputs.push_back(t);
    return p.inputs.back().id;
  }
  FoundVerdict found(ValueId id, const std::vector<float>& values) const {
    const auto r = replay_values(p, {{}, inputs, {}}, {id}, {}, nullptr);
    EXPECT_TRUE(r) << r.error().message();
    return compare((*r)[0], f32({static_cast<int64_t>(values.size())}, values));
  }
};

TEST(Radii, RewritesOfACompilerAreInside) {
  Line l;
  const ValueId x = l.input({1.7f, -3.25f, 1e20f}), y = l.input({20.5f, 30.125f, 40.0f});
  const auto by = [&](OpKind kind, ValueId v, double c) { return l.b.binary_scalar(kind, v, c); };
  // (x 1e30) 1e-30 becomes x 1, without the overflow of 1e50.
  const ValueId scaled =
      by(OpKind::kMultiply, by(OpKind::kMultiply, x, 1e30), static_cast<double>(1e-30f));
  EXPECT_EQ(l.found(scaled, {1.7f, -3.25f, 1e20f}).outside, 0);
  EXPECT_EQ(l.found(scaled, {1.7f, -3.25f, INFINITY}).outside, 0);
  EXPECT_EQ(l.found(scaled, {1.7f, -3.2501f, 1e20f}).outside, 1);
  // (x + 1e8) - 1e8 becomes x + 0.
  const ValueId shifted = by(OpKind::kSubtract, by(OpKind::kAdd, x, 1e8), 1e8);
  EXPECT_EQ(l.found(shifted, {1.7f, -3.25f, 1e20f}).outside, 0);
  EXPECT_EQ(l.found(shifted, {0, 0, 1e20f}).outside, 0);
  EXPECT_EQ(l.found(shifted, {100, 0, 1e20f}).outside, 1);
  // log(exp(y)) becomes y, and does not overflow.
  const ValueId hot = by(OpKind::kMultiply, y, 10.0);
  const ValueId same = l.b.unary(OpKind::kLog, l.b.unary(OpKind::kExponential, hot));
  EXPECT_EQ(l.found(same, {205.0f, 301.25f, 400.0f}).outside, 0);
  EXPECT_EQ(l.found(same, {INFINITY, INFINITY, INFINITY}).outside, 0);
  EXPECT_EQ(l.found(same, {80, 80, 80}).outside, 3) << "e^205 is certainly not below e^88";
  // Division by a constant becomes a product with its rounded reciprocal.
  const float third = 1.0f / 3.0f;
  EXPECT_EQ(
      l.found(by(OpKind::kDivide, y, 3), {20.5f * third, 30.125f * third, 40.0f * third}).outside,
      0);
}

TEST(Radii, SumsOfSumsMayBeAddedInAnotherOrder) {
  Line l;
  const ValueId x = l.input({1, 1, 1}), big = l.input({0x1p24f, 0x1p24f, 0x1p24f}),
                less = l.input({-0x1p24f, -0x1p24f, -0x1p24f});
  const ValueId sum = l.b.add(l.b.add(big, less), x);  // 1; or 0, where x is lost in big + x
  EXPECT_EQ(l.found(sum, {1, 0, 2}).outside, 0);
  EXPECT_EQ(l.found(sum, {1, 0, 9}).outside, 1);
}

TEST(Radii, HostileNumbersAreKnownOrSaidNotToBe) {
  const float nan = std::nanf(""), inf = INFINITY;
  Line l;
  const ValueId x = l.input({nan, inf, -inf, 0, -0.0f, 1e-40f, 3e38f, -1});
  const auto v = [&](ValueId id, const std::vector<float>& values) { return l.found(id, values); };
  const ValueId twice = l.b.add(x, x);
  // NaN and infinities of arguments stay; the denormal may be flushed; 6e38 overflows.
  FoundVerdict f = v(twice, {nan, inf, -inf, 0, 0, 0, inf, -2});
  EXPECT_EQ(f.outside, 0);
  f = v(twice, {0, inf, -inf, 0, 0, 2e-40f, inf, -2});
  EXPECT_EQ(f.outside, 1) << "NaN must stay NaN";
  f = v(twice, {nan, 1, -inf, 0, 0, 1e-37f, 1, -2});
  EXPECT_EQ(f.outside, 3) << "infinity, the denormal, and 6e38 for 1";
  // A logarithm of a negative number is not known, because a compiler may have avoided it.
  const ValueId log = l.b.unary(OpKind::kLog, x);
  const auto r = replay_values(l.p, {{}, l.inputs, {}}, {log}, {}, nullptr);
  ASSERT_TRUE(r);
  EXPECT_NE((*r)[0].why.find("log"), std::string::npos) << (*r)[0].why;
  f = v(log, {nan, inf, nan, -inf, -inf, -inf, 88.59691f, nan});
  EXPECT_EQ(f.outside, 0);
  EXPECT_GE(f.untestable, 2);
  EXPECT_EQ(v(log, {nan, inf, nan, -inf, -inf, -92.1034f, 87, nan}).outside, 1);
}

TEST(Radii, IndicesThatAreNotKnownGiveTheHullOfTheRows) {
  Line l;
  const ValueId table = l.input({10, 11, 20, 30});
  const ValueId id = l.input({0.1f, 0.2f});
  // 0.1 + 0.2 is near 0.3; ten times that is near 3: row 2 or row 3.
  const ValueId sum = l.b.binary_scalar(OpKind::kMultiply, l.b.add(id, id), 10.0);
  const ValueId row = l.b.convert(sum, DType::kI32);
  const ValueId y = l.b.gather(table, row);
  EXPECT_EQ(l.found(y, {20, 30}).outside, 0);
  EXPECT_EQ(l.found(y, {11, 30}).outside, 0);
  EXPECT_EQ(l.found(y, {10, 30}).outside, 1);
  EXPECT_EQ(l.found(y, {20, 10}).outside, 1);
}

// A tower of 12 products, where intervals grow by a factor of about ten each: they decide nothing at
// its end, likely values do.
TEST(Radii, LikelyValuesDecideWhereIntervalsDoNot) {
  small::Hand h;
  ValueId x = h.input("x", {DType::kF32, {32, 64}});
  std::vector<Tensor> weights;
  for (uint32_t i = 0; i < 12; ++i) {
    const ValueId w = h.param("w" + std::to_string(i), {64, 64});
    weights.push_back(small::generic_f32({64, 64}, -0.2, 0.2, i));
    x = h.b.unary(OpKind::kTanh, h.b.dot(x, w));
  }
  h.p.outputs.push_back({"y", x});
  h.p.batch = 32;
  const Tensor data = small::generic_f32({32, 64}, -1, 1, 99);
  const std::vector<Tensor> inputs = {Tensor::scalar(0), data};
  small::Trial cpu("cpu", h.p);
  for (uint32_t i = 0; i < 12; ++i) cpu.set("w" + std::to_string(i), weights[i]);
  cpu.set("x", data);
  cpu.step();
  Tensor y = cpu.output("y").clone();
  const ReplayArguments given{weights, inputs, {}};
  const auto proof = replay_values(h.p, given, {x}, {}, nullptr);
  const auto likely = likely_values(h.p, given, {x}, {}, nullptr);
  ASSERT_TRUE(proof && likely);
  EXPECT_EQ(compare((*proof)[0], y).outside, 0);
  EXPECT_GT(compare((*proof)[0], y).median_relative_radius, 0.1);
  const FoundVerdict inside = compare((*likely)[0], y);
  EXPECT_EQ(inside.outside, 0);
  EXPECT_LT(inside.worst, 0.5);
  EXPECT_LT(inside.median_relative_radius, 1e-3);
  y.as<float>()[77] += 0.01f;
  const FoundVerdict v = compare((*likely)[0], y);
  EXPECT_EQ(v.wrong, std::vector<int64_t>{77});
}

// Equal numbers err alike: the mean of many equal exponentials errs like one of them, not by a
// fraction of it.
TEST(Radii, LikelyErrorsOfEqualNumbersAreEqual) {
  Program p;
  GraphBuilder b(p.graph);
  const ValueId x = b.parameter("x", {DType::kF32, {}});
  p.inputs.push_back({"x", x});
  const ValueId e = b.unary(OpKind::kExponential, b.broadcast(x, {1 << 16}, {}));
  const ValueId mean = b.reduce(e, {0}, Reducer::kMean);
  const auto r = likely_values(p, {{}, {Tensor::scalar(0.7f)}, {}}, {e, mean}, {}, nullptr);
  ASSERT_TRUE(r) << r.error().message();
  const double one = (*r)[0].radius(0);
  EXPECT_GT(one, 32 * 8 * 0x1p-24);
  for (int64_t i = 0; i < 1 << 16; ++i) ASSERT_EQ((*r)[0].radius(i), one);
  EXPECT_GE((*r)[1].radius(0), one);
}

TEST(Radii, ErrorsAreValues) {
  Line l;
  const ValueId x = l.input({1, 2}), y = l.b.add(x, x);
  EXPECT_FALSE(replay_values(l.p, {}, {y}, {}, nullptr));
  const auto other = replay_values(l.p, {{}, {f32({3}, {1, 2, 3})}, {}}, {y}, {}, nullptr);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().what.find("f32[3]"), std::string::npos) << other.error().message();
  l.p.sharding.cores = 2;
  EXPECT_FALSE(replay_values(l.p, {{}, l.inputs, {}}, {y}, {}, nullptr));
}

// Not the last bits of products in binary64, which depend on where their operands lie in memory.
TEST(Radii, VerdictsDoNotDependOnThreads) {
  const RandomProgram random(3);
  ThreadPool pool(3);
  const ReplayArguments given{{}, random.inputs, {}};
  const auto one = replay_values(random.p, given, outputs_of(random.p), {}, nullptr);
  const auto three = replay_values(random.p, given, outputs_of(random.p), {}, &pool);
  ASSERT_TRUE(one && three);
  std::vector<Tensor> found = run("cpu", random.p, random.inputs, DotPrecision::kF32);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ((*one)[i].exact(), (*three)[i].exact());
    EXPECT_EQ((*one)[i].why, (*three)[i].why);
    if (found[i].dtype() == DType::kF32) found[i].as<float>()[0] += 1;
    const FoundVerdict a = compare((*one)[i], found[i]), b = compare((*three)[i], found[i]);
    EXPECT_EQ(a.wrong, b.wrong);
    EXPECT_EQ(a.untestable, b.untestable);
  }
}

}  // namespace
}  // namespace twinrun::radii_test

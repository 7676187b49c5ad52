// Compares fused steps with op-by-op steps of the same engine, bit for bit, and shows the groups to
// their screen. A trace sink that ignores everything forces steps op by op. Whole training programs come first, then random graphs of
// elementwise ops with special values and odd shapes.
#include "program/analysis/fusion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "backends/core/interpreter.h"
#include "program/base/bits.h"
#include "program/graph/layers.h"
#include "tests/backends/group_screening.h"
#include "tests/backends/small_programs.h"
#include "tests/support/sanitized.h"

namespace twinrun::fusion_test {
namespace {

using small::generic_f32;
using small::Trial;

class Ignore : public TraceSink {
 public:
  void on_op(const OpEvent&) override {}
};

using Fill = std::function<void(Trial&)>;

std::string differences(const Trial& a, const Trial& b) {
  std::string text;
  for (size_t r = 0; r < a.states.size(); ++r) {
    for (size_t i = 0; i < a.states[r].vars.size(); ++i) {
      if (!a.states[r].vars[i].same_bits(b.states[r].vars[i]))
        text += " " + a.program().state[i].name;
    }
    for (size_t i = 0; i < a.outputs[r].size(); ++i) {
      if (!a.outputs[r][i].same_bits(b.outputs[r][i])) text += " " + a.program().outputs[i].name;
    }
  }
  return text;
}

void expect_same(const std::string& engine, const Program& program, DotPrecision precision,
                 const Fill& fill, const std::string& what) {
  for (int threads : {1, 2, 3}) {
    BackendOptions options{.threads = threads, .poison_memory = threads != 2};
    options.tpu.precision = precision;
    Trial fused(engine, program, options), by_ops(engine, program, options),
        shown(engine, program, options);
    fill(fused);
    fill(by_ops);
    fill(shown);
    Ignore ignore;
    small::GroupScreening screening((*make_backend(engine, options))->capabilities().flush);
    screening.flip = threads == 2;
    for (int step = 0; step < 3; ++step) {
      // The two ways of running may alternate from step to step.
      fused.step(step, step == 1 && threads == 3 ? &ignore : nullptr);
      by_ops.step(step, &ignore);
      ASSERT_EQ(differences(fused, by_ops), "")
          << what << ", " << engine << ", " << threads << " threads, step " << step;
      shown.step(step, step == 1 && threads == 3 ? &ignore : static_cast<TraceSink*>(&screening));
      ASSERT_EQ(differences(shown, by_ops), "") << what << ", groups shown, step " << step;
    }
    EXPECT_GT(screening.judged, 10) << what;
    EXPECT_EQ(screening.flips > screening.judged / 2, screening.flip) << what;
  }
}

void fill_samples(Trial& t, int64_t batch, Dims sample) {
  Dims dims = sample;
  dims.insert(dims.begin(), batch);
  t.split("images", generic_f32(dims, -1.0, 2.0, 5));
  std::vector<int32_t> labels, ids;
  for (int64_t i = 0; i < batch; ++i) {
    labels.push_back(static_cast<int32_t>(i * 7 % 5));
    ids.push_back(static_cast<int32_t>(i + 3));
  }
  t.split("labels", small::i32({batch}, labels));
  t.split("sample_ids", small::i32({batch}, ids));
  for (size_t r = 0; r < t.states.size(); ++r)
    t.set("replica_id", Tensor::scalar_i32(static_cast<int32_t>(r)), r);
}

constexpr OptimizerSpec kOptimizers[] = {{.kind = OptimizerSpec::Kind::kSgd},
                                         {.kind = OptimizerSpec::Kind::kMomentum, .nesterov = true},
                                         {.kind = OptimizerSpec::Kind::kAdam}};

Program convolutional(int64_t batch, const OptimizerSpec& optimizer, bool squared) {
  return build_forward(Mode::kTraining, batch, {{9, 9, 2}}, 3, optimizer, [=](Layers& net) {
    net.conv2d("conv1", {.filters = 8, .kernel = 3});
    net.batch_norm("bn1", {.epsilon = 1e-3, .momentum = 0.9});
    net.relu("relu1");
    net.pool("pool1", {2, 2, {Padding::Kind::kValid}}, Reducer::kMax);
    net.conv2d("conv2", {.filters = 12, .kernel = 3, .weights = {.bias = false}});
    net.batch_norm("bn2", {.epsilon = 1e-3, .momentum = 0.9});
    net.relu("relu2");
    net.pool("pool2", {3, 2}, Reducer::kMean);
    net.flatten("flatten1");
    net.dropout("dropout1", {.rate = 0.4});
    net.dense("dense1", 16);
    net.batch_norm("bn3", {.epsilon = 1e-3, .momentum = 0.9});
    net.relu("relu3");
    net.dense("dense2", 5);
    squared ? net.mean_squared_error(5, {Reducer::kMean})
            : net.softmax_cross_entropy(5, {Reducer::kMean});
  });
}

Program perceptron(int64_t batch, const OptimizerSpec& optimizer, bool squared) {
  return build_forward(Mode::kTraining, batch, {{11}}, 3, optimizer, [=](Layers& net) {
    net.dense("dense1", 13);
    net.relu("relu1");
    net.dropout("dropout1", {.rate = 0.5});
    net.dense("dense2", 5);
    squared ? net.mean_squared_error(5, {Reducer::kSum})
            : net.softmax_cross_entropy(5, {Reducer::kSum});
  });
}

TEST(Fusion, TrainingStepsThreads) {
  for (const OptimizerSpec& optimizer : kOptimizers) {
    if (kSanitized && optimizer.kind != OptimizerSpec::Kind::kAdam) continue;
    const bool squared = optimizer.kind == OptimizerSpec::Kind::kMomentum;
    for (int cores : {1, 8}) {
      for (BatchNormSync sync : {BatchNormSync::kPerCore, BatchNormSync::kSynced}) {
        for (bool convolutions : {true, false}) {
          if (cores == 1 && sync == BatchNormSync::kSynced) continue;
          const int64_t batch = 40;
          const Program forward = convolutions ? convolutional(batch, optimizer, squared)
                                               : perceptron(batch, optimizer, squared);
          const Program program =
              training_step(shard(forward, {.cores = cores, .batchnorm = sync}));
          const Fill fill = [&](Trial& t) {
            fill_samples(t, batch, convolutions ? Dims{9, 9, 2} : Dims{11});
          };
          const std::string what =
              std::string(convolutions ? "cnn" : "mlp") + " on " + std::to_string(cores) + " cores";
          expect_same("cpu", program, DotPrecision::kF32, fill, what);
          expect_same("tpu", program, DotPrecision::kBf16, fill, what);
          expect_same("tpu", program, DotPrecision::kBf16x3, fill, what);
        }
      }
    }
  }
}

// Twenty cores run in blocks of eight or nine from one all-reduce to the next, whatever has to be
// carried between them: activations where batch norm is synced, gradients of weights that diverge.
TEST(Fusion, BlocksOfCoresThreads) {
  std::vector<Sharding> shardings(5, Sharding{.cores = 20});
  shardings[1].batchnorm = BatchNormSync::kSynced;
  shardings[2].reduce_gradients = false;
  shardings[3].statistics = Statistics::kFromFirst;
  shardings[4].reduction_groups = {4, true};
  for (size_t i = 0; i < shardings.size(); ++i) {
    const Program program =
        training_step(shard(convolutional(40, kOptimizers[i % 3], false), shardings[i]));
    for (int threads : {1, 2, 3}) {
      const BackendOptions options{.threads = threads, .poison_memory = true};
      Trial blocks("tpu", program, options), by_ops("tpu", program, options);
      fill_samples(blocks, 40, {9, 9, 2});
      fill_samples(by_ops, 40, {9, 9, 2});
      Ignore ignore;
      for (int step = 0; step < 3; ++step) {
        blocks.step(step);
        by_ops.step(step, &ignore);
        ASSERT_EQ(differences(blocks, by_ops), "")
            << "sharding " << i << ", " << threads << " threads, step " << step;
      }
    }
  }
}

// Enough rows for several segments in the reductions at the end of fusion groups.
TEST(Fusion, LongReductionsThreads) {
  const Program forward =
      build_forward(Mode::kTraining, 40, {{31, 17, 3}}, 3, kOptimizers[2], [=](Layers& net) {
        net.batch_norm("bn1", {.epsilon = 1e-3, .momentum = 0.9});
        net.relu("relu1");
        net.conv2d("conv1", {.filters = 5, .kernel = 1});
        net.batch_norm("bn2", {.epsilon = 1e-3, .momentum = 0.9});
        net.pool("pool1", {31, 31}, Reducer::kMean);
        net.flatten("flatten1");
        net.dense("dense1", 5);
        net.softmax_cross_entropy(5, {Reducer::kMean});
      });
  for (int cores : {1, 2}) {
    const Program program = training_step(shard(forward, {.cores = cores}));
    const Fill fill = [&](Trial& t) { fill_samples(t, 40, {31, 17, 3}); };
    expect_same("cpu", program, DotPrecision::kF32, fill, "long");
    expect_same("tpu", program, DotPrecision::kBf16, fill, "long");
  }
}

// --- random graphs ---

struct Draw {
  std::mt19937_64 engine;
  int64_t below(int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <typename T>
  T of(const std::vector<T>& v) {
    return v[static_cast<size_t>(below(static_cast<int64_t>(v.size())))];
  }
};

uint32_t draw_bits(Draw& d) {
  static const std::vector<uint32_t> special = {0x00000000, 0x80000000, 0x7F800000, 0xFF800000,
                                                0x7FC00000, 0x00000001, 0x80000001, 0x007FFFFF,
                                                0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x3F800000};
  if (d.chance(20)) return d.of(special);
  const auto u = static_cast<uint32_t>(d.engine());
  if (d.chance(20)) return u & 0x80FFFFFFu;  // around the smallest normal number
  if (d.chance(60)) return (u & 0x807FFFFFu) | ((120 + u % 13) << 23);  // ordinary
  return (u & 0x7FFFFFFFu) > 0x7F800000u ? kCanonicalNaN : u;
}

Tensor draw_tensor(Draw& d, const TensorType& type) {
  Tensor t = Tensor::empty(type);
  for (int64_t i = 0; i < t.elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    const uint32_t u = draw_bits(d);
    switch (type.dtype) {
      case DType::kF32:
        t.as<uint32_t>()[at] = u;
        break;
      case DType::kBF16:
        t.as<uint16_t>()[at] =
            (u & 0x7FFFFFFFu) > 0x7F800000u ? kCanonicalNaN16 : static_cast<uint16_t>(u >> 16);
        break;
      case DType::kI32:
        t.as<uint32_t>()[at] = u;
        break;
      default:
        t.as<uint8_t>()[at] = static_cast<uint8_t>(u & 1);
        break;
    }
  }
  return t;
}

// A random graph of ops over tensors of one shape and over its rows, columns and scalars, broadcast
// to that shape. Ops that are never fused are mixed in.
struct Random {
  Draw d;
  small::Hand h;
  Dims full;
  std::map<DType, std::vector<ValueId>> values, vectors;  // values: of full size; vectors: smaller
  explicit Random(uint64_t seed) : d{std::mt19937_64(seed)} {
    const std::vector<int64_t> sizes = {1, 2, 3, 5, 16, 31, 64, 100, 257};
    full = {d.of(sizes), d.of(sizes)};
    if (d.chance(8)) full = {9001, 3};
    if (d.chance(4)) full = {3, 2300};
    if (d.chance(30)) full.insert(full.begin() + d.below(2), d.of(std::vector<int64_t>{1, 2, 3}));
    for (DType dtype : {DType::kF32, DType::kF32, DType::kBF16, DType::kI32, DType::kPred}) {
      values[dtype].push_back(h.input("x" + std::to_string(h.p.inputs.size()), {dtype, full}));
    }
  }
  DType float_type() { return d.chance(75) ? DType::kF32 : DType::kBF16; }
  int64_t elements() const { return TensorType{DType::kF32, full}.elements(); }

  // An operand of full size: an earlier value, or a broadcast of a scalar, a row, a column or of
  // inner dimensions.
  ValueId operand(DType dtype) {
    const std::vector<ValueId>& whole = values[dtype];
    if (!d.chance(25))
      return d.chance(60) ? whole[whole.size() - 1 - static_cast<size_t>(d.below(2)) % whole.size()]
                          : d.of(whole);
    if (d.chance(40) && dtype != DType::kPred)
      return h.b.broadcast(h.b.constant(d.chance(30) ? 0 : 1.5, dtype), full, {});
    const auto last = static_cast<int64_t>(full.size()) - 1;
    Dims from, map;
    const int64_t first_kept = d.below(last + 1), end = d.chance(70) ? last + 1 : first_kept + 1;
    for (int64_t i = d.chance(50) ? first_kept : 0; i < end; ++i) {
      from.push_back(d.chance(10) ? 1 : full[static_cast<size_t>(i)]);
      map.push_back(i);
    }
    const TensorType type{dtype, from};
    for (ValueId v : vectors[dtype]) {
      if (h.b.type(v) == type && d.chance(70)) return h.b.broadcast(v, full, map);
    }
    ValueId v = h.input("v" + std::to_string(h.p.inputs.size()), type);
    if (dtype == DType::kF32 && d.chance(40)) v = h.b.mul(v, v);
    vectors[dtype].push_back(v);
    return h.b.broadcast(v, full, map);
  }

  void add_op() {
    const DType f = float_type();
    const auto keep = [&](ValueId v) { values[h.b.type(v).dtype].push_back(v); };
    switch (d.below(12)) {
      case 0:
        return keep(h.b.compare(static_cast<CompareKind>(d.below(6)), operand(f), operand(f)));
      case 1:
        return keep(h.b.select(operand(DType::kPred), operand(f), operand(f)));
      case 2:
        return keep(h.b.convert(
            operand(d.of(std::vector<DType>{DType::kF32, DType::kBF16, DType::kI32, DType::kPred})),
            d.of(std::vector<DType>{DType::kF32, DType::kBF16, DType::kI32, DType::kPred})));
      case 3:
        return keep(h.b.unary(
            d.of(std::vector<OpKind>{OpKind::kSqrt, OpKind::kRsqrt, OpKind::kExponential,
                                     OpKind::kLog, OpKind::kTanh, OpKind::kLogistic, OpKind::kErf,
                                     OpKind::kLog1p, OpKind::kSine, OpKind::kCosine}),
            operand(f)));
      case 4:
        return keep(h.b.unary(d.chance(50) ? OpKind::kNegate : OpKind::kAbs,
                              operand(d.chance(80) ? f : DType::kI32)));
      case 5:
        return keep(
            h.b.binary(d.of(std::vector<OpKind>{OpKind::kAdd, OpKind::kSubtract, OpKind::kMultiply,
                                                OpKind::kMaximum, OpKind::kMinimum}),
                       operand(DType::kI32), operand(DType::kI32)));
      case 6: {  // a reshape and back, with or without an op in between
        const ValueId v = h.b.reshape(operand(f), {elements()});
        return keep(h.b.reshape(d.chance(50) ? h.b.unary(OpKind::kNegate, v) : v, full));
      }
      case 7: {  // a reduction whose result is broadcast and read again
        Dims dims;
        const auto rank = static_cast<int64_t>(full.size());
        const int64_t count = 1 + d.below(rank);
        const bool trailing = d.chance(20);
        for (int64_t i = 0; i < count; ++i) dims.push_back(trailing ? rank - count + i : i);
        const ValueId r =
            h.b.reduce(operand(f), dims,
                       d.of(std::vector<Reducer>{Reducer::kSum, Reducer::kMean, Reducer::kMax}));
        h.p.outputs.push_back({"r" + std::to_string(r), r});
        Dims kept;
        for (int64_t i = 0; i < rank - count; ++i) kept.push_back(trailing ? i : i + count);
        return keep(h.b.broadcast(r, full, kept));
      }
      case 8: {  // never fused
        if (d.chance(40)) return keep(h.b.all_reduce(operand(f)));
        Dims there;
        for (size_t i = full.size(); i-- > 0;) there.push_back(static_cast<int64_t>(i));
        return keep(h.b.transpose(h.b.transpose(operand(f), there), there));
      }
      default:
        return keep(h.b.binary(
            d.of(std::vector<OpKind>{OpKind::kAdd, OpKind::kSubtract, OpKind::kMultiply,
                                     OpKind::kDivide, OpKind::kMaximum, OpKind::kMinimum}),
            operand(f), operand(f)));
    }
  }

  Program finish(int ops) {
    for (int i = 0; i < ops; ++i) add_op();
    for (auto& [dtype, list] : values) {
      h.p.outputs.push_back({"last" + std::to_string(list.back()), list.back()});
      for (ValueId v : list) {
        if (d.chance(20)) h.p.outputs.push_back({"v" + std::to_string(v), v});
      }
    }
    // Twenty cores run in blocks. Inputs may differ where the program says that they do not.
    h.p.sharding.cores = d.of(std::vector<int>{1, 1, 1, 3, 20});
    for (Input& input : h.p.inputs) input.per_core = h.p.sharding.cores > 1 && d.chance(50);
    return h.p;
  }
};

StepInputs draw_inputs(Draw& d, const Program& p) {
  StepInputs inputs(static_cast<size_t>(p.sharding.cores));
  for (const Input& input : p.inputs) {
    const Tensor shared = draw_tensor(d, p.graph.type(input.id));
    const bool same = d.chance(50);
    for (auto& replica : inputs)
      replica.push_back(same ? shared : draw_tensor(d, p.graph.type(input.id)));
  }
  return inputs;
}

TEST(Fusion, RandomGraphsThreads) {
  int64_t groups = 0, fused_ops = 0, all_ops = 0, judged = 0;
  for (uint64_t seed = 1; seed <= (kSanitized ? 80 : 400); ++seed) {
    Random random(seed);
    const Program program = random.finish(3 + static_cast<int>(seed % 40));
    const StepInputs inputs = draw_inputs(random.d, program);
    const FusionPlan plan =
        plan_fusion(program, std::vector<bool>(static_cast<size_t>(program.graph.size()), false));
    groups += static_cast<int64_t>(plan.groups.size());
    for (const FusionGroup& g : plan.groups) fused_ops += static_cast<int64_t>(g.ops.size());
    all_ops += program.graph.size();
    for (bool flush : {false, true}) {
      for (int threads : {1, 2, 3}) {
        Interpreter engine(program, {.flush = flush}, {.threads = threads, .poison_memory = true});
        States states(inputs.size());
        StepOutputs fused, by_ops, shown;
        Ignore ignore;
        small::GroupScreening screening(flush);
        for (int step = 0; step < 2; ++step) {  // the second step reuses the memory of the first
          ASSERT_TRUE(engine.step(0, states, inputs, fused, nullptr, nullptr).ok());
        }
        ASSERT_TRUE(engine.step(0, states, inputs, by_ops, &ignore, nullptr).ok());
        ASSERT_TRUE(engine.step(0, states, inputs, shown, &screening, nullptr).ok());
        judged += screening.judged;
        for (size_t r = 0; r < inputs.size(); ++r) {
          for (size_t i = 0; i < program.outputs.size(); ++i) {
            ASSERT_TRUE(fused[r][i].same_bits(by_ops[r][i]) && shown[r][i].same_bits(by_ops[r][i]))
                << "seed " << seed << " flush " << flush << " threads " << threads << " output "
                << program.outputs[i].name << "\n"
                << to_text(program);
          }
        }
      }
    }
  }
  EXPECT_GT(judged, groups) << "of six trials of each group";
  EXPECT_GT(fused_ops, 2 * groups) << "groups are worth their name";
  std::printf("%lld groups of %lld ops (of %lld in all)\n", static_cast<long long>(groups),
              static_cast<long long>(fused_ops), static_cast<long long>(all_ops));
}

// With a hook on any op the step runs op by op, and the hook's change reaches all later ops.
class Bump : public OpHooks {
 public:
  bool watches(const Program& p, ValueId id, int64_t) override {
    return p.graph.op(id).name == "middle";
  }
  void after(const OpSite&, const std::vector<Tensor>&, Tensor& output) override {
    output.as<float>()[0] += 1;
  }
};

// A regression test for groups that depend on each other in a circle. In the weighted loss of
// tokens, a group of its gradient leads back, through another group, to one of its value.
TEST(Fusion, GroupsNeverWaitForEachOther) {
  const SampleType sample{{6}, DType::kI32, {}, true, 12, 10};
  const Program program =
      training_step(build_forward(Mode::kTraining, 16, sample, 7, {}, [](Layers& net) {
        net.embedding("embedding1", 12, 8, {});
        net.masked_mean("mean1");
        net.dense("dense1", 10);
        net.softmax_cross_entropy(10, {.reduction = Reducer::kMean, .weighted = true});
      }));
  EXPECT_NO_THROW(
      plan_fusion(program, std::vector<bool>(static_cast<size_t>(program.graph.size()), false)));
}

TEST(Fusion, HooksSeeOpsInsideGroups) {
  small::Hand h;
  const ValueId x = h.input("x", {DType::kF32, {2}});
  const ValueId y = h.b.mul(h.b.add(x, x, "middle"), x, "y");
  h.p.outputs = {{"y", y}};
  Trial t("cpu", h.p);
  t.set("x", small::f32({2}, {3, 5}));
  t.step(0);
  EXPECT_EQ(small::numbers(t.output("y")), (std::vector<double>{18, 50}));
  Bump bump;
  t.step(1, nullptr, &bump);
  EXPECT_EQ(small::numbers(t.output("y")), (std::vector<double>{21, 50}));
}

TEST(Fusion, BroadcastsAreNotStoredAndGroupsMeetReductions) {
  const Program p =
      training_step(shard(build_forward(Mode::kTraining, 8, {{6, 6, 4}}, 3, kOptimizers[2],
                                        [=](Layers& net) {
                                          net.batch_norm("bn1", {.epsilon = 1e-3, .momentum = 0.9});
                                          net.relu("relu1");
                                          net.flatten("flatten1");
                                          net.dense("dense1", 5);
                                          net.softmax_cross_entropy(5, {Reducer::kMean});
                                        }),
                          {.cores = 1}));
  const FusionPlan plan =
      plan_fusion(p, std::vector<bool>(static_cast<size_t>(p.graph.size()), false));
  for (const FusionUnit& u : plan.order) {
    if (u.group >= 0) continue;
    const Op& op = p.graph.op(u.op);
    EXPECT_FALSE(op.kind == OpKind::kBroadcastInDim && op.type.elements() > 1000) << op.name;
  }
  const ValueId variance = p.graph.find("bn1/variance"), square = p.graph.find("bn1/square");
  bool found = false;
  for (const FusionGroup& g : plan.groups) {
    const bool here = std::ranges::find(g.stored, variance) != g.stored.end();
    found = found || here;
    EXPECT_EQ(std::ranges::find(g.stored, square), g.stored.end());
  }
  EXPECT_TRUE(found) << "the variance is summed where the squares are computed";
}

}  // namespace
}  // namespace twinrun::fusion_test

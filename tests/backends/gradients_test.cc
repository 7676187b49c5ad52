// Tests every gradient of the op table against central differences in binary64 and closed forms.
//
// The engine is cpu:f64: its values are binary64 numbers although the program says f32 (except for
// constants and converts to f32). With step h = 2^-17, (L(x + h) - L(x - h)) / 2h is off by
//   truncation  h^2 |L'''| / 6   |L'''| < 500 for the functions and ranges here: 5e-9
//   rounding    n eps |L| / h    n = 64 roundings for an element's share, eps = 2^-53: 1e-9 |L|
// so that a mistake in a formula, which is of the order of the gradient itself, is a million times
// the tolerance.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "program/ops/op_def.h"
#include "tests/backends/small_programs.h"

namespace twinrun::gradients_test {
namespace {

using small::f64;
using small::Hand;
using small::numbers;
using small::Trial;

constexpr double kStep = 0x1p-17;
double tolerance(double loss) {
  return kStep * kStep * 500 / 6 + 64 * 0x1p-53 * std::max(1.0, std::fabs(loss)) / kStep;
}

// Fills state and inputs: random numbers, labels 0, 1, 2, 0, ..., sample ids 5, 6, ...
void fill(Trial& run, const std::map<std::string, std::pair<double, double>>& ranges) {
  const Program& p = run.program();
  uint32_t stream = 0;
  for (size_t r = 0; r < run.states.size(); ++r) {
    for (size_t i = 0; i < p.state.size(); ++i) {
      const auto range = ranges.find(p.state[i].name);
      const auto [low, high] = range == ranges.end() ? std::pair(-1.0, 1.0) : range->second;
      run.states[r].vars[i] = f64(p.state[i].type.dims,
                                  small::generic(p.state[i].type.elements(), low, high, stream++));
    }
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      const TensorType& type = p.graph.type(p.inputs[i].id);
      if (type.dtype == DType::kI32) {
        Tensor t = Tensor::empty(type);
        const bool ids = p.inputs[i].name == "sample_ids";
        for (size_t e = 0; e < t.as<int32_t>().size(); ++e) {
          t.as<int32_t>()[e] = static_cast<int32_t>(ids ? e + 5 : e % 3);
        }
        run.inputs[r][i] = t;
      } else {
        const double low = p.inputs[i].name == "weights" ? 0.5 : -1;  // token weights are positive
        run.inputs[r][i] = f64(type.dims, small::generic(type.elements(), low, 1, stream++));
      }
    }
  }
}

double loss_of(const Trial& run) {
  double sum = 0;  // data-parallel training minimises the sum of the replicas' losses
  for (size_t r = 0; r < run.states.size(); ++r) sum += numbers(run.output("loss", r))[0];
  return sum;
}

// Checks d(sum of losses) / d(replica's own parameter) for every element of every parameter.
void check(const std::string& what, const Program& forward,
           const std::map<std::string, std::pair<double, double>>& ranges, double constants = 0) {
  const Program step = training_step(forward), plain = prune(forward);
  Trial gradient("cpu:f64", step), value("cpu:f64", plain);
  fill(gradient, ranges);
  fill(value, ranges);
  const States start = value.states;
  gradient.step();
  value.step();
  const double allowed = tolerance(loss_of(value));
  double largest = 0;
  for (size_t r = 0; r < start.size(); ++r) {
    for (size_t i = 0; i < plain.state.size(); ++i) {
      const StateVar& var = plain.state[i];
      if (var.role != StateRole::kParameter) continue;
      const std::vector<double> analytic = numbers(gradient.output(var.name + ".grad", r));
      for (size_t e = 0; e < analytic.size(); ++e) {
        double side[2];
        for (int s = 0; s < 2; ++s) {
          value.states = start;
          Tensor moved = start[r].vars[i].clone();
          moved.as<double>()[e] += s == 0 ? kStep : -kStep;
          value.states[r].vars[i] = moved;
          value.step();
          side[s] = loss_of(value);
        }
        ASSERT_NEAR(analytic[e], (side[0] - side[1]) / (2 * kStep),
                    allowed + constants * std::fabs(analytic[e]))
            << what << ": " << var.name << "[" << e << "] on replica " << r;
        largest = std::max(largest, std::fabs(analytic[e]));
      }
    }
  }
  EXPECT_GT(largest, 1e4 * allowed) << what << ": a gradient that is zero proves nothing";
}

// ---- the table of cases ----

using Build = std::function<ValueId(Hand&)>;  // returns the value whose weighted sum is the loss
struct Case {
  std::string name;
  Build build;
  int cores = 1;
  double constants = 0;  // relative error of the binary32 constants in its gradient
};

Build binary(OpKind kind) {
  return [kind](Hand& h) { return h.b.binary(kind, h.param("a", {2, 3}), h.param("b", {2, 3})); };
}
Build unary(OpKind kind, double low = 0.5, double high = 1.5) {
  return [=](Hand& h) { return h.b.unary(kind, h.param("a", {7}, low, high)); };
}
Build dot(int lhs, int rhs) {
  return [=](Hand& h) {
    const ValueId a = h.param("a", lhs == 1 ? Dims{2, 4} : Dims{4, 2});
    return h.b.dot(a, h.param("b", rhs == 0 ? Dims{4, 3} : Dims{3, 4}), lhs, rhs);
  };
}
Build convolution(Dims x, Dims w, const Window& window) {
  return [=](Hand& h) { return h.b.convolution(h.param("x", x), h.param("w", w, -1, 1), window); };
}
Build stacked_dot(int lhs, int rhs) {
  return [=](Hand& h) {
    const ValueId a = h.param("a", lhs == 1 ? Dims{3, 2, 4} : Dims{3, 4, 2});
    return h.b.dot(a, h.param("b", rhs == 0 ? Dims{3, 4, 3} : Dims{3, 3, 4}), lhs, rhs, "dot", 1);
  };
}
Build grouped(Dims x, Dims w, const Window& window, int64_t groups) {
  return [=](Hand& h) {
    return h.b.convolution(h.param("x", x), h.param("w", w, -1, 1), window, "grouped", groups);
  };
}
Build transposed(Dims dy, Dims x, const Window& window) {
  return [=](Hand& h) {
    const ValueId w = h.param("w", {window.size[0], window.size[1], x[3], dy[3]}, -1, 1);
    return h.b.convolution_input_grad(h.param("dy", dy), w, x, window, "transposed");
  };
}
Build pool(const Window& window, Reducer reducer) {
  return [=](Hand& h) { return h.b.reduce_window(h.param("x", {2, 5, 6, 2}), window, reducer); };
}
Build reduce(Dims dims, Reducer reducer) {
  return [=](Hand& h) { return h.b.reduce(h.param("a", {2, 3, 4}), dims, reducer); };
}
Build broadcast(Dims from, Dims to, Dims dims) {
  return [=](Hand& h) { return h.b.broadcast(h.param("a", from), to, dims); };
}

std::vector<Case> cases() {
  const Window w3{{3, 3}}, same{{3, 3}, {1, 1}, {1, 1}, {1, 1}};
  const Window strided{{3, 2}, {2, 3}, {0, 1}, {1, 0}},
      dilated{{2, 2}, {1, 2}, {1, 0}, {2, 1}, {2, 3}};
  const Window skipping{{1, 1}, {2, 3}}, w2{{2, 2}, {2, 2}},
      overlap{{3, 3}, {1, 2}, {1, 1}, {1, 0}};
  return {
      {"add", binary(OpKind::kAdd)},
      {"subtract", binary(OpKind::kSubtract)},
      {"multiply", binary(OpKind::kMultiply)},
      {"divide", binary(OpKind::kDivide)},
      {"maximum", binary(OpKind::kMaximum)},
      {"minimum", binary(OpKind::kMinimum)},
      {"sqrt", unary(OpKind::kSqrt)},
      {"rsqrt", unary(OpKind::kRsqrt)},
      {"exponential", unary(OpKind::kExponential, -1.5, 1.5)},
      {"log", unary(OpKind::kLog)},
      {"tanh", unary(OpKind::kTanh, -1.5, 1.5)},
      {"erf", unary(OpKind::kErf, -1.5, 1.5), 1, 0x1p-24},  // its constant is 2 / sqrt(pi)
      {"log1p", unary(OpKind::kLog1p, -0.5, 1.5)},
      {"sine", unary(OpKind::kSine, -3, 3)},
      {"cosine", unary(OpKind::kCosine, -3, 3)},
      {"logistic", unary(OpKind::kLogistic, -1.5, 1.5)},
      {"abs", unary(OpKind::kAbs, -1.5, 1.5)},
      {"negate", unary(OpKind::kNegate)},
      {"select",
       [](Hand& h) {
         const ValueId a = h.param("a", {9}), b = h.param("b", {9});
         return h.b.select(h.b.compare(CompareKind::kLt, a, b), h.b.mul(a, a), h.b.mul(a, b));
       }},
      {"broadcast scalar", broadcast({}, {2, 3}, {})},
      {"broadcast trailing", broadcast({3}, {2, 3}, {1})},
      {"broadcast leading", broadcast({2}, {2, 3}, {0})},
      {"broadcast size one", broadcast({1, 3}, {2, 3}, {0, 1})},
      {"broadcast size one kept", broadcast({1, 3}, {1, 2, 3}, {0, 2})},
      {"broadcast both", broadcast({3, 1}, {2, 3, 4}, {1, 2})},
      {"reshape",
       [](Hand& h) {
         return h.b.reshape(h.param("a", {2, 6}), {3, 4});
       }},
      {"transpose",
       [](Hand& h) {
         return h.b.transpose(h.param("a", {2, 3, 4}), {2, 0, 1});
       }},
      {"dot 1x0", dot(1, 0)},
      {"dot 0x0", dot(0, 0)},
      {"dot 1x1", dot(1, 1)},
      {"dot 0x1", dot(0, 1)},
      {"convolution valid", convolution({2, 5, 4, 2}, {3, 3, 2, 3}, w3)},
      {"convolution same", convolution({2, 4, 5, 2}, {3, 3, 2, 2}, same)},
      {"convolution strided", convolution({2, 6, 7, 2}, {3, 2, 2, 2}, strided)},
      {"convolution dilated", convolution({1, 5, 6, 2}, {2, 2, 2, 2}, dilated)},
      {"convolution 1x1 skipping pixels", convolution({2, 4, 5, 2}, {1, 1, 2, 3}, skipping)},
      {"reduce sum outer", reduce({0}, Reducer::kSum)},
      {"reduce sum outer and inner", reduce({0, 2}, Reducer::kSum)},
      {"reduce mean middle", reduce({1}, Reducer::kMean)},
      {"reduce mean all", reduce({0, 1, 2}, Reducer::kMean)},
      {"reduce max", reduce({1}, Reducer::kMax)},
      {"reduce max outer and inner", reduce({0, 2}, Reducer::kMax)},
      {"dot of stacks 1x0", stacked_dot(1, 0)},
      {"dot of stacks 0x0", stacked_dot(0, 0)},
      {"dot of stacks 1x1", stacked_dot(1, 1)},
      {"dot of stacks 0x1", stacked_dot(0, 1)},
      {"convolution in groups", grouped({2, 5, 4, 4}, {3, 3, 2, 6}, same, 2)},
      {"depthwise convolution", grouped({2, 6, 7, 3}, {3, 2, 1, 6}, strided, 3)},
      {"transposed convolution",
       transposed({2, 3, 4, 2}, {2, 6, 8, 3}, {{3, 3}, {2, 2}, {0, 0}, {1, 1}})},
      {"concatenate",
       [](Hand& h) {
         return h.b.concatenate(h.param("a", {2, 3, 2}), h.param("b", {2, 1, 2}), 1);
       }},
      {"slice",
       [](Hand& h) {
         return h.b.slice(h.param("a", {2, 5, 2}), 1, 1, 4);
       }},
      {"pad",
       [](Hand& h) {
         return h.b.pad(h.param("a", {2, 3}), 1, 2, 1);
       }},
      // The ids are 0, 1, 2, 0: row 0 is read twice, row 3 never.
      {"gather",
       [](Hand& h) {
         return h.b.gather(h.param("a", {4, 3}), h.input("ids", {DType::kI32, {2, 2}}));
       }},
      {"scatter_add",
       [](Hand& h) {
         return h.b.scatter_add(h.input("ids", {DType::kI32, {5}}), h.param("a", {5, 2}), {4, 2});
       }},
      {"max pool", pool(w2, Reducer::kMax)},
      {"max pool overlapping", pool(overlap, Reducer::kMax)},
      {"average pool", pool(w2, Reducer::kMean)},
      {"average pool overlapping", pool(overlap, Reducer::kMean)},
      {"a value read three times",
       [](Hand& h) {
         const ValueId a = h.param("a", {4});
         return h.b.add(h.b.mul(a, h.b.unary(OpKind::kTanh, a)), h.b.div(h.param("b", {4}), a));
       }},
      // The loss of each replica reads the sum over replicas, squared so that cotangents differ.
      {"all_reduce",
       [](Hand& h) {
         const ValueId a = h.param("a", {5});
         const ValueId sum = h.b.all_reduce(h.b.mul(a, a));
         return h.b.mul(h.b.mul(sum, sum), a);
       },
       3},
  };
}

Program program_of(const Case& c, std::map<std::string, std::pair<double, double>>& ranges) {
  Hand h;
  Program p = h.forward(h.weighted_sum(c.build(h)));
  p.sharding = {.cores = c.cores, .reduction = Reduction::kSum, .reduce_gradients = false};
  ranges = h.ranges;
  return p;
}

TEST(Gradients, EveryOpAgainstFiniteDifferences) {
  for (const Case& c : cases()) {
    std::map<std::string, std::pair<double, double>> ranges;
    const Program p = program_of(c, ranges);
    check(c.name, p, ranges, c.constants);
  }
}

TEST(Gradients, NoKindIsForgotten) {
  // Differences cannot measure the slope of rounding: see Gradients.ConvertPassesThrough.
  std::set<OpKind> covered = {OpKind::kConvert};
  for (const Case& c : cases()) {
    std::map<std::string, std::pair<double, double>> ranges;
    const Program program = program_of(c, ranges);
    for (const Op& op : program.graph.ops()) covered.insert(op.kind);
  }
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    if (op_def(kind).gradient != nullptr) {
      EXPECT_TRUE(covered.contains(kind))
          << "op " << name_of(kind) << ": no gradient case in tests/backends/gradients_test.cc";
    }
  }
}

// ---- layers ----

using LayerStack = std::function<void(Layers&)>;
Program stack(int64_t batch, const SampleType& sample, const LayerStack& build) {
  return build_forward(Mode::kTraining, batch, sample, 11, {}, build);
}

TEST(Gradients, LayersAgainstFiniteDifferences) {
  check("batch norm over features",
        stack(6, {{4}},
              [](Layers& n) {
                n.dense("d1", 3);
                n.batch_norm("bn", {.epsilon = 1e-1, .momentum = 0.9});
                n.softmax_cross_entropy(3, {Reducer::kMean});
              }),
        {{"bn/gamma", {0.5, 1.5}}});
  check("batch norm over images",
        stack(3, {{4, 4, 2}},
              [](Layers& n) {
                n.conv2d("c1", {.filters = 2, .kernel = 3});
                n.batch_norm("bn", {.epsilon = 1e-1, .momentum = 0.9});
                n.pool("p", {2, 2, {Padding::Kind::kValid}}, Reducer::kMean);
                n.flatten("f");
                n.dense("d1", 3);
                n.softmax_cross_entropy(3, {Reducer::kSum});
              }),
        {{"bn/gamma", {0.5, 1.5}}});
  check("dropout",
        stack(5, {{6}},
              [](Layers& n) {
                n.dropout("in", {.rate = 0.4});
                n.dense("d1", 6);
                n.dropout("mid", {.rate = 0.5});
                n.dense("d2", 3);
                n.mean_squared_error(3, {Reducer::kMean});
              }),
        {});
  check("relu and max pool",
        stack(3, {{6, 6, 1}},
              [](Layers& n) {
                n.conv2d("c1", {.filters = 3, .kernel = 3, .stride = 2});
                n.relu("r");
                n.pool("p", {2, 1}, Reducer::kMax);
                n.flatten("f");
                n.dense("d1", 3, {.bias = false});
                n.mean_squared_error(3, {Reducer::kSum});
              }),
        {});
}

const auto to_classes = [](Layers& n) {
  n.flatten("f");
  n.dense("out", 3);
  n.softmax_cross_entropy(3, {});
};

TEST(Gradients, MoreLayersAgainstFiniteDifferences) {
  check("layer norm and GELU",
        stack(4, {{5}},
              [&](Layers& n) {
                n.dense("d", 6);
                n.layer_norm("ln", {.epsilon = 1e-3});
                n.gelu("g", false);
                to_classes(n);
              }),
        {{"ln/gamma", {0.5, 1.5}}}, 0x1p-24);
  check("group norm, SiLU",
        stack(2, {{3, 3, 4}},
              [&](Layers& n) {
                n.conv2d("c", {.filters = 4, .kernel = 3});
                n.group_norm("gn", 2, {.epsilon = 1e-3});
                n.silu("s");
                to_classes(n);
              }),
        {{"gn/gamma", {0.5, 1.5}}});
  check("depthwise, dilated, transposed, concatenated, added",
        stack(2, {{4, 4, 2}},
              [&](Layers& n) {
                n.depthwise_conv2d("dw", {.filters = 2, .kernel = 3});
                n.leaky_relu("l", 0.2);
                const ValueId a = n.value();
                n.conv2d("dil", {.filters = 4, .kernel = 3, .dilation = 2});
                n.add("sum", {n.value(), a});
                n.concatenate("both", {n.value(), a});
                n.conv2d_transpose("up", {.filters = 2, .kernel = 3, .stride = 2});
                n.unary("t", OpKind::kTanh);
                n.global_pool("p", Reducer::kMean);
                to_classes(n);
              }),
        {});
  const SampleType tokens{{4}, DType::kI32, {4}, true, 3, 3};
  check("causal masked attention, loss by tokens",
        stack(2, tokens,
              [&](Layers& n) {
                const Initializer init{Initializer::Kind::kRandomUniform};
                n.embedding("e", 3, 4, init);
                n.position_embedding("p", init);
                n.attention("a", {.heads = 2, .causal = true, .masked = true}, {});
                n.gelu("g", true);
                n.dense("out", 3);
                n.softmax_cross_entropy(3, {.smoothing = 0.1, .weighted = true});
              }),
        {});
  const SampleType phrase{{4}, DType::kI32, {}, true, 3, 3};
  const auto embed = [](Layers& n) {
    n.embedding("e", 3, 5, {Initializer::Kind::kRandomUniform});
    n.masked_mean("m");
    n.dense("d", 4);
  };
  check("triplets, all",
        stack(5, phrase,
              [&](Layers& n) {
                embed(n);
                n.triplet(0.7, /*hardest=*/false, {.weighted = true});
              }),
        {});
  check("triplets, hardest",
        stack(5, phrase,
              [&](Layers& n) {
                embed(n);
                n.l2_normalize("l2", 1e-12);
                n.triplet(0.7, /*hardest=*/true, {});
              }),
        {});
  check("contrastive",
        stack(5, phrase,
              [&](Layers& n) {
                embed(n);
                n.l2_normalize("l2", 1e-12);
                n.contrastive(0.5, {});
              }),
        {});
  check("sigmoid cross-entropy",
        stack(4, {{5}},
              [](Layers& n) {
                n.dense("out", 3);
                n.sigmoid_cross_entropy(3, {.smoothing = 0.2});
              }),
        {});
  check("minibatch standard deviation",
        stack(4, {{3, 3, 2}},
              [&](Layers& n) {
                n.conv2d("c", {.filters = 2, .kernel = 3});
                n.minibatch_stddev("m", 2);
                to_classes(n);
              }),
        {});
}

// The formulas of layers that docs/reference/formulas.md lists.
TEST(Gradients, FormulasOfLayersAgainstFiniteDifferences) {
  check("activations, transposed kernels, padding that counts as zeros",
        stack(2, {{4, 4, 2}},
              [&](Layers& n) {
                n.exchange_sides();
                n.conv2d("c", {.filters = 3, .kernel = 3, .transposed = true});
                n.quick_gelu("q");
                n.pool("p", {3, 2, {}, false, true}, Reducer::kMax);
                n.hard_sigmoid("h", 0.2);
                n.relu6("r");
                to_classes(n);
              }),
        {});
  const SampleType tokens{{4}, DType::kI32, {4}, true, 3, 3};
  check("layer norm over a sample, epsilon beside the root, heads in turns",
        stack(2, tokens,
              [&](Layers& n) {
                const Initializer init{Initializer::Kind::kRandomUniform};
                n.embedding("e", 3, 4, init, {.factor = 2});
                n.layer_norm("ln", {.epsilon = 1e-2, .beside_root = true, .over_tokens = true});
                n.attention("a", {.heads = 2, .by_all_units = true, .interleaved = true}, {});
                n.dense("out", 3);
                n.softmax_cross_entropy(3, {});
              }),
        {{"ln/gamma", {0.5, 1.5}}});
}

// Gradients through the all-reduces of synced batch norm; one core's parameters change at a time.
TEST(Gradients, SyncedBatchNormAgainstFiniteDifferences) {
  Program whole = stack(6, {{4}}, [](Layers& n) {
    n.dense("d1", 3);
    n.batch_norm("bn", {.epsilon = 1e-1, .momentum = 0.9});
    n.softmax_cross_entropy(3, {Reducer::kMean});
  });
  Sharding s{.cores = 2,
             .reduction = Reduction::kSum,
             .batchnorm = BatchNormSync::kSynced,
             .reduce_gradients = false};
  check("synced batch norm", shard(whole, s), {{"bn/gamma", {0.5, 1.5}}});
}

// ---- closed forms ----

constexpr double kClose = 1e-14;

struct DenseNet {
  static constexpr int64_t kBatch = 5, kIn = 4, kOut = 3;
  Trial run;
  std::vector<double> x, dlogits;
  std::vector<int> label{0, 1, 2, 0, 1};

  explicit DenseNet(const LayerStack& loss)
      : run("cpu:f64", training_step(stack(kBatch, {{kIn}}, [&](Layers& n) {
              n.dense("d1", kOut);
              loss(n);
            }))) {
    fill(run, {});
    x = numbers(run.inputs[0][0]);
    run.step();
  }
  std::vector<double> logits() const { return numbers(run.output("logits")); }
  // Expects the gradients of the dense layer: dW = x^T dy, db = sum of dy.
  void expect_gradients(const std::vector<double>& dy) const {
    const std::vector<double> dw = numbers(run.output("d1/kernel.grad")),
                              db = numbers(run.output("d1/bias.grad"));
    for (size_t o = 0; o < kOut; ++o) {
      double bias = 0;
      for (size_t n = 0; n < kBatch; ++n) bias += dy[n * kOut + o];
      EXPECT_NEAR(db[o], bias, kClose);
      for (size_t i = 0; i < kIn; ++i) {
        double kernel = 0;
        for (size_t n = 0; n < kBatch; ++n) kernel += x[n * kIn + i] * dy[n * kOut + o];
        EXPECT_NEAR(dw[i * kOut + o], kernel, kClose);
      }
    }
  }
};

TEST(Gradients, SoftmaxCrossEntropyIsProbabilityMinusOneHot) {
  for (const Reducer reduction : {Reducer::kMean, Reducer::kSum}) {
    const DenseNet net([&](Layers& n) { n.softmax_cross_entropy(3, {reduction}); });
    const std::vector<double> z = net.logits();
    std::vector<double> dy(z.size());
    double loss = 0;
    for (size_t n = 0; n < 5; ++n) {
      double total = 0;
      for (size_t c = 0; c < 3; ++c) total += std::exp(z[n * 3 + c]);
      const auto label = static_cast<size_t>(net.label[n]);
      for (size_t c = 0; c < 3; ++c) {
        dy[n * 3 + c] =
            (std::exp(z[n * 3 + c]) / total - (c == label)) / (reduction == Reducer::kMean ? 5 : 1);
      }
      loss += (std::log(total) - z[n * 3 + label]) / (reduction == Reducer::kMean ? 5 : 1);
    }
    EXPECT_NEAR(numbers(net.run.output("loss"))[0], loss, kClose);
    net.expect_gradients(dy);
  }
}

TEST(Gradients, MeanSquaredErrorIsTwiceTheGap) {
  const DenseNet net([](Layers& n) { n.mean_squared_error(3, {Reducer::kMean}); });
  const std::vector<double> z = net.logits();
  std::vector<double> dy(z.size());
  for (size_t n = 0; n < 5; ++n) {
    for (size_t c = 0; c < 3; ++c)
      dy[n * 3 + c] = 2 * (z[n * 3 + c] - (c == static_cast<size_t>(net.label[n]))) / 15;
  }
  net.expect_gradients(dy);
}

// f32 -> bf16 -> f32: the cotangent passes through the same conversions in reverse, so that it is
// only rounded to bf16.
TEST(Gradients, ConvertPassesThrough) {
  Hand h;
  const ValueId a = h.param("a", {4});
  const ValueId y = h.b.convert(h.b.convert(a, DType::kBF16), DType::kF32);
  const ValueId c = h.input("c", {DType::kF32, {4}});
  const Program step = training_step(h.forward(h.b.reduce(h.b.mul(y, c), {0}, Reducer::kSum)));
  Trial run("cpu", step);
  run.set("a", small::f32({4}, {1, 2, 3, 4}));
  run.set("c", small::f32({4}, {1.00390625f, 1.01171875f, -3.0f, 1e-3f}));  // ties, exact, rounded
  run.step();
  EXPECT_EQ(numbers(run.output("a.grad")), (std::vector<double>{1, 1.015625, -3, 0x1.06p-10}));
}

// relu and |x| have slope 0 at 0; in ties of maximum and minimum the second operand receives the
// gradient.
TEST(Gradients, AtTheKinks) {
  Hand h;
  const ValueId a = h.param("a", {3}), b = h.param("b", {3});
  const ValueId y = h.b.add(h.b.binary(OpKind::kMaximum, a, b), h.b.binary(OpKind::kMinimum, a, b));
  const ValueId relu = h.b.binary_scalar(OpKind::kMaximum, a, 0), abs = h.b.unary(OpKind::kAbs, b);
  const ValueId sum = h.b.add(h.b.binary_scalar(OpKind::kMultiply, y, 1),
                              h.b.add(h.b.binary_scalar(OpKind::kMultiply, relu, 10),
                                      h.b.binary_scalar(OpKind::kMultiply, abs, 100)));
  Trial run("cpu", training_step(h.forward(h.b.reduce(sum, {0}, Reducer::kSum))));
  run.set("a", small::f32({3}, {0.0f, -0.0f, 2.0f}));
  run.set("b", small::f32({3}, {0.0f, -0.0f, -1.0f}));
  run.step();
  EXPECT_EQ(numbers(run.output("a.grad")), (std::vector<double>{0, 0, 11}));
  EXPECT_EQ(numbers(run.output("b.grad")), (std::vector<double>{2, 2, -99}));
}

// Among equal maxima of a pooling window the first one receives the whole gradient.
TEST(Gradients, MaxPoolTieGoesToTheFirst) {
  Hand h;
  const ValueId x = h.param("x", {1, 2, 2, 1});
  Trial run("cpu", training_step(
                       h.forward(h.b.reduce(h.b.reduce_window(x, {{2, 2}, {2, 2}}, Reducer::kMax),
                                            {0, 1, 2, 3}, Reducer::kSum))));
  run.set("x", small::f32({1, 2, 2, 1}, {1, 5, 5, 5}));
  run.step();
  EXPECT_EQ(numbers(run.output("x.grad")), (std::vector<double>{0, 1, 0, 0}));
}

}  // namespace
}  // namespace twinrun::gradients_test

// Tests of the training step: the text of whole steps, the names that reports and faults rely on,
// pruning, liveness. TWINRUN_UPDATE_GOLDEN=1 rewrites tests/golden/program/; read the diff before
// you commit it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "program/graph/liveness.h"
#include "program/ops/op_def.h"
#include "tests/program/models.h"

namespace twinrun {
namespace {

void expect_golden(const std::string& file, const std::string& actual) {
  const std::string path = std::string(TWINRUN_SOURCE_DIR) + "/tests/golden/program/" + file;
  if (std::getenv("TWINRUN_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << actual;
    return;
  }
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << path << " is missing: run with TWINRUN_UPDATE_GOLDEN=1";
  std::ostringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(actual, expected.str()) << path;
}

Program sharded(Program forward, int cores, BatchNormSync sync = BatchNormSync::kPerCore) {
  return training_step(shard(forward, {.cores = cores, .batchnorm = sync}));
}

TEST(Text, MlpStep) { expect_golden("mlp_step.txt", to_text(training_step(models::mlp()))); }
TEST(Text, MlpShardedAdamStep) {
  expect_golden("mlp_sharded_adam_step.txt", to_text(sharded(models::mlp(8, models::adam()), 4)));
}
TEST(Text, CnnSyncedMomentumStep) {
  expect_golden("cnn_synced_momentum_step.txt",
                to_text(sharded(models::cnn(16, models::momentum()), 2, BatchNormSync::kSynced)));
}

TEST(Text, MlpAdafactorStep) {
  expect_golden("mlp_adafactor_step.txt",
                to_text(training_step(
                    models::mlp(8, {.kind = OptimizerSpec::Kind::kAdafactor, .beta1 = 0.9}))));
}
// Everything around an optimizer's rule: clipping, L2 term, accumulation, averaged weights.
TEST(Text, MlpShardedAroundTheRuleStep) {
  const OptimizerSpec spec{.kind = OptimizerSpec::Kind::kRmsprop,
                           .epsilon = 1e-10,
                           .centered = true,
                           .algebra = OptimizerSpec::Algebra::kXla,
                           .clip = OptimizerSpec::Clip::kGlobalNorm,
                           .clip_at = 0.5,
                           .l2 = 1e-4,
                           .accumulate = 3,
                           .ema = 0.99};
  expect_golden("mlp_sharded_around_the_rule_step.txt",
                to_text(training_step(shard(
                    models::mlp(8, spec), {.cores = 4, .clipping = Clipping::kBeforeAllReduce}))));
}

TEST(Digest, TellsProgramsApart) {
  const Program base = training_step(models::mlp());
  EXPECT_EQ(digest(base), digest(training_step(models::mlp())));
  EXPECT_NE(digest(base), digest(training_step(models::mlp(16))));
  EXPECT_NE(digest(base), digest(training_step(models::mlp(8, models::momentum()))));
  EXPECT_NE(digest(base), digest(training_step(models::mlp(8, models::adam()))));
  OptimizerSpec other = models::momentum();
  other.momentum = 0.95;
  EXPECT_NE(digest(training_step(models::mlp(8, models::momentum()))),
            digest(training_step(models::mlp(8, other))));
  EXPECT_NE(digest(sharded(models::mlp(), 2)), digest(sharded(models::mlp(), 4)));
}

TEST(Names, Contract) {
  const Program whole = training_step(models::cnn(16, models::momentum()));
  const Program cores = sharded(models::cnn(16, models::momentum()), 8);
  const auto phase = [](const Program& p, const std::string& name) -> std::string {
    const ValueId id = p.graph.find(name);
    return id == kNoValue ? "absent" : std::string(to_string(p.graph.op(id).phase));
  };
  for (const char* parameter :
       {"conv1/kernel", "bn1/gamma", "bn1/beta", "dense1/kernel", "dense1/bias", "dense2/bias"}) {
    const std::string name = parameter;
    for (const Program* p : {&whole, &cores}) {
      EXPECT_EQ(phase(*p, name), "forward") << name;
      EXPECT_EQ(phase(*p, name + ".grad"), "gradient") << name;
      EXPECT_EQ(phase(*p, name + ".update"), "update") << name;
      EXPECT_EQ(phase(*p, name + ".momentum"), "update") << name;
      EXPECT_EQ(phase(*p, name + ".momentum.update"), "update") << name;
      EXPECT_EQ(p->find_state(name)->next, p->graph.find(name + ".update"));
      EXPECT_EQ(p->find_state(name + ".momentum")->next, p->graph.find(name + ".momentum.update"));
    }
    EXPECT_EQ(phase(whole, name + ".grad.all_reduce"), "absent");
    EXPECT_EQ(phase(cores, name + ".grad.all_reduce"), "collective");
    // The output is the gradient that the optimizer reads, after the all-reduce.
    EXPECT_EQ(whole.find_output(name + ".grad")->id, whole.graph.find(name + ".grad"));
    EXPECT_EQ(cores.find_output(name + ".grad")->id, cores.graph.find(name + ".grad.all_reduce"));
  }
  EXPECT_EQ(phase(whole, "conv1/convolution"), "forward");
  EXPECT_EQ(phase(whole, "bn1/moving_mean.update"), "update");
  EXPECT_EQ(whole.find_state("bn1/moving_mean")->next, whole.graph.find("bn1/moving_mean.update"));
  EXPECT_EQ(phase(whole, "loss/value"), "forward");
  EXPECT_EQ(whole.loss, whole.graph.find("loss/value"));
}

TEST(Names, AreUniqueAndFindable) {
  for (const Program& p :
       {training_step(models::cnn(16, models::adam())), sharded(models::cnn(), 4)}) {
    for (ValueId id = 0; id < p.graph.size(); ++id)
      ASSERT_EQ(p.graph.find(p.graph.op(id).name), id);
  }
}

TEST(Program, FindsByName) {
  const Program p = training_step(models::mlp());
  EXPECT_EQ(p.state_index("dense1/kernel"), 0);
  EXPECT_EQ(p.state_index("dense9/kernel"), -1);
  EXPECT_EQ(p.find_state("dense9/kernel"), nullptr);
  EXPECT_EQ(p.find_output("loss")->id, p.loss);
  EXPECT_EQ(p.find_output("lost"), nullptr);
}

// Operands precede the ops that read them; the ids of inputs, state and outputs refer to the ops
// with these names and types.
void expect_sound(const Program& p) {
  for (ValueId id = 0; id < p.graph.size(); ++id) {
    for (ValueId operand : p.graph.op(id).operands) {
      ASSERT_GE(operand, 0);
      ASSERT_LT(operand, id);
    }
  }
  for (const auto& input : p.inputs) EXPECT_EQ(p.graph.op(input.id).name, input.name);
  for (const auto& var : p.state) {
    EXPECT_EQ(p.graph.op(var.id).name, var.name);
    EXPECT_EQ(p.graph.type(var.id), var.type);
    if (var.next != kNoValue) {
      EXPECT_EQ(p.graph.type(var.next), var.type) << var.name;
    }
  }
}

TEST(Program, IsSoundInEveryForm) {
  const Program forward = models::cnn(16, models::adam());
  expect_sound(forward);
  expect_sound(training_step(forward));
  expect_sound(rebatch(forward, 4));
  expect_sound(shard(forward, {.cores = 4, .batchnorm = BatchNormSync::kSynced}));
  expect_sound(sharded(forward, 4, BatchNormSync::kSynced));
}

TEST(Prune, DropsWhatNobodyNeeds) {
  Program p = models::mlp();
  const int64_t live = prune(p).graph.size();
  GraphBuilder b(p.graph, "extra");
  const ValueId dead = b.unary(OpKind::kTanh, p.outputs[0].id, "dead");
  b.unary(OpKind::kAbs, dead, "dead_too");
  const ValueId unused = b.parameter("unused", {DType::kF32, {2}});
  p.inputs.push_back({"unused", unused, false});
  const Program pruned = prune(p);
  EXPECT_EQ(pruned.graph.find("extra/dead"), kNoValue);
  EXPECT_EQ(pruned.graph.find("extra/dead_too"), kNoValue);
  EXPECT_NE(pruned.graph.find("unused"), kNoValue) << "inputs stay";
  EXPECT_NE(pruned.graph.find("sample_ids"), kNoValue);
  EXPECT_EQ(pruned.graph.size(), live + 1);
  expect_sound(pruned);
  EXPECT_EQ(to_text(prune(pruned)), to_text(pruned));
  // A training step has no dead ops left.
  const Program step = training_step(models::cnn(16, models::momentum()));
  const std::vector<bool> gone = dead_values(step);
  for (ValueId id = 0; id < step.graph.size(); ++id) {
    if (step.graph.op(id).kind != OpKind::kParameter) {
      EXPECT_FALSE(gone[static_cast<size_t>(id)]) << step.graph.op(id).name;
    }
  }
}

TEST(Liveness, LastReaders) {
  Program p;
  GraphBuilder b(p.graph);
  const ValueId x = b.parameter("x", {DType::kF32, {2}});  // 0
  const ValueId w = b.parameter("w", {DType::kF32, {2}});  // 1
  const ValueId y = b.mul(x, w, "y");                      // 2: read by 3 and 4
  const ValueId z = b.add(y, x, "z");                      // 3: an output
  const ValueId next = b.sub(w, y, "next");                // 4: a next state
  const ValueId dead = b.add(y, next, "dead");             // 5: not read; keeps nothing alive
  const ValueId unread = b.parameter("unread", {DType::kF32, {}});
  p.outputs.push_back({"z", z});
  p.state.push_back({"w", {DType::kF32, {2}}, StateRole::kParameter, {}, w, next});
  const std::vector<ValueId> last = last_uses(p);
  EXPECT_EQ(last[static_cast<size_t>(x)], z);
  EXPECT_EQ(last[static_cast<size_t>(w)], next);
  EXPECT_EQ(last[static_cast<size_t>(y)], next);
  EXPECT_EQ(last[static_cast<size_t>(z)], p.graph.size());
  EXPECT_EQ(last[static_cast<size_t>(next)], p.graph.size());
  EXPECT_EQ(last[static_cast<size_t>(dead)], dead);
  EXPECT_EQ(last[static_cast<size_t>(unread)], unread);
  EXPECT_EQ(dead_values(p), (std::vector<bool>{false, false, false, false, false, true, true}));
  EXPECT_EQ(step_flops(p), 3 * 2.0) << "y, z, next";
}

TEST(Flops, OfAStep) {
  Layers net(Mode::kTraining, 32, {{64}}, 1);
  net.dense("dense1", 16, {.bias = false});
  net.softmax_cross_entropy(16, {Reducer::kMean});
  const Program step = training_step(net.finish({}));
  double dots = 0;
  for (ValueId id = 0; id < step.graph.size(); ++id) {
    if (class_of(step.graph.op(id).kind) == OpClass::kDot) dots += flops(step.graph, id);
  }
  EXPECT_EQ(dots, 2 * 2.0 * 32 * 64 * 16) << "forward and kernel gradient; the images need none";
  EXPECT_GT(step_flops(step), dots);
  EXPECT_LT(step_flops(step), dots + 20.0 * 32 * 16 + 10.0 * 64 * 16);
}

TEST(TrainingStep, NeedsALearningRateAndAScalarLoss) {
  Program no_rate = models::mlp();
  std::erase_if(no_rate.inputs, [](const Input& i) { return i.name == "learning_rate"; });
  EXPECT_THROW(training_step(no_rate), GraphError);
  Program no_scalar = models::mlp();
  no_scalar.loss = no_scalar.find_output("logits")->id;
  try {
    training_step(no_scalar);
    FAIL();
  } catch (const GraphError& e) {
    EXPECT_NE(std::string(e.what()).find("f32[8,3], not a scalar"), std::string::npos) << e.what();
  }
}

TEST(TrainingStep, ParameterWithoutInfluenceIsLeftAlone) {
  Program p = models::mlp();
  StateVar idle{"idle", {DType::kF32, {2}}, StateRole::kParameter, {}, kNoValue, kNoValue};
  idle.id = GraphBuilder(p.graph).parameter("idle", idle.type);
  p.state.push_back(idle);
  const Program step = training_step(p);
  EXPECT_EQ(step.find_state("idle")->next, kNoValue);
  EXPECT_EQ(step.find_output("idle.grad"), nullptr);
}

// The gradient of a bf16 value is computed in bf16, so that bf16 models can be differentiated.
TEST(Differentiate, KeepsBf16) {
  Graph g;
  GraphBuilder b(g);
  const ValueId x = b.parameter("x", {DType::kBF16, {4}});
  const ValueId p = b.compare(CompareKind::kGt, x, b.binary_scalar(OpKind::kMultiply, x, 2));
  const ValueId y = b.select(p, b.unary(OpKind::kAbs, x), b.unary(OpKind::kTanh, x));
  const ValueId z = b.binary_scalar(OpKind::kMaximum, b.unary(OpKind::kSqrt, y), 0.5);
  const ValueId loss = b.reduce(b.mul(b.unary(OpKind::kLogistic, z), b.unary(OpKind::kRsqrt, z)),
                                {0}, Reducer::kMean);
  const std::vector<ValueId> d = differentiate(g, loss, {x});
  ASSERT_NE(d[0], kNoValue);
  EXPECT_EQ(g.type(d[0]), (TensorType{DType::kBF16, {4}}));
}

TEST(Differentiate, StopGradientStops) {
  Graph g;
  GraphBuilder b(g, "net");
  const ValueId x = b.parameter("x", {DType::kF32, {4}});
  const ValueId stopped = b.reduce(x, {0}, Reducer::kMax, "top", /*stop_gradient=*/true);
  EXPECT_EQ(differentiate(g, stopped, {x})[0], kNoValue);
}

// Two parameters can have one and the same cotangent (here dL/da = dL/db = the broadcast seed).
// Both gradients must still be found by name; "a.grad" used to be renamed to "b.grad".
TEST(Names, SharedCotangentLosesAName) {
  Program p;
  GraphBuilder b(p.graph);
  const ValueId lr = b.parameter("learning_rate", {DType::kF32, {}});
  p.inputs.push_back({"learning_rate", lr, false});
  for (const char* name : {"a", "b"}) {
    p.state.push_back({name, {DType::kF32, {2}}, StateRole::kParameter, {}, kNoValue, kNoValue});
    p.state.back().id = b.parameter(name, p.state.back().type);
  }
  p.batch = 1;
  p.loss = b.reduce(b.add(p.state[0].id, p.state[1].id), {0}, Reducer::kSum);
  const Program step = training_step(p);
  EXPECT_NE(step.graph.find("a.grad"), kNoValue);
  EXPECT_NE(step.graph.find("b.grad"), kNoValue);
}

TEST(Layers, OfATrainingStepAreShownWithTheirGradients) {
  const Program step = sharded(models::cnn(), 4);
  const Program shown = with_layers_shown(step);
  // The outputs of the step come first and unchanged, and all its ops keep their ids and names.
  for (size_t o = 0; o < step.outputs.size(); ++o) {
    EXPECT_EQ(shown.outputs[o].name, step.outputs[o].name);
    EXPECT_EQ(shown.outputs[o].id, step.outputs[o].id);
    EXPECT_FALSE(shown.outputs[o].of_layer);
  }
  for (ValueId id = 0; id < step.graph.size(); ++id)
    EXPECT_EQ(shown.graph.op(id).name, step.graph.op(id).name);
  std::string names;
  for (size_t o = step.outputs.size(); o < shown.outputs.size(); ++o) {
    const Output& output = shown.outputs[o];
    EXPECT_TRUE(output.of_layer);
    names += output.name + to_string(shown.graph.type(output.id)) + " ";
  }
  EXPECT_EQ(names,
            "conv1f32[4,6,6,4] conv1.gradf32[4,6,6,4] bn1f32[4,6,6,4] bn1.gradf32[4,6,6,4] "
            "relu1f32[4,6,6,4] relu1.gradf32[4,6,6,4] pool1f32[4,3,3,4] pool1.gradf32[4,3,3,4] "
            "flatten1f32[4,36] flatten1.gradf32[4,36] dense1f32[4,8] dense1.gradf32[4,8] "
            "bn2f32[4,8] bn2.gradf32[4,8] dropout1f32[4,8] dropout1.gradf32[4,8] dense2f32[4,3] "
            "dense2.gradf32[4,3] ");
  // The gradient shown is that of the replica's own loss; for a mean over the cores that loss had
  // been divided by the number of cores.
  const Op& own = shown.graph.op(shown.find_output("dense2.grad")->id);
  EXPECT_EQ(own.name, "dense2.of_own_loss");
  EXPECT_EQ(own.operands[0], step.layers.back().gradient);
}

// Layers before the first parameter have no gradient. If all gradients are scaled, none is shown,
// because it is unknown which scaling the gradients of a script would have.
TEST(Layers, HaveNoGradientThatNobodyNeeds) {
  const Program forward =
      build_forward(Mode::kTraining, 8, {{2, 6}}, 7, {.gradient_scale = 2}, [](Layers& net) {
        net.flatten("flatten1");
        net.end_layer("flatten1");
        net.dense("dense1", 3);
        net.end_layer("dense1");
        net.softmax_cross_entropy(3, {Reducer::kMean});
      });
  const Program scaled = with_layers_shown(training_step(forward));
  EXPECT_NE(scaled.find_output("dense1"), nullptr);
  EXPECT_EQ(scaled.find_output("dense1.grad"), nullptr);
  Program plain = forward;
  plain.optimizer.gradient_scale = 1;
  const Program shown = with_layers_shown(training_step(plain));
  EXPECT_NE(shown.find_output("flatten1"), nullptr);
  EXPECT_EQ(shown.find_output("flatten1.grad"), nullptr);
  EXPECT_NE(shown.find_output("dense1.grad"), nullptr);
}

}  // namespace
}  // namespace twinrun

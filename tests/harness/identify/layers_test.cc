// Tests that the layer and the pass in which a step went wrong are named, for engines that show the
// outputs of their layers.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backends/core/wrapped.h"
#include "backends/variants/variant.h"
#include "harness/diagnose/pipeline.h"
#include "harness/identify/judge_steps.h"
#include "harness/run/one_step.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using tiny::must;

constexpr const char* kDeep = R"(
[[model.layers]]
kind = "flatten"
[[model.layers]]
kind = "dense"
units = 8
[[model.layers]]
kind = "relu"
[[model.layers]]
kind = "dense"
units = 8
[[model.layers]]
kind = "relu"
[[model.layers]]
kind = "dense"
units = 10
)";

// A foreign engine with a known fault: the result of op `op` times `factor`, on replica 0 only. It
// shows the outputs of all layers except those in `hidden`.
struct Wrong {
  std::string op = {};
  float factor = 1;
  std::set<std::string> hidden = {};
  float unit = 1;          // the unit in which it shows gradients of layers
  int64_t runs = 1 << 20;  // how many of its engines are wrong, from the first
};

class ShowsLayers : public WrappedBackend {
 public:
  ShowsLayers(std::unique_ptr<Backend> inner, Wrong own)
      : WrappedBackend(std::move(inner),
                       [](Capabilities& c) {
                         c.op_trace = c.ours = c.deterministic = false;
                         c.activations = true;
                         c.elementary_ulps = 4;
                         c.contracts = true;
                       }),
        own_(std::move(own)) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    for (const Output& output : program.outputs) asked_ = asked_ || output.of_layer;
    return wrap<Run>(program, own_, prepared_++ < own_.runs);
  }
  bool asked() const { return asked_; }

 private:
  class Run : public WrappedEngine, public OpHooks {
   public:
    Run(std::unique_ptr<Engine> inner, const Wrong& own, bool wrong)
        : WrappedEngine(std::move(inner)), own_(own), wrong_(wrong) {}
    Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                TraceSink*, OpHooks*) override {
      TWINRUN_RETURN_IF_ERROR(
          inner_->step(step, states, inputs, outputs, nullptr, wrong_ ? this : nullptr));
      for (size_t o = 0; o < program().outputs.size(); ++o) {
        const Output& output = program().outputs[o];
        for (auto& replica : outputs) {
          if (output.of_layer && own_.hidden.contains(output.name)) replica[o] = Tensor();
          if (output.of_layer && output.name.ends_with(".grad") && replica[o].valid() &&
              own_.unit != 1) {
            replica[o] = replica[o].clone();
            for (float& x : replica[o].as<float>()) x *= own_.unit;
          }
        }
      }
      return Ok{};
    }
    bool watches(const Program& program, ValueId id, int64_t) override {
      return program.graph.op(id).name == own_.op;
    }
    void after(const OpSite& site, const std::vector<Tensor>&, Tensor& output) override {
      if (site.replica > 0) return;
      output = output.clone();
      for (float& x : output.as<float>()) x *= own_.factor;
    }

   private:
    Wrong own_;
    bool wrong_;
  };
  Wrong own_;
  int64_t prepared_ = 0;
  bool asked_ = false;
};

Experiment deep_model(int cores, const Overrides& more = {}) {
  Overrides all{{"tpu.cores", std::to_string(cores)}, {"train.steps", "4"}};
  all.insert(all.end(), more.begin(), more.end());
  return tiny::experiment(kDeep, all);
}

std::unique_ptr<Backend> conforming_f32() {
  return make_variant_backend(draw_variant(7, DotPrecision::kF32), {});
}

struct LayerCase {
  Identification match;
  std::optional<LayerFault> fault;
  bool asked = false;
};

// Judges two steps, each started from the subject's own state.
LayerCase layer_case(const Experiment& e, const Wrong& own) {
  const Program asked = e.sharding.cores > 1 ? e.sharded(e.sharding) : e.whole();
  ShowsLayers subject(conforming_f32(), own);
  const auto engine = must(subject.prepare(asked));
  std::vector<ProbedState> states;
  States at = initial_states(e, asked);
  for (int64_t step = 0; step < 2; ++step) {
    StepResult r = must(one_step(e, *engine, step, at));
    states.push_back({step, at, r.after, r.outputs});
    at = r.after;
  }
  IdentifyOptions o;  // no explanation is searched for: the subject is known to be wrong
  o.formulas = o.pairs = false;
  StepsJudge judge(e, asked, subject, o);
  LayerCase out;
  out.match = must(judge.match(states, 2));
  out.fault = must(judge.layer_fault(out.match, states));
  out.asked = subject.asked();
  return out;
}

std::string text_of(const LayerCase& j) {
  std::string out =
      "outcome " + std::to_string(static_cast<int>(j.match.outcome)) + " " + j.match.undeclared;
  for (const TensorMismatch& t : j.match.outside) out += "\n  " + t.tensor;
  if (!j.fault) return out + "\n  no layer";
  out += "\n" + j.fault->value + " by";
  for (const std::string& layer : j.fault->layers) out += " " + layer;
  out += " from";
  for (const std::string& from : j.fault->from) out += " " + from;
  return out + " " + j.fault->pattern;
}

using Words = std::vector<std::string>;

void expect_fault(const LayerCase& j, const std::string& value, const Words& layers,
                  const Words& from) {
  ASSERT_TRUE(j.fault) << text_of(j);
  EXPECT_EQ(j.fault->value, value) << text_of(j);
  EXPECT_EQ(j.fault->layers, layers) << text_of(j);
  EXPECT_EQ(j.fault->from, from) << text_of(j);
  EXPECT_EQ(j.fault->replica, 0);
  EXPECT_EQ(j.fault->step, 0);
  EXPECT_GT(j.fault->ratio, j.fault->threshold);
}

// The loss is the first tensor outside; the outputs of layers show in which layer the error begins.
TEST(Layers, AForwardFaultIsOfItsLayer) {
  for (const int cores : {1, 2}) {
    const LayerCase j = layer_case(deep_model(cores), {"dense2/dot_general", 1.5F});
    EXPECT_EQ(j.match.outside.front().tensor, "loss") << text_of(j);
    expect_fault(j, "dense2", {"dense2"}, {"relu1"});
    EXPECT_FALSE(j.fault->backward);
    EXPECT_NEAR(j.fault->relative, 0.5, 0.1);
  }
  expect_fault(layer_case(deep_model(1), {"dense1/add_bias", 1.5F}), "dense1", {"dense1"},
               {"flatten1"});
}

TEST(Layers, OfSeveralThatAreNotShownEachIsNamed) {
  const Wrong own{"dense2/dot_general", 1.5F, {"dense2", "relu2"}};
  expect_fault(layer_case(deep_model(2), own), "dense3", {"dense2", "relu2", "dense3"}, {"relu1"});
}

TEST(Layers, TheLossItselfIsWrong) {
  expect_fault(layer_case(deep_model(2), {"loss/per_sample", 1.5F}), "loss", {"loss"}, {"dense3"});
}

TEST(Layers, ABackwardFaultIsOfTheLayerBehind) {
  const Experiment e = deep_model(2);
  const Program step = e.sharded(e.sharding);
  const auto gradient = [&](const std::string& layer) {
    const auto found = std::ranges::find(step.layers, layer, &LayerOutput::name);
    return step.graph.op(found->gradient).name;
  };
  // The backward pass of dense3 computes the gradient at the output of relu2 from the gradient at
  // its own output.
  const LayerCase j = layer_case(e, {gradient("relu2"), 1.5F});
  expect_fault(j, "relu2.grad", {"dense3"}, {"dense3.grad"});
  EXPECT_TRUE(j.fault->backward && j.fault->of_layer);
  EXPECT_EQ(j.fault->pattern.substr(0, 4), "1.5 ") << text_of(j);
  expect_fault(layer_case(e, {gradient("dense3"), -1}), "dense3.grad", {"loss"}, {});
}

TEST(Layers, AParametersGradientAlone) {
  const LayerCase j = layer_case(deep_model(2), {"dense2/kernel.grad", 1.5F});
  expect_fault(j, "dense2/kernel.grad", {"dense2"}, {"dense2.grad"});
  EXPECT_FALSE(j.fault->of_layer);
}

// With float16 and a loss scale, the gradients of layers are in the unit of the scaled loss, while
// those of parameters are not.
TEST(Layers, GradientsInAnotherUnitAreHeldInThat) {
  Wrong own{"dense2/kernel.grad", 1.5F};
  own.unit = 1024;
  expect_fault(layer_case(deep_model(2), own), "dense2/kernel.grad", {"dense2"}, {"dense2.grad"});
  own = {"dense2/dot_general.grad_lhs", 1.5F};
  own.unit = 1024;
  expect_fault(layer_case(deep_model(2), own), "relu1.grad", {"dense2"}, {"dense2.grad"});
}

TEST(Layers, NobodyIsAskedWithoutNeed) {
  const LayerCase right = layer_case(deep_model(2), {});
  EXPECT_EQ(right.match.outcome, Identification::Outcome::kInside) << text_of(right);
  EXPECT_FALSE(right.asked);
  // A wrong update belongs to no layer.
  const LayerCase update = layer_case(deep_model(2), {"dense2/kernel.update_step", 1.5F});
  EXPECT_EQ(update.match.outcome, Identification::Outcome::kUnexplained) << text_of(update);
  EXPECT_FALSE(update.asked || update.fault) << text_of(update);
}

TEST(Layers, WhatDoesNotRepeatHasNoLayer) {
  Wrong own{"dense2/dot_general", 1.5F};
  own.runs = 1;
  const LayerCase j = layer_case(deep_model(2), own);
  EXPECT_FALSE(j.fault) << text_of(j);
}

// Showing the outputs of layers changes no bit of the step.
TEST(Layers, AreShownByTheSameStep) {
  const Experiment e = tiny::experiment(tiny::kConvolutional);
  for (const char* name : {"cpu", "tpu"}) {
    const Program asked = e.sharded(e.sharding);
    const auto backend = tiny::backend(name);
    const auto plain = must(backend->prepare(asked));
    const auto shows = must(backend->prepare(with_layers_shown(asked)));
    const States start = initial_states(e, asked);
    const StepResult one = must(one_step(e, *plain, 0, start));
    const StepResult two = must(one_step(e, *shows, 0, start));
    for (size_t r = 0; r < start.size(); ++r) {
      for (size_t i = 0; i < asked.state.size(); ++i)
        EXPECT_TRUE(one.after[r].vars[i].same_bits(two.after[r].vars[i])) << asked.state[i].name;
      for (size_t o = 0; o < asked.outputs.size(); ++o)
        EXPECT_TRUE(one.outputs[r][o].same_bits(two.outputs[r][o])) << asked.outputs[o].name;
    }
  }
}

// A whole diagnosis names the layer in its headline and in its finding.
TEST(LayersSlow, AreNamedInTheReport) {
  const Folder folder;
  DiagnoseOptions o;
  o.subject = "theirs";
  o.directory = folder / "out";
  o.quick = true;
  o.make_subject = [](const BackendOptions&) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(
        new ShowsLayers(conforming_f32(), {"dense2/dot_general", 1.5F}));
  };
  const Scenario s = tiny::scenario(kDeep, {{"tpu.cores", "2"}, {"train.steps", "4"}});
  const Report report = must(diagnose(s, o, nullptr, nullptr)).report;
  EXPECT_NE(report.headline.find("computes the output of dense2 wrong (forward pass), seen at step "
                                 "0 on core 0."),
            std::string::npos)
      << report.headline;
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].op, "dense2");
  EXPECT_EQ(report.findings[0].phase, "forward");
}

}  // namespace
}  // namespace twinrun

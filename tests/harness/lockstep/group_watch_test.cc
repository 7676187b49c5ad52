// Tests the screen of fused steps: conforming engines run them once, and what a fused pass or an op
// between passes writes wrong in one step is found at its op, step and core, although the step is
// right when it runs again.
#include "harness/lockstep/group_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "backends/core/wrapped.h"
#include "tests/harness/watched.h"

namespace twinrun {
namespace {

struct Seen {
  int64_t groups = 0, ops_between = 0, ops_alone = 0;
};

// Stands between an engine and its sink, counts what the engine shows, and lets `spoil` change what
// it wrote before the sink sees it. `spoil` gets a value of replica 1 and its op.
using SpoilValue = std::function<void(int64_t step, const Op& op, Tensor& value)>;

class Between : public TraceSink, public GroupSink {
 public:
  Between(TraceSink& sink, Seen& seen, const SpoilValue& spoil)
      : sink_(sink), seen_(seen), spoil_(spoil) {}
  void on_op(const OpEvent& event) override {
    if (inner_ == nullptr) {
      ++seen_.ops_alone;
      return sink_.on_op(event);
    }
    ++seen_.ops_between;
    Tensor value = event.outputs.back();
    if (spoil_) spoil_(event.step, event.op(), value);
    inner_->on_op(event);
  }
  GroupSink* groups(const Program& program, std::span<const FusionGroup> groups) override {
    inner_ = sink_.groups(program, groups);
    return inner_ == nullptr ? nullptr : this;
  }
  void on_group(const GroupEvent& event) override {
    ++seen_.groups;
    for (size_t i = 0; spoil_ && i < event.group->stored.size(); ++i) {
      Tensor value = event.outputs.back()[i];
      spoil_(event.step, event.program->graph.op(event.group->stored[i]), value);
    }
    inner_->on_group(event);
  }
  void on_release(std::span<const ValueId> ids) override { inner_->on_release(ids); }
  bool holds() override {
    const bool holds = inner_->holds();
    inner_ = nullptr;
    return holds;
  }

 private:
  TraceSink& sink_;
  Seen& seen_;
  const SpoilValue& spoil_;
  GroupSink* inner_ = nullptr;
};

class ShownEngine : public WrappedEngine {
 public:
  ShownEngine(std::unique_ptr<Engine> inner, Seen& seen, SpoilValue spoil, SpoilValue after)
      : WrappedEngine(std::move(inner)),
        seen_(seen),
        spoil_(std::move(spoil)),
        after_(std::move(after)) {}
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    if (sink == nullptr) return inner_->step(step, states, inputs, outputs, sink, hooks);
    Between between(*sink, seen_, spoil_);
    TWINRUN_RETURN_IF_ERROR(inner_->step(step, states, inputs, outputs, &between, hooks));
    for (size_t i = 0; after_ && i < program().state.size(); ++i) {
      const StateVar& var = program().state[i];
      Tensor value = states.back().vars[i].clone();
      after_(step, program().graph.op(var.id), value);
      if (!value.same_bits(states.back().vars[i])) states.back().vars[i] = value;
    }
    return Ok{};
  }

 private:
  Seen& seen_;
  SpoilValue spoil_, after_;
};

class ShownBackend : public WrappedBackend {
 public:
  ShownBackend(std::unique_ptr<Backend> inner, Seen& seen, SpoilValue spoil, SpoilValue after)
      : WrappedBackend(std::move(inner)),
        seen_(seen),
        spoil_(std::move(spoil)),
        after_(std::move(after)) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<ShownEngine>(program, seen_, spoil_, after_);
  }

 private:
  Seen& seen_;
  SpoilValue spoil_, after_;
};

constexpr ProbePolicy kScreened{.first = 3, .every = 0, .screen = true};

tiny::Watched watch_fused(Seen& seen, const std::string& engine, int cores, SpoilValue spoil = {},
                          SpoilValue after = {}) {
  return tiny::watch(std::make_unique<ShownBackend>(tiny::backend(engine), seen, std::move(spoil),
                                                    std::move(after)),
                     tiny::kNormalized, cores, 8, kScreened);
}

TEST(GroupWatch, ConformingEnginesRunScreenedStepsFusedAndOnce) {
  for (const std::string engine : {"cpu", "tpu"}) {
    for (int cores : {1, 2}) {
      Seen seen;
      const tiny::Watched w = watch_fused(seen, engine, cores);
      EXPECT_EQ(w.all(), "");
      const int64_t ops = w.probe->summary("T", 8).ops;
      EXPECT_GT(seen.groups, 5 * 5) << engine;
      EXPECT_LT(seen.ops_between, 5 * ops / 2) << "most ops are in groups";
      EXPECT_LT(seen.ops_alone, 4 * ops + 60) << "three steps are replayed, and no other";
    }
  }
}

// Makes an element of a value wrong at step 5: by its lowest bit, or by more where the op that runs
// again has a tolerance.
SpoilValue wrong(const std::string& name) {
  return [=](int64_t step, const Op& op, Tensor& value) {
    if (step != 5 || op.name != name) return;
    if (op.kind == OpKind::kReduce || has_ulps(op.kind) || class_of(op.kind) == OpClass::kDot) {
      value.as<float>()[0] += 1000;
    } else {
      value.raw()[0] ^= std::byte{1};
    }
  };
}

void expect_found(const tiny::Watched& w, const std::string& op) {
  ASSERT_EQ(w.probe->violations().size(), 1u) << op << "\n" << w.all();
  const Violation& v = w.probe->violations().front();
  EXPECT_EQ(v.op, op);
  EXPECT_EQ(v.step, 5) << op;
  EXPECT_EQ(v.replica, 1) << op;
  EXPECT_EQ(v.what, Violation::What::kResult) << op;
  EXPECT_EQ(v.verdict.outside, 1) << op;
}

TEST(GroupWatch, FindsWhatIsWrittenWrongInOneStep) {
  // Every value on replica 1 that a pass stores, and every result of the ops between.
  std::set<std::string> names;
  Seen seen;
  watch_fused(seen, "tpu", 2, [&](int64_t step, const Op& op, Tensor& value) {
    const bool own = op.phase == Phase::kForward || op.phase == Phase::kGradient;
    const bool computed = op.kind == OpKind::kReduce ||
                          class_of(op.kind) == OpClass::kElementwise ||
                          class_of(op.kind) == OpClass::kDot || op.kind == OpKind::kSelect;
    if (step == 5 && own && computed && value.elements() > 1) names.insert(op.name);
  });
  EXPECT_GT(names.size(), 10u);
  for (const std::string& name : names)
    expect_found(watch_fused(seen, "tpu", 2, wrong(name)), name);
}

TEST(GroupWatch, FindsAStateThatIsNotWhatWasWritten) {
  Seen seen;
  const tiny::Watched w = watch_fused(seen, "cpu", 2, {}, wrong("dense1/bias"));
  ASSERT_FALSE(w.probe->violations().empty());
  const Violation& v = w.probe->violations().front();
  EXPECT_EQ(v.step, 5);
  EXPECT_EQ(v.replica, 1);
  EXPECT_EQ(v.what, Violation::What::kLink);
  EXPECT_EQ(v.link, "the state after the step is not what was written");
}

}  // namespace
}  // namespace twinrun

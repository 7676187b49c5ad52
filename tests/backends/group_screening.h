// A sink that accepts groups: every group that the screen can judge must be plausible to it, with
// what the engine wrote, and with one element of that wrong it must not be.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "backends/oracle/screen_group.h"
#include "program/base/thread_pool.h"

namespace twinrun::small {

class GroupScreening : public TraceSink, public GroupSink {
 public:
  explicit GroupScreening(Capabilities declared) : declared_(std::move(declared)) {}
  int64_t judged = 0, not_judged = 0, flips = 0;
  bool flip = false;  // also try a wrong element of each stored value

  GroupSink* groups(const Program& program, std::span<const FusionGroup> groups) override {
    if (first_ != groups.data()) {
      first_ = groups.data();
      screens_.clear();
      for (const FusionGroup& group : groups)
        screens_.push_back(GroupScreen::make(declared_, program.graph, group));
    }
    return this;
  }
  void on_op(const OpEvent&) override {}
  void on_release(std::span<const ValueId>) override {}
  bool holds() override { return true; }
  void on_group(const GroupEvent& event) override {
    const auto& screen = screens_[static_cast<size_t>(event.group - first_)];
    ++(screen ? judged : not_judged);
    if (!screen) return;
    EXPECT_TRUE(screen->plausible(event.inputs, event.outputs, &pool_)) << name(event, 0);
    for (size_t i = 0; flip && i < event.group->stored.size(); ++i) {
      const Tensor& wrote = event.outputs[0][i];
      // The lowest bit of what rounds once; sums and functions have a tolerance.
      const Op& op = event.program->graph.op(event.group->stored[i]);
      Tensor shared = wrote;  // the same memory
      const Tensor kept = wrote.clone();
      if (op.kind == OpKind::kReduce || has_ulps(op.kind)) {
        shared.as<float>().back() += 1000;
      } else {
        shared.raw()[shared.bytes() - size_of(shared.dtype())] ^= std::byte{1};
      }
      EXPECT_FALSE(screen->plausible(event.inputs, event.outputs, nullptr)) << name(event, i);
      std::copy_n(kept.raw(), kept.bytes(), shared.raw());
      ++flips;
    }
  }

 private:
  static std::string name(const GroupEvent& event, size_t i) {
    return event.program->graph.op(event.group->stored[i]).name;
  }
  Capabilities declared_;
  ThreadPool pool_{2};
  const FusionGroup* first_ = nullptr;
  std::vector<std::optional<GroupScreen>> screens_;
};

}  // namespace twinrun::small

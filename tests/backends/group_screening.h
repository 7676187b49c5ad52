// A sink that accepts groups: a pass that compares must agree with what the engine wrote, and not
// with that when the lowest bit of one element is wrong.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "backends/core/backend.h"
#include "backends/kernels/fused.h"

namespace twinrun::small {

class GroupScreening : public TraceSink, public GroupSink {
 public:
  explicit GroupScreening(bool flush) : flush_(flush) {}
  int64_t judged = 0, flips = 0;
  bool flip = false;  // also try a wrong element of each stored value

  GroupSink* groups(const Program& program, std::span<const FusionGroup> groups) override {
    if (first_ != groups.data()) {
      first_ = groups.data();
      kernels_.clear();
      for (const FusionGroup& group : groups) {
        kernels_.emplace_back(program.graph, group, flush_,
                              std::vector<bool>(group.stored.size(), true));
      }
    }
    return this;
  }
  void on_op(const OpEvent&) override {}
  void on_release(std::span<const ValueId>) override {}
  bool holds() override { return true; }
  void on_group(const GroupEvent& event) override {
    ++judged;
    EXPECT_TRUE(agrees(event, &pool_)) << name(event, 0);
    for (size_t i = 0; flip && i < event.group->stored.size(); ++i) {
      Tensor shared = event.outputs.back()[i];  // the same memory
      std::byte& last = shared.raw()[shared.bytes() - size_of(shared.dtype())];
      last ^= std::byte{1};
      EXPECT_FALSE(agrees(event, nullptr)) << name(event, i);
      last ^= std::byte{1};
      ++flips;
    }
  }

 private:
  bool agrees(const GroupEvent& event, ThreadPool* pool) const {
    std::vector<const std::byte*> read, wrote;
    for (size_t r = 0; r < event.inputs.size(); ++r) {
      for (const Tensor& t : event.inputs[r]) read.push_back(t.raw());
      for (const Tensor& t : event.outputs[r]) wrote.push_back(t.raw());
    }
    return kernels_[static_cast<size_t>(event.group - first_)].agrees(
        {pool, {.flush = flush_}}, static_cast<int64_t>(event.inputs.size()), read, wrote);
  }
  static std::string name(const GroupEvent& event, size_t i) {
    return event.program->graph.op(event.group->stored[i]).name;
  }
  bool flush_;
  ThreadPool pool_{2};
  const FusionGroup* first_ = nullptr;
  std::vector<FusedKernel> kernels_;
};

}  // namespace twinrun::small

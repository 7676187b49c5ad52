// Watches steps that an engine runs fused, as its users run it. Each unit is computed again from
// what it read, a group by our own pass (backends/kernels/fused.h), which must give the same bits,
// and what it read must be what was written, fed or held. It accuses nobody: where anything does
// not hold, the engine runs the step again op by op, and Lockstep (harness/lockstep/lockstep.h), of
// which this is a part, judges it and compares what both ways of running wrote.
//
//   GroupWatch watch(declared, pool);
//   if (watch.accepts(groups)) { watch.begin_step(before, inputs); ... }
//   watch.doubted(id)            // in the step run again: what this op wrote before, by replica
//   watch.wrong_state(after)     // a variable that is not what its update wrote
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "backends/kernels/fused.h"

namespace twinrun {

class GroupWatch : public GroupSink {
 public:
  // `program`: the one whose state and inputs the engine is given.
  GroupWatch(const Program& program, const Capabilities& declared, ThreadPool* pool)
      : program_(program), declared_(declared), pool_(pool) {}

  // Whether the engine follows our contract, so that these groups of the program have one result.
  bool accepts(std::span<const FusionGroup> groups);
  void begin_step(const States& before, const StepInputs& inputs);
  void on_op(const OpEvent& event) override;
  void on_group(const GroupEvent& event) override;
  void on_release(std::span<const ValueId> ids) override;
  bool holds() override { return holds_; }

  // Whether the current step ran fused and stands.
  bool stands() const { return began_ && holds_; }
  // What the op wrote before the step ran again, by replica; empty: its unit was not in doubt.
  std::span<const Tensor> doubted(ValueId id) const;
  // The first variable, and its replica, that after the step is not what was written; nullopt: none.
  std::optional<std::pair<size_t, int>> wrong_state(const States& after) const;
  void end_step();

  double seconds = 0;  // spent here

 private:
  const Tensor& written(size_t replica, ValueId id) const {
    return written_[replica][static_cast<size_t>(id)];
  }
  bool was_written(size_t replica, ValueId id, const Tensor& read) const;
  void doubt(ValueId id, std::span<const Tensor> outputs);

  const Program& program_;
  const Capabilities& declared_;
  ThreadPool* pool_;
  const FusionGroup* known_ = nullptr;  // the groups that kernels_ are of
  std::vector<FusedKernel> kernels_;
  bool began_ = false, holds_ = true;
  States before_;
  std::vector<std::vector<Tensor>> written_;  // [replica][value]
  // What units in doubt wrote.
  std::vector<std::pair<ValueId, std::vector<Tensor>>> doubted_;
  std::vector<Tensor> sources_;  // [value] constants, as last checked
};

}  // namespace twinrun

// What one TPU core's HBM holds during a training step: the state, one batch, and every value that
// a step stores, each from the unit of the fusion plan that writes it to the last one that reads
// it, in its tile layout. The plan is computed from a Program without running it. What is modelled
// and what is not: docs/guides/check.md.
//
//   const HbmPlan plan = plan_hbm(e.sharded(e.sharding));    // one core's step
//   plan.used() > generation.hbm_usable()                    // out of memory
//   for (const HbmBuffer& b : plan.largest(10)) print(b.op, b.bytes, to_string(b.type, b.layout));
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/layout.h"
#include "program/graph/program.h"

namespace twinrun::tpu {

enum class HbmUse : uint8_t {
  kWeights,
  kSlots,
  kStatistics,   // moving averages and counters
  kInfeed,       // the batch of this step
  kActivations,  // forward values that the backward pass reads
  kGradients,    // of parameters, before and after the all-reduce
  kTemporaries
};
inline constexpr size_t kHbmUses = 7;
std::string_view to_string(HbmUse use);  // "weights", ...
bool is_argument(HbmUse use);            // weights, slots, statistics: they enter and leave a step

// Memory in HBM that is held for some units of the step.
struct HbmBuffer {
  std::string op;  // the op that first writes it, or the state variable's or input's name
  HbmUse use = HbmUse::kTemporaries;
  TensorType type;
  Layout layout;
  int64_t bytes = 0;        // padded
  int first = 0, last = 0;  // first and last unit of the step during which it is held
  int64_t unpadded() const { return static_cast<int64_t>(type.bytes()); }
};

// Bytes held at one moment.
struct HbmUsage {
  std::array<int64_t, kHbmUses> bytes = {}, unpadded = {};
  int64_t of(HbmUse use) const { return bytes[static_cast<size_t>(use)]; }
};

struct HbmPlan {
  std::vector<HbmBuffer> buffers;
  int units = 0;
  int peak = 0;         // the unit at which most bytes are held
  std::string peak_op;  // the op of that unit
  Phase peak_phase = Phase::kForward;
  HbmUsage at_peak;
  double recomputed_flops = 0;  // of rematerialisation, per step

  // Bytes at the peak, divided as in the TPU stack's messages: arguments, and what the program
  // needs besides.
  int64_t arguments() const;
  int64_t program() const;
  int64_t program_unpadded() const;
  int64_t used() const { return arguments() + program(); }
  // Buffers held at the peak, arguments included, the largest first; at most `most` of them.
  // Equally large ones keep their order.
  std::vector<HbmBuffer> largest(size_t most) const;
};

// Which activations are recomputed in the backward pass instead of kept for it.
enum class Rematerialise : uint8_t {
  kNothing,
  kElementwise,  // results of one fused pass over values that are kept anyway
  // The forward pass in segments, of which only the ends are kept (Chen et al. 2016); the number of
  // segments is the one with the lowest peak.
  kSegments
};

struct HbmOptions {
  bool bf16_activations = false;  // f32 infeed, activations and temporaries count as bf16
  Rematerialise rematerialise = Rematerialise::kNothing;
};

// Plans `step`, a training step as one replica runs it. Of its outputs only the loss is counted:
// the gradients and predictions that our own programs output are not outputs on a TPU.
HbmPlan plan_hbm(const Program& step, const HbmOptions& options = {});

}  // namespace twinrun::tpu

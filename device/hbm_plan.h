// What one TPU core's HBM holds during a training step: the state, one batch, and every value that a step stores, each from the
// unit of the fusion plan that writes it to the last one that reads it, in its tile layout. Nothing runs. What is modelled and
// what is not: docs/memory.md.
//
//   const HbmPlan plan = plan_hbm(e.sharded(e.sharding));    // one core's step
//   plan.used() > generation.hbm_usable()                    // out of memory
//   for (const HbmBuffer& b : plan.largest(10)) b.op, b.bytes, to_string(b.type, b.layout);
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
  kInfeed,       // the batch at work
  kActivations,  // forward values that the backward pass reads
  kGradients,    // of parameters, before and after the all-reduce
  kTemporaries
};
inline constexpr size_t kHbmUses = 7;
std::string_view to_string(HbmUse use);  // "weights", ...
bool is_argument(HbmUse use);  // weights, slots, statistics: what enters and leaves a step

// A place in HBM for a while.
struct HbmBuffer {
  std::string op;  // the op that first writes it, or the state variable's or input's name
  HbmUse use = HbmUse::kTemporaries;
  TensorType type;
  Layout layout;
  int64_t bytes = 0;        // padded
  int first = 0, last = 0;  // units of the step between which it is held, both included
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
  int peak = 0;         // the unit at which most is held
  std::string peak_op;  // what it computes
  Phase peak_phase = Phase::kForward;
  HbmUsage at_peak;
  double recomputed_flops = 0;  // of rematerialisation, per step

  // As the stack's messages divide it: arguments, and what the program needs besides at its peak.
  int64_t arguments() const;
  int64_t program() const;
  int64_t program_unpadded() const;
  int64_t used() const { return arguments() + program(); }
  // What is held at the peak, the largest first, of equals the earliest; arguments among them.
  std::vector<HbmBuffer> largest(size_t most) const;
};

// What is computed again in the backward pass instead of kept for it.
enum class Rematerialise : uint8_t {
  kNothing,
  kElementwise,  // what one fused pass makes of values that are kept anyway
  kSegments  // the forward pass in stretches of which only the ends are kept (Chen et al. 2016), as many as need least
};

struct HbmOptions {
  bool bf16_activations = false;  // infeed, activations and temporaries in f32 count as bf16
  Rematerialise rematerialise = Rematerialise::kNothing;
};

// `step`: a training step as one replica runs it. Its gradients and predictions, which our own programs put out, are not put out on
// a TPU: only the loss is.
HbmPlan plan_hbm(const Program& step, const HbmOptions& options = {});

}  // namespace twinrun::tpu

// How long one core of a TPU would take for its step, on paper: for every fusion unit of a program the times that its matrix unit, its
// vector unit, HBM and the links between chips would need by themselves, and the longest of them. A roofline with tiles: nothing is
// measured, everything is padded. Constants, sources and uncertainty: docs/profile.md.
//
//   const StepModel m = model_step(e.sharded(e.sharding), {.generation = v2, .passes = 1});
//   m.seconds;  m.units[3].limit;            // kMemory: the unit waits for HBM
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "device/layout.h"
#include "device/machine.h"
#include "program/analysis/fusion.h"
#include "program/graph/program.h"

namespace twinrun::tpu {

// `batch` products [m, k] x [k, n]: what the matrix unit makes of a dot or of a convolution (implicitly, without a copy).
struct Product {
  int64_t batch = 1, m = 1, k = 1, n = 1;
  double flops() const {
    return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(k) *
           static_cast<double>(n);
  }
};

// Of an op of class dot; else nothing. The gradient of a convolution's input is counted without the zeros between strides.
std::optional<Product> product_of(const Graph& graph, ValueId id);

// Cycles of one 128 x 128 unit for one pass. One operand's tile stays in the unit, the rows of the other stream through it, one a
// cycle and in eights; a tile takes 128 cycles to load, while the one before it works. The better of the two operands stays.
double matrix_cycles(const Product& product);

// Operations of the vector unit on each element: 1 for what an ALU does, kMediumOps for divisions and transcendentals (classes as
// in JAX's Pallas documentation; the number is ours).
inline constexpr double kMediumOps = 10;
double vector_ops(const Op& op);

enum class Limit : uint8_t { kMatrix, kVector, kMemory, kLinks, kStart };
std::string_view to_string(Limit limit);  // "matrix unit", "vector unit", "HBM", "links", "start"

struct UnitModel {
  FusionUnit unit;
  ValueId lead =
      kNoValue;      // the op that the unit is named after: its only one, or the largest result
  double flops = 0;  // that the program asks for
  double matrix_flops = 0;                               // of them, the matrix unit's
  double matrix_cycles = 0;                              // of one unit, all passes
  double bytes = 0;                                      // through HBM, padded
  double unpadded_bytes = 0;                             // the same tensors without padding
  double matrix = 0, vector = 0, memory = 0, links = 0;  // seconds
  double seconds = 0;                                    // the longest, and the start of a unit
  Limit limit = Limit::kStart;
};

struct ModelOptions {
  Generation generation;
  int passes = 1;                 // of bf16: 1, 3, 6 (default, high, highest)
  bool bf16_activations = false;  // what if activations and their gradients were stored as bf16
};

struct StepModel {
  std::vector<UnitModel> units;  // in the order in which they run
  FusionPlan plan;
  double seconds = 0;     // of all units
  double all_reduce = 0;  // of them, those of collectives
  double flops = 0, matrix_flops = 0;
  double bytes = 0, unpadded_bytes = 0;
  double all_reduced_bytes = 0;
};

// Every core runs the same step on as many samples, so one core's time is every core's.
StepModel model_step(const Program& step, const ModelOptions& options);

// Seconds that an all-reduce of so many bytes takes among `cores` cores: 2 V / W in a torus whose chips use all their links, and a
// hop's latency along both axes and back.
double all_reduce_seconds(double bytes, int cores, const Generation& generation);

}  // namespace twinrun::tpu

// A model of how long one core of a TPU takes for its step: for every fusion unit of a program, the
// times that its matrix unit, its vector unit, HBM and the links between chips would need alone,
// and the longest of them. It is a roofline with tiles: nothing is measured, and sizes are padded.
// Constants, sources and uncertainty: docs/guides/profile.md. Reads a Program; the profile reports
// it.
//
//   const StepModel m = model_step(e.sharded(e.sharding), {.generation = v2, .passes = 1});
//   m.seconds;  m.units[3].limit;            // kMemory: HBM limits the unit
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

// `batch` products [m, k] x [k, n], as which the matrix unit computes a dot or a convolution
// (without copying the image).
struct Product {
  int64_t batch = 1, m = 1, k = 1, n = 1;
  double flops() const {
    return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(k) *
           static_cast<double>(n);
  }
};

// The product of an op of class dot; nothing for other ops. The gradient of a convolution's input
// is counted without the zeros between strides.
std::optional<Product> product_of(const Graph& graph, ValueId id);

// Cycles of one 128 x 128 unit for one pass. A tile of one operand stays in the unit while the rows
// of the other stream through it, one per cycle and padded to eight. Loading a tile takes 128
// cycles, which overlap with the work of the tile before. The operand that stays is the one that
// gives fewer cycles.
double matrix_cycles(const Product& product);

// Operations of the vector unit per element: 1 for those of an ALU, kMediumOps for divisions and
// transcendentals, twice that for logistic and erf (classes as in JAX's Pallas documentation; the
// number is ours).
inline constexpr double kMediumOps = 10;
double vector_ops(const Op& op);

enum class Limit : uint8_t { kMatrix, kVector, kMemory, kLinks, kStart };
std::string_view to_string(Limit limit);  // "matrix unit", "vector unit", "HBM", "links", "start"

struct UnitModel {
  FusionUnit unit;
  // The op after which the unit is named: its only op, or the one with the largest result.
  ValueId lead = kNoValue;
  double flops = 0;                                      // of the program's ops
  double matrix_flops = 0;                               // those of them in the matrix unit
  double matrix_cycles = 0;                              // of one matrix unit, all passes
  double bytes = 0;                                      // to and from HBM, padded
  double unpadded_bytes = 0;                             // the same tensors without padding
  double matrix = 0, vector = 0, memory = 0, links = 0;  // seconds
  double seconds = 0;                                    // the longest, plus the start of a unit
  Limit limit = Limit::kStart;
};

struct ModelOptions {
  Generation generation;
  int passes = 1;                 // passes of bf16: 1, 3, 6 (default, high, highest)
  bool bf16_activations = false;  // as if activations and their gradients were stored as bf16
};

struct StepModel {
  std::vector<UnitModel> units;  // in the order in which they run
  FusionPlan plan;
  double seconds = 0;     // of all units
  double all_reduce = 0;  // the seconds of all-reduces among them
  double flops = 0, matrix_flops = 0;
  double bytes = 0, unpadded_bytes = 0;
  double all_reduced_bytes = 0;
};

// The model of one core's step. Every core runs the same step on the same number of samples, so all
// take the same time.
StepModel model_step(const Program& step, const ModelOptions& options);

// Seconds that an all-reduce of `bytes` bytes takes among `cores` cores: 2 V / W for V bytes in a
// torus whose chips use all their links of total bandwidth W, plus the latency of the hops along
// both axes and back, plus the sum of a chip's two cores in HBM.
double all_reduce_seconds(double bytes, int cores, const Generation& generation);

}  // namespace twinrun::tpu

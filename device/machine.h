// Documented facts of Cloud TPU v2 and v3 for the emulator, the rules and the model of a core;
// sources in docs/guides/profile.md. This folder holds models that only count (layouts, memory,
// time) and compute no values: they read a Program and depend on no engine.
//
//   TWINRUN_ASSIGN(const Generation v2, find_generation("v2"));
//   v2.peak_flops();    v2.hbm_usable();
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "program/base/result.h"

namespace twinrun::tpu {

inline constexpr int kCoresV2x8 = 8;
inline constexpr int kMaxCores = 2048;   // a full v3 pod
inline constexpr int64_t kLanes = 128;   // minor tile size; also the matrix unit's edge
inline constexpr int64_t kSublanes = 8;  // second-minor tile size
// ALUs for every lane of every sublane, each with one operation per cycle.
inline constexpr int kVectorAlus = 2;
inline constexpr int kCoresPerChip = 2;
inline constexpr double kHostBandwidth = 16e9;  // bytes/s from the host to one chip
// With fewer samples, batch norm may reduce accuracy: Cloud TPU's troubleshooting guide.
inline constexpr int64_t kSmallBatchPerCore = 32;

// One core of a generation; a chip has two.
struct Generation {
  std::string_view name;     // "v2"
  int matrix_units = 1;      // each with 128 x 128 multiply-adds per cycle
  double clock = 0;          // Hz; follows from the published peak
  int64_t hbm = 0;           // bytes of one core
  int64_t reserved = 0;      // bytes of hbm that programs cannot use
  double hbm_bandwidth = 0;  // bytes/s of one core
  // bytes/s, one way, of one of a chip's links to its neighbours in the torus.
  double link_bandwidth = 0;
  double link_factor = 1;  // how many times as long its links take as they should

  double peak_flops() const {
    return 2.0 * static_cast<double>(kLanes * kLanes) * matrix_units * clock;
  }
  // Operations/s of the vector unit, on 32-bit numbers.
  double vector_rate() const {
    return static_cast<double>(kLanes * kSublanes) * kVectorAlus * clock;
  }
  int64_t hbm_usable() const { return hbm - reserved; }
};

// n rounded up to a multiple of `multiple`.
constexpr int64_t padded(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

std::span<const Generation> generations();
// By name: "v2", "v3". The error for an unknown name suggests the nearest one.
Result<Generation> find_generation(std::string_view name);

}  // namespace twinrun::tpu

// The documented facts of a Cloud TPU v2-8 that the emulator and the rules use; sources in docs/tpu.md.
#pragma once

#include <cstdint>

namespace twinrun::tpu {

inline constexpr int kCoresV2x8 = 8;
inline constexpr int kMaxCores = 2048;   // a full v3 pod
inline constexpr int64_t kLanes = 128;   // minor tile size; also the matrix unit's edge
inline constexpr int64_t kSublanes = 8;  // second-minor tile size
inline constexpr int64_t kSmallBatchPerCore =
    32;  // the guide's limit under which per-core batch norm suffers

}  // namespace twinrun::tpu

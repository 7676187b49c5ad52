// How a TPU stores an array in HBM: which dimension runs along the 128 lanes, which along the 8 sublanes, and what both are padded
// to. Source: openxla/xla docs/tiled_layout.md. A core's memory plan and its traffic count padded bytes.
//
//   Layout l = default_layout({DType::kF32, {512, 245, 256}});
//   to_string(type, l);        // "f32[512,245,256]{2,1,0:T(8,128)}"
//   padded_bytes(type, l);     // 512 * 248 * 256 * 4 = 124.00 MiB
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/base/types.h"

namespace twinrun::tpu {

struct Layout {
  std::vector<int64_t> minor_to_major;  // dimensions, the one along the lanes first
  int64_t sublanes = 8;                 // 2, 4 or 8: compact forms of f32 and i32
};

// The last dimension along the lanes, the one before along the sublanes: what arguments have.
Layout default_layout(const TensorType& type);
// The one with the fewest padded bytes among those that put any two dimensions on lanes and sublanes; of equals the default, then the
// first by (lanes, sublanes) from the last dimension. The compiler chooses freely among layouts; that it takes the smallest is a
// model of ours.
Layout smallest_layout(const TensorType& type);

int64_t padded_bytes(const TensorType& type, const Layout& layout);
// As XLA prints it: element type, sizes, minor_to_major, tiles.
std::string to_string(const TensorType& type, const Layout& layout);

}  // namespace twinrun::tpu

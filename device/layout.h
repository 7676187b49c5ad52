// How a TPU stores an array in HBM: which dimension runs along the 128 lanes, which along the 8 sublanes, and what both are padded
// to. Source: openxla/xla docs/tiled_layout.md, and the logs in tests/device/layout_logs_test.cc. A core's memory plan and its
// traffic count padded bytes. What the rules are, and which logs say otherwise: docs/memory.md.
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
  // Rows of a tile: 8, or the compact forms: 2 and 4 of 32 bit types, 4 of narrower ones. Of one dimension or none a tile is so many
  // times 128 elements.
  int64_t sublanes = 8;
};

// The tiles of a given order of dimensions.
Layout with_order(const TensorType& type, std::vector<int64_t> minor_to_major);
// The last dimension along the lanes, the one before along the sublanes: what arguments have.
Layout default_layout(const TensorType& type);
// The one with the fewest padded bytes. Of rank 4 those are considered that have batch and features (the first and the last
// dimension) on lanes and sublanes, either way, as every convolution of the logs has them, and the default; of other ranks any two
// dimensions. Of equals the first in this order, or by (lanes, sublanes) from the last dimension. The compiler chooses freely;
// that it takes the smallest is a model of ours.
Layout smallest_layout(const TensorType& type);

int64_t padded_bytes(const TensorType& type, const Layout& layout);
// As XLA prints it: element type, sizes, minor_to_major, tiles.
std::string to_string(const TensorType& type, const Layout& layout);

}  // namespace twinrun::tpu

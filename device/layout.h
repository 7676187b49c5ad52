// How a TPU stores an array in HBM: which dimension runs along the 128 lanes, which along the 8
// sublanes, and to what sizes both are padded. The memory plan (hbm_plan.h) and the model of memory
// traffic (core_model.h) count padded bytes. Source: openxla/xla docs/tiled_layout.md, and the logs
// in tests/device/layout_logs_test.cc. The rules, and logs that contradict them:
// docs/guides/check.md.
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
  // Rows of a tile: 8, or in the compact forms 2 or 4 for 32-bit types and 4 for narrower ones. An
  // array of one dimension or none has tiles of sublanes * 128 elements.
  int64_t sublanes = 8;
};

// The layout with this order of dimensions, and the tiles that follow from it.
Layout with_order(const TensorType& type, std::vector<int64_t> minor_to_major);
// The last dimension along the lanes, the one before along the sublanes. Arguments of a program
// have this layout.
Layout default_layout(const TensorType& type);
// The layout with the fewest padded bytes. For rank 4, the candidates are those with batch and
// features (the first and the last dimension) on lanes and sublanes, either way round, as every
// convolution in the logs has them, and the default; for other ranks, any two dimensions. Of
// equals, the first in this order wins, or by (lanes, sublanes) from the last dimension. The
// compiler may choose any layout; that it chooses the smallest is an assumption of our model.
Layout smallest_layout(const TensorType& type);

int64_t padded_bytes(const TensorType& type, const Layout& layout);
// The text that XLA prints: element type, sizes, minor_to_major, tiles.
std::string to_string(const TensorType& type, const Layout& layout);

}  // namespace twinrun::tpu

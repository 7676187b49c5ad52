// The register tiles of the matrix kernels: plain data only, so that files compiled for one
// instruction set can include it. Innermost thing on the data's path: gemm.cc and convolution.cc
// cut their work into tiles and call these.
//
//   const GemmKernels& k = gemm_kernels(active_isa());
//   k.f32(tile);                                  // tile.rows <= k.rows, tile.cols <= 2 * k.lanes
//
// A is never transposed: element (row, k) lies at a + row * row_stride + k_offset[k], so that dense
// rows, image patches and transposed operands are all read in place. B is packed: [k][width], width
// = lanes or 2 * lanes, whichever holds cols.
#pragma once

#include <stdint.h>

namespace twinrun {

struct GemmTile {
  const float* a;
  int64_t row_stride;
  const int64_t* k_offset;
  int64_t k;  // bf16: the tile begins at a multiple of 32 of its segment
  const float* b;
  float* c;
  int64_t c_stride;
  const float* next_c;  // the tile to come, worth fetching; may be null
  int rows;
  int cols;
  bool start;   // accumulate from +0 instead of from c
  bool finish;  // store canonical NaNs
};

using GemmTileFunction = void (*)(const GemmTile& tile);

struct GemmKernels {
  int rows;               // largest tile
  int lanes;              // floats per vector
  GemmTileFunction f32;   // one fma chain per output
  GemmTileFunction bf16;  // AMX order on operands already rounded; run it under FTZ and DAZ
};

extern const GemmKernels kGemmScalar;
extern const GemmKernels kGemmAvx2;
extern const GemmKernels kGemmAvx512;

}  // namespace twinrun

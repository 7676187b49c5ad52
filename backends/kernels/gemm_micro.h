// The register tiles of the matrix kernels: plain data only, so that files compiled for one
// instruction set can include it. Innermost thing on the data's path: gemm.cc and convolution.cc
// cut their work into tiles and call these.
//
//   const GemmKernels& k = gemm_kernels(active_isa(), false);
//   k.f32(tile);                                  // tile.rows <= k.rows, tile.cols <= 2 * k.lanes
//
// A is never transposed: element (row, k) lies at a + row * row_stride + k_offset[k], so that dense
// rows, image patches and transposed operands are all read in place. B is packed: [k][width], width
// = lanes or 2 * lanes, whichever holds cols; where there is a block function, as bf16 in tile
// images (gemm_amx_tiles.h).
#pragma once

#include <stdint.h>

namespace twinrun {

// Size of k blocks. A multiple of 32, so that bf16 blocks never straddle one.
inline constexpr int64_t kBlockK = 512;

// A row tile of a piece of work: where its first row lies in A (elements) and in C (rows).
struct RowTile {
  int64_t a;
  int64_t c_row;
  int rows;
};

// C[tiles, n] over one k block, or, where b_rows > 0 (not for AMX), over k of its b_rows from b_first on. `b` as pack_b
// leaves the block, or, where b_stride > 0, rows of n columns b_stride apart, n a multiple of lanes (not for AMX); `offsets`
// one per k.
struct BlockProduct {
  const float* a;
  int64_t row_stride;
  const int64_t* offsets;
  int64_t k;
  const float* b;
  float* c;
  int64_t c_stride;
  int64_t n;
  bool start, finish;
  int64_t b_stride = 0;
  int64_t b_first = 0, b_rows = 0;
};

struct GemmTile {
  const float* a;
  int64_t row_stride;
  const int64_t* k_offset;
  int64_t k;  // bf16: the tile begins at a multiple of 32 of its segment
  const float* b;
  int64_t b_stride;  // from a k to the next: the packed width, or more
  float* c;
  int64_t c_stride;
  const float* next_c;  // the tile to come, worth fetching; may be null
  int rows;
  int cols;
  bool start;   // accumulate from +0 instead of from c
  bool finish;  // store canonical NaNs
};

using GemmTileFunction = void (*)(const GemmTile& tile);

// A whole block product. `images` holds kImageTiles row tiles of kImageSize bf16; `poison` fills the
// rows that a tile does not have with NaN.
using GemmBlockFunction = void (*)(const BlockProduct& product, const RowTile* tiles, int64_t count,
                                   uint16_t* images, bool poison);
inline constexpr int64_t kImageTiles = 8, kImageSize = 32 * kBlockK;
inline constexpr int64_t kTileWords = 256;  // an AMX tile: 16 rows of 16 words

struct GemmKernels {
  int rows;               // largest tile
  int lanes;              // floats per vector
  GemmTileFunction f32;   // one fma chain per output
  GemmTileFunction bf16;  // AMX order on operands already rounded; run it under FTZ and DAZ
  GemmBlockFunction block = nullptr;  // AMX: instead of both
  // dst[i] = bf16(src[i]), where that is faster than the floor's code; dst may be src.
  void (*round)(const float* src, float* dst, int64_t n) = nullptr;
};

extern const GemmKernels kGemmScalar;
extern const GemmKernels kGemmAvx2;
extern const GemmKernels kGemmAvx512;
extern const GemmKernels kGemmAmx;
extern const GemmKernels kGemmAmxModel;

}  // namespace twinrun

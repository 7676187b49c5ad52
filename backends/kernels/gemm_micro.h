// The interface of the register tiles that matrix products consist of: plain data only, so that
// files compiled for one instruction set can include it. It is the innermost part of the data's
// path: gemm.cc and the convolution kernels cut their work into tiles and call these.
//
//   const GemmKernels& k = gemm_kernels(active_isa(), false);
//   k.f32(tile);                                  // tile.rows <= k.rows, tile.cols <= 2 * k.lanes
//
// A is never transposed: element (row, k) lies at a + row * row_stride + k_offset[k], so that dense
// rows, image patches and transposed operands can all be read in place. B is packed: [k][width],
// width = lanes or 2 * lanes, whichever holds cols; where there is a block function, as bf16 in
// tile images (gemm_images.h).
#pragma once

#include <stdint.h>

namespace twinrun {

// Size of k blocks. A multiple of 32, so that bf16 blocks never straddle one.
inline constexpr int64_t kBlockK = 512;

// A row tile of a block product: where its first row lies in A (elements) and in C (rows).
struct RowTile {
  int64_t a;
  int64_t c_row;
  int rows;
};

// A product of row tiles and n columns over one k block. `b` is the block as pack_b packs it. With
// b_rows > 0 that block has b_rows rows of k, of which the product uses k, from b_first on (in tile
// images: a multiple of 32). With b_stride > 0 (not for tile images) `b` is not packed but rows of
// n columns, b_stride floats apart, n a multiple of lanes. `offsets` has one entry per k.
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
  bool far_a = false;  // A is not in a cache, and k lie next to each other: worth a prefetch
};

struct GemmTile {
  const float* a;
  int64_t row_stride;
  const int64_t* k_offset;
  int64_t k;  // bf16: the tile begins at a multiple of 32 of its segment
  const float* b;
  int64_t b_stride;  // floats from one k to the next: the packed width, or more
  float* c;
  int64_t c_stride;
  const float* next_c;  // C of the next tile, to be prefetched; may be null
  const float* next_a;  // A of the next tile, to be prefetched; may be null
  int rows;
  int cols;
  bool start;   // accumulate from +0 instead of from c
  bool finish;  // store canonical NaNs
};

using GemmTileFunction = void (*)(const GemmTile& tile);

// Computes a whole block product. `images` has room for kImageSpace bf16; `poison` fills the rows
// that a tile lacks with NaN.
using GemmBlockFunction = void (*)(const BlockProduct& product, const RowTile* tiles, int64_t count,
                                   uint16_t* images, bool poison);
inline constexpr int64_t kImageSpace = 36 * 16 * kBlockK;
inline constexpr int64_t kTileWords = 256;  // a tile image: 16 rows of 16 words

// How tiles read their operands. A tile image holds 32 k as 16 words of two bf16.
enum class Packing : uint8_t {
  kFloats,  // binary32
  kPairs,   // tile images for TDPBF16PS: word w has k = 2w and 2w + 1
  kQuads,  // tile images for VDPBF16PS: of four k, word 0 has the even ones and word 1 the odd ones
};
// The k (of 32) in the halves of word w. VDPBF16PS takes its upper halves first.
constexpr int lower_k(Packing packing, int w) {
  return packing == Packing::kQuads ? w / 2 * 4 + w % 2 + 2 : 2 * w;
}
constexpr int upper_k(Packing packing, int w) {
  return packing == Packing::kQuads ? w / 2 * 4 + w % 2 : 2 * w + 1;
}

// Rounds binary32 numbers of B to bf16 and puts them into tile images, by instructions that pack_b,
// compiled for every machine, does without.
struct ImagePackers {
  // Word w of n columns, from the two rows of B that it holds; a row beyond the end of k is null.
  // Panel i begins at to + i * panel words, the last one at `last`; words that no column owns get
  // `edge`.
  void (*row)(const float* lower, const float* upper, int64_t n, uint32_t edge, uint32_t* to,
              int64_t panel, uint32_t* last);
  // A tile of at most 16 columns, each with 32 k adjacent in memory.
  void (*columns)(const float* first, int64_t column_stride, int count, uint32_t edge,
                  uint32_t* tile);
};

struct GemmKernels {
  int rows;                         // of the largest tile
  int lanes;                        // floats per vector
  GemmTileFunction f32 = nullptr;   // one fma chain per output
  GemmTileFunction bf16 = nullptr;  // AMX order on operands already rounded, under FTZ and DAZ
  Packing packing = Packing::kFloats;
  GemmBlockFunction block = nullptr;      // for tile images, in place of both
  bool rounds_a = false;                  // the block function rounds A to bf16
  const ImagePackers* packers = nullptr;  // may be null
  // dst[i] = bf16(src[i]); null unless it is faster than the code for AVX2. dst may be src.
  void (*round)(const float* src, float* dst, int64_t n) = nullptr;
};

extern const GemmKernels kGemmScalar;
extern const GemmKernels kGemmNeon;  // AArch64; those to kGemmAmx: x86-64
extern const GemmKernels kGemmAvx2;
extern const GemmKernels kGemmAvx512;
extern const GemmKernels kGemmAvx512Bf16;
extern const GemmKernels kGemmAmx;
extern const GemmKernels kGemmAmxModel;

}  // namespace twinrun

// Tile images: how bf16 operands lie in memory for AMX and for VDPBF16PS, and the loop over the
// tiles of a block product. Included by gemm_amx_tiles.h and gemm_quads_tiles.h. No standard
// header: inline functions would carry an instruction set into the rest of the program.
//
// The image of A holds 16 rows of 32 k, two k a word; that of B, packed by pack_b, 16 words x 16
// columns. Packing (gemm_micro.h) says which k share a word. k is padded with +0 on both sides;
// missing rows and columns are filled with values that affect only results that are never stored.
// B forms panels of two tiles side by side; a panel stores its blocks of 32 k one after another,
// and the last panel may be one tile wide.
#pragma once

#include <stdint.h>

#include "backends/kernels/gemm_micro.h"
#include "backends/kernels/transpose8.h"

#define TWINRUN_INLINE inline __attribute__((always_inline))

namespace twinrun {
namespace {

// A run of consecutive k whose elements are adjacent in memory; none crosses a multiple of 32.
struct KRun {
  int64_t offset;
  int k, length;
};
inline int find_runs(const BlockProduct& p, KRun* runs) {
  int count = 0;
  for (int k = 0; k < p.k; ++k) {
    if (k % 32 != 0 && p.offsets[k] == p.offsets[k - 1] + 1) {
      ++runs[count - 1].length;
    } else {
      runs[count++] = {p.offsets[k], k, 1};
    }
  }
  return count;
}

constexpr int64_t kFloatsToFetch = 4096;  // of rows of A prefetched ahead of their rounding

// Writes the images of a row tile, [k block][half][row][k], row by row and run by run.
template <class Images>
void images_by_rows(const BlockProduct& p, const RowTile& tile, int halves, const KRun* runs,
                    int run_count, uint16_t edge, uint16_t* images) {
  const int64_t step = halves * 2 * kTileWords;
  const int64_t blocks = (p.k + 31) / 32;
  // Blocks of 32 adjacent k, where there is one run a block; what follows goes run by run.
  const int64_t whole = run_count == blocks ? p.k / 32 : 0;
  const int64_t ahead = (kFloatsToFetch + p.k - 1) / p.k * p.row_stride;
  for (int row = 0; row < (Images::kWholeTiles ? halves * 16 : tile.rows); ++row) {
    uint16_t* const to = images + row * 32;
    if (row >= tile.rows) {
      for (int64_t b = 0; b < blocks; ++b) {
        for (int i = 0; i < 32; ++i) to[b * step + i] = edge;
      }
      continue;
    }
    const float* const from = p.a + tile.a + row * p.row_stride;
    for (int64_t b = 0; b < whole; ++b)
      Images::whole_block(from + runs[b].offset, to + b * step, ahead);
    for (const KRun *run = runs + whole, *end = runs + run_count; run != end; ++run) {
      __builtin_prefetch(from + run->offset + ahead, 0, 2);
      Images::narrow(from + run->offset, to + run->k / 32 * step + run->k % 32, run->length);
    }
    if (p.k % 32 != 0) {
      uint16_t* const last = to + (blocks - 1) * step;
      for (int64_t i = p.k % 32; i < 32; ++i) last[i] = 0;
    }
    for (int64_t b = whole; b < blocks; ++b) Images::arrange(to + b * step);
  }
}

// The same where the rows of A are adjacent in memory: a tile image at a time.
template <class Images>
void images_by_columns(const BlockProduct& p, const RowTile& tile, int halves, uint32_t edge,
                       uint16_t* images) {
  for (int64_t k0 = 0; k0 < p.k; k0 += 32) {
    const int64_t k = p.k - k0 < 32 ? p.k - k0 : 32;
    for (int half = 0; half < halves; ++half) {
      const int rows = tile.rows - half * 16 < 16 ? tile.rows - half * 16 : 16;
      Images::image_of_columns(p.a + tile.a + half * 16, p.offsets + k0, k, rows, edge, images);
      images += 2 * kTileWords;
    }
  }
}

// A tile of C to be computed over all k, and the next one's part of C (null after the last).
struct ImageTile {
  const uint16_t *a, *b;
  float *c, *next_c;
  int rows, cols;
};

constexpr int64_t kLeastTiles = 8;  // row tiles whose images are made at once, at least

// Makes the images of A for several row tiles at once, then multiplies them by all panels of B:
// calls run(tile) for each tile of C. `Images` says how an image is made.
template <class Images, typename Run>
TWINRUN_INLINE void multiply_images(const BlockProduct& p, const RowTile* tiles, int64_t count,
                                    uint16_t* images, bool poison, Run run) {
  constexpr int64_t kSize = Images::kRows * kBlockK;
  static_assert(kSize * Images::kMostTiles <= kImageSpace);
  // Many tiles read a panel of B once; few write C in fewer places at a time. Long k hides C.
  const int64_t scaled = Images::kMostTiles * p.k / kBlockK;
  const int64_t together = scaled > kLeastTiles ? scaled : kLeastTiles;
  const uint16_t edge = poison ? 0x7FC0 : 0;
  const auto* const packed = reinterpret_cast<const uint16_t*>(p.b);
  const int64_t b_rows = ((p.b_rows > 0 ? p.b_rows : p.k) + 31) / 32 * 32;
  KRun runs[kBlockK];
  const int run_count = p.row_stride == 1 ? 0 : find_runs(p, runs);
  for (int64_t first = 0; first < count; first += together) {
    const int64_t last = first + together < count ? first + together : count;
    for (int64_t i = first; i < last; ++i) {
      uint16_t* const to = images + (i - first) * kSize;
      const int halves = tiles[i].rows > 16 ? 2 : 1;
      if (p.row_stride == 1) {
        images_by_columns<Images>(p, tiles[i], halves, edge * 0x10001u, to);
      } else {
        images_by_rows<Images>(p, tiles[i], halves, runs, run_count, edge, to);
      }
    }
    for (int64_t j = 0; j < p.n; j += 32) {
      const int cols = static_cast<int>(p.n - j < 32 ? p.n - j : 32);
      const uint16_t* const b = packed + j * b_rows + p.b_first * (cols > 16 ? 32 : 16);
      for (int64_t i = first; i < last; ++i) {
        float* const next = i + 1 < last ? p.c + tiles[i + 1].c_row * p.c_stride + j : nullptr;
        run(ImageTile{images + (i - first) * kSize, b, p.c + tiles[i].c_row * p.c_stride + j, next,
                      tiles[i].rows, cols});
      }
    }
  }
}

}  // namespace
}  // namespace twinrun

// Block products on tile registers as AMX has them, written once over a tile unit. A tile unit has
// 8 tiles of 16 rows x 64 bytes, is ready when constructed, and provides
//
//   zero<T>();  load<T>(from, stride);  store<T>(to, stride);      // strides in bytes
//   dot<C, A, B>();   // TDPBF16PS: C[m][n] += the 32 products of A[m] and B[.][n]
//
// Included by gemm_amx.cc (the hardware) and gemm_amx_model.cc (the same in plain C++). No standard
// header: inline functions would carry an instruction set into the rest of the program.
//
// A dot of tiles is one block of numerics.md, "The emulated TPU", where C is acc. The tile image of
// A holds 16 rows of 32 k; that of B, packed by pack_b, 16 pairs of k x 16 columns, the even k
// first. k is padded with +0 on both sides; missing rows and columns are filled with values that
// affect only results that are never stored.
#pragma once

#include <stdint.h>

#include "backends/kernels/gemm_micro.h"
#include "backends/kernels/transpose8.h"

#define TWINRUN_INLINE inline __attribute__((always_inline))

namespace twinrun {
namespace {

// The bf16 bits of a binary32 whose lower half is zero.
TWINRUN_INLINE uint32_t upper_half(float x) { return __builtin_bit_cast(uint32_t, x) >> 16; }
TWINRUN_INLINE uint32_t pair_of(float even, float odd) {
  return upper_half(even) | (__builtin_bit_cast(uint32_t, odd) & 0xFFFF0000u);
}

TWINRUN_INLINE void narrow(const float* from, uint16_t* to, int n) {
  if (n == 32) {
    for (int i = 0; i < 32; ++i) to[i] = static_cast<uint16_t>(upper_half(from[i]));
  } else if (n == 16) {
    for (int i = 0; i < 16; ++i) to[i] = static_cast<uint16_t>(upper_half(from[i]));
  } else {
    for (int i = 0; i < n; ++i) to[i] = static_cast<uint16_t>(upper_half(from[i]));
  }
}

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

// Writes the images of a row tile, [k block][half][row][k], row by row and run by run.
inline void images_by_rows(const BlockProduct& p, const RowTile& tile, int halves, const KRun* runs,
                           int run_count, uint16_t edge, uint16_t* images) {
  const int64_t step = halves * 2 * kTileWords;
  const int64_t blocks = (p.k + 31) / 32;
  for (int row = 0; row < halves * 16; ++row) {
    uint16_t* const to = images + row * 32;
    if (row >= tile.rows) {
      for (int64_t b = 0; b < blocks; ++b) {
        for (int i = 0; i < 32; ++i) to[b * step + i] = edge;
      }
      continue;
    }
    const float* const from = p.a + tile.a + row * p.row_stride;
    for (const KRun *run = runs, *end = runs + run_count; run != end; ++run)
      narrow(from + run->offset, to + run->k / 32 * step + run->k % 32, run->length);
    for (int64_t k = p.k; k < blocks * 32; ++k) to[k / 32 * step + k % 32] = 0;
  }
}

// The same where the rows of A are adjacent in memory: takes pairs of k for 16 rows and transposes.
inline void images_by_columns(const BlockProduct& p, const RowTile& tile, int halves, uint32_t edge,
                              uint16_t* images) {
  alignas(64) uint32_t pairs[kTileWords];
  for (int64_t k0 = 0; k0 < p.k; k0 += 32) {
    for (int half = 0; half < halves; ++half) {
      const float* const a = p.a + tile.a + half * 16;
      const int rows = tile.rows - half * 16 < 16 ? tile.rows - half * 16 : 16;
      for (int pair = 0; pair < 16; ++pair) {
        const int64_t k = k0 + 2 * pair;
        uint32_t* const to = pairs + pair * 16;
        for (int i = rows; i < 16; ++i) to[i] = edge;
        if (k + 1 < p.k) {
          const float *const even = a + p.offsets[k], *const odd = a + p.offsets[k + 1];
          if (rows == 16) {
            for (int i = 0; i < 16; ++i) to[i] = pair_of(even[i], odd[i]);
          } else {
            for (int i = 0; i < rows; ++i) to[i] = pair_of(even[i], odd[i]);
          }
        } else if (k < p.k) {
          const float* const even = a + p.offsets[k];
          for (int i = 0; i < rows; ++i) to[i] = upper_half(even[i]);
        } else {
          for (int i = 0; i < rows; ++i) to[i] = 0;
        }
      }
      transpose16(pairs, images);
      images += 2 * kTileWords;
    }
  }
}

// Copies rows of a 32-float-wide buffer to C; with `finish`, NaNs become canonical.
inline void store_rows(const float* __restrict from, float* __restrict c, int64_t c_stride,
                       int rows, int cols, bool finish) {
  const float nan = __builtin_bit_cast(float, 0x7FC00000u);
  for (int r = 0; r < rows; ++r, from += 32, c += c_stride) {
    if (finish && cols == 32) {
      for (int i = 0; i < 32; ++i) c[i] = from[i] != from[i] ? nan : from[i];
    } else if (finish) {
      for (int i = 0; i < cols; ++i) c[i] = from[i] != from[i] ? nan : from[i];
    } else {
      for (int i = 0; i < cols; ++i) c[i] = from[i];
    }
  }
}

// Computes R x N tiles of C over all k. Where C is cut off by an edge or has to be finished, it
// goes through a buffer.
template <class Unit, int R, int N>
void tile_product(Unit& unit, const BlockProduct& p, const uint16_t* a, const uint16_t* b, float* c,
                  int rows, int cols) {
  alignas(64) float buffer[32 * 32];
  const bool whole = rows == R * 16 && cols == N * 16;
  if (p.start) {
    unit.template zero<0>();
    if constexpr (N == 2) unit.template zero<1>();
    if constexpr (R == 2) unit.template zero<2>();
    if constexpr (R == 2 && N == 2) unit.template zero<3>();
  } else {
    const float* from = c;
    int64_t stride = p.c_stride;
    if (!whole) {
      for (int r = 0; r < R * 16; ++r) {
        const int present = r < rows ? cols : 0;
        for (int i = 0; i < present; ++i) buffer[r * 32 + i] = c[r * p.c_stride + i];
        for (int i = present; i < N * 16; ++i) buffer[r * 32 + i] = 0.0f;
      }
      from = buffer;
      stride = 32;
    }
    unit.template load<0>(from, stride * 4);
    if constexpr (N == 2) unit.template load<1>(from + 16, stride * 4);
    if constexpr (R == 2) unit.template load<2>(from + 16 * stride, stride * 4);
    if constexpr (R == 2 && N == 2) unit.template load<3>(from + 16 * stride + 16, stride * 4);
  }
  for (int64_t k = 0; k < p.k; k += 32) {
    unit.template load<4>(a, 64);
    unit.template load<6>(b, 64);
    unit.template dot<0, 4, 6>();
    if constexpr (N == 2) {
      unit.template load<7>(b + 2 * kTileWords, 64);
      unit.template dot<1, 4, 7>();
    }
    if constexpr (R == 2) {
      unit.template load<5>(a + 2 * kTileWords, 64);
      unit.template dot<2, 5, 6>();
      if constexpr (N == 2) unit.template dot<3, 5, 7>();
    }
    a += R * 2 * kTileWords;
    b += N * 2 * kTileWords;
  }
  const bool direct = whole && !p.finish;
  float* const to = direct ? c : buffer;
  const int64_t stride = direct ? p.c_stride : 32;
  unit.template store<0>(to, stride * 4);
  if constexpr (N == 2) unit.template store<1>(to + 16, stride * 4);
  if constexpr (R == 2) unit.template store<2>(to + 16 * stride, stride * 4);
  if constexpr (R == 2 && N == 2) unit.template store<3>(to + 16 * stride + 16, stride * 4);
  if (!direct) store_rows(buffer, c, p.c_stride, rows, cols, p.finish);
}

// A GemmBlockFunction. Makes the images of A for several row tiles at once, then multiplies them by
// all panels of B.
template <class Unit>
void multiply_tiles(const BlockProduct& p, const RowTile* tiles, int64_t count, uint16_t* images,
                    bool poison) {
  const uint16_t edge = poison ? 0x7FC0 : 0;
  const auto* const packed = reinterpret_cast<const uint16_t*>(p.b);
  const int64_t padded = (p.k + 31) / 32 * 32;
  KRun runs[kBlockK];
  const int run_count = p.row_stride == 1 ? 0 : find_runs(p, runs);
  Unit unit;
  for (int64_t first = 0; first < count; first += kImageTiles) {
    const int64_t last = first + kImageTiles < count ? first + kImageTiles : count;
    for (int64_t i = first; i < last; ++i) {
      uint16_t* const to = images + (i - first) * kImageSize;
      const int halves = tiles[i].rows > 16 ? 2 : 1;
      if (p.row_stride == 1) {
        images_by_columns(p, tiles[i], halves, edge * 0x10001u, to);
      } else {
        images_by_rows(p, tiles[i], halves, runs, run_count, edge, to);
      }
    }
    for (int64_t j = 0; j < p.n; j += 32) {
      const int cols = static_cast<int>(p.n - j < 32 ? p.n - j : 32);
      for (int64_t i = first; i < last; ++i) {
        const uint16_t* const a = images + (i - first) * kImageSize;
        float* const c = p.c + tiles[i].c_row * p.c_stride + j;
        const int rows = tiles[i].rows;
        if (rows > 16 && cols > 16) {
          tile_product<Unit, 2, 2>(unit, p, a, packed + j * padded, c, rows, cols);
        } else if (rows > 16) {
          tile_product<Unit, 2, 1>(unit, p, a, packed + j * padded, c, rows, cols);
        } else if (cols > 16) {
          tile_product<Unit, 1, 2>(unit, p, a, packed + j * padded, c, rows, cols);
        } else {
          tile_product<Unit, 1, 1>(unit, p, a, packed + j * padded, c, rows, cols);
        }
      }
    }
  }
}

}  // namespace
}  // namespace twinrun

// Block products on tile registers as AMX has them, written once over a tile unit. A tile unit has
// 8 tiles of 16 rows x 64 bytes, is ready when constructed, and provides
//
//   zero<T>();  load<T>(from, stride);  store<T>(to, stride);      // strides in bytes
//   dot<C, A, B>();   // TDPBF16PS: C[m][n] += the 32 products of A[m] and B[.][n]
//
// Included by gemm_amx.cc (the hardware) and gemm_amx_model.cc (the same in plain C++). No standard
// header: inline functions would carry an instruction set into the rest of the program.
//
// A dot of tiles is one block of numerics.md, "The emulated TPU", where C is acc.
#pragma once

#include <stdint.h>

#include "backends/kernels/gemm_images.h"

namespace twinrun {
namespace {

// The bf16 bits of a binary32 whose lower half is zero.
TWINRUN_INLINE uint32_t upper_half(float x) { return __builtin_bit_cast(uint32_t, x) >> 16; }
TWINRUN_INLINE uint32_t pair_of(float even, float odd) {
  return upper_half(even) | (__builtin_bit_cast(uint32_t, odd) & 0xFFFF0000u);
}

// How images of A are made in plain C++ (gemm_images.h): of numbers that are bf16 already.
struct AmxImages {
  static constexpr int64_t kRows = 32, kMostTiles = kLeastTiles;
  static constexpr bool kWholeTiles = true;
  static TWINRUN_INLINE void narrow(const float* from, uint16_t* to, int n) {
    if (n == 32) {
      for (int i = 0; i < 32; ++i) to[i] = static_cast<uint16_t>(upper_half(from[i]));
    } else if (n == 16) {
      for (int i = 0; i < 16; ++i) to[i] = static_cast<uint16_t>(upper_half(from[i]));
    } else {
      for (int i = 0; i < n; ++i) to[i] = static_cast<uint16_t>(upper_half(from[i]));
    }
  }
  static TWINRUN_INLINE void arrange(uint16_t*) {}
  static TWINRUN_INLINE void whole_block(const float* from, uint16_t* to, int64_t) {
    narrow(from, to, 32);
  }
  static TWINRUN_INLINE void image_of_columns(const float* a, const int64_t* offsets, int64_t k,
                                              int rows, uint32_t edge, uint16_t* image) {
    alignas(64) uint32_t pairs[kTileWords];
    for (int pair = 0; pair < 16; ++pair) {
      const int64_t q = 2 * pair;
      uint32_t* const to = pairs + pair * 16;
      for (int i = rows; i < 16; ++i) to[i] = edge;
      if (q + 1 < k) {
        const float *const even = a + offsets[q], *const odd = a + offsets[q + 1];
        if (rows == 16) {
          for (int i = 0; i < 16; ++i) to[i] = pair_of(even[i], odd[i]);
        } else {
          for (int i = 0; i < rows; ++i) to[i] = pair_of(even[i], odd[i]);
        }
      } else if (q < k) {
        const float* const even = a + offsets[q];
        for (int i = 0; i < rows; ++i) to[i] = upper_half(even[i]);
      } else {
        for (int i = 0; i < rows; ++i) to[i] = 0;
      }
    }
    transpose16(pairs, image);
  }
};

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

// A GemmBlockFunction.
template <class Unit, class Images = AmxImages>
void multiply_tiles(const BlockProduct& p, const RowTile* tiles, int64_t count, uint16_t* images,
                    bool poison) {
  Unit unit;
  multiply_images<Images>(p, tiles, count, images, poison, [&](const ImageTile& t) {
    if (t.rows > 16 && t.cols > 16) {
      tile_product<Unit, 2, 2>(unit, p, t.a, t.b, t.c, t.rows, t.cols);
    } else if (t.rows > 16) {
      tile_product<Unit, 2, 1>(unit, p, t.a, t.b, t.c, t.rows, t.cols);
    } else if (t.cols > 16) {
      tile_product<Unit, 1, 2>(unit, p, t.a, t.b, t.c, t.rows, t.cols);
    } else {
      tile_product<Unit, 1, 1>(unit, p, t.a, t.b, t.c, t.rows, t.cols);
    }
  });
}

}  // namespace
}  // namespace twinrun

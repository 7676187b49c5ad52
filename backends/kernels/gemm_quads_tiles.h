// Block products by VDPBF16PS, written once over a vector type V: what gemm_micro_tiles.h asks of
// one, and
//
//   pairs;  load_pairs(words);  set1_pairs(word);   // two bf16 a lane
//   dot(c, x, y);  // c + x * y by two fused multiply-adds, the upper halves first; denormal
//                  // operands and results are zeros
//
// and how images of A are made (gemm_images.h). Included by gemm_avx512bf16.cc (the hardware) and
// by tests (the same in plain C++).
//
// Of four consecutive k the first word of an image holds the two even ones, the second word the two
// odd ones, the earlier k in the upper half (Packing::kQuads): a dot is two steps of one chain of
// numerics.md, "The emulated TPU".
#pragma once

#include <stdint.h>

#include "backends/kernels/gemm_images.h"
#include "backends/kernels/gemm_micro_tiles.h"

namespace twinrun {
namespace {

// Advances R x NV chains by two k. Words of adjacent rows of A are kStride apart.
template <class V, int R, int NV, int kStride>
TWINRUN_INLINE void two_steps(typename V::reg (&acc)[R][NV], const uint32_t* a, const uint32_t* b) {
  typename V::pairs column[NV];
  TWINRUN_UNROLL for (int v = 0; v < NV; ++v) column[v] = V::load_pairs(b + v * kTileWords);
  TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
    const typename V::pairs x = V::set1_pairs(a + i * kStride);
    TWINRUN_UNROLL for (int v = 0; v < NV; ++v) acc[i][v] = V::dot(acc[i][v], x, column[v]);
  }
}

// t.a and t.b are tile images; with kByColumns that of A is [word][row] instead of [row][word].
// Chains end with the last four k that exist; adding +0 does what the padding beyond does.
template <class V, int R, int NV, bool kByColumns>
void quads_tile(const GemmTile& t) {
  constexpr int kWord = kByColumns ? 16 : 1, kRow = kByColumns ? 1 : 16;
  alignas(64) float sums[R * NV * V::kLanes];
  typename V::reg even[R][NV], odd[R][NV];
  fetch_next<R, NV>(t, V::kLanes);
  begin_sums<V, R, NV>(sums, even, t);
  const auto* a = reinterpret_cast<const uint32_t*>(t.a);
  const auto* b = reinterpret_cast<const uint32_t*>(t.b);
  for (int64_t k0 = 0; k0 < t.k; k0 += 32) {
    const int words = t.k - k0 < 29 ? static_cast<int>(t.k - k0 + 3) / 4 * 2 : 16;
    clear<V, R, NV>(even);
    clear<V, R, NV>(odd);
    for (int w = 0; w < words; w += 2) {
      two_steps<V, R, NV, kRow>(even, a + w * kWord, b + w * 16);
      two_steps<V, R, NV, kRow>(odd, a + (w + 1) * kWord, b + (w + 1) * 16);
    }
    add_chains<V, R, NV>(sums, even, odd, words < 16, words < 16);
    a += kTileWords;
    b += NV * kTileWords;
  }
  end_sums<V, R, NV>(sums, even, t);
}

template <class V, int R, bool kByColumns>
struct QuadsTable {
  static void run(const GemmTile& t) {
    if (t.rows < R) return QuadsTable<V, R - 1, kByColumns>::run(t);
    if (t.cols > V::kLanes) return quads_tile<V, R, 2, kByColumns>(t);
    quads_tile<V, R, 1, kByColumns>(t);
  }
};
template <class V, bool kByColumns>
struct QuadsTable<V, 0, kByColumns> {
  static void run(const GemmTile&) {}
};

constexpr int kQuadsRows = 7;  // rows of two chains by two vectors that registers hold

// A GemmBlockFunction for row tiles of up to 2 * kQuadsRows rows. Run it under FTZ and DAZ.
template <class V>
void multiply_quads(const BlockProduct& p, const RowTile* tiles, int64_t count, uint16_t* images,
                    bool poison) {
  const bool by_columns = p.row_stride == 1;
  const auto run =
      by_columns ? QuadsTable<V, kQuadsRows, true>::run : QuadsTable<V, kQuadsRows, false>::run;
  multiply_images<V>(p, tiles, count, images, poison, [&](const ImageTile& tile) {
    GemmTile t{};
    t.a = reinterpret_cast<const float*>(tile.a);
    t.b = reinterpret_cast<const float*>(tile.b);
    t.k = p.k;
    t.c = tile.c;
    t.c_stride = p.c_stride;
    t.cols = tile.cols;
    t.start = p.start;
    t.finish = p.finish;
    t.rows = tile.rows > kQuadsRows ? (tile.rows + 1) / 2 : tile.rows;
    t.next_c = t.rows == tile.rows ? tile.next_c : nullptr;
    run(t);
    if (t.rows == tile.rows) return;
    t.a += t.rows * (by_columns ? 1 : 16);
    t.c += t.rows * p.c_stride;
    t.rows = tile.rows - t.rows;
    t.next_c = tile.next_c;
    run(t);
  });
}

}  // namespace
}  // namespace twinrun

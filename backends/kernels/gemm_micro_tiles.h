// The code of the register tiles, written once over a vector type V (reg, kLanes, load, load_some,
// store, store_some, set1, zero, fma, add, canonical). Included by one file per instruction set,
// each in its own anonymous namespace. No standard header: inline functions would carry that
// instruction set into the rest of the program.
#pragma once

#include <stdint.h>

#include "backends/kernels/gemm_micro.h"

#define TWINRUN_INLINE inline __attribute__((always_inline))
#define TWINRUN_UNROLL _Pragma("GCC unroll 16")

namespace twinrun {
namespace {

// Advances R x NV chains by one k. Rows are addressed from every third one, as base, base + stride
// and base + 2 * stride.
template <class V, int R, int NV>
TWINRUN_INLINE void step(typename V::reg (&acc)[R][NV], const float* a, int64_t stride,
                         const float* b) {
  typename V::reg column[NV];
  TWINRUN_UNROLL for (int v = 0; v < NV; ++v) column[v] = V::load(b + v * V::kLanes);
  TWINRUN_UNROLL for (int i = 0; i < R; i += 3) {
    TWINRUN_UNROLL for (int j = i; j < (i + 3 < R ? i + 3 : R); ++j) {
      const typename V::reg x = V::set1(a + (j - i) * stride);
      TWINRUN_UNROLL for (int v = 0; v < NV; ++v) acc[j][v] = V::fma(x, column[v], acc[j][v]);
    }
    a += 3 * stride;
  }
}

template <class V, int R, int NV>
TWINRUN_INLINE void clear(typename V::reg (&acc)[R][NV]) {
  TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
    TWINRUN_UNROLL for (int v = 0; v < NV; ++v) acc[i][v] = V::zero();
  }
}

template <class V, int R, int NV>
TWINRUN_INLINE void load_c(typename V::reg (&acc)[R][NV], const GemmTile& t) {
  const int last = t.cols - (NV - 1) * V::kLanes;
  TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
    const float* c = t.c + i * t.c_stride;
    TWINRUN_UNROLL for (int v = 0; v + 1 < NV; ++v) acc[i][v] = V::load(c + v * V::kLanes);
    acc[i][NV - 1] = V::load_some(c + (NV - 1) * V::kLanes, last);
  }
}

template <class V, int R, int NV>
TWINRUN_INLINE void store_c(typename V::reg (&acc)[R][NV], const GemmTile& t) {
  const int last = t.cols - (NV - 1) * V::kLanes;
  if (t.finish) {
    TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
      TWINRUN_UNROLL for (int v = 0; v < NV; ++v) acc[i][v] = V::canonical(acc[i][v]);
    }
  }
  TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
    float* c = t.c + i * t.c_stride;
    TWINRUN_UNROLL for (int v = 0; v + 1 < NV; ++v) V::store(c + v * V::kLanes, acc[i][v]);
    V::store_some(c + (NV - 1) * V::kLanes, acc[i][NV - 1], last);
  }
}

// Prefetches the next tile's part of C, which is not in a near cache and would stall its chains.
// Into L2 only: rows of C that lie a power of two apart would evict one another from L1.
template <int R, int NV>
TWINRUN_INLINE void fetch_next(const GemmTile& t, int lanes) {
  if (t.next_c == nullptr) return;
  TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
    TWINRUN_UNROLL for (int v = 0; v < NV; ++v)
        __builtin_prefetch(t.next_c + i * t.c_stride + v * lanes, 1, 2);
  }
}

// All k of a tile. With kFetch each of them also prefetches one row of the next tile's A: where k
// lie next to each other that reaches every cache line, which holds at least as many k as a tile
// has rows.
template <class V, int R, int NV, bool kFetch>
TWINRUN_INLINE void f32_steps(typename V::reg (&acc)[R][NV], const GemmTile& t) {
  const float *b = t.b, *ahead = t.next_a;
  const int64_t stride = t.row_stride, b_stride = t.b_stride;
  [[maybe_unused]] const float* const ahead_end = kFetch ? ahead + R * stride : nullptr;
  for (const int64_t *offset = t.k_offset, *end = offset + t.k; offset != end; ++offset) {
    if constexpr (kFetch) {
      __builtin_prefetch(ahead + *offset, 0, 2);
      ahead += stride;
      if (ahead == ahead_end) ahead = t.next_a;
    }
    step<V, R, NV>(acc, t.a + *offset, stride, b);
    b += b_stride;
  }
}

template <class V, int R, int NV>
void f32_tile(const GemmTile& t) {
  typename V::reg acc[R][NV];
  fetch_next<R, NV>(t, V::kLanes);
  if (t.start) {
    clear<V, R, NV>(acc);
  } else {
    load_c<V, R, NV>(acc, t);
  }
  if (t.next_a == nullptr) {
    f32_steps<V, R, NV, false>(acc, t);
  } else {
    f32_steps<V, R, NV, true>(acc, t);
  }
  store_c<V, R, NV>(acc, t);
}

// Sums of a tile over blocks of 32 (numerics.md, "The emulated TPU"), kept in memory. They begin
// with +0 or with what C holds; `chain` is scratch.
template <class V, int R, int NV>
TWINRUN_INLINE void begin_sums(float* sums, typename V::reg (&chain)[R][NV], const GemmTile& t) {
  if (t.start) {
    clear<V, R, NV>(chain);
  } else {
    load_c<V, R, NV>(chain, t);
  }
  TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
    TWINRUN_UNROLL for (int v = 0; v < NV; ++v)
        V::store(sums + (i * NV + v) * V::kLanes, chain[i][v]);
  }
}

// Adds the chains of a block: acc = acc + (even + odd). A chain that ends early adds the zero
// products of the padding, which have one effect, that of adding +0 once.
template <class V, int R, int NV>
TWINRUN_INLINE void add_chains(float* sums, typename V::reg (&even)[R][NV],
                               typename V::reg (&odd)[R][NV], bool short_even, bool short_odd) {
  TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
    TWINRUN_UNROLL for (int v = 0; v < NV; ++v) {
      float* const sum = sums + (i * NV + v) * V::kLanes;
      if (short_even) even[i][v] = V::add(even[i][v], V::zero());
      if (short_odd) odd[i][v] = V::add(odd[i][v], V::zero());
      V::store(sum, V::add(V::load(sum), V::add(even[i][v], odd[i][v])));
    }
  }
}

template <class V, int R, int NV>
TWINRUN_INLINE void end_sums(const float* sums, typename V::reg (&chain)[R][NV],
                             const GemmTile& t) {
  TWINRUN_UNROLL for (int i = 0; i < R; ++i) {
    TWINRUN_UNROLL for (int v = 0; v < NV; ++v) chain[i][v] =
        V::load(sums + (i * NV + v) * V::kLanes);
  }
  store_c<V, R, NV>(chain, t);
}

// numerics.md, "The emulated TPU": blocks of 32; even k and odd k form a chain each, from +0; t =
// even + odd; acc = acc + t. Where the end of k cuts a chain short, the zero products of the
// padding have one effect, that of adding +0 once.
template <class V, int R, int NV>
void bf16_tile(const GemmTile& t) {
  alignas(64) float sums[R * NV * V::kLanes];
  typename V::reg even[R][NV], odd[R][NV];
  fetch_next<R, NV>(t, V::kLanes);
  begin_sums<V, R, NV>(sums, even, t);
  const int64_t b_stride = t.b_stride;
  for (int64_t k0 = 0; k0 < t.k; k0 += 32) {
    const int64_t n = t.k - k0 < 32 ? t.k - k0 : 32;
    const float* b = t.b + k0 * b_stride;
    const int64_t* offset = t.k_offset + k0;
    clear<V, R, NV>(even);
    clear<V, R, NV>(odd);
    int64_t k = 0;
    for (; k + 2 <= n; k += 2) {
      step<V, R, NV>(even, t.a + offset[k], t.row_stride, b + k * b_stride);
      step<V, R, NV>(odd, t.a + offset[k + 1], t.row_stride, b + (k + 1) * b_stride);
    }
    if (k < n) step<V, R, NV>(even, t.a + offset[k], t.row_stride, b + k * b_stride);
    add_chains<V, R, NV>(sums, even, odd, n < 31, n < 32);
  }
  end_sums<V, R, NV>(sums, even, t);
}

template <class V, int R>
struct TileTable {
  static void f32(const GemmTile& t) {
    if (t.rows < R) return TileTable<V, R - 1>::f32(t);
    if (t.cols > V::kLanes) return f32_tile<V, R, 2>(t);
    f32_tile<V, R, 1>(t);
  }
  static void bf16(const GemmTile& t) {
    if (t.rows < R) return TileTable<V, R - 1>::bf16(t);
    if (t.cols > V::kLanes) return bf16_tile<V, R, 2>(t);
    bf16_tile<V, R, 1>(t);
  }
  // bf16 needs two chains per output, so that registers hold half as many rows: tiles with more
  // than R rows are computed in two halves.
  static void bf16_halves(const GemmTile& t) {
    if (t.rows <= R) return bf16(t);
    GemmTile part = t;
    part.rows = (t.rows + 1) / 2;
    part.next_c = nullptr;
    bf16(part);
    part.a += part.rows * t.row_stride;
    part.c += part.rows * t.c_stride;
    part.rows = t.rows - part.rows;
    part.next_c = t.next_c;
    bf16(part);
  }
};
template <class V>
struct TileTable<V, 0> {
  static void f32(const GemmTile&) {}
  static void bf16(const GemmTile&) {}
};

}  // namespace
}  // namespace twinrun

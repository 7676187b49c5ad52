// Packs operands for the tiles: bf16 terms, panels of B, tile images of B.
#include <cstring>

#include "backends/kernels/bf16_bits.h"
#include "backends/kernels/gemm.h"
#include "backends/kernels/transpose8.h"

namespace twinrun {
namespace {

inline float bf16_term(float x) { return from_bits(bf16_bits(to_bits(x))); }
// x - y where a denormal x counts as zero; callers flush the difference. Exact unless it is a NaN,
// because y is x rounded.
inline float rest(float x, float y) {
  const uint32_t u = to_bits(x);
  const float z = from_bits((u & 0x7F800000u) == 0 ? u & 0x80000000u : u);
  return z - y;
}

// Calls f(of), where of(x) is the given term of x.
template <typename F>
inline void with_term(Term term, F&& f) {
  switch (term) {
    case Term::kWhole:
      return f([](float x) { return x; });
    case Term::kFirst:
      return f([](float x) { return bf16_term(x); });
    case Term::kSecond:
      return f([](float x) { return bf16_term(rest(x, bf16_term(x))); });
    case Term::kThird:
      return f([](float x) {
        const float r = rest(x, bf16_term(x));
        return bf16_term(rest(r, bf16_term(r)));
      });
  }
}

// Packs one panel of `width` columns, of which `columns` exist, where the columns are not adjacent
// in memory.
void pack_strided(const MatrixB& b, Term term, const float* src, int64_t length, int64_t columns,
                  int64_t width, float* out) {
  int64_t done = 0;  // columns
  if (b.k_stride == 1) {
    for (; done + 8 <= columns; done += 8) {
      const float* column = src + done * b.column_stride;
      int64_t k = 0;
      for (; k + 8 <= length; k += 8) {
        transpose8(column + k, b.column_stride, out + k * width + done, width);
      }
      for (; k < length; ++k) {
        for (int64_t j = 0; j < 8; ++j) out[k * width + done + j] = column[j * b.column_stride + k];
      }
    }
  }
  for (; done < columns; ++done) {
    const float* column = src + done * b.column_stride;
    for (int64_t k = 0; k < length; ++k) out[k * width + done] = column[k * b.k_stride];
  }
  if (term == Term::kWhole) return;
  for (int64_t k = 0; k < length; ++k) copy_term(term, out + k * width, out + k * width, columns);
}

// ---- Tile images of B (gemm_images.h)

// Where the tile of columns [j, j + 16) and k block 0 begins; `step` words from it is the tile of
// the next k block.
struct TileColumn {
  uint32_t* first;
  int64_t step;
  TileColumn(const GemmPlan& plan, uint32_t* out, int64_t j, int64_t n, int64_t k) {
    const int64_t panel = j / 32 * 32;
    step = n - panel > 16 ? 2 * kTileWords : kTileWords;
    first = out + plan.packed_size(panel, k) + (j - panel) / 16 * kTileWords;
  }
};

// For B with adjacent columns: two rows of B make one row of a tile, by `packers` unless they are
// null.
template <typename Of>
void pack_pairs_of_rows(const GemmPlan& plan, const MatrixB& b, Of of, int64_t k0, int64_t k1,
                        int64_t n0, int64_t n1, uint32_t edge, const ImagePackers* packers,
                        uint32_t* out) {
  const int64_t n = n1 - n0, words = (k1 - k0 + 31) / 32 * 16;
  const auto row = [&](int64_t k) {
    return k >= k1 ? nullptr : b.data + k / b.run * b.run_stride + k % b.run * b.k_stride + n0;
  };
  for (int64_t word = 0; word < words; ++word) {
    const int64_t block = k0 + word / 16 * 32;
    const int w = static_cast<int>(word % 16);
    const float* const lower = row(block + lower_k(plan.kernels.packing, w));
    const float* const upper = row(block + upper_k(plan.kernels.packing, w));
    const auto place = [&](int64_t j) {
      const TileColumn tile(plan, out, j, n, k1 - k0);
      return tile.first + word / 16 * tile.step + w * 16;
    };
    if (packers != nullptr) {
      packers->row(lower, upper, n, edge, place(0), plan.packed_size(32, k1 - k0),
                   place((n - 1) / 32 * 32));
      continue;
    }
    for (int64_t j = 0; j < n; j += 16) {
      uint32_t* const to = place(j);
      const int64_t columns = std::min<int64_t>(16, n - j);
      const auto pair = [&](int64_t i) {
        return to_bits(of(lower[j + i])) >> 16 | to_bits(of(upper[j + i]));
      };
      const auto half = [&](const float* from, int64_t i) {
        return from == nullptr ? 0 : to_bits(of(from[j + i]));
      };
      const bool both = lower != nullptr && upper != nullptr;
      if (both && columns == 16) {
        for (int64_t i = 0; i < 16; ++i) to[i] = pair(i);
      } else if (both) {
        for (int64_t i = 0; i < columns; ++i) to[i] = pair(i);
      } else {
        for (int64_t i = 0; i < columns; ++i) to[i] = half(lower, i) >> 16 | half(upper, i);
      }
      std::fill(to + columns, to + 16, edge);
    }
  }
}

// For B with adjacent k: a tile is gathered column by column and transposed.
template <typename Of>
void pack_pairs_of_columns(const GemmPlan& plan, const MatrixB& b, Of of, int64_t k0, int64_t k1,
                           int64_t n0, int64_t n1, uint32_t edge, const ImagePackers* packers,
                           uint32_t* out) {
  alignas(64) uint32_t pairs[kTileWords];
  for (int64_t j = 0; j < n1 - n0; j += 16) {
    const TileColumn tile(plan, out, j, n1 - n0, k1 - k0);
    const int64_t columns = std::min<int64_t>(16, n1 - n0 - j);
    std::fill(pairs + columns * 16, pairs + kTileWords, edge);
    for (int64_t block = k0; block < k1; block += 32) {
      const int64_t end = std::min(block + 32, k1);
      uint32_t* const to_tile = tile.first + (block - k0) / 32 * tile.step;
      if (packers != nullptr && end - block == 32 && block % b.run + 32 <= b.run) {
        packers->columns(
            b.data + block / b.run * b.run_stride + block % b.run + (n0 + j) * b.column_stride,
            b.column_stride, static_cast<int>(columns), edge, to_tile);
        continue;
      }
      for (int64_t i = 0; i < columns; ++i) {
        uint16_t column[32] = {};
        for (int64_t k = block; k < end;) {
          const int64_t within = k % b.run, length = std::min(b.run - within, end - k);
          const float* const from =
              b.data + k / b.run * b.run_stride + within + (n0 + j + i) * b.column_stride;
          uint16_t* const to = column + (k - block);
          const auto half = [&](int64_t q) {
            return static_cast<uint16_t>(to_bits(of(from[q])) >> 16);
          };
          if (length == 32) {
            for (int64_t q = 0; q < 32; ++q) to[q] = half(q);
          } else {
            for (int64_t q = 0; q < length; ++q) to[q] = half(q);
          }
          k += length;
        }
        if (plan.kernels.packing == Packing::kPairs) {
          std::memcpy(pairs + i * 16, column, sizeof column);
          continue;
        }
        for (int w = 0; w < 16; ++w) {
          const uint32_t upper = column[upper_k(plan.kernels.packing, w)];
          pairs[i * 16 + w] = upper << 16 | column[lower_k(plan.kernels.packing, w)];
        }
      }
      transpose16(pairs, to_tile);
    }
  }
}

void pack_pairs(const GemmPlan& plan, const MatrixB& b, Term term, int64_t k0, int64_t k1,
                int64_t n0, int64_t n1, uint32_t* out) {
  const uint32_t edge = plan.context.arithmetic.poison ? 0x7FC07FC0u : 0;
  const ImagePackers* packers = term == Term::kFirst ? plan.kernels.packers : nullptr;
  with_term(term, [&](auto of) {
    if (b.column_stride == 1) {
      pack_pairs_of_rows(plan, b, of, k0, k1, n0, n1, edge, packers, out);
    } else {
      pack_pairs_of_columns(plan, b, of, k0, k1, n0, n1, edge, packers, out);
    }
  });
}

}  // namespace

void copy_term(Term term, const float* src, float* dst, int64_t n) {
  if (term == Term::kWhole) {
    if (n == 32) {  // one panel row, without a call of memcpy
      for (int64_t i = 0; i < 32; ++i) dst[i] = src[i];
    } else if (n == 16) {
      for (int64_t i = 0; i < 16; ++i) dst[i] = src[i];
    } else {
      std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    }
    return;
  }
  const auto round = gemm_kernels(active_isa(), false).round;
  if (term == Term::kFirst && round != nullptr) return round(src, dst, n);
  with_term(term, [&](auto of) {
    for (int64_t i = 0; i < n; ++i) dst[i] = of(src[i]);
  });
}

void pack_b(const GemmPlan& plan, const MatrixB& b, Term term, int64_t k0, int64_t k1, int64_t n0,
            int64_t n1, float* out) {
  if (plan.images())
    return pack_pairs(plan, b, term, k0, k1, n0, n1, reinterpret_cast<uint32_t*>(out));
  const int64_t panel = plan.panel(), lanes = plan.kernels.lanes;
  const int64_t last = n0 + (n1 - n0 - 1) / panel * panel;  // where the last panel begins
  const int64_t last_width = n1 - last > lanes ? panel : lanes;
  for (int64_t k = k0; k < k1;) {
    const int64_t within = k % b.run;
    const int64_t length = std::min(b.run - within, k1 - k);
    const float* from = b.data + k / b.run * b.run_stride + within * b.k_stride;
    if (b.column_stride == 1) {
      // Goes along the rows of B, so that it reads whole pages, one after the other.
      for (int64_t q = 0; q < length; ++q) {
        const float* row = from + q * b.k_stride;
        for (int64_t j = n0; j < n1; j += panel) {
          const int64_t width = j == last ? last_width : panel;
          float* to = out + (j - n0) * (k1 - k0) + (k - k0 + q) * width;
          copy_term(term, row + j, to, std::min(panel, n1 - j));
        }
      }
    } else {
      for (int64_t j = n0; j < n1; j += panel) {
        const int64_t width = j == last ? last_width : panel;
        float* to = out + (j - n0) * (k1 - k0) + (k - k0) * width;
        pack_strided(b, term, from + j * b.column_stride, length, std::min(panel, n1 - j), width,
                     to);
      }
    }
    k += length;
  }
  if (n1 - last == last_width) return;
  const float edge = plan.context.arithmetic.poison ? from_bits(kCanonicalNaN) : 0.0f;
  float* to = out + (last - n0) * (k1 - k0);
  for (int64_t k = 0; k < k1 - k0; ++k) {
    std::fill(to + k * last_width + (n1 - last), to + (k + 1) * last_width, edge);
  }
}

PackedB::PackedB(const GemmPlan& plan, const MatrixB& b, Term term, int64_t k, int64_t n0,
                 int64_t n1)
    : plan_(plan), columns_(plan.packed_columns(n1 - n0)) {
  data_ = scratch<float>(Scratch::kPackedB, static_cast<size_t>(plan.packed_size(columns_, k)));
  const int64_t panel = plan.panel();
  const int64_t blocks = (k + kBlockK - 1) / kBlockK;
  const int64_t span = panel * 8;  // columns per piece
  const int64_t spans = (n1 - n0 + span - 1) / span;
  for_pieces(plan.context, blocks * spans, k * columns_, [&](int64_t piece) {
    const int64_t k0 = piece / spans * kBlockK, k1 = std::min(k, k0 + kBlockK);
    const int64_t j0 = piece % spans * span, j1 = std::min(n1 - n0, j0 + span);
    pack_b(plan, b, term, k0, k1, n0 + j0, n0 + j1,
           data_ + plan.packed_size(columns_, k0) + plan.packed_size(j0, k1 - k0));
  });
}

}  // namespace twinrun

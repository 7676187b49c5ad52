// The parts of a reduction (numerics.md, section 4) that reduce.cc and fused.cc share: joining, the
// tree over a segment's 16 lanes, and adding the segments' sums in order. Private to
// backends/kernels.
//
//   lane_add<F32, false, JoinSum>(lanes, columns, at, x, n);      // [row][columns], in order
//   lane_tree<JoinSum>(lanes, rows < 16 ? rows : 16, columns);    // lanes[0, columns) is the sum
#pragma once

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/vector_f32.h"

namespace twinrun {

inline constexpr int64_t kReduceSegment = 4096, kReduceLanes = 16;

struct JoinSum {
  static float join(float a, float b) { return a + b; }
  static __m256 join8(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
};
struct JoinMax {
  static float join(float a, float b) {
    const float larger = a > b ? a : b;
    const float m = a == b ? from_bits(to_bits(a) & to_bits(b)) : larger;
    return a != a ? a : m;
  }
  // A NaN may get another payload, which finish_sums makes canonical.
  static __m256 join8(__m256 a, __m256 b) { return maximum8(a, b); }
};

template <typename T, bool kFlush>
inline float reduce_element(typename T::type x) {
  return kFlush ? flush(T::load(x)) : T::load(x);
}

// Reduces lanes[16][columns] to lanes[0]: lane j is joined with lane j + 8, then j + 4, j + 2 and j
// + 1, where those exist.
template <typename R>
void lane_tree(float* lanes, int64_t exist, int64_t columns) {
  for (int64_t half = 8; half >= 1; half /= 2) {
    for (int64_t j = 0; j < half && j + half < exist; ++j) {
      float* to = lanes + j * columns;
      const float* from = lanes + (j + half) * columns;
      for (int64_t c = 0; c < columns; ++c) to[c] = R::join(to[c], from[c]);
    }
    exist = std::min(exist, half);
  }
}

// The same of sixteen lanes of one column in two registers.
template <typename R>
float lane_tree16(__m256 low, __m256 high) {
  __m256 x = R::join8(low, high);
  x = R::join8(x, _mm256_permute2f128_ps(x, x, 1));
  x = R::join8(x, _mm256_permute_ps(x, 0b01001110));
  return R::join(_mm256_cvtss_f32(x), _mm256_cvtss_f32(_mm256_permute_ps(x, 0b00000001)));
}

// Joins elements [at, at + n) of a segment into the lanes. A segment is rows of `columns` elements
// in row-major order; element e goes to lanes[e mod (16 * columns)]. The first 16 rows are copied,
// not joined.
template <typename T, bool kFlush, typename R>
void lane_add(float* lanes, int64_t columns, int64_t at, const typename T::type* x, int64_t n) {
  const int64_t size = kReduceLanes * columns;
  for (int64_t done = 0; done < n;) {
    const int64_t place = (at + done) % size, run = std::min(size - place, n - done);
    float* lane = lanes + place;
    const auto* from = x + done;
    if (at + done < size) {
      for (int64_t i = 0; i < run; ++i) lane[i] = reduce_element<T, kFlush>(from[i]);
    } else {
      for (int64_t i = 0; i < run; ++i) {
        lane[i] = R::join(lane[i], reduce_element<T, kFlush>(from[i]));
      }
    }
    done += run;
  }
}

// Joins sums[segment][outputs] over the segments, in order, and stores out[begin, end). mean_of > 0
// divides by it.
template <typename T, bool kFlush, typename R>
void finish_sums(const float* sums, int64_t segments, int64_t outputs, int64_t mean_of,
                 typename T::type* out, int64_t begin, int64_t end) {
  const auto count = static_cast<float>(mean_of);
  for (int64_t o = begin; o < end; ++o) {
    float total = sums[o];
    for (int64_t s = 1; s < segments; ++s) total = R::join(total, sums[s * outputs + o]);
    if (mean_of > 0) total = total / count;
    out[o] = T::template store<kFlush>(total);
  }
}

}  // namespace twinrun

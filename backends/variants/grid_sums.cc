// Dots, convolutions, reductions and the all-reduce in a variant's order. The operand of the longer
// side of the result is packed for 32 results at a time ([k][32]), the other row by row. With bf16
// precisions, each of an operand's bf16 parts is packed as a plane of its own.
#include <algorithm>
#include <numeric>

#include "backends/kernels/arithmetic.h"
#include "backends/variants/internal.h"
#include "backends/variants/order.h"
#include "program/ops/terms.h"

namespace twinrun::variants {
namespace {

using Floats = std::vector<float>;

// How the declared precision reads operands: the planes into which a number is split, and which
// products of planes are summed.
class Scheme {
 public:
  Scheme(const Capabilities& declared, bool dot)
      : planes_(!dot || declared.precision == DotPrecision::kF32 ? 0
                : declared.precision == DotPrecision::kBf16      ? 1
                : declared.precision == DotPrecision::kBf16x3    ? 2
                                                                 : 3),
        cut_(declared.split == DotSplit::kTruncated) {}

  int planes() const { return std::max(planes_, 1); }

  // Splits x into `planes()` numbers, `step` elements apart. If planes are bf16, call it with FTZ
  // and DAZ set.
  void split(float x, float* to, int64_t step) const {
    if (planes_ == 0) {
      *to = x;
      return;
    }
    for (int p = 0; p < planes_; ++p) {
      const bool cut = cut_ && p + 1 < planes_;
      const float part = bf16_to_f32(cut ? bf16_truncate(flush(x)) : bf16_round_flush(x));
      to[p * step] = part;
      x = x - part;
    }
  }

  // Adds the passes, where sum(i, j) is the dot of plane i of a with plane j of b: the small
  // products first, then the product of the two leading planes.
  template <typename T, typename Sum>
  T total(bool reversed, Sum sum) const {
    static constexpr int kSmall[2][5][2] = {{{1, 0}, {0, 1}},
                                            {{1, 1}, {2, 0}, {0, 2}, {1, 0}, {0, 1}}};
    if (planes_ < 2) return sum(0, 0);
    const int count = planes_ == 2 ? 2 : 5;
    const auto* pairs = kSmall[planes_ - 2];
    const auto pair = [&](int i) { return pairs[reversed ? count - 1 - i : i]; };
    T rest = sum(pair(0)[0], pair(0)[1]);
    for (int i = 1; i < count; ++i) rest = add(rest, sum(pair(i)[0], pair(i)[1]));
    return add(numbers_only(rest), sum(0, 0));
  }

 private:
  // NaN becomes 0: the lower parts of an infinite operand are NaN.
  static float numbers_only(float x) { return x != x ? 0.0f : x; }
  static Lanes numbers_only(Lanes x) {
    for (__m256& v : x.v) v = _mm256_and_ps(v, _mm256_cmp_ps(v, v, _CMP_ORD_Q));
    return x;
  }

  int planes_;
  bool cut_;
};

const Order& order_of(const Variant& v, const Op& op) {
  switch (op.kind) {
    case OpKind::kDotGeneral:
      if (op.attrs.batch_dims > 0 || op.attrs.lhs_contract != 0 || op.attrs.rhs_contract != 0)
        return v.dot;
      return v.kernel_gradient;
    case OpKind::kConvolutionKernelGrad:
      return v.kernel_gradient;
    case OpKind::kReduce:
      return v.reduction;
    case OpKind::kAllReduce:
      return v.collective;
    default:
      return v.convolution;
  }
}

// 32 sums of products. `right` holds 32 numbers per term; `left` too, or one per term if kSpread.
// Planes follow each other. `swapped`: left holds operand b, right operand a.
template <bool kSpread>
Lanes products(const Variant& v, const Order& order, const Scheme& scheme, int64_t k,
               const float* left, const float* right, bool swapped) {
  const int64_t left_plane = kSpread ? k : k * kLanes, right_plane = k * kLanes;
  return scheme.total<Lanes>(v.passes_reversed, [&](int i, int j) {
    if (swapped) std::swap(i, j);
    const float *x = left + i * left_plane, *y = right + j * right_plane;
    if (order.fused) return sum_in_order<Lanes>(order, k, Products<Lanes, true, kSpread>{x, y});
    return sum_in_order<Lanes>(order, k, Products<Lanes, false, kSpread>{x, y});
  });
}

float finished(const Op& op, float sum, int64_t terms) {
  return is_mean(op) ? sum / static_cast<float>(terms) : sum;
}

// ---- a whole contraction

struct Job {
  const Variant& v;
  const Op& op;
  const Contraction& c;
  const Scheme scheme;
  const Order& order;
  const Tensor *a, *b;  // a == nullptr: all ones
  Tensor& output;
  bool flush;
};

float operand(const Tensor* t, const Side& side, int64_t part, int64_t row, int64_t k) {
  if (t == nullptr) return 1.0f;
  const int64_t at = side.at(part, row, k);
  return at < 0 ? 0.0f : number(*t, at);
}

// Gathers one operand's factors, of several rows at one term or of all terms of one row. Indices
// are computed eight at a time: otherwise packing would cost more than the sums.
class Factors {
 public:
  Factors(const Tensor* t, const Side& side) : t_(t), side_(side) {
    constexpr int64_t kMax = int64_t{1} << 31;
    by_eight_ = t != nullptr && t->dtype() == DType::kF32 && side.stride_y == 1 &&
                side.stride_x == 1 && t->elements() < kMax;
    if (!by_eight_) return;
    image_ = side.pixel > 0;
    rows_ = indices(side.rows);
    terms_ = indices(side.terms);
  }
  // The factors of `count` rows at term k.
  void of_rows(int64_t part, int64_t row, int64_t count, int64_t k, float* to) const {
    along(rows_, row, count, terms_, k, part, to,
          [&](int64_t i) { return operand(t_, side_, part, i, k); });
  }
  // The factors of the first `count` terms of a row.
  void of_terms(int64_t part, int64_t row, int64_t count, float* to) const {
    along(terms_, 0, count, rows_, row, part, to,
          [&](int64_t i) { return operand(t_, side_, part, row, i); });
  }

 private:
  // Places as flat indices, and the pixel coordinates with which to test for the border of an
  // image.
  struct Indices {
    std::vector<int32_t> at, y, x;
  };
  Indices indices(const std::vector<Side::Place>& places) const {
    Indices out;
    for (const Side::Place& p : places) {
      out.at.push_back(static_cast<int32_t>(p.offset + (p.y * side_.width + p.x) * side_.pixel));
      out.y.push_back(static_cast<int32_t>(p.y));
      out.x.push_back(static_cast<int32_t>(p.x));
    }
    return out;
  }
  template <typename OneByOne>
  void along(const Indices& several, int64_t from, int64_t count, const Indices& other,
             int64_t fixed, int64_t part, float* to, OneByOne one_by_one) const {
    int64_t i = 0;
    if (by_eight_) {
      const auto f = static_cast<size_t>(fixed);
      const float* data = t_->as<float>().data();
      const __m256i at = _mm256_set1_epi32(other.at[f] + static_cast<int32_t>(part * side_.part));
      const __m256i y = _mm256_set1_epi32(other.y[f]), x = _mm256_set1_epi32(other.x[f]);
      const __m256i before = _mm256_set1_epi32(-1),
                    height = _mm256_set1_epi32(static_cast<int32_t>(side_.height)),
                    width = _mm256_set1_epi32(static_cast<int32_t>(side_.width));
      for (; i + 8 <= count; i += 8) {
        const auto load = [&](const std::vector<int32_t>& v) {
          return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v.data() + from + i));
        };
        const __m256i index = _mm256_add_epi32(load(several.at), at);
        if (!image_) {
          _mm256_storeu_ps(to + i, _mm256_i32gather_ps(data, index, 4));
          continue;
        }
        const __m256i row = _mm256_add_epi32(load(several.y), y),
                      column = _mm256_add_epi32(load(several.x), x);
        const auto inside = [&](__m256i v, __m256i size) {
          return _mm256_and_si256(_mm256_cmpgt_epi32(v, before), _mm256_cmpgt_epi32(size, v));
        };
        const __m256 mask =
            _mm256_castsi256_ps(_mm256_and_si256(inside(row, height), inside(column, width)));
        _mm256_storeu_ps(to + i,
                         _mm256_mask_i32gather_ps(_mm256_setzero_ps(), data, index, mask, 4));
      }
    }
    for (; i < count; ++i) to[i] = one_by_one(from + i);
  }

  const Tensor* t_;
  const Side& side_;
  Indices rows_, terms_;
  bool by_eight_ = false, image_ = false;
};

void contract(const Job& job) {
  const Contraction& c = job.c;
  // The lanes run along the longer side of the result.
  const bool swapped = c.m > c.n;
  const Side &narrow = swapped ? c.b : c.a, &wide = swapped ? c.a : c.b;
  const Tensor *narrow_values = swapped ? job.b : job.a, *wide_values = swapped ? job.a : job.b;
  const int64_t rows = std::min(c.m, c.n), columns = std::max(c.m, c.n);
  const auto planes = static_cast<int64_t>(job.scheme.planes());
  Floats left(static_cast<size_t>(rows * planes * c.k));
  Floats right(static_cast<size_t>(planes * c.k * kLanes));
  Floats factors(static_cast<size_t>(std::max<int64_t>(c.k, kLanes)));
  const Factors narrow_factors(narrow_values, narrow), wide_factors(wide_values, wide);
  for (int64_t p = 0; p < c.parts; ++p) {
    for (int64_t row = 0; row < rows; ++row) {
      float* to = left.data() + row * planes * c.k;
      narrow_factors.of_terms(p, row, c.k, factors.data());
      for (int64_t k = 0; k < c.k; ++k)
        job.scheme.split(factors[static_cast<size_t>(k)], to + k, c.k);
    }
    for (int64_t from = 0; from < columns; from += kLanes) {
      const int64_t lanes = std::min<int64_t>(kLanes, columns - from);
      for (int64_t k = 0; k < c.k; ++k) {
        float* to = right.data() + k * kLanes;
        wide_factors.of_rows(p, from, lanes, k, factors.data());
        for (int64_t l = 0; l < lanes; ++l)
          job.scheme.split(factors[static_cast<size_t>(l)], to + l, c.k * kLanes);
      }
      for (int64_t row = 0; row < rows; ++row) {
        const Lanes sums = products<true>(job.v, job.order, job.scheme, c.k,
                                          left.data() + row * planes * c.k, right.data(), swapped);
        float each[kLanes];
        for (int i = 0; i < 4; ++i) _mm256_storeu_ps(each + 8 * i, sums.v[i]);
        for (int64_t l = 0; l < lanes; ++l) {
          const int64_t i = swapped ? from + l : row, j = swapped ? row : from + l;
          set_number(job.output, c.result(p, i, j), finished(job.op, each[l], c.k), job.flush);
        }
      }
    }
  }
}

// ---- the all-reduce

// The contributions to element e in the order of its chunk: with a ring, each chunk starts one core
// later than the one before.
void contributions(const Variant& v, std::span<const Tensor> inputs, int64_t e, float* to,
                   int64_t step) {
  const auto n = static_cast<int64_t>(inputs.size());
  int64_t start = 0;
  if (v.ring >= 0) {
    const int64_t length = inputs[0].elements();
    int64_t chunk = e * n / std::max<int64_t>(length, 1);
    while (chunk + 1 < n && e >= (chunk + 1) * length / n) ++chunk;
    start = chunk + 1 + v.ring;
  }
  for (int64_t k = 0; k < n; ++k)
    to[k * step] = number(inputs[static_cast<size_t>((start + k) % n)], e);
}

void all_reduce(const Variant& v, std::span<const Tensor> inputs, Tensor& output) {
  const auto n = static_cast<int64_t>(inputs.size());
  const Floats ones(static_cast<size_t>(n), 1.0f);
  Floats terms(static_cast<size_t>(n * kLanes));
  for (int64_t from = 0; from < output.elements(); from += kLanes) {
    const int64_t lanes = std::min<int64_t>(kLanes, output.elements() - from);
    for (int64_t l = 0; l < lanes; ++l)
      contributions(v, inputs, from + l, terms.data() + l, kLanes);
    const Lanes sums = sum_in_order<Lanes>(v.collective, n,
                                           Products<Lanes, true, true>{ones.data(), terms.data()});
    float each[kLanes];
    for (int i = 0; i < 4; ++i) _mm256_storeu_ps(each + 8 * i, sums.v[i]);
    for (int64_t l = 0; l < lanes; ++l) set_number(output, from + l, each[l], v.declared.flush);
  }
}

bool is_dot(const Op& op) { return class_of(op.kind) == OpClass::kDot; }

// bf16 dots always flush, as a matrix unit does, even if the rest of the engine keeps denormals.
bool flushes(const Capabilities& declared, const Op& op) {
  return declared.flush || (is_dot(op) && declared.precision != DotPrecision::kF32);
}

}  // namespace

bool is_grid_sum(const Op& op) {
  return is_dot(op) || op.kind == OpKind::kReduce || op.kind == OpKind::kAllReduce;
}

void grid_sums(const Variant& variant, const Op& op, std::span<const Tensor> inputs,
               Tensor& output) {
  const FlushScope scope(flushes(variant.declared, op));
  if (op.kind == OpKind::kAllReduce) return all_reduce(variant, inputs, output);
  const Contraction c = contraction_of(op, inputs);
  const bool dot = is_dot(op);
  contract({variant, op, c, Scheme(variant.declared, dot), order_of(variant, op),
            dot ? &inputs[0] : nullptr, &inputs[dot ? 1 : 0], output,
            flushes(variant.declared, op)});
}

std::vector<std::vector<float>> grid_sum_elements(std::span<const Variant> variants, const Op& op,
                                                  std::span<const Tensor> inputs,
                                                  std::span<const int64_t> elements,
                                                  ThreadPool* pool) {
  std::vector<Floats> results(variants.size(), Floats(elements.size()));
  if (variants.empty()) return results;
  const bool collective = op.kind == OpKind::kAllReduce, dot = is_dot(op);
  const Scheme scheme(variants[0].declared, dot);
  const Contraction c = collective ? Contraction{} : contraction_of(op, inputs);
  const int64_t k = collective ? static_cast<int64_t>(inputs.size()) : c.k;
  const auto size = static_cast<size_t>(scheme.planes() * k * kLanes);
  const Factors a(dot ? &inputs[0] : nullptr, c.a);
  const Factors b(collective ? nullptr : &inputs[dot ? 1 : 0], c.b);
  const auto of_lanes = [&](size_t from, Floats& left, Floats& right, Floats& factors,
                            Tensor& one) {
    const size_t lanes = std::min<size_t>(kLanes, elements.size() - from);
    for (size_t l = 0; l < lanes && !collective; ++l) {
      // Recover (part, row, column) from the flat index. Parts may interleave with rows, so divide
      // by the larger step first.
      int64_t e = elements[from + l], part = 0, row = 0;
      if (c.part_step >= c.row_step)
        part = c.parts > 1 ? e / c.part_step : 0, e -= part * c.part_step;
      if (c.row_step > 0) row = e / c.row_step, e -= row * c.row_step;
      if (c.part_step < c.row_step) part = e / c.part_step, e -= part * c.part_step;
      const auto gather = [&](const Factors& of, int64_t at, Floats& to) {
        of.of_terms(part, at, k, factors.data());
        for (int64_t q = 0; q < k; ++q)
          scheme.split(factors[static_cast<size_t>(q)],
                       to.data() + q * kLanes + static_cast<int64_t>(l), k * kLanes);
      };
      gather(a, row, left);
      gather(b, e, right);
    }
    for (size_t i = 0; i < variants.size(); ++i) {
      const Variant& v = variants[i];
      for (size_t l = 0; l < lanes && collective; ++l) {
        contributions(v, inputs, elements[from + l], right.data() + l, kLanes);
        for (int64_t q = 0; q < k; ++q) left[static_cast<size_t>(q) * kLanes + l] = 1.0f;
      }
      const Lanes sums =
          products<false>(v, order_of(v, op), scheme, k, left.data(), right.data(), false);
      float each[kLanes];
      for (int r = 0; r < 4; ++r) _mm256_storeu_ps(each + 8 * r, sums.v[r]);
      for (size_t l = 0; l < lanes; ++l) {
        set_number(one, 0, finished(op, each[l], k), flushes(v.declared, op));
        results[i][from + l] = number(one, 0);
      }
    }
  };
  const size_t blocks = (elements.size() + kLanes - 1) / kLanes;
  const size_t pieces =
      pool == nullptr ? 1 : std::min(blocks, 4 * static_cast<size_t>(pool->threads()));
  in_pieces(pool, static_cast<int64_t>(pieces), [&](int64_t piece) {
    const FlushScope scope(flushes(variants[0].declared, op));
    Floats left(size), right(size), factors(static_cast<size_t>(k));
    Tensor one = Tensor::empty({op.type.dtype, {1}});
    const auto p = static_cast<size_t>(piece);
    for (size_t block = blocks * p / pieces; block < blocks * (p + 1) / pieces; ++block)
      of_lanes(block * kLanes, left, right, factors, one);
  });
  return results;
}

}  // namespace twinrun::variants

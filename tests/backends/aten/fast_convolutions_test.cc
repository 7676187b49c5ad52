// Tests of the bounds of convolutions by Winograd's and Fourier's algorithms: both are computed here in
// binary32, on images with empty borders too, where direct sums would give exact zeros.
#include "backends/aten/fast_convolutions.h"

#include <gtest/gtest.h>

#include <array>
#include <complex>
#include <map>
#include <random>

namespace twinrun::aten {
namespace {

using Matrix = std::vector<std::vector<float>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<float>(b[0].size(), 0));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b[0].size(); ++j)
      for (size_t k = 0; k < b.size(); ++k) out[i][j] += a[i][k] * b[k][j];
  return out;
}
Matrix transposed(const Matrix& a) {
  Matrix out(a[0].size(), std::vector<float>(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) out[j][i] = a[i][j];
  return out;
}

// The matrices of F(6x6, 3x3) as libraries have them.
const Matrix kInput = {
    {1, 0, -5.25F, 0, 5.25F, 0, -1, 0},        {0, 1, 1, -4.25F, -4.25F, 1, 1, 0},
    {0, -1, 1, 4.25F, -4.25F, -1, 1, 0},       {0, 0.5F, 0.25F, -2.5F, -1.25F, 2, 1, 0},
    {0, -0.5F, 0.25F, 2.5F, -1.25F, -2, 1, 0}, {0, 2, 4, -2.5F, -5, 0.5F, 1, 0},
    {0, -2, 4, 2.5F, -5, -0.5F, 1, 0},         {0, -1, 0, 5.25F, 0, -5.25F, 0, 1}};
const Matrix kKernel = {{1, 0, 0},
                        {-2 / 9.0F, -2 / 9.0F, -2 / 9.0F},
                        {-2 / 9.0F, 2 / 9.0F, -2 / 9.0F},
                        {1 / 90.0F, 1 / 45.0F, 2 / 45.0F},
                        {1 / 90.0F, -1 / 45.0F, 2 / 45.0F},
                        {32 / 45.0F, 16 / 45.0F, 8 / 45.0F},
                        {32 / 45.0F, -16 / 45.0F, 8 / 45.0F},
                        {0, 0, 1}};
const Matrix kOutput = {{1, 1, 1, 1, 1, 1, 1, 0},
                        {0, 1, -1, 2, -2, 0.5F, -0.5F, 0},
                        {0, 1, 1, 4, 4, 0.25F, 0.25F, 0},
                        {0, 1, -1, 8, -8, 0.125F, -0.125F, 0},
                        {0, 1, 1, 16, 16, 0.0625F, 0.0625F, 0},
                        {0, 1, -1, 32, -32, 0.03125F, -0.03125F, 1}};

struct Layer {
  int64_t samples, inputs, outputs, side, kernel, pad, stride;
  int64_t result() const { return (side + 2 * pad - kernel) / stride + 1; }
};
struct Case {
  Layer layer;
  Array x, w;
  double at(int64_t n, int64_t c, int64_t i, int64_t j) const {
    const int64_t s = layer.side;
    return i < 0 || j < 0 || i >= s || j >= s
               ? 0
               : x.value[static_cast<size_t>(((n * layer.inputs + c) * s + i) * s + j)];
  }
  double weight(int64_t o, int64_t c, int64_t i, int64_t j) const {
    return w
        .value[static_cast<size_t>(((o * layer.inputs + c) * layer.kernel + i) * layer.kernel + j)];
  }
  Dims dims() const { return {layer.samples, layer.outputs, layer.result(), layer.result()}; }
  FastLayer fast() const {
    return {{layer.kernel, layer.kernel}, {layer.pad, layer.pad}, {layer.stride, layer.stride}, 1};
  }
  double direct(int64_t n, int64_t o, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t c = 0; c < layer.inputs; ++c)
      for (int64_t k = 0; k < layer.kernel; ++k)
        for (int64_t l = 0; l < layer.kernel; ++l)
          sum += at(n, c, i * layer.stride - layer.pad + k, j * layer.stride - layer.pad + l) *
                 weight(o, c, k, l);
    return sum;
  }
};
Case made(const Layer& layer, bool border) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  Case c{layer, filled({layer.samples, layer.inputs, layer.side, layer.side}, 0),
         filled({layer.outputs, layer.inputs, layer.kernel, layer.kernel}, 0)};
  for (int64_t i = 0; i < c.x.size(); ++i) {
    const int64_t row = i / layer.side % layer.side, column = i % layer.side, edge = layer.side / 4;
    const bool inside = std::min(row, column) >= edge && std::max(row, column) < layer.side - edge;
    if (inside || !border) c.x.value[static_cast<size_t>(i)] = static_cast<float>(normal(random));
  }
  for (double& v : c.w.value) v = static_cast<float>(normal(random));
  return c;
}

// The 6 x 6 outputs of the tile whose first one is (top, left).
Matrix winograd(const Case& c, int64_t n, int64_t o, int64_t top, int64_t left) {
  Matrix sum(8, std::vector<float>(8, 0));
  for (int64_t ch = 0; ch < c.layer.inputs; ++ch) {
    Matrix d(8, std::vector<float>(8)), g(3, std::vector<float>(3));
    for (int64_t i = 0; i < 8; ++i)
      for (int64_t j = 0; j < 8; ++j)
        d[static_cast<size_t>(i)][static_cast<size_t>(j)] =
            static_cast<float>(c.at(n, ch, top - c.layer.pad + i, left - c.layer.pad + j));
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 3; ++j)
        g[static_cast<size_t>(i)][static_cast<size_t>(j)] =
            static_cast<float>(c.weight(o, ch, i, j));
    const Matrix dt = product(product(kInput, d), transposed(kInput));
    const Matrix gt = product(product(kKernel, g), transposed(kKernel));
    for (size_t i = 0; i < 8; ++i)
      for (size_t j = 0; j < 8; ++j) sum[i][j] += dt[i][j] * gt[i][j];
  }
  return product(product(kOutput, sum), transposed(kOutput));
}

// A transform in place, of a power of two, and of the rows and columns of a square.
using Complex = std::complex<float>;
void transform(std::vector<Complex>& x, size_t from, size_t step, size_t n, bool back) {
  std::vector<Complex> in(n), out(n);
  for (size_t i = 0; i < n; ++i) in[i] = x[from + i * step];
  for (size_t half = 1; half < n; half *= 2) {
    const size_t groups = n / (2 * half);
    for (size_t g = 0; g < groups; ++g) {
      for (size_t k = 0; k < half; ++k) {
        const double angle = (back ? 1 : -1) * 3.14159265358979323846 * static_cast<double>(k) /
                             static_cast<double>(half);
        const Complex w(static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle)));
        const Complex a = in[g * half + k], b = w * in[(g + groups) * half + k];
        out[2 * g * half + k] = a + b, out[2 * g * half + half + k] = a - b;
      }
    }
    std::swap(in, out);
  }
  for (size_t i = 0; i < n; ++i) x[from + i * step] = in[i];
}
void transform(std::vector<Complex>& x, size_t n, bool back) {
  for (size_t i = 0; i < n; ++i) transform(x, i * n, 1, n, back);
  for (size_t i = 0; i < n; ++i) transform(x, i, n, n, back);
}
// All outputs of one tile of `side`, whose first output is (top, left), in place of its elements.
std::vector<Complex> fourier(const Case& c, int64_t side, int64_t n, int64_t o, int64_t top,
                             int64_t left) {
  const auto s = static_cast<size_t>(side);
  std::vector<Complex> sum(s * s);
  for (int64_t ch = 0; ch < c.layer.inputs; ++ch) {
    std::vector<Complex> d(s * s), g(s * s);
    for (int64_t i = 0; i < side; ++i)
      for (int64_t j = 0; j < side; ++j)
        d[static_cast<size_t>(i * side + j)] =
            static_cast<float>(c.at(n, ch, top - c.layer.pad + i, left - c.layer.pad + j));
    for (int64_t i = 0; i < c.layer.kernel; ++i)
      for (int64_t j = 0; j < c.layer.kernel; ++j)
        g[static_cast<size_t>(i * side + j)] = static_cast<float>(c.weight(o, ch, i, j));
    transform(d, s, false), transform(g, s, false);
    for (size_t i = 0; i < d.size(); ++i) sum[i] += d[i] * std::conj(g[i]);
  }
  transform(sum, s, true);
  for (Complex& v : sum) v /= static_cast<float>(side * side);
  return sum;
}

// Tiles that were computed, by sample, output and place.
template <typename T>
struct Tiles {
  std::map<std::array<int64_t, 4>, T> kept;
  template <typename F>
  const T& at(const std::array<int64_t, 4>& key, F make) {
    const auto found = kept.find(key);
    return found != kept.end() ? found->second : kept.emplace(key, make()).first->second;
  }
};
struct Found {
  double worst = 0;     // error / bound
  double beyond = 0;    // the largest error where direct sums give zeros
  double coarsest = 0;  // bound / largest value
};
// `output` gives an output at stride 1.
template <typename F>
Found held(const Case& c, F output) {
  const Arithmetic m;
  const Array errors = nnpack_errors(m, c.x, c.w, c.fast(), c.dims());
  Found f;
  double largest = 0, bound = 0;
  int64_t at = 0;
  for (int64_t n = 0; n < c.layer.samples; ++n)
    for (int64_t o = 0; o < c.layer.outputs; ++o)
      for (int64_t i = 0; i < c.layer.result(); ++i)
        for (int64_t j = 0; j < c.layer.result(); ++j, ++at) {
          const double right = c.direct(n, o, i, j);
          const double error =
              std::fabs(output(n, o, i * c.layer.stride, j * c.layer.stride) - right);
          const double e = errors.value[static_cast<size_t>(at)];
          largest = std::fmax(largest, std::fabs(right)), bound = std::fmax(bound, e);
          if (error > 0) f.worst = std::fmax(f.worst, error / e);
          if (right == 0) f.beyond = std::fmax(f.beyond, error);
        }
  f.coarsest = bound / largest;
  return f;
}

TEST(FastConvolutions, WinogradIsInsideItsBound) {
  for (const bool border : {false, true}) {
    for (const Layer& layer :
         {Layer{2, 1, 2, 28, 3, 1, 1}, Layer{1, 8, 3, 13, 3, 0, 1}, Layer{1, 4, 2, 17, 3, 2, 2}}) {
      const Case c = made(layer, border);
      Tiles<Matrix> tiles;
      const Found f = held(c, [&](int64_t n, int64_t o, int64_t y, int64_t z) {
        const Matrix& tile = tiles.at({n, o, y / 6 * 6, z / 6 * 6},
                                      [&] { return winograd(c, n, o, y / 6 * 6, z / 6 * 6); });
        return tile[static_cast<size_t>(y % 6)][static_cast<size_t>(z % 6)];
      });
      EXPECT_LE(f.worst, 1);
      EXPECT_GT(f.worst, 1e-3);
      EXPECT_LT(f.coarsest, 1e-2);
      if (border && layer.stride == 1) {
        EXPECT_GT(f.beyond, 0);
      }
    }
  }
}
TEST(FastConvolutions, FourierIsInsideItsBound) {
  for (const bool border : {false, true}) {
    for (const Layer& layer :
         {Layer{1, 2, 2, 20, 5, 2, 1}, Layer{1, 3, 1, 20, 1, 0, 1}, Layer{1, 2, 1, 24, 9, 4, 1}}) {
      const Case c = made(layer, border);
      const int64_t side = layer.kernel > 8 ? 16 : 8, step = side - layer.kernel + 1;
      Tiles<std::vector<Complex>> tiles;
      const Found f = held(c, [&](int64_t n, int64_t o, int64_t y, int64_t z) {
        const auto& tile = tiles.at({n, o, y / step, z / step}, [&] {
          return fourier(c, side, n, o, y / step * step, z / step * step);
        });
        return static_cast<double>(tile[static_cast<size_t>(y % step * side + z % step)].real());
      });
      EXPECT_LE(f.worst, 1);
      EXPECT_GT(f.worst, 1e-3);
      EXPECT_LT(f.coarsest, 1e-2);
    }
  }
}
TEST(FastConvolutions, AWholeSampleIsATile) {
  const Case c = made({2, 2, 2, 12, 3, 0, 1}, true);
  const Arithmetic m;
  const Array errors = whole_sample_errors(m, c.x, c.w, 1);
  ASSERT_EQ(errors.dims, (Dims{2, 2}));
  double worst = 0;
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t o = 0; o < 2; ++o) {
      const auto tile = fourier(c, 16, n, o, 0, 0);
      for (int64_t i = 0; i < 10; ++i)
        for (int64_t j = 0; j < 10; ++j)
          worst = std::fmax(worst, std::fabs(tile[static_cast<size_t>(i * 16 + j)].real() -
                                             c.direct(n, o, i, j)) /
                                       errors.value[static_cast<size_t>(n * 2 + o)]);
    }
  }
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 1e-3);
}
TEST(FastConvolutions, WhatIsNotFiniteHasNoBound) {
  Case c = made({1, 1, 1, 8, 3, 1, 1}, false);
  c.x.value[0] = kInfinity;
  const Array errors = nnpack_errors(Arithmetic(), c.x, c.w, c.fast(), c.dims());
  for (const double e : errors.value) EXPECT_TRUE(e == kInfinity || e < 1);
  EXPECT_EQ(errors.value[0], kInfinity);
}

}  // namespace
}  // namespace twinrun::aten

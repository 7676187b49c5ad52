// Tests the convolution and its two gradients bit for bit against seven nested loops.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/backends/kernels_naive.h"

namespace twinrun::kernels_convolution_test {
namespace {

using namespace naive;

struct Case {
  int64_t n, h, w, ci, kh, kw, co;
  Window window;
};

Window window(int64_t kh, int64_t kw, int64_t stride, int64_t low, int64_t high, int64_t dilation) {
  return {{kh, kw}, {stride, stride}, {low, low}, {high, high}, {dilation, dilation}};
}

const Case kCases[] = {
    {2, 7, 7, 3, 3, 3, 5, window(3, 3, 1, 1, 1, 1)},
    {1, 9, 8, 1, 5, 5, 33, window(5, 5, 1, 2, 2, 1)},
    {2, 9, 9, 16, 3, 3, 17, window(3, 3, 2, 0, 1, 1)},
    {3, 6, 5, 4, 1, 1, 40, window(1, 1, 1, 0, 0, 1)},
    {2, 8, 9, 5, 1, 1, 7, window(1, 1, 2, 0, 0, 1)},
    {1, 11, 10, 3, 3, 2, 4, window(3, 2, 1, 2, 2, 2)},
    {1, 12, 12, 2, 3, 3, 3, window(3, 3, 3, 1, 0, 2)},
    {2, 5, 5, 35, 3, 3, 6, window(3, 3, 1, 0, 0, 1)},
    {1, 4, 4, 2, 4, 4, 3, window(4, 4, 5, 6, 6, 1)},
    {1, 16, 40, 3, 2, 3, 4, {{2, 3}, {1, 2}, {0, 1}, {1, 0}, {1, 1}}},
    {70, 8, 8, 1, 3, 3, 2, window(3, 3, 1, 1, 1, 1)},
    {1, 3, 3, 512, 2, 2, 3, window(2, 2, 1, 0, 1, 1)},
    // Strides for which the input gradient is computed phase by phase, in bf16 too (co in multiples
    // of 32).
    {2, 9, 8, 6, 3, 3, 32, window(3, 3, 2, 1, 1, 1)},
    {1, 13, 11, 20, 3, 3, 64, window(3, 3, 2, 0, 1, 1)},
    {2, 8, 8, 5, 1, 1, 32, window(1, 1, 2, 0, 0, 1)},
    {1, 10, 9, 3, 2, 5, 32, {{2, 5}, {3, 2}, {0, 2}, {1, 2}, {1, 1}}},
    {1, 7, 7, 4, 2, 2, 32, window(2, 2, 3, 0, 1, 1)},
    {2, 8, 6, 3, 7, 7, 32, window(7, 7, 2, 3, 3, 1)},
    // Images wide and deep enough for the kernels to skip the padding on all sides, in the gradient
    // of a window without padding, too.
    {2, 4, 12, 32, 3, 5, 5, {{3, 5}, {1, 1}, {1, 2}, {1, 2}, {1, 1}}},
    {1, 3, 11, 3, 2, 3, 32, window(2, 3, 1, 0, 0, 1)},
    {1, 7, 12, 32, 3, 3, 4, window(3, 3, 1, 2, 2, 2)},
    {1, 5, 16, 32, 2, 5, 3, {{2, 5}, {1, 1}, {0, 3}, {1, 1}, {1, 1}}},
    {1, 6, 19, 32, 3, 3, 3, window(3, 3, 2, 1, 1, 1)},
    {2, 20, 10, 3, 3, 3, 32, window(3, 3, 1, 1, 1, 1)},
};

struct Tensors {
  Dims x, w, y;
  explicit Tensors(const Case& c)
      : x{c.n, c.h, c.w, c.ci},
        w{c.kh, c.kw, c.ci, c.co},
        y{c.n, c.window.out(c.h, 0), c.window.out(c.w, 1), c.co} {}
};

float at(const Tensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  const Dims& s = t.dims();
  return t.as<float>()[static_cast<size_t>(((a * s[1] + b) * s[2] + c) * s[3] + d)];
}
// An element of an image; +0 outside of it.
float inside(const Tensor& t, int64_t n, int64_t y, int64_t x, int64_t c) {
  return y < 0 || x < 0 || y >= t.dims()[1] || x >= t.dims()[2] ? 0.0f : at(t, n, y, x, c);
}

template <typename F>
Tensor each(const Dims& dims, F&& f) {
  Tensor out = Tensor::empty({DType::kF32, dims});
  size_t i = 0;
  for (int64_t a = 0; a < dims[0]; ++a)
    for (int64_t b = 0; b < dims[1]; ++b)
      for (int64_t c = 0; c < dims[2]; ++c)
        for (int64_t d = 0; d < dims[3]; ++d) out.as<float>()[i++] = f(a, b, c, d);
  return out;
}

Tensor expected(OpKind kind, const Case& c, const Tensor& p, const Tensor& q,
                const Arithmetic& arithmetic) {
  const Window& v = c.window;
  const Tensors t(c);
  const int64_t oh = t.y[1], ow = t.y[2];
  const auto sum = [&](auto&& a, auto&& b, int64_t k, int64_t segment) {
    return dot(arithmetic.dot, a, b, k, segment, arithmetic.flush);
  };
  if (kind == OpKind::kConvolution) {
    const int64_t k = c.kh * c.kw * c.ci;
    return each(t.y, [&](int64_t n, int64_t y, int64_t x, int64_t o) {
      return sum(
          [&](int64_t i) {
            const int64_t r = i / c.ci / c.kw, s = i / c.ci % c.kw;
            return inside(p, n, y * v.stride[0] + r * v.dilation[0] - v.pad_low[0],
                          x * v.stride[1] + s * v.dilation[1] - v.pad_low[1], i % c.ci);
          },
          [&](int64_t i) { return q.as<float>()[static_cast<size_t>(i * c.co + o)]; }, k, k);
    });
  }
  if (kind == OpKind::kConvolutionInputGrad) {
    const int64_t k = c.kh * c.kw * c.co;
    return each(t.x, [&](int64_t n, int64_t y, int64_t x, int64_t m) {
      return sum(
          [&](int64_t i) {
            const int64_t r = i / c.co / c.kw, s = i / c.co % c.kw;
            const int64_t a = y + v.pad_low[0] - r * v.dilation[0],
                          b = x + v.pad_low[1] - s * v.dilation[1];
            if (a < 0 || b < 0 || a % v.stride[0] != 0 || b % v.stride[1] != 0) return 0.0f;
            return inside(p, n, a / v.stride[0], b / v.stride[1], i % c.co);
          },
          [&](int64_t i) { return at(q, i / c.co / c.kw, i / c.co % c.kw, m, i % c.co); }, k, k);
    });
  }
  return each(t.w, [&](int64_t r, int64_t s, int64_t m, int64_t o) {
    return sum(
        [&](int64_t i) {
          return inside(p, i / ow / oh,
                        i / ow % oh * v.stride[0] + r * v.dilation[0] - v.pad_low[0],
                        i % ow * v.stride[1] + s * v.dilation[1] - v.pad_low[1], m);
        },
        [&](int64_t i) { return q.as<float>()[static_cast<size_t>(i * c.co + o)]; }, c.n * oh * ow,
        4096);
  });
}

void check(const Case& c, const Tensor& x, const Tensor& w, const Tensor& dy,
           const Arithmetic& arithmetic, const std::string& what) {
  const Tensors t(c);
  for (OpKind kind :
       {OpKind::kConvolution, OpKind::kConvolutionInputGrad, OpKind::kConvolutionKernelGrad}) {
    const Tensor& p = kind == OpKind::kConvolutionInputGrad ? dy : x;
    const Tensor& q = kind == OpKind::kConvolutionKernelGrad ? dy : w;
    Op op;
    op.kind = kind;
    op.attrs.window = c.window;
    op.type = {DType::kF32, kind == OpKind::kConvolution            ? t.y
                            : kind == OpKind::kConvolutionInputGrad ? t.x
                                                                    : t.w};
    op.attrs.shape = op.type.dims;
    const Tensor want = expected(kind, c, p, q, arithmetic);
    for (Isa isa : isas(arithmetic.dot)) {
      const IsaScope scope(isa);
      ThreadPool pool(2);
      const Tensor got = run({&pool, arithmetic}, op, {p, q});
      const int64_t i = first_difference(want, got);
      ASSERT_EQ(i, -1) << to_string(isa) << " case "
                       << (&c >= kCases && &c < std::end(kCases) ? &c - kCases : -1) << " kind "
                       << static_cast<int>(kind) << " data " << what << ": want "
                       << want.as<float>()[static_cast<size_t>(i)] << " got "
                       << got.as<float>()[static_cast<size_t>(i)];
    }
  }
}

void check(const Case& c, Data data, const Arithmetic& arithmetic) {
  const Tensors t(c);
  check(c, tensor(t.x, data, 1), tensor(t.w, data, 2), tensor(t.y, data, 3), arithmetic,
        std::to_string(static_cast<int>(data)));
}

TEST(Convolution, F32) {
  for (const Case& c : kCases) {
    check(c, Data::kUniform, {});
    check(c, Data::kSmall, {});
    check(c, Data::kSpecial, {});
  }
}

// Products that round to -0: whether the zeros of padding and between strides turn a sum into +0
// depends on every one of them.
TEST(Convolution, NegativeZeros) {
  const float values[] = {1e-25f, -1e-25f, 0.0f, -0.0f, 1.0f, -1.0f};
  const auto of = [&](const Dims& dims, size_t kinds, uint32_t seed) {
    std::mt19937 random(seed);
    Tensor t = Tensor::empty({DType::kF32, dims});
    for (float& x : t.as<float>()) x = values[random() % kinds];
    return t;
  };
  for (const Case& c : kCases) {
    const Tensors t(c);
    for (const size_t kinds : {2u, 6u}) {
      for (const Arithmetic& arithmetic :
           {Arithmetic{}, Arithmetic{.flush = true},
            Arithmetic{.dot = DotArithmetic::kBf16, .flush = true}}) {
        check(c, of(t.x, kinds, 1), of(t.w, kinds, 2), of(t.y, kinds, 3), arithmetic,
              "zeros " + std::to_string(kinds));
      }
    }
  }
}

TEST(Convolution, F32Flushing) {
  for (const Case& c : kCases) check(c, Data::kSmall, {.flush = true});
}

TEST(Convolution, Bf16) {
  for (const Case& c : kCases) {
    check(c, Data::kUniform, {.dot = DotArithmetic::kBf16, .flush = true});
    check(c, Data::kSpecial, {.dot = DotArithmetic::kBf16, .flush = true, .poison = true});
    check(c, Data::kSmall, {.dot = DotArithmetic::kBf16});
  }
}

TEST(Convolution, Splittings) {
  for (const Case& c : {kCases[0], kCases[5], kCases[12], kCases[15]}) {
    check(c, Data::kSpecial, {.dot = DotArithmetic::kBf16x3, .flush = true});
    check(c, Data::kUniform, {.dot = DotArithmetic::kBf16x6, .flush = true});
  }
}

// The result and the input gradient of an image do not depend on the number of images in the batch.
TEST(Convolution, AnImageHasTheSameBitsInAnyBatch) {
  for (const int64_t stride : {1, 2}) {
    const Case whole{128, 9, 8, 5, 3, 3, 32, window(3, 3, stride, 1, 1, 1)};
    const Tensors all(whole);
    const Tensor x = tensor(all.x, Data::kUniform, 1), w = tensor(all.w, Data::kUniform, 2),
                 dy = tensor(all.y, Data::kUniform, 3);
    for (DotArithmetic dot : {DotArithmetic::kF32, DotArithmetic::kBf16, DotArithmetic::kBf16x3}) {
      ThreadPool pool(2);
      const KernelContext context{&pool, {.dot = dot, .flush = dot != DotArithmetic::kF32}};
      const auto of = [&](OpKind kind, int64_t batch, int64_t first) {
        Op op;
        op.kind = kind;
        op.type = {DType::kF32, kind == OpKind::kConvolution ? all.y : all.x};
        op.type.dims[0] = batch;
        op.attrs.shape = op.type.dims;
        op.attrs.window = whole.window;
        const Tensor& in = kind == OpKind::kConvolution ? x : dy;
        return run(context, op, {in.rows(first, first + batch), w});
      };
      for (OpKind kind : {OpKind::kConvolution, OpKind::kConvolutionInputGrad}) {
        const Tensor together = of(kind, 128, 0);
        for (int64_t batch : {1, 7}) {
          for (int64_t first : {int64_t{0}, int64_t{50}, 128 - batch}) {
            EXPECT_EQ(first_difference(of(kind, batch, first), together.rows(first, first + batch)),
                      -1)
                << name_of(kind) << " stride " << stride << " batch " << batch << " from " << first;
          }
        }
      }
    }
  }
}

TEST(Convolution, PoisonIsNeverSeen) {
  for (const Case& c : kCases) check(c, Data::kUniform, {.poison = true});
}

}  // namespace
}  // namespace twinrun::kernels_convolution_test

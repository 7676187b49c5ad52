// Winograd's bound is the running error of the three transforms (Barabasz, Anderson, Soodhalter and
// Gregg, Error analysis and improving the accuracy of Winograd convolution for deep neural networks,
// 2020, theorem 1), at the transformed operands themselves. Fourier's is relative to the norms of
// the tile and of the kernel (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
// theorem 24.2).
#include "backends/aten/fast_convolutions.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace twinrun::aten {
namespace {

// result[rows, columns] = a[rows, inner] b[inner, columns], and the same of magnitudes.
oracle::Sums multiply(const Plane& a, const Plane& b, int64_t rows, int64_t inner, int64_t columns,
                      ThreadPool* pool, bool sizes = false) {
  oracle::pin_blocking();
  oracle::Product product;
  product.m = rows, product.n = columns, product.k = inner;
  oracle::Operand left, right;
  left.parts.push_back(a), right.parts.push_back(b);
  return oracle::evaluate(product, left, right, pool, sizes);
}

// The matrices of F(m, r) on the points p and infinity, by Toom and Cook: m outputs of a kernel of r
// from a tile of m + r - 1. Rows may be scaled against each other, which changes no bound.
class Winograd {
 public:
  Winograd(int64_t outputs, int64_t taps, const Checked<double>& points)
      : m(outputs), r(taps), n(outputs + taps - 1) {
    const auto whole = [&](int64_t skipped) {  // coefficients of the product of (x - p), from x^0
      Checked<double> c = {1};
      for (int64_t k = 0; k < n - 1; ++k) {
        if (k == skipped) continue;
        c.push_back(0);
        for (size_t i = c.size(); i-- > 0;)
          c[i] = (i > 0 ? c[i - 1] : 0) - points[static_cast<size_t>(k)] * c[i];
      }
      return c;
    };
    Checked<double> a(size(m * n)), g(size(n * r)), b(size(n * n));
    for (int64_t i = 0; i < n; ++i) {
      const bool infinite = i == n - 1;
      const Checked<double> c = whole(infinite ? -1 : i);
      std::copy(c.begin(), c.end(), b.begin() + i * n);
      const double p = infinite ? 0 : points[size(i)];
      double divisor = 1;
      for (int64_t k = 0; k < n - 1; ++k)
        if (!infinite && k != i) divisor *= p - points[size(k)];
      for (int64_t k = 0; k < m; ++k)
        a[size(k * n + i)] = infinite ? k == m - 1 : std::pow(p, static_cast<double>(k));
      for (int64_t k = 0; k < r; ++k)
        g[size(i * r + k)] = infinite ? k == r - 1 : std::pow(p, static_cast<double>(k)) / divisor;
    }
    input = twice(b, n, n), kernel = twice(g, n, r), output = twice(a, m, n);
    for (double& v : output) v = std::fabs(v);
  }
  const int64_t m, r, n;
  // In two dimensions, transposed: [n n, n n] and [r r, n n]; of magnitudes, [n n, m m].
  Plane input, kernel, output;

 private:
  static size_t size(int64_t i) { return static_cast<size_t>(i); }
  // A row for each pair of columns of t [rows, columns], a column for each pair of rows.
  static Plane twice(const Checked<double>& t, int64_t rows, int64_t columns) {
    Plane out(size(rows * rows * columns * columns));
    size_t at = 0;
    for (int64_t i = 0; i < columns; ++i)
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t k = 0; k < rows; ++k)
          for (int64_t l = 0; l < rows; ++l)
            out[at++] = t[size(k * columns + i)] * t[size(l * columns + j)];
    return out;
  }
};

// The outputs of a layer at stride 1, in tiles.
struct Tiles {
  int64_t side, step[2], outputs[2], across[2];
  Tiles(int64_t side, const FastLayer& layer, const Dims& result) : side(side) {
    for (int d = 0; d < 2; ++d) {
      step[d] = side - layer.kernel[d] + 1;
      outputs[d] = (result[static_cast<size_t>(d) + 2] - 1) * layer.stride[d] + 1;
      across[d] = (outputs[d] + step[d] - 1) / step[d];
    }
  }
  int64_t count() const { return across[0] * across[1]; }
};

// The inputs of the tiles of one sample, [tiles, channels, side, side]; zeros outside of the image.
Plane inputs_of(const Tiles& tiles, const FastLayer& layer, const Array& x, int64_t sample,
                int64_t first_channel, int64_t channels) {
  const int64_t h = x.dims[2], w = x.dims[3];
  Plane out(static_cast<size_t>(
      allowed_count({tiles.across[0], tiles.across[1], channels, tiles.side, tiles.side})));
  size_t at = 0;
  for (int64_t t = 0; t < tiles.count(); ++t) {
    const int64_t top = t / tiles.across[1] * tiles.step[0] - layer.pad[0];
    const int64_t left = t % tiles.across[1] * tiles.step[1] - layer.pad[1];
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t plane = (sample * x.dims[1] + first_channel + c) * h * w;
      for (int64_t i = top; i < top + tiles.side; ++i) {
        for (int64_t j = left; j < left + tiles.side; ++j) {
          const bool inside = i >= 0 && i < h && j >= 0 && j < w;
          const Estimate e = inside ? x.at(plane + i * w + j) : exactly(0);
          out[at++] = e.radius > 0 ? std::fabs(e.value) + e.radius : e.value;
        }
      }
    }
  }
  return out;
}

// One sample's group of channels: the errors of [tiles, outputs of the group, step, step].
struct Group {
  int64_t sample, first, inputs, first_output, outputs;
};

// Errors of the transforms of the tile, of the kernel and of the products, and of their products'
// sum, each relative to what it is added to: n + 1 roundings for n terms and the constant's own, in
// two dimensions one after the other.
Plane winograd_errors(const Arithmetic& m, const Winograd& f, const Tiles& tiles,
                      const FastLayer& layer, const Array& x, const Array& w, const Group& g) {
  const int64_t points = f.n * f.n, all = tiles.count();
  const auto roundings = [&](int64_t terms) {
    return oracle::gamma(2 * (static_cast<double>(terms) + 1), m.unit);
  };
  const oracle::Sums in = multiply(inputs_of(tiles, layer, x, g.sample, g.first, g.inputs), f.input,
                                   all * g.inputs, points, points, m.pool, true);
  Plane weights(static_cast<size_t>(g.outputs * g.inputs * f.r * f.r));
  for (size_t i = 0; i < weights.size(); ++i) {
    const Estimate e = w.at(g.first_output * g.inputs * f.r * f.r + static_cast<int64_t>(i));
    weights[i] = e.radius > 0 ? std::fabs(e.value) + e.radius : e.value;
  }
  const oracle::Sums kernel =
      multiply(weights, f.kernel, g.outputs * g.inputs, f.r * f.r, points, m.pool, true);
  const double products = m.of_sum(g.inputs) + m.unit + roundings(f.n);
  // Where an operand is known up to a radius, the sum of magnitudes stands for it.
  const auto size_of = [](const oracle::Sums& s, bool exact, size_t i) {
    return exact ? std::fabs(s.head[i]) : s.magnitude[i];
  };
  Plane sums(static_cast<size_t>(all * g.outputs * points));
  const auto at_point = [&](int64_t p) {
    Plane left(static_cast<size_t>(all * 2 * g.inputs)),
        right(static_cast<size_t>(2 * g.inputs * g.outputs));
    for (int64_t t = 0; t < all; ++t) {
      for (int64_t c = 0; c < g.inputs; ++c) {
        const auto from = static_cast<size_t>((t * g.inputs + c) * points + p);
        left[static_cast<size_t>(t * 2 * g.inputs + c)] = size_of(in, x.exact(), from);
        left[static_cast<size_t>(t * 2 * g.inputs + g.inputs + c)] = in.magnitude[from];
      }
    }
    for (int64_t o = 0; o < g.outputs; ++o) {
      for (int64_t c = 0; c < g.inputs; ++c) {
        const auto from = static_cast<size_t>((o * g.inputs + c) * points + p);
        const double size = size_of(kernel, w.exact(), from);
        right[static_cast<size_t>(c * g.outputs + o)] =
            products * size + roundings(f.r) * kernel.magnitude[from];
        right[static_cast<size_t>((g.inputs + c) * g.outputs + o)] = roundings(f.n) * size;
      }
    }
    const oracle::Sums s = multiply(left, right, all, 2 * g.inputs, g.outputs, nullptr);
    for (int64_t i = 0; i < all * g.outputs; ++i)
      sums[static_cast<size_t>(i * points + p)] = s.head[static_cast<size_t>(i)];
  };
  if (m.pool != nullptr) {
    m.pool->parallel_for(points, at_point);
  } else {
    for (int64_t p = 0; p < points; ++p) at_point(p);
  }
  return multiply(sums, f.output, all * g.outputs, points, f.m * f.m, m.pool).head;
}

// An FFT of s stages errs by 7 units a stage, relative to the norm (a complex product with a rounded
// factor, and an addition); one of real numbers has one stage more each way. Two transforms, their
// products, which are summed over n channels, and the transform back, where an element is a sum over
// the points.
double fourier_units(const Arithmetic& m, double points, int64_t n) {
  const double stages = std::log2(points) + 2;
  return 3 * 7 * stages * m.unit * 1.01 + m.of_sum(n) + 4 * m.unit;
}
// The norm of each of `rows` equal parts of x; at most that of `most` elements as large as the
// part's largest.
Plane norms(const Array& x, int64_t rows, double most = kInfinity) {
  Plane out(static_cast<size_t>(rows));
  const int64_t each = rows == 0 ? 0 : x.size() / rows;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, largest = 0;
    for (int64_t i = r * each; i < (r + 1) * each; ++i) {
      const Estimate e = x.at(i);
      const double size = std::fabs(e.value) + e.radius;
      sum += size * size, largest = std::fmax(largest, size);
    }
    if (largest > 0) sum = std::fmin(sum, most * largest * largest);
    out[static_cast<size_t>(r)] = std::sqrt(sum);
  }
  return out;
}
double sum_of_products(const Plane& a, int64_t from_a, int64_t step_a, const Plane& b,
                       int64_t from_b, int64_t step_b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum +=
        a[static_cast<size_t>(from_a + i * step_a)] * b[static_cast<size_t>(from_b + i * step_b)];
  return sum;
}

// Samples of more than 256 a side are cut into tiles of 32.
constexpr int64_t kLargestSide = 256;
constexpr double kTile = 32;
bool is_cut(const Array& x) {
  return std::ranges::any_of(x.dims.part(2), [](int64_t d) { return d > kLargestSide; });
}
// The elements of a tile at most.
double most_of(const Array& x) {
  return is_cut(x) ? std::pow(kTile, static_cast<double>(x.dims.size()) - 2) : kInfinity;
}
// The points of a sample's transform: the next power of two, with its padding.
double points_of(const Array& x) {
  double points = 1;
  for (size_t d = 2; d < x.dims.size(); ++d)
    points *= 2 * static_cast<double>(std::bit_ceil(
                      static_cast<uint64_t>(std::clamp<int64_t>(x.dims[d], 1, kLargestSide))));
  return points;
}

double known(double error) { return error < kInfinity ? error * 1.01 : kInfinity; }

}  // namespace

Array nnpack_errors(const Arithmetic& m, const Array& x, const Array& w, const FastLayer& layer,
                    const Dims& result) {
  static const Winograd six(6, 3, {0, 1, -1, 2, -2, 0.5, -0.5});
  Array out = filled(result, 0);
  if (out.size() == 0 || x.size() == 0 || w.size() == 0) return out;
  take_steps(kStepsOfOne * static_cast<double>(out.size()) * static_cast<double>(w.dims[1]));
  const int64_t inputs = w.dims[1], outputs = quotient(result[1], layer.groups);
  const Plane weights = norms(w, w.dims[0] * inputs);
  const auto keep = [&](const Tiles& tiles, const Group& g, auto error_of) {
    for (int64_t o = 0; o < g.outputs; ++o) {
      for (int64_t i = 0; i < result[2]; ++i) {
        for (int64_t j = 0; j < result[3]; ++j) {
          const int64_t y = i * layer.stride[0], z = j * layer.stride[1];
          const int64_t t = y / tiles.step[0] * tiles.across[1] + z / tiles.step[1];
          double& to = out.value[static_cast<size_t>(
              ((g.sample * result[1] + g.first_output + o) * result[2] + i) * result[3] + j)];
          const double e = known(error_of(t, o, y % tiles.step[0], z % tiles.step[1]));
          to = to < e || e != e ? e : to;
        }
      }
    }
  };
  for (int64_t n = 0; n < result[0]; ++n) {
    for (int64_t k = 0; k < layer.groups; ++k) {
      const Group g{n, k * inputs, inputs, k * outputs, outputs};
      if (layer.kernel[0] == 3 && layer.kernel[1] == 3) {
        const Tiles tiles(8, layer, result);
        const Plane errors = winograd_errors(m, six, tiles, layer, x, w, g);
        keep(tiles, g, [&](int64_t t, int64_t o, int64_t i, int64_t j) {
          return errors[static_cast<size_t>(((t * outputs + o) * six.m + i) * six.m + j)];
        });
      }
      for (const int64_t side : {8, 16}) {
        if (layer.kernel[0] > side || layer.kernel[1] > side) continue;
        const Tiles tiles(side, layer, result);
        const Array in{{tiles.count() * inputs, side * side},
                       inputs_of(tiles, layer, x, n, g.first, inputs),
                       {}};
        const Plane sizes = norms(in, tiles.count() * inputs);
        const double units = fourier_units(m, static_cast<double>(side * side), inputs);
        keep(tiles, g, [&](int64_t t, int64_t o, int64_t, int64_t) {
          return units * sum_of_products(sizes, t * inputs, 1, weights,
                                         (g.first_output + o) * inputs, 1, inputs);
        });
      }
    }
  }
  return out;
}

Array whole_sample_errors(const Arithmetic& m, const Array& x, const Array& w, int64_t groups) {
  const int64_t samples = x.dims[0], channels = x.dims[1], outputs = w.dims[0], inputs = w.dims[1];
  const double units = fourier_units(m, points_of(x), inputs);
  if (x.size() == 0 || w.size() == 0) return filled({samples, outputs}, 0);
  const Plane images = norms(x, samples * channels, most_of(x));
  const Plane weights = norms(w, outputs * inputs);
  Array out = filled({samples, outputs}, 0);
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t o = i % outputs, group = quotient(o, quotient(outputs, groups));
    out.value[static_cast<size_t>(i)] =
        known(units * sum_of_products(images, i / outputs * channels + group * inputs, 1, weights,
                                      o * inputs, 1, inputs));
  }
  return out;
}

Array whole_sample_errors_of_weights(const Arithmetic& m, const Array& x, const Array& dy,
                                     int64_t groups) {
  const int64_t samples = x.dims[0], channels = x.dims[1], outputs = dy.dims[1];
  const int64_t inputs = channels / groups;
  // Where samples are cut into tiles that overlap, no element is in more than two of each dimension.
  const double units = 2 * fourier_units(m, points_of(x), samples);
  if (x.size() == 0 || dy.size() == 0) return filled({outputs, inputs}, 0);
  const Plane images = norms(x, samples * channels), gradients = norms(dy, samples * outputs);
  Array out = filled({outputs, inputs}, 0);
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t o = i / inputs, group = quotient(o, quotient(outputs, groups));
    out.value[static_cast<size_t>(i)] =
        known(units * sum_of_products(images, group * inputs + i % inputs, channels, gradients, o,
                                      outputs, samples));
  }
  return out;
}

double fast_bias_error(const Arithmetic& m) { return fourier_units(m, 256, 1); }

}  // namespace twinrun::aten

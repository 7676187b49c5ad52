// Sampling of images at the points of a grid, and the grids of affine maps.
#include <algorithm>

#include "backends/aten/definitions.h"
#include "backends/aten/totals.h"

namespace twinrun::aten {
namespace {

void need_full_precision(Element e) {
  if (e != Element::kF32 && e != Element::kF64) throw Undefined("a grid of half precision");
}

constexpr int64_t kBilinear = 0, kNearest = 1, kZeros = 0, kBorder = 1;

// A coordinate of a grid in pixels: (x + 1) / 2 * (size - 1), or ((x + 1) * size - 1) / 2. Of the
// roundings, each is at most a unit of (|x| + 1) size / 2 + 1.
Estimate position_of(const Arithmetic& m, double x, int64_t size, bool corners, bool border) {
  const auto n = static_cast<double>(size);
  Estimate p{corners ? (x + 1) / 2 * (n - 1) : ((x + 1) * n - 1) / 2, 0};
  p.radius = 5 * m.unit * ((std::fabs(x) + 1) * n / 2 + 1);
  if (border) p.value = std::clamp(p.value, 0.0, std::fmax(n - 1, 0));  // brings points closer
  return p;
}

struct Tap {
  int64_t at = 0;
  Estimate weight;
};
using Taps = Checked<Tap>;
// The neighbours of a position, with those beyond them that it may reach by its radius. A weight is
// 1 - |position - neighbour|, which errs as the position does, and has one or two roundings.
Taps neighbours(const Arithmetic& m, Estimate p, int64_t size) {
  Taps taps;
  const auto first = as_integer(std::floor(p.value - p.radius));
  const auto last = as_integer(std::floor(p.value + p.radius)) + 1;
  for (int64_t i = first; i <= last; ++i) {
    const double weight = std::fmax(0, 1 - std::fabs(p.value - static_cast<double>(i)));
    if (i >= 0 && i < size) taps.push_back({i, {weight, p.radius + 2 * m.unit * weight}});
  }
  return taps;
}

Expected grid_sampler(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "input"), grid = a.array(1, "grid");
  need_full_precision(a.view(0).element);
  const int64_t mode = a.integer(2, "interpolation_mode", kBilinear);
  const int64_t padding = a.integer(3, "padding_mode", kZeros);
  const bool corners = a.flag(4, "align_corners", false);
  if (mode != kBilinear && mode != kNearest) throw Undefined("an interpolation by cubes");
  if (padding != kZeros && padding != kBorder) throw Undefined("a reflection at the border");
  if (x.dims.size() != 4 || grid.dims.size() != 4 || grid.dims[3] != 2 ||
      grid.dims[0] != x.dims[0]) {
    throw Undefined("an image or grid of another rank");
  }
  const int64_t channels = x.dims[1], h = x.dims[2], w = x.dims[3];
  const int64_t points = grid.dims[1] * grid.dims[2];
  Array out = empty_array({x.dims[0], channels, grid.dims[1], grid.dims[2]});
  const auto point = [&](int64_t i) {
    const int64_t n = i / points;
    // `f` is given the first element of a channel's image.
    const auto result = [&](int64_t c) { return (n * channels + c) * points + i % points; };
    const auto all = [&](auto f) {
      for (int64_t c = 0; c < channels; ++c) out.set(result(c), f((n * channels + c) * h * w));
    };
    const double gx = grid.at(2 * i).value, gy = grid.at(2 * i + 1).value;
    const Estimate px = position_of(m, gx, w, corners, padding == kBorder);
    const Estimate py = position_of(m, gy, h, corners, padding == kBorder);
    // Kernels convert positions to integers, which is not defined for NaN and very large ones.
    const auto sane = [](double v) { return std::fabs(v) < 0x1p24; };
    if (!sane(px.value) || !sane(py.value) || !sane(gx) || !sane(gy))
      return all([](int64_t) { return Estimate{0, kInfinity}; });
    if (mode == kNearest) {
      const auto tied = [](Estimate p) {
        return std::fabs(p.value - std::floor(p.value) - 0.5) <= p.radius;
      };
      if (tied(px) || tied(py)) return all([](int64_t) { return Estimate{0, kInfinity}; });
      const auto column = as_integer(std::nearbyint(px.value));
      const auto row = as_integer(std::nearbyint(py.value));
      const bool inside = column >= 0 && column < w && row >= 0 && row < h;
      return all(
          [&](int64_t plane) { return inside ? x.at(plane + row * w + column) : exactly(0); });
    }
    const Taps columns = neighbours(m, px, w), rows = neighbours(m, py, h);
    all([&](int64_t plane) {
      Total total;
      for (const Tap& r : rows) {
        for (const Tap& c : columns) {
          const Estimate v = x.at(plane + r.at * w + c.at);
          // Whether a neighbour of weight 0 is read is not defined.
          if (!finite(v.value)) return Estimate{v.value, kInfinity};
          total.add(m.mul(m.mul(r.weight, c.weight), v));
        }
      }
      return total.of(m, 0);
    });
  };
  in_ranges(m, grid.size() / 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) point(i);
  });
  return out;
}

// The inputs that a point reads along one axis. Between two neighbours the nearest may be either.
Taps taps_of(const Arithmetic& m, Estimate p, int64_t size, bool nearest) {
  if (!nearest) return neighbours(m, p, size);
  Taps taps;
  const auto low = as_integer(std::floor(p.value));
  const bool tied = std::fabs(p.value - std::floor(p.value) - 0.5) <= p.radius;
  if (tied) {
    taps = {{low, {0.5, 0.5}}, {low + 1, {0.5, 0.5}}};
  } else {
    taps = {{as_integer(std::nearbyint(p.value)), {1, 0}}};
  }
  std::erase_if(taps, [&](const Tap& t) { return t.at < 0 || t.at >= size; });
  return taps;
}
// The slope along an axis is the difference of the two neighbours. It is not known where the position
// may be on either side of one.
Taps slope_of(Estimate p, int64_t size) {
  const double nearest = std::nearbyint(p.value);
  const auto low = as_integer(std::floor(p.value)), at = as_integer(nearest);
  Taps taps = {{low, {-1, 0}}, {low + 1, {1, 0}}};
  if (std::fabs(p.value - nearest) <= p.radius)
    taps = {{at - 1, {0, kInfinity}}, {at, {0, kInfinity}}, {at + 1, {0, kInfinity}}};
  std::erase_if(taps, [&](const Tap& t) { return t.at < 0 || t.at >= size; });
  return taps;
}
Expected grid_sampler_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array dy = a.array(0, "grad_output"), x = a.array(1, "input"), grid = a.array(2, "grid");
  need_full_precision(a.view(1).element);
  const int64_t mode = a.integer(3, "interpolation_mode", kBilinear);
  const int64_t padding = a.integer(4, "padding_mode", kZeros);
  const bool corners = a.flag(5, "align_corners", false);
  if (mode != kBilinear && mode != kNearest) throw Undefined("an interpolation by cubes");
  if (padding != kZeros && padding != kBorder) throw Undefined("a reflection at the border");
  if (x.dims.size() != 4 || grid.dims.size() != 4 || grid.dims[3] != 2 || x.size() == 0 ||
      dy.dims != Dims{x.dims[0], x.dims[1], grid.dims[1], grid.dims[2]}) {
    throw Undefined("an image or grid of another rank");
  }
  const int64_t channels = x.dims[1], h = x.dims[2], w = x.dims[3];
  const int64_t points = grid.dims[1] * grid.dims[2];
  Checked<Total> totals(x.value.size());
  Array slopes = empty_array(grid.dims);
  for (int64_t i = 0; i < grid.size() / 2; ++i) {
    const int64_t n = i / points;
    const double gx = grid.at(2 * i).value, gy = grid.at(2 * i + 1).value;
    if (!(std::fabs(gx) < 0x1p24 && std::fabs(gy) < 0x1p24))
      throw Undefined("a point of a grid that is no number, or far away");
    const Estimate px = position_of(m, gx, w, corners, padding == kBorder);
    const Estimate py = position_of(m, gy, h, corners, padding == kBorder);
    const Taps columns = taps_of(m, px, w, mode == kNearest);
    const Taps rows = taps_of(m, py, h, mode == kNearest);
    // f(plane, gradient) for each channel.
    const auto all = [&](auto f) {
      for (int64_t c = 0; c < channels; ++c)
        f((n * channels + c) * h * w, dy.at((n * channels + c) * points + i % points));
    };
    all([&](int64_t plane, Estimate g) {
      for (const Tap& r : rows) {
        for (const Tap& c : columns) {
          totals[static_cast<size_t>(plane + r.at * w + c.at)].add(
              m.mul(m.mul(r.weight, c.weight), g));
        }
      }
    });
    const auto slope = [&](const Taps& down, const Taps& across, Estimate p, int64_t size) {
      if (mode == kNearest) return exactly(0);
      const auto last = static_cast<double>(size - 1);
      // Beyond the border nothing changes; at it, roundings decide whether the point is beyond.
      if (padding == kBorder && (p.value <= p.radius || p.value >= last - p.radius))
        return Estimate{0, kInfinity};
      Total total;
      all([&](int64_t plane, Estimate g) {
        for (const Tap& r : down) {
          for (const Tap& c : across) {
            const Estimate v = x.at(plane + r.at * w + c.at);
            total.add(m.mul(m.mul(m.mul(r.weight, c.weight), g), v));
          }
        }
      });
      const double factor = (corners ? last : last + 1) / 2;
      Estimate e = m.mul(total.of(m, 0), exactly(factor));
      if (!finite(e.value)) e.radius = kInfinity;
      return e;
    };
    slopes.set(2 * i, slope(rows, slope_of(px, w), px, w));
    slopes.set(2 * i + 1, slope(slope_of(py, h), columns, py, h));
  }
  Expected out;
  out.results.resize(2);
  if (a.has_result(0)) {
    Array dx = empty_array(x.dims);
    for (int64_t i = 0; i < dx.size(); ++i) {
      Estimate e = totals[static_cast<size_t>(i)].of(m, 0);
      if (!finite(e.value)) e.radius = kInfinity;
      dx.set(i, e);
    }
    out.results[0] = std::move(dx);
  }
  if (a.has_result(1)) out.results[1] = std::move(slopes);
  return out;
}

// The points of [-1, 1] along a dimension, or the centres of its pixels.
Checked<Estimate> line(const Arithmetic& m, int64_t n, bool corners) {
  Checked<Estimate> out;
  const auto size = static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    if (n == 1) {
      out.push_back(exactly(0));
      continue;
    }
    // A rounded step times i, from either end: three units of at most 2 at the far end.
    const Estimate x{2 * static_cast<double>(i) / (size - 1) - 1, 6 * m.unit};
    out.push_back(corners ? x : m.div(m.mul(x, exactly(size - 1)), exactly(size)));
  }
  return out;
}
Expected affine_grid(const Arguments& a) {
  const Array theta = a.array(0, "theta");
  need_full_precision(a.view(0).element);
  const Dims size = a.integers(1, "size", {});
  const bool corners = a.flag(2, "align_corners", false);
  if (size.size() < 4 || theta.dims.size() != 3) throw Undefined("a grid of another rank");
  Dims dims = {size[0]};
  dims.append(size.part(2));
  const int64_t spatial = std::ssize(size) - 2,
                points = count(dims) / std::max<int64_t>(size[0], 1);
  if (theta.dims != Dims{size[0], spatial, spatial + 1} || points == 0)
    throw Undefined("a grid of another shape");
  // Coordinates come with the last dimension first, and a 1 behind them.
  Array base = empty_array({1, points, spatial + 1});
  int64_t inner = 1;
  for (int64_t k = 0; k < spatial; ++k) {
    const int64_t n = size[size.size() - 1 - static_cast<size_t>(k)];
    const Checked<Estimate> along = line(a.m, n, corners);
    for (int64_t i = 0; i < points; ++i)
      base.set(i * (spatial + 1) + k, along[static_cast<size_t>(i / inner % n)]);
    inner *= n;
  }
  for (int64_t i = 0; i < points; ++i) base.set(i * (spatial + 1) + spatial, exactly(1));
  dims.push_back(spatial);
  return reshaped(matmul(a.m, base, permuted(theta, {0, 2, 1})), dims);
}

constexpr Definition kSamplingDefinitions[] = {
    {"aten.grid_sampler_2d", grid_sampler},
    {"aten.grid_sampler_2d_backward", grid_sampler_backward},
    {"aten.affine_grid_generator", affine_grid},
};

}  // namespace

std::span<const Definition> sampling_definitions() { return kSamplingDefinitions; }

}  // namespace twinrun::aten

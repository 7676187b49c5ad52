// `images32`: procedural colour images of ten classes, for convolutional networks on machines
// without data: six shapes (disc, square, triangle, ring, plus, two discs) and four textures
// (horizontal stripes, vertical stripes, checkerboard, dots), in two random colours, at random
// positions, sizes and angles, on a shaded ground, with noise and, in half of the images, a stray
// spot. A single pixel carries almost no information about the class, so a linear model stays near
// chance.
//
// Arithmetic is binary64 with + - * / sqrt and floor only (all exact or correctly rounded), and
// pixels are rounded to u8, so the images are the same everywhere. A figure is given by its signed
// distance in pixels, negative inside; it covers a pixel by 0.5 - distance, clamped to 0..1.
#include <algorithm>
#include <array>
#include <cmath>

#include "scenarios/data/draws.h"
#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

constexpr int kSide = 32, kChannels = 3, kValues = kSide * kSide * kChannels;
constexpr double kHalf = kSide * 0.5;
constexpr uint32_t kFigure = 0, kNoise = 1;  // the `step` word of the counter

using Colour = std::array<double, kChannels>;

double length(double x, double y) { return std::sqrt(x * x + y * y); }

// The placement of a figure: centre, radius (shapes) or period (textures), and rotation. The
// rotation needs no libm: with t = tan(angle / 2), cos = (1 - t^2) / (1 + t^2) and sin = 2 t / (1 +
// t^2).
struct Place {
  double x, y, size, cos, sin;

  static Place random(Draws& draws, bool texture) {
    Place p;
    p.size = texture ? draws.between(5, 10) : draws.between(7, 12);
    const double margin = texture ? 0 : p.size;
    p.x = draws.between(margin, kSide - margin);
    p.y = draws.between(margin, kSide - margin);
    const double t =
        texture ? draws.between(-0.1, 0.1) : draws.between(-0.2, 0.2);  // 11, 23 degrees
    p.cos = (1 - t * t) / (1 + t * t);
    p.sin = 2 * t / (1 + t * t);
    return p;
  }
};

// Signed distance from x to the nearest of the bands that repeat with `period` and are half of it
// wide: the distance to the band's middle less a quarter period, negative inside.
double band(double x, double period) {
  const double turns = x / period;
  return std::abs(turns - std::floor(turns) - 0.5) * period - period / 4;
}

double checkers(double x, double y, double period) {
  const double a = band(x, period), b = band(y, period);
  const double edge = std::min(std::abs(a), std::abs(b));
  return (a < 0) == (b < 0) ? -edge : edge;
}

// Signed distance from the figure of class `label`. x and y are relative to its centre, rotated.
double distance(int label, double x, double y, double size) {
  const double ax = std::abs(x), ay = std::abs(y);
  switch (label) {
    case 0:  // disc
      return length(x, y) - size * 0.9;
    case 1:  // square
      return std::max(ax, ay) - size * 0.8;
    case 2:  // triangle: three half planes, sqrt(3) / 2 between their normals
      return std::max(y, 0.8660254037844386 * ax - 0.5 * y) - size * 0.5;
    case 3:  // ring
      return std::abs(length(x, y) - size * 0.75) - size * 0.2;
    case 4:  // plus
      return std::min(std::max(ax - size, ay - size * 0.28), std::max(ay - size, ax - size * 0.28));
    case 5:  // two discs
      return length(ax - size * 0.55, y) - size * 0.4;
    case 6:  // horizontal stripes
      return band(y, size);
    case 7:  // vertical stripes
      return band(x, size);
    case 8:  // checkerboard
      return checkers(x, y, size * 1.5);
    default: {  // dots
      const double u = x / size, v = y / size;
      return (length(u - std::floor(u) - 0.5, v - std::floor(v) - 0.5) - 0.3) * size;
    }
  }
}

// Two colours that differ by 0.25 to 0.5 in each channel.
void random_colours(Draws& draws, Colour& ground, Colour& ink) {
  for (size_t c = 0; c < kChannels; ++c) {
    ground[c] = draws.between(0, 1);
    const double step = draws.between(0.25, 0.5);
    ink[c] = ground[c] < 0.5 ? ground[c] + step : ground[c] - step;
  }
}

void draw_image(uint64_t seed, uint32_t id, int label, uint8_t* out) {
  Draws draws({seed, kStreamImages32}, kFigure, id);
  const Place place = Place::random(draws, label >= 6);
  Colour ground, ink, spot_ground, spot_ink;
  random_colours(draws, ground, ink);
  random_colours(draws, spot_ground, spot_ink);
  const double slope_x = draws.between(-0.15, 0.15), slope_y = draws.between(-0.15, 0.15);
  const double spot_x = draws.between(0, kSide), spot_y = draws.between(0, kSide);
  const double spot_radius = draws.below(2) == 0 ? 0 : draws.between(1.0, 2.5);
  const double noise = draws.between(0.02, 0.12);

  Draws grain({seed, kStreamImages32}, kNoise, id);
  uint32_t bits = 0;
  for (int i = 0; i < kSide * kSide; ++i) {
    const double x = i % kSide + 0.5, y = i / kSide + 0.5;  // NOLINT: whole rows
    const double dx = x - place.x, dy = y - place.y;
    const double inside = distance(label, place.cos * dx + place.sin * dy,
                                   place.cos * dy - place.sin * dx, place.size);
    const double cover = std::clamp(0.5 - inside, 0.0, 1.0);
    const double spot = std::clamp(spot_radius - length(x - spot_x, y - spot_y) + 0.5, 0.0, 1.0) *
                        (spot_radius > 0 ? 1.0 : 0.0);
    const double shade = (slope_x * (x - kHalf) + slope_y * (y - kHalf)) / kHalf;
    for (size_t c = 0; c < kChannels; ++c) {
      const size_t at = static_cast<size_t>(i) * kChannels + c;
      if (at % 4 == 0) bits = grain.bits();  // noise of four values, one byte each
      const double shift = (static_cast<double>(bits >> at % 4 * 8 & 255u) - 127.5) / 127.5 * noise;
      double value = ground[c] + shade;
      value += cover * (ink[c] - ground[c]);
      value += spot * (spot_ink[c] - value);
      out[at] = static_cast<uint8_t>(std::floor(std::clamp(value + shift, 0.0, 1.0) * 255 + 0.5));
    }
  }
}

Samples make_samples(const DataRequest& request, int64_t count, uint32_t first_id) {
  Samples samples{{}, Tensor::empty({DType::kI32, {count}}), {}};
  std::vector<uint8_t> pixels(static_cast<size_t>(count) * kValues);
  for (int64_t i = 0; i < count; ++i) {
    const int label = static_cast<int>(i % request.classes);  // balanced for any count
    draw_image(request.seed, first_id + static_cast<uint32_t>(i), label,
               pixels.data() + static_cast<size_t>(i) * kValues);
    samples.labels.as<int32_t>()[static_cast<size_t>(i)] = label;
  }
  samples.features = pixel_features(request, pixels, {count, kSide, kSide, kChannels});
  return samples;
}

}  // namespace

Result<Pool> images32_pool(const DataRequest& request) {
  TWINRUN_RETURN_IF_ERROR(check_classes(request, 2, 10));
  TWINRUN_RETURN_IF_ERROR(check_shape(request, {kSide, kSide, kChannels}));
  TWINRUN_ASSIGN(const Counts counts, procedural_counts(request));
  return Pool{make_samples(request, counts.train, 0), make_samples(request, counts.eval, kHeldOut),
              "images32"};
}

}  // namespace twinrun::data

// `digits`: procedural handwritten digits. They need no download and no file, and the pixels are
// the same everywhere: randomness is Philox, arithmetic is binary64 with + - * / and sqrt only (all
// correctly rounded), and pixels are rounded to u8.
#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <vector>

#include "program/base/thread_pool.h"
#include "scenarios/data/digit_strokes.h"
#include "scenarios/data/draws.h"
#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

constexpr int kSide = 28;
constexpr int kPixels = kSide * kSide;
static_assert(kSide % 4 == 0);
constexpr auto kCentres = [] {  // of the pixels, along either axis
  std::array<double, kSide> centres{};
  for (size_t i = 0; i < kSide; ++i) centres[i] = static_cast<double>(i) + 0.5;
  return centres;
}();
constexpr int64_t kTogether = 256;          // digits that a thread draws at once
constexpr uint32_t kShape = 0, kNoise = 1;  // the `step` word of the counter

// Maps the unit box to pixels: slant, stretch, rotate about the centre, shift. The rotation needs
// no libm: with t = tan(angle / 2), cos = (1 - t^2) / (1 + t^2) and sin = 2 t / (1 + t^2).
struct Affine {
  double xx, xy, yx, yy, dx, dy;

  static Affine random(Draws& draws) {
    const double t = draws.between(-0.14, 0.14);  // +-16 degrees
    const double slant = draws.between(-0.25, 0.25);
    const double width = draws.between(9.0, 15.0), height = draws.between(14.5, 20.5);
    const double c = (1 - t * t) / (1 + t * t), s = 2 * t / (1 + t * t);
    Affine a;
    a.xx = c * width;
    a.xy = c * slant * width - s * height;
    a.yx = s * width;
    a.yy = s * slant * width + c * height;
    a.dx = kSide * 0.5 + draws.between(-2.0, 2.0);
    a.dy = kSide * 0.5 + draws.between(-2.0, 2.0);
    return a;
  }
  Point operator()(Point p) const {
    const double x = p.x - 0.5, y = p.y - 0.5;
    return {xx * x + xy * y + dx, yx * x + yy * y + dy};
  }
};

// std::clamp by value, which the compiler vectorizes.
double limited(double x, double low, double high) {
  const double raised = x < low ? low : x;
  return high < raised ? high : raised;
}

class Canvas {
 public:
  // Draws one segment. The ink is full up to a distance of radius - 0.5 pixels and falls to none at
  // radius + 0.5. A pixel keeps the maximum of all segments.
  void segment(Point a, Point b, double radius, double ink) {
    const double reach = radius + 1;
    const int x0 = cell(std::min(a.x, b.x) - reach), x1 = cell(std::max(a.x, b.x) + reach);
    const int y0 = cell(std::min(a.y, b.y) - reach), y1 = cell(std::max(a.y, b.y) + reach);
    const double ex = b.x - a.x, ey = b.y - a.y, length2 = ex * ex + ey * ey;
    // A point has no length, and every pixel is at its beginning. Four pixels at a time, by the
    // compiler (scenarios/CMakeLists.txt), so that nothing here may branch; those outside of the
    // reach stay as they are.
    const double most = length2 > 0 ? 1.0 : 0.0, divisor = length2 > 0 ? length2 : 1.0;
    const int64_t begin = x0 / 4 * 4, end = x1 / 4 * 4 + 4;
    for (int y = y0; y <= y1; ++y) {
      const double py = kCentres[y] - a.y;
      double* const row = pixels_.data() + y * kSide;
      for (int64_t x = begin; x < end; ++x) {
        const double px = kCentres[x] - a.x;
        const double along = limited((px * ex + py * ey) / divisor, 0.0, most);
        const double qx = px - along * ex, qy = py - along * ey;
        const double cover = radius + 0.5 - std::sqrt(qx * qx + qy * qy);
        const double shade = ink * limited(cover, 0.0, 1.0);
        row[x] = row[x] < shade ? shade : row[x];
      }
    }
  }
  const std::array<double, kPixels>& pixels() const { return pixels_; }

 private:
  static int cell(double x) {
    return static_cast<int>(std::clamp(std::floor(x), 0.0, kSide - 1.0));
  }
  std::array<double, kPixels> pixels_{};
};

// The Catmull-Rom curve between p1 (u = 0) and p2 (u = 1).
Point through(Point p0, Point p1, Point p2, Point p3, double u) {
  const auto axis = [u](double a, double b, double c, double d) {
    return 0.5 * (2 * b +
                  u * ((c - a) + u * ((2 * a - 5 * b + 4 * c - d) + u * (3 * b - 3 * c + d - a))));
  };
  return {axis(p0.x, p1.x, p2.x, p3.x), axis(p0.y, p1.y, p2.y, p3.y)};
}

void draw_stroke(Canvas& canvas, const std::vector<Point>& p, bool curved, double radius,
                 double ink) {
  constexpr int kPieces = 5;
  for (size_t i = 0; i + 1 < p.size(); ++i) {
    if (!curved) {
      canvas.segment(p[i], p[i + 1], radius, ink);
      continue;
    }
    const Point before = p[i > 0 ? i - 1 : 0], after = p[std::min(i + 2, p.size() - 1)];
    Point last = p[i];
    for (int k = 1; k <= kPieces; ++k) {
      const Point next = through(before, p[i], p[i + 1], after, k / static_cast<double>(kPieces));
      canvas.segment(last, next, radius, ink);
      last = next;
    }
  }
}

// A short faint stroke that belongs to no digit.
void draw_clutter(Canvas& canvas, Draws& draws) {
  const Point a{draws.between(0, kSide), draws.between(0, kSide)};
  const Point b{a.x + draws.between(-6, 6), a.y + draws.between(-6, 6)};
  const double radius = draws.between(0.3, 0.9);
  canvas.segment(a, b, radius, draws.between(0.2, 0.7));
}

Samples make_samples(const DataRequest& request, int64_t count, uint32_t first_id) {
  Samples samples{{}, Tensor::empty({DType::kI32, {count}}), {}};
  std::vector<uint8_t> pixels(static_cast<size_t>(count * kPixels));
  const int64_t pieces = (count + kTogether - 1) / kTogether;
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  ThreadPool pool(static_cast<int>(std::max<int64_t>(1, std::min(cores, pieces))));
  pool.parallel_for(pieces, [&](int64_t piece) {
    for (int64_t i = piece * kTogether; i < std::min(count, (piece + 1) * kTogether); ++i) {
      const int label = static_cast<int>(i % request.classes);  // balanced for any count
      draw_digit(request.seed, first_id + static_cast<uint32_t>(i), label,
                 pixels.data() + i * kPixels);
      samples.labels.as<int32_t>()[static_cast<size_t>(i)] = label;
    }
  });
  samples.features = pixel_features(request, pixels, {count, kSide, kSide, 1});
  return samples;
}

}  // namespace

void draw_digit(uint64_t seed, uint32_t id, int label, uint8_t* out) {
  Draws draws({seed, kStreamDigits}, kShape, id);
  const auto variants = glyphs(label);
  const Glyph& glyph = variants[draws.below(static_cast<uint32_t>(variants.size()))];
  const Affine place = Affine::random(draws);
  const double radius = draws.between(0.5, 1.5), ink = draws.between(0.65, 1.0);
  const double wobble = draws.between(0.01, 0.05);
  Canvas canvas;
  for (const Stroke& stroke : glyph) {
    std::vector<Point> points;
    for (const Point& p : stroke.points) {
      const double wx = draws.between(-wobble, wobble), wy = draws.between(-wobble, wobble);
      points.push_back(place({p.x + wx, p.y + wy}));
    }
    draw_stroke(canvas, points, stroke.curved, radius, ink);
  }
  if (draws.below(4) == 0) draw_clutter(canvas, draws);
  const double noise = draws.between(0.02, 0.20);

  Draws grain({seed, kStreamDigits}, kNoise, id);
  std::array<uint8_t, kPixels> grains;  // one byte for each pixel
  for (size_t i = 0; i < kPixels; i += 4) {
    const uint32_t bits = grain.bits();
    for (size_t k = 0; k < 4; ++k) grains[i + k] = static_cast<uint8_t>(bits >> (8 * k));
  }
  const double* const pixels = canvas.pixels().data();
  for (size_t i = 0; i < kPixels; ++i) {
    const double shift = (static_cast<double>(grains[i]) - 127.5) / 127.5 * noise;
    const double value = limited(pixels[i] + shift, 0.0, 1.0);
    out[i] = static_cast<uint8_t>(static_cast<int32_t>(std::floor(value * 255 + 0.5)));
  }
}

Result<Pool> digits_pool(const DataRequest& request) {
  TWINRUN_RETURN_IF_ERROR(check_classes(request, 2, 10));
  TWINRUN_RETURN_IF_ERROR(check_shape(request, {kSide, kSide, 1}));
  TWINRUN_ASSIGN(const Counts counts, procedural_counts(request));
  return Pool{make_samples(request, counts.train, 0), make_samples(request, counts.eval, kHeldOut),
              "digits"};
}

}  // namespace twinrun::data

// What torchvision's kernels compute: pooling of regions and its gradient, and the suppression of
// boxes that overlap.
#include <algorithm>
#include <array>

#include "backends/aten/definitions.h"
#include "backends/aten/totals.h"

namespace twinrun::aten {
namespace {

// The samples of one region: `grid` of them in each of `bins`, of a size each.
struct Axis {
  double start = 0, bin = 0;
  int64_t grid = 1;
  bool open = false;  // whether the number of samples depends on a rounding
  // Position of sample i of bin p, and its error: up to eight roundings of the largest number that
  // takes part.
  Estimate at(const Arithmetic& m, int64_t p, int64_t i) const {
    const double within = bin * ((static_cast<double>(i) + 0.5) / static_cast<double>(grid));
    const double x = start + static_cast<double>(p) * bin + within;
    return {x, 8 * m.unit * (std::fabs(start) + static_cast<double>(p + 1) * bin + 1)};
  }
};
struct Regions {
  Dims image;  // [n, c, h, w]
  int64_t high = 1, wide = 1;
  Checked<int64_t> of;  // the image of each region
  Checked<std::array<Axis, 2>> axes;
};
Regions regions_of(const Arguments& a, Dims image, size_t rois_at, size_t first, size_t ratio_at) {
  Regions r;
  r.image = std::move(image);
  const Array rois = a.array(rois_at, "rois");
  const double scale = a.number(first, "spatial_scale", 1);
  r.high = a.integer(first + 1, "pooled_height", 1),
  r.wide = a.integer(first + 2, "pooled_width", 1);
  const int64_t ratio = a.integer(ratio_at, "sampling_ratio", -1);
  const bool aligned = a.flag(ratio_at + 1, "aligned", false);
  if (a.view(rois_at, "rois").element == Element::kF16)
    throw Undefined("regions of half precision");
  if (rois.dims.size() != 2 || rois.dims[1] != 5 || r.image.size() != 4 || r.high < 1 || r.wide < 1)
    throw Undefined("regions of another shape");
  for (int64_t k = 0; k < rois.dims[0]; ++k) {
    const auto number = [&](int64_t i) { return rois.at(k * 5 + i).value; };
    const double n = number(0);
    if (!(n >= 0 && n < static_cast<double>(r.image[0]))) throw Undefined("a region of no image");
    r.of.push_back(static_cast<int64_t>(n));
    std::array<Axis, 2> axes;
    for (int64_t d = 0; d < 2; ++d) {  // height, width; the coordinates are x, y, x, y
      Axis& axis = axes[static_cast<size_t>(d)];
      const double low = number(2 - d) * scale, end = number(4 - d) * scale;
      const int64_t bins = d == 0 ? r.high : r.wide;
      axis.start = low - (aligned ? 0.5 : 0);
      const double size = aligned ? end - low : std::fmax(end - low, 1);
      axis.bin = size / static_cast<double>(bins);
      if (!finite(axis.start) || !finite(axis.bin)) throw Undefined("a region that is not finite");
      const double samples = std::ceil(axis.bin);
      if (ratio > 4096 || (ratio <= 0 && samples > 4096))
        throw Undefined("a region of very many samples");
      axis.grid = ratio > 0 ? ratio : as_integer(std::fmax(samples, 0));
      const double off =
          8 * a.m.unit * (std::fabs(low) + std::fabs(end)) / static_cast<double>(bins);
      axis.open = ratio <= 0 && off > 0 && std::ceil(axis.bin - off) != std::ceil(axis.bin + off) &&
                  !(axis.bin == samples && a.m.holds(low) && a.m.holds(end));
    }
    r.axes.push_back(axes);
  }
  return r;
}
// A position between two pixels: of the lower one and the next, and the upper one's weight.
struct Between {
  int64_t low = 0, high = 0;
  double weight = 0;
  bool inside = true, open = false;
};
Between between(Estimate at, int64_t size) {
  Between b;
  const auto end = static_cast<double>(size);
  b.open = std::fabs(at.value + 1) <= at.radius || std::fabs(at.value - end) <= at.radius;
  b.inside = at.value >= -1 && at.value <= end;
  const double x = std::fmax(at.value, 0);
  b.low = as_integer(std::fmin(std::floor(x), end - 1));
  b.high = std::min(b.low + 1, size - 1);
  b.weight = b.low == b.high ? 0 : x - static_cast<double>(b.low);
  return b;
}
// Of all regions' bins, in each channel.
void take_samples(const Regions& r, int64_t channels) {
  double samples = 0;
  for (const auto& [down, across] : r.axes)
    samples += static_cast<double>(down.grid) * static_cast<double>(across.grid);
  take_steps(4 * kStepsOfOne * samples * static_cast<double>(channels) *
             static_cast<double>(r.high) * static_cast<double>(r.wide));
}
// Calls f(y, x, error of the position, open) for each sample of a region's bin.
template <typename F>
void samples(const Arithmetic& m, const Regions& r, size_t region, int64_t p, int64_t q, F f) {
  const auto& [down, across] = r.axes[region];
  for (int64_t i = 0; i < down.grid; ++i) {
    for (int64_t j = 0; j < across.grid; ++j) {
      const Estimate y = down.at(m, p, i), x = across.at(m, q, j);
      f(between(y, r.image[2]), between(x, r.image[3]), y.radius + x.radius);
    }
  }
}
std::array<std::pair<int64_t, double>, 4> corners(const Between& y, const Between& x, int64_t w) {
  return {{{y.low * w + x.low, (1 - y.weight) * (1 - x.weight)},
           {y.low * w + x.high, (1 - y.weight) * x.weight},
           {y.high * w + x.low, y.weight * (1 - x.weight)},
           {y.high * w + x.high, y.weight * x.weight}}};
}
// The largest of the pixels that the four neighbours of a position may be, wherever it is within its
// error: those at a distance of up to two.
template <typename F>
void around(const Between& y, const Between& x, int64_t h, int64_t w, F f) {
  for (int64_t i = std::max<int64_t>(0, y.low - 1); i <= std::min(h - 1, y.high + 1); ++i)
    for (int64_t j = std::max<int64_t>(0, x.low - 1); j <= std::min(w - 1, x.high + 1); ++j)
      f(i * w + j);
}

// The mean of the samples of a bin. A sample's value moves by no more than twice the largest of its
// neighbours for each pixel that its position moves.
Expected roi_align(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "input");
  const Regions r = regions_of(a, x.dims, 1, 2, 5);
  const Element type = a.view(0, "input").element;
  if (is_half(type)) throw Undefined("regions of half precision");
  const int64_t c = x.dims[1], h = x.dims[2], w = x.dims[3];
  const auto regions = static_cast<int64_t>(r.of.size());
  Array out = empty_array({regions, c, r.high, r.wide});
  take_samples(r, c);
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const auto k = static_cast<size_t>(o / r.wide / r.high / c);
      const int64_t plane = (r.of[k] * c + o / r.wide / r.high % c) * h * w;
      double value = 0, size = 0, moved = 0;
      int64_t n = 0;
      bool open = r.axes[k][0].open || r.axes[k][1].open;
      samples(m, r, k, o / r.wide % r.high, o % r.wide,
              [&](const Between& y, const Between& z, double off) {
                ++n, open = open || y.open || z.open;
                if (!y.inside || !z.inside) return;
                double largest = 0;
                around(y, z, h, w, [&](int64_t i) {
                  largest = std::fmax(largest, std::fabs(x.value[static_cast<size_t>(plane + i)]));
                });
                for (const auto& [i, weight] : corners(y, z, w)) {
                  const double v = x.value[static_cast<size_t>(plane + i)] * weight;
                  value += v, size += std::fabs(v);
                }
                moved += 2 * off * largest;
              });
      const auto number = static_cast<double>(std::max<int64_t>(n, 1));
      const double relative = m.of_sum(4 * n + 1) + 8 * m.unit;
      Estimate e{value / number, (moved + relative * size) / number + m.smallest};
      if (size == 0 && moved == 0) e.radius = 0;
      if (open || !finite(value)) e.radius = kInfinity;
      out.set(o, e);
    }
  });
  return out;
}
// grad, rois, spatial_scale, pooled_height, pooled_width, n, c, h, w, sampling_ratio, aligned.
Expected roi_align_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array dy = a.array(0, "grad");
  Dims image;
  for (size_t i = 5; i < 9; ++i) image.push_back(a.integer(i, {}, 0));
  const Regions r = regions_of(a, image, 1, 2, 9);
  if (is_half(a.view(0, "grad").element)) throw Undefined("regions of half precision");
  const int64_t c = image[1], h = image[2], w = image[3];
  if (dy.size() != count({std::ssize(r.of), c, r.high, r.wide}))
    throw Undefined("a gradient of another shape");
  Array out = empty_array(image);
  take_samples(r, c);
  Checked<Total> totals(out.value.size());
  for (int64_t o = 0; o < dy.size(); ++o) {
    const auto k = static_cast<size_t>(o / r.wide / r.high / c);
    const int64_t plane = (r.of[k] * c + o / r.wide / r.high % c) * h * w;
    const double g = dy.at(o).value;
    const auto n = static_cast<double>(r.axes[k][0].grid * r.axes[k][1].grid);
    const bool open = r.axes[k][0].open || r.axes[k][1].open;
    samples(m, r, k, o / r.wide % r.high, o % r.wide,
            [&](const Between& y, const Between& z, double off) {
              const bool known = !open && !y.open && !z.open;
              // Weights err by the position's error, also of those pixels that become neighbours by it.
              around(y, z, h, w, [&](int64_t i) {
                totals[static_cast<size_t>(plane + i)].add(
                    {0, known ? std::fabs(g) / n * (2 * off + 8 * m.unit) : kInfinity});
              });
              if (!y.inside || !z.inside) return;
              for (const auto& [i, weight] : corners(y, z, w)) {
                if (weight != 0)
                  totals[static_cast<size_t>(plane + i)].add(exactly(g * weight / n));
              }
            });
  }
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, totals[static_cast<size_t>(i)].of(m, 0));
  return out;
}

// The boxes that no box of a higher score overlaps by more than the threshold, in the order of
// scores.
Expected nms(const Arguments& a) {
  const Array boxes = a.array(0, "dets"), scores = a.array(1, "scores");
  const double threshold = a.number(2, "iou_threshold", 0);
  const int64_t n = scores.size();
  if (boxes.size() != 4 * n) throw Undefined("boxes of another shape");
  take_steps(kStepsOfOne * static_cast<double>(n) * static_cast<double>(n) / 2);
  const double unit = a.m.unit_of(a.view(0, "dets").element);
  Checked<int64_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
  std::ranges::stable_sort(
      order, [&](int64_t i, int64_t j) { return scores.at(i).value > scores.at(j).value; });
  const auto side = [&](int64_t i, int64_t k) { return boxes.at(4 * i + k).value; };
  const auto area = [&](int64_t i) {
    return (side(i, 2) - side(i, 0)) * (side(i, 3) - side(i, 1));
  };
  Checked<int64_t> kept;
  for (const int64_t i : order) {
    bool gone = false;
    for (const int64_t j : kept) {
      const double wide = std::fmin(side(i, 2), side(j, 2)) - std::fmax(side(i, 0), side(j, 0));
      const double high = std::fmin(side(i, 3), side(j, 3)) - std::fmax(side(i, 1), side(j, 1));
      const double both = std::fmax(wide, 0) * std::fmax(high, 0);
      const double all = area(i) + area(j) - both;
      const double overlap = both / all;
      if (overlap != overlap) throw Undefined("boxes without an area");
      // Sides, areas, their sum and the quotient: ten roundings, of which the sum's count for its terms.
      const double off = both == 0 ? 0 : 10 * unit * overlap * (area(i) + area(j) + both) / all;
      if (off > 0 && std::fabs(overlap - threshold) <= off)
        throw Undefined("boxes that overlap by the threshold, as far as roundings tell");
      gone = gone || overlap > threshold;
    }
    if (!gone) kept.push_back(i);
  }
  Array out = empty_array({static_cast<int64_t>(kept.size())}, true);
  for (size_t i = 0; i < kept.size(); ++i) out.value[i] = static_cast<double>(kept[i]);
  return out;
}

constexpr Definition kVisionDefinitions[] = {
    {"torchvision.roi_align.default", roi_align},
    {"torchvision._roi_align_backward.default", roi_align_backward},
    {"torchvision.nms.default", nms},
};

}  // namespace

std::span<const Definition> vision_definitions() { return kVisionDefinitions; }

}  // namespace twinrun::aten

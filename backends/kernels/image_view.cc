// The geometry of image patches, and the copying of slabs.
#include "backends/kernels/image_view.h"

#include <cstring>

namespace twinrun {
namespace {

constexpr int64_t kRowsAhead = 2;  // image rows prefetched ahead of the copy

// Pixels whose distance is a multiple of half a page would share few cache sets.
int64_t pitch_of(int64_t channels, int64_t step) {
  return channels * step % 512 == 0 ? channels + 16 : channels;
}

}  // namespace

PatchGeometry forward_geometry(const Dims& x, int64_t kh, int64_t kw, const Window& window) {
  PatchGeometry g{};
  g.images = x[0], g.height = x[1], g.width = x[2], g.channels = x[3];
  g.taps[0] = kh, g.taps[1] = kw;
  for (int i = 0; i < 2; ++i) {
    Window sized = window;
    sized.size[0] = kh, sized.size[1] = kw;
    g.out[i] = sized.out(i == 0 ? g.height : g.width, i);
    g.step[i] = window.stride[i];
    g.tap_step[i] = window.dilation[i];
    g.first[i] = 0;
    g.spread[i] = 1;
    g.low[i] = window.pad_low[i];
  }
  g.columns = (g.out[1] - 1) * g.step[1] + (kw - 1) * g.tap_step[1] + 1;
  g.pitch = pitch_of(g.channels, g.step[1]);
  if (window.pad_low[0] == 0 && window.pad_low[1] == 0 && window.pad_high[0] == 0 &&
      window.pad_high[1] == 0) {
    g.columns = g.width;  // keeps the trailing columns that no window reaches
  }
  return g;
}

// dx(y) collects dy(r) where y = r * stride + tap * dilation - pad_low, so tap t of output y lies
// at y + pad_low - t * dilation in a dy whose rows are spread by the stride.
PatchGeometry input_grad_geometry(const Dims& dy, const Dims& x, int64_t kh, int64_t kw,
                                  const Window& window) {
  PatchGeometry g{};
  g.images = dy[0], g.height = dy[1], g.width = dy[2], g.channels = dy[3];
  g.taps[0] = kh, g.taps[1] = kw;
  for (int i = 0; i < 2; ++i) {
    const int64_t reach = (g.taps[i] - 1) * window.dilation[i];
    g.out[i] = x[static_cast<size_t>(i + 1)];
    g.step[i] = 1;
    g.tap_step[i] = -window.dilation[i];
    g.first[i] = reach;
    g.spread[i] = window.stride[i];
    g.low[i] = reach - window.pad_low[i];
  }
  g.columns = g.out[1] + g.first[1];
  g.pitch = pitch_of(g.channels, 1);
  return g;
}

bool PatchGeometry::in_place() const {
  return low[0] == 0 && low[1] == 0 && spread[0] == 1 && spread[1] == 1 && first[0] == 0 &&
         first[1] == 0 && columns == width && pitch == channels &&
         (out[0] - 1) * step[0] + (taps[0] - 1) * tap_step[0] < height;
}

std::vector<Span> spans_of(const PatchGeometry& g, int axis) {
  if (g.spread[axis] != 1) return {};
  const int64_t size = axis == 0 ? g.height : g.width;
  std::vector<Span> spans;
  for (int64_t p = 0; p < g.out[axis]; ++p) {
    const auto inside = [&](int64_t tap) {
      const int64_t at = g.first[axis] + p * g.step[axis] + tap * g.tap_step[axis] - g.low[axis];
      return at >= 0 && at < size;
    };
    int64_t tap0 = 0, tap1 = g.taps[axis];
    while (tap0 < tap1 && !inside(tap0)) ++tap0;
    while (tap1 > tap0 && !inside(tap1 - 1)) --tap1;
    if (tap0 == tap1) return {};  // an output that meets padding alone
    if (spans.empty() || spans.back().tap0 != tap0 || spans.back().tap1 != tap1) {
      spans.push_back({p, p, tap0, tap1});
    }
    ++spans.back().end;
  }
  return spans;
}

void copy_slab(const PatchGeometry& g, Term term, const float* data, int64_t image, int64_t y0,
               int64_t y1, bool poison, float* slab) {
  const int64_t rows = g.slab_rows(y1 - y0), line = g.columns * g.pitch;
  const float* source = data + image * g.height * g.width * g.channels;
  for (int64_t r = 0; r < rows; ++r) {
    float* to = slab + r * line;
    const int64_t at = y0 * g.step[0] + r - g.low[0];
    if (at < 0 || at % g.spread[0] != 0 || at / g.spread[0] >= g.height) {
      std::memset(to, 0, static_cast<size_t>(line) * sizeof(float));
    } else {
      const float* from = source + at / g.spread[0] * g.width * g.channels;
      const int64_t row = g.width * g.channels;
      if (at / g.spread[0] + kRowsAhead < g.height) prefetch(from + kRowsAhead * row, row);
      // Columns of the tensor that fall inside the slab.
      const int64_t begin = g.low[1] >= 0 ? 0 : (-g.low[1] + g.spread[1] - 1) / g.spread[1];
      const int64_t reach = g.columns - 1 - g.low[1];
      const int64_t end =
          reach < 0 ? begin : std::max(begin, std::min(g.width, reach / g.spread[1] + 1));
      if (begin == end) {
        std::memset(to, 0, static_cast<size_t>(line) * sizeof(float));
      } else if (g.spread[1] == 1 && g.pitch == g.channels) {
        const int64_t left = (g.low[1] + begin) * g.pitch, length = (end - begin) * g.pitch;
        std::memset(to, 0, static_cast<size_t>(left) * sizeof(float));
        copy_term(term, from + begin * g.channels, to + left, length);
        std::memset(to + left + length, 0,
                    static_cast<size_t>(line - left - length) * sizeof(float));
      } else {
        std::memset(to, 0, static_cast<size_t>(line) * sizeof(float));
        for (int64_t x = begin; x < end; ++x) {
          copy_term(term, from + x * g.channels, to + (g.low[1] + x * g.spread[1]) * g.pitch,
                    g.channels);
        }
      }
    }
    if (poison) {  // the floats between pixels belong to no operand
      for (int64_t x = 0; x < g.columns; ++x) {
        std::fill(to + x * g.pitch + g.channels, to + (x + 1) * g.pitch, from_bits(kCanonicalNaN));
      }
    }
  }
}

}  // namespace twinrun

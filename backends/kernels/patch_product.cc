// Products of image patches and weights: cuts outputs into pieces for threads and into regions that
// share their taps.
#include "backends/kernels/patch_product.h"

#include <algorithm>
#include <vector>

namespace twinrun {
namespace {

constexpr int64_t kPieceOutputs = 256;      // output pixels per piece, about
constexpr int64_t kSlabFloats = 64 * 1024;  // a piece's slab stays in L2

// How output rows are divided into pieces: a piece is part of one image or several whole images.
struct Pieces {
  int64_t rows;       // output rows per unit
  int64_t units;      // per image
  int64_t per_piece;  // units per piece
  int64_t count;
  Pieces(const PatchGeometry& g, int threads) {
    rows = std::clamp<int64_t>(kPieceOutputs / g.out[1], 1, g.out[0]);
    while (rows > 1 && g.slab_size(rows) > kSlabFloats) --rows;
    units = (g.out[0] + rows - 1) / rows;
    per_piece = 1;
    if (units == 1) {
      const int64_t share = std::max<int64_t>(1, g.images / threads);
      const int64_t fit =
          std::min(kPieceOutputs / (g.out[0] * g.out[1]), kSlabFloats / g.slab_size(rows));
      per_piece = std::clamp<int64_t>(fit, 1, share);
    }
    count = (g.images * units + per_piece - 1) / per_piece;
  }
};

// Output rows y by columns x that share their taps. Tiles are runs of pixels along x, or along y if
// `upright` (x is then one column).
struct Region {
  Span y, x;
  bool upright;
};

constexpr int64_t kWideSpan = 8;  // pixels of a row from which on tiles along x are worth it
// Channels from which on part of a kernel row is a run of k long enough for upright tiles.
constexpr int64_t kUprightChannels = 32;

// Divides the output into regions; one region with all taps if products with padding are computed.
std::vector<Region> regions_of(const PatchGeometry& g, bool leave_out_zeros) {
  const Span all_y{0, g.out[0], 0, g.taps[0]}, all_x{0, g.out[1], 0, g.taps[1]};
  if (!leave_out_zeros) return {{all_y, all_x, false}};
  std::vector<Span> rows = spans_of(g, 0), columns = spans_of(g, 1);
  if (rows.empty()) rows = {all_y};
  const bool wide =
      std::ranges::any_of(columns, [](const Span& x) { return x.end - x.begin >= kWideSpan; });
  if (!wide || g.channels < kUprightChannels) columns = {all_x};
  std::vector<Region> regions;
  for (const Span& x : columns) {
    if (columns.size() > 1 && x.end - x.begin < kWideSpan) {
      for (int64_t at = x.begin; at < x.end; ++at) {
        regions.push_back({all_y, {at, at + 1, x.tap0, x.tap1}, true});
      }
    } else {
      for (const Span& y : rows) regions.push_back({y, x, false});
    }
  }
  return regions;
}

class PatchProduct {
 public:
  PatchProduct(const GemmPlan& plan, const PatchProblem& p, Terms terms, bool leave_out_zeros)
      : plan_(plan),
        g_(p.g),
        data_(p.images),
        terms_(terms),
        c_(p.c),
        n_(p.n),
        line_(g_.taps[1] * g_.channels),
        k_(g_.taps[0] * line_),
        packed_(plan, p.b, terms.b, k_, 0, p.n),
        pieces_(g_, threads_of(plan.context)),
        in_place_(plan.reads_a(terms.a) && g_.in_place()),
        regions_(regions_of(g_, leave_out_zeros)),
        offsets_(scratch<int64_t>(Scratch::kOffsets, static_cast<size_t>(k_))) {
    for (int64_t q = 0; q < k_; ++q) {
      const int64_t tap = q / g_.channels;
      offsets_[q] = g_.tap(tap / g_.taps[1], tap % g_.taps[1]) + q % g_.channels;
    }
  }

  void run() const {
    const int64_t pixels = g_.out[0] * g_.out[1];
    for_pieces(plan_.context, pieces_.count, g_.images * pixels * k_ * n_ / 16, [&](int64_t piece) {
      const int64_t begin = piece * pieces_.per_piece;
      run_units(begin, std::min(begin + pieces_.per_piece, g_.images * pieces_.units));
    });
  }

 private:
  struct Unit {
    int64_t image, y0, y1;
    int64_t at;  // where its first row begins in the memory that tiles read
  };
  Unit unit(int64_t u, int64_t first) const {
    const int64_t image = u / pieces_.units, y0 = u % pieces_.units * pieces_.rows;
    return {image, y0, std::min(g_.out[0], y0 + pieces_.rows),
            in_place_ ? (image * g_.height + y0 * g_.step[0]) * g_.width * g_.channels
                      : (u - first) * g_.slab_size(pieces_.rows)};
  }

  void run_units(int64_t u0, int64_t u1) const {
    const float* base = data_;
    if (!in_place_) {
      const int64_t size = (u1 - u0) * g_.slab_size(pieces_.rows);
      float* const slabs = scratch<float>(Scratch::kSlab, static_cast<size_t>(size));
      for (int64_t u = u0; u < u1; ++u) {
        const Unit part = unit(u, u0);
        copy_slab(g_, terms_.a, data_, part.image, part.y0, part.y1,
                  plan_.context.arithmetic.poison, slabs + part.at);
      }
      base = slabs;
    }
    const int64_t most = (u1 - u0) * pieces_.rows * parts(g_.out[1]);
    auto* tiles = scratch<RowTile>(Scratch::kTiles, static_cast<size_t>(most));
    for (const Region& region : regions_) {
      const int64_t count = tiles_of(region, u0, u1, tiles);
      multiply(region, base, tiles, count);
      const bool all = region.y.tap1 - region.y.tap0 == g_.taps[0] &&
                       region.x.tap1 - region.x.tap0 == g_.taps[1];
      if (all || !has_negative_zero(region, tiles, count)) continue;
      Region whole = region;
      whole.y.tap0 = whole.x.tap0 = 0;
      whole.y.tap1 = g_.taps[0], whole.x.tap1 = g_.taps[1];
      multiply(whole, base, tiles, count);
    }
  }

  // C of a region: row c_row of a tile lies at c_of(region) + c_row * c_stride(region).
  float* c_of(const Region& region) const { return region.upright ? c_ + region.x.begin * n_ : c_; }
  int64_t c_stride(const Region& region) const { return region.upright ? g_.out[1] * n_ : n_; }

  int64_t parts(int64_t length) const {
    return (length + plan_.kernels.rows - 1) / plan_.kernels.rows;
  }
  int64_t tiles_of(const Region& region, int64_t u0, int64_t u1, RowTile* tiles) const {
    int64_t count = 0;
    // Cuts a run of `length` pixels from (y, x) on, the first of which is row c_row, into tiles.
    const auto cut = [&](const Unit& part, int64_t y, int64_t x, int64_t length, int64_t c_row) {
      for (int64_t t = 0; t < parts(length); ++t) {
        const int64_t from = plan_.cut(length, t, parts(length)),
                      to = plan_.cut(length, t + 1, parts(length));
        const int64_t position = region.upright ? g_.position(y + from - part.y0, x)
                                                : g_.position(y - part.y0, x + from);
        tiles[count++] = {part.at + position, c_row + from, static_cast<int>(to - from)};
      }
    };
    for (int64_t u = u0; u < u1; ++u) {
      const Unit part = unit(u, u0);
      const int64_t y0 = std::max(part.y0, region.y.begin), y1 = std::min(part.y1, region.y.end);
      if (region.upright) {
        cut(part, y0, region.x.begin, y1 - y0, part.image * g_.out[0] + y0);
        continue;
      }
      for (int64_t y = y0; y < y1; ++y) {
        cut(part, y, region.x.begin, region.x.end - region.x.begin,
            (part.image * g_.out[0] + y) * g_.out[1] + region.x.begin);
      }
    }
    return count;
  }

  void multiply(const Region& region, const float* base, const RowTile* tiles,
                int64_t count) const {
    const Span &y = region.y, &x = region.x;
    const int64_t row_stride =
        region.upright ? g_.step[0] * g_.columns * g_.pitch : g_.step[1] * g_.pitch;
    const bool whole_lines = x.tap1 - x.tap0 == g_.taps[1];
    const int64_t first = y.tap0 * line_ + x.tap0 * g_.channels,
                  last = (y.tap1 - 1) * line_ + x.tap1 * g_.channels;
    const int64_t length = whole_lines ? last - first : (x.tap1 - x.tap0) * g_.channels;
    for (int64_t run = first; run < last; run += whole_lines ? length : line_) {
      for (int64_t k0 = run, k1; k0 < run + length; k0 = k1) {
        const int64_t block = k0 / kBlockK * kBlockK, end = std::min(block + kBlockK, k_);
        k1 = std::min(run + length, end);
        BlockProduct p{base,
                       row_stride,
                       offsets_ + k0,
                       k1 - k0,
                       packed_.block(block, end, 0),
                       c_of(region),
                       c_stride(region),
                       n_,
                       k0 == first,
                       k1 == last};
        p.b_first = k0 - block, p.b_rows = end - block;
        multiply_block(plan_, p, tiles, count);
      }
    }
  }

  bool has_negative_zero(const Region& region, const RowTile* tiles, int64_t count) const {
    uint32_t found = 0;
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t r = 0; r < tiles[t].rows; ++r) {
        const float* row = c_of(region) + (tiles[t].c_row + r) * c_stride(region);
        for (int64_t i = 0; i < n_; ++i)
          found |= static_cast<uint32_t>(to_bits(row[i]) == 0x80000000u);
      }
    }
    return found != 0;
  }

  const GemmPlan& plan_;
  const PatchGeometry& g_;
  const float* const data_;
  const Terms terms_;
  float* const c_;
  const int64_t n_, line_, k_;  // columns of C; k of a kernel row; all of k
  const PackedB packed_;
  const Pieces pieces_;
  const bool in_place_;
  const std::vector<Region> regions_;
  int64_t* const offsets_;
};

}  // namespace

bool zeros_can_be_left_out(const GemmPlan& plan, int64_t channels, const float* weights,
                           int64_t count) {
  if (plan.bf16 && channels % 32 != 0) return false;
  uint32_t large = 0;  // the largest numbers have an infinite bf16 term
  for (int64_t i = 0; i < count; ++i)
    large |= static_cast<uint32_t>((to_bits(weights[i]) & 0x7F800000u) >= 0x7F000000u);
  return large == 0;
}

void multiply_patches(const GemmPlan& plan, const PatchProblem& problem, Terms terms,
                      bool leave_out_zeros) {
  // AMX takes whole k blocks only, so that no taps can be left out of one.
  PatchProduct(plan, problem, terms, leave_out_zeros && !plan.amx()).run();
}

}  // namespace twinrun

// Splits operands into planes, gathers patches, and sums the passes of a dot or convolution in
// binary64.
#include "backends/oracle/gemm.h"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <list>

#include "backends/oracle/internal.h"

namespace twinrun::oracle {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<Matrix>;
using ConstMap = Eigen::Map<const Matrix>;

constexpr int64_t kStretch = 256;      // elements to split at a time
constexpr int64_t kChunk = 96 * 1024;  // elements to gather at a time: 768 KiB, which fits in L2

// Copies rows [begin, end) of the left matrix; `columns` is the matrix's width.
class Gather {
 public:
  Gather(const Product& p, int64_t columns) : p_(p), columns_(columns) {}

  void operator()(const double* from, int64_t begin, int64_t end, double* to) const {
    switch (p_.left) {
      case Product::Left::kMatrix:
        std::copy(from + begin * columns_, from + end * columns_, to);
        return;
      case Product::Left::kTransposed:
        for (int64_t k = 0; k < columns_; ++k) {
          const double* row = from + k * p_.m;
          for (int64_t r = begin; r < end; ++r) to[(r - begin) * columns_ + k] = row[r];
        }
        return;
      case Product::Left::kPatches:
      case Product::Left::kGradientPatches:
        for (int64_t r = begin; r < end; ++r) patch(from, r, to + (r - begin) * columns_);
    }
  }

 private:
  // The coordinate that tap `k` of the patch at `at` reads along `axis`; -1 if it is outside the
  // image or between strides.
  int64_t coordinate(int64_t at, int64_t k, int axis) const {
    const Window& w = p_.window;
    if (p_.left == Product::Left::kPatches) {
      const int64_t i = at * w.stride[axis] - w.pad_low[axis] + k * w.dilation[axis];
      return i >= 0 && i < p_.in[axis + 1] ? i : -1;
    }
    const int64_t scaled = at + w.pad_low[axis] - k * w.dilation[axis];
    if (scaled < 0 || scaled % w.stride[axis] != 0) return -1;
    const int64_t i = scaled / w.stride[axis];
    return i < p_.in[axis + 1] ? i : -1;
  }

  void patch(const double* from, int64_t row, double* to) const {
    const int64_t x = row % p_.out[2], y = row / p_.out[2] % p_.out[1],
                  sample = row / (p_.out[2] * p_.out[1]);
    const int64_t channels = p_.in[3];
    for (int64_t kh = 0; kh < p_.window.size[0]; ++kh) {
      const int64_t ih = coordinate(y, kh, 0);
      for (int64_t kw = 0; kw < p_.window.size[1]; ++kw, to += channels) {
        const int64_t iw = ih < 0 ? -1 : coordinate(x, kw, 1);
        if (iw < 0) {
          std::fill(to, to + channels, 0.0);
        } else {
          const double* pixel = from + ((sample * p_.in[1] + ih) * p_.in[2] + iw) * channels;
          std::copy(pixel, pixel + channels, to);
        }
      }
    }
  }

  const Product& p_;
  int64_t columns_;
};

// One pass of a precision: the left plane, and the right plane that it is multiplied by, as a [k,
// n] matrix. Pass 0 is the head.
struct Pass {
  const Plane* left;
  const Plane* right;
};

// The passes, and the planes that were made for them (sums and transposes of an operand's planes).
struct Passes {
  std::vector<Pass> all;
  std::list<Plane> made;

  const Plane* keep(Plane plane) { return &made.emplace_back(std::move(plane)); }
  // A right operand as a [k, n] matrix.
  const Plane* oriented(const Product& p, const Plane& right) {
    if (!p.right_transposed) return &right;
    Plane out(right.size());
    const int64_t inner = p.k / p.taps;
    for (int64_t tap = 0; tap < p.taps; ++tap) {
      ConstMap from(right.data() + tap * inner * p.n, p.n, inner);
      Map(out.data() + tap * inner * p.n, inner, p.n) = from.transpose();
    }
    return keep(std::move(out));
  }
};

Plane sum_of(const Plane& a, const Plane& b) {
  Plane out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] + b[i];
  return out;
}

// bf16x3 = hh + (lh + hl); bf16x6 = hh + (mm + mh + lh + hl + hm). Passes with the same left plane
// are joined into one.
Passes passes_of(const Product& p, const Operand& a, const Operand& b) {
  Passes passes;
  const auto sum = [&](size_t i, size_t j) -> const Plane& {
    return *passes.keep(sum_of(b.parts[i], b.parts[j]));
  };
  const Plane* const head = passes.oriented(p, b.parts[0]);
  passes.all.push_back({&a.parts[0], head});
  if (a.parts.size() == 2) {
    passes.all.push_back({&a.parts[1], head});
    passes.all.push_back({&a.parts[0], passes.oriented(p, b.parts[1])});
  } else if (a.parts.size() == 3) {
    passes.all.push_back({&a.parts[1], passes.oriented(p, sum(0, 1))});
    passes.all.push_back({&a.parts[2], head});
    passes.all.push_back({&a.parts[0], passes.oriented(p, sum(1, 2))});
  }
  return passes;
}

// Where accumulate() adds its sums; magnitude is null if sizes are not needed.
struct Targets {
  double* head;
  double* rest;
  double* magnitude;
};
Targets targets_of(Sums& sums, bool sizes) {
  return {sums.head.data(), sums.rest.data(), sizes ? sums.magnitude.data() : nullptr};
}

// Adds the contribution of the gathered rows [begin, end) of every pass. They are rows of the
// result, or, with reduce_rows, terms of all results.
void accumulate(const Product& p, const Gather& gather, const std::vector<Pass>& passes,
                const Operand& a, const Plane& right_magnitude, int64_t begin, int64_t end,
                Plane& buffer, Targets t) {
  const int64_t width = p.reduce_rows ? p.m : p.k;
  buffer.resize(static_cast<size_t>((end - begin) * width));
  ConstMap chunk(buffer.data(), end - begin, width);
  auto multiply = [&](const Plane& right, double* target, bool first) {
    if (p.reduce_rows) {
      Map(target, p.m, p.n).noalias() +=
          chunk.transpose() * ConstMap(right.data() + begin * p.n, end - begin, p.n);
      return;
    }
    Map rows(target + begin * p.n, end - begin, p.n);
    if (first) rows.setZero();
    rows.noalias() += chunk * ConstMap(right.data(), p.k, p.n);
  };
  const Plane* gathered = nullptr;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (passes[i].left != gathered) gather(passes[i].left->data(), begin, end, buffer.data());
    gathered = passes[i].left;
    multiply(*passes[i].right, i == 0 ? t.head : t.rest, i <= 1);
  }
  if (t.magnitude == nullptr) return;
  if (a.magnitude.empty()) {
    for (double& x : buffer) x = std::fabs(x);
  } else {
    gather(a.magnitude.data(), begin, end, buffer.data());
  }
  multiply(right_magnitude, t.magnitude, true);
}

void add_to(Plane& total, const Plane& part) {
  for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
}

void copy_dims(const Dims& dims, int64_t* to) { std::copy(dims.begin(), dims.end(), to); }

}  // namespace

void pin_blocking() {
  // Eigen's blocking depends on the machine's cache sizes; the oracle's digits must not.
  static const bool once = [] {
    Eigen::setCpuCacheSizes(32 * 1024, 1024 * 1024, 8 * 1024 * 1024);
    return true;
  }();
  (void)once;
}

void gather_rows(const Product& product, int64_t columns, const double* from, int64_t begin,
                 int64_t end, double* to) {
  Gather(product, columns)(from, begin, end, to);
}

Product product_of(const Op& op, std::span<const Tensor> inputs) {
  Product p;
  p.window = op.attrs.window;
  const Dims &a = inputs[0].dims(), &b = inputs[1].dims(), &r = op.type.dims;
  switch (op.kind) {
    case OpKind::kConvolution:
      p.left = Product::Left::kPatches;
      copy_dims(a, p.in);
      copy_dims(r, p.out);
      p.m = r[0] * r[1] * r[2], p.n = r[3], p.k = b[0] * b[1] * b[2];
      break;
    case OpKind::kConvolutionInputGrad:
      p.left = Product::Left::kGradientPatches;
      copy_dims(a, p.in);
      copy_dims(r, p.out);
      p.right_transposed = true;
      p.taps = b[0] * b[1];
      p.m = r[0] * r[1] * r[2], p.n = r[3], p.k = p.taps * b[3];
      break;
    case OpKind::kConvolutionKernelGrad:
      p.left = Product::Left::kPatches;
      p.reduce_rows = true;
      copy_dims(a, p.in);
      copy_dims(b, p.out);
      p.m = r[0] * r[1] * r[2], p.n = r[3], p.k = b[0] * b[1] * b[2];
      break;
    default: {
      const auto lhs = static_cast<size_t>(op.attrs.lhs_contract);
      p.left = lhs == 1 ? Product::Left::kMatrix : Product::Left::kTransposed;
      p.right_transposed = op.attrs.rhs_contract == 1;
      p.m = r[0], p.n = r[1], p.k = a[lhs];
    }
  }
  return p;
}

Operand split(const Tensor& t, DotPrecision precision, DotSplit how, bool flush, ThreadPool* pool) {
  const int64_t n = t.elements();
  const size_t parts = precision == DotPrecision::kBf16x3   ? 2
                       : precision == DotPrecision::kBf16x6 ? 3
                                                            : 1;
  Operand out;
  out.parts.assign(parts, Plane(static_cast<size_t>(n)));
  if (parts > 1) out.magnitude.resize(static_cast<size_t>(n));
  // Splits one stretch and returns the largest finite magnitude in it. Part 0 first holds the
  // elements themselves.
  const auto stretch = [&](int64_t at, int64_t count) {
    double* const first = out.parts[0].data() + at;
    double size[kStretch];
    elements(t, at, count, first);
    if (precision == DotPrecision::kF32) {
      for (int64_t i = 0; flush && i < count; ++i) first[i] = flushed(first[i]);
      for (int64_t i = 0; i < count; ++i) size[i] = std::fabs(first[i]);
    } else {
      // rest stays a binary32 number: subtracting a part from a binary32 number is exact.
      double rest[kStretch];
      std::copy_n(first, count, rest);
      std::fill_n(size, count, 0.0);
      for (size_t part = 0; part < parts; ++part) {
        const bool cut = how == DotSplit::kTruncated && part + 1 < parts;
        double* const to = out.parts[part].data() + at;
        for (int64_t i = 0; i < count; ++i) {
          const auto x = twinrun::flush(static_cast<float>(rest[i]));
          to[i] = bf16_to_f32(cut ? bf16_truncate(x) : bf16_round(x));
          size[i] += std::fabs(to[i]);
          rest[i] -= to[i];
        }
      }
    }
    if (parts > 1) std::copy_n(size, count, out.magnitude.data() + at);
    // Non-negative numbers compare like their bits.
    constexpr auto kInfinite = std::bit_cast<int64_t>(kInfinity);
    int64_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<int64_t>(size[i]);
      largest = std::max(largest, bits < kInfinite ? bits : 0);
    }
    return std::bit_cast<double>(largest);
  };
  std::vector<double> largest(static_cast<size_t>((n + kRange - 1) / kRange));
  in_ranges(pool, n, [&](int64_t begin, int64_t end) {
    double& mine = largest[static_cast<size_t>(begin / kRange)];
    for (int64_t at = begin; at < end; at += kStretch)
      mine = std::max(mine, stretch(at, std::min(kStretch, end - at)));
  });
  for (const double l : largest) out.largest = std::max(out.largest, l);
  return out;
}

Sums evaluate(const Product& p, const Operand& a, const Operand& b, ThreadPool* pool, bool sizes) {
  pin_blocking();
  const auto size = static_cast<size_t>(p.m * p.n);
  Passes passes = passes_of(p, a, b);
  const Plane* right_magnitude = passes.all[0].right;
  if (sizes && b.magnitude.empty()) {
    Plane absolute(right_magnitude->size());
    in_ranges(pool, static_cast<int64_t>(absolute.size()), [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        absolute[i] = std::fabs((*right_magnitude)[i]);
    });
    right_magnitude = passes.keep(std::move(absolute));
  } else if (sizes) {
    right_magnitude = passes.oriented(p, b.magnitude);
  }
  const Gather gather(p, p.reduce_rows ? p.m : p.k);
  const int64_t rows = p.reduce_rows ? p.k : p.m;
  const int64_t width = p.reduce_rows ? p.m : p.k;
  const int64_t chunk =
      std::clamp<int64_t>(kChunk / std::max<int64_t>(width, 1), 16, std::max<int64_t>(rows, 16));
  const int64_t chunks = (rows + chunk - 1) / chunk;
  const auto memory = [&] {
    return Sums{Plane(size), Plane(passes.all.size() > 1 ? size : 0), Plane(sizes ? size : 0)};
  };

  if (!p.reduce_rows) {
    Sums total = memory();
    in_pieces(pool, chunks, [&](int64_t c) {
      static thread_local Plane buffer;
      accumulate(p, gather, passes.all, a, *right_magnitude, c * chunk,
                 std::min(rows, (c + 1) * chunk), buffer, targets_of(total, sizes));
    });
    return total;
  }
  // The number of groups depends on the shape alone, so the digits do not depend on threads.
  const int64_t groups = std::clamp<int64_t>((int64_t{1} << 20) / std::max<int64_t>(p.m * p.n, 1),
                                             1, std::min<int64_t>(8, std::max<int64_t>(chunks, 1)));
  std::vector<Sums> parts(static_cast<size_t>(groups));
  in_pieces(pool, groups, [&](int64_t g) {
    Sums& mine = parts[static_cast<size_t>(g)];
    mine = memory();
    for (Plane* plane : {&mine.head, &mine.rest, &mine.magnitude})
      std::fill(plane->begin(), plane->end(), 0.0);
    Plane buffer;
    for (int64_t c = chunks * g / groups; c < chunks * (g + 1) / groups; ++c) {
      accumulate(p, gather, passes.all, a, *right_magnitude, c * chunk,
                 std::min(rows, (c + 1) * chunk), buffer, targets_of(mine, sizes));
    }
  });
  Sums total = std::move(parts[0]);
  for (size_t g = 1; g < parts.size(); ++g) {
    add_to(total.head, parts[g].head);
    add_to(total.rest, parts[g].rest);
    add_to(total.magnitude, parts[g].magnitude);
  }
  return total;
}

}  // namespace twinrun::oracle

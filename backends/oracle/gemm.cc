#include "backends/oracle/gemm.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "backends/oracle/internal.h"

namespace twinrun::oracle {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<Matrix>;
using ConstMap = Eigen::Map<const Matrix>;

constexpr int64_t kChunk = 96 * 1024;  // gathered elements at a time: 768 KiB, inside L2

// Copies rows [begin, end) of the gathered matrix; `columns` is its width.
class Gather {
 public:
  Gather(const Product& p, int64_t columns) : p_(p), columns_(columns) {}

  void operator()(const Plane& from, int64_t begin, int64_t end, double* to) const {
    switch (p_.left) {
      case Product::Left::kMatrix:
        std::copy(from.data() + begin * columns_, from.data() + end * columns_, to);
        return;
      case Product::Left::kTransposed:
        for (int64_t k = 0; k < columns_; ++k) {
          const double* row = from.data() + k * p_.m;
          for (int64_t r = begin; r < end; ++r) to[(r - begin) * columns_ + k] = row[r];
        }
        return;
      case Product::Left::kPatches:
      case Product::Left::kGradientPatches:
        for (int64_t r = begin; r < end; ++r) patch(from, r, to + (r - begin) * columns_);
    }
  }

 private:
  // The coordinate that tap `k` of the patch at `at` reads along `axis`, or -1: outside, or between
  // strides.
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

  void patch(const Plane& from, int64_t row, double* to) const {
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
          const double* pixel = from.data() + ((sample * p_.in[1] + ih) * p_.in[2] + iw) * channels;
          std::copy(pixel, pixel + channels, to);
        }
      }
    }
  }

  const Product& p_;
  int64_t columns_;
};

// One pass of a scheme: the left plane, and the right plane it meets. Pass 0 is the head.
struct Pass {
  const Plane* left;
  Plane right;
};

Plane sum_of(const Plane& a, const Plane& b) {
  Plane out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] + b[i];
  return out;
}

// The right operand as a [k, n] matrix.
Plane oriented(const Product& p, const Plane& right) {
  if (!p.right_transposed) return right;
  Plane out(right.size());
  const int64_t inner = p.k / p.taps;
  for (int64_t tap = 0; tap < p.taps; ++tap) {
    ConstMap from(right.data() + tap * inner * p.n, p.n, inner);
    Map(out.data() + tap * inner * p.n, inner, p.n) = from.transpose();
  }
  return out;
}

// bf16x3 = hh + (lh + hl);  bf16x6 = hh + (mm + mh + lh + hl + hm), passes with a common left plane
// joined.
std::vector<Pass> passes_of(const Product& p, const Operand& a, const Operand& b) {
  std::vector<Pass> passes;
  passes.push_back({&a.parts[0], oriented(p, b.parts[0])});
  if (a.parts.size() == 2) {
    passes.push_back({&a.parts[1], passes[0].right});
    passes.push_back({&a.parts[0], oriented(p, b.parts[1])});
  } else if (a.parts.size() == 3) {
    passes.push_back({&a.parts[1], oriented(p, sum_of(b.parts[0], b.parts[1]))});
    passes.push_back({&a.parts[2], passes[0].right});
    passes.push_back({&a.parts[0], oriented(p, sum_of(b.parts[1], b.parts[2]))});
  }
  return passes;
}

struct Targets {
  double* head;
  double* rest;
  double* magnitude;
};

// Adds the contribution of the gathered rows [begin, end) of every pass: rows of the result, or
// (reduce_rows) terms.
void accumulate(const Product& p, const Gather& gather, const std::vector<Pass>& passes,
                const Operand& a, const Plane& right_magnitude, int64_t begin, int64_t end,
                std::vector<double>& buffer, Targets t) {
  const int64_t width = p.reduce_rows ? p.m : p.k;
  buffer.resize(static_cast<size_t>((end - begin) * width));
  ConstMap chunk(buffer.data(), end - begin, width);
  auto multiply = [&](const Plane& right, double* target) {
    if (p.reduce_rows) {
      Map(target, p.m, p.n).noalias() +=
          chunk.transpose() * ConstMap(right.data() + begin * p.n, end - begin, p.n);
    } else {
      Map(target + begin * p.n, end - begin, p.n).noalias() +=
          chunk * ConstMap(right.data(), p.k, p.n);
    }
  };
  const Plane* gathered = nullptr;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (passes[i].left != gathered) gather(*passes[i].left, begin, end, buffer.data());
    gathered = passes[i].left;
    multiply(passes[i].right, i == 0 ? t.head : t.rest);
  }
  if (a.magnitude.empty()) {
    for (double& x : buffer) x = std::fabs(x);
  } else {
    gather(a.magnitude, begin, end, buffer.data());
  }
  multiply(right_magnitude, t.magnitude);
}

void add_to(Plane& total, const Plane& part) {
  for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
}

void pin_blocking() {
  // Eigen's blocking follows the cache sizes of the machine; the oracle's digits shall not.
  static const bool once = [] {
    Eigen::setCpuCacheSizes(32 * 1024, 1024 * 1024, 8 * 1024 * 1024);
    return true;
  }();
  (void)once;
}

void copy_dims(const Dims& dims, int64_t* to) { std::copy(dims.begin(), dims.end(), to); }

}  // namespace

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

Operand split(const Tensor& t, DotPrecision precision, DotSplit how, bool flush) {
  const auto n = static_cast<size_t>(t.elements());
  const size_t parts = precision == DotPrecision::kBf16x3   ? 2
                       : precision == DotPrecision::kBf16x6 ? 3
                                                            : 1;
  Operand out;
  out.parts.assign(parts, Plane(n));
  if (parts > 1) out.magnitude.resize(n);
  for (size_t i = 0; i < n; ++i) {
    double rest = element(t, static_cast<int64_t>(i));
    double size = 0;
    if (precision == DotPrecision::kF32) {
      out.parts[0][i] = flush ? flushed(rest) : rest;
      size = std::fabs(out.parts[0][i]);
    } else {
      // rest is a binary32 number throughout: a split of a binary32 number leaves one.
      for (size_t part = 0; part < parts; ++part) {
        const auto x = twinrun::flush(static_cast<float>(rest));
        const bool cut = how == DotSplit::kTruncated && part + 1 < parts;
        const double value = bf16_to_f32(cut ? bf16_truncate(x) : bf16_round(x));
        out.parts[part][i] = value;
        size += std::fabs(value);
        rest -= value;
      }
    }
    if (parts > 1) out.magnitude[i] = size;
    if (finite(size)) out.largest = std::max(out.largest, size);
  }
  return out;
}

Sums evaluate(const Product& p, const Operand& a, const Operand& b, ThreadPool* pool) {
  pin_blocking();
  const auto size = static_cast<size_t>(p.m * p.n);
  const std::vector<Pass> passes = passes_of(p, a, b);
  Plane right_magnitude;
  if (b.magnitude.empty()) {
    right_magnitude = passes[0].right;
    for (double& x : right_magnitude) x = std::fabs(x);
  } else {
    right_magnitude = oriented(p, b.magnitude);
  }
  const Gather gather(p, p.reduce_rows ? p.m : p.k);
  const int64_t rows = p.reduce_rows ? p.k : p.m;
  const int64_t width = p.reduce_rows ? p.m : p.k;
  const int64_t chunk =
      std::clamp<int64_t>(kChunk / std::max<int64_t>(width, 1), 16, std::max<int64_t>(rows, 16));
  const int64_t chunks = (rows + chunk - 1) / chunk;
  auto empty = [&] { return Sums{Plane(size), Plane(passes.size() > 1 ? size : 0), Plane(size)}; };

  Sums total = empty();
  if (!p.reduce_rows) {
    in_pieces(pool, chunks, [&](int64_t c) {
      static thread_local std::vector<double> buffer;
      accumulate(p, gather, passes, a, right_magnitude, c * chunk, std::min(rows, (c + 1) * chunk),
                 buffer, {total.head.data(), total.rest.data(), total.magnitude.data()});
    });
    return total;
  }
  // The number of groups depends on the shape alone, so the digits do not depend on threads.
  const int64_t groups = std::clamp<int64_t>((int64_t{1} << 20) / std::max<int64_t>(p.m * p.n, 1),
                                             1, std::min<int64_t>(8, std::max<int64_t>(chunks, 1)));
  std::vector<Sums> parts(static_cast<size_t>(groups));
  in_pieces(pool, groups, [&](int64_t g) {
    Sums& mine = parts[static_cast<size_t>(g)];
    mine = empty();
    std::vector<double> buffer;
    for (int64_t c = chunks * g / groups; c < chunks * (g + 1) / groups; ++c) {
      accumulate(p, gather, passes, a, right_magnitude, c * chunk, std::min(rows, (c + 1) * chunk),
                 buffer, {mine.head.data(), mine.rest.data(), mine.magnitude.data()});
    }
  });
  for (const Sums& part : parts) {
    add_to(total.head, part.head);
    add_to(total.rest, part.rest);
    add_to(total.magnitude, part.magnitude);
  }
  return total;
}

}  // namespace twinrun::oracle

// Distances between the rows of two matrices, and their gradient.
#include "backends/aten/definitions.h"
#include "backends/aten/totals.h"

namespace twinrun::aten {
namespace {

// [.., p, d] and [.., r, d] with the same leading dimensions.
struct Pairs {
  Array x, y;
  Dims dims;  // [.., p, r]
  int64_t p = 0, r = 0, d = 0;
};
Pairs pairs_of(const Arguments& a, size_t first) {
  Pairs pairs{a.array(first, "x1"), a.array(first + 1, "x2"), {}, 0, 0, 0};
  const Element type = a.view(first).element;
  if (type != Element::kF32 && type != Element::kF64)
    throw Undefined("distances of half precision");
  Dims left = pairs.x.dims, right = pairs.y.dims;
  if (left.size() < 2 || right.size() < 2 || left.back() != right.back())
    throw Undefined("rows of different lengths");
  pairs.p = left[left.size() - 2], pairs.r = right[right.size() - 2], pairs.d = left.back();
  Dims lead = broadcast_dims(left.part(0, -2), right.part(0, -2));
  left = right = pairs.dims = lead;
  left.insert(left.end(), {pairs.p, pairs.d});
  right.insert(right.end(), {pairs.r, pairs.d});
  pairs.dims.insert(pairs.dims.end(), {pairs.p, pairs.r});
  pairs.x = broadcast(pairs.x, left);
  pairs.y = broadcast(pairs.y, right);
  return pairs;
}

// The sum of the squared differences, or of (-2 x, x^2, 1) (y, 1, y^2), a product of matrices whose
// error is relative to |x|^2 + |y|^2 and grows by the square root where the distance is small.
Estimate euclidean(const Arithmetic& m, const Pairs& k, int64_t i, int64_t j, bool by_products) {
  Total total;
  double squares = 0, products = 0;
  for (int64_t c = 0; c < k.d; ++c) {
    const Estimate x = k.x.at(i * k.d + c), y = k.y.at(j * k.d + c);
    const Estimate difference = m.sub(x, y);
    total.add(m.mul(difference, difference));
    squares += x.value * x.value + y.value * y.value;
    products += std::fabs(x.value * y.value);
  }
  const Estimate direct = total.of(m, 0);
  if (!by_products) return m.sqrt(direct);
  const double size = squares + 2 * products;
  const double relative = m.of_products(k.d + 3, m.operand);
  Estimate e{direct.value, relative * size + (m.of_sum(k.d) + m.unit) * squares};
  e.radius = std::fmax(direct.radius, e.radius * oracle::kOutward) +
             3 * static_cast<double>(k.d) * m.smallest;
  if (!(size < m.overflow)) e.radius = kInfinity;
  return m.sqrt(e);
}
Estimate distance(const Arithmetic& m, const Pairs& k, int64_t i, int64_t j, double p) {
  Total total;
  double largest = 0;
  for (int64_t c = 0; c < k.d; ++c) {
    Estimate e = m.sub(k.x.at(i * k.d + c), k.y.at(j * k.d + c));
    e.value = std::fabs(e.value);
    total.add(e);
    largest = std::fmax(largest, e.radius);
    if (p == kInfinity && e.value != e.value) return {e.value, kInfinity};
  }
  if (p == 1) return total.of(m, 0);
  double value = 0;
  for (int64_t c = 0; c < k.d; ++c)
    value = std::fmax(value, std::fabs(k.x.at(i * k.d + c).value - k.y.at(j * k.d + c).value));
  return {value, finite(value) ? largest : 0};
}
Expected distances(const Arguments& a, double p, bool by_products) {
  const Pairs k = pairs_of(a, 0);
  if (p != 1 && p != 2 && p != kInfinity)
    throw Undefined("distances of an order besides 1, 2, inf");
  Array out = empty_array(k.dims);
  if (out.size() == 0) return out;
  take_steps(kStepsOfOne * static_cast<double>(out.size()) * static_cast<double>(k.d));
  in_ranges(a.m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t i = n / k.r, j = i / k.p * k.r + n % k.r;
      out.set(n, p == 2 ? euclidean(a.m, k, i, j, by_products) : distance(a.m, k, i, j, p));
    }
  });
  return out;
}
Expected cdist(const Arguments& a) {
  // PyTorch takes products for more than 25 rows, unless the caller says always (1) or never (2).
  const auto rows = [&](size_t i) {
    const Dims& dims = a.view(i).dims;
    return dims.size() < 2 ? 0 : dims[dims.size() - 2];
  };
  const int64_t mode = a.integer(3, "compute_mode", 0);
  const bool many = rows(0) > 25 || rows(1) > 25;
  return distances(a, a.number(2, "p", 2), mode == 1 || (mode == 0 && many));
}
Expected euclidean_dist(const Arguments& a) { return distances(a, 2, true); }

// The sum over the other rows of dy (x - y) / distance, or dy sign(x - y); nothing at distance 0.
Expected cdist_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Pairs k = pairs_of(a, 1);
  const double p = a.number(3, "p", 2);
  if (p != 1 && p != 2) throw Undefined("distances of an order besides 1 and 2");
  const Array dy = broadcast(a.array(0, "grad"), k.dims),
              at = broadcast(a.array(4, "cdist"), k.dims);
  Array out = empty_array(k.x.dims);
  take_steps(kStepsOfOne * static_cast<double>(out.size()) * static_cast<double>(k.r));
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t i = n / k.d, c = n % k.d;
      Total total;
      for (int64_t s = 0; s < k.r; ++s) {
        const Estimate slope = dy.at(i * k.r + s), length = at.at(i * k.r + s);
        const Estimate difference = m.sub(k.x.at(n), k.y.at((i / k.p * k.r + s) * k.d + c));
        const double sign = difference.value > 0 ? 1 : difference.value < 0 ? -1 : 0;
        if (p == 1) {
          total.add({sign * slope.value, difference.value != difference.value ? kInfinity : 0});
        } else if (length.value != 0) {
          total.add(m.more(m.div(m.mul(slope, difference), length), m.unit));
        }
      }
      Estimate e = total.of(m, 0);
      if (!finite(e.value)) e.radius = kInfinity;
      out.set(n, e);
    }
  });
  return out;
}

constexpr Definition kDistanceDefinitions[] = {
    {"aten._cdist_forward", cdist},
    {"aten._cdist_backward", cdist_backward},
    {"aten._euclidean_dist", euclidean_dist},
};

}  // namespace

std::span<const Definition> distance_definitions() { return kDistanceDefinitions; }

}  // namespace twinrun::aten

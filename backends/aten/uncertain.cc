// Definitions for arguments that are known up to a radius: selections and decisions, where the bound
// covers every branch that the radius leaves open.
#include <algorithm>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

// What is either of two.
Estimate either(Estimate a, Estimate b) {
  return {a.value, std::fmax(a.radius, std::fabs(b.value - a.value) + b.radius)};
}
constexpr Estimate kOpen{0, 1};  // true or false

template <typename F>
Expected decide(const Arguments& a, F f) {
  return map(a.m, f, a.array(0, "self"), exact_operand(a));
}
template <typename F>
Expected compare(const Arguments& a, F f) {
  return decide(a, [f](Estimate x, Estimate y) {
    const double reach = x.radius + y.radius;
    if (reach > 0 && std::fabs(x.value - y.value) <= reach * oracle::kOutward) return kOpen;
    return exactly(f(x.value, y.value) ? 1 : 0);
  });
}
Expected eq(const Arguments& a) { return compare(a, std::equal_to<>()); }
Expected ne(const Arguments& a) { return compare(a, std::not_equal_to<>()); }
Expected lt(const Arguments& a) { return compare(a, std::less<>()); }
Expected le(const Arguments& a) { return compare(a, std::less_equal<>()); }
Expected gt(const Arguments& a) { return compare(a, std::greater<>()); }
Expected ge(const Arguments& a) { return compare(a, std::greater_equal<>()); }

// 1, 0, or open where the sign is not known.
Estimate truth(Estimate e) {
  if (std::fabs(e.value) <= e.radius) return e.radius > 0 ? kOpen : exactly(0);
  return exactly(e.value != 0 ? 1 : 0);
}
void need_truth(const Arguments& a) {
  if (a.call().op.starts_with("aten.bitwise") && a.view(0, "self").element != Element::kBool)
    throw Undefined("bits of numbers with a radius");
}
Expected logical_and(const Arguments& a) {
  need_truth(a);
  return decide(a, [](Estimate x, Estimate y) {
    x = truth(x), y = truth(y);
    const bool no = (x.radius == 0 && x.value == 0) || (y.radius == 0 && y.value == 0);
    if (no) return exactly(0);
    return x.radius + y.radius > 0 ? kOpen : exactly(1);
  });
}
Expected logical_or(const Arguments& a) {
  need_truth(a);
  return decide(a, [](Estimate x, Estimate y) {
    x = truth(x), y = truth(y);
    const bool yes = (x.radius == 0 && x.value == 1) || (y.radius == 0 && y.value == 1);
    if (yes) return exactly(1);
    return x.radius + y.radius > 0 ? kOpen : exactly(0);
  });
}
Expected logical_not(const Arguments& a) {
  need_truth(a);
  return map(
      a.m,
      [](Estimate x) {
        x = truth(x);
        return x.radius > 0 ? kOpen : exactly(1 - x.value);
      },
      a.array(0, "self"));
}
Estimate chosen(Estimate p, Estimate x, Estimate y) {
  p = truth(p);
  if (p.radius > 0) return either(x, y);
  return p.value != 0 ? x : y;
}
Expected where(const Arguments& a) {
  return map(a.m, chosen, a.array(0, "condition"), a.array(1, "self"), a.array(2, "other"));
}
Expected masked_fill(const Arguments& a) {
  return map(
      a.m, [](Estimate x, Estimate p, Estimate v) { return chosen(p, v, x); }, a.array(0, "self"),
      a.array(1, "mask"), a.array(2, "value"));
}
Estimate negated(Estimate e) { return {-e.value, e.radius}; }
Expected neg(const Arguments& a) { return map(a.m, negated, a.array(0, "self")); }
Expected absolute(const Arguments& a) {
  return map(
      a.m,
      [](Estimate x) {
        return Estimate{std::fabs(x.value), x.radius};
      },
      a.array(0, "self"));
}
// max and min change by at most what an operand changes.
Expected maximum(const Arguments& a) {
  return decide(a, [](Estimate x, Estimate y) { return Arithmetic::max(x, y); });
}
Estimate least(Estimate x, Estimate y) { return negated(Arithmetic::max(negated(x), negated(y))); }
Expected minimum(const Arguments& a) { return decide(a, least); }
Expected relu(const Arguments& a) {
  return map(
      a.m, [](Estimate x) { return Arithmetic::max(x, exactly(0)); }, a.array(0, "self"));
}
Expected clamp(const Arguments& a) {
  Array x = a.array(0, "self");
  const bool low = !a.call().op.starts_with("aten.clamp_max");
  const bool high = !a.call().op.starts_with("aten.clamp_min");
  if (low && a.has(1, "min")) {
    x = map(
        a.m, [](Estimate v, Estimate l) { return Arithmetic::max(v, l); }, x, a.array(1, "min"));
  }
  const size_t at = low ? 2 : 1;
  if (high && a.has(at, "max")) x = map(a.m, least, x, a.array(at, "max"));
  return x;
}
Expected threshold_backward(const Arguments& a) {
  const double threshold = a.number(2, "threshold", 0);
  return map(
      a.m,
      [&](Estimate dy, Estimate x) {
        if (x.radius > 0 && std::fabs(x.value - threshold) <= x.radius)
          return either(dy, exactly(0));
        return x.value <= threshold ? exactly(0) : dy;
      },
      a.array(0, "grad_output"), a.array(1, "self"));
}
// Whole exponents are products; a half is a root. The number of products bounds the roundings.
Expected power(const Arguments& a) {
  const double y = a.number(1, "exponent", 0);
  const Array x = a.array(0, "self");
  const Arithmetic& m = a.m;
  if (y == 0.5 || y == -0.5) {
    return map(
        m, [&](Estimate e) { return y > 0 ? m.sqrt(e) : m.div(exactly(1), m.sqrt(e)); }, x);
  }
  const double n = std::fabs(y);
  if (n != std::round(n) || n > 16 || n < 1) throw Undefined("a power of numbers with a radius");
  return map(
      m,
      [&](Estimate e) {
        Estimate p = e;
        for (int i = 1; i < static_cast<int>(n); ++i) p = m.mul(p, e);
        // A function for powers errs by more than the products: as for exact numbers.
        if (n > 2) p = m.more(p, (8 + 2 * n) * m.unit);
        return y > 0 ? p : m.div(exactly(1), p);
      },
      x);
}
// A function with a derivative of at most `slope` everywhere.
template <typename F>
Expected smooth(const Arguments& a, F f, double slope, double units) {
  return map(
      a.m,
      [&](Estimate x) {
        const Estimate e = a.m.more({f(x.value), 0}, units * a.m.unit);
        return Estimate{e.value, e.radius + slope * x.radius};
      },
      a.array(0, "self"));
}
Expected sin(const Arguments& a) {
  return smooth(
      a, [](double x) { return std::sin(x); }, 1, 8);
}
Expected cos(const Arguments& a) {
  return smooth(
      a, [](double x) { return std::cos(x); }, 1, 8);
}
Expected log1p(const Arguments& a) {
  return map(
      a.m,
      [&](Estimate x) {
        if (!(x.value - x.radius > -1)) return Estimate{0, kInfinity};
        return a.m.increasing(
            x, [](double v) { return std::log1p(v); }, 8);
      },
      a.array(0, "self"));
}
Expected expm1(const Arguments& a) {
  return map(
      a.m,
      [&](Estimate x) {
        return a.m.increasing(
            x, [](double v) { return std::expm1(v); }, 8);
      },
      a.array(0, "self"));
}

Expected as_element(const Arguments& a, Array x) {
  const Element to = a.result(0).element;
  if (!is_integer(to)) return x;
  if (to == Element::kBool) return map(a.m, truth, x);
  for (int64_t i = 0; i < x.size(); ++i) {
    const Estimate e = x.at(i);
    // Truth values have a radius of 1 around 0, which stays whole.
    if (e.radius > 0 && e.radius != std::round(e.radius))
      x.set(i, {std::trunc(e.value), e.radius + 1});
    if (e.radius == 0) x.set(i, {std::trunc(e.value), 0});
  }
  return x;
}
Expected convert(const Arguments& a) { return as_element(a, a.array(0, "self")); }
Expected copy(const Arguments& a) {
  return as_element(a, broadcast(a.array(1, "src"), a.view(0, "self").dims));
}

Expected amax(const Arguments& a) {
  return largest(a.m, a.array(0, "self"), a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
}
Expected amin(const Arguments& a) {
  const Array x = largest(a.m, map(a.m, negated, a.array(0, "self")), a.integers(1, "dim", {}),
                          a.flag(2, "keepdim", false));
  return map(a.m, negated, x);
}

// The definition for exact numbers at the values, and what the radii r move: the mean by their mean,
// the sum of squared deviations by at most sum(2 |x - mean| (r + R)) + sum((r + R)^2), R the mean's.
Expected spread(const Arguments& a, bool with_mean) {
  Call call = a.call();
  Array exact = a.array(0, "self");
  const Array x = exact;
  exact.radius.clear();
  call.args.at(0).tensor.estimate = &exact;
  Expected e = expected_of(call, a.m);
  const Value* second = a.find(1, "dim");
  const bool all = second != nullptr && second->kind == Value::Kind::kBool;
  const Dims dims = all ? Dims{} : a.integers(1, "dim", {});
  const double correction =
      a.number(SIZE_MAX, "correction", a.flag(all ? 1 : 2, "unbiased", true) ? 1 : 0);
  const Arithmetic plain{.unit = 0x1p-50};
  const auto part = [&](const std::function<double(Estimate)>& f) {
    return map(
        plain, [&](Estimate v) { return exactly(f(v)); }, x);
  };
  const Array off = mean(plain, part([](Estimate v) { return v.radius; }), dims, true);
  const Array mu = mean(plain, exact, dims, true);
  const Array moved = map(
      plain,
      [](Estimate v, Estimate c, Estimate r) {
        const double reach = v.radius + r.value;
        return exactly((2 * std::fabs(v.value - c.value) + reach) * reach * 1.001);
      },
      x, mu, off);
  const Array variance = sum(plain, moved, dims, true);
  const double n =
      static_cast<double>(x.size()) / static_cast<double>(std::max<int64_t>(1, mu.size()));
  // Roundings of the first order in the radii are of the second order: 1.001.
  const auto widen = [&](Array& to, const Array& by, double divisor) {
    if (to.radius.empty()) to.radius = Plane(to.value.size(), 0.0);
    for (int64_t i = 0; i < to.size(); ++i)
      to.radius[static_cast<size_t>(i)] += by.at(i).value * 1.001 / divisor;
  };
  widen(*e.results[0], variance, n - correction);
  if (with_mean) widen(*e.results[1], off, 1);
  return e;
}
Expected var(const Arguments& a) { return spread(a, false); }
Expected var_mean(const Arguments& a) { return spread(a, true); }

Expected select_scatter(const Arguments& a) {
  Array out = a.array(0, "self");
  const Array source = a.array(1, "src");
  const int64_t axis = axis_of(a.integer(2, "dim", 0), static_cast<int64_t>(out.dims.size()));
  const int64_t n = out.dims.at(static_cast<size_t>(axis));
  int64_t index = a.integer(3, "index", 0);
  if (index < 0) index += n;
  const int64_t inner = count(out.dims.part(axis + 1));
  if (index < 0 || index >= n || source.size() != out.size() / n)
    throw Undefined("a selection that does not fit");
  if (out.exact()) out.radius = Plane(out.value.size(), 0.0);
  for (int64_t i = 0; i < source.size(); ++i)
    out.set((i / inner * n + index) * inner + i % inner, source.at(i));
  return out;
}
// In one rounding or in two.
Expected fma(const Arguments& a) {
  const Arithmetic& m = a.m;
  return map(
      m, [&](Estimate x, Estimate y, Estimate z) { return m.add(m.mul(x, y), z); }, a.array(0),
      a.array(1), a.array(2));
}

// The windows of two-dimensional pooling: kernel, stride, padding and dilation of an axis.
struct Windows {
  int64_t kernel, stride, pad, dilation;
  int64_t at(int64_t out, int64_t offset) const { return out * stride - pad + offset * dilation; }
};
Windows windows_of(const Arguments& a, size_t first, size_t kernel_at, bool second) {
  const auto part = [&](std::pair<int64_t, int64_t> p) { return second ? p.second : p.first; };
  Windows w{part(a.pair(kernel_at, "kernel_size", 1)), part(a.pair(first, "stride", 1)),
            part(a.pair(first + 1, "padding", 0)), part(a.pair(first + 2, "dilation", 1))};
  if (w.kernel < 1 || w.kernel > 256 || w.stride < 1 || w.dilation < 1 || w.pad < 0)
    throw Undefined("impossible windows");
  return w;
}
bool of_three(const Arguments& a) { return a.integers(1, "kernel_size", {}).size() > 2; }
// The largest of each window, and its offset in the window, which is open where others are as large
// within their radii.
Expected max_pool(const Arguments& a) {
  const Array x = a.array(0, "self");
  const Dims& dims = a.result(0).dims;
  if (x.dims.size() < 3 || dims.size() != x.dims.size() || of_three(a))
    throw Undefined("pooling of other than two dimensions");
  const Windows rows = windows_of(a, 2, 1, false), columns = windows_of(a, 2, 1, true);
  const int64_t h = x.dims[x.dims.size() - 2], w = x.dims.back();
  const int64_t oh = dims[dims.size() - 2], ow = dims.back();
  if (x.size() == 0 || oh * ow == 0 || count(dims) / (oh * ow) != x.size() / (h * w))
    throw Undefined("pooling to another number of planes");
  Array out = empty_array(dims), offsets = empty_array(dims);
  take_steps(kStepsOfOne * static_cast<double>(out.size()) *
             static_cast<double>(rows.kernel * columns.kernel));
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t plane = i / (oh * ow) * h * w;
    Estimate best{-kInfinity, 0};
    double second = -kInfinity;  // how high another element may be
    int64_t chosen = -1;
    const auto visit = [&](auto f) {
      for (int64_t r = 0; r < rows.kernel; ++r) {
        for (int64_t c = 0; c < columns.kernel; ++c) {
          const int64_t y = rows.at(i / ow % oh, r), z = columns.at(i % ow, c);
          if (y >= 0 && y < h && z >= 0 && z < w)
            f(r * columns.kernel + c, x.at(plane + y * w + z));
        }
      }
    };
    Estimate largest_of{-kInfinity, 0};
    visit([&](int64_t offset, Estimate e) {
      largest_of = Arithmetic::max(largest_of, e);
      if (chosen < 0 || e.value > best.value) best = e, chosen = offset;
    });
    visit([&](int64_t offset, Estimate e) {
      if (offset != chosen) second = std::fmax(second, e.value + e.radius);
    });
    const bool open = chosen < 0 || !(best.value - best.radius > second);
    out.set(i, chosen < 0 ? Estimate{0, kInfinity} : largest_of);
    offsets.set(i, {static_cast<double>(chosen), open ? kInfinity : 0});
  }
  Expected e(std::move(out));
  e.results.emplace_back(std::move(offsets));
  return e;
}
Expected pool_indices(const Arguments& a) {
  Array offsets = a.array(0, "offsets");
  if (!offsets.exact()) throw Undefined("offsets that are not known");
  if (offsets.dims.size() < 3 || of_three(a))
    throw Undefined("pooling of other than two dimensions");
  const auto size = a.pair(2, "input_size", 1);
  const Windows rows = windows_of(a, 3, 1, false), columns = windows_of(a, 3, 1, true);
  const int64_t oh = offsets.dims[offsets.dims.size() - 2], ow = offsets.dims.back();
  for (int64_t i = 0; i < offsets.size(); ++i) {
    const auto k = as_integer(offsets.value[static_cast<size_t>(i)]);
    if (k < 0 || k >= rows.kernel * columns.kernel) throw Undefined("an offset out of its window");
    const int64_t y = rows.at(i / ow % oh, k / columns.kernel);
    const int64_t z = columns.at(i % ow, k % columns.kernel);
    if (y < 0 || y >= size.first || z < 0 || z >= size.second)
      throw Undefined("an offset out of its window");
    offsets.value[static_cast<size_t>(i)] = static_cast<double>(y * size.second + z);
  }
  return offsets;
}

// Draws, of which the range is known.
Expected drawn(const Arguments& a, double low, double high) {
  Array out = empty_array(a.result(0).dims);
  for (int64_t i = 0; i < out.size(); ++i)
    out.set(i, {low / 2 + high / 2, std::fabs(high - low) / 2 * oracle::kOutward});
  return out;
}
// The tails of a normal distribution that 64 random bits give end at 9.5.
constexpr double kTail = 10;
Expected seeds(const Arguments&) {
  Expected e;
  e.results.emplace_back(std::nullopt);
  return e;
}
Expected inductor_random(const Arguments& a) {
  const std::string mode = a.text(2, "mode", "");
  if (mode == "rand") return drawn(a, 0, 1);
  if (mode == "randn") return drawn(a, -kTail, kTail);
  throw Undefined("draws of an unknown distribution");
}
Expected inductor_randint(const Arguments& a) {
  return drawn(a, a.number(0, "low", 0), a.number(1, "high", 1) - 1);
}
Expected rand(const Arguments& a) { return drawn(a, 0, 1); }
Expected randn(const Arguments& a) { return drawn(a, -kTail, kTail); }
Expected uniform(const Arguments& a) {
  return drawn(a, a.number(1, "from", 0), a.number(2, "to", 1));
}
Expected bernoulli(const Arguments& a) {
  return map(
      a.m, [](Estimate) { return kOpen; }, empty_array(a.result(0).dims));
}

constexpr Definition kUncertainDefinitions[] = {
    {"prims.inductor_seed.default", seeds},
    {"prims.inductor_seeds.default", seeds},
    {"prims.inductor_lookup_seed.default", seeds},
    {"prims.inductor_random.default", inductor_random},
    {"prims.inductor_randint.default", inductor_randint},
    {"aten.rand", rand},
    {"aten.rand_like", rand},
    {"aten.randn", randn},
    {"aten.randn_like", randn},
    {"aten.uniform", uniform},
    {"aten.randint.low", inductor_randint},
    {"aten.bernoulli", bernoulli},
    {"aten.eq", eq},
    {"aten.ne", ne},
    {"aten.lt", lt},
    {"aten.le", le},
    {"aten.gt", gt},
    {"aten.ge", ge},
    {"aten.logical_and", logical_and},
    {"aten.bitwise_and", logical_and},
    {"aten.logical_or", logical_or},
    {"aten.bitwise_or", logical_or},
    {"aten.logical_not", logical_not},
    {"aten.bitwise_not", logical_not},
    {"aten.where", where},
    {"aten.masked_fill", masked_fill},
    {"aten.neg", neg},
    {"aten.abs", absolute},
    {"aten.maximum", maximum},
    {"aten.minimum", minimum},
    {"aten.relu", relu},
    {"aten.clamp", clamp},
    {"aten.clamp_min", clamp},
    {"aten.clamp_max", clamp},
    {"aten.threshold_backward", threshold_backward},
    {"aten.pow", power},
    {"aten.sin", sin},
    {"aten.cos", cos},
    {"aten.log1p", log1p},
    {"aten.expm1", expm1},
    {"aten._to_copy", convert},
    {"prims.convert_element_type.default", convert},
    {"aten.copy", copy},
    {"aten.copy_", copy},
    {"aten.amax", amax},
    {"aten.amin", amin},
    {"aten.select_scatter", select_scatter},
    {"prims.fma.default", fma},
    {"prims._low_memory_max_pool_with_offsets.default", max_pool},
    {"aten.var", var},
    {"aten.var_mean", var_mean},
};

// Calls that compilers put in place of others.
Expected converted_to(const Arguments& a) {
  return converted(a.array(0, "a"), a.result(0).element);
}
Expected iota(const Arguments& a) {
  const int64_t n = a.integer(0, "length", 0);
  if (n < 0 || n != count(a.result(0).dims)) throw Undefined("a length of another size");
  const double start = a.number(SIZE_MAX, "start", 0), step = a.number(SIZE_MAX, "step", 1);
  Array out = empty_array({n}, true);
  for (int64_t i = 0; i < n; ++i)
    out.value[static_cast<size_t>(i)] = start + static_cast<double>(i) * step;
  return out;
}

constexpr Definition kPrims[] = {
    {"prims.convert_element_type.default", converted_to},
    {"prims.iota.default", iota},
    {"prims.fma.default", fma},
    {"prims._low_memory_max_pool_with_offsets.default", max_pool},
    {"prims._low_memory_max_pool_offsets_to_indices.default", pool_indices},
};

}  // namespace

std::span<const Definition> uncertain_definitions() { return kUncertainDefinitions; }
std::span<const Definition> prim_definitions() { return kPrims; }

}  // namespace twinrun::aten

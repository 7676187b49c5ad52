// Reductions, scattered sums, pooling and its gradients.
#include "backends/oracle/walks.h"
#include "backends/radii/internal.h"

namespace twinrun::radii {
namespace {

// A sum in any order of terms that are known up to their intervals.
struct Sum {
  double value = 0, low = 0, high = 0;
  double mass = 0;                  // of the sizes of the terms
  int64_t terms = 0;                // that are not zero
  bool whole = true;                // all terms are exact whole numbers
  bool above = true, below = true;  // no term may be negative; or positive
  bool nan = false, lost = false;   // some term is NaN; some term is not known

  void add(Interval e) { add(e, e.size()); }
  void add(Interval e, double size) {
    value += e.value;
    if (e.low == 0 && e.high == 0 && size == 0) return;
    ++terms;
    if (e.nan()) return void(nan = true);
    lost = lost || !oracle::finite(e.low) || !oracle::finite(e.high);
    low += e.low, high += e.high;
    mass += size;
    whole = whole && e.exact() && e.value == std::trunc(e.value);
    above = above && e.low >= 0;
    below = below && e.high <= 0;
  }
  // Also a term that may be absent.
  void add_perhaps(Interval e) {
    if (!e.nan()) add({0, std::fmin(e.low, 0), std::fmax(e.high, 0)});
    lost = lost || e.nan();
  }
};

// `more`: how many such sums may become one sum. The rounding to the type is still missing.
Interval ranged(const Sum& s, const Rules& rules, double more) {
  if (s.terms == 0) return exactly(0);
  if (s.nan) return exactly(std::nan(""));
  const auto n = static_cast<double>(s.terms);
  if (s.whole && s.mass < 0x1p24 && rules.holds(s.value)) return exactly(s.value);
  const double depth = more > 1 ? n * more : n - 1;
  // A sum may be kept in binary32 or be rounded to its type after every addition.
  const double relative = rules.of_sum(depth) + n * 0x1p-52;
  if (s.lost || !(s.mass * (1 + relative) < rules.largest() / 2)) return anything(s.value);
  double error = s.mass * relative * kOutward;
  if (depth > 0) error += n * rules.lost();
  Interval e{s.value, s.low - error, s.high + error};
  if (depth == 0 && s.low == s.high) return exactly(s.value);
  // Roundings keep the order: sums of numbers that are not negative are not negative.
  if (s.above) e.low = std::fmax(e.low, 0);
  if (s.below) e.high = std::fmin(e.high, 0);
  return e;
}
Interval averaged(Interval sum, double count, const Rules& rules) {
  const Interval e = multiply(sum, {1 / count, 1 / count, 1 / count});
  return sum.exact() && rules.holds(e.value) && e.value * count == sum.value
             ? exactly(e.value)
             : rules.widened(e, rules.unit() + 2.5 * oracle::kUnit);
}

bool is_maximum(const Op& op) { return op.attrs.reducer == Reducer::kMax; }

Interval result_of(const Site& site, const Sum& s, int64_t count) {
  const Rules rules = site.rules();
  if (!site.floats()) return s.lost ? anything(s.value) : Interval{s.value, s.low, s.high};
  const Interval e = ranged(s, rules, site.later);
  if (site.op.attrs.reducer == Reducer::kMean && count > 0)
    return averaged(e, static_cast<double>(count), rules);
  return rules.rounded(e);
}

Known reduce(const Site& site) {
  const Op& op = site.op;
  const Known& x = *site.x[0];
  Known out = fresh(op);
  const Planes to = planes_of(out);
  const oracle::RunTargets targets(x.value.dims(), op.attrs.dims);
  const int64_t run = targets.run(), n = x.value.elements(), results = op.type.elements();
  const auto target = [&](int64_t row, int64_t i) {
    return targets.of_run(row) + i * targets.step();
  };
  if (is_maximum(op)) {
    for (int64_t i = 0; i < results; ++i) to.set(i, exactly(-kInfinity));
    for (int64_t row = 0; run > 0 && row < n / run; ++row) {
      for (int64_t i = 0; i < run; ++i) {
        const int64_t r = target(row, i);
        to.set(r, larger({to.value[r], to.low[r], to.high[r]}, at(x, row * run + i)));
      }
    }
    return out;
  }
  std::vector<Sum> sums(static_cast<size_t>(results));
  const bool of_sums = x.one_sum_with(op);
  for (int64_t row = 0; run > 0 && row < n / run; ++row) {
    const int64_t first = targets.of_run(row);
    for (int64_t i = 0; i < run; ++i) {
      const int64_t from = row * run + i;
      const Interval e = at(x, from);
      sums[static_cast<size_t>(first + i * targets.step())].add(
          e, of_sums ? x.mass.as<const double>()[static_cast<size_t>(from)] : e.size());
    }
  }
  Site joint = site;
  if (of_sums) joint.later *= x.terms;
  for (int64_t i = 0; i < results; ++i)
    to.set(i, result_of(joint, sums[static_cast<size_t>(i)], n / std::max<int64_t>(1, results)));
  if (op.attrs.reducer != Reducer::kSum || !site.floats()) return out;
  out.mass = Tensor::empty({DType::kF64, op.type.dims});
  for (int64_t i = 0; i < results; ++i)
    out.mass.as<double>()[static_cast<size_t>(i)] = sums[static_cast<size_t>(i)].mass;
  out.terms = static_cast<double>(n) / static_cast<double>(std::max<int64_t>(1, results)) *
              (of_sums ? x.terms : 1);
  out.reduced = true;
  out.stem = stem_of(op);
  return out;
}

// Rows of which the index is not known may be added to any row that it may mean.
Known scatter_add(const Site& site) {
  const Known &ids = *site.x[0], &dy = *site.x[1];
  const int64_t rows = site.op.type.dims[0], width = site.op.type.elements() / rows;
  std::vector<Sum> sums(static_cast<size_t>(rows * width));
  const auto row = [&](double id) {
    return static_cast<int64_t>(std::clamp(id, 0.0, static_cast<double>(rows - 1)));
  };
  constexpr int64_t kMost = int64_t{1} << 26;  // elements to look at
  int64_t looked_at = 0;
  bool all_lost = false;
  for (int64_t i = 0; i < ids.value.elements(); ++i) {
    const Interval id = at(ids, i);
    const int64_t first = row(id.low), last = row(id.high), chosen = row(id.value);
    if (first != last) looked_at += (last - first + 1) * width;
    all_lost = all_lost || looked_at > kMost;
    for (int64_t r = first; r <= last && !all_lost; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        Sum& to = sums[static_cast<size_t>(r * width + c)];
        const Interval e = at(dy, i * width + c);
        if (first == last) {
          to.add(e);
        } else {
          to.add_perhaps(e);
          if (r == chosen) to.value += e.value;
        }
      }
    }
  }
  Known out = fresh(site.op);
  const Planes to = planes_of(out);
  for (int64_t i = 0; i < rows * width; ++i) {
    Sum& s = sums[static_cast<size_t>(i)];
    s.lost = s.lost || all_lost;
    if (all_lost) ++s.terms;
    to.set(i, result_of(site, s, 0));
  }
  if (all_lost) out.why = site.op.name + ": too many rows may be meant";
  return out;
}

Known pool(const Site& site) {
  const Op& op = site.op;
  const Known& x = *site.x[0];
  const oracle::Pooling pooling(x.value.dims(), op.type.dims, op.attrs.window);
  const int64_t channels = pooling.channels(), pixels = pooling.image[1] * pooling.image[2],
                windows = pooling.grid[1] * pooling.grid[2];
  Known out = fresh(op);
  const Planes to = planes_of(out);
  in_pieces(site.pool, op.type.dims[0], [&](int64_t n) {
    pooling.windows([&](int64_t i, int64_t y, int64_t w) {
      for (int64_t c = 0; c < channels; ++c) {
        Interval most = exactly(-kInfinity);
        Sum sum;
        int64_t count = 0;
        pooling.taps(y, w, [&](int64_t tap) {
          const Interval e = at(x, (n * pixels + tap) * channels + c);
          ++count;
          is_maximum(op) ? void(most = larger(most, e)) : sum.add(e);
        });
        to.set((n * windows + i) * channels + c,
               is_maximum(op) ? most : result_of(site, sum, count));
      }
    });
  });
  return out;
}

// Every window gives its dy to its largest element; where several may be the largest, perhaps.
void give_to_largest(const oracle::Pooling& pooling, const Known& x, int64_t pixels, int64_t first,
                     int64_t y, int64_t w, int64_t c, Interval dy, std::vector<Sum>& sums) {
  const int64_t channels = pooling.channels();
  const auto pixel = [&](int64_t tap) {
    const Interval e = at(x, (first * pixels + tap) * channels + c);
    return e.nan() ? anything(kInfinity) : e;
  };
  double least = -kInfinity, most = -kInfinity;
  int64_t chosen = -1, candidates = 0;
  pooling.taps(y, w, [&](int64_t tap) {
    const Interval e = pixel(tap);
    least = std::fmax(least, e.low);
    if (chosen < 0 || e.value > most) chosen = tap, most = e.value;
  });
  pooling.taps(y, w, [&](int64_t tap) { candidates += pixel(tap).high >= least ? 1 : 0; });
  pooling.taps(y, w, [&](int64_t tap) {
    if (!(pixel(tap).high >= least)) return;
    Sum& to = sums[static_cast<size_t>(tap * channels + c)];
    if (candidates == 1) return to.add(dy);
    to.add_perhaps(dy);
    if (tap == chosen) to.value += dy.value;
  });
}

Known unpool(const Site& site) {
  const Op& op = site.op;
  const bool average = op.kind == OpKind::kAvgPoolGrad;
  const Known& dy = *site.x[average ? 0 : 1];
  const Rules rules = site.rules();
  const oracle::Pooling pooling(op.type.dims, dy.value.dims(), op.attrs.window);
  const int64_t channels = pooling.channels(), pixels = pooling.image[1] * pooling.image[2],
                windows = pooling.grid[1] * pooling.grid[2];
  Known out = fresh(op);
  const Planes to = planes_of(out);
  in_pieces(site.pool, op.type.dims[0], [&](int64_t n) {
    std::vector<Sum> sums(static_cast<size_t>(pixels * channels));
    pooling.windows([&](int64_t i, int64_t y, int64_t w) {
      int64_t count = 0;
      pooling.taps(y, w, [&](int64_t) { ++count; });
      for (int64_t c = 0; c < channels; ++c) {
        const Interval e = at(dy, (n * windows + i) * channels + c);
        if (!average) {
          give_to_largest(pooling, *site.x[0], pixels, n, y, w, c, e, sums);
          continue;
        }
        const Interval share = averaged(e, static_cast<double>(count), rules);
        pooling.taps(
            y, w, [&](int64_t tap) { sums[static_cast<size_t>(tap * channels + c)].add(share); });
      }
    });
    for (size_t i = 0; i < sums.size(); ++i)
      to.set(n * pixels * channels + static_cast<int64_t>(i), result_of(site, sums[i], 0));
  });
  return out;
}

}  // namespace

Known eval_sum(const Site& site) {
  if (!site.floats() && site.all_exact()) return by_oracle(site);
  return site.op.kind == OpKind::kReduce ? reduce(site) : scatter_add(site);
}

Known eval_window(const Site& site) {
  return site.op.kind == OpKind::kReduceWindow ? pool(site) : unpool(site);
}

}  // namespace twinrun::radii

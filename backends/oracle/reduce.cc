// Reductions, scatter_add, pooling and its gradients, and the all-reduce: sums of known depth
// (docs/method/bounds.md, "Sums").
#include <bit>

#include "backends/oracle/internal.h"
#include "backends/oracle/walks.h"

namespace twinrun::oracle {
namespace {

// A sum of terms, with everything that its bound needs.
struct Sum {
  double value = 0;
  double magnitude = 0;  // sum of the sizes of the finite terms
  int64_t terms = 0;
  bool tiny_term = false;  // one of the terms is a binary32 denormal
  void add(double x) {
    value += x;
    if (finite(x)) magnitude += std::fabs(x);
    if (x != 0 && std::fabs(x) < kMinNormal) tiny_term = true;
    ++terms;
  }
};

// The computed sum before it is stored, if every term passes through at most `depth` rounded
// additions. `lost` bounds what one operation may lose below the normal range (additions of
// binary32 numbers lose nothing without flush).
Estimate estimate(const Sum& s, double depth, double lost, double unit = kUnit) {
  const auto n = static_cast<double>(s.terms);
  const double relative = gamma(depth, unit) + (s.terms > 1 ? n * 0x1p-52 : 0);
  if (!finite(relative) || s.magnitude * (1 + relative) >= kBinary32.overflow)
    return {s.value, kInfinity};
  return {s.value, s.magnitude * relative + n * lost};
}

// The sum as f32 or bf16 arithmetic stores it, without another operation.
Estimate stored_sum(const Sum& s, double depth, Storage storage) {
  // A single term is moved, with its bits unchanged; but with flush an engine may or may not flush
  // a denormal.
  const bool moved = s.terms <= 1 && !(storage.flush && s.tiny_term);
  if (moved && storage.dtype != DType::kBF16) return {s.value, 0};
  if (moved)
    return {finite(s.value) ? bf16_to_f32(bf16_round(static_cast<float>(s.value))) : s.value, 0};
  const Estimate e = estimate(s, depth, storage.flush ? kMinNormal : 0);
  if (!finite(e.radius)) return e;
  return store(e, Final::kIncluded, storage);
}

Estimate divided(Estimate e, double by, Storage storage) {
  if (!finite(e.radius)) return e;
  const double value = e.value / by;
  if (!finite(value)) return {value, 0};
  // The count itself is a binary32 number, rounded if it is above 2^24.
  const double of_count = by > 0x1p24 ? std::fabs(value) * kUnit : 0;
  return store({value, (e.radius / by + std::fabs(value) * 0x1p-52) * kOutward + of_count},
               Final::kRounds, storage);
}

// A sum of integers, modulo 2^32.
Estimate wrapped(double sum) {
  const auto bits = static_cast<uint32_t>(static_cast<int64_t>(sum));
  return {static_cast<double>(static_cast<int32_t>(bits)), 0};
}

// The depth of the contract's order: lanes, tree and segments. A foreign engine may add in any
// order.
double reduce_depth(const Capabilities& declared, int64_t n) {
  if (!declared.ours) return static_cast<double>(std::max<int64_t>(n - 1, 0));
  const int64_t segment = std::min<int64_t>(n, 4096);
  const int64_t chain = (segment + 15) / 16 - 1;
  const int64_t tree = (segment > 8) + (segment > 4) + (segment > 2) + (segment > 1);
  const int64_t segments = (n + 4095) / 4096;
  return static_cast<double>(chain + tree + segments - 1);
}

// Whether each number is zero, or finite and at least the smallest normal number of binary32 in
// size.
bool all_ordinary(const double* x, int64_t n) {
  constexpr auto kMin = std::bit_cast<int64_t>(kMinNormal),
                 kInfinite = std::bit_cast<int64_t>(kInfinity);
  int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t bits = std::bit_cast<int64_t>(x[i]) & INT64_MAX;
    bad |= (bits != 0 && bits < kMin ? 1 : 0) | (bits >= kInfinite ? 1 : 0);
  }
  return bad == 0;
}

// Many sums at once, as a structure of arrays.
struct SumArray {
  std::vector<double> value, magnitude;
  std::vector<uint8_t> tiny_term;
  explicit SumArray(size_t n) : value(n), magnitude(n), tiny_term(n) {}

  void add_run(const double* x, int64_t n, int64_t at, int64_t step) {
    double* v = value.data() + at;
    double* m = magnitude.data() + at;
    if (!all_ordinary(x, n)) {
      for (int64_t i = 0; i < n; ++i) add(static_cast<size_t>(at + i * step), x[i]);
    } else if (step == 0) {
      double total = 0;
      for (int64_t i = 0; i < n; ++i) {
        *v += x[i];
        total += std::fabs(x[i]);
      }
      *m += total;
    } else {
      for (int64_t i = 0; i < n; ++i) {
        v[i] += x[i];
        m[i] += std::fabs(x[i]);
      }
    }
  }
  // Adds whole rows of `width` elements each, every one to the elements 0 to width - 1, in order.
  void add_rows(const double* x, int64_t rows, int64_t width) {
    if (!all_ordinary(x, rows * width)) {
      for (int64_t row = 0; row < rows; ++row) add_run(x + row * width, width, 0, 1);
      return;
    }
    constexpr int64_t kColumns = 8;  // whose sums stay in registers
    int64_t c = 0;
    for (; c + kColumns <= width; c += kColumns) {
      double v[kColumns], m[kColumns];
      std::copy_n(value.data() + c, kColumns, v);
      std::copy_n(magnitude.data() + c, kColumns, m);
      for (int64_t row = 0; row < rows; ++row) {
        const double* from = x + row * width + c;
        for (int64_t i = 0; i < kColumns; ++i) v[i] += from[i];
        for (int64_t i = 0; i < kColumns; ++i) m[i] += std::fabs(from[i]);
      }
      std::copy_n(v, kColumns, value.data() + c);
      std::copy_n(m, kColumns, magnitude.data() + c);
    }
    for (int64_t row = 0; row < rows && c < width; ++row) {
      for (int64_t i = c; i < width; ++i) {
        value[static_cast<size_t>(i)] += x[row * width + i];
        magnitude[static_cast<size_t>(i)] += std::fabs(x[row * width + i]);
      }
    }
  }
  void clear() {
    std::ranges::fill(value, 0.0);
    std::ranges::fill(magnitude, 0.0);
    std::ranges::fill(tiny_term, 0);
  }
  void add(size_t at, double x) {
    value[at] += x;
    if (finite(x)) magnitude[at] += std::fabs(x);
    if (x != 0 && std::fabs(x) < kMinNormal) tiny_term[at] = 1;
  }
  Sum sum(size_t at, int64_t terms) const {
    return {value[at], magnitude[at], terms, tiny_term[at] != 0};
  }
  void add(const SumArray& other) {
    for (size_t i = 0; i < value.size(); ++i) {
      value[i] += other.value[i];
      magnitude[i] += other.magnitude[i];
      tiny_term[i] |= other.tiny_term[i];
    }
  }
};

// The sums of x over the reduced dimensions. The grouping of rows depends on the shape alone, so
// the digits do not depend on the number of threads.
SumArray sums_of(const Call& call, int64_t outputs) {
  const Tensor& x = call.inputs[0];
  const RunTargets targets(x.dims(), call.op.attrs.dims);
  const int64_t run = targets.run(), rows = run == 0 ? 0 : x.elements() / run;
  const int64_t groups =
      std::clamp<int64_t>(std::min(x.elements() / kSummedRange, (int64_t{1} << 21) / (outputs + 1)),
                          1, std::clamp<int64_t>(rows, 1, 16));
  std::vector<SumArray> parts(static_cast<size_t>(groups), SumArray(static_cast<size_t>(outputs)));
  in_pieces(call.pool, groups, [&](int64_t g) {
    SumArray& mine = parts[static_cast<size_t>(g)];
    constexpr int64_t kBuffer = 1024;
    double buffer[kBuffer];
    const double* const wide = x.dtype() == DType::kF64 ? x.as<double>().data() : nullptr;
    if (targets.same_targets() && targets.step() == 1 && run <= kBuffer) {
      const int64_t end = rows * (g + 1) / groups, each = kBuffer / std::max<int64_t>(run, 1);
      for (int64_t row = rows * g / groups; row < end; row += each) {
        const int64_t count = std::min(each, end - row);
        if (wide == nullptr) elements(x, row * run, count * run, buffer);
        mine.add_rows(wide != nullptr ? wide + row * run : buffer, count, run);
      }
      return;
    }
    for (int64_t row = rows * g / groups; row < rows * (g + 1) / groups; ++row) {
      const int64_t at = targets.of_run(row);
      for (int64_t from = 0; from < run; from += kBuffer) {
        const int64_t n = std::min(kBuffer, run - from);
        if (wide == nullptr) elements(x, row * run + from, n, buffer);
        mine.add_run(wide != nullptr ? wide + row * run + from : buffer, n,
                     at + from * targets.step(), targets.step());
      }
    }
  });
  for (int64_t g = 1; g < groups; ++g) parts[0].add(parts[static_cast<size_t>(g)]);
  return std::move(parts[0]);
}

double larger(double a, double b) { return a != a ? a : b != b ? b : a < b ? b : a; }

// The channels of one pixel as an arithmetic op reads them: flushed if the engine flushes.
void pixel(const Call& call, size_t which, int64_t at, int64_t channels, double* to) {
  elements(call.inputs[which], at * channels, channels, to);
  for (int64_t c = 0; call.declared.flush && c < channels; ++c) to[c] = flushed(to[c]);
}

void eval_pooling(const Call& call) {
  const Op& op = call.op;
  const Pooling pool(call.inputs[0].dims(), op.type.dims, op.attrs.window);
  const int64_t channels = pool.channels(), pixels = pool.image[1] * pool.image[2],
                windows = pool.grid[1] * pool.grid[2];
  const bool maximum = op.attrs.reducer == Reducer::kMax;
  in_pieces(call.pool, op.type.dims[0], [&](int64_t n) {
    const auto width = static_cast<size_t>(channels);
    std::vector<double> x(width), most(width);
    SumArray sums(width);
    pool.windows([&](int64_t i, int64_t y, int64_t w) {
      std::ranges::fill(most, -kInfinity);
      if (!maximum) sums.clear();
      int64_t terms = 0;
      pool.taps(y, w, [&](int64_t at) {
        pixel(call, 0, n * pixels + at, channels, x.data());
        ++terms;
        if (!maximum) return sums.add_run(x.data(), channels, 0, 1);
        for (size_t c = 0; c < width; ++c) most[c] = larger(most[c], x[c]);
      });
      for (size_t c = 0; c < width; ++c) {
        const int64_t e = (n * windows + i) * channels + static_cast<int64_t>(c);
        if (maximum) {
          call.set(e, {most[c], 0});
          continue;
        }
        const double depth = static_cast<double>(std::max<int64_t>(terms - 1, 0));
        const Estimate sum =
            estimate(sums.sum(c, terms), depth, call.declared.flush ? kMinNormal : 0);
        call.set(e, divided(sum, static_cast<double>(terms), call.storage()));
      }
    });
  });
}

// For each channel of a window, the pixel of the first maximum, or of the first NaN; -1 if no tap
// is inside the image.
struct Selected {
  std::vector<double> x, most;
  std::vector<int64_t> at;
  explicit Selected(size_t channels) : x(channels), most(channels), at(channels) {}

  void find(const Call& call, const Pooling& pool, int64_t first, int64_t y, int64_t w) {
    std::ranges::fill(at, -1);
    std::ranges::fill(most, 0.0);
    pool.taps(y, w, [&](int64_t pixel_of_tap) {
      pixel(call, 0, first + pixel_of_tap, pool.channels(), x.data());
      for (size_t c = 0; c < x.size(); ++c) {
        const double v = x[c];
        const bool better = at[c] < 0 || (most[c] == most[c] && (v != v || v > most[c]));
        at[c] = better ? pixel_of_tap : at[c];
        most[c] = better ? v : most[c];
      }
    });
  }
};

// select_and_scatter and avg_pool_grad: every element of x sums contributions of the windows that
// contain it.
void eval_scatter(const Call& call) {
  const Op& op = call.op;
  const bool average = op.kind == OpKind::kAvgPoolGrad;
  const size_t dy = average ? 0 : 1;
  const Pooling pool(op.type.dims, call.inputs[dy].dims(), op.attrs.window);
  const int64_t channels = pool.channels(), pixels = pool.image[1] * pool.image[2],
                windows = pool.grid[1] * pool.grid[2];
  const auto width = static_cast<size_t>(channels);
  in_pieces(call.pool, op.type.dims[0], [&](int64_t n) {
    SumArray sums(static_cast<size_t>(pixels) * width);
    std::vector<int32_t> terms(sums.value.size());
    Selected selected(width);
    std::vector<double> given(width);
    pool.windows([&](int64_t i, int64_t y, int64_t w) {
      if (!average) {
        selected.find(call, pool, n * pixels, y, w);
        elements(call.inputs[dy], (n * windows + i) * channels, channels, given.data());
        for (size_t c = 0; c < width; ++c) {
          if (selected.at[c] < 0) continue;
          const size_t to = static_cast<size_t>(selected.at[c]) * width + c;
          sums.add(to, given[c]);
          ++terms[to];
        }
        return;
      }
      int64_t count = 0;
      pool.taps(y, w, [&](int64_t) { ++count; });
      pixel(call, dy, n * windows + i, channels, given.data());
      for (double& share : given) share /= static_cast<double>(count);
      pool.taps(y, w, [&](int64_t at) {
        sums.add_run(given.data(), channels, at * channels, 1);
        for (size_t c = 0; c < width; ++c) ++terms[static_cast<size_t>(at) * width + c];
      });
    });
    for (size_t i = 0; i < terms.size(); ++i) {
      const Sum s = sums.sum(i, terms[i]);
      const auto count = static_cast<double>(s.terms);
      Estimate e;
      if (!average) {
        e = stored_sum(s, std::max(count - 1, 0.0), call.storage());
      } else if (s.terms == 1) {
        e = store({s.value, finite(s.value) ? std::fabs(s.value) * 0x1p-52 : 0}, Final::kRounds,
                  call.storage());
        // Below, quotients round too: the depth is additions + 1, and each may lose a tiny result.
      } else if (s.terms > 1) {
        e = estimate(s, count, call.declared.flush ? 2 * kMinNormal : 0x1p-150);
        if (finite(e.radius)) e = store(e, Final::kIncluded, call.storage());
      }
      call.set(n * pixels * channels + static_cast<int64_t>(i), e);
    }
  });
}

}  // namespace

void eval_reduce(const Call& call) {
  const Op& op = call.op;
  const Tensor& x = call.inputs[0];
  const int64_t outputs = op.type.elements();
  if (op.attrs.reducer == Reducer::kMax || op.type.dtype == DType::kI32) {
    const RunTargets targets(x.dims(), op.attrs.dims);
    std::vector<double> most(static_cast<size_t>(outputs), -kInfinity), total(most.size());
    const bool integers = op.type.dtype == DType::kI32;
    const int64_t run = targets.run(), rows = run == 0 ? 0 : x.elements() / run;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t first = targets.of_run(row);
      for (int64_t i = 0; i < run; ++i) {
        const auto at = static_cast<size_t>(first + i * targets.step());
        const double v = integers ? number_at(x, row * run + i) : operand(call, 0, row * run + i);
        most[at] = larger(most[at], v);
        total[at] += v;
      }
    }
    for (int64_t i = 0; i < outputs; ++i) {
      const auto u = static_cast<size_t>(i);
      if (op.attrs.reducer == Reducer::kMax) {
        call.set(i, {most[u], 0});
      } else {
        call.set(i, wrapped(total[u]));
      }
    }
    return;
  }
  const SumArray sums = sums_of(call, outputs);
  const int64_t terms = outputs == 0 ? 0 : x.elements() / outputs;
  for (int64_t i = 0; i < outputs; ++i) {
    const auto u = static_cast<size_t>(i);
    const Sum s = sums.sum(u, terms);
    const double depth = reduce_depth(call.declared, s.terms);
    if (op.attrs.reducer == Reducer::kSum) {
      call.set(i, stored_sum(s, depth, call.storage()));
    } else {
      const Estimate e = estimate(s, depth, call.declared.flush ? kMinNormal : 0);
      call.set(i, divided(e, static_cast<double>(s.terms), call.storage()));
    }
  }
}

void eval_scatter_add(const Call& call) {
  const Tensor &ids = call.inputs[0], &dy = call.inputs[1];
  const int64_t rows = call.op.type.dims[0], width = call.op.type.elements() / rows;
  std::vector<Sum> sums(static_cast<size_t>(rows * width));
  for (int64_t i = 0; i < ids.elements(); ++i) {
    const int64_t id = ids.as<int32_t>()[static_cast<size_t>(i)];
    Sum* const row = sums.data() + std::clamp<int64_t>(id, 0, rows - 1) * width;
    for (int64_t c = 0; c < width; ++c) row[c].add(number_at(dy, i * width + c));
  }
  for (int64_t i = 0; i < rows * width; ++i) {
    const Sum& s = sums[static_cast<size_t>(i)];
    const auto depth = static_cast<double>(std::max<int64_t>(s.terms - 1, 0));
    call.set(i, call.op.type.dtype == DType::kI32 ? wrapped(s.value)
                                                  : stored_sum(s, depth, call.storage()));
  }
}

void eval_window(const Call& call) {
  if (call.op.kind == OpKind::kReduceWindow) return eval_pooling(call);
  eval_scatter(call);
}

void eval_all_reduce(const Call& call) {
  const auto replicas = call.inputs.size();
  const bool bf16 = call.op.type.dtype == DType::kBF16;
  // With bf16 contributions, every hop rounds to binary32, then to bf16.
  const double unit = bf16 ? kBfloat16.unit() + kUnit * 2 : kUnit;
  const double lost = call.declared.flush ? kMinNormal : bf16 ? 0x1p-134 : 0;
  for_each_element(call.pool, call.op.type.elements(), [&](int64_t i) {
    Sum s;
    for (const Tensor& t : call.inputs) s.add(number_at(t, i));
    if (call.op.type.dtype == DType::kI32) return call.set(i, wrapped(s.value));
    if (replicas == 1 && !(call.declared.flush && s.tiny_term)) return call.set(i, {s.value, 0});
    const Estimate e = estimate(s, static_cast<double>(replicas - 1), lost, unit);
    if (!finite(e.radius)) return call.set(i, e);
    if (bf16 &&
        s.magnitude * (1 + gamma(static_cast<double>(replicas - 1), unit)) >= kBfloat16.overflow) {
      return call.set(i, {s.value, kInfinity});
    }
    call.set(i, store(e, Final::kIncluded, {DType::kF32, call.declared.flush}));
  });
}

}  // namespace twinrun::oracle

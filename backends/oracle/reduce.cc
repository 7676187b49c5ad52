// Reductions, pooling and the all-reduce: sums of known depth. docs/bounds.md, "Sums".
#include "backends/oracle/internal.h"

namespace twinrun::oracle {
namespace {

// What is known of a sum of terms: all that its bound needs.
struct Sum {
  double value = 0;
  double magnitude = 0;  // of the finite terms
  int64_t terms = 0;
  bool tiny_term = false;  // a binary32 denormal among them
  void add(double x) {
    value += x;
    if (finite(x)) magnitude += std::fabs(x);
    if (x != 0 && std::fabs(x) < kMinNormal) tiny_term = true;
    ++terms;
  }
};

// The computed sum, `depth` rounded additions deep, before it is stored; `lost` bounds what one
// operation may lose below the normal range (additions of binary32 numbers lose nothing without
// flush).
Estimate estimate(const Sum& s, double depth, double lost, double unit = kUnit) {
  const auto n = static_cast<double>(s.terms);
  const double relative = gamma(depth, unit) + (s.terms > 1 ? n * 0x1p-52 : 0);
  if (!finite(relative) || s.magnitude * (1 + relative) >= kOverflowF32)
    return {s.value, kInfinity};
  return {s.value, s.magnitude * relative + n * lost};
}

// The sum as f32 or bf16 arithmetic stores it, without another operation.
Estimate stored_sum(const Sum& s, double depth, Storage storage) {
  // One term is moved: its bits stay, but flush may or may not take a denormal for arithmetic.
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
  const double of_count =
      by > 0x1p24 ? std::fabs(value) * kUnit : 0;  // the count itself is a binary32 number
  return store({value, (e.radius / by + std::fabs(value) * 0x1p-52) * kOutward + of_count},
               Final::kRounds, storage);
}

// A sum of integers, modulo 2^32.
Estimate wrapped(double sum) {
  const auto bits = static_cast<uint32_t>(static_cast<int64_t>(sum));
  return {static_cast<double>(static_cast<int32_t>(bits)), 0};
}

// Additions on the longest way through the contract's lanes, tree and segments; any order for a
// foreign engine.
double reduce_depth(const Capabilities& declared, int64_t n) {
  if (!declared.ours) return static_cast<double>(std::max<int64_t>(n - 1, 0));
  const int64_t segment = std::min<int64_t>(n, 4096);
  const int64_t chain = (segment + 15) / 16 - 1;
  const int64_t tree = (segment > 8) + (segment > 4) + (segment > 2) + (segment > 1);
  const int64_t segments = (n + 4095) / 4096;
  return static_cast<double>(chain + tree + segments - 1);
}

// For runs along the last dimension of a tensor: the flat index of the reduction that each belongs to.
class Targets {
 public:
  Targets(const Dims& dims, const Dims& reduced) : dims_(dims), strides_(dims.size(), 0) {
    int64_t stride = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      if (std::find(reduced.begin(), reduced.end(), static_cast<int64_t>(d)) != reduced.end())
        continue;
      strides_[d] = stride;
      stride *= dims[d];
    }
  }
  int64_t run() const { return dims_.empty() ? 1 : dims_.back(); }  // elements
  int64_t step() const {
    return dims_.empty() ? 0 : strides_.back();
  }  // 0: a run is reduced to one
  int64_t of_run(int64_t row) const {
    int64_t at = 0;
    for (size_t d = dims_.empty() ? 0 : dims_.size() - 1; d-- > 0;) {
      at += row % dims_[d] * strides_[d];
      row /= dims_[d];
    }
    return at;
  }

 private:
  const Dims& dims_;
  std::vector<int64_t> strides_;
};

// Sums side by side.
struct SumArray {
  std::vector<double> value, magnitude;
  std::vector<uint8_t> tiny_term;
  explicit SumArray(size_t n) : value(n), magnitude(n), tiny_term(n) {}

  void add_run(const double* x, int64_t n, int64_t at, int64_t step) {
    double* v = value.data() + at;
    double* m = magnitude.data() + at;
    double total = 0, least = kInfinity;
    for (int64_t i = 0; i < n; ++i) total += std::fabs(x[i]);
    for (int64_t i = 0; i < n; ++i) {
      const double size = std::fabs(x[i]);
      least = size != 0 && size < least ? size : least;
    }
    if (!finite(total) || least < kMinNormal) {
      for (int64_t i = 0; i < n; ++i) {
        v[i * step] += x[i];
        if (finite(x[i])) m[i * step] += std::fabs(x[i]);
        if (x[i] != 0 && std::fabs(x[i]) < kMinNormal)
          tiny_term[static_cast<size_t>(at + i * step)] = 1;
      }
    } else if (step == 0) {
      for (int64_t i = 0; i < n; ++i) *v += x[i];
      *m += total;
    } else {
      for (int64_t i = 0; i < n; ++i) {
        v[i] += x[i];
        m[i] += std::fabs(x[i]);
      }
    }
  }
  void add(const SumArray& other) {
    for (size_t i = 0; i < value.size(); ++i) {
      value[i] += other.value[i];
      magnitude[i] += other.magnitude[i];
      tiny_term[i] |= other.tiny_term[i];
    }
  }
};

// The sums of x over the reduced dimensions. How the rows are dealt to groups depends on the shape
// alone, and so do the digits.
SumArray sums_of(const Call& call, int64_t outputs) {
  const Tensor& x = call.inputs[0];
  const Targets targets(x.dims(), call.op.attrs.dims);
  const int64_t run = targets.run(), rows = run == 0 ? 0 : x.elements() / run;
  const int64_t groups =
      std::clamp<int64_t>(std::min(x.elements() / kRange, (int64_t{1} << 21) / (outputs + 1)), 1,
                          std::clamp<int64_t>(rows, 1, 16));
  std::vector<SumArray> parts(static_cast<size_t>(groups), SumArray(static_cast<size_t>(outputs)));
  in_pieces(call.pool, groups, [&](int64_t g) {
    SumArray& mine = parts[static_cast<size_t>(g)];
    double buffer[1024];
    for (int64_t row = rows * g / groups; row < rows * (g + 1) / groups; ++row) {
      const int64_t at = targets.of_run(row);
      for (int64_t from = 0; from < run; from += 1024) {
        const int64_t n = std::min<int64_t>(1024, run - from);
        elements(x, row * run + from, n, buffer);
        mine.add_run(buffer, n, at + from * targets.step(), targets.step());
      }
    }
  });
  for (int64_t g = 1; g < groups; ++g) parts[0].add(parts[static_cast<size_t>(g)]);
  return std::move(parts[0]);
}

double larger(double a, double b) { return a != a ? a : b != b ? b : a < b ? b : a; }

// The taps of one pooling window that lie inside the image, in (kh, kw) order.
struct Pooling {
  Pooling(const Dims& image, const Dims& grid, const Window& w)
      : image(image), grid(grid), window(w) {}
  const Dims& image;
  const Dims& grid;
  const Window& window;

  // f(flat image index) for window (y, x) of sample n and channel c.
  template <typename F>
  void taps(int64_t n, int64_t y, int64_t x, int64_t c, F f) const {
    for (int64_t kh = 0; kh < window.size[0]; ++kh) {
      const int64_t ih = y * window.stride[0] - window.pad_low[0] + kh;
      if (ih < 0 || ih >= image[1]) continue;
      for (int64_t kw = 0; kw < window.size[1]; ++kw) {
        const int64_t iw = x * window.stride[1] - window.pad_low[1] + kw;
        if (iw >= 0 && iw < image[2]) f(((n * image[1] + ih) * image[2] + iw) * image[3] + c);
      }
    }
  }
  // f(window's flat index, sample, y, x, channel), every window of one sample in row-major order.
  template <typename F>
  void windows(int64_t n, F f) const {
    int64_t i = n * grid[1] * grid[2] * grid[3];
    for (int64_t y = 0; y < grid[1]; ++y) {
      for (int64_t x = 0; x < grid[2]; ++x) {
        for (int64_t c = 0; c < grid[3]; ++c) f(i++, y, x, c);
      }
    }
  }
};

// First maximum, or first NaN, of a window; -1 without taps.
int64_t selected(const Call& call, const Pooling& pool, int64_t n, int64_t y, int64_t x,
                 int64_t c) {
  int64_t best = -1;
  double most = 0;
  pool.taps(n, y, x, c, [&](int64_t at) {
    const double v = operand(call, 0, at);
    if (best < 0 || (most == most && (v != v || v > most))) {
      best = at;
      most = v;
    }
  });
  return best;
}

void eval_pooling(const Call& call) {
  const Op& op = call.op;
  const Pooling pool(call.inputs[0].dims(), op.type.dims, op.attrs.window);
  in_pieces(call.pool, op.type.dims[0], [&](int64_t n) {
    pool.windows(n, [&](int64_t i, int64_t y, int64_t x, int64_t c) {
      Sum sum;
      double most = -kInfinity;
      pool.taps(n, y, x, c, [&](int64_t at) {
        const double v = operand(call, 0, at);
        sum.add(v);
        most = larger(most, v);
      });
      if (op.attrs.reducer == Reducer::kMax) return call.set(i, {most, 0});
      const double depth = static_cast<double>(std::max<int64_t>(sum.terms - 1, 0));
      const Estimate e = estimate(sum, depth, call.declared.flush ? kMinNormal : 0);
      call.set(i, divided(e, static_cast<double>(sum.terms), call.storage()));
    });
  });
}

// select_and_scatter and avg_pool_grad: every x collects from the windows that contain it.
void eval_scatter(const Call& call) {
  const Op& op = call.op;
  const bool average = op.kind == OpKind::kAvgPoolGrad;
  const size_t dy = average ? 0 : 1;
  const Pooling pool(op.type.dims, call.inputs[dy].dims(), op.attrs.window);
  const int64_t per_sample = op.type.dims[1] * op.type.dims[2] * op.type.dims[3];
  in_pieces(call.pool, op.type.dims[0], [&](int64_t n) {
    std::vector<Sum> sums(static_cast<size_t>(per_sample));
    auto target = [&](int64_t at) -> Sum& {
      return sums[static_cast<size_t>(at - n * per_sample)];
    };
    pool.windows(n, [&](int64_t i, int64_t y, int64_t x, int64_t c) {
      if (!average) {
        const int64_t at = selected(call, pool, n, y, x, c);
        if (at >= 0) target(at).add(element(call.inputs[dy], i));
        return;
      }
      int64_t count = 0;
      pool.taps(n, y, x, c, [&](int64_t) { ++count; });
      const double share = operand(call, dy, i) / static_cast<double>(count);
      pool.taps(n, y, x, c, [&](int64_t at) { target(at).add(share); });
    });
    for (int64_t i = 0; i < per_sample; ++i) {
      const Sum& s = sums[static_cast<size_t>(i)];
      const auto terms = static_cast<double>(s.terms);
      Estimate e;
      if (!average) {
        e = stored_sum(s, std::max(terms - 1, 0.0), call.storage());
      } else if (s.terms == 1) {
        e = store({s.value, finite(s.value) ? std::fabs(s.value) * 0x1p-52 : 0}, Final::kRounds,
                  call.storage());
      } else if (s.terms > 1) {  // quotients round too: depth = additions + 1, and each may lose a
                                 // tiny result
        e = estimate(s, terms, call.declared.flush ? 2 * kMinNormal : 0x1p-150);
        if (finite(e.radius)) e = store(e, Final::kIncluded, call.storage());
      }
      call.set(n * per_sample + i, e);
    }
  });
}

}  // namespace

void eval_reduce(const Call& call) {
  const Op& op = call.op;
  const Tensor& x = call.inputs[0];
  const int64_t outputs = op.type.elements();
  if (op.attrs.reducer == Reducer::kMax || op.type.dtype == DType::kI32) {
    const Targets targets(x.dims(), op.attrs.dims);
    std::vector<double> most(static_cast<size_t>(outputs), -kInfinity), total(most.size());
    const bool integers = op.type.dtype == DType::kI32;
    const int64_t run = targets.run(), rows = run == 0 ? 0 : x.elements() / run;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t first = targets.of_run(row);
      for (int64_t i = 0; i < run; ++i) {
        const auto at = static_cast<size_t>(first + i * targets.step());
        const double v = integers ? element(x, row * run + i) : operand(call, 0, row * run + i);
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
    const Sum s{sums.value[u], sums.magnitude[u], terms, sums.tiny_term[u] != 0};
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
    for (int64_t c = 0; c < width; ++c) row[c].add(element(dy, i * width + c));
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
  // bf16 on the wire: every hop rounds to binary32, then to bf16.
  const double unit = bf16 ? kUnitBf16 + kUnit * 2 : kUnit;
  const double lost = call.declared.flush ? kMinNormal : bf16 ? 0x1p-134 : 0;
  for_each_element(call.pool, call.op.type.elements(), [&](int64_t i) {
    Sum s;
    for (const Tensor& t : call.inputs) s.add(element(t, i));
    if (call.op.type.dtype == DType::kI32) return call.set(i, wrapped(s.value));
    if (replicas == 1 && !(call.declared.flush && s.tiny_term)) return call.set(i, {s.value, 0});
    const Estimate e = estimate(s, static_cast<double>(replicas - 1), lost, unit);
    if (!finite(e.radius)) return call.set(i, e);
    if (bf16 &&
        s.magnitude * (1 + gamma(static_cast<double>(replicas - 1), unit)) >= kOverflowBf16) {
      return call.set(i, {s.value, kInfinity});
    }
    call.set(i, store(e, Final::kIncluded, {DType::kF32, call.declared.flush}));
  });
}

}  // namespace twinrun::oracle

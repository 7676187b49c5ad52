// Sums, means and maxima over the field: reductions, scatter_add, pooling and its gradients.
#include "backends/oracle/field_internal.h"
#include "backends/oracle/walks.h"

namespace twinrun::oracle {
namespace {

// The largest element so far in the random total order (FieldPoint::rank), and its position; at < 0
// before the first element.
struct Largest {
  Field61 value;
  int64_t rank = INT64_MIN;
  int64_t at = -1;
  bool take(const FieldPoint& point, Field61 x, int64_t where) {
    const int64_t r = point.rank(x);
    if (at >= 0 && r <= rank) return false;
    *this = {x, r, where};
    return true;
  }
};

// Calls f(index of an element, index of the result that it belongs to) for the runs [begin, end).
template <typename F>
void over_runs(const RunTargets& targets, int64_t begin, int64_t end, F f) {
  const int64_t run = targets.run(), step = targets.step();
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = targets.of_run(row);
    for (int64_t i = 0; i < run; ++i)
      f(static_cast<size_t>(row * run + i), static_cast<size_t>(at + i * step));
  }
}

// 1 / count. Caches the last inverse, since few different counts occur.
class Shares {
 public:
  Field61 operator()(int64_t count) {
    if (count != count_) share_ = Field61::of(count_ = count).inverse();
    return share_;
  }

 private:
  int64_t count_ = 1;
  Field61 share_{1};
};

}  // namespace

Tensor field_reduce(const FieldPoint& point, const Op& op, const Tensor& x, ThreadPool* pool) {
  const RunTargets targets(x.dims(), op.attrs.dims);
  const auto from = x.as<const Field61>();
  const int64_t run = targets.run(), rows = run == 0 ? 0 : x.elements() / run;
  Tensor out = Tensor::zeros(field_type(op.type.dims));
  const auto to = out.as<Field61>();
  if (op.attrs.reducer == Reducer::kMax) {
    std::vector<Largest> most(to.size());
    over_runs(targets, 0, rows, [&](size_t i, size_t at) { most[at].take(point, from[i], 0); });
    for (size_t i = 0; i < to.size(); ++i) to[i] = most[i].value;
    return out;
  }
  const int64_t groups = std::clamp<int64_t>(
      std::min(x.elements() / kSummedRange, (int64_t{1} << 21) / (out.elements() + 1)), 1,
      std::clamp<int64_t>(rows, 1, 16));
  std::vector<std::vector<Field61>> parts(static_cast<size_t>(groups),
                                          std::vector<Field61>(to.size()));
  in_pieces(pool, groups, [&](int64_t g) {
    std::vector<Field61>& mine = parts[static_cast<size_t>(g)];
    over_runs(targets, rows * g / groups, rows * (g + 1) / groups,
              [&](size_t i, size_t at) { mine[at] = mine[at] + from[i]; });
  });
  for (const auto& part : parts) {
    for (size_t i = 0; i < to.size(); ++i) to[i] = to[i] + part[i];
  }
  if (op.attrs.reducer == Reducer::kMean && !to.empty()) {
    const Field61 share = Shares()(x.elements() / out.elements());
    for (Field61& sum : to) sum = sum * share;
  }
  return out;
}

Tensor field_scatter_add(const Op& op, const Tensor& ids, const Tensor& dy) {
  Tensor out = Tensor::zeros(field_type(op.type.dims));
  const int64_t rows = op.type.dims[0], width = out.elements() / rows;
  const auto from = dy.as<const Field61>();
  for (int64_t i = 0; i < ids.elements(); ++i) {
    const int64_t row =
        std::clamp<int64_t>(ids.as<const int32_t>()[static_cast<size_t>(i)], 0, rows - 1);
    Field61* const to = out.as<Field61>().data() + row * width;
    for (int64_t c = 0; c < width; ++c) to[c] = to[c] + from[static_cast<size_t>(i * width + c)];
  }
  return out;
}

Tensor field_pooling(const FieldPoint& point, const Op& op, const Tensor& x, ThreadPool* pool) {
  const Pooling windows(x.dims(), op.type.dims, op.attrs.window);
  const auto channels = static_cast<size_t>(windows.channels());
  const int64_t pixels = x.dims()[1] * x.dims()[2], count = op.type.dims[1] * op.type.dims[2];
  const auto from = x.as<const Field61>();
  Tensor out = Tensor::empty(field_type(op.type.dims));
  in_pieces(pool, op.type.dims[0], [&](int64_t n) {
    std::vector<Largest> most(channels);
    Shares one_over;
    windows.windows([&](int64_t w, int64_t y, int64_t column) {
      Field61* const to = out.as<Field61>().data() + (n * count + w) * windows.channels();
      std::fill_n(to, channels, Field61{});
      std::ranges::fill(most, Largest{});
      int64_t taps = 0;
      windows.taps(y, column, [&](int64_t at) {
        const Field61* const pixel = from.data() + (n * pixels + at) * windows.channels();
        ++taps;
        for (size_t c = 0; c < channels; ++c) {
          if (op.attrs.reducer != Reducer::kMax) {
            to[c] = to[c] + pixel[c];
          } else if (most[c].take(point, pixel[c], at)) {
            to[c] = pixel[c];
          }
        }
      });
      if (op.attrs.reducer == Reducer::kMax) return;
      const Field61 share = one_over(taps);
      for (size_t c = 0; c < channels; ++c) to[c] = to[c] * share;
    });
  });
  return out;
}

Tensor field_unpooling(const FieldPoint& point, const Op& op, std::span<const Tensor> operands,
                       ThreadPool* pool) {
  const bool average = op.kind == OpKind::kAvgPoolGrad;
  const Tensor& dy = operands[average ? 0 : 1];
  const Pooling windows(op.type.dims, dy.dims(), op.attrs.window);
  const auto channels = static_cast<size_t>(windows.channels());
  const int64_t pixels = op.type.dims[1] * op.type.dims[2], count = dy.dims()[1] * dy.dims()[2];
  const auto x = operands[0].as<const Field61>(), given = dy.as<const Field61>();
  Tensor out = Tensor::zeros(field_type(op.type.dims));
  in_pieces(pool, op.type.dims[0], [&](int64_t n) {
    std::vector<Largest> most(channels);
    Shares one_over;
    Field61* const to = out.as<Field61>().data() + n * pixels * windows.channels();
    windows.windows([&](int64_t w, int64_t y, int64_t column) {
      const Field61* const d = given.data() + (n * count + w) * windows.channels();
      std::ranges::fill(most, Largest{});
      int64_t taps = 0;
      windows.taps(y, column, [&](int64_t at) {
        ++taps;
        if (average) return;
        const Field61* const pixel = x.data() + (n * pixels + at) * windows.channels();
        for (size_t c = 0; c < channels; ++c) most[c].take(point, pixel[c], at);
      });
      const Field61 share = average ? one_over(taps) : Field61{1};
      const auto add = [&](int64_t at, size_t c) {
        Field61& sum = to[at * windows.channels() + static_cast<int64_t>(c)];
        sum = sum + d[c] * share;
      };
      if (average) {
        windows.taps(y, column, [&](int64_t at) {
          for (size_t c = 0; c < channels; ++c) add(at, c);
        });
      } else {
        for (size_t c = 0; c < channels; ++c) {
          if (most[c].at >= 0) add(most[c].at, c);
        }
      }
    });
  });
  return out;
}

}  // namespace twinrun::oracle

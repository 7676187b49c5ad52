// Tests reduce, the pooling ops and the all-reduce bit for bit against scalar loops.
#include <gtest/gtest.h>

#include "tests/backends/kernels_naive.h"

namespace twinrun::kernels_reduce_test {
namespace {

using namespace naive;

float maximum(float a, float b) {
  if (a != a || b != b) return from_bits(kCanonicalNaN);
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

// The reduction of a list of elements by contract rule 4.
float reduce_list(const std::vector<float>& x, Reducer reducer, const NaiveArithmetic& n) {
  const auto join = [&](float a, float b) {
    return reducer == Reducer::kMax ? maximum(a, b) : n.add(a, b);
  };
  float total = 0;
  for (size_t s = 0; s < x.size(); s += 4096) {
    const size_t end = std::min(x.size(), s + 4096);
    std::vector<std::vector<float>> lanes(16);
    for (size_t i = s; i < end; ++i) {
      auto& lane = lanes[(i - s) % 16];
      lane = {lane.empty() ? n.in(x[i]) : join(lane[0], n.in(x[i]))};
    }
    for (size_t half : {8, 4, 2, 1}) {
      for (size_t j = 0; j < half; ++j) {
        if (!lanes[j + half].empty()) lanes[j] = {join(lanes[j][0], lanes[j + half][0])};
      }
      lanes.resize(half);
      lanes.resize(16);
    }
    total = s == 0 ? lanes[0][0] : join(total, lanes[0][0]);
  }
  if (reducer == Reducer::kMean) total = n.div(total, static_cast<float>(x.size()));
  return canonical(total);
}

Tensor expected_reduce(const Tensor& x, const Dims& reduced, Reducer reducer,
                       const NaiveArithmetic& n, const Dims& out_dims) {
  std::vector<std::vector<float>> lists(
      static_cast<size_t>(TensorType{DType::kF32, out_dims}.elements()));
  for (int64_t i = 0; i < x.elements(); ++i) {
    int64_t rest = i, to = 0, scale = 1;
    for (size_t d = x.dims().size(); d-- > 0;) {
      const int64_t index = rest % x.dims()[d];
      rest /= x.dims()[d];
      if (std::find(reduced.begin(), reduced.end(), static_cast<int64_t>(d)) != reduced.end())
        continue;
      to += index * scale;
      scale *= x.dims()[d];
    }
    lists[static_cast<size_t>(to)].push_back(x.as<float>()[static_cast<size_t>(i)]);
  }
  Tensor out = Tensor::empty({DType::kF32, out_dims});
  for (size_t i = 0; i < lists.size(); ++i) out.as<float>()[i] = reduce_list(lists[i], reducer, n);
  return out;
}

TEST(Reduce, EqualsLanesAndTree) {
  struct Case {
    Dims x, reduced;
  };
  const Case cases[] = {{{5, 3}, {0}},
                        {{5, 3}, {1}},
                        {{37, 70}, {1}},
                        {{37, 70}, {0}},
                        {{3, 50, 60, 5}, {0, 1, 2}},
                        {{9000}, {0}},
                        {{2, 4097, 3}, {1}},
                        {{4, 5, 6, 7}, {0, 2}},
                        {{4, 5, 6, 7}, {1, 3}},
                        {{4, 5, 6, 7}, {1, 2}},
                        {{3, 1, 4}, {1}},
                        {{3, 4}, {}},
                        {{130, 40, 2}, {0, 2}},
                        {{2, 300}, {0, 1}},
                        {{40, 200}, {0}},
                        {{17, 1}, {0}}};
  for (const Case& c : cases) {
    for (Data data : {Data::kUniform, Data::kTiny, Data::kSpecial}) {
      for (Reducer reducer : {Reducer::kSum, Reducer::kMean, Reducer::kMax}) {
        for (bool flush : {false, true}) {
          Op op;
          op.kind = OpKind::kReduce;
          op.attrs.dims = c.reduced;
          op.attrs.reducer = reducer;
          for (size_t d = 0; d < c.x.size(); ++d) {
            if (std::find(c.reduced.begin(), c.reduced.end(), static_cast<int64_t>(d)) ==
                c.reduced.end()) {
              op.type.dims.push_back(c.x[d]);
            }
          }
          const Tensor x = tensor(c.x, data, 3);
          ThreadPool pool(2);
          const Tensor got = run({&pool, {.flush = flush}}, op, {x});
          const Tensor want = expected_reduce(x, c.reduced, reducer, {flush}, op.type.dims);
          ASSERT_EQ(first_difference(want, got), -1)
              << to_string(c.x) << " " << to_string(c.reduced) << " reducer "
              << static_cast<int>(reducer) << " flush " << flush;
        }
      }
    }
  }
}

// ---- pooling ----

struct Pool {
  Dims x;
  Window window;
  Dims y() const { return {x[0], window.out(x[1], 0), window.out(x[2], 1), x[3]}; }
  // Flat indices of those taps of a window that lie inside the image.
  std::vector<size_t> taps(int64_t n, int64_t oy, int64_t ox, int64_t c) const {
    std::vector<size_t> list;
    for (int64_t i = 0; i < window.size[0]; ++i) {
      for (int64_t j = 0; j < window.size[1]; ++j) {
        const int64_t a = oy * window.stride[0] - window.pad_low[0] + i,
                      b = ox * window.stride[1] - window.pad_low[1] + j;
        if (a < 0 || b < 0 || a >= x[1] || b >= x[2]) continue;
        list.push_back(static_cast<size_t>(((n * x[1] + a) * x[2] + b) * x[3] + c));
      }
    }
    return list;
  }
  template <typename F>
  void each(F&& f) const {
    const Dims d = y();
    size_t i = 0;
    for (int64_t n = 0; n < d[0]; ++n)
      for (int64_t a = 0; a < d[1]; ++a)
        for (int64_t b = 0; b < d[2]; ++b)
          for (int64_t c = 0; c < d[3]; ++c) f(i++, taps(n, a, b, c));
  }
};

const Pool kPools[] = {{{2, 6, 6, 5}, {{2, 2}, {2, 2}}},
                       {{1, 7, 9, 33}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}},
                       {{3, 5, 5, 1}, {{3, 2}, {1, 1}, {0, 1}, {1, 0}}},
                       {{1, 4, 4, 300}, {{2, 2}, {3, 3}}}};

TEST(Pooling, EqualsScalarLoops) {
  for (const Pool& p : kPools) {
    for (Data data : {Data::kUniform, Data::kTiny, Data::kSpecial}) {
      for (bool flush : {false, true}) {
        const NaiveArithmetic n{flush};
        const Tensor x = tensor(p.x, data, 1), dy = tensor(p.y(), data, 2);
        Tensor max = Tensor::empty({DType::kF32, p.y()}),
               mean = Tensor::empty({DType::kF32, p.y()});
        Tensor scatter = Tensor::zeros({DType::kF32, p.x}),
               average = Tensor::zeros({DType::kF32, p.x});
        std::vector<bool> hit(static_cast<size_t>(x.elements())), touched(hit);
        p.each([&](size_t i, const std::vector<size_t>& taps) {
          const auto v = [&](size_t t) { return n.in(x.as<float>()[t]); };
          float top = v(taps[0]), sum = top;
          size_t best = taps[0];
          for (size_t t = 1; t < taps.size(); ++t) {
            top = maximum(top, v(taps[t]));
            sum = n.add(sum, v(taps[t]));
            if (v(best) == v(best) && (v(taps[t]) > v(best) || v(taps[t]) != v(taps[t])))
              best = taps[t];
          }
          max.as<float>()[i] = canonical(top);
          const auto count = static_cast<float>(taps.size());
          mean.as<float>()[i] = canonical(n.div(sum, count));
          const float d = n.in(dy.as<float>()[i]), share = n.div(d, count);
          float& s = scatter.as<float>()[best];
          s = canonical(hit[best] ? n.add(s, d) : d);
          hit[best] = true;
          for (size_t t : taps) {
            float& a = average.as<float>()[t];
            a = canonical(touched[t] ? n.add(a, share) : share);
            touched[t] = true;
          }
        });
        ThreadPool pool(2);
        const KernelContext context{&pool, {.flush = flush}};
        Op op;
        op.attrs.window = p.window;
        op.kind = OpKind::kReduceWindow;
        op.type = max.type();
        op.attrs.reducer = Reducer::kMax;
        EXPECT_EQ(first_difference(max, run(context, op, {x})), -1);
        op.attrs.reducer = Reducer::kMean;
        EXPECT_EQ(first_difference(mean, run(context, op, {x})), -1);
        op.type = x.type();
        op.attrs.shape = p.x;
        op.kind = OpKind::kSelectAndScatter;
        EXPECT_EQ(first_difference(scatter, run(context, op, {x, dy})), -1);
        op.kind = OpKind::kAvgPoolGrad;
        EXPECT_EQ(first_difference(average, run(context, op, {dy})), -1);
      }
    }
  }
}

// ---- all-reduce ----

TEST(AllReduce, EqualsTheRing) {
  for (int64_t replicas : {1, 2, 3, 8}) {
    for (int64_t length : {1, 5, 16, 1000}) {
      for (bool narrow : {false, true}) {
        for (bool flush : {false, true}) {
          const NaiveArithmetic n{flush};
          std::vector<Tensor> x;
          for (int64_t r = 0; r < replicas; ++r) {
            const Tensor t = tensor({length}, r % 2 == 0 ? Data::kUniform : Data::kTiny,
                                    static_cast<uint32_t>(r));
            x.push_back(narrow ? to_bf16(t) : t);
          }
          Op op;
          op.kind = OpKind::kAllReduce;
          op.type = x[0].type();
          ThreadPool pool(2);
          const Tensor got = run({&pool, {.flush = flush}}, op, x);
          for (int64_t c = 0; c < replicas; ++c) {
            for (int64_t i = c * length / replicas; i < (c + 1) * length / replicas; ++i) {
              const auto v = [&](int64_t r) {
                const Tensor& t = x[static_cast<size_t>(r % replicas)];
                return narrow ? bf16_to_f32(t.as<uint16_t>()[static_cast<size_t>(i)])
                              : t.as<float>()[static_cast<size_t>(i)];
              };
              float sum = v(c + 1);
              for (int64_t hop = 2; hop <= replicas; ++hop) {
                sum = n.add(sum, v(c + hop));
                if (narrow) sum = bf16_to_f32(flush ? bf16_round_flush(sum) : bf16_round(sum));
              }
              const float have = narrow ? bf16_to_f32(got.as<uint16_t>()[static_cast<size_t>(i)])
                                        : got.as<float>()[static_cast<size_t>(i)];
              ASSERT_EQ(to_bits(canonical(sum)), to_bits(have))
                  << replicas << " replicas, element " << i << " of " << length;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace twinrun::kernels_reduce_test

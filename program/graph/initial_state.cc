// Initial values of state variables, drawn element by element from Philox.
#include "program/graph/initial_state.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "program/base/math64.h"
#include "program/base/philox.h"
#include "program/graph/orthogonal.h"

namespace twinrun {
namespace {

using Kind = Initializer::Kind;
using Distribution = Initializer::Distribution;

// Phi(-2), and the probability between -2 and 2, of the standard normal distribution.
constexpr double kBelowMinusTwo = 0.022750131948179207, kWithinTwo = 0.9544997361036416;
// Standard deviation of that distribution truncated to [-2, 2], with Keras's digits.
constexpr double kTruncatedStddev = 0.87962566103423978;

double standard_normal(uint32_t u) { return math64::normal_quantile((u + 0.5) * 0x1p-32); }
double truncated_normal(uint32_t u) {
  return math64::normal_quantile(kBelowMinusTwo + (u + 0.5) * 0x1p-32 * kWithinTwo);
}

// Sets every element to f(u), u being its draw.
template <typename F>
void fill(std::span<float> w, RandomKey key, F f) {
  for (size_t i = 0; i < w.size(); ++i) w[i] = f(draw(key, 0, 0, i));
}
void fill_symmetric(std::span<float> w, RandomKey key, float limit) {
  fill(w, key, [=](uint32_t u) { return (2.0f * uniform(u) - 1.0f) * limit; });
}
void fill_normal(std::span<float> w, RandomKey key, double stddev) {
  fill(w, key, [=](uint32_t u) { return static_cast<float>(standard_normal(u) * stddev); });
}
void fill_truncated(std::span<float> w, RandomKey key, double stddev) {
  fill(w, key, [=](uint32_t u) { return static_cast<float>(truncated_normal(u) * stddev); });
}

void fill_scaled(std::span<float> w, RandomKey key, const Initializer& init) {
  const auto in = static_cast<double>(init.fan_in), out = static_cast<double>(init.fan_out);
  const double fan = init.fan == Initializer::Fan::kIn    ? in
                     : init.fan == Initializer::Fan::kOut ? out
                                                          : (in + out) / 2;
  const double n = std::max(1.0, fan);
  switch (init.distribution) {
    case Distribution::kUniform:
      return fill_symmetric(w, key, static_cast<float>(std::sqrt(3 * init.scale / n)));
    case Distribution::kUntruncatedNormal:
      return fill_normal(w, key, std::sqrt(init.scale / n));
    case Distribution::kTruncatedNormalUncorrected:
      return fill_truncated(w, key, std::sqrt(init.scale / n));
    case Distribution::kTruncatedNormal:
      return fill_truncated(w, key, std::sqrt(init.scale / n) / kTruncatedStddev);
  }
}

// The rows of the matrix are all dimensions but the last. If there are fewer rows than columns, the
// transpose is factorised.
void fill_orthogonal(std::span<float> w, RandomKey key, const Dims& dims, double gain) {
  if (w.empty()) return;
  const int64_t columns = dims.back(), rows = static_cast<int64_t>(w.size()) / columns;
  const int64_t most = std::max(rows, columns), least = std::min(rows, columns);
  std::vector<double> a(w.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] = standard_normal(draw(key, 0, 0, i));
  const std::vector<double> q = orthonormal_columns(std::move(a), most, least);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = rows >= columns ? i * columns + j : j * rows + i;
      w[static_cast<size_t>(i * columns + j)] =
          static_cast<float>(gain * q[static_cast<size_t>(at)]);
    }
  }
}

void fill_initial(std::span<float> w, const Initializer& init, const Dims& dims, RandomKey key) {
  switch (init.kind) {
    case Kind::kConstant:
      std::ranges::fill(w, static_cast<float>(init.value));
      return;
    case Kind::kGlorotUniform: {
      const double fans = static_cast<double>(init.fan_in + init.fan_out);
      return fill_symmetric(w, key, static_cast<float>(std::sqrt(6.0 / fans)));
    }
    case Kind::kRandomUniform:
      return fill(w, key, [&](uint32_t u) {
        return static_cast<float>(init.low + uniform(u) * (init.high - init.low));
      });
    case Kind::kRandomNormal:
      return fill_normal(w, key, init.stddev);
    case Kind::kTruncatedNormal:
      return fill_truncated(w, key, init.stddev);
    case Kind::kVarianceScaling:
      return fill_scaled(w, key, init);
    case Kind::kOrthogonal:
      return fill_orthogonal(w, key, dims, init.gain);
    case Kind::kIdentity:
      assert(dims.size() == 2);  // ensured by check_initializer
      std::ranges::fill(w, 0.0f);
      for (int64_t i = 0; i < std::min(dims[0], dims[1]); ++i)
        w[static_cast<size_t>(i * dims[1] + i)] = static_cast<float>(init.gain);
      return;
    case Kind::kCopy:
      return;  // handled by initial_state
  }
}

}  // namespace

std::vector<Tensor> initial_state(const Program& program, uint64_t seed) {
  std::vector<Tensor> out;
  uint32_t parameter = 0;
  for (const StateVar& var : program.state) {
    if (var.init.kind == Initializer::Kind::kCopy) {
      out.push_back(out[static_cast<size_t>(var.init.source)]);
      continue;
    }
    Tensor t = Tensor::empty(var.type);
    fill_initial(t.as<float>(), var.init, var.type.dims, {seed, kStreamInit + parameter});
    if (var.role == StateRole::kParameter) ++parameter;
    out.push_back(std::move(t));
  }
  return out;
}

}  // namespace twinrun

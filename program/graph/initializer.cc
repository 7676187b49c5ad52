// The table of named initializers, fans, and checks.
#include "program/graph/initializer.h"

#include <cmath>
#include <string>
#include <vector>

#include "program/base/names.h"

namespace twinrun {
namespace {

using Kind = Initializer::Kind;
using Fan = Initializer::Fan;
using Distribution = Initializer::Distribution;

Initializer of_kind(Kind kind) {
  Initializer init;
  init.kind = kind;
  return init;
}
Initializer constant(double value) {
  Initializer init;
  init.value = value;
  return init;
}
Initializer scaling(double scale, Fan fan, Distribution distribution) {
  Initializer init = of_kind(Kind::kVarianceScaling);
  init.scale = scale;
  init.fan = fan;
  init.distribution = distribution;
  return init;
}

struct Named {
  std::string_view name;
  Initializer init;
};
// Keras 3.5, keras/src/initializers; "uncorrected": TensorFlow 1, python/ops/init_ops.py.
const std::vector<Named>& table() {
  constexpr auto kNormal = Distribution::kTruncatedNormal, kUniform = Distribution::kUniform,
                 kPlain = Distribution::kTruncatedNormalUncorrected;
  static const std::vector<Named> rows = {
      {"zeros", constant(0)},
      {"ones", constant(1)},
      {"constant", constant(0)},
      {"random_uniform", of_kind(Kind::kRandomUniform)},
      {"random_normal", of_kind(Kind::kRandomNormal)},
      {"truncated_normal", of_kind(Kind::kTruncatedNormal)},
      {"variance_scaling", scaling(1, Fan::kIn, kNormal)},
      {"glorot_uniform", of_kind(Kind::kGlorotUniform)},
      {"glorot_normal", scaling(1, Fan::kAverage, kNormal)},
      {"glorot_normal_uncorrected", scaling(1, Fan::kAverage, kPlain)},
      {"he_uniform", scaling(2, Fan::kIn, kUniform)},
      {"he_normal", scaling(2, Fan::kIn, kNormal)},
      {"he_normal_uncorrected", scaling(2, Fan::kIn, kPlain)},
      {"lecun_uniform", scaling(1, Fan::kIn, kUniform)},
      {"lecun_normal", scaling(1, Fan::kIn, kNormal)},
      {"lecun_normal_uncorrected", scaling(1, Fan::kIn, kPlain)},
      {"orthogonal", of_kind(Kind::kOrthogonal)},
      {"identity", of_kind(Kind::kIdentity)},
  };
  return rows;
}

}  // namespace

Fans fans_of(const Dims& dims) {
  if (dims.empty()) return {};
  if (dims.size() == 1) return {dims[0], dims[0]};
  int64_t receptive_field = 1;
  for (size_t d = 0; d + 2 < dims.size(); ++d) receptive_field *= dims[d];
  return {receptive_field * dims[dims.size() - 2], receptive_field * dims.back()};
}

Result<Initializer> named_initializer(std::string_view name, const Dims& dims) {
  std::vector<std::string> names;
  for (const Named& row : table()) {
    names.emplace_back(row.name);
    if (row.name != name) continue;
    Initializer init = row.init;
    const Fans fans = fans_of(dims);
    init.fan_in = fans.in;
    init.fan_out = fans.out;
    TWINRUN_RETURN_IF_ERROR(check_initializer(init, dims));
    return init;
  }
  return Error{"initializer is \"" + std::string(name) + "\"; allowed: " + join(names, ", "), "",
               did_you_mean(name, names)};
}

Status check_initializer(const Initializer& init, const Dims& dims) {
  if (init.kind == Kind::kOrthogonal && dims.size() < 2) {
    return Error{"orthogonal initializer of a variable " + to_string(dims) +
                     "; allowed: at least two dimensions",
                 "", "use glorot_uniform or zeros"};
  }
  if (init.kind == Kind::kIdentity && dims.size() != 2) {
    return Error{
        "identity initializer of a variable " + to_string(dims) + "; allowed: two dimensions", "",
        "use orthogonal or glorot_uniform"};
  }
  for (const auto& [what, value] : {std::pair{"value", init.value}, std::pair{"low", init.low},
                                    std::pair{"high", init.high}, std::pair{"stddev", init.stddev},
                                    std::pair{"gain", init.gain}, std::pair{"scale", init.scale}}) {
    if (!std::isfinite(value)) {
      return Error{std::string("initializer's ") + what + " is " + std::to_string(value) +
                       "; allowed: a finite number",
                   "", ""};
    }
  }
  if (init.stddev < 0 || init.scale < 0) {
    return Error{
        init.stddev < 0
            ? "initializer's stddev is " + std::to_string(init.stddev) + "; allowed: at least 0"
            : "initializer's scale is " + std::to_string(init.scale) + "; allowed: at least 0",
        "", ""};
  }
  if (init.low > init.high) {
    return Error{"initializer's low is " + std::to_string(init.low) + ", above its high, " +
                     std::to_string(init.high),
                 "", "low at most high"};
  }
  return Ok{};
}

}  // namespace twinrun

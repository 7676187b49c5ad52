#include "program/graph/initial_state.h"

#include <algorithm>
#include <cmath>

#include "program/base/philox.h"

namespace twinrun {

std::vector<Tensor> initial_state(const Program& program, uint64_t seed) {
  std::vector<Tensor> out;
  uint32_t parameter = 0;
  for (const StateVar& var : program.state) {
    if (var.init.kind == Initializer::Kind::kCopy) {
      out.push_back(out[static_cast<size_t>(var.init.source)]);
      continue;
    }
    Tensor t = Tensor::empty(var.type);
    std::span<float> w = t.as<float>();
    if (var.init.kind == Initializer::Kind::kConstant) {
      std::ranges::fill(w, static_cast<float>(var.init.value));
    } else {
      const double fans = static_cast<double>(var.init.fan_in + var.init.fan_out);
      const auto limit = static_cast<float>(std::sqrt(6.0 / fans));
      const RandomKey key{seed, kStreamInit + parameter};
      for (size_t i = 0; i < w.size(); ++i)
        w[i] = (2.0f * uniform(draw(key, 0, 0, i)) - 1.0f) * limit;
    }
    if (var.role == StateRole::kParameter) ++parameter;
    out.push_back(std::move(t));
  }
  return out;
}

}  // namespace twinrun

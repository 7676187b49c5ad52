#include "tests/parity/rounding_noise.h"

#include <algorithm>
#include <cmath>

#include "backends/oracle.h"
#include "program/base/philox.h"
#include "program/graph/graph.h"
#include "scenarios/keys.h"

namespace twinrun::parity {
namespace {

constexpr uint64_t kSeed = 0x7061726974790000;  // of nothing else
constexpr uint32_t kSettings = 0xFFFFFFFF;      // no op's number

// Uniform in (-1, 1), symmetric.
double uniform_of(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-31 - 1; }

template <typename Owner>
void round_settings(Owner& owner, uint32_t member, uint32_t& count) {
  for (const Key<Owner>& key : keys<Owner>()) {
    const auto* real = std::get_if<double Owner::*>(&key.member);
    if (real == nullptr || key.name == "lr" || key.name == "rate" || key.name == "decay_rate") continue;
    owner.*(*real) *= 1 + 0x1p-24 * uniform_of(draw({kSeed, member}, 0, kSettings, count++));
  }
}

double product(const Dims& dims) {
  double n = 1;
  for (const int64_t d : dims) n *= static_cast<double>(d);
  return n;
}

}  // namespace

double summation_depth(const Op& op, std::span<const Tensor> inputs) {
  const double results = product(op.type.dims);
  switch (op.kind) {
    case OpKind::kDotGeneral:  // [m, k] . [k, n]: m k * k n / m n = k^2
      return std::sqrt(product(inputs[0].dims()) * product(inputs[1].dims()) / results);
    case OpKind::kConvolution:
      return product(inputs[1].dims()) / static_cast<double>(inputs[1].dims().back());
    case OpKind::kConvolutionInputGrad:
      return product(inputs[1].dims()) / static_cast<double>(inputs[1].dims()[2]);
    case OpKind::kConvolutionKernelGrad:
      return product(inputs[1].dims()) / static_cast<double>(inputs[1].dims().back());
    case OpKind::kReduce:
      return op.attrs.reducer == Reducer::kMax ? 1 : std::max(1.0, product(inputs[0].dims()) / results - 1);
    case OpKind::kAllReduce:
      return std::max(1.0, static_cast<double>(inputs.size()) - 1);
    default:  // one rounding, or a sum so short that its worst case will do
      return 1;
  }
}

RoundingNoise::RoundingNoise(uint32_t member, ThreadPool* pool) : member_(member), pool_(pool) {
  declared_.name = "any";
  declared_.ours = false;
  declared_.elementary_ulps = kForeignElementaryUlps;
}

bool RoundingNoise::watches(const Program& program, ValueId id, int64_t /*step*/) {
  const Op& op = program.graph.op(id);
  const OpClass c = class_of(op.kind);
  return op.type.dtype == DType::kF32 && c != OpClass::kSource && c != OpClass::kMove && c != OpClass::kRandom;
}

bool RoundingNoise::replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) {
  const OracleResult exact = eval_op(declared_, site.op(), inputs, pool_);
  const double scale = 1 / std::sqrt(summation_depth(site.op(), inputs));
  const auto replica = site.op().phase == Phase::kUpdate ? 0 : static_cast<uint32_t>(site.replica + 1);
  const auto op = static_cast<uint32_t>(site.id) << 10 | replica;
  const auto out = output.as<float>();
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(kSeed), static_cast<uint32_t>(kSeed >> 32)};
  Philox4 words{};
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % 4 == 0) words = philox4x32({static_cast<uint32_t>(i / 4), op, static_cast<uint32_t>(site.step), member_}, key);
    const double radius = exact.radius[i];
    const double noise = radius > 0 && std::isfinite(radius) ? radius * scale * uniform_of(words[i % 4]) : 0;
    out[i] = static_cast<float>(exact.value[i] + noise);
  }
  return true;
}

Scenario with_rounded_settings(Scenario scenario, uint32_t member) {
  uint32_t count = 0;
  for (LayerSpec& layer : scenario.model.layers) round_settings(layer, member, count);
  round_settings(scenario.optimizer, member, count);
  return scenario;
}

}  // namespace twinrun::parity

// Draws the noise of a member of the ensemble, op by op, and of its settings.
#include "tests/parity/rounding_noise.h"

#include <algorithm>
#include <cmath>

#include "backends/oracle/oracle.h"
#include "program/base/philox.h"
#include "program/ops/op_def.h"
#include "scenarios/keys.h"

namespace twinrun::parity {
namespace {

constexpr uint64_t kSeed = 0x7061726974790000;  // used for nothing else
constexpr uint32_t kSettings = 0xFFFFFFFF;      // in place of an op's number; no op has it

// Uniform in (-1, 1), symmetric.
double uniform_of(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-31 - 1; }

template <typename Owner>
void round_settings(Owner& owner, uint32_t member, uint32_t& count) {
  for (const Key<Owner>& key : keys<Owner>()) {
    const auto* real = std::get_if<double Owner::*>(&key.member);
    if (real == nullptr || key.name == "lr" || key.name == "rate" || key.name == "decay_rate")
      continue;
    owner.*(*real) *= 1 + 0x1p-24 * uniform_of(draw({kSeed, member}, 0, kSettings, count++));
  }
}

// Whether most addends of a reduction equal their neighbours, as behind a global mean pool. Equal
// addends round alike, so that a sum in one chain drifts, and the square root of its depth would be
// too small a bound. Zeros do not count, because adding them is exact.
bool adds_equals(const Op& op, const Tensor& x) {
  size_t inner = 1;  // elements from one addend to the next
  for (auto d = static_cast<int64_t>(x.dims().size());
       d-- > 0 && std::ranges::find(op.attrs.dims, d) == op.attrs.dims.end();) {
    inner *= static_cast<size_t>(x.dims()[static_cast<size_t>(d)]);
  }
  const auto v = x.as<float>();
  int64_t equal = 0;
  for (size_t i = inner; i < v.size(); ++i) equal += v[i] == v[i - inner] && v[i] != 0;
  return 2 * equal > x.elements();
}

}  // namespace

double summation_depth(const Program& program, ValueId id) {
  const Graph& graph = program.graph;
  const Op& op = graph.op(id);
  const auto results = static_cast<double>(op.type.elements());
  double depth = 1;  // one rounding, or a sum so short that its worst case is a fair bound
  if (class_of(op.kind) == OpClass::kDot) depth = flops(graph, id) / (2 * results);
  if (op.kind == OpKind::kReduce && op.attrs.reducer != Reducer::kMax) {
    depth = static_cast<double>(graph.type(op.operands[0]).elements()) / results - 1;
  }
  if (op.kind == OpKind::kAllReduce) depth = program.sharding.cores - 1;
  return std::max(1.0, depth);
}

RoundingNoise::RoundingNoise(uint32_t member, ThreadPool* pool) : member_(member), pool_(pool) {
  declared_.name = "any";
  declared_.ours = false;
  declared_.elementary_ulps = kForeignElementaryUlps;
}

bool RoundingNoise::watches(const Program& program, ValueId id, int64_t /*step*/) {
  const Op& op = program.graph.op(id);
  const OpClass c = class_of(op.kind);
  return op.type.dtype == DType::kF32 && c != OpClass::kSource && c != OpClass::kMove &&
         c != OpClass::kRandom;
}

bool RoundingNoise::replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) {
  const OracleResult exact = eval_op(declared_, site.op(), inputs, pool_);
  const bool drifts = site.op().kind == OpKind::kReduce && adds_equals(site.op(), inputs[0]);
  const double scale = drifts ? 1 : 1 / std::sqrt(summation_depth(*site.program, site.id));
  const auto replica =
      site.op().phase == Phase::kUpdate ? 0 : static_cast<uint32_t>(site.replica + 1);
  const auto op = static_cast<uint32_t>(site.id) << 10 | replica;
  const auto out = output.as<float>();
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(kSeed),
                                    static_cast<uint32_t>(kSeed >> 32)};
  Philox4 words{};
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % 4 == 0)
      words = philox4x32(
          {static_cast<uint32_t>(i / 4), op, static_cast<uint32_t>(site.step), member_}, key);
    const double radius = exact.radius[i];
    const double noise =
        radius > 0 && std::isfinite(radius) ? radius * scale * uniform_of(words[i % 4]) : 0;
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

// A conforming f32 implementation, drawn at random: every op returns a binary32 number near its
// exact result, as far from it as independent roundings in any order of summation can be expected
// to lead. docs/method/numerics.md, "The bound of a deviation", has the derivation.
//
//   RoundingNoise noise(/*member=*/3, pool);                    // the number determines the member
//   engine->step(step, states, inputs, outputs, nullptr, &noise);
//   scenario = with_rounded_settings(scenario, /*member=*/3);   // the same for beta2, epsilon, ...
#pragma once

#include "backends/core/backend.h"
#include "scenarios/scenario.h"

namespace twinrun::parity {

// The error in ulps that is assumed of a framework's exp, log, tanh, ... Measured: up to 5.5
// (docs/method/numerics.md, "The bound of a deviation").
inline constexpr double kForeignElementaryUlps = 6;

// How many roundings one term of the op's sum passes through in the worst order of summation, or
// fewer; 1 for an op that is not a long sum.
double summation_depth(const Program& program, ValueId id);

class RoundingNoise : public OpHooks {
 public:
  // pool: the oracle's threads; nullptr if replicas run in parallel.
  RoundingNoise(uint32_t member, ThreadPool* pool);
  bool watches(const Program& program, ValueId id, int64_t step) override;
  // output = fl(value + u * radius / sqrt(depth)), with u uniform in (-1, 1), and value and radius
  // of the oracle (docs/method/bounds.md) for a foreign engine. Updates draw the same u on all
  // replicas, so that replicas stay equal where those of an engine would. A sum of mostly equal
  // addends keeps the whole radius, because its roundings are not independent.
  bool replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override;

 private:
  uint32_t member_;
  ThreadPool* pool_;
  Capabilities declared_;
};

// Multiplies every real setting of layers and optimizer by 1 + u * 2^-24, because a framework may
// round it to binary32 and continue with that, as in 1 - beta2. Learning rates and dropout rates
// are exempt: frameworks receive them as f32 numbers and as masks.
Scenario with_rounded_settings(Scenario scenario, uint32_t member);

}  // namespace twinrun::parity

// Any honest f32 implementation, drawn at random: every op returns a binary32 number near its exact result, as far from it as
// independent roundings in any order of summation may be expected to lead. docs/parity.md has the derivation.
//
//   RoundingNoise noise(/*member=*/3, pool);                    // hooks for an engine; a member is a function of its number
//   engine->step(step, states, inputs, outputs, nullptr, &noise);
//   scenario = with_rounded_settings(scenario, /*member=*/3);   // the same for beta2, epsilon, ...
#pragma once

#include "backends/core/backend.h"
#include "scenarios/scenario.h"

namespace twinrun::parity {

// What is assumed of a framework's exp, log, tanh, ...: errors in ulps. Measured up to 5.5: docs/parity.md.
inline constexpr double kForeignElementaryUlps = 6;

// How many roundings one term of an op's sum passes through in the worst order, or fewer: 1 where it is not a long sum.
double summation_depth(const Program& program, ValueId id);

class RoundingNoise : public OpHooks {
 public:
  // pool: of the oracle; nullptr where replicas run in parallel.
  RoundingNoise(uint32_t member, ThreadPool* pool);
  bool watches(const Program& program, ValueId id, int64_t step) override;
  // output = fl(value + u * radius / sqrt(depth)), u uniform in (-1, 1), value and radius of the oracle (docs/bounds.md) for a
  // foreign engine. An update draws the same u on all replicas: they stay equal where an engine's would.
  bool replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override;

 private:
  uint32_t member_;
  ThreadPool* pool_;
  Capabilities declared_;
};

// Every real setting of layers and optimizer, but learning rates and dropout rates (which are given as f32 or as masks), times
// 1 + u * 2^-24: a framework may round it to binary32 and go on from there, as in 1 - beta2.
Scenario with_rounded_settings(Scenario scenario, uint32_t member);

}  // namespace twinrun::parity

// Shared by the tests of the harness: models of a few hundred weights on a few hundred digits,
// which train in milliseconds, and helpers that unwrap a Result or fail the test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "backends/faults/faulty_backend.h"
#include "backends/registry.h"
#include "harness/experiment/experiment.h"
#include "harness/run/run.h"
#include "tests/support/folder.h"

namespace twinrun::tiny {

// Returns the value, or throws an exception that GoogleTest reports with the error's message.
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return std::move(*result);
}

inline constexpr DotPrecision kOnce = DotPrecision::kBf16, kThrice = DotPrecision::kBf16x3,
                              kSixTimes = DotPrecision::kBf16x6;

inline constexpr const char* kDense = R"(
[[model.layers]]
kind = "flatten"
[[model.layers]]
kind = "dense"
units = 12
[[model.layers]]
kind = "relu"
[[model.layers]]
kind = "dense"
units = 10
)";

// Batch norm, whose statistics differ between cores, and dropout, whose masks must not.
inline constexpr const char* kNormalized = R"(
[[model.layers]]
kind = "flatten"
[[model.layers]]
kind = "dense"
units = 12
[[model.layers]]
kind = "batch_norm"
momentum = 0.9
[[model.layers]]
kind = "relu"
[[model.layers]]
kind = "dropout"
rate = 0.25
[[model.layers]]
kind = "dense"
units = 10
)";

inline constexpr const char* kConvolutional = R"(
[[model.layers]]
kind = "avg_pool"
window = 2
[[model.layers]]
kind = "conv2d"
filters = 3
kernel = 3
[[model.layers]]
kind = "batch_norm"
momentum = 0.9
[[model.layers]]
kind = "relu"
[[model.layers]]
kind = "max_pool"
[[model.layers]]
kind = "flatten"
[[model.layers]]
kind = "dense"
units = 10
)";

inline Scenario scenario(const char* layers, const Overrides& overrides = {}) {
  const std::string text = "seed = 3\n[data]\ntrain = 256\neval = 64\n" + std::string(layers) +
                           "[optimizer]\nkind = \"sgd\"\nlr = 0.05\n[train]\nbatch = 32\n"
                           "steps = 20\n[tpu]\ncores = 8\n";
  return must(parse_scenario(text, "tiny.toml", overrides));
}

inline Experiment experiment(const char* layers, const Overrides& overrides = {}) {
  return must(make_experiment(scenario(layers, overrides)));
}

inline std::unique_ptr<Backend> backend(const std::string& name, int threads = 1,
                                        DotPrecision precision = DotPrecision::kBf16) {
  BackendOptions options;
  options.threads = threads;
  options.tpu.precision = precision;
  return must(make_backend(name, options));
}

// The program of a run: the whole batch's for run R, the sharded one for runs S and T.
inline Program program(const Experiment& e, bool sharded) {
  return sharded ? e.sharded(e.sharding) : e.whole();
}

inline std::unique_ptr<Backend> faulty(std::unique_ptr<Backend> conforming, const std::string& text,
                                       std::shared_ptr<FaultLog> log = nullptr) {
  return with_faults(std::move(conforming), {must(parse_fault(text))}, 3, std::move(log));
}

}  // namespace twinrun::tiny

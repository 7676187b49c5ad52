// Helpers that the tests of this folder share: a temporary folder, files as bytes, sample
// checkpoints and runs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "checkpoints/checkpoint.h"
#include "checkpoints/run.h"
#include "program/base/bits.h"
#include "tests/support/folder.h"

namespace twinrun::samples {

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// A tensor of pseudo-random bytes, so that every bit takes part and neighbours differ.
inline Tensor pattern(TensorType type, uint64_t salt = 1) {
  Tensor tensor = Tensor::empty(std::move(type));
  auto* bytes = reinterpret_cast<uint8_t*>(tensor.raw());
  for (size_t i = 0; i < tensor.bytes(); ++i) {
    salt = salt * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<uint8_t>(salt >> 56);
    if (tensor.dtype() == DType::kPred) bytes[i] &= 1;
  }
  return tensor;
}

inline Checkpoint checkpoint(int64_t step = 7) {
  Checkpoint c;
  c.step = step;
  c.seed = 0xFFFFFFFFFFFFFFF1u;
  c.scenario = "seed = 1\n[model]\nname = \"grün\"\n";
  c.scenario_digest = "00112233445566778899aabbccddeeff";
  c.engine = "tpu";
  c.cores = 8;
  const auto salt = static_cast<uint64_t>(step);
  c.tensors["conv1/kernel"] = {pattern({DType::kF32, {3, 3, 2, 4}}, salt), "parameter", false};
  c.tensors["conv1/kernel.momentum"] = {pattern({DType::kF32, {3, 3, 2, 4}}, 2), "slot", false};
  c.tensors["conv1/norm/mean"] = {pattern({DType::kF32, {8, 4}}, 3), "statistic", true};
  c.tensors["embed"] = {pattern({DType::kBF16, {5, 3}}, 4), "parameter", false};
  c.tensors["mask"] = {pattern({DType::kPred, {7}}, 5), "statistic", false};
  c.tensors["oracle"] = {pattern({DType::kF64, {2, 2}}, 6), "statistic", false};
  c.tensors["nothing"] = {pattern({DType::kF32, {0, 4}}), "parameter", false};
  c.tensors["step"] = {Tensor::scalar_i32(static_cast<int32_t>(step)), "counter", false};
  Tensor odd = Tensor::zeros({DType::kF32, {5}});  // values that conversions often change
  odd.as<float>()[0] = from_bits(0x7FC00001u);
  odd.as<float>()[1] = from_bits(0xFF800001u);  // signalling
  odd.as<float>()[2] = -0.0f;
  odd.as<float>()[3] = std::numeric_limits<float>::denorm_min();
  odd.as<float>()[4] = -std::numeric_limits<float>::infinity();
  c.tensors["odd"] = {odd, "parameter", false};
  return c;
}

inline RunFile run() {
  RunFile r;
  r.engine = "tpu";
  r.engine_settings = "cores=8 precision=default";
  r.scenario = checkpoint().scenario;
  r.scenario_digest = checkpoint().scenario_digest;
  r.cores = 8;
  r.first_step = 2;
  r.batch = 64;
  r.environment = {{"cpu", "some cpu"}, {"data digest", "ff00"}, {"threads", ""}};
  for (int i = 0; i < 12; ++i) {
    const auto f = static_cast<float>(i);
    r.steps.push_back({2.5f / (f + 1), 2.25f / (f + 1), 0.1f, f});
    r.state_digests.push_back({static_cast<uint64_t>(i), ~uint64_t{0}});
  }
  r.evaluations = {{6, 0.5, 0.75}, {12, 0.25, 1.0}};
  r.trace = {{2, 0, "dense1/dot", {1, 2}, -1.5, 2.5, 0.125, 0, 1},
             {2, 7, "x", {3, 4}, 0, 0, 0, 9, 0}};
  r.checkpoints = {checkpoint(2), checkpoint(10), checkpoint(12)};
  r.ended = {RunEnd::Kind::kDiverged, "loss is NaN"};
  return r;
}

inline void expect_same(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.contract, b.contract);
  EXPECT_EQ(a.scenario, b.scenario);
  EXPECT_EQ(a.scenario_digest, b.scenario_digest);
  EXPECT_EQ(a.engine, b.engine);
  EXPECT_EQ(a.cores, b.cores);
  EXPECT_EQ(a.root_digest(), b.root_digest());
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    ASSERT_TRUE(b.tensors.contains(name)) << name;
    const CheckpointTensor& other = b.tensors.at(name);
    EXPECT_TRUE(tensor.value.same_bits(other.value)) << name;
    EXPECT_EQ(tensor.role, other.role) << name;
    EXPECT_EQ(tensor.replica_axis, other.replica_axis) << name;
  }
}

}  // namespace twinrun::samples

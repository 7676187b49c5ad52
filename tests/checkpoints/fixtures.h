// Access to fixtures/: small files that other programs wrote. The scripts that make them are there,
// too.
#pragma once

#include <string>

#include "tests/checkpoints/samples.h"

namespace twinrun::samples {

inline std::string fixture(const std::string& name) {
  return std::string(TWINRUN_SOURCE_DIR "/tests/checkpoints/fixtures/") + name;
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Whether element i of the tensor is v + 1 + i / 64, the value that the scripts give to the model's
// variable v (counted from 0).
inline bool is_pattern(const Tensor& tensor, int v) {
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const float expected = static_cast<float>(v + 1) + static_cast<float>(i) / 64;
    if (tensor.as<float>()[static_cast<size_t>(i)] != expected) return false;
  }
  return tensor.elements() > 0;
}

}  // namespace twinrun::samples

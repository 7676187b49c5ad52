// XXH3-128 digests of logical content (text, tensors), not of the files that store it. Bug reports
// quote them.
//
//   Digest d = digest(tensor);                        // dtype, dims and bytes
//   DigestBuilder b;  b.add("dense1/kernel");  b.add(d);  b.finish().hex();   // 32 hex digits
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "program/base/tensor.h"

namespace twinrun {

struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  std::string hex() const;  // 32 lower-case digits, high first
  static std::optional<Digest> parse(std::string_view hex);
  auto operator<=>(const Digest&) const = default;
};

Digest digest_bytes(const void* data, size_t bytes);
// Digest of the executable of this process, so that two builds are never taken for the same one.
// The file is read once.
Digest digest_of_executable();
// Covers the type as text ("f32[2,3]"), a zero byte, then the elements, little-endian and
// row-major.
Digest digest(const Tensor& tensor);

class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(const DigestBuilder&) = delete;
  DigestBuilder& operator=(const DigestBuilder&) = delete;
  void add(std::string_view text);  // length-prefixed (u64 little-endian)
  void add(const Digest& digest);   // 16 bytes, high then low, little-endian
  void add_bytes(const void* data, size_t bytes);
  // What digest(tensor) begins with. The elements follow, with add_bytes, in one piece or several.
  void begin_tensor(const TensorType& type);
  Digest finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace twinrun

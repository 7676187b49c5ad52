// Digests by xxHash, and their text form of 32 hex digits.
#include "program/base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace twinrun {
namespace {

Digest from_xxh(XXH128_hash_t h) { return {h.high64, h.low64}; }

}  // namespace

std::string Digest::hex() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text;
}

std::optional<Digest> Digest::parse(std::string_view hex) {
  if (hex.size() != 32) return std::nullopt;
  uint64_t words[2] = {0, 0};
  for (size_t i = 0; i < 32; ++i) {
    const char c = hex[i];
    uint64_t nibble = 0;
    if (c >= '0' && c <= '9') {
      nibble = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      nibble = static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
    words[i / 16] = (words[i / 16] << 4) | nibble;
  }
  return Digest{words[0], words[1]};
}

Digest digest_bytes(const void* data, size_t bytes) { return from_xxh(XXH3_128bits(data, bytes)); }

Digest digest_of_executable() {
  static const Digest once = [] {
    std::ostringstream bytes;
    bytes << std::ifstream("/proc/self/exe", std::ios::binary).rdbuf();
    const std::string_view file = bytes.view();
    return digest_bytes(file.data(), file.size());
  }();
  return once;
}

Digest digest(const Tensor& tensor) {
  DigestBuilder b;
  b.begin_tensor(tensor.type());
  b.add_bytes(tensor.raw(), tensor.bytes());
  return b.finish();
}

struct DigestBuilder::State {
  XXH3_state_t xxh;
};

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}
DigestBuilder::~DigestBuilder() = default;

void DigestBuilder::begin_tensor(const TensorType& type) {
  const std::string text = to_string(type);
  add_bytes(text.c_str(), text.size() + 1);
}

void DigestBuilder::add(std::string_view text) {
  const uint64_t n = text.size();
  add_bytes(&n, sizeof n);
  add_bytes(text.data(), text.size());
}
void DigestBuilder::add(const Digest& d) {
  add_bytes(&d.high, sizeof d.high);
  add_bytes(&d.low, sizeof d.low);
}
void DigestBuilder::add_bytes(const void* data, size_t bytes) {
  if (bytes != 0) XXH3_128bits_update(&state_->xxh, data, bytes);
}
Digest DigestBuilder::finish() const { return from_xxh(XXH3_128bits_digest(&state_->xxh)); }

}  // namespace twinrun

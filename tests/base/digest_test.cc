// Tests of digests: XXH3-128 against published values (python-xxhash 3 prints the same), and which
// bytes of texts and tensors are hashed.
#include "program/base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace twinrun {
namespace {

std::string hex_of(const std::vector<uint8_t>& bytes) {
  return digest_bytes(bytes.data(), bytes.size()).hex();
}
std::vector<uint8_t> counting(size_t n) {
  std::vector<uint8_t> bytes(n);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  return bytes;
}
std::vector<uint8_t> long_text() {
  std::vector<uint8_t> bytes(10000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 % 251);
  return bytes;
}

// One length for each of these code paths of XXH3: 0, 1-3, 9-16, 17-128, 129-240 and more bytes.
TEST(Digest, PublishedValues) {
  EXPECT_EQ(hex_of({}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hex_of({'a', 'b', 'c'}), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(hex_of(counting(16)), "72950631827607e2842812cc870dcae2");
  EXPECT_EQ(hex_of(counting(100)), "da95ef16fd9566f329b20ba5f03ec01e");
  EXPECT_EQ(hex_of(counting(200)), "cb0395310643ba0edd97e9af3609d9f5");
  EXPECT_EQ(hex_of(counting(256)), "f1f8a93f50849ac39408a4433b952d71");
  EXPECT_EQ(hex_of(long_text()), "d9e85e789e92ef1ad9d55cc0b13241b1");
}

TEST(Digest, StreamingEqualsOneShot) {
  const std::vector<uint8_t> bytes = long_text();
  for (size_t piece : {size_t{1}, size_t{7}, size_t{64}, size_t{255}, size_t{256}, size_t{4097}}) {
    DigestBuilder b;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      b.add_bytes(bytes.data() + at, std::min(piece, bytes.size() - at));
    }
    b.add_bytes(nullptr, 0);
    EXPECT_EQ(b.finish(), digest_bytes(bytes.data(), bytes.size())) << piece;
  }
}

// The expected value is Python's xxh3_128(pack("<Q", 13) + b"dense1/kernel" + pack("<QQ", high,
// low)), where high and low are the digest of b"abc".
TEST(Digest, BuilderPrefixesTextWithItsLength) {
  DigestBuilder b;
  b.add("dense1/kernel");
  b.add(digest_bytes("abc", 3));
  EXPECT_EQ(b.finish().hex(), "b42e47ab3872ec318ea1d513a3cd9406");
  DigestBuilder one, two;
  one.add("ab");
  one.add("c");
  two.add("a");
  two.add("bc");
  EXPECT_NE(one.finish(), two.finish());
}

// The expected value is Python's xxh3_128(b"f32[2,3]\0" + pack("<6f", 1, -2, 0.5, 3, 0, -0.0)).
TEST(Digest, TensorIsItsTypeAndItsBytes) {
  Tensor t = Tensor::zeros({DType::kF32, {2, 3}});
  const float values[] = {1, -2, 0.5f, 3, 0, -0.0f};
  std::ranges::copy(values, t.as<float>().begin());
  EXPECT_EQ(digest(t).hex(), "15c312e98f064c233af485850c1544f7");
  EXPECT_NE(digest(t), digest(t.reshaped({3, 2})));
  EXPECT_NE(digest(t.rows(0, 1)), digest(t.rows(1, 2)));
  Tensor positive = t.clone();
  positive.as<float>()[5] = 0.0f;
  EXPECT_NE(digest(t), digest(positive)) << "-0 is not +0";
  EXPECT_NE(digest(Tensor::scalar(0)), digest(Tensor::scalar_i32(0)));
}

TEST(Digest, HexRoundTrip) {
  const Digest d{0x0123456789abcdefu, 0x00000000000000ffu};
  EXPECT_EQ(d.hex(), "0123456789abcdef00000000000000ff");
  EXPECT_EQ(Digest::parse(d.hex()), d);
  EXPECT_FALSE(Digest::parse("0123456789ABCDEF00000000000000ff"));  // only lower case is accepted
  EXPECT_FALSE(Digest::parse("0123456789abcdef00000000000000f"));
  EXPECT_FALSE(Digest::parse("0123456789abcdef00000000000000fff"));
  EXPECT_FALSE(Digest::parse("0123456789abcdef0000000000000 ff"));
  EXPECT_FALSE(Digest::parse(""));
}

}  // namespace
}  // namespace twinrun

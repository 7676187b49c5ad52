// The ten rounds of Philox4x32, and the mapping of a draw to a counter and a word.
#include "program/base/philox.h"

namespace twinrun {

Philox4 philox4x32(Philox4 c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

Philox4 draw_four(RandomKey key, uint32_t step, uint32_t sample, uint32_t block) {
  return philox4x32({block, sample, step, key.stream},
                    {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
}

uint32_t draw(RandomKey key, uint32_t step, uint32_t sample, uint64_t element) {
  return draw_four(key, step, sample, static_cast<uint32_t>(element >> 2))[element & 3];
}

}  // namespace twinrun

// The random numbers of one procedural sample, in the order of the calls: Philox, with the stream
// of the source and the sample's id in the counter. Samples share no state, so they can be made in
// any order.
//
//   Draws draws({seed, kStreamDigits}, kShape, id);       // the `step` word, then the sample
//   double x = draws.between(-2.0, 2.0);                  // exact binary64 arithmetic on 24 bits
//   uint32_t k = draws.below(10);                         // 0 to 9
#pragma once

#include <cstdint>

#include "program/base/philox.h"

namespace twinrun::data {

// Streams of the procedural sources (docs/method/numerics.md, section 7).
inline constexpr uint32_t kStreamDigits = kStreamData;
inline constexpr uint32_t kStreamImages32 = kStreamData + 1;
inline constexpr uint32_t kStreamPhrases = kStreamData + 2;
inline constexpr uint32_t kStreamText = kStreamData + 3;

// Ids of held-out samples begin here, so that they do not depend on data.train.
inline constexpr uint32_t kHeldOut = 0x80000000u;

class Draws {
 public:
  Draws(RandomKey key, uint32_t step, uint32_t id) : key_(key), step_(step), id_(id) {}
  uint32_t bits() {
    if (next_ % 4 == 0) four_ = draw_four(key_, step_, id_, next_ / 4);
    return four_[next_++ % 4];
  }
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(uniform(bits()));
  }
  uint32_t below(uint32_t n) { return bounded(bits(), n); }

 private:
  RandomKey key_;
  uint32_t step_, id_;
  uint32_t next_ = 0;
  Philox4 four_{};
};

}  // namespace twinrun::data

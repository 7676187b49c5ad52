// Hardware faults: one element goes wrong, once or always. For intermittent faults, every kind
// accepts rate=.
#include <limits>

#include "backends/faults/kind.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

using Unit = FaultMagnitude::Unit;

// Where the faulty bit of an element is: the byte of the tensor, and the bit in that byte.
struct Bit {
  size_t byte;
  std::byte mask;
  Bit(const Strike& s, size_t element) {
    const size_t size = size_of(s.output.dtype()),
                 bit = static_cast<size_t>(s.magnitude()) % (size * 8);
    byte = element * size + bit / 8;
    mask = static_cast<std::byte>(1u << (bit % 8));
  }
};

void bit_flip(Strike& s) {
  const Bit bit(s, s.element());
  s.output = s.output.clone();
  s.output.raw()[bit.byte] ^= bit.mask;
}
void stuck_bit(Strike& s) {
  const Bit bit(s, s.element(false));
  s.output = s.output.clone();
  s.output.raw()[bit.byte] |= bit.mask;
}
void nan(Strike& s) { s.own_output()[s.element()] = from_bits(kCanonicalNaN); }
void inf(Strike& s) { s.own_output()[s.element()] = std::numeric_limits<float>::infinity(); }
void garbage(Strike& s) {
  uint32_t bits = s.random(1);
  // Keep it finite: NaN and Inf are kinds of their own.
  if ((bits & 0x7F800000u) == 0x7F800000u) bits ^= 0x40000000u;
  s.own_output()[s.element()] = from_bits(bits);
}

}  // namespace

std::vector<FaultKind> hardware_faults() {
  const FaultMagnitude bit{Unit::kCount,
                           22,
                           "number of the bit (22 is the top of an f32's fraction)",
                           {0, 4, 8, 12, 16, 20, 22, 24, 26, 28, 30, 31}};
  return {
      once(results("bit_flip", "any op",
                   "one bit of one element, drawn by (seed, step, op), the same on every core hit",
                   computed, bit_flip, bit)),
      results("stuck_bit", "any op", "one bit of one element, always the same one, is always 1",
              computed, stuck_bit, bit),
      once(results("nan", "any f32 op", "one element becomes NaN", computed_f32, nan)),
      once(results("inf", "any f32 op", "one element becomes +Inf", computed_f32, inf)),
      once(results("garbage", "any f32 op", "one element holds random finite bits", computed_f32,
                   garbage)),
  };
}

}  // namespace twinrun

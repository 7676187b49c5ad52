// One element that goes wrong, now or always. For faults that come and go, any kind takes rate=.
#include <limits>

#include "backends/faults/kind.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

using Unit = FaultMagnitude::Unit;
constexpr auto kGroup = FaultGroup::kHardware;

bool computed(const Program& p, ValueId id) {
  return class_of(op_at(p, id).kind) != OpClass::kSource && op_at(p, id).type.elements() > 0;
}
bool computed_f32(const Program& p, ValueId id) { return computed(p, id) && any_f32(p, id); }

// The byte and the bit in it.
struct Bit {
  size_t byte;
  std::byte mask;
  Bit(const Strike& s, size_t element) {
    const size_t size = size_of(s.output.dtype()), bit = static_cast<size_t>(s.magnitude()) % (size * 8);
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
  if ((bits & 0x7F800000u) == 0x7F800000u) bits ^= 0x40000000u;  // NaN and Inf are kinds of their own
  s.own_output()[s.element()] = from_bits(bits);
}

}  // namespace

std::vector<FaultKind> hardware_faults() {
  const auto result = FaultKind::Place::kResult;
  const FaultMagnitude bit{Unit::kCount, 22, "bit number, 22 is the top of an f32's fraction",
                           {0, 4, 8, 12, 16, 20, 22, 24, 26, 28, 30, 31}};
  return {
      {"bit_flip", kGroup, "any op",
       "one bit of one element, drawn by (seed, step, op), the same on every core hit", bit, result,
       true, false, computed, bit_flip},
      {"stuck_bit", kGroup, "any op", "one bit of one element, always the same one, is always 1",
       bit, result, false, false, computed, stuck_bit},
      {"nan", kGroup, "any f32 op", "one element becomes NaN", {}, result, true, false,
       computed_f32, nan},
      {"inf", kGroup, "any f32 op", "one element becomes +Inf", {}, result, true, false,
       computed_f32, inf},
      {"garbage", kGroup, "any f32 op", "one element holds random finite bits", {}, result, true,
       false, computed_f32, garbage},
  };
}

}  // namespace twinrun

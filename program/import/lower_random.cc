// rng-bit-generator, as XLA computes it on a CPU: Philox4x32-10 (also for rng_default) and
// Threefry-2x32-20 (Salmon et al., SC 2011). Its state is two u64 that JAX makes of four u32, the
// key and the counter, and that are kept here as these four.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "program/base/names.h"
#include "program/import/integers.h"

namespace twinrun {
namespace {

ValueId u32_like(Site& s, ValueId like, uint32_t value, std::string_view local) {
  return s.scalar_like(like, static_cast<int32_t>(value), local);
}
ValueId exclusive_or(Site& s, ValueId a, ValueId b) {
  return s.b.binary(OpKind::kXor, a, b, s.name("xor"));
}
ValueId wrapping_sum(Site& s, ValueId a, ValueId b) { return s.b.add(a, b, s.name("sum")); }

// The upper 32 bits of x c, from products of halves (Hacker's Delight, 8-2).
ValueId upper_product(Site& s, ValueId x, uint32_t c) {
  const auto upper = [&](ValueId v) {
    return shift(s, OpKind::kShiftRightLogical, v, 16, "upper");
  };
  const auto times = [&](ValueId v, uint32_t part) {
    const ValueId factor = u32_like(s, v, part, "factor");
    return s.b.mul(v, factor, s.name("product"));
  };
  const ValueId low = masked(s, x, 0xFFFF, "low"), high = upper(x);
  const ValueId first = upper(times(low, c & 0xFFFF));
  const ValueId middle = wrapping_sum(s, times(high, c & 0xFFFF), first);
  const ValueId inner = masked(s, middle, 0xFFFF, "inner");
  const ValueId other = wrapping_sum(s, times(low, c >> 16), inner);
  const ValueId carried = wrapping_sum(s, upper(middle), upper(other));
  return wrapping_sum(s, times(high, c >> 16), carried);
}

using Words = std::array<ValueId, 4>;

Words philox(Site& s, Words x, ValueId key0, ValueId key1) {
  for (int round = 0; round < 10; ++round) {
    const ValueId high0 = upper_product(s, x[0], 0xD2511F53),
                  high1 = upper_product(s, x[2], 0xCD9E8D57);
    const ValueId low0 = s.b.mul(x[0], u32_like(s, x[0], 0xD2511F53, "factor"), s.name("product")),
                  low1 = s.b.mul(x[2], u32_like(s, x[2], 0xCD9E8D57, "factor"), s.name("product"));
    const ValueId first = exclusive_or(s, high1, x[1]), third = exclusive_or(s, high0, x[3]);
    x = {exclusive_or(s, first, key0), low1, exclusive_or(s, third, key1), low0};
    key0 = wrapping_sum(s, key0, u32_like(s, key0, 0x9E3779B9, "weyl"));
    key1 = wrapping_sum(s, key1, u32_like(s, key1, 0xBB67AE85, "weyl"));
  }
  return x;
}

std::pair<ValueId, ValueId> threefry(Site& s, ValueId x0, ValueId x1, ValueId key0, ValueId key1) {
  constexpr int kTurns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const ValueId mixed = exclusive_or(s, key0, key1);
  const ValueId keys[3] = {key0, key1,
                           exclusive_or(s, mixed, u32_like(s, mixed, 0x1BD11BDA, "parity"))};
  x0 = wrapping_sum(s, x0, keys[0]);
  x1 = wrapping_sum(s, x1, keys[1]);
  for (int group = 0; group < 5; ++group) {
    for (const int turn : kTurns[group % 2]) {
      x0 = wrapping_sum(s, x0, x1);
      const ValueId left = shift(s, OpKind::kShiftLeft, x1, turn, "left"),
                    right = shift(s, OpKind::kShiftRightLogical, x1, 32 - turn, "right");
      x1 = exclusive_or(s, s.b.binary(OpKind::kOr, left, right, s.name("turned")), x0);
    }
    x0 = wrapping_sum(s, x0, keys[(group + 1) % 3]);
    x1 = wrapping_sum(s, x1, keys[(group + 2) % 3]);
    x1 = wrapping_sum(s, x1, u32_like(s, x1, static_cast<uint32_t>(group + 1), "count"));
  }
  return {x0, x1};
}

// The 64-bit sum of (low, high) and a number of 32 bits.
std::pair<ValueId, ValueId> sum64(Site& s, ValueId low, ValueId high, ValueId by) {
  const ValueId total = wrapping_sum(s, low, by);
  const auto flipped = [&](ValueId v) {
    return exclusive_or(s, v, u32_like(s, v, 0x80000000, "top_bit"));
  };
  const ValueId a = flipped(total), b = flipped(low);
  const ValueId over = s.b.compare(CompareKind::kLt, a, b, s.name("overflows"));
  const ValueId one = u32_like(s, high, 1, "one"), none = u32_like(s, high, 0, "zero");
  return {total, wrapping_sum(s, high, s.b.select(over, one, none, s.name("carry")))};
}

// Threefry gives two arrays, of half the size along one axis, whose elements alternate along it: the
// first axis of even size, or the longest one, at whose end one element is left over.
struct Halves {
  size_t axis = 0;
  Dims half;
};
Halves halves_of(const Dims& dims) {
  Halves h{0, dims};
  const auto even = std::ranges::find_if(dims, [](int64_t d) { return d % 2 == 0; });
  const auto at = even != dims.end() ? even : std::ranges::max_element(dims);
  h.axis = static_cast<size_t>(at - dims.begin());
  h.half[h.axis] = (*at + 1) / 2;
  return h;
}

ValueId threefry_bits(Site& s, const Words& words, const Dims& dims, int64_t& used) {
  if (dims.empty()) s.refuse("rng_three_fry of a scalar; allowed: arrays");
  const Halves h = halves_of(dims);
  used = product(h.half);
  const ValueId place = s.b.iota({used}, 0, DType::kI32, s.name("place"));
  const TensorType like = s.b.type(place);
  std::array<ValueId, 4> w = words;
  for (ValueId& v : w) v = s.spread(v, like);
  const auto [low, high] = sum64(s, w[2], w[3], place);
  const auto [x0, x1] = threefry(s, low, high, w[0], w[1]);
  Dims pair = h.half, both = dims;
  pair.insert(pair.begin() + static_cast<std::ptrdiff_t>(h.axis) + 1, 1);
  both[h.axis] = 2 * h.half[h.axis];
  const ValueId first = s.reshape(x0, pair), second = s.reshape(x1, pair);
  const auto axis = static_cast<int64_t>(h.axis);
  const ValueId joined = s.b.concatenate(first, second, axis + 1, s.name("pairs"));
  return s.cut(s.reshape(joined, both), axis, 0, dims[h.axis]);
}

ValueId philox_bits(Site& s, const Words& words, const Dims& dims, int64_t& used) {
  const int64_t n = product(dims);
  used = (n + 3) / 4;
  const ValueId place = s.b.iota({used}, 0, DType::kI32, s.name("place"));
  const TensorType like = s.b.type(place);
  std::array<ValueId, 4> w = words;
  for (ValueId& v : w) v = s.spread(v, like);
  const auto [low, high] = sum64(s, w[2], w[3], place);
  const Words x = philox(s, {low, high, w[0], w[1]}, w[0], w[1]);
  ValueId all = s.reshape(x[0], {used, 1});
  for (size_t i = 1; i < x.size(); ++i) {
    const ValueId next = s.reshape(x[i], {used, 1});
    all = s.b.concatenate(all, next, 1, s.name("words"));
  }
  return s.reshape(s.cut(s.reshape(all, {4 * used}), 0, 0, n), dims, "bits");
}

std::vector<ValueId> rng_bit_generator(Site& s) {
  s.expect(1);
  const std::string named = lower_case(text_attribute(s.in, "algorithm"));
  const std::string algorithm = named.starts_with("rng_") ? named.substr(4) : named;
  const bool three = algorithm == "three_fry";
  if (!three && algorithm != "default" && algorithm != "philox")
    s.refuse(fmt::format("rng-bit-generator by {}; allowed: rng_default, rng_philox, rng_three_fry",
                         named));
  const auto pair = s.shared().pairs.find(s.x[0]);
  if (pair == s.shared().pairs.end() || s.b.type(pair->second).dims != Dims{2, 2} ||
      s.in.shape.parts.size() != 2 || s.in.shape.parts[1].dtype != "u32")
    s.refuse("rng-bit-generator; allowed: u32 from a state of four u32, as keys of \"rbg\" are");
  const ValueId flat = s.reshape(pair->second, {4}, "state");
  Words words{};
  for (size_t i = 0; i < words.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    words[i] = s.reshape(s.cut(flat, 0, at, at + 1), {}, "word");
  }
  const Dims dims = s.in.shape.parts[1].dims;
  s.check_size(dims);
  int64_t used = 0;
  const ValueId bits =
      three ? threefry_bits(s, words, dims, used) : philox_bits(s, words, dims, used);
  const ValueId by = u32_like(s, words[2], static_cast<uint32_t>(used), "used");
  const auto [low, high] = sum64(s, words[2], words[3], by);
  ValueId state = s.reshape(words[0], {1});
  for (const ValueId word : {words[1], low, high}) {
    const ValueId next = s.reshape(word, {1});
    state = s.b.concatenate(state, next, 0, s.name("state"));
  }
  return {pair_of_words(s, s.reshape(state, {2, 2}, "next_state")), bits};
}

}  // namespace

ValueId pair_of_words(Site& s, ValueId words) {
  const Dims dims = s.b.type(words).dims;
  const auto last = static_cast<int64_t>(dims.size()) - 1;
  // An op of its own, whose value is the lower words: readers other than these rules are refused.
  const ValueId low = s.b.slice(words, last, 0, 1, s.name("low"));
  const ValueId out = s.b.reshape(low, Dims(dims.begin(), dims.end() - 1), s.name("pairs"));
  s.shared().pairs[out] = words;
  return out;
}

void add_random(ManyLoweringTable& table) { table["rng-bit-generator"] = rng_bit_generator; }

}  // namespace twinrun

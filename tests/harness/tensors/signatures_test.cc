// Tests the signatures of wrong tensors where only tensors are visible. Each is made by hand from
// numbers, without injecting a fault.
#include "harness/tensors/signatures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "program/base/bits.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

constexpr double kReach = 1e-5;

std::vector<float> numbers(size_t n, uint64_t seed) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i)
    out[i] = uniform(draw({seed, 1}, 0, 0, i)) + (i % 3 == 0 ? -1.2f : 0.2f);
  return out;
}

// A matrix of 8 rows and 12 columns, with its expected and its actual values.
struct SignatureCase {
  Dims dims = {8, 12};
  std::vector<float> expected = numbers(96, 5), got = expected;
  std::vector<double> allowed = std::vector<double>(96, kReach);
  std::vector<std::string> axes = {"row", "column"};
  std::vector<std::vector<float>> parts = {};
  std::vector<std::vector<float>> others = {};
  std::vector<float> left = {}, left_expected = {};
  double rounding = 0;  // how much farther than `allowed` the exact value may be

  std::vector<int64_t> wrong() const {
    std::vector<int64_t> out;
    for (size_t i = 0; i < got.size(); ++i) {
      if (!(std::fabs(static_cast<double>(got[i]) - static_cast<double>(expected[i])) <=
            allowed[i]))
        out.push_back(static_cast<int64_t>(i));
    }
    return out;
  }
  Signature look() const {
    const std::vector<double> is(got.begin(), got.end()), ought(expected.begin(), expected.end());
    WrongTensor w;
    w.dims = dims;
    w.axes = axes;
    w.got = is;
    w.expected = ought;
    w.wrong = wrong();
    w.allowed = allowed;
    std::vector<double> from_exact = allowed;
    for (double& x : from_exact) x += rounding;
    w.from_exact = from_exact;
    w.left = left;
    w.left_expected = left_expected;
    for (const auto& part : parts) w.parts.push_back(part);
    for (const auto& other : others) w.others.push_back({"another tensor", other});
    return signature_of(w);
  }
  void change(const std::function<bool(size_t, size_t)>& where,
              const std::function<float(size_t, float)>& how) {
    const auto columns = static_cast<size_t>(dims.back());
    for (size_t i = 0; i < got.size(); ++i) {
      if (where(i / columns, i % columns)) got[i] = how(i, expected[i]);
    }
  }
};

const auto everywhere = [](size_t, size_t) { return true; };

void expect(const SignatureCase& c, const std::string& elements, const std::string& signature) {
  const Signature s = c.look();
  EXPECT_EQ(s.elements, elements);
  EXPECT_EQ(s.signature, signature);
}

TEST(Signatures, NothingIsWrongWithinTheReach) {
  SignatureCase c;
  c.change(everywhere, [](size_t i, float x) { return x + (i % 2 == 0 ? 9e-6f : -9e-6f); });
  EXPECT_TRUE(c.wrong().empty());
  expect(c, "", "");
}

TEST(Signatures, NumbersThatStandThere) {
  SignatureCase column;
  column.change([](size_t, size_t k) { return k == 7; }, [](size_t, float) { return 0.f; });
  expect(column, "column 7 of 12", "zero");
  SignatureCase doubled;
  doubled.change([](size_t, size_t k) { return k == 7; }, [](size_t, float x) { return 2 * x; });
  expect(doubled, "column 7 of 12", "2 times what was expected");
  SignatureCase row;
  row.change([](size_t r, size_t) { return r == 7; }, [](size_t, float x) { return x / 3; });
  expect(row, "the last of 8 rows", "0.333333 times what was expected");
  SignatureCase tail;
  tail.change([](size_t, size_t k) { return k >= 9; }, [](size_t, float) { return 0.25f; });
  expect(tail, "the last 3 of 12 columns", "the constant 0.25");
  SignatureCase turned;
  turned.change(everywhere, [](size_t, float x) { return -x; });
  expect(turned, "", "what was expected with its sign turned");
  SignatureCase offset;
  offset.change([](size_t r, size_t) { return r % 2 == 1; },
                [](size_t, float x) { return x + 0.5f; });
  expect(offset, "every 2nd of 8 rows, from 1", "what was expected plus 0.5");
  SignatureCase all;
  all.change(everywhere, [](size_t, float x) { return 1.5f * x; });
  expect(all, "", "1.5 times what was expected");
}

// A column that is set to zero is recognised as a column although most of its numbers were nearly
// zero already.
TEST(Signatures, WhatCannotBeSeenLiesInTheSameColumn) {
  SignatureCase c;
  for (size_t r = 0; r < 8; ++r) {
    if (r != 1 && r != 2 && r != 5) c.expected[r * 12 + 4] = 1e-6f;
  }
  c.got = c.expected;
  c.change([](size_t, size_t k) { return k == 4; }, [](size_t, float) { return 0.f; });
  EXPECT_EQ(c.wrong().size(), 3u);
  expect(c, "column 4 of 12", "zero");
}

TEST(Signatures, OneElementAndItsBit) {
  SignatureCase c;
  c.got[5 * 12 + 3] = from_bits(to_bits(c.expected[5 * 12 + 3]) ^ (1u << 27));
  const Signature s = c.look();
  EXPECT_EQ(s.elements, "one element, [5,3]");
  EXPECT_NE(s.signature.find("(bit 27 flipped)"), std::string::npos) << s.signature;
  c.got[5 * 12 + 3] = 0;
  EXPECT_EQ(c.look().signature.substr(0, 7), "0 where");
}

TEST(Signatures, NotFinite) {
  SignatureCase c;
  c.change([](size_t r, size_t) { return r == 2; },
           [](size_t, float) { return std::numeric_limits<float>::quiet_NaN(); });
  expect(c, "row 2 of 8", "NaN or Inf (12 of 96 elements)");
}

TEST(Signatures, PartsOfCores) {
  SignatureCase c;
  std::fill(c.expected.begin(), c.expected.end(), 0.f);
  for (uint64_t k = 0; k < 4; ++k) c.parts.push_back(numbers(96, 20 + k));
  for (const auto& part : c.parts) {
    for (size_t i = 0; i < 96; ++i) c.expected[i] += part[i];
  }
  const auto counting = [&](const std::vector<float>& times, size_t begin, size_t end) {
    c.got = c.expected;
    for (size_t i = begin; i < end; ++i) {
      for (size_t k = 0; k < 4; ++k) c.got[i] += (times[k] - 1) * c.parts[k][i];
    }
  };
  counting({1, 1, 1, 0}, 0, 96);
  expect(c, "", "what was expected without core 3's part");
  counting({1, 2, 1, 1}, 0, 96);
  expect(c, "", "what was expected with core 1's part twice");
  counting({1, 1, 0, 0}, 0, 96);
  expect(c, "", "the parts of cores 0 and 1 alone");
  counting({0, 0, 1, 0}, 0, 96);
  expect(c, "", "core 2's part alone: not reduced");
  counting({1, 0, 1, 0}, 0, 96);
  expect(c, "", "the parts of cores 0 and 2 alone");
  counting({1, 3, 1, 0}, 0, 96);
  expect(c, "", "what was expected with core 1's part 3 times, without core 3's part");
  // A ring all-reduce passes on a tensor in stretches; here one stretch is not passed on.
  counting({1, 0, 1, 1}, 32, 58);
  expect(c, "elements 32 to 57 of 96, a stretch in memory",
         "what was expected without core 1's part");
  // A bias has too few elements to solve for a factor per core.
  counting({1, 1, 0, 1}, 0, 96);
  c.dims = {4};
  c.axes = {"element"};
  c.got.resize(4);
  c.expected.resize(4);
  c.allowed.resize(4);
  for (auto& part : c.parts) part.resize(4);
  expect(c, "", "what was expected without core 2's part");
}

// Operands that were rounded: every part is there once, and the sum is off by more than is allowed,
// but by less than the parts are. No count of parts describes that.
TEST(Signatures, EveryPartOnceIsNoSignature) {
  SignatureCase c;
  c.rounding = 1e-3;
  std::fill(c.expected.begin(), c.expected.end(), 0.f);
  for (uint64_t k = 0; k < 8; ++k) c.parts.push_back(numbers(96, 20 + k));
  for (const auto& part : c.parts) {
    for (size_t i = 0; i < 96; ++i) c.expected[i] += part[i];
  }
  c.got = c.expected;
  c.change(everywhere, [](size_t i, float x) { return x + (i % 3 == 0 ? 5e-4f : -3e-4f); });
  expect(c, "", "");
}

TEST(Signatures, RightNumbersInOtherPlaces) {
  SignatureCase c;
  const auto from = [&](const std::function<size_t(size_t, size_t)>& source) {
    for (size_t i = 0; i < c.expected.size(); ++i) {
      const auto columns = static_cast<size_t>(c.dims.back());
      c.got[i] = c.expected[source(i / columns, i % columns)];
    }
  };
  // Written as 12 rows of 8, read as 8 rows of 12.
  for (size_t i = 0; i < 96; ++i) c.got[i] = c.expected[i % 8 * 12 + i / 8];
  expect(c, "", "what was expected with rows and columns exchanged (transposed)");
  from([](size_t r, size_t k) { return r * 12 + (11 - k); });
  expect(c, "", "what was expected, columns in reverse order");
  from([](size_t r, size_t k) { return (r + 7) % 8 * 12 + k; });
  EXPECT_EQ(c.look().signature, "what was expected 1 place before along rows");
  // One tile holds the values of its neighbour.
  from([](size_t r, size_t k) { return r * 12 + (k >= 4 && k < 8 ? k - 4 : k); });
  expect(c, "columns 4 to 7 of 12", "what was expected 4 places before along columns");
  c.dims = {4, 2, 3, 4};
  c.axes = {};
  c.expected.resize(96);
  const auto flat = [](size_t a, size_t b, size_t d, size_t e) {
    return ((a * 2 + b) * 3 + d) * 4 + e;
  };
  for (size_t i = 0; i < 96; ++i) c.got[i] = c.expected[flat(i % 4, i / 12 % 2, i / 4 % 3, i / 24)];
  expect(c, "", "what was expected with dimension 0 and dimension 3 exchanged (transposed)");
  for (size_t i = 0; i < 96; ++i)
    c.got[i] = c.expected[flat(3 - i / 24, 1 - i / 12 % 2, i / 4 % 3, i % 4)];
  expect(c, "", "what was expected, the kernel turned by half a turn");
}

TEST(Signatures, AnotherTensor) {
  SignatureCase c;
  c.others = {numbers(96, 71), numbers(96, 72)};
  c.got = c.others[1];
  expect(c, "", "another tensor");
  c.got = c.expected;
  c.change([](size_t r, size_t) { return r < 3; }, [&](size_t i, float) { return c.others[0][i]; });
  expect(c, "the first 3 of 8 rows", "another tensor");
}

TEST(Signatures, FewerBits) {
  SignatureCase c;
  c.allowed.assign(96, 1e-7);
  c.change(everywhere, [](size_t, float x) { return bf16_to_f32(bf16_round(x)); });
  expect(c, "", "what was expected rounded to bfloat16");
  c.change(everywhere, [](size_t, float x) { return bf16_to_f32(bf16_truncate(x)); });
  expect(c, "", "what was expected cut to bfloat16");
  c.change(everywhere,
           [](size_t, float x) { return from_bits((to_bits(x) + 0x1000u) & ~0x1FFFu); });
  expect(c, "", "what was expected rounded to tf32");
}

TEST(Signatures, AStateThatDidNotMove) {
  SignatureCase c;
  const std::vector<float> before = numbers(96, 40);
  const auto leave = [&] {
    c.left.resize(96);
    c.left_expected.resize(96);
    for (size_t i = 0; i < 96; ++i) {
      c.left[i] = before[i] + c.got[i];
      c.left_expected[i] = before[i] + c.expected[i];
    }
  };
  c.change([](size_t r, size_t) { return r == 3; }, [](size_t, float) { return 0.f; });
  leave();
  expect(c, "row 3 of 8", "unchanged: an update of zero");
  c.got = c.expected;
  c.change([](size_t r, size_t) { return r == 3; }, [&](size_t i, float) { return -before[i]; });
  leave();
  expect(c, "row 3 of 8", "set to zero");
}

// If no signature fits, only the place of the wrong elements is reported.
TEST(Signatures, NoiseHasNoSignature) {
  SignatureCase c;
  const std::vector<float> noise = numbers(96, 90);
  c.change([](size_t r, size_t) { return r < 2; },
           [&](size_t i, float x) { return x + 0.1f * noise[i]; });
  expect(c, "the first 2 of 8 rows", "");
}

// Where the expected value is nothing but rounding, no factor is reported, however large it would
// be.
TEST(Signatures, NoFactorOfRounding) {
  SignatureCase c;
  const std::vector<float> noise = numbers(96, 91);
  for (size_t i = 0; i < 96; ++i) {
    c.expected[i] = 1e-9f * noise[i];
    c.got[i] = 100 * c.expected[i] + noise[i] * 1e3f * 1e-5f;
  }
  EXPECT_EQ(c.look().signature.find("times"), std::string::npos) << c.look().signature;
}

}  // namespace
}  // namespace twinrun

// The reference of the tests of backends/kernels: the contract's order of operations, one scalar at
// a time, with flushing modelled in software. Shares no code with the kernels.
//
//   NaiveArithmetic n{.flush = true};
//   n.fma(a, b, c);                                   // numerics.md, "Flush to zero"
//   dot_f32(a, b, k, 4096);  dot_bf16(a, b, k, k);    // a(k), b(k): functions of the flat index
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backends/kernels/elementary_kernels.h"
#include "backends/kernels/kernels.h"
#include "program/base/bits.h"
#include "tests/support/isa_scope.h"

namespace twinrun::naive {

// Whether a result is flushed: it is below 2^-126 after rounding with unbounded exponent, that is,
// below the midpoint of 2^-126 - 2^-150 and 2^-126.
inline bool tiny(Quad exact) {
  const Quad a = exact < 0 ? -exact : exact;
  return a != 0 && a < Quad(0x1p-126) - Quad(0x1p-151);
}
inline float zero_like(Quad exact) { return exact < 0 ? -0.0f : 0.0f; }

struct NaiveArithmetic {
  bool flush = false;
  float in(float x) const { return flush ? twinrun::flush(x) : x; }
  float fma(float a, float b, float c) const {
    a = in(a), b = in(b), c = in(c);
    const float r = std::fma(a, b, c);
    if (!flush || !std::isfinite(r)) return r;
    const Quad exact = Quad(a) * b + c;
    return tiny(exact) ? zero_like(exact) : r;
  }
  float add(float a, float b) const {
    a = in(a), b = in(b);
    const float r = a + b;
    return flush && std::isfinite(r) && tiny(Quad(a) + b) ? zero_like(Quad(a) + b) : r;
  }
  float mul(float a, float b) const {
    a = in(a), b = in(b);
    const float r = a * b;
    return flush && std::isfinite(r) && tiny(Quad(a) * b) ? zero_like(Quad(a) * b) : r;
  }
  float div(float a, float b) const {
    a = in(a), b = in(b);
    const float r = a / b;
    return flush && std::isfinite(r) && b != 0 && std::isfinite(b) && tiny(Quad(a) / b)
               ? zero_like(Quad(a) / b)
               : r;
  }
};

template <typename A, typename B>
float dot_f32(A&& a, B&& b, int64_t k, int64_t segment, bool flush = false) {
  const NaiveArithmetic n{flush};
  float total = 0;
  for (int64_t k0 = 0; k0 < k; k0 += segment) {
    float acc = 0;
    for (int64_t i = k0; i < std::min(k, k0 + segment); ++i) acc = n.fma(a(i), b(i), acc);
    total = k0 == 0 ? acc : n.add(total, acc);
  }
  return canonical(total);
}

inline float bf16(float x) { return bf16_to_f32(bf16_round_flush(x)); }

template <typename A, typename B>
float dot_bf16(A&& a, B&& b, int64_t k, int64_t segment) {
  const NaiveArithmetic n{true};
  float total = 0;
  for (int64_t k0 = 0; k0 < k; k0 += segment) {
    const int64_t end = std::min(k, k0 + segment);
    float acc = 0;
    for (int64_t block = k0; block < end; block += 32) {
      float chain[2] = {0, 0};
      for (int64_t i = 0; i < 32; ++i) {
        const bool real = block + i < end;
        chain[i % 2] = n.fma(real ? a(block + i) : 0.0f, real ? b(block + i) : 0.0f, chain[i % 2]);
      }
      acc = n.add(acc, n.add(chain[0], chain[1]));
    }
    total = k0 == 0 ? acc : n.add(total, acc);
  }
  return canonical(total);
}

// Term 0, 1 or 2 of the splitting of x into bf16 terms.
inline float term(float x, int which) {
  const NaiveArithmetic n{true};
  const float hi = bf16(x), rest = n.add(x, -hi), mid = bf16(rest);
  return which == 0 ? hi : which == 1 ? mid : bf16(n.add(rest, -mid));
}

template <typename A, typename B>
float dot(DotArithmetic arithmetic, A&& a, B&& b, int64_t k, int64_t segment, bool flush) {
  if (arithmetic == DotArithmetic::kF32) return dot_f32(a, b, k, segment, flush);
  const auto pass = [&](int ta, int tb) {
    return dot_bf16([&](int64_t i) { return term(a(i), ta); },
                    [&](int64_t i) { return term(b(i), tb); }, k, segment);
  };
  const NaiveArithmetic n{true};
  const auto z = [](float x) { return x != x ? 0.0f : x; };
  if (arithmetic == DotArithmetic::kBf16) return pass(0, 0);
  if (arithmetic == DotArithmetic::kBf16x3)
    return canonical(n.add(z(n.add(pass(1, 0), pass(0, 1))), pass(0, 0)));
  float sum = n.add(pass(1, 1), pass(2, 0));
  sum = n.add(sum, pass(0, 2));
  sum = n.add(sum, pass(1, 0));
  sum = n.add(sum, pass(0, 1));
  return canonical(n.add(z(sum), pass(0, 0)));
}

// ---- data ----

enum class Data { kUniform, kSmall, kTiny, kWide, kSpecial };

inline float draw_value(std::mt19937& g, Data data) {
  const float u = static_cast<float>(g() >> 8) * 0x1p-23f - 1.0f;
  const auto pick = g();
  switch (data) {
    case Data::kUniform:
      return u;
    case Data::kSmall:
      return u * 0x1p-63f;  // products around 2^-126
    case Data::kTiny:
      return pick % 3 == 0 ? u * 0x1p-126f : u * 0x1p-60f;
    case Data::kWide:
      return std::ldexp(u, static_cast<int>(pick % 250) - 125);
    case Data::kSpecial:
      break;
  }
  switch (pick % 400) {
    case 0:
      return std::numeric_limits<float>::infinity();
    case 1:
      return -std::numeric_limits<float>::infinity();
    case 2:
      return from_bits(kCanonicalNaN);
    case 3:
      return std::numeric_limits<float>::max();
    case 4:
      return -std::numeric_limits<float>::max();
    default:
      break;
  }
  switch (pick % 7) {
    case 0:
      return 0.0f;
    case 1:
      return -0.0f;
    case 2:
      return from_bits(pick >> 9);  // denormals
    case 3:
      return -from_bits(pick >> 9);
    default:
      return u;
  }
}

// A tensor of random data that begins `shift` elements past an aligned address.
inline Tensor tensor(Dims dims, Data data, uint32_t seed, int64_t shift = 0) {
  const TensorType type{DType::kF32, dims};
  Tensor t = Tensor::empty({DType::kF32, {type.elements() + shift}})
                 .rows(shift, type.elements() + shift)
                 .reshaped(dims);
  std::mt19937 g(seed);
  for (float& x : t.as<float>()) x = draw_value(g, data);
  return t;
}
inline Tensor to_bf16(const Tensor& x) {
  Tensor t = Tensor::empty({DType::kBF16, x.dims()});
  for (size_t i = 0; i < t.as<uint16_t>().size(); ++i)
    t.as<uint16_t>()[i] = bf16_round(x.as<float>()[i]);
  return t;
}

inline Tensor run(const KernelContext& context, const Op& op, const std::vector<Tensor>& inputs,
                  int64_t shift = 0) {
  const int64_t n = op.type.elements();
  Tensor out =
      Tensor::empty({op.type.dtype, {n + shift}}).rows(shift, n + shift).reshaped(op.type.dims);
  std::memset(out.raw(), 0xEE, out.bytes());
  if (op.kind == OpKind::kAllReduce) {
    all_reduce_sum(context, inputs, out);
  } else {
    run_kernel(context, op, inputs, out);
  }
  return out;
}

// The index of the first element whose bits differ, or -1 if there is none.
inline int64_t first_difference(const Tensor& a, const Tensor& b) {
  if (a.type() != b.type()) return 0;
  const size_t width = size_of(a.dtype());
  for (int64_t i = 0; i < a.elements(); ++i) {
    if (std::memcmp(a.raw() + i * static_cast<int64_t>(width),
                    b.raw() + i * static_cast<int64_t>(width), width) != 0)
      return i;
  }
  return -1;
}

// Whether this machine has VDPBF16PS, and TWINRUN_ISA does not forbid it.
inline bool runs_avx512bf16() { return IsaScope(Isa::kAvx512Bf16).there(); }

// The instruction sets whose tiles differ for such a dot. VDPBF16PS and the real AMX tiles are
// included where the machine has them; where it has not, kernels_quads_test.cc and
// kernels_amx_test.cc report that.
inline std::vector<Isa> isas(DotArithmetic dot) {
  std::vector<Isa> list = {Isa::kScalar, Isa::kNeon, Isa::kAvx2, Isa::kAvx512};
  if (dot == DotArithmetic::kF32) return list;
  list.push_back(Isa::kAmxModel);
  if (runs_avx512bf16()) list.push_back(Isa::kAvx512Bf16);
  if (amx_refusal().empty()) list.push_back(Isa::kAmx);
  return list;
}

}  // namespace twinrun::naive

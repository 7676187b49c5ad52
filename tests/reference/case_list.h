// How lists of op cases are drawn: random numbers for each class of data, and a collector of cases.
// Private to the op_cases files.
#pragma once

#include <cmath>
#include <random>

#include "program/base/bits.h"
#include "program/ops/op_def.h"
#include "tests/reference/op_cases.h"

namespace twinrun::cases {

using Random = std::mt19937_64;

inline double unit(Random& r) { return static_cast<double>(r() >> 11) * 0x1p-53; }
inline int64_t integer(Random& r, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(r() % static_cast<uint64_t>(high - low + 1));
}
inline float sign(Random& r) { return (r() & 1) != 0 ? -1.0f : 1.0f; }
inline float with_exponent(Random& r, int64_t low, int64_t high) {
  return sign(r) *
         std::ldexp(1.0f + static_cast<float>(unit(r)), static_cast<int>(integer(r, low, high)));
}

inline float special(Random& r) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  static const float values[] = {kInf,
                                 -kInf,
                                 from_bits(kCanonicalNaN),
                                 0.0f,
                                 -0.0f,
                                 0x1p-149f,
                                 -0x1p-149f,
                                 0x1p-127f,
                                 -0x1p-127f,
                                 0x1p-126f,
                                 -0x1p-126f,
                                 0x1.fffffep127f,
                                 -0x1.fffffep127f,
                                 0x1.ffp127f,
                                 1.0f,
                                 -1.0f};
  return values[r() % std::size(values)];
}

inline float draw_float(Random& r, DataClass data) {
  switch (data) {
    case DataClass::kNormal:
      return static_cast<float>(unit(r) * 2 - 1);
    case DataClass::kPositive:
      return (r() & 1) != 0 ? static_cast<float>(unit(r)) : 0.0f;
    case DataClass::kWide:
      return with_exponent(r, -126, 126);
    case DataClass::kTiny:
      return with_exponent(r, (r() & 3) == 0 ? -150 : -66, (r() & 3) == 0 ? -120 : -58);
    case DataClass::kHuge:
      return with_exponent(r, 55, (r() & 15) == 0 ? 127 : 64);
    case DataClass::kSpecial:
      return r() % 8 == 0 ? special(r) : with_exponent(r, -3, 3);
    case DataClass::kTies:
      switch (r() % 4) {
        case 0:
          return sign(r) * 0.0f;
        case 1:
          return from_bits((static_cast<uint32_t>(integer(r, 0x3F80, 0x3FFF)) << 16) | 0x8000u);
        default:
          return static_cast<float>(integer(r, -6, 6)) * 0.25f;
      }
  }
  return 0;
}

inline Tensor random_ints(Dims dims, uint64_t seed) {
  Random r(seed);
  Tensor t = Tensor::empty({DType::kI32, std::move(dims)});
  for (auto& x : t.as<int32_t>()) {
    x = (r() & 7) == 0 ? ((r() & 1) != 0 ? INT32_MIN : INT32_MAX)
                       : static_cast<int32_t>(integer(r, -70000, 70000));
    if ((r() & 3) == 0) x = static_cast<int32_t>(static_cast<uint32_t>(r()));
    if ((r() & 7) == 0) x = 3;
  }
  return t;
}
inline Tensor random_preds(Dims dims, uint64_t seed) {
  Random r(seed);
  Tensor t = Tensor::empty({DType::kPred, std::move(dims)});
  for (auto& x : t.as<uint8_t>()) x = r() & 1;
  return t;
}

// Collects the cases of one op kind.
class Cases {
 public:
  Cases(OpKind kind, DataClass data, uint64_t seed)
      : kind_(kind), data_(data), seed_(seed * 1000003) {}

  void add(Attrs attrs, std::vector<Tensor> inputs) {
    OpCase c;
    c.op.kind = kind_;
    c.op.attrs = std::move(attrs);
    std::vector<TensorType> types;
    for (const Tensor& t : inputs) types.push_back(t.type());
    c.name = std::string(name_of(kind_));
    c.op.name = c.name;
    c.op.type = op_def(kind_).infer(c.op, types);
    for (const TensorType& t : types) c.name += " " + to_string(t);
    c.name += " -> " + to_string(c.op.type) + " " + std::string(to_string(data_));
    c.inputs = std::move(inputs);
    out.push_back(std::move(c));
  }
  // An f32 tensor whose elements f draws.
  template <typename F>
  Tensor made(Dims dims, F f) {
    Random r(++seed_);
    Tensor t = Tensor::empty({DType::kF32, std::move(dims)});
    for (float& x : t.as<float>()) x = f(r);
    return t;
  }
  DataClass data() const { return data_; }
  Tensor floats(DType dtype, Dims dims) {
    return random_tensor({dtype, std::move(dims)}, data_, ++seed_);
  }
  Tensor ints(Dims dims) { return random_ints(std::move(dims), ++seed_); }
  Tensor preds(Dims dims) { return random_preds(std::move(dims), ++seed_); }

  std::vector<OpCase> out;

 private:
  OpKind kind_;
  DataClass data_;
  uint64_t seed_;
};

// Defined in op_cases_rows.cc: concatenate, slice, pad, gather and scatter_add; dots of stacks of
// matrices; grouped convolutions.
void rows(Cases& cases, OpKind kind, DType dtype);
void stacked_dots(Cases& cases, DType dtype);
void grouped_convolutions(Cases& cases, OpKind kind, DType dtype);

}  // namespace twinrun::cases

// Tests of tensors (which operations share storage, alignment, comparison of bits) and of how types
// are printed and parsed.
#include "program/base/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

namespace twinrun {
namespace {

Tensor counting(Dims dims) {
  Tensor t = Tensor::empty({DType::kF32, std::move(dims)});
  std::iota(t.as<float>().begin(), t.as<float>().end(), 0.0f);
  return t;
}

TEST(Types, PrintAndParse) {
  EXPECT_EQ(to_string(TensorType{DType::kF32, {128, 10}}), "f32[128,10]");
  EXPECT_EQ(to_string(TensorType{DType::kPred, {}}), "pred[]");
  const std::pair<DType, size_t> sizes[] = {
      {DType::kF32, 4}, {DType::kBF16, 2}, {DType::kI32, 4}, {DType::kPred, 1}, {DType::kF64, 8}};
  for (const auto& [dtype, size] : sizes) {
    EXPECT_EQ(size_of(dtype), size);
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_FALSE(parse_dtype("f16"));
  EXPECT_FALSE(parse_dtype(""));
  EXPECT_EQ((TensorType{DType::kBF16, {3, 4}}.bytes()), 24u);
  EXPECT_EQ((TensorType{DType::kF32, {}}.elements()), 1);
  EXPECT_EQ((TensorType{DType::kF32, {5, 0, 2}}.elements()), 0);
}

TEST(Tensor, IsAlignedEvenWhenEmpty) {
  for (const Dims& dims : {Dims{}, Dims{1}, Dims{7, 3}, Dims{0}}) {
    const Tensor t = Tensor::zeros({DType::kF32, dims});
    EXPECT_TRUE(t.valid());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 64, 0u);
    for (float v : t.as<float>()) EXPECT_EQ(v, 0.0f);
  }
  EXPECT_FALSE(Tensor().valid());
  EXPECT_EQ(Tensor::scalar(2.5f).as<float>()[0], 2.5f);
  EXPECT_EQ(Tensor::scalar_i32(-7).as<int32_t>()[0], -7);
}

TEST(Tensor, RowsShareStorage) {
  Tensor t = counting({4, 2, 3});
  Tensor rows = t.rows(1, 3);
  EXPECT_EQ(rows.dims(), (Dims{2, 2, 3}));
  EXPECT_EQ(rows.elements(), 12);
  EXPECT_EQ(rows.as<float>()[0], 6.0f);
  EXPECT_EQ(rows.as<float>()[11], 17.0f);
  rows.as<float>()[0] = -1;
  EXPECT_EQ(t.as<float>()[6], -1.0f);
  EXPECT_EQ(t.owners(), 2);
  EXPECT_EQ(t.rows(2, 2).elements(), 0);
  EXPECT_EQ(rows.rows(1, 2).as<float>()[0], 12.0f);
  // A view keeps the storage alive after the original tensor is gone.
  t = Tensor();
  EXPECT_EQ(rows.owners(), 1);
  EXPECT_EQ(rows.as<float>()[11], 17.0f);
}

TEST(Tensor, ReshapeSharesCloneDoesNot) {
  Tensor t = counting({2, 6});
  Tensor reshaped = t.reshaped({3, 4}), copy = t.clone();
  EXPECT_EQ(reshaped.dims(), (Dims{3, 4}));
  EXPECT_EQ(reshaped.raw(), t.raw());
  EXPECT_NE(copy.raw(), t.raw());
  t.as<float>()[0] = 9;
  EXPECT_EQ(reshaped.as<float>()[0], 9.0f);
  EXPECT_EQ(copy.as<float>()[0], 0.0f);
}

TEST(Tensor, SameBitsLooksAtTypeAndBits) {
  const Tensor t = counting({2, 3});
  Tensor other = t.clone();
  EXPECT_TRUE(t.same_bits(other));
  EXPECT_FALSE(t.same_bits(other.reshaped({3, 2})));
  other.as<float>()[0] = -0.0f;
  EXPECT_FALSE(t.same_bits(other)) << "+0 and -0 are equal numbers, other bits";
  EXPECT_FALSE(Tensor::scalar(0).same_bits(Tensor::scalar_i32(0)));
  EXPECT_TRUE(t.rows(0, 0).same_bits(t.rows(1, 1)));
}

}  // namespace
}  // namespace twinrun

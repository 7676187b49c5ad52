// Tensors kept in a file without a name.
#include "checkpoints/container/spill_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "program/base/tensor_memory.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

Tensor counting(int64_t elements, int32_t from) {
  Tensor t = Tensor::empty({DType::kI32, {elements}});
  for (int32_t& value : t.as<int32_t>()) value = from++;
  return t;
}

TEST(SpillFile, KeepsElementsWithoutTensorMemoryAndWithoutAName) {
  const Folder folder;
  SpillFile spill(folder.path());
  const int64_t before = tensor_memory().live;
  std::vector<Tensor> kept;
  for (int32_t i = 0; i < 3; ++i) kept.push_back(spill.keep(counting(100'001, i)));
  EXPECT_EQ(tensor_memory().live, before);
  for (int32_t i = 0; i < 3; ++i)
    EXPECT_TRUE(kept[static_cast<size_t>(i)].same_bits(counting(100'001, i))) << i;
  EXPECT_EQ(folder.files(), 0u);
}

TEST(SpillFile, WhatDoesNotFitStaysInMemory) {
  SpillFile nowhere("/nonexistent");
  const Tensor t = counting(100'001, 0);
  EXPECT_EQ(nowhere.keep(t).raw(), t.raw());
  const Folder folder;
  SpillFile spill(folder.path());
  const Tensor small = counting(10, 0);
  EXPECT_EQ(spill.keep(small).raw(), small.raw());
}

}  // namespace
}  // namespace twinrun

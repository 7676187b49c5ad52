// Tests of the time model of a TPU core against numbers worked out by hand: tiles of products,
// passes, bytes moved, links between chips.
#include "device/core_model.h"

#include <gtest/gtest.h>

#include "program/ops/op_def.h"
#include "tests/program/models.h"

namespace twinrun::tpu {
namespace {

Generation v2() { return *find_generation("v2"); }

TEST(CoreModel, FullTilesKeepTheMatrixUnitBusy) {
  const Product p{1, 1024, 256, 384};
  EXPECT_EQ(matrix_cycles(p), 2 * 3 * 1024);
  EXPECT_DOUBLE_EQ(p.flops() / (matrix_cycles(p) / v2().clock), v2().peak_flops());
}

TEST(CoreModel, WhatFillsNoTileIsPadded) {
  // k = 129 takes two tiles. The 200 rows stream past one tile of 10 columns; the other way round
  // would take 2 * 2 * 128 cycles.
  EXPECT_EQ(matrix_cycles({1, 200, 129, 10}), 2 * 1 * 200);
  EXPECT_EQ(matrix_cycles({1, 10, 129, 200}), 2 * 1 * 200);
  EXPECT_EQ(matrix_cycles({1, 1, 1, 1}), 128);  // the cycles to load a tile
  EXPECT_EQ(matrix_cycles({16, 1000, 1, 1}), 16 * 1000);
}

struct Convolutions {
  Graph graph;
  ValueId forward, input, kernel;
  Convolutions(int64_t groups) {
    GraphBuilder b(graph);
    Window window;
    window.size[0] = window.size[1] = 5;
    window.stride[0] = window.stride[1] = 2;
    window.pad_low[0] = window.pad_low[1] = window.pad_high[0] = window.pad_high[1] = 2;
    const ValueId x = b.parameter("x", {DType::kF32, {8, 28, 28, 4}});
    const ValueId w = b.parameter("w", {DType::kF32, {5, 5, 4 / groups, 32}});
    forward = b.convolution(x, w, window, "y", groups);
    input = b.convolution_input_grad(forward, w, {8, 28, 28, 4}, window, "dx", groups);
    kernel = b.convolution_kernel_grad(x, forward, {5, 5, 4 / groups, 32}, window, "dw", groups);
  }
};

TEST(CoreModel, ConvolutionsAreProducts) {
  for (const int64_t groups : {1, 2, 4}) {
    const Convolutions c(groups);
    for (const ValueId id : {c.forward, c.input, c.kernel}) {
      const auto product = product_of(c.graph, id);
      ASSERT_TRUE(product);
      EXPECT_EQ(product->flops(), flops(c.graph, id)) << c.graph.op(id).name << ' ' << groups;
      EXPECT_EQ(product->batch, groups);
    }
    EXPECT_EQ(product_of(c.graph, c.forward)->m, 8 * 14 * 14);
    EXPECT_EQ(product_of(c.graph, c.forward)->k, 25 * 4 / groups);
    EXPECT_EQ(product_of(c.graph, c.kernel)->k, 8 * 14 * 14);
  }
}

Program product_of_matrices(int64_t m, int64_t k, int64_t n) {
  Program p;
  GraphBuilder b(p.graph);
  p.inputs = {{"x", b.parameter("x", {DType::kF32, {m, k}}), true},
              {"w", b.parameter("w", {DType::kF32, {k, n}}), false}};
  p.outputs = {{"y", b.dot(p.inputs[0].id, p.inputs[1].id)}};
  return p;
}

TEST(CoreModel, TheLongestOfItsTimes) {
  // 4096^3: 32 * 32 * 4096 cycles of 700 MHz = 5.99 ms against 3 * 64 MiB / 358 GB/s = 0.56 ms.
  const StepModel big = model_step(product_of_matrices(4096, 4096, 4096), {v2()});
  ASSERT_EQ(big.units.size(), 1U);
  EXPECT_EQ(big.units[0].limit, Limit::kMatrix);
  EXPECT_NEAR(big.units[0].matrix, 32 * 32 * 4096 / 700e6, 1e-9);
  EXPECT_EQ(big.bytes, 3 * 4096. * 4096 * 4);
  EXPECT_NEAR(big.seconds, big.units[0].matrix, 2e-6);
  // Eight rows times a matrix: 64 MiB to read for 268 MFLOP.
  const StepModel thin = model_step(product_of_matrices(8, 4096, 4096), {v2()});
  EXPECT_EQ(thin.units[0].limit, Limit::kMemory);
  // A product so small that the fixed cost of starting it dominates.
  EXPECT_EQ(model_step(product_of_matrices(8, 8, 8), {v2()}).units[0].limit, Limit::kStart);
}

TEST(CoreModel, PassesAndUnitsScaleTheMatrixUnit) {
  const Program p = product_of_matrices(4096, 4096, 4096);
  const StepModel one = model_step(p, {v2(), 1}), six = model_step(p, {v2(), 6});
  EXPECT_DOUBLE_EQ(six.units[0].matrix, 6 * one.units[0].matrix);
  EXPECT_EQ(six.flops, one.flops);
  const Generation v3 = *find_generation("v3");
  EXPECT_DOUBLE_EQ(one.units[0].matrix / model_step(p, {v3, 1}).units[0].matrix,
                   v3.peak_flops() / v2().peak_flops());
}

TEST(CoreModel, PaddedBytesMove) {
  // The f32 result of 100 x 10 lies in tiles T(8,128), the 100 on the lanes: 128 * 16 * 4 bytes.
  const StepModel m = model_step(product_of_matrices(100, 128, 10), {v2()});
  EXPECT_EQ(m.unpadded_bytes, 4. * (100 * 128 + 128 * 10 + 100 * 10));
  EXPECT_EQ(m.bytes, 4. * (104 * 128 + 128 * 16 + 128 * 16));
}

TEST(CoreModel, RingsOfTheTorus) {
  constexpr double kBytes = 100e6;
  EXPECT_EQ(all_reduce_seconds(kBytes, 1, v2()), 0);
  const double two = all_reduce_seconds(kBytes, 2, v2());
  EXPECT_DOUBLE_EQ(two, 3 * kBytes / v2().hbm_bandwidth);  // within a chip
  EXPECT_NEAR(all_reduce_seconds(kBytes, 8, v2()) - two,
              2 * kBytes / (4 * v2().link_bandwidth) + 4e-6, 1e-9);
}

}  // namespace
}  // namespace twinrun::tpu

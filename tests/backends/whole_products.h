// Dots and convolutions of many tiles, panels and k blocks, on which the tiles of an instruction set
// must give the bits of the vector tiles.
//
//   expect_vector_bits(Isa::kAmxModel);
#pragma once

#include <gtest/gtest.h>

#include "tests/backends/kernels_naive.h"

namespace twinrun::naive {

struct Case {
  Op op;
  Dims lhs, rhs;
};

inline Case dot_case(int64_t m, int64_t n, int64_t k, int lc, int rc) {
  Case c;
  c.op.kind = OpKind::kDotGeneral;
  c.op.attrs.lhs_contract = lc;
  c.op.attrs.rhs_contract = rc;
  c.op.type = {DType::kF32, {m, n}};
  c.lhs = lc == 1 ? Dims{m, k} : Dims{k, m};
  c.rhs = rc == 0 ? Dims{k, n} : Dims{n, k};
  return c;
}

inline Case convolution_case(OpKind kind, const Dims& x, int64_t co, const Window& window) {
  const Dims w{window.size[0], window.size[1], x[3], co};
  const Dims y{x[0], window.out(x[1], 0), window.out(x[2], 1), co};
  Case c;
  c.op.kind = kind;
  c.op.attrs.window = window;
  c.op.type = {DType::kF32, kind == OpKind::kConvolution            ? y
                            : kind == OpKind::kConvolutionInputGrad ? x
                                                                    : w};
  c.op.attrs.shape = c.op.type.dims;
  c.lhs = kind == OpKind::kConvolutionInputGrad ? y : x;
  c.rhs = kind == OpKind::kConvolutionKernelGrad ? y : w;
  return c;
}

inline std::vector<Case> cases() {
  std::vector<Case> list;
  const int64_t sizes[][3] = {{1, 1, 1},     {1, 300, 77},   {300, 1, 77},   {32, 32, 32},
                              {33, 17, 289}, {48, 49, 256},  {600, 40, 257}, {70, 133, 300},
                              {31, 64, 511}, {17, 16, 5000}, {2, 300, 33},   {290, 31, 31}};
  for (const auto& [m, n, k] : sizes) {
    for (int contract = 0; contract < 4; ++contract)
      list.push_back(dot_case(m, n, k, contract / 2, contract % 2));
  }
  const struct {
    Dims x;
    int64_t co;
    Window window;
  } images[] = {
      {{3, 28, 28, 1}, 32, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}},
      {{2, 33, 40, 3}, 17, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}},
      {{2, 14, 14, 32}, 64, {{5, 5}, {1, 1}, {2, 2}, {2, 2}, {1, 1}}},
      {{2, 17, 70, 16}, 33, {{3, 3}, {2, 2}, {0, 0}, {1, 1}, {1, 1}}},
      {{1, 19, 50, 5}, 48, {{3, 2}, {1, 3}, {2, 1}, {2, 0}, {2, 2}}},
      {{1, 12, 9, 512}, 20, {{2, 2}, {1, 1}, {0, 0}, {1, 1}, {1, 1}}},
      {{1, 15, 15, 20}, 64, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}}},
      {{4, 8, 8, 7}, 9, {{1, 1}, {1, 1}, {0, 0}, {0, 0}, {1, 1}}},
      {{2, 9, 9, 40}, 6, {{3, 3}, {1, 1}, {0, 0}, {0, 0}, {1, 1}}},
      {{40, 12, 11, 3}, 4, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}},
  };
  for (const auto& image : images) {
    for (OpKind kind :
         {OpKind::kConvolution, OpKind::kConvolutionInputGrad, OpKind::kConvolutionKernelGrad})
      list.push_back(convolution_case(kind, image.x, image.co, image.window));
  }
  return list;
}

inline void expect_vector_bits(Isa tiles) {
  const Isa vectors = amx_refusal() == "TWINRUN_ISA asks for less" ? active_isa() : Isa::kAvx512;
  const std::vector<Case> list = cases();
  for (size_t i = 0; i < list.size(); ++i) {
    const Case& c = list[i];
    for (const Data data : {Data::kUniform, Data::kSpecial}) {
      const Tensor lhs = tensor(c.lhs, data, 1, 3), rhs = tensor(c.rhs, data, 2, 1);
      const auto passes = static_cast<DotArithmetic>(1 + (data == Data::kSpecial ? i % 3 : 0));
      const auto result = [&](Isa isa, int threads, bool poison) {
        const IsaScope scope(isa);
        ThreadPool pool(threads);
        return run({&pool, {.dot = passes, .flush = true, .poison = poison}}, c.op, {lhs, rhs}, 1);
      };
      const Tensor want = result(vectors, 2, false);
      for (const int threads : {1, 2, 3, 8}) {
        if (data == Data::kSpecial && threads != 2) continue;
        const Tensor got = result(tiles, threads, threads % 2 == 0);
        ASSERT_EQ(first_difference(want, got), -1)
            << "case " << i << " data " << static_cast<int>(data) << " passes "
            << static_cast<int>(passes) << " threads " << threads;
      }
    }
  }
}

}  // namespace twinrun::naive

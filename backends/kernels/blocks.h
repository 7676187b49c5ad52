// One elementwise op on one block of elements: what whole-tensor kernels (elementwise.cc) and fused
// groups (fused.cc) both call, so that fusing cannot change a bit.
//
//   const BlockKernel kernel = block_kernel(op, DType::kF32, flush);
//   kernel({.in = {a, b}, .out = r, .n = 1024});      // inside FlushScope(flush); r overlaps neither
//
// Each node is rounded and its NaNs made canonical as if it were stored.
#pragma once

#include <cstdint>

#include "program/ops/op.h"

namespace twinrun {

struct BlockArgs {
  const void* in[3] = {};
  void* out = nullptr;
  int64_t n = 0;
};
using BlockKernel = void (*)(const BlockArgs&);

// Add ... log1p, compare, convert, select, negate, abs. `operand` is the type of the first
// operand; for select of the second. Null for other kinds.
BlockKernel block_kernel(const Op& op, DType operand, bool flush);

BlockKernel convert_kernel(DType from, DType to, bool flush);

// binary32 by AVX-512, for machines where vectors_of_512(). Null for kinds it does not serve.
BlockKernel wide_kernel(const Op& op, bool flush);

// Work per element, in units of a stored element.
int64_t block_cost(OpKind kind);

}  // namespace twinrun

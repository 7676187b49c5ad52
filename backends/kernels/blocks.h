// One elementwise op on one block of elements. Whole-tensor kernels (elementwise.cc) and fused
// groups (fused.cc) both call these, so that fusing cannot change a bit.
//
//   const BlockKernel kernel = block_kernel(op, DType::kF32, flush);
//   kernel({.in = {a, b}, .out = r, .n = 1024});  // inside FlushScope(flush); r overlaps neither
//
// The result of each op is rounded and its NaNs are made canonical as if it were stored.
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

// The kernel of add ... log1p, compare, convert, select, negate or abs. `operand` is the type of
// the first operand; for select, of the second. Null for other kinds of float operands.
BlockKernel block_kernel(const Op& op, DType operand, bool flush);

BlockKernel convert_kernel(DType from, DType to, bool flush);

// The AVX-512 kernel for binary32, where vectors_of_512(). Null for kinds that have none.
BlockKernel wide_kernel(const Op& op, bool flush);

// Work per element, where reading and storing one element is 1.
int64_t block_cost(OpKind kind);

}  // namespace twinrun

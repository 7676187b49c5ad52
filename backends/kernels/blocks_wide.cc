// Chooses the AVX-512 function of blocks_wide.h for an op on blocks of binary32.
#include "backends/kernels/blocks_wide.h"

#include "backends/kernels/blocks.h"

namespace twinrun {
namespace {

template <WideArithmetic::Binary WideArithmetic::*kOp>
void wide(const BlockArgs& g) {
  (kWideArithmetic.*kOp)(static_cast<const float*>(g.in[0]), static_cast<const float*>(g.in[1]),
                         static_cast<float*>(g.out), g.n);
}
template <bool kFlush>
constexpr WideArithmetic::Comparing WideArithmetic::*kComparing =
    kFlush ? &WideArithmetic::flushed : &WideArithmetic::kept;
template <bool kFlush, WideArithmetic::Binary WideArithmetic::Comparing::*kOp>
void wide_extreme(const BlockArgs& g) {
  (kWideArithmetic.*kComparing<kFlush>.*kOp)(static_cast<const float*>(g.in[0]),
                                             static_cast<const float*>(g.in[1]),
                                             static_cast<float*>(g.out), g.n);
}
template <bool kFlush, CompareKind kKind>
void wide_compare(const BlockArgs& g) {
  (kWideArithmetic.*kComparing<kFlush>)
      .compare[static_cast<int>(kKind)](static_cast<const float*>(g.in[0]),
                                        static_cast<const float*>(g.in[1]),
                                        static_cast<uint8_t*>(g.out), g.n);
}
void wide_select(const BlockArgs& g) {
  kWideArithmetic.select(static_cast<const uint8_t*>(g.in[0]),
                         static_cast<const uint32_t*>(g.in[1]),
                         static_cast<const uint32_t*>(g.in[2]), static_cast<uint32_t*>(g.out), g.n);
}

template <bool kFlush>
BlockKernel wide_compare_of(CompareKind kind) {
  switch (kind) {
    case CompareKind::kEq:
      return wide_compare<kFlush, CompareKind::kEq>;
    case CompareKind::kNe:
      return wide_compare<kFlush, CompareKind::kNe>;
    case CompareKind::kLt:
      return wide_compare<kFlush, CompareKind::kLt>;
    case CompareKind::kLe:
      return wide_compare<kFlush, CompareKind::kLe>;
    case CompareKind::kGt:
      return wide_compare<kFlush, CompareKind::kGt>;
    default:
      return wide_compare<kFlush, CompareKind::kGe>;
  }
}
template <bool kFlush>
BlockKernel wide_of(const Op& op) {
  switch (op.kind) {
    case OpKind::kAdd:
      return wide<&WideArithmetic::add>;
    case OpKind::kSubtract:
      return wide<&WideArithmetic::subtract>;
    case OpKind::kMultiply:
      return wide<&WideArithmetic::multiply>;
    case OpKind::kDivide:
      return wide<&WideArithmetic::divide>;
    case OpKind::kMaximum:
      return wide_extreme<kFlush, &WideArithmetic::Comparing::maximum>;
    case OpKind::kMinimum:
      return wide_extreme<kFlush, &WideArithmetic::Comparing::minimum>;
    case OpKind::kCompare:
      return wide_compare_of<kFlush>(op.attrs.compare);
    case OpKind::kSelect:
      return wide_select;
    default:
      return nullptr;
  }
}

}  // namespace

BlockKernel wide_kernel(const Op& op, bool flush) {
  return flush ? wide_of<true>(op) : wide_of<false>(op);
}

}  // namespace twinrun

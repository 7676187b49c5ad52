// Operands and results of dots, which compute in binary32: bf16 operands are widened before, bf16
// results rounded after. Private to the dot and convolution kernels.
//
//   const float* a = dot_operand(context, inputs[0], Scratch::kOperandA);
//   DotResult c(context, output);   ... c.data() ...   c.finish();
#pragma once

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/scratch.h"

namespace twinrun {

inline const float* dot_operand(const KernelContext& context, const Tensor& x, Scratch slot) {
  if (x.dtype() != DType::kBF16) return x.as<float>().data();
  auto* wide = scratch<float>(slot, static_cast<size_t>(x.elements()));
  const uint16_t* narrow = x.as<uint16_t>().data();
  for_ranges(context, x.elements(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) wide[i] = bf16_to_f32(narrow[i]);
  });
  return wide;
}

class DotResult {
 public:
  DotResult(const KernelContext& context, Tensor& output) : context_(context), output_(output) {
    data_ = output.dtype() == DType::kBF16
                ? scratch<float>(Scratch::kResult, static_cast<size_t>(output.elements()))
                : output.as<float>().data();
  }
  float* data() { return data_; }
  void finish() {
    if (output_.dtype() != DType::kBF16) return;
    uint16_t* narrow = output_.as<uint16_t>().data();
    const bool flush = context_.arithmetic.flush;
    for_ranges(context_, output_.elements(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        narrow[i] = flush ? bf16_round_flush(data_[i]) : bf16_round(data_[i]);
    });
  }

 private:
  const KernelContext& context_;
  Tensor& output_;
  float* data_;
};

}  // namespace twinrun

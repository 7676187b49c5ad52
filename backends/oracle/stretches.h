// concatenate, slice, pad and gather as copies of runs of neighbouring elements, for the oracle.
//
//   for_each_stretch(op, inputs, begin, end,
//                    [&](int64_t i, int which, int64_t at, int64_t count) { .. });
//
// Elements [i, i + count) of the result are elements [at, at + count) of operand `which`; if which
// is -1 they are zeros.
#pragma once

#include <algorithm>
#include <span>

#include "program/base/tensor.h"
#include "program/ops/op.h"

namespace twinrun::oracle {

template <typename F>
void for_each_stretch(const Op& op, std::span<const Tensor> inputs, int64_t begin, int64_t end,
                      F f) {
  const Dims& x = inputs[0].dims();
  if (op.kind == OpKind::kGather) {
    const int64_t rows = x[0], width = inputs[0].elements() / rows;
    for (int64_t i = begin; i < end;) {
      const int64_t row = i / width, column = i % width, count = std::min(end - i, width - column);
      const int64_t id = inputs[1].as<int32_t>()[static_cast<size_t>(row)];
      f(i, 0, std::clamp<int64_t>(id, 0, rows - 1) * width + column, count);
      i += count;
    }
    return;
  }
  // A line of the result (the axis and all inner dimensions) has `all` elements, one of operand 0
  // has `in`. Each turn of the loop copies up to the next boundary, `stop`.
  const auto axis = static_cast<size_t>(op.attrs.dims[0]);
  int64_t inner = 1;
  for (size_t d = axis + 1; d < x.size(); ++d) inner *= x[d];
  const int64_t all = op.type.dims[axis] * inner, in = x[axis] * inner;
  for (int64_t i = begin; i < end;) {
    const int64_t line = i / all, r = i % all;
    int64_t at = 0, stop = all;
    int which = 0;
    if (op.kind == OpKind::kConcatenate) {
      which = r < in ? 0 : 1;
      at = r < in ? line * in + r : line * (all - in) + r - in;
      stop = r < in ? in : all;
    } else if (op.kind == OpKind::kSlice) {
      at = line * in + op.attrs.dims[1] * inner + r;
    } else {  // pad
      const int64_t low = op.attrs.dims[1] * inner;
      which = r < low || r >= low + in ? -1 : 0;
      at = line * in + r - low;
      stop = r < low ? low : r < low + in ? low + in : all;
    }
    const int64_t count = std::min(end - i, stop - r);
    f(i, which, at, count);
    i += count;
  }
}

}  // namespace twinrun::oracle

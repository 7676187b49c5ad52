// Literals of HLO text: constant(0.1), constant({ {1, 2}, {3, 4} }), and of MLIR:
// [[1, 2], [3, 4]], 0xFF800000, "0x0000803F...". The importer makes constants or inputs of them.
//
//   const Tensor t = literal_of(instruction, {DType::kF32, {2, 2}});
#pragma once

#include "program/base/tensor.h"
#include "program/import/attributes.h"

namespace twinrun {

// The elements of a constant, row-major. Throws Unsupported for elided literals and for surplus or
// missing elements.
Tensor literal_of(const HloInstruction& constant, const TensorType& type);

// The value of element 0, if all elements have the same bits.
std::optional<double> only_value(const Tensor& tensor);

}  // namespace twinrun

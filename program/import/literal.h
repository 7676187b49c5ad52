// Literals of HLO text: constant(0.1), constant({ {1, 2}, {3, 4} }), and of MLIR: [[1, 2], [3, 4]], 0xFF800000, "0x0000803F...".
#pragma once

#include "program/base/tensor.h"
#include "program/import/attributes.h"

namespace twinrun {

// The elements of a constant, row-major. Throws Unsupported: elided literals, surplus or missing elements.
Tensor literal_of(const HloInstruction& constant, const TensorType& type);

// Element 0 as a number, if all elements have its bits.
std::optional<double> only_value(const Tensor& tensor);

}  // namespace twinrun

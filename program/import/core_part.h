// The part of a user's array that one core of an imported program is given: a block of the array of
// which a core's parameter has the shape. On the data's path: state and batches of the user ->
// States, StepInputs.
//
//   Tensor own = part_of(whole, part, {4, 8}, core);
#pragma once

#include <vector>

#include "program/base/tensor.h"

namespace twinrun {

struct CorePart {
  // Of the user's array; it may have one dimension more in front, of size 1 in a block.
  Dims whole;
  std::vector<Dims> begin;  // the block's first element, of each core
};

// The block of `core`, with the dimensions `dims`.
Tensor part_of(const Tensor& whole, const CorePart& part, const Dims& dims, size_t core);

}  // namespace twinrun

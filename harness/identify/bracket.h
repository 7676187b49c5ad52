// Brackets a fault between the tensors that an engine shows, by the program's graph: the fault lies
// in what all tensors outside follow from and no tensor inside follows from. An engine may compute
// its step with other ops and in another order, so layers and passes are named, not ops.
//
//   Bracket b = bracket_of(program, seen);
//   b.text;      // "the backward pass from pool1 to conv2"
//
// Any tensors narrow it down; where an engine also gives the outputs of layers, these count like
// all others.
#pragma once

#include <string>
#include <vector>

#include "program/graph/program.h"

namespace twinrun {

// A tensor of one step, on all replicas together.
struct SeenTensor {
  ValueId id = kNoValue;
  std::string name;
  bool outside = false;
  double relative = 0;    // if outside: its error as a share of its size
  double resolution = 0;  // if inside: the least error, as a share of its size, that would show
};

struct Bracket {
  std::string text;  // "" where the tensors do not say
  // The tensors inside that narrow it down most: "the loss, the gradient of dense1/kernel".
  std::string right;
};
Bracket bracket_of(const Program& program, const std::vector<SeenTensor>& seen);

// The value at which a tensor is computed; for a gradient, before it is reduced and clipped (those
// ops follow the order of parameters, not of the backward pass).
ValueId computed_at(const Program& program, const std::string& tensor, ValueId id);

// "dense1/kernel.grad" in words: "the gradient of dense1/kernel".
std::string tensor_words(const std::string& tensor, bool is_state);

}  // namespace twinrun

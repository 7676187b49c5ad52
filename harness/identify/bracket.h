// Where between the tensors that an engine shows a fault lies, told from the program: in what all of them follow from that are
// outside, and none that is inside. An engine may compute its step by other ops and in another order, so layers and passes are
// named, no ops.
//
//   Bracket b = bracket_of(program, seen);
//   b.text;      // "the backward pass from pool1 to conv2"
//
// Whatever tensors are shown narrow it down: outputs of layers, where an engine gives them, like all others.
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
  double relative = 0;    // outside: by how much of itself
  double resolution = 0;  // inside: a smaller change of it, as a share of itself, would not be seen
};

struct Bracket {
  std::string text;  // "" where the tensors do not say
  std::string
      right;  // the tensors inside that narrow it down most: "the loss, the gradient of dense1/kernel"
};
Bracket bracket_of(const Program& program, const std::vector<SeenTensor>& seen);

// When a tensor is computed: of a gradient, before it is reduced and clipped (an order of parameters, not of the backward pass).
ValueId computed_at(const Program& program, const std::string& tensor, ValueId id);

// "dense1/kernel.grad" as people say it: "the gradient of dense1/kernel".
std::string tensor_words(const std::string& tensor, bool is_state);

}  // namespace twinrun

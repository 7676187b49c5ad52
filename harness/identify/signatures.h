// What a wrong tensor looks like where nothing but tensors is seen (level C): which of its elements are wrong, and what stands there
// instead. Each likeness is a computation that must agree with what the engine gave, element by element, as closely as honest engines
// agree with each other; none comes from a list of faults that can be injected.
//
//   signature_of({.dims = {16, 32}, .got = g, .due = d, .allowed = a, ...});   // {"column 7 of 32", "2 times what was due"}
//
// harness/lockstep/hypotheses.h does the same for an op whose operands are known.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/base/types.h"

namespace twinrun {

// What may stand in the place of the tensor.
struct InsteadOf {
  std::string text;  // "what was due at the step before (stale)"
  std::span<const float> values;
};

struct WrongTensor {
  Dims dims = {};                         // {}: the layout is not known, as of a sample of elements
  std::vector<std::string> axes = {};     // their names, for people; {}: they are numbered
  std::span<const float> got, due;        // of a state: its change
  std::span<const double> allowed;        // by element: how far an honest engine may be from `due`,
  std::span<const double> from_exact;     // and from binary64, which `parts` and `others` are in
  std::span<const float> left, left_due;  // of a state: what the step leaves there; else empty
  std::vector<std::span<const float>> parts = {};  // of a reduced gradient: each core's
  std::vector<InsteadOf> others = {};
};

struct Signature {
  int64_t wrong = 0;     // elements that are outside by themselves; none: only all together are
  std::string elements;  // which, in words; "": all of them
  std::string likeness;  // what they look like; "": nothing that is known
};
Signature signature_of(const WrongTensor& tensor);

// Names of the axes of "dense1/kernel", "embedding1/embeddings" or "conv1/kernel.grad"; {} where they have none.
std::vector<std::string> axis_names(const std::string& tensor, const Dims& dims);

}  // namespace twinrun

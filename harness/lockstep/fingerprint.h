// What a wrong tensor looks like beside the expected one, as an engine engineer would say it. Hypotheses are tried by evidence:
// the op is recomputed as the hypothesis says, and must then agree inside the bound.
//
//   likenesses(declared, op, subject, oracle, inputs, pool, past);     // {"8 times the expected value", 1}, ...
#pragma once

#include <span>
#include <string>
#include <vector>

#include "backends/oracle/oracle.h"

namespace twinrun {

struct Likeness {
  std::string text;
  double share = 1;  // of the wrong elements that it explains
};

// What was seen one step before, and around the op.
struct Past {
  Tensor result;                 // of this op; invalid if unknown
  std::vector<Tensor> operands;  // likewise
  int cores = 1;
};

// Best first: what explains every wrong element, then what explains nearly all, then a description. Never empty for an f32
// result with wrong elements.
std::vector<Likeness> likenesses(const Capabilities& declared, const Op& op, const Tensor& subject,
                                 const OracleResult& oracle, const std::vector<Tensor>& inputs,
                                 ThreadPool* pool, const Past& past);

// The best of them; "" if nothing recognisable. previous: the op's result one step before, or nullptr.
std::string fingerprint(const Capabilities& declared, const Op& op, const Tensor& subject,
                        const OracleResult& oracle, const std::vector<Tensor>& inputs,
                        ThreadPool* pool, const Tensor* previous);

// Flat indices of elements outside their bounds, ascending.
std::vector<int64_t> wrong_elements(const OracleResult& oracle, const Tensor& subject);

}  // namespace twinrun
